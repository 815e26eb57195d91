"""docs/conformance.md says what the numbered tests say, and no statement is without a test."""

from __future__ import annotations

from tests.contract.statements import PAGE, STATEMENTS, page, shown


def test_every_statement_has_a_test() -> None:
    """All hundred numbers occur, and no other one."""
    assert sorted({row.statement for row in shown()}) == list(STATEMENTS)


def test_every_numbered_test_has_a_docstring() -> None:
    """A numbered test has a docstring."""
    assert [row.test for row in shown() if not row.what] == []


def test_the_page_is_made_from_the_tests() -> None:
    """After a change: python -m tests.contract.statements > docs/conformance.md."""
    assert PAGE.read_text() == page()
