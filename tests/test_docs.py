"""The documents stay true: code, tests, commands and pages that they name exist."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from ledgermq.cli import cli
from ledgermq.sim.faults import KNOWN

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = re.compile(r"`([a-z_/]+\.py):([A-Za-z_.]+)`")


def tracked(pattern: str) -> list[Path]:
    """Files of the repository by a pattern of git, also those that were not added yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in (ROOT / line for line in listing.splitlines()) if path.is_file()]


def references() -> list[tuple[str, str, str]]:
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        found += [(page.name, path, name) for path, name in REFERENCE.findall(page.read_text())]
    return found


@functools.cache
def names_of(path: Path) -> set[str]:
    """Top-level names and `Class.method`s defined in a module."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def missing_names(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """One complaint for each pair of file and name that does not exist."""
    return [
        f"{path} has no {name}"
        for path, name in pairs
        if not (ROOT / path).is_file() or name not in names_of(ROOT / path)
    ]


def test_a_missing_name_is_reported() -> None:
    """The checks below can fail: for a file that does not exist, and for a name that a file does
    not define."""
    here = "tests/test_docs.py"
    wrong = [("tests/test_nowhere.py", "test_docs"), (here, "test_nothing")]
    assert missing_names([*wrong, (here, "test_named_code_exists")]) == [
        f"{path} has no {name}" for path, name in wrong
    ]


def test_named_code_exists() -> None:
    """The functions and methods that the pages name exist."""
    found = references()
    assert len(found) > 50, "the pattern no longer matches what the pages write"
    assert [
        f"{page}: {why}" for page, path, name in found for why in missing_names([(path, name)])
    ] == []


TEST_REFERENCE = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


def bad_file_rows() -> list[str]:
    """The rows of the tables of bad-files.md, without their heads."""
    lines = (ROOT / "docs/bad-files.md").read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| what ")]


def test_every_bad_file_has_its_test() -> None:
    """Each row names a test, and the test exists."""
    named = {row: TEST_REFERENCE.findall(row) for row in bad_file_rows()}
    assert named, "the pattern no longer matches the rows"
    assert [row for row, tests in named.items() if not tests] == [], "rows that name no test"
    assert [why for tests in named.values() for why in missing_names(tests)] == []


ROWS_OF_FAULTS = range(1, 54)


@functools.cache
def fault_rows() -> dict[int, list[str]]:
    """Number of a row of faults.md → its other cells: fault, what holds, real processes, simulator,
    elsewhere."""
    found: dict[int, list[str]] = {}
    for line in (ROOT / "docs/faults.md").read_text().splitlines():
        number, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if line.startswith("| ") and number.isdigit():
            assert int(number) not in found, f"row {number} is there twice"
            found[int(number)] = cells
    return found


def test_every_fault_is_in_the_table() -> None:
    """The matrix has 52 rows, and none is left out."""
    assert sorted(fault_rows()) == list(ROWS_OF_FAULTS)


@pytest.mark.parametrize("number", ROWS_OF_FAULTS)
def test_every_fault_is_tried_somewhere_or_says_why_not(number: int) -> None:
    """What a row names exists: tests by their functions, simulator kinds by the simulator's own
    list, which must name the row as well."""
    _, holds, real, simulated, elsewhere = fault_rows()[number]
    kinds = [] if not simulated else simulated.removesuffix(", and every other kind").split(", ")
    for kind in kinds:
        assert kind in KNOWN, f"row {number}: the simulator knows no {kind}"
        assert number in KNOWN[kind].rows, (
            f"row {number}: {kind} says it is of the rows {KNOWN[kind].rows}"
        )
    missing = [kind for kind, about in KNOWN.items() if number in about.rows and kind not in kinds]
    assert not missing, f"row {number} leaves out {missing}"
    tests = TEST_REFERENCE.findall(f"{real} {elsewhere}")
    assert missing_names(tests) == []
    assert tests or kinds or "not tried: " in holds, (
        f"row {number} names nothing and does not say why"
    )


def claims() -> list[str]:
    """The claims of delivery.md: rows of tables that name what shows them."""
    return [
        line
        for line in (ROOT / "docs/delivery.md").read_text().splitlines()
        if line.startswith("| ") and "`tests/" in line
    ]


def test_every_claim_about_delivery_is_shown_by_tests_that_exist() -> None:
    """Each test that shows a guarantee of delivery.md exists."""
    assert [why for claim in claims() for why in missing_names(TEST_REFERENCE.findall(claim))] == []


def test_the_claims_about_delivery_are_many() -> None:
    """The pattern still finds them, and each test it names."""
    text = (ROOT / "docs/delivery.md").read_text()
    assert len(claims()) > 25
    assert text.count("::test_") == len(TEST_REFERENCE.findall(text))


PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
COMMAND = re.compile(r"(?:.*?[ /(])?ledgermq ([a-z][a-z-]*(?: .*)?)")
# Strings on disk that begin as a command line does.
NO_COMMANDS = {"format.md"}


def commands(page: Path) -> Iterator[str]:
    """What stands behind `ledgermq` in code of a page; in blocks a comment follows after two blanks
    or `#`."""
    text = page.read_text()
    lines = [line for block in FENCED.findall(text) for line in block.splitlines()[1:-1]]
    for line in [*lines, *re.findall(r"`([^`\n]+)`", FENCED.sub("", text))]:
        for piece in re.split(r"\s{2,}|[;|#]|&&", line):
            if found := COMMAND.fullmatch(piece.strip()):
                yield found.group(1)


def complaint(words: Sequence[str]) -> str | None:
    """What the command line does not know of these words."""
    command: click.Command = cli
    for word in words:
        if word.startswith("--"):
            option = re.match(r"--[a-z0-9-]*", word)
            known = {
                name for param in command.params for name in (*param.opts, *param.secondary_opts)
            }
            if option and option.group() not in known | {"--", "--help", "--version"}:
                return f"{command.name} has no option {option.group()}"
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            below = command.get_command(click.Context(command), word)
            if below is None:
                return f"{command.name} has no command {word}"
            command = below
    return None


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in NO_COMMANDS], ids=lambda page: page.name
)
def test_commands_and_their_options_exist(page: Path) -> None:
    """What a reader copies from a page into a terminal is understood there."""
    assert [
        (line, why) for line in commands(page) if (why := complaint(line.split())) is not None
    ] == []


def test_there_are_commands() -> None:
    """The pattern still matches what the pages write."""
    assert sum(1 for page in PAGES for _ in commands(page)) > 150


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link within the repository leads to a file, and to a heading of it where it names
    one."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", target):
            there = page.parent / path if path else page
            assert there.exists(), f"{page.name}: {target} is gone"
            headings = (
                {slug(heading) for heading in re.findall(r"^#+ (.*)$", there.read_text(), re.M)}
                if anchor
                else set()
            )
            assert not anchor or anchor in headings, f"{page.name}: {target} names no heading"


FOLDERS = (
    "proto|raft|storage|node|client|audit|sim|src|tests|bench|examples|deploy|docs|requirements"
)
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)(?:::?[\w.]+)?`")


def missing_paths(text: str) -> list[str]:
    """Paths in code of a page that lead nowhere."""
    return [path for path in PATH.findall(text) if not (ROOT / path).exists()]


CURRENT = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
]
"""All pages but the decisions, which name what there was at their time."""


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_named_paths_and_tests_exist(page: Path) -> None:
    """Every file and folder that a page names is there, and so is every test; the track record
    tells of former ones."""
    text = page.read_text()
    assert missing_paths(text) == []
    if page.name != "track-record.md":
        assert [
            (path, name)
            for path, name in TEST_REFERENCE.findall(text)
            if name not in names_of(ROOT / path)
        ] == []


def test_a_missing_path_is_named() -> None:
    """The check above can fail."""
    assert missing_paths(
        "`raft/core.py`, `raft/gone.py`, `node/gone.py:Name`, `tests/gone.py::test_x`"
    ) == [
        "raft/gone.py",
        "node/gone.py",
        "tests/gone.py",
    ]


def test_the_index_names_every_page() -> None:
    """A page that the index leaves out is not found."""
    index = (ROOT / "docs/README.md").read_text()
    pages = [
        page.relative_to(ROOT / "docs").as_posix() for page in CURRENT if page != ROOT / "README.md"
    ]
    assert [page for page in pages if f"]({page})" not in index and page != "README.md"] == []


CITATION = re.compile(r"architecture\.md, (I\d+\b|[A-Z][\w ]*)")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


def citations() -> Iterator[tuple[Path, str]]:
    """What code and decisions cite of the architecture: an invariant or a section."""
    for path in [path for pattern in ("*.py", "docs/decisions/*.md") for path in tracked(pattern)]:
        # A sentence may go on in the next line, of a comment as well.
        text = re.sub(r"\s+(# )?", " ", path.read_text())
        yield from ((path, cited) for cited in CITATION.findall(text))


def test_citations_in_the_code_are_defined() -> None:
    """A citation of the architecture names one of its sections or invariants, and nothing cites a
    design that is not here."""
    sections = tuple(re.findall(r"^## (.*)$", ARCHITECTURE, re.M))
    invariants = re.findall(r"^\| (I\d+) \|", ARCHITECTURE, re.M)
    assert invariants == [f"I{number}" for number in range(1, 13)]
    wrong = [
        (path.name, cited)
        for path, cited in citations()
        if not cited.startswith(sections) and cited not in invariants
    ]
    assert wrong == []
    elsewhere = "design" + " §"
    assert [
        path.name
        for pattern in ("*.py", "*.md")
        for path in tracked(pattern)
        if elsewhere in path.read_text()
    ] == []
    assert sum(1 for _ in citations()) > 20
