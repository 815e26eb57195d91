"""The replicated state is a function of the log (I8): random calls of every kind, and the same
state however a replica came to it.

A leader decides with lost leadership, a log and consume queues that run full, trims, topics and
groups that go and come. The state it ends with must be that of a replica that applied entry by
entry, of those that applied in other cuts (with a disk that was full for a while), and of one that
began with a snapshot; it does not matter which ranges a replica handles entry by entry and which as
arrays. In the end everything that is there can be consumed.
"""

from __future__ import annotations

import copy
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.node.broker.calls.send_calls import Produce, Recall, Recalled
from ledgermq.node.broker.machine import Machine
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import ORIGIN, parse
from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.storage.files.errors import NoSpace
from tests.example_counts import examples
from tests.node_core.core_fakes import MemoryLog, MemoryQueues
from tests.node_core.core_world import NAMES, World, exported, merged
from tests.proto.ways import ARRAYS, LISTS, few_entries


def replica(
    log: MemoryLog, rng: Random, *, most: int, full: float = 0.0, restarts: float = 0.0
) -> Machine:
    """A replica that applied the log in pieces of at most this many entries, with a temporarily
    full disk and restarts."""
    queues = MemoryQueues()
    machine = Machine(queues, log.record, log.index_at)
    ranges = merged(log)
    while machine.applied_index < log.end_index:
        first = machine.applied_index + 1
        entries = tail_of(
            next(
                entries for entries in ranges if entries.first_index <= first <= entries.last_index
            ),
            first,
        )
        queues.full = rng.random() < full
        try:
            machine.apply(cut(entries, first + rng.randrange(most)))
        except NoSpace:
            continue
        if rng.random() < restarts:
            snapshot, queues = exported(machine), copy.deepcopy(queues)
            machine = Machine(queues, log.record, log.index_at)
            machine.restore(snapshot)
            assert exported(machine) == snapshot, "a snapshot says what it was made from"
    return machine


def same(left: dict[str, Any], right: dict[str, Any]) -> None:
    for key in left.keys() | right.keys():
        assert left.get(key) == right.get(key), key


def check_marks(log: MemoryLog) -> None:
    """What is made from another entry is made once."""
    marks: Counter[str] = Counter()
    for entries in log.ranges:
        for start, size in zip(entries.starts.tolist(), entries.sizes.tolist(), strict=True):
            record = decode_record(entries.data[start + 48 : start + size])
            mark = parse(record.properties).get(ORIGIN)
            if mark is not None:
                marks[mark] += 1
    assert not [mark for mark, times in marks.items() if times > 1], "made twice"


def run(steps: list[tuple[str, int, int]], seed: int) -> None:
    world = World()
    for name, a, b in steps:
        getattr(world, name)(a, b)
    world.heal()
    for last in (False, True):
        wanted, log = world.exported(), world.bench.log
        same(wanted, exported(replica(log, Random(seed), most=1)))
        same(wanted, exported(replica(log, Random(seed), most=1 << 20)))
        same(wanted, exported(replica(log, Random(seed), most=30, full=0.2)))
        same(wanted, exported(replica(log, Random(seed), most=8, restarts=0.15, full=0.1)))
        with few_entries(ARRAYS):
            same(wanted, exported(replica(log, Random(seed), most=30)))
        with few_entries(LISTS):
            same(wanted, exported(replica(log, Random(seed), most=1 << 20, full=0.1)))
        check_marks(log)
        world.check_frames()
        if not last:
            world.settle()


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 11), st.integers(0, 11)),
    min_size=30,
    max_size=120,
)


@settings(max_examples=examples(5), derandomize=True, suppress_health_check=SLOW)
@given(STEPS, st.integers(0, 1 << 30))
def test_the_state_is_a_function_of_the_log(steps: list[tuple[str, int, int]], seed: int) -> None:
    """Calls of every kind over failures: every replica has the leader's state, nothing is made
    twice, and nothing is stuck."""
    run(steps, seed)


@pytest.mark.verify
@settings(derandomize=True, suppress_health_check=SLOW)
@given(STEPS, st.integers(0, 1 << 30))
def test_the_state_is_a_function_of_many_logs(steps: list[tuple[str, int, int]], seed: int) -> None:
    """The same with more histories."""
    run(steps, seed)


def test_a_place_in_a_lite_topic_without_messages_makes_no_queue() -> None:
    """A subscription that says where it begins, in a topic that is not there: replicas that were
    restarted since see the same later."""
    run(
        [
            ("delay", 1, 1),
            ("send", 6, 8),
            ("sync_lite", 8, 5),
            ("trim", 4, 4),
            ("sync_lite", 8, 1),
            ("topic", 5, 5),
        ],
        4,
    )


def test_a_recall_means_the_message_that_is_stored() -> None:
    """An id that is sent again with another delivery time is a duplicate: a recall with that time
    has no effect, and counts stay correct."""
    run([("delay", 9, 10), ("time", 2, 8), ("delay", 3, 10), ("recall", 3, 0)], 4)
    world = World()
    for after_ms in (3_000, 9_000):
        world.turn(Produce(world.token, [world.draft("m", 9, 10, world.bench.now_ms + after_ms)]))
    first, again = world.delayed
    assert first[1:] == again[1:] and first[0] != again[0]
    call = Recall(world.token, *again)
    world.turn(call)
    assert (
        world.bench.done[call.token] == Recalled(False) and world.bench.machine.timers.pending == 1
    )
    world.turn(Recall(world.token, *first))
    assert world.bench.machine.timers.pending == 0
