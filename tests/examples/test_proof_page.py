"""`docs/proof.md` word by word: the reader's commands, on a cluster whose operator cheats between
them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cluster import running
from tests.examples import documents
from tests.examples.cheating import FILE_BYTES, SECTIONS, Operator
from tests.examples.documents import Block
from tests.examples.test_documents import ROOT, clean, programs

PAGE = (ROOT / "docs/proof.md").read_text()


def sections() -> list[tuple[str, list[Block]]]:
    """The headings of the page that have blocks, with them."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    found = [
        (heading, documents.blocks(text))
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    ]
    return [(heading, blocks) for heading, blocks in found if blocks]


def test_every_section_has_its_deceit() -> None:
    assert [heading for heading, _ in sections()] == list(SECTIONS)


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.timeout(900)
def test_proof_page_detects_a_cheating_operator(tmp_path: Path) -> None:
    """A rewritten message, a forked history, a withheld tail, a rolled-back replica and a stolen
    key, each found as the page says; and nothing is found while the operator is honest."""
    pytest.importorskip("pyarrow", reason="receipts are Parquet files")
    work = tmp_path / "work"
    work.mkdir()
    environment = clean(
        tmp_path,
        programs(tmp_path / "bin", Path(sys.executable), ledgermq="-m ledgermq"),
        PYTHONPATH=str(ROOT / "src"),
    )
    with (
        running(tmp_path, log_file_bytes=FILE_BYTES) as cluster,
        documents.terminal(work, environment, 1) as at,
    ):
        at.run(Block(0, "sh", f"export LEDGERMQ_ENDPOINTS='{cluster.endpoints}'\n"))
        operator = Operator(cluster, work, tmp_path / "copies")
        for heading, blocks in sections():
            SECTIONS[heading](operator)
            documents.run(blocks, at)
