"""A wall clock that goes back: store times never fall along the log, and leases do not notice."""

from __future__ import annotations

from ledgermq.node.broker.calls.send_calls import Produced
from ledgermq.node.broker.decisions.sequencer import Sequencer
from ledgermq.proto.entry_encoding import encode_entries
from tests.node_core.core_fakes import SECOND, Bench, draft

HOUR_MS = 3_600_000


class Skewed(Bench):
    """A bench with a manually set wall clock and a running monotonic clock."""

    ahead_ms = 0

    @property
    def now_ms(self) -> int:
        return super().now_ms + self.ahead_ms


def bench() -> Skewed:
    b = Skewed()
    b.lead(1)
    b.configure("t", queues=1)
    return b


def test_store_times_never_fall_when_the_clock_goes_back() -> None:
    """A message after a step back has the store time of the one before it, until the clock has caught up."""
    b = bench()
    times = []
    for ahead_ms in (0, -HOUR_MS, -2 * HOUR_MS, 0, HOUR_MS, -HOUR_MS):
        b.ahead_ms = ahead_ms
        sent = b.send("x")
        assert isinstance(sent, Produced)
        times.append(sent.store_ms)
        b.pass_time(SECOND)
    assert times == sorted(times)
    assert times[1] == times[2] == times[0] and times[4] > times[3] > times[0]


def test_store_times_never_fall_across_leaders() -> None:
    """A new leader whose clock is behind continues from the last store time of the log."""
    sequencer = Sequencer(lambda topic, queue: 0)
    sequencer.reset(5_000)
    batch = encode_entries([draft("a")])
    assert sequencer.assign(batch, 4_000).store_ms == 5_000
    assert sequencer.assign(batch, 6_000).store_ms == 6_000


def test_leases_follow_the_monotonic_clock() -> None:
    """However the wall clock jumps, a lease ends after its time and not before."""
    b = bench()
    b.send("a")
    (lease,) = b.receive(invisible_ms=10_000)
    b.ahead_ms = HOUR_MS
    b.pass_time(9 * SECOND)
    assert b.receive() == (), "an hour ahead on the wall is no hour passed"
    b.ahead_ms = -HOUR_MS
    b.pass_time(SECOND)
    again = b.receive()
    assert [(item.queue_offset, item.attempt) for item in again] == [(lease.queue_offset, 2)]
    assert b.ack(lease) == (False,)
