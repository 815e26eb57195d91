"""The decisions of an entry log's recovery: the labelled decision table of docs/architecture.md,
Durability.

The table is total: every combination of facts has exactly one row, and a test enumerates all
combinations. `log_recovery.py` finds the facts and carries out the action.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Below(Enum):
    """The state of the log at or below the synced mark."""

    NOTHING = "nothing"
    """According to the mark nothing was ever synced."""
    INTACT = "intact"
    DAMAGED = "damaged"


class Above(Enum):
    """The state of the bytes behind the synced mark."""

    NOTHING = "nothing"
    """Only zeros."""
    BLANK = "blank"
    """A valid blank with only zeros behind it."""
    GARBAGE = "garbage"
    """No valid entry, but bytes that are neither zero nor a lone blank."""
    ENTRIES = "entries"
    """Valid entries, then only zeros."""
    TORN = "torn"
    """Valid entries, then bytes that are not zero (including a trailing blank)."""


class Act(Enum):
    """The action on the bytes."""

    KEEP = "keep"
    """No entry is written."""
    REWRITE = "rewrite"
    """Valid bytes above the mark are written again in place and synced before anything is
    returned."""
    CUT = "cut"
    """As REWRITE, and the bytes behind them are erased."""
    REFUSE = "refuse"
    """Nothing is changed; the log opens fenced (invariant I10)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. It matches only facts that are in its sets."""

    label: str
    clean: frozenset[bool]
    below: frozenset[Below]
    above: frozenset[Above]
    act: Act


_ANY = frozenset({True, False})
_SOUND = frozenset({Below.NOTHING, Below.INTACT})

ROWS: tuple[Row, ...] = (
    Row("empty", _ANY, frozenset({Below.NOTHING}), frozenset({Above.NOTHING}), Act.KEEP),
    Row(
        "clean", frozenset({True}), frozenset({Below.INTACT}), frozenset({Above.NOTHING}), Act.KEEP
    ),
    Row(
        "unclean-all-marked",
        frozenset({False}),
        frozenset({Below.INTACT}),
        frozenset({Above.NOTHING}),
        Act.KEEP,
    ),
    Row("unmarked-entries", _ANY, _SOUND, frozenset({Above.ENTRIES}), Act.REWRITE),
    Row("torn", _ANY, _SOUND, frozenset({Above.TORN}), Act.CUT),
    Row("garbage", _ANY, _SOUND, frozenset({Above.GARBAGE}), Act.CUT),
    Row("lone-blank", _ANY, _SOUND, frozenset({Above.BLANK}), Act.CUT),
    Row("corrupt", _ANY, frozenset({Below.DAMAGED}), frozenset(Above), Act.REFUSE),
)


def decide(clean: bool, below: Below, above: Above) -> Row:
    """The only row that matches."""
    rows = [row for row in ROWS if clean in row.clean and below in row.below and above in row.above]
    assert len(rows) == 1, (
        f"{len(rows)} rows match clean={clean} below={below.value} above={above.value}"
    )
    return rows[0]
