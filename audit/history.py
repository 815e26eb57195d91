"""Checkers of client histories: could one log per queue have given all answers? Uses only the
standard library.

This module holds the history of a queue's operations and its check for linearizability. It does not
know who records histories (simulator, tests on real processes), and opens nothing.

A queue is a log: a send appends a value (unique by construction) and learns its offset; a read
learns a run of offsets and the end of the queue. The offsets fix the only possible order of sends
and reads, so linearizability (Herlihy and Wing 1990) needs no search: the order is legal if no
operation in it started after the return of a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Send:
    """One message sent. `returned` is NEVER and `offset` None if the outcome is unknown (an error,
    a timeout)."""

    value: str
    invoked: float
    returned: float = NEVER
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """Consecutive values from `first` on, and the end of the queue at that moment: the offset of
    the next message."""

    invoked: float
    returned: float
    first: int
    values: tuple[str, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule` is an id: `value`, `twice`, `phantom`, `lost`, `stale`, `order`, `reordered`,
    `missing` or `unknown`."""

    rule: str
    text: str


def check_queue(sends: Sequence[Send], reads: Sequence[Read]) -> list[Violation]:
    """Violations in one queue's history; empty if it is linearizable. Values must be unique;
    offsets count from 0."""
    violations = _disagreements(sends, reads)
    return violations or _order(sends, reads)


def _disagreements(sends: Sequence[Send], reads: Sequence[Read]) -> list[Violation]:
    """One value per offset and one offset per value, for all clients and all times; no value that
    was not sent."""
    violations: list[Violation] = []
    at: dict[int, str] = {}
    where: dict[str, int] = {}
    known = {send.value for send in sends}
    assert len(known) == len(sends), "the values of a history must be unique"
    values = [(send.offset, send.value) for send in sends if send.offset is not None]
    for read in reads:
        values += [(read.first + k, value) for k, value in enumerate(read.values)]
        if read.first + len(read.values) > read.end:
            violations.append(
                Violation(
                    "stale",
                    f"a read saw offset {read.first + len(read.values) - 1} and an end of"
                    f" {read.end}",
                )
            )
    for offset, value in values:
        if value not in known:
            violations.append(
                Violation("phantom", f"offset {offset} held {value!r}, which no client sent")
            )
        if at.setdefault(offset, value) != value:
            violations.append(
                Violation("value", f"offset {offset} was {at[offset]!r} and {value!r}")
            )
        if where.setdefault(value, offset) != offset:
            violations.append(
                Violation("twice", f"{value!r} was at {where[value]} and at {offset}")
            )
    return violations


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation in the order that the offsets dictate."""

    invoked: float
    returned: float
    text: str


def _order(sends: Sequence[Send], reads: Sequence[Read]) -> list[Violation]:
    """Check the order of the offsets against real time. Offsets without a known send belong to
    sends of unknown outcome."""
    where = {value: read.first + k for read in reads for k, value in enumerate(read.values)}
    placed: dict[int, Send] = {}
    open_sends: list[Send] = []
    for send in sends:
        offset = send.offset if send.offset is not None else where.get(send.value)
        if offset is None:
            open_sends.append(send)
        else:
            placed[offset] = send
    end = max([*(offset + 1 for offset in placed), *(read.end for read in reads)], default=0)
    by_end: dict[int, list[Read]] = {}
    for read in reads:
        by_end.setdefault(read.end, []).append(read)
    steps: list[_Step | None] = []
    for offset in range(end + 1):
        for read in sorted(by_end.get(offset, ()), key=lambda read: read.invoked):
            steps.append(_Step(read.invoked, read.returned, f"a read that saw the end {offset}"))
        if offset < end:
            at = placed.get(offset)
            steps.append(
                None
                if at is None
                else _Step(at.invoked, at.returned, f"the send of {at.value!r} to offset {offset}")
            )
    return _fill_and_compare(steps, open_sends)


def _fill_and_compare(steps: list[_Step | None], open_sends: Iterable[Send]) -> list[Violation]:
    """Assign the unknown offsets to open sends in the order of their start: any other assignment
    would only be later."""
    waiting: list[tuple[float, str]] = []
    for send in open_sends:
        heappush(waiting, (send.invoked, send.value))
    newest = _Step(-NEVER, -NEVER, "")
    violations: list[Violation] = []
    for step in steps:
        if step is None:
            if not waiting:
                violations.append(
                    Violation("lost", "an offset below the end holds no value that was sent")
                )
                continue
            invoked, value = heappop(waiting)
            step = _Step(invoked, NEVER, f"the send of {value!r}, whose outcome is unknown,")
        if step.returned < newest.invoked:
            rule = "stale" if "a read" in (step.text[:6], newest.text[:6]) else "order"
            violations.append(
                Violation(
                    rule,
                    f"{step.text} ended at {step.returned}, before {newest.text} began at"
                    f" {newest.invoked}",
                )
            )
        if step.invoked > newest.invoked:
            newest = step
    return violations
