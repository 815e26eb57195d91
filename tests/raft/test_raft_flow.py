"""Flow control towards followers, in virtual time with real cores: whatever the link to one of three does, what is under way to it stays
within its window, it hears a heartbeat in every period, the group commits as if it were not there, and once the link is well again it has
everything within a few round trips and what the window needs for the lag."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, Message, VoteReply

ENTRY_BYTES = 100
TIMING = Timing(window_bytes=8000, range_bytes_max=1000, window_ranges=64)
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
        size = message.extent.size if isinstance(message, Append) and message.extent else ENTRY_BYTES
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

    def __init__(self, there: Link, back: Link) -> None:
        self.now, self.there, self.back = 0, there, back
        self.cores = {
            name: Core(RaftConfig(name, ("a", "b", "c"), 1, timing=TIMING), LogView([(0, 0)], 0), HardState(1), Random(1), 0)
            for name in "abc"
        }
        self.a = self.cores["a"]
        self.a.tick(START_NS)
        for pre in (True, False):
            self.a.step(VoteReply("b", "a", 2, pre, True), START_NS)
        assert self.a.role is Role.LEADER
        self.heard_at = 0
        self.step(1)

    @property
    def now_ns(self) -> int:
        return START_NS + self.now * STEP_NS

    def range_from(self, first: int) -> Extent:
        log = self.a.log
        last, term = min(log.run_end(first), first + TIMING.range_bytes_max // ENTRY_BYTES - 1), log.term_at(first)
        assert term is not None
        return Extent(first, last, term, ENTRY_BYTES * (last - first + 1))

    def said(self) -> list[Message]:
        """What the leader says now, read like a driver reads it."""
        effects = self.a.take(self.now_ns)
        messages = list(effects.messages)
        for push in effects.pushes:
            first, size, ranges = push.first_index, push.size, push.ranges
            while size > 0 and ranges > 0 and first <= self.a.log.end_index:
                extent = self.range_from(first)
                messages.append(self.a.pushed(push.to, extent))
                first, size, ranges = extent.last_index + 1, size - extent.size, ranges - 1
        return messages

    def answers(self, name: str, message: Message) -> list[AppendReply]:
        core = self.cores[name]
        core.step(message, self.now_ns)
        if core.take_writes().append is not None:
            core.append_written()
        core.synced(*core.sync_begins())
        effects = core.take(self.now_ns)
        assert effects.fence is None, effects.fence
        return [reply for reply in effects.messages if isinstance(reply, AppendReply)]

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
        for message in self.back.due(self.now):
            self.a.step(message, self.now_ns)
        while messages := self.said():
            for message in messages:
                if message.to == "c":
                    self.heard_at = self.now
                    self.there.send(self.now, message)
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


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(0, 30),
    back=st.integers(0, 30),
    bytes_per_step=st.sampled_from([20, 300, 2000, 100_000]),
    loss=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    loads=st.lists(st.integers(0, 20), min_size=20, max_size=150),
    seed=st.integers(0, 1 << 16),
)
def test_a_slow_link_costs_its_follower_only(steps: int, back: int, bytes_per_step: int, loss: float, loads: list[int], seed: int) -> None:
    """See the module; the bound on catching up: one heartbeat period to find out, a window for each round trip, a few more to get going."""
    chance = Random(seed)
    group = Group(Link(steps, bytes_per_step, loss, chance), Link(back, 100_000, loss, chance))
    for entries in loads:
        group.step(entries)
    group.there, group.back = Link(0, 1 << 40, 0.0, chance), Link(0, 1 << 40, 0.0, chance)
    lag = (group.a.log.end_index - group.a.peers["c"].received) * ENTRY_BYTES
    least = TIMING.heartbeat_ns // STEP_NS + lag // TIMING.window_bytes + 8
    for _ in range(least):
        group.step(0)
    assert group.a.peers["c"].received == group.a.peers["c"].durable == group.a.log.end_index == group.cores["c"].commit_index
