"""Delayed messages against a dumb model: random sends, recalls, clocks, lost commits and new
leaders, with windows and wheels made tiny.

The model is a table of what was acknowledged. In the end every message that is in the log was
delivered once, and not before its time by the clock of the leader that fired it, unless its recall
was acknowledged; then never.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Call
from ledgermq.node.broker.calls.send_calls import Produce, Produced, Recall, Recalled
from ledgermq.node.broker.parts.timers import timer_firing, timer_window, timers
from ledgermq.proto.entries.message_record import Record, decode_record
from ledgermq.proto.entries.properties import DELIVER_MS, Fields, encode, parse
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.types import Draft, Permission, Range, TopicConfig, TopicKind
from tests.node_core.core_fakes import EPOCH_MS, MS, Bench, MemoryLog, MemoryQueues, Outcome

SLOT = 50
SLOTS = 8
"""Four tenths of a second: nearly everything goes round the wheel."""


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """A wheel whose ends are met all the time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (timers, timer_firing, timer_window):
            patch.setattr(module, "SLOT_MS", SLOT)
            patch.setattr(module, "SLOTS", SLOTS)
        patch.setattr(timer_firing, "_ADVANCE_EPOCHS", 1)
        patch.setattr(timer_window, "WINDOW_ROWS", 4)
        patch.setattr(timer_window, "SCAN_UNITS", 6)
        patch.setattr(timer_firing, "BATCH", 3)
        yield


