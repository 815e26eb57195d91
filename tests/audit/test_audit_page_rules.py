"""The table of rules in docs/audit.md is that of the auditor. REWRITE=1 in the environment writes
it anew."""

from __future__ import annotations

import os
from pathlib import Path

from ledgermq.audit.rules import CLASSES, RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit.md"
BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"


def table() -> str:
    rows = [f"| `{rule.id}` | {rule.klass} | {rule.meaning} |" for rule in RULES.values()]
    return "\n".join(["| Rule | Class | What must be true |", "|---|---|---|", *rows])


def test_the_page_tells_every_rule() -> None:
    """And nothing else: id, the class that a finding has by itself, and the meaning in one line."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    told, _, after = rest.partition(END)
    if os.environ.get("REWRITE"):
        PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")
    else:
        assert told.strip() == table()


def test_every_class_is_told() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [klass for klass in CLASSES if f"| `{klass}` |" not in text] == []
