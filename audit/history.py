"""Were the answers of a cluster those of one log per queue? Checkers of what clients saw, with the standard library alone.

Here live the history of a queue's operations and its check for linearizability. Who records histories, and from what (simulator, tests on
real processes), is not known here. Nothing in this module opens anything.

A queue is a log: sending appends a value (unique by construction) and learns its offset, reading learns a run of offsets and where the
queue ends. The offsets fix the only order in which sends and reads can have taken effect, so linearizability (Herlihy and Wing 1990) needs
no search: an order is legal if no operation in it began after the return of one that stands behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Send:
    """One message sent. `returned` is NEVER and `offset` None when nobody knows what became of it (an error, a time-out)."""

    value: str
    invoked: float
    returned: float = NEVER
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """Values seen from `first` on, without a gap, and the end of the queue at that moment: the offset the next message would get."""

    invoked: float
    returned: float
    first: int
    values: tuple[str, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule` is an id: `value`, `twice`, `phantom`, `lost`, `stale`, `order`, `reordered`, `missing` or `unknown`."""

    rule: str
    text: str


def check_queue(sends: Sequence[Send], reads: Sequence[Read]) -> list[Violation]:
    """Violations of one queue's history, none if it is linearizable. Values must be unique; offsets count from 0."""
    found = _disagreements(sends, reads)
    return found or _order(sends, reads)


def _disagreements(sends: Sequence[Send], reads: Sequence[Read]) -> list[Violation]:
    """One value per offset and one offset per value, for everybody and for ever; nothing that nobody sent."""
    found: list[Violation] = []
    at: dict[int, str] = {}
    where: dict[str, int] = {}
    known = {send.value for send in sends}
    assert len(known) == len(sends), "the values of a history must be unique"
    told = [(send.offset, send.value) for send in sends if send.offset is not None]
    for read in reads:
        told += [(read.first + k, value) for k, value in enumerate(read.values)]
        if read.first + len(read.values) > read.end:
            found.append(Violation("stale", f"a read saw offset {read.first + len(read.values) - 1} and an end of {read.end}"))
    for offset, value in told:
        if value not in known:
            found.append(Violation("phantom", f"offset {offset} held {value!r}, which nobody sent"))
        if at.setdefault(offset, value) != value:
            found.append(Violation("value", f"offset {offset} was {at[offset]!r} and {value!r}"))
        if where.setdefault(value, offset) != offset:
            found.append(Violation("twice", f"{value!r} was at {where[value]} and at {offset}"))
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation in the order that the offsets dictate."""

    invoked: float
    returned: float
    text: str


def _order(sends: Sequence[Send], reads: Sequence[Read]) -> list[Violation]:
    """The dictated order against real time. Offsets that nobody named belong to sends of unknown outcome."""
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
            steps.append(None if at is None else _Step(at.invoked, at.returned, f"the send of {at.value!r} to offset {offset}"))
    return _fill_and_compare(steps, open_sends)


def _fill_and_compare(steps: list[_Step | None], open_sends: Iterable[Send]) -> list[Violation]:
    """Each unnamed offset takes the open send that began first: any other choice could only be later."""
    waiting: list[tuple[float, str]] = []
    for send in open_sends:
        heappush(waiting, (send.invoked, send.value))
    newest = _Step(-NEVER, -NEVER, "")
    found: list[Violation] = []
    for step in steps:
        if step is None:
            if not waiting:
                found.append(Violation("lost", "an offset below the end holds nothing that anybody sent"))
                continue
            invoked, value = heappop(waiting)
            step = _Step(invoked, NEVER, f"the send of {value!r}, whose outcome nobody knew,")
        if step.returned < newest.invoked:
            rule = "stale" if "a read" in (step.text[:6], newest.text[:6]) else "order"
            found.append(Violation(rule, f"{step.text} ended at {step.returned}, before {newest.text} began at {newest.invoked}"))
        if step.invoked > newest.invoked:
            newest = step
    return found