class World:
    """One log, its leaders, and the answers to clients."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.term = 0
        self.now_ms = EPOCH_MS
        self.skew_ms = 0
        self.sent = 0
        self.acknowledged: dict[str, tuple[int, int, int]] = {}
        self.recalled: set[str] = set()
        self.tried: set[str] = set()
        self.asked: dict[int, str] = {}
        self.checked = -1
        self.bench = Bench(log=self.log)
        self.lead()
        topic = TopicConfig("", "t", TopicKind.DELAY, 1, Permission.READ_WRITE, 1)
        self.turn(Configure(next(self.bench.tokens), (topic,)))

    @property
    def wall_ms(self) -> int:
        return self.now_ms + self.skew_ms

    def lead(self) -> None:
        self.term += 1
        self.bench.replicator.lead(self.term)
        self.turn()

    def turn(self, *calls: Call) -> None:
        self.bench.now_ns += MS
        output = self.bench.group.turn(self.bench.now_ns, self.wall_ms, calls)
        for done in output.done:
            self.answered(done.token, done.outcome)
        self._check_copies()

    def _check_copies(self) -> None:
        """Whatever was just appended to the topic is due by this leader's clock."""
        for entries in self.log.ranges:
            if entries.first_index > self.checked:
                for record in records_of(entries):
                    if record.topic == "t":
                        assert int(parse(record.properties)[DELIVER_MS]) <= self.wall_ms, "early"
        self.checked = self.log.end_index

    def answered(self, token: int, outcome: Outcome) -> None:
        if isinstance(outcome, Produced):
            body = self.asked[token]
            deliver_ms = int(body.partition(":")[2])
            fire_ms = outcome.fire_ms[0] if outcome.fire_ms else 0
            self.acknowledged[body] = (deliver_ms, fire_ms, outcome.queue_offsets[0])
        elif isinstance(outcome, Recalled) and outcome.ok:
            self.recalled.add(self.asked[token])

    # What may happen

    def send(self, after_ms: int) -> None:
        deliver_ms = self.wall_ms + after_ms
        self.sent += 1
        body = f"{self.sent}:{deliver_ms}"
        token = next(self.bench.tokens)
        self.asked[token] = body
        properties = encode(Fields(message_id=body, deliver_ms=deliver_ms))
        self.turn(
            Produce(
                token, [Draft("t", 0, body.encode(), properties, EPOCH_MS, deliver_ms=deliver_ms)]
            )
        )

    def recall(self, which: int) -> None:
        waiting = [(body, place) for body, place in self.acknowledged.items() if place[1]]
        if waiting:
            body, (deliver_ms, fire_ms, offset) = waiting[which % len(waiting)]
            token = next(self.bench.tokens)
            self.asked[token] = body
            self.tried.add(body)
            self.turn(Recall(token, deliver_ms, fire_ms, offset))

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        for _ in range(3):
            self.turn()

    def lag(self, _: int) -> None:
        """Stop commits, or resume them."""
        self.bench.replicator.commit_at_once = not self.bench.replicator.commit_at_once
        self.turn()

    def set_clock(self, skew_ms: int) -> None:
        self.skew_ms = skew_ms - 100
        self.turn()

    def fail_over(self, kept: int) -> None:
        """Another node leads: it has what is committed and some of the rest, and its state from the
        log or from a snapshot."""
        former = self.bench
        committed = former.replicator.commit_index
        borders = [
            entries.last_index for entries in self.log.ranges if entries.last_index >= committed
        ]
        self.log.cut(borders[kept % len(borders)])
        self.checked = min(self.checked, self.log.end_index)
        self.bench = Bench(log=self.log, node=f"n{self.term}")
        self.bench.tokens = former.tokens
        self.bench.now_ns = former.now_ns
        self.bench.replicator.commit_index = committed
        if kept % 2:
            exported = json.loads(json.dumps(former.machine.export("log")))
            self.bench.queues.rows = copy.deepcopy(former.queues.rows)
            self.bench.machine.restore(exported)
            assert self.bench.machine.export("log") == exported
        self.lead()

    # In the end

    def settle(self) -> None:
        self.skew_ms = max(self.skew_ms, 0)
        self.bench.replicator.commit_at_once = True
        for _ in range(60):
            self.pass_ms(SLOT)
        assert self.bench.machine.timers.pending == 0
        delivered = [
            record.body.decode()
            for entries in self.log.ranges
            for record in records_of(entries)
            if record.topic == "t"
        ]
        assert len(delivered) == len(set(delivered)), "twice"
        assert not self.recalled & set(delivered), "recalled and delivered"
        assert set(self.acknowledged) - self.tried <= set(delivered), "lost"
        stored = {
            record.body.decode()
            for entries in self.log.ranges
            for record in records_of(entries)
            if record.topic == TIMER_TOPIC
        }
        # A recall whose answer was lost may have come true.
        assert len(stored - set(delivered)) == self.bench.machine.timers.counts["recalled"], (
            "forgotten"
        )
        self._check_replay()

    def _check_replay(self) -> None:
        """The state is a function of the log, however it is cut into ranges (I8)."""
        replay = Bench(log=self.log)
        replay.queues = MemoryQueues()
        replay.machine._queues = replay.queues
        while replay.machine.applied_index < self.log.end_index:
            replay.machine.apply(self.log.read(replay.machine.applied_index + 1))
        assert replay.machine.timers.export() == self.bench.machine.timers.export()


def records_of(entries: Range) -> list[Record]:
    return [
        decode_record(entries.data[start + 48 : start + size])
        for start, size in zip(entries.starts.tolist(), entries.sizes.tolist(), strict=True)
    ]


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(-5, 3 * SLOT * SLOTS)),
    st.tuples(st.just("send"), st.integers(1, 2 * SLOT)),
    st.tuples(st.just("pass_ms"), st.integers(1, 2 * SLOT)),
    st.tuples(st.just("recall"), st.integers(0, 20)),
    st.tuples(st.just("lag"), st.just(0)),
    st.tuples(st.just("set_clock"), st.integers(0, 200)),
    st.tuples(st.just("fail_over"), st.integers(0, 7)),
)


@given(st.lists(STEPS, min_size=5, max_size=40))
def test_every_delayed_message_comes_once_and_in_time(steps: list[tuple[str, int]]) -> None:
    """Whatever happens on the way."""
    world = World()
    for name, argument in steps:
        getattr(world, name)(argument)
    world.settle()
