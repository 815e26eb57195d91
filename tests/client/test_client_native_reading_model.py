"""Checks the guarantees of reading against a model with hypothesis, on clusters that redirect,
break, trim and truncate at random.

Alone: every stored message of a queue is seen once and in order, and missing messages are those
reported as skipped. In a group: every message is seen while members join, leave or fail; committed
messages were delivered; and after rebalancing, members share the queues without overlap.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.client.native.consumers.positions import Place
from ledgermq.client.native.consumers.received import Batch
from tests.client.fake_reading import FakeConnection, FakeLog, Members
from tests.client.virtual_time import VirtualLoop
from tests.example_counts import examples

GROUPS = {"g1": 2, "g2": 1}
PLACES = [Place("g1", 0), Place("g1", 1), Place("g2", 0)]
NUMBERS = st.integers(0, len(PLACES) - 1)
WINDOW = 1 << 20


class Cluster(RuleBasedStateMachine):
    """The events of the cluster, independent of its readers."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.log = FakeLog(GROUPS, chance=random.Random(1))

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(number=NUMBERS, count=st.integers(1, 30), size=st.sampled_from([10, 300, 60_000]))
    def store(self, number: int, count: int, size: int) -> None:
        place = PLACES[number]
        queue = self.log.groups[place.broker_group].queues[place.queue]
        bodies = [f"{number}/{queue.end + k}/".encode().ljust(size, b".") for k in range(count)]
        self.log.store(*place, bodies)

    @rule(number=NUMBERS, part=st.floats(0, 1))
    def trim(self, number: int, part: float) -> None:
        place = PLACES[number]
        self.log.trim(
            *place, int(part * self.log.groups[place.broker_group].queues[place.queue].end)
        )

    @rule(group=st.sampled_from(sorted(GROUPS)), node=st.sampled_from([None, 0, 1, 2]))
    def lead(self, group: str, node: int | None) -> None:
        self.log.lead(group, node)

    @rule(group=st.sampled_from(sorted(GROUPS)))
    def break_streams(self, group: str) -> None:
        self.log.break_streams(group)

    @rule(
        seed=st.integers(0, 1000),
        run_max=st.integers(1, 40),
        trouble=st.sampled_from([0.0, 0.0, 0.2]),
        corrupt=st.integers(0, 1),
    )
    def answer_otherwise(self, seed: int, run_max: int, trouble: float, corrupt: int) -> None:
        self.log.chance.seed(seed)
        self.log.run_max, self.log.trouble, self.log.corrupt = run_max, trouble, corrupt

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    def heal(self) -> None:
        self.log.trouble, self.log.corrupt = 0.0, 0
        for name in GROUPS:
            self.log.lead(name, 1)

    @invariant()
    def no_byte_is_sent_without_credit(self) -> None:
        assert self.log.overdrawn == 0

    def reader(self, **options: Any) -> AsyncConsumer:
        consumer = AsyncConsumer(
            ";".join(self.log.endpoints),
            "t",
            read_ahead_bytes=2 * WINDOW,
            response_bytes=100_000,
            **options,
        )
        consumer._connection = FakeConnection(self.log, 10_000.0)
        return consumer

    def end(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        assert not asyncio.all_tasks(self.loop)
        self.loop.close()

    def begin_of(self, number: int) -> int:
        place = PLACES[number]
        return self.log.groups[place.broker_group].queues[place.queue].begin

    def end_of(self, number: int) -> int:
        place = PLACES[number]
        return self.log.groups[place.broker_group].queues[place.queue].end


def check_bodies(batch: Batch) -> None:
    for offset, body in zip(batch.offsets.tolist(), batch.bodies(), strict=True):
        assert body.startswith(f"{batch.queue}/{offset}/".encode())


class OneReader(Cluster):
    """A consumer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.consumer = self.reader(start=dict.fromkeys(range(len(PLACES)), 0))
        self.run(self.consumer.open())
        self.due = dict.fromkeys(range(len(PLACES)), 0)
        """The next offset of each queue."""

    def take(self, batch: Batch) -> None:
        check_bodies(batch)
        due = self.due[batch.queue]
        assert batch.offsets.tolist() == list(
            range(due + batch.skipped, due + batch.skipped + len(batch))
        )
        assert batch.skipped <= max(0, self.begin_of(batch.queue) - due)
        self.due[batch.queue] = batch.next_offset

    @rule(batches=st.integers(1, 5))
    def read(self, batches: int) -> None:
        for _ in range(batches):
            batch = self.run(self.consumer.next_batch(0.5))
            if batch is not None:
                self.take(batch)

    @rule(number=NUMBERS, part=st.floats(0, 1))
    def seek(self, number: int, part: float) -> None:
        self.due[number] = int(part * self.end_of(number))
        self.consumer.seek(number, self.due[number])

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.consumer.statistics().buffered_bytes <= 2 * WINDOW + 2 * 61_000

    def teardown(self) -> None:
        self.heal()
        while (batch := self.run(self.consumer.next_batch(60.0))) is not None:
            self.take(batch)
        for number in range(len(PLACES)):
            # Loss by retention after the last message is reported with the next message.
            assert self.due[number] == self.end_of(number) or self.begin_of(number) == self.end_of(
                number
            )
        self.run(self.consumer.close())
        self.end()


class Sharing(Cluster):
    """A consumer group whose members come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.members: list[AsyncConsumer] = []
        self.seen: set[tuple[int, int]] = set()

    @precondition(lambda self: len(self.members) < 4)
    @rule(auto=st.booleans())
    def join(self, auto: bool) -> None:
        consumer = self.reader(group="x", auto_commit=auto)
        self.run(consumer.open())
        self.members.append(consumer)

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        for name in GROUPS:
            # A commit at the end of a member needs leaders.
            if self.log.groups[name].leader is None:
                self.log.lead(name, 0)
        self.run(self.members.pop(which % len(self.members)).close())

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3))
    def die(self, which: int) -> None:
        """The member fails without committing or leaving; its queues are released after the session
        timeout."""
        consumer = self.members.pop(which % len(self.members))
        for task in consumer._tasks:
            task.cancel()
        self.pass_time(0.0)

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3), batches=st.integers(1, 5), commit=st.booleans())
    def read(self, which: int, batches: int, commit: bool) -> None:
        consumer = self.members[which % len(self.members)]
        for _ in range(batches):
            batch = self.run(consumer.next_batch(0.5))
            if batch is not None:
                self.take(batch)
        if commit and None not in [group.leader for group in self.log.groups.values()]:
            self.run(consumer.commit())

    def take(self, batch: Batch) -> None:
        check_bodies(batch)
        self.seen.update((batch.queue, offset) for offset in batch.offsets.tolist())

    @invariant()
    def only_what_was_seen_or_is_gone_is_committed(self) -> None:
        for (group, queue), offset in self.log.committed.items():
            number = PLACES.index(Place(group, queue))
            for below in range(offset):
                assert (number, below) in self.seen or below < self.begin_of(number)

    def teardown(self) -> None:
        self.heal()
        if not self.members:
            self.join(True)
        self.pass_time(30.0)
        quiet = 0
        while quiet < len(self.members):
            quiet = 0
            for consumer in self.members:
                batch = self.run(consumer.next_batch(3.0))
                quiet += batch is None
                if batch is not None:
                    self.take(batch)
        owned = [queue for consumer in self.members for queue in consumer.assigned()]
        assert sorted(owned) == list(range(len(PLACES)))
        for number in range(len(PLACES)):
            for offset in range(self.begin_of(number), self.end_of(number)):
                assert (number, offset) in self.seen
        for consumer in self.members:
            self.run(consumer.close())
        self.end()


# A failing run is short enough to be read; making it shorter takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FAST = settings(
    max_examples=examples(30),
    stateful_step_count=25,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)
TestOneReader = OneReader.TestCase
TestOneReader.settings = FAST
TestSharing = Sharing.TestCase
TestSharing.settings = FAST


def test_a_heartbeat_of_an_earlier_generation_releases_no_queue() -> None:
    """Of the coordinator that the model has: a member reads its former queues until it has finished
    the generation that withdraws them."""
    members = Members()
    members.held["a"] = set()
    members.share(2)
    members.informed["a"] = members.generation
    members.finished("a", 1, 2)
    members.held["b"] = set()
    members.share(2)
    members.finished("a", 1, 2)
    assert members.held == {"a": {0, 1}, "b": set()}
    members.informed["a"] = members.generation
    members.finished("a", members.generation, 2)
    assert members.held == {"a": {0}, "b": {1}}
