"""Every block of the README and of the tutorials runs, in order, on a fresh cluster, and prints
what the document shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import base_port
from tests.examples import documents
from tests.examples.documents import Block

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs/tutorials").glob("*.md") if path.name != "README.md"),
]
LINES_OF_README = 120
TUTORIAL_S = 600
"""What docs/tutorials/README.md promises."""


def clean(home: Path, path: str, **more: str) -> dict[str, str]:
    """The environment of a reader: none of this project's variables, a home of its own, and color
    off."""
    own = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("LEDGERMQ_", "PYTHON", "VIRTUAL_ENV"))
    }
    return {
        **own,
        "HOME": str(home),
        "PATH": f"{path}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "PYTHONWARNINGS": "ignore",
        **more,
    }


def programs(directory: Path, interpreter: Path, /, **arguments: str) -> str:
    """A directory for PATH with programs that run this Python with these arguments."""
    directory.mkdir()
    for name, given in arguments.items():
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {interpreter} {given} "$@"\n')
        program.chmod(0o755)
    return str(directory)


def installs(block: Block) -> bool:
    return "pip install" in block.text


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_every_block_prints_the_output_of_its_page(page: Path, tmp_path: Path) -> None:
    """From the source tree. The blocks that install run in the test of the clone."""
    pytest.importorskip("rocketmq", reason="the demo's dependencies are not installed")
    environment = clean(
        tmp_path,
        programs(tmp_path / "bin", Path(sys.executable), python="", ledgermq="-m ledgermq"),
        PYTHONPATH=str(ROOT / "src"),
    )
    work = tmp_path / "work"
    work.mkdir()
    with documents.terminal(work, environment, base_port()) as at:
        documents.run(
            [block for block in documents.blocks(page.read_text()) if not installs(block)], at
        )


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A directory with nothing in it beside a clone, and the environment of a reader who has Python
    and a package index. Later pages find what the first one installed."""
    home = tmp_path_factory.mktemp("home")
    tracked_files(home / "ledgermq")
    tools = programs(home / "bin", Path(sys.base_prefix) / "bin/python3", python3="")
    work = home / "work"
    work.mkdir()
    return work, clean(home, tools, PIP_DISABLE_PIP_VERSION_CHECK="1")


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_every_block_runs_from_a_clone_in_a_fresh_environment(
    page: Path, reader: tuple[Path, dict[str, str]]
) -> None:
    """All blocks, also those that install."""
    work, environment = reader
    shutil.rmtree(work / "ledgermq-data", ignore_errors=True)
    began_s = time.monotonic()
    with documents.terminal(work, environment, base_port()) as at:
        documents.run(documents.blocks(page.read_text()), at)
        took_s = time.monotonic() - began_s
        used = at.run(Block(0, "sh", "python -c 'import ledgermq; print(ledgermq.__path__[0])'\n"))
    assert used.startswith(str(work / ".venv")), "the page did not use what it installed"
    assert took_s < TUTORIAL_S, f"it took {took_s:.0f} s"


def tracked_files(copy: Path) -> None:
    """Copy the tracked files, so that a build leaves nothing in the tree."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in listing.split("\0")[:-1]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)


def test_the_readme_is_short() -> None:
    """At most 120 lines; everything else has a page in the index."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= LINES_OF_README


def test_the_documents_have_blocks_with_output() -> None:
    """The pattern still finds the blocks; every tutorial shows output, and has no block of an
    unknown language."""
    for page in DOCUMENTS:
        found = documents.blocks(page.read_text())
        assert sum(block.language == "sh" for block in found) >= 3, page
        assert sum(block.expected is not None for block in found) >= 2, page
    assert len(DOCUMENTS) == 4


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("a\n", "a\n"),
        ("id … at …\n", "id 01AB at 12:00\n"),
        ("a   \n", "a\n"),
        ("a\n…\nz\n", "a\nb\nc\nz\n"),
        ("a\n…\n", "a\n"),
        ("", ""),
    ],
)
def test_output_that_matches(expected: str, printed: str) -> None:
    """`…` stands for any text of a line, and alone for any lines."""
    assert documents.matches(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("a\n", "b\n"),
        ("a\n", "a\nb\n"),
        ("a\nb\n", "a\n"),
        ("id … at\n", "id 01AB\nat\n"),
        ("a\n…\nz\n", "a\nz\nb\n"),
        ("a.c\n", "abc\n"),
        ("", "a\n"),
    ],
)
def test_output_that_does_not_match(expected: str, printed: str) -> None:
    """A line more, less or different is a difference, and `…` does not reach over the end of its
    line."""
    assert not documents.matches(expected, printed)


def one(text: str, language: str = "sh", expected: str | None = None) -> Block:
    return Block(1, language, text, expected)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([one("false\n")], "ended with 1"),
        ([one("false\ntrue\n")], "ended with 1"),
        ([one("echo a\n", expected="b\n")], "the document shows"),
        ([one("# p.py\n", "python")], "no block runs"),
        ([one("sleep 60 &\n")], "leaves processes"),
        ([one("import os\n", "python")], "does not name"),
    ],
)
def test_document_runner_fails_on_wrong_output_and_status(
    document: list[Block], why: str, tmp_path: Path
) -> None:
    """A failing command anywhere in a block, other output, a program that never runs, a process
    that stays."""
    with (
        documents.terminal(tmp_path, clean(tmp_path, "/nowhere"), 9999) as at,
        pytest.raises(AssertionError, match=why),
    ):
        documents.run(document, at)


def test_blocks_share_a_shell_and_its_variables(tmp_path: Path) -> None:
    """A variable of one block is known to the next, and addresses are those of the run inside and
    of the document outside."""
    document = documents.blocks(
        "```sh\nhost=127.0.0.1:8082\n```\nthen\n```sh\necho $host"
        " ${#host}\n```\n```text\n127.0.0.1:8082 15\n```\n"
    )
    with documents.terminal(tmp_path, clean(tmp_path, "/nowhere"), 20000) as at:
        documents.run(document, at)
