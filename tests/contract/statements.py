"""Maps the hundred statements of the client contract to their tests; `python -m
tests.contract.statements` prints the page.

The name of a test contains the numbers of its statements: `test_statement_083_…`. The first line of
its docstring says what it shows; its file determines how. `test_statements.py` checks that the page
is current.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/conformance.md"
STATEMENTS = range(1, 101)
_NUMBERED = re.compile(r"test_statement((?:_\d{3})+)_")
_WAYS = {
    "contract/test_foreign_clients.py": "Node, Java, Go",
    "contract/test_programs.py": "Python",
    "soak/": "Python, full length",
    "node_core/": "core",
}
"""Files whose tests use an official client, by the beginning of their path."""
_OFFICIAL = "tests.contract.official"
"""Modules that import this use the official Python client."""
_HEAD = """# Conformance

The client contract of RocketMQ 5 in a hundred numbered statements, and the tests that show each. This page is made from the tests
(`python -m tests.contract.statements`), and a test holds it to them.

*How*: `Python`, `Node`, `Java`, `Go` are the unmodified official clients against three real nodes; `calls` are calls made by hand, as the
contract says that clients make them, through the same service; `core` is a broker group's own logic on virtual time. Go, and what waits for
minutes, runs in `make soak`. No test runs the clients for Rust, C#, C++ and Spring: calls cover them. Where ledgermq-native is installed,
`make verify` runs these tests twice: against nodes with the compiled gRPC server, and with the Python one.

What is shown with the Python client is run again in `make soak` while the leader is killed every five seconds
(`tests/soak/test_soak_kills.py`); `tests/soak/killed_cluster.py` says which tests are left out, and why: those that judge times, and those
that kill nodes themselves.

| # | what is shown | how | test |
|---:|---|---|---|
"""


@dataclass(frozen=True)
class Shown:
    """A test of one statement."""

    statement: int
    what: str
    how: str
    test: str


def shown() -> Iterator[Shown]:
    """All numbered tests."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if "test_statement_" not in text:
            continue
        relative = path.relative_to(TESTS).as_posix()
        official = "Python" if _OFFICIAL in text else "calls"
        how = next((way for begin, way in _WAYS.items() if relative.startswith(begin)), official)
        for node in ast.walk(ast.parse(text)):
            found = (
                _NUMBERED.match(node.name)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                else None
            )
            if found:
                assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                what = (
                    (ast.get_docstring(node) or "")
                    .split("\n\n")[0]
                    .replace("\n", " ")
                    .replace("|", "\\|")
                )
                for number in found[1].split("_")[1:]:
                    yield Shown(int(number), what, how, f"tests/{relative}::{node.name}")


def page() -> str:
    """The text of docs/conformance.md."""
    rows = sorted(shown(), key=lambda row: (row.statement, row.test))
    return _HEAD + "".join(
        f"| {row.statement} | {row.what} | {row.how} | `{row.test}` |\n" for row in rows
    )


if __name__ == "__main__":
    print(page(), end="")
