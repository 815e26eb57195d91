"""Logs that do not begin at entry 0: where they begin, on what evidence, and what the snapshots say
about the queues at that point.

This module distinguishes "trimmed" from "missing". A log may lack its first files only if its begin
file says so, and only if the trim was decided: by a trim record that some replica of the group
holds, or by a snapshot that contains one. Both files are decoded independently.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.audit.reading.decode import read_sealed_json

KEYS = ("index", "pos", "term", "chain")

LITE = "$"
"""The separator in the stored name of a lite topic (docs/format.md §4.2)."""
LITE_STEP = 300_000
"""A lite topic that vanished with a trim and is used again begins at a multiple of this."""


def may_begin(topic: str, offset: int, expected: int) -> bool:
    """Whether a queue offset need not follow the previous one, because a lite topic may have
    vanished in between."""
    return LITE in topic and offset > expected and offset % LITE_STEP == 0


@dataclass(frozen=True, slots=True)
class Begin:
    """The first kept entry, its position, and term and chain CRC of the entry before it."""

    index: int = 0
    pos: int = 0
    term: int = -1
    chain: int | None = None
    """None: an untrimmed log, whose seed is its log id. An untrimmed log with a value continues
    another log, named in `recovery.json`."""


WHOLE = Begin()


def read_begin(value: Mapping[str, Any]) -> Begin | None:
    """The content of a begin file; None if a field is missing."""
    if value.get("v") != 1 or not all(isinstance(value.get(key), int) for key in KEYS):
        return None
    index, pos, term, chain = (int(value[key]) for key in KEYS)
    renamed = (index, pos, term) == (0, 0, -1)
    return Begin(index, pos, term, chain) if (index > 0 and pos > 0) or renamed else None


def former_logs(root: str) -> list[str]:
    """The log ids that a replica had before recoveries gave it new ones, the latest first. Raises
    OSError."""
    record = read_sealed_json(f"{root}/recovery.json")
    former = None if record is None else record.get("former")
    return [str(log_id) for log_id in former] if isinstance(former, list) else []


def decided(snapshots: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> int:
    """The begin up to which trims were decided, according to the snapshots and trim records of a
    whole group."""
    begins = [record.get("begin") for record in records]
    for snapshot in snapshots:
        retained = snapshot.get("retained")
        begins.append(retained.get("begin_index") if isinstance(retained, dict) else None)
    return max((begin for begin in begins if isinstance(begin, int)), default=0)


UNIT = struct.Struct(">qiq")
"""A consume queue unit: physical offset, size, tags code."""


@dataclass(frozen=True, slots=True)
class Low:
    """The snapshot's data about one trimmed queue: its first kept offset, and the unit before it,
    if that is kept."""

    offset: int
    last: bytes | None
    """The unit's bytes in the consume queue; empty if the snapshot has something else there."""

    @property
    def floor(self) -> int:
        """The first unit that is as it was dispatched."""
        return self.offset - (self.last is not None)


def lows(snapshot: Mapping[str, Any] | None) -> dict[tuple[str, int], Low]:
    """The minimums of a snapshot."""
    table = snapshot.get("minimums") if snapshot is not None else None
    queue_lows = {}
    for topic, queues in table.items() if isinstance(table, dict) else ():
        for queue, value in queues.items() if isinstance(queues, dict) else ():
            if (
                queue.isdecimal()
                and isinstance(value, list)
                and len(value) == 2
                and isinstance(value[0], int)
            ):
                queue_lows[topic, int(queue)] = Low(
                    value[0], None if value[1] is None else _unit(value[1])
                )
    return queue_lows


def _unit(value: object) -> bytes:
    try:
        return UNIT.pack(*value) if isinstance(value, list) else b""
    except struct.error:
        return b""
