"""Checks the answers to producers of delayed messages against the log; hand-made logs show that
each check detects its violation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ledgermq.node.broker.parts.timers.timers import Timers, Watermark
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import make_range, seal
from ledgermq.proto.types import I64, Draft, Range
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.histories import Histories
from ledgermq.sim.checks.ports import QueueKey
from ledgermq.sim.checks.timetable import Timetable

KEY: QueueKey = ("t", 0)
STORED_MS = 500


class Log:
    """A log of copies in one queue, all stored at one time."""

    def __init__(self, *values: int) -> None:
        self._values: I64 = np.array(values, np.int64)
        drafts = [
            Draft(*KEY, value.to_bytes(8, "big"), b"UNIQ_KEY\x01x\x02", 0, origin=1)
            for value in values or (0,)
        ]
        batch, place = (
            encode_entries(drafts),
            {"first_index": 0, "term": 1, "pos": 0, "prev_chain": 0},
        )
        seal(
            batch,
            queue_offsets=np.arange(len(batch)),
            store_ms=STORED_MS,
            store_host=bytes(8),
            **place,
        )
        self._entries = make_range(batch, 0, len(batch), **place)

    def __len__(self) -> int:
        return len(self._entries)

    def queues(self) -> Mapping[QueueKey, I64]:
        return {KEY: self._values}

    def pieces(self, first_index: int, last_index: int) -> Sequence[Range]:
        return [self._entries]


def acknowledged(*visible: int, deliver_ms: int = STORED_MS, **told: bool) -> Timetable:
    """Message 7 was acknowledged, and this is in its topic."""
    log: Any = Log(*visible)
    found = Timetable(Histories(log), log)
    one = found.made(1, KEY, 7, deliver_ms, 5)
    one.acknowledged = True
    for name, value in told.items():
        setattr(one, name, value)
    return found


def test_true_deliveries_are_accepted() -> None:
    """In time; recalled and gone; asked to be recalled, whatever became of it; and one that
    waits."""
    acknowledged(7).finish(0)
    acknowledged(asked=True, recalled=True).finish(0)
    for visible in ((), (7,)):
        acknowledged(*visible, asked=True).finish(0)
    acknowledged().finish(1)


@pytest.mark.parametrize(
    ("visible", "told", "said"),
    [
        ((), {}, "only 0 wait"),
        ((7,), {"asked": True, "recalled": True}, "was recalled but is"),
        ((7,), {"deliver_ms": STORED_MS + 1}, "before its time"),
    ],
)
def test_timer_that_the_log_contradicts_is_a_violation(
    visible: tuple[int, ...], told: dict[str, Any], said: str
) -> None:
    """Forgotten, delivered although it was recalled, and early."""
    with pytest.raises(Violation, match=said):
        acknowledged(*visible, **told).finish(0)


def test_run_waits_for_timers_that_are_due() -> None:
    """But not for what a clock that ran ahead holds back."""
    found, timers = acknowledged(), Timers(lambda topic, queue: 0)
    assert not found.waits(timers, 0)
    timers.counts["stored"] = 1
    assert found.waits(timers, 0)
    timers._wheel.watermark = Watermark(STORED_MS + 3_600_000, 0)
    assert not found.waits(timers, STORED_MS)
