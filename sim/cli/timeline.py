"""A run's last events as a page for people: the violated invariant in words, and a column of events
for each node.

This module only draws text; its output is a function of its arguments.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from ledgermq.sim.cli.ports import Happened

WIDTH = 120
ROWS = 36
TIME_WIDTH = 11

MEANING = {
    "I1": "at most one leader incarnation per term and group",
    "I2": "the same index and term on two replicas means the same bytes",
    "I3": "a leader holds every entry that was committed before its term",
    "I4": (
        "commit never falls, never passes the end of the log, and counts only what a majority (HA:"
        " the in-sync set) has synced"
    ),
    "I5": "what was acknowledged as durable can be read until retention removes it",
    "I6": "one committed message for every offset of a queue, without gaps",
    "I7": "the order of one producer within a queue is the order of its acknowledgements",
    "I8": "queues, deliveries and producers are a function of the log alone",
    "I9": "nothing is acknowledged after a failed sync",
    "I10": (
        "torn is not corrupt: what is below the synced mark is never cut, and nothing comes back"
        " behind the end"
    ),
    "O7": "after everything healed the group goes on",
    "tree": "all replicas derive the same log tree, which only grows, from the committed entries",
    "level": (
        "no node meets a record above the level that its program reads, and a finished upgrade is"
        " in force"
    ),
    "ack": "what was acknowledged is never lost",
    "assertion": "the product's own assertions hold",
}


def explain(invariant: str, text: str, at_ns: int, step: int) -> list[str]:
    """The violated invariant and the event, in words."""
    meaning = MEANING.get(invariant)
    rule = f"broken: {invariant}" + (f" ({meaning})" if meaning else "")
    told = text.removeprefix(f"{invariant}: ")
    return [
        rule,
        *textwrap.wrap(f"at {moment(at_ns)}, step {step}: {told}", WIDTH, subsequent_indent="  "),
    ]


def moment(at_ns: int) -> str:
    """Virtual seconds with milliseconds."""
    return f"{at_ns / 1e9:.3f} s"


def draw(
    events: Iterable[Happened],
    names: Sequence[str],
    *,
    since_ns: int = 0,
    rows: int = ROWS,
    width: int = WIDTH,
) -> list[str]:
    """The last events, oldest first, one column per node; events of the whole world span all
    columns. At most `rows` lines; times count from `since_ns` on. Equal neighbours in one column
    are drawn once, with their number.
    """
    column = max(14, (width - TIME_WIDTH) // max(1, len(names)) - 2)
    lines = [
        _row("", [name.center(column) for name in names]),
        _row("", ["-" * column for _ in names]),
    ]
    drawn = [
        line
        for at_ns, node, text in _folded(events)
        for line in _event(at_ns - since_ns, node, text, names, column)
    ]
    kept = drawn[-(rows - len(lines)) :]
    return [*lines, *kept]


def _folded(events: Iterable[Happened]) -> list[tuple[int, str, str]]:
    found: list[tuple[int, str, str, int]] = []
    for event in events:
        if found and found[-1][1:3] == (event.node, event.text):
            at_ns, node, text, times = found[-1]
            found[-1] = at_ns, node, text, times + 1
        else:
            found.append((event.at_ns, event.node, event.text, 1))
    return [
        (at_ns, node, text if times == 1 else f"{text} (x{times})")
        for at_ns, node, text, times in found
    ]


def _event(at_ns: int, node: str, text: str, names: Sequence[str], column: int) -> list[str]:
    when = moment(at_ns).rjust(TIME_WIDTH - 1)
    if node not in names:
        across = (column + 2) * len(names) - 2
        told = textwrap.shorten(
            text if not node else f"{node}: {text}", across - 4, placeholder="…"
        )
        return [_row(when, [f" {told} ".center(across, "·")])]
    at = list(names).index(node)
    pieces = textwrap.wrap(text, column) or [""]
    pieces = pieces[:3]
    return [
        _row(
            when if number == 0 else "",
            [piece if other == at else "" for other in range(len(names))],
            column,
        )
        for number, piece in enumerate(pieces)
    ]


def _row(when: str, cells: Sequence[str], column: int = 0) -> str:
    return (
        f"{when.rjust(TIME_WIDTH - 1)}  {'  '.join(cell.ljust(column) for cell in cells)}".rstrip()
    )
