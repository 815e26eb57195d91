"""`docs/proof.md` word by word: the reader's commands, on a cluster whose operator cheats between them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ledgermq.cli import run
from tests.client.fake_cluster import fake_nodes
from tests.client.fake_log_tree import cluster_of, log_of
from tests.examples import documents
from tests.examples.cheating import NOW, SECTIONS, Operator
from tests.examples.test_documents import ROOT, clean, programs

PAGE = (ROOT / "docs/proof.md").read_text()


def sections() -> list[tuple[str, list[documents.Block]]]:
    """The headings of the page that have blocks, with them."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    found = [(heading, documents.blocks(text)) for heading, text in zip(parts[1::2], parts[2::2], strict=True)]
    return [(heading, blocks) for heading, blocks in found if blocks]


def test_every_section_has_its_deceit() -> None:
    assert [heading for heading, _ in sections()] == list(SECTIONS)


@pytest.mark.slow
def test_the_page_on_a_cluster_whose_operator_cheats(tmp_path: Path) -> None:
    """A rewritten message, a forked history, a withheld tail, a rolled-back replica and a stolen key, each found as the page says."""
    work = tmp_path / "work"
    work.mkdir()
    environment = clean(tmp_path, programs(tmp_path / "bin", Path(sys.executable), ledgermq="-m ledgermq"), PYTHONPATH=str(ROOT / "src"))
    with fake_nodes() as (node,), documents.terminal(work, environment, node.port) as at:
        operator = Operator(cluster_of(node, log_of(NOW)), work)
        for heading, blocks in sections():
            SECTIONS[heading](operator)
            documents.run(blocks, at)


def test_an_honest_operator_is_not_accused(tmp_path: Path) -> None:
    """The commands of all sections find nothing while the log only grows."""
    with fake_nodes() as (node,):
        operator = Operator(cluster_of(node, log_of(NOW)), tmp_path)
        operator.is_honest()
        keys = tmp_path / "keys"
        keys.write_text("".join(f"{key.verifier_key}\n" for key in operator.cluster.keys().keys if not key.retired))
        where = ("--endpoints", node.endpoint)
        assert run(["checkpoint", "show", "--broker-group", "g1", "--to", str(tmp_path / "old"), *where]) == 0
        for _ in range(2):
            assert run(["witness", "--dir", str(tmp_path / "w"), "--keys", str(keys), "--once", "--stale-after", "1h", *where]) == 0
            show = ["checkpoint", "show", "--broker-group", "g1", "--keys", str(keys), "--since", str(tmp_path / "old")]
            assert run([*show, *where]) == 0
            operator.goes_on()
