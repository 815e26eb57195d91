"""Committed offsets as part of the derived state: batches, resets, restarts and new leaders,
against a model of a few dictionaries."""

from __future__ import annotations

import json
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.calls.operator_calls import Configure, Reset
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.read_calls import (
    CommitOffset,
    FindOffset,
    OffsetCommitted,
    OffsetRead,
    Pull,
    Pulled,
    ReadOffset,
)
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.machine import Machine
from ledgermq.node.replica.retention.retention_facts import consumed_queues, consumer_pins
from ledgermq.proto.records import control
from ledgermq.proto.types import GroupConfig
from tests.node_core.core_fakes import LOG_ID, MS, SECOND, Bench
from tests.node_core.test_core_group import make, records


def commit(
    b: Bench, offset: int, group: str = "g", queue: int = 0, topic: str = "t"
) -> CommitOffset:
    return CommitOffset(next(b.tokens), group, topic, queue, offset)


def read(b: Bench, group: str = "g", queue: int = 0, topic: str = "t") -> object:
    return b.ask(ReadOffset(next(b.tokens), group, topic, queue))


def pull(
    b: Bench,
    offset: int,
    wait_ns: int = 0,
    n: int = 32,
    max_bytes: int = 1 << 20,
    tags: tuple[str, ...] = (),
) -> Pull:
    return Pull(
        next(b.tokens), "t", 0, offset, TagFilter(frozenset(tags)), n, max_bytes, b.now_ns + wait_ns
    )


def test_all_offsets_of_a_turn_are_one_record() -> None:
    """However many groups commit; of one queue the last counts."""
    b = make()
    b.send("a", "b", "c")
    before = b.log.end_index
    calls = [commit(b, offset, group) for offset in (1, 3, 2) for group in ("g", "h")]
    b.turn(*calls)
    assert b.log.end_index == before + 1
    assert records(b.log)[-1] == control.OffsetRecord((("g", "t", 0, 2), ("h", "t", 0, 2)))
    assert [b.done[call.token] for call in calls] == [OffsetCommitted()] * 6
    assert read(b) == OffsetRead(2)


def test_an_offset_is_answered_when_it_is_committed() -> None:
    """Not before: until then another leader would not know it."""
    b = make()
    b.send("a")
    b.replicator.commit_at_once = False
    call = commit(b, 1)
    assert b.ask(call) is None and b.machine.offsets.get(("g", "t", 0)) is None
    b.replicator.commit_at_once = True
    b.turn()
    assert b.done[call.token] == OffsetCommitted()


def test_a_reset_moves_committed_offsets_and_cursors() -> None:
    """An operator's reset counts for a group that pulls, in the queues it names; a commit behind it
    in the same turn counts after it."""
    b = make()
    b.send("a", "b", "c")
    b.send("x", queue=1)
    b.turn(commit(b, 3), commit(b, 1, queue=1), commit(b, 3, "other"))
    b.ask(Reset(next(b.tokens), "g", "t", ((0, 1),)))
    assert (read(b), read(b, queue=1), read(b, "other")) == (
        OffsetRead(1),
        OffsetRead(1),
        OffsetRead(3),
    )
    assert b.machine.cursor(("g", "t", 0)) == 1
    late = commit(b, 2)
    b.turn(Reset(next(b.tokens), "g", "t", ((0, 0),)), late)
    assert b.done[late.token] == OffsetCommitted() and read(b) == OffsetRead(2)
    b.ask(Reset(next(b.tokens), "unknown", "t", ((0, 1),)))
    assert read(b, "unknown") == OffsetRead(None)


def test_offsets_outside_of_the_queue_are_clamped_or_refused() -> None:
    """A trim removes messages but never the group's position after them; a reported offset is
    always readable."""
    b = make()
    b.send("a", "b", "c")
    b.turn(commit(b, 1), commit(b, 3, "done"))
    b.queues.low["t", 0] = 2
    assert (read(b), read(b, "done")) == (OffsetRead(2), OffsetRead(3))
    assert b.ask(pull(b, 1)) == Refused(
        "illegal-offset",
        detail="offset 1 is outside of queue 0 of topic t, which holds 2 to 3 (exclusive)",
    )
    assert b.ask(FindOffset(next(b.tokens), "t", 0)) == OffsetRead(2)


def test_pulling_group_pins_files_behind_its_offsets() -> None:
    """Retention counts it like a group that leases: the first message behind its offset stays, and
    queues it never committed in whole."""
    b = make()
    b.send("a", "b", "c")
    b.send("x", queue=1)
    b.turn(commit(b, 1), commit(b, 1, "passing"))
    assert not list(consumed_queues(b.machine))
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "g"),)))
    keys = consumed_queues(b.machine)
    assert keys == [("g", "t", 0), ("g", "t", 1)]
    wanted = [
        int(b.machine.units("t", queue, offset, 1)[0][0]) for queue, offset in ((0, 1), (1, 0))
    ]
    assert [pin.pos for pin in consumer_pins(b.machine, keys)] == wanted
    b.turn(commit(b, 3), commit(b, 1, queue=1))
    assert not list(consumer_pins(b.machine, keys))


