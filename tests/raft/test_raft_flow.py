"""Flow control towards followers, in virtual time with real cores. Whatever the link to one of
three members does, the bytes in flight to it stay within its window, it receives a heartbeat in
every period, and the group commits without it. Once the link recovers, it catches up within a few
round trips and the time that the window needs for the lag. The window adapts to the throughput of
the link."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, Message, VoteReply
from ledgermq.raft.window import Window

ENTRY_BYTES = 100
TIMING = Timing(window_bytes=8000, window_first_bytes=500, range_bytes_max=1000, window_ranges=64)
DOUBLINGS = 9
"""From the least window to the largest."""
STEP_NS = 5 * MS
START_NS = 5000 * MS


@dataclass
class Link:
    """One direction, in order: `bytes_per_step` of it arrive, `steps` later, unless lost."""

    steps: int
    bytes_per_step: int
    loss: float
    chance: Random
    queue: deque[tuple[int, Message]] = field(default_factory=deque)
    free_at: float = 0.0

    def send(self, now: int, message: Message) -> None:
        size = (
            message.extent.size if isinstance(message, Append) and message.extent else ENTRY_BYTES
        )
        self.free_at = max(self.free_at, now) + size / self.bytes_per_step
        if self.chance.random() >= self.loss:
            self.queue.append((int(self.free_at) + self.steps, message))

    def due(self, now: int) -> list[Message]:
        found = []
        while self.queue and self.queue[0][0] <= now:
            found.append(self.queue.popleft()[1])
        return found


class Group:
    """Leader a, follower b beside it, follower c at the end of two links."""

    def __init__(self, there: Link, back: Link, *, sync_steps: int = 0) -> None:
        self.now, self.there, self.back = 0, there, back
        self.sync_steps = sync_steps
        """How long a sync of c takes; 0: none at all."""
        self.syncing: tuple[int, tuple[int, int]] | None = None
        self.slowest = 0
        """The longest that a message to c was on its way, in steps."""
        self.cores = {
            name: Core(
                RaftConfig(name, ("a", "b", "c"), 1, timing=TIMING),
                LogView([(0, 0)], 0),
                HardState(1),
                Random(1),
                0,
            )
            for name in "abc"
        }
        self.a = self.cores["a"]
        self.a.tick(START_NS)
        for pre in (True, False):
            self.a.step(VoteReply(sender="b", to="a", term=2, pre=pre, granted=True), START_NS)
        assert self.a.role is Role.LEADER
        self.heard_at = 0
        self.step(1)

    @property
    def now_ns(self) -> int:
        return START_NS + self.now * STEP_NS

    def range_from(self, first: int, most: int) -> Extent:
        log = self.a.log
        entries = max(1, min(most, TIMING.range_bytes_max) // ENTRY_BYTES)
        last, term = min(log.run_end(first), first + entries - 1), log.term_at(first)
        assert term is not None
        return Extent(first, last, term, ENTRY_BYTES * (last - first + 1))

    def said(self) -> list[Message]:
        """What the leader says now, read like a driver reads it."""
        effects = self.a.take(self.now_ns)
        messages = list(effects.messages)
        for push in effects.pushes:
            first, size, ranges = push.first_index, push.size, push.ranges
            while size > 0 and ranges > 0 and first <= self.a.log.end_index:
                extent = self.range_from(first, size)
                messages.append(self.a.pushed(push.to, extent))
                first, size, ranges = extent.last_index + 1, size - extent.size, ranges - 1
        return messages

    def answers(self, name: str, message: Message) -> list[AppendReply]:
        core = self.cores[name]
        core.step(message, self.now_ns)
        if core.take_writes().append is not None:
            core.append_written()
        if name == "b" or not self.sync_steps:
            core.synced(*core.sync_begins())
        return self.replies(core)

    def replies(self, core: Core) -> list[AppendReply]:
        effects = core.take(self.now_ns)
        assert effects.fence is None, effects.fence
        return [reply for reply in effects.messages if isinstance(reply, AppendReply)]

    def sync_c(self) -> None:
        """One sync after the other, each for as long as it takes."""
        core = self.cores["c"]
        if self.syncing is not None and self.syncing[0] <= self.now:
            core.synced(*self.syncing[1])
            self.syncing = None
            for reply in self.replies(core):
                self.back.send(self.now, reply)
        if self.syncing is None and core.durable_index < core.log.end_index:
            self.syncing = (self.now + self.sync_steps, core.sync_begins())

    def step(self, entries: int) -> None:
        """Five milliseconds: the leader appends, b answers at once, c when its links carry it."""
        self.now += 1
        if entries:
            first = self.a.log.end_index + 1
            self.a.appended(Extent(first, first + entries - 1, 2, entries * ENTRY_BYTES))
        self.a.synced(*self.a.sync_begins())
        for message in self.there.due(self.now):
            for reply in self.answers("c", message):
                self.back.send(self.now, reply)
        if self.sync_steps:
            self.sync_c()
        for message in self.back.due(self.now):
            self.a.step(message, self.now_ns)
        while messages := self.said():
            for message in messages:
                if message.to == "c":
                    self.heard_at = self.now
                    self.there.send(self.now, message)
                    if self.there.queue:
                        self.slowest = max(self.slowest, self.there.queue[-1][0] - self.now)
                for reply in self.answers("b", message) if message.to == "b" else ():
                    self.a.step(reply, self.now_ns)
        self.check()

    def check(self) -> None:
        self.a.check_invariants()
        for peer in self.a.peers.values():
            assert peer.underway_bytes < TIMING.window_bytes + TIMING.range_bytes_max, peer
            assert len(peer.underway) <= (1 if peer.suspect else TIMING.window_ranges), peer
        assert self.a.commit_index == self.a.log.end_index, "the group waited for the slow one"
        assert (self.now - self.heard_at) * STEP_NS <= TIMING.heartbeat_ns, "a heartbeat waited"


@given(
    steps=st.integers(0, 30),
    back=st.integers(0, 30),
    bytes_per_step=st.sampled_from([20, 300, 2000, 100_000]),
    loss=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    loads=st.lists(st.integers(0, 20), min_size=20, max_size=150),
    seed=st.integers(0, 1 << 16),
)
def test_a_slow_link_costs_its_follower_only(
    steps: int, back: int, bytes_per_step: int, loss: float, loads: list[int], seed: int
) -> None:
    """See the module; the bound on catching up: one heartbeat period to find out, round trips until
    the window is what this link carries, a window for each round trip then, a few more to get
    going."""
    chance = Random(seed)
    group = Group(Link(steps, bytes_per_step, loss, chance), Link(back, 100_000, loss, chance))
    for entries in loads:
        group.step(entries)
    group.there, group.back = Link(0, 1 << 40, 0.0, chance), Link(0, 1 << 40, 0.0, chance)
    lag = (group.a.log.end_index - group.a.peers["c"].received) * ENTRY_BYTES
    least = TIMING.heartbeat_ns // STEP_NS + lag // TIMING.window_bytes + 2 * DOUBLINGS + 8
    for _ in range(least):
        group.step(0)
    assert (
        group.a.peers["c"].received
        == group.a.peers["c"].durable
        == group.a.log.end_index
        == group.cores["c"].commit_index
    )


def held_up(bytes_per_step: int) -> Group:
    """A link that has always more to carry than it can, for eight seconds."""
    chance = Random(1)
    group = Group(Link(2, bytes_per_step, 0.0, chance), Link(2, 1 << 20, 0.0, chance))
    for step in range(1600):
        group.step(2 + bytes_per_step // 50)
        if step == 400:
            group.slowest = 0
    return group


@pytest.mark.parametrize("bytes_per_step", [20, 60, 90])
def test_transit_to_a_slow_peer_stays_below_the_election_timeout(
    bytes_per_step: int,
) -> None:
    """So no heartbeat is either, which queues behind it; and the link carries all it can."""
    group = held_up(bytes_per_step)
    peer = group.a.peers["c"]
    one = TIMING.window_first_bytes // 16 + ENTRY_BYTES
    assert group.slowest * STEP_NS <= TIMING.election_min_ns + STEP_NS * (one // bytes_per_step + 2)
    heartbeats = 1600 * STEP_NS // TIMING.heartbeat_ns * ENTRY_BYTES
    assert (peer.received + 1) * ENTRY_BYTES >= 0.9 * (1600 * bytes_per_step - heartbeats), (
        "the link stood idle"
    )


@pytest.mark.parametrize("sync_steps", [0, 50, 200])
def test_fast_link_is_filled_although_the_peer_syncs_slowly(sync_steps: int) -> None:
    """100 ms away, and syncs of up to a second: the window grows to all that is configured, for
    what counts is what arrives."""
    chance = Random(1)
    group = Group(
        Link(10, 1 << 20, 0.0, chance), Link(10, 1 << 20, 0.0, chance), sync_steps=sync_steps
    )
    for _ in range(800):
        group.step(20)
    peer = group.a.peers["c"]
    assert peer.window.size == TIMING.window_bytes
    before = peer.received
    for _ in range(400):
        group.step(20)
    # Heard with each round trip; where a sync holds answers back, with each heartbeat at the
    # latest.
    trip = 20 + (TIMING.heartbeat_ns // STEP_NS if sync_steps else 0)
    assert (peer.received - before) * ENTRY_BYTES >= 0.9 * TIMING.window_bytes * 400 / (trip + 2)


def test_a_link_that_slows_down_and_recovers_is_followed_both_ways() -> None:
    """A tenth of the bandwidth, and all of it again: the window shrinks to what is carried and
    comes back."""
    chance = Random(1)
    group = Group(Link(2, 1000, 0.0, chance), Link(2, 1 << 20, 0.0, chance))
    for _ in range(400):
        group.step(9)
    window = group.a.peers["c"].window
    assert window.size == TIMING.window_bytes
    group.there.bytes_per_step = 20
    for _ in range(1000):
        group.step(9)
    assert window.size <= 1.5 * 20 * TIMING.election_min_ns / STEP_NS
    group.there.bytes_per_step = 1000
    for _ in range(400):
        group.step(9)
    assert window.size == TIMING.window_bytes


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(0, 1 << 62)), max_size=50))
def test_confirmations_keep_the_window_within_its_bounds(
    samples: list[tuple[int, int]],
) -> None:
    """Never nothing, never more than configured, and at most double by one answer."""
    window = Window(TIMING)
    for ahead, took_ns in samples:
        before = window.size
        window.confirmed(ahead, took_ns)
        assert (
            TIMING.window_first_bytes // 16 <= window.size <= min(TIMING.window_bytes, 2 * before)
        )
