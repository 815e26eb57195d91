"""Wall clocks that jump: store times never fall along the log, leases do not notice, and a leader
whose clock alone is wrong stamps, fires, forgets and trims by the time of the others."""

from __future__ import annotations

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.parts.sends.sequencer import Sequencer
from ledgermq.node.replica.consensus.cluster_clock import ClockState, ClusterClock
from ledgermq.proto.entries.entry_encoding import encode_entries
from tests.node_core.core_fakes import MS, SECOND, Bench, draft
from tests.node_core.parts.test_core_dedup import WINDOW_MS, config, drafts
from tests.node_core.parts.test_core_timers import bodies, delay, pass_ms

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


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
    """A message after a step back has the store time of the one before it, until the clock has
    caught up."""
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


class Led(Bench):
    """A leader that goes by cluster time. Its wall clock is wrong by `error_ms`; those of the
    others are right, and heard every second."""

    def __init__(self, others: int) -> None:
        super().__init__()
        self.error_ms = 0
        self.others = [f"n{k}" for k in range(2, 2 + others)]
        self.clock = ClusterClock(
            "n1", max_offset_ms=1000, steady_ns=self.now_ns, wall_ns=super().now_ms * MS
        )
        self.clock.expect(self.others)
        self.hear()
        self.lead(1)
        self.configure()

    @property
    def true_ms(self) -> int:
        return super().now_ms

    @property
    def wall_ns(self) -> int:
        return (self.true_ms + self.error_ms) * MS

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms(self.now_ns, self.wall_ns)

    def hear(self) -> None:
        for node in self.others:
            now, true = self.now_ns, self.true_ms * MS
            self.clock.heard(
                node, wall_ns=true, asked_ns=now, answered_ns=now, own_wall_ns=self.wall_ns
            )

    def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            pass_ms(self, 1000)
            self.hear()

    def jump(self, error_ms: int, seconds: int) -> None:
        """The wall clock is wrong for so long, and then right again."""
        self.error_ms = error_ms
        self.go_on(seconds)
        self.error_ms = 0
        self.go_on(2)


@pytest.mark.parametrize("error_ms", [400 * DAY_MS, -400 * DAY_MS, 2_000])
def test_jumping_clock_of_a_leader_keeps_store_times_steady(error_ms: int) -> None:
    """No store time exceeds the time of the others by more than the largest offset, and none stands
    still."""
    b, times = Led(2), []
    for second in range(12):
        b.error_ms = error_ms if 3 <= second < 6 else 0
        sent = b.send("x")
        assert isinstance(sent, Produced)
        assert abs(sent.store_ms - b.true_ms) <= 1000
        times.append(sent.store_ms)
        b.go_on(1)
    assert times == sorted(set(times))


def test_delayed_messages_after_a_jump_of_the_leaders_clock() -> None:
    """None fires early while the clock is ahead, and those sent afterwards fire in time."""
    b = Led(2)
    delay(b, "in ten minutes", 600_000)
    b.jump(400 * DAY_MS, 3)
    assert bodies(b) == []
    delay(b, "in three seconds", 3000)
    b.go_on(2)
    assert bodies(b) == []
    b.go_on(2)
    assert bodies(b) == ["in three seconds"]
    b.go_on(600)
    assert bodies(b) == ["in three seconds", "in ten minutes"]


def test_a_deduplication_window_after_a_jump_of_the_leaders_clock() -> None:
    """It ends when it should: not early while the clock is ahead, and not 400 days late
    afterwards."""
    b = Led(2)
    b.ask(Configure(next(b.tokens), topics=(config(incarnation=1),)))
    b.turn(Produce(next(b.tokens), drafts("a")))
    b.error_ms = 400 * DAY_MS
    b.turn(Produce(next(b.tokens), drafts("b")))
    b.turn(Produce(next(b.tokens), drafts("a")))
    assert len(bodies(b)) == 2, "the window of the first message has not ended"
    b.jump(400 * DAY_MS, 3)
    b.go_on(WINDOW_MS // 1000)
    b.turn(Produce(next(b.tokens), drafts("b")))
    assert len(bodies(b)) == 3, "the window of what was stored during the jump has ended"


@pytest.mark.parametrize("others", [0, 1])
def test_without_a_majority_that_agrees(others: int) -> None:
    """A node alone follows its clock wherever it goes. Two nodes that disagree go on steadily."""
    b = Led(others)
    b.error_ms = DAY_MS
    b.go_on(2)
    sent = b.send("x")
    assert isinstance(sent, Produced)
    assert abs(sent.store_ms - b.true_ms - (DAY_MS if others == 0 else 0)) <= 1000
    standing = b.clock.standing(b.now_ns, b.wall_ns)
    assert standing.state is (ClockState.AGREED if others == 0 else ClockState.DIVIDED)
    assert standing.steps == 1


def test_store_times_converge_after_the_clocks_were_wrong_together() -> None:
    """A log that was stamped within the largest offset ahead stands still only until time has
    caught up."""
    b = Led(0)
    b.error_ms = 900
    first = b.send("x")
    b.error_ms = 0
    assert isinstance(first, Produced)
    later = b.send("x")
    assert isinstance(later, Produced)
    assert later.store_ms == first.store_ms
    b.go_on(1)
    third = b.send("x")
    assert isinstance(third, Produced)
    assert third.store_ms == b.true_ms > first.store_ms