def test_a_pull_is_bounded_in_messages_and_bytes() -> None:
    """At least one message comes, however long it is."""
    b = make()
    b.send(*("x" * 1000 for _ in range(8)))
    for options, wanted in (
        ({"n": 3}, 3),
        ({"max_bytes": 1}, 1),
        ({"max_bytes": 2500}, 3),
        ({}, 8),
    ):
        found = b.ask(pull(b, 0, **options))  # type: ignore[arg-type]
        assert isinstance(found, Pulled)
        assert (len(found.records), found.next_offset, found.offsets) == (
            wanted,
            wanted,
            tuple(range(wanted)),
        )


def test_a_pull_looks_at_a_bounded_number_of_messages_per_turn() -> None:
    """A filter that wants one message in ten thousand does not hold up a turn, and still finds it
    without being asked again."""
    b = make()
    for _ in range(5):
        b.send(*["x"] * 2000, tag="x")
    b.send("needle", tag="y")
    call = pull(b, 0, tags=("y",), wait_ns=SECOND)
    assert b.ask(call) is None
    assert b.output is not None and b.output.wake_at_ns <= b.now_ns
    turns = 0
    while call.token not in b.done:
        b.turn()
        turns += 1
    found = b.done[call.token]
    assert isinstance(found, Pulled) and (found.offsets, found.next_offset) == ((10_000,), 10_001)
    assert turns >= 2


def test_a_pull_that_waits_is_looked_at_only_for_its_topic() -> None:
    """Ten thousand idle pulls cost nothing while other topics have traffic."""
    b = make()
    b.configure("u")
    b.turn(*(pull(b, 0, wait_ns=60 * SECOND) for _ in range(10)))
    looked = count()
    look = b.group._reads.pulls._look
    b.group._reads.pulls._look = lambda waiting: (next(looked), look(waiting))[1]  # type: ignore[method-assign]
    b.send("m", topic="u")
    assert next(looked) == 0
    b.send("m", topic="t")
    assert next(looked) == 11


QUEUES = st.integers(0, 1)
GROUPS = st.sampled_from(["g", "h"])
STEP = st.one_of(
    st.tuples(st.just("send"), QUEUES),
    st.tuples(st.just("commit"), GROUPS, QUEUES, st.integers(0, 6)),
    st.tuples(st.just("reset"), GROUPS, QUEUES, st.integers(0, 6)),
    st.tuples(st.just("delete-group"), GROUPS),
    st.tuples(st.just("lead")),
    st.tuples(st.just("restart")),
)


@given(st.lists(STEP, max_size=25), st.integers(0, 24))
def test_committed_offsets_equal_a_dictionary_model(
    steps: list[tuple[object, ...]], snapshot_at: int
) -> None:
    """Commits, resets, deletions, changes of leaders, restarts from a snapshot and the log behind
    it: never anything but the last word."""
    b = make()
    ends, model = [0, 0], {}
    snapshot = None
    for number, step in enumerate(steps):
        if step[0] == "send":
            b.send("m", queue=step[1])
            ends[step[1]] += 1
        elif step[0] == "commit":
            _, group, queue, offset = step
            outcome = b.ask(commit(b, offset, group, queue))
            assert isinstance(outcome, OffsetCommitted if offset <= ends[queue] else Refused)
            if offset <= ends[queue]:
                model[group, queue] = offset
        elif step[0] == "reset":
            _, group, queue, offset = step
            b.ask(Reset(next(b.tokens), group, "t", ((queue, offset),)))
            if any(known == group for known, _ in model):
                model[group, queue] = min(offset, ends[queue])
        elif step[0] == "delete-group":
            b.ask(Configure(next(b.tokens), groups=(GroupConfig("", step[1]),)))
            b.ask(Configure(next(b.tokens), deleted_groups=(step[1],)))
            model = {key: offset for key, offset in model.items() if key[0] != step[1]}
        elif step[0] == "lead":
            b.replicator.follow(b.replicator.term + 1, None)
            b.turn()
            b.lead()
        elif step[0] == "restart":
            again = Bench(b.log)
            again.now_ns, again.tokens = b.now_ns + MS, b.tokens
            again.replicator.term = b.replicator.term
            if snapshot is not None:
                again.machine.restore(json.loads(snapshot))
                again.queues.rows = {key: list(rows) for key, rows in b.queues.rows.items()}
                again.queues.truncate(json.loads(snapshot, object_hook=_numbered)["queues"])
            again.lead()
            b = again
        if number == snapshot_at:
            snapshot = json.dumps(b.machine.export(LOG_ID))
        for group in ("g", "h"):
            for queue in (0, 1):
                assert read(b, group, queue) == OffsetRead(model.get((group, queue))), (
                    step,
                    group,
                    queue,
                )
    state = Machine(b.queues, b.log.record)
    state.restore(json.loads(json.dumps(b.machine.export(LOG_ID))))
    assert state.offsets.export() == b.machine.offsets.export()


def _numbered(pairs: dict[str, object]) -> dict[object, object]:
    return {int(key) if key.isdigit() else key: value for key, value in pairs.items()}
