"""Flush policies in a broker group: the class of a send, the time of its answer, and the class that
the replicator gets for its batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.flush import Durability, FlushPolicy, durability_of
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.proto.types import Permission, TopicConfig, TopicDurability, TopicKind
from tests.node_core.core_fakes import SECOND, Bench, MemoryQueues, draft


def topic(name: str, durability: TopicDurability = TopicDurability.GROUP) -> TopicConfig:
    return TopicConfig("", name, TopicKind.NORMAL, 1, Permission.READ_WRITE, 1, durability)


def bench(policy: FlushPolicy = FlushPolicy.MEMORY) -> Bench:
    """A leader with one topic of each durability, everything committed so far, and nothing from now
    on."""
    b = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), policy=policy))
    b.lead(1)
    names = [(durability.value or "t", durability) for durability in TopicDurability]
    b.ask(Configure(next(b.tokens), topics=[topic(name, durability) for name, durability in names]))
    assert len(b.machine.topics) == 4
    b.replicator.commit_at_once = False
    b.replicator.urgencies.clear()
    return b


def produce(b: Bench, *messages: tuple[str, int]) -> Produce:
    """A call with one message per (topic, priority)."""
    drafts = [
        replace(draft(f"m{k}", name), priority=priority)
        for k, (name, priority) in enumerate(messages)
    ]
    return Produce(next(b.tokens), drafts)


def replicate(b: Bench) -> None:
    """A majority has everything; nothing of it is durable."""
    b.replicator.replicated = b.log.end_index
    b.turn()


def commit(b: Bench) -> None:
    b.replicator.commit_index = b.log.end_index
    b.replicator.replicated = None
    b.turn()


@pytest.mark.parametrize(
    ("policy", "durability", "priority", "expected"),
    [
        (FlushPolicy.DURABLE, TopicDurability.GROUP, 0, "durable"),
        (FlushPolicy.MEMORY, TopicDurability.GROUP, 9, "memory"),
        (FlushPolicy.HYBRID, TopicDurability.GROUP, -1, "memory"),
        (FlushPolicy.HYBRID, TopicDurability.GROUP, 3, "memory"),
        (FlushPolicy.HYBRID, TopicDurability.GROUP, 4, "durable"),
        (FlushPolicy.MEMORY, TopicDurability.HIGH, -1, "durable"),
        (FlushPolicy.DURABLE, TopicDurability.MEMORY, 9, "memory"),
        (FlushPolicy.DURABLE, TopicDurability.HYBRID, -1, "memory"),
        (FlushPolicy.MEMORY, TopicDurability.HYBRID, 4, "durable"),
    ],
)
def test_the_class_of_a_message(
    policy: FlushPolicy, durability: TopicDurability, priority: int, expected: str
) -> None:
    """The setting of the topic overrides that of the broker group, and under `hybrid` the priority
    decides."""
    assert durability_of(policy, durability, priority).value == expected


@pytest.mark.parametrize("policy", list(FlushPolicy))
@pytest.mark.parametrize("name", ["t", "high", "memory", "hybrid"])
@pytest.mark.parametrize("priority", [-1, 4])
def test_an_answer_comes_with_its_class_and_at_its_moment(
    policy: FlushPolicy, name: str, priority: int
) -> None:
    """`memory` is answered when it is replicated, `durable` when it is applied; each says what it
    is."""
    b = bench(policy)
    call = produce(b, (name, priority))
    expected = durability_of(policy, b.machine.topics[name].durability, priority)
    assert b.ask(call) is None
    assert b.replicator.urgencies == [
        (expected is Durability.DURABLE, expected is Durability.MEMORY)
    ]
    replicate(b)
    assert (call.token in b.done) is (expected is Durability.MEMORY)
    commit(b)
    answer = b.done[call.token]
    assert isinstance(answer, Produced) and answer.durability == expected.value


def test_a_call_has_the_strongest_class_of_its_messages() -> None:
    """One durable message makes all of its call wait: they are acknowledged together."""
    b = bench(FlushPolicy.MEMORY)
    call = produce(b, ("t", -1), ("high", -1), ("t", -1))
    b.ask(call)
    replicate(b)
    assert call.token not in b.done and b.replicator.urgencies == [(True, False)]
    commit(b)
    assert b.done[call.token].durability == "durable"  # type: ignore[union-attr]


def test_a_batch_of_both_classes_is_urgent_and_early() -> None:
    """Calls of one turn share a batch: the durable call makes it urgent, the other is still
    answered early."""
    b = bench(FlushPolicy.HYBRID)
    slow, fast = produce(b, ("t", 7)), produce(b, ("t", 0))
    b.turn(slow, fast)
    assert b.replicator.urgencies == [(True, True)]
    replicate(b)
    assert fast.token in b.done and slow.token not in b.done
    commit(b)
    assert slow.token in b.done


def test_replicated_memory_send_is_answered_in_its_turn() -> None:
    """A lone voter holds everything as soon as it is appended."""
    b = bench()
    b.replicator.replicated = 1 << 40
    assert isinstance(b.ask(produce(b, ("t", -1))), Produced)


def test_memory_message_is_delivered_only_after_commit() -> None:
    """The answer is early, the message is not: delivery follows the commit index alone
    (docs/architecture.md, Durability)."""
    b = bench()
    b.ask(produce(b, ("t", -1)))
    replicate(b)
    assert b.machine.end("t", 0) == 0
    poll = b.poll()
    assert b.ask(poll) is None
    commit(b)
    assert b.machine.end("t", 0) == 1


def test_a_waiting_receive_hurries_the_commit() -> None:
    """Only of its own topic, only while there is something to commit, and not once it is leased or
    gone."""
    b = bench()
    other, poll = b.poll(topic="memory"), b.poll()
    b.ask(other)
    b.ask(produce(b, ("t", -1)))
    assert b.replicator.hurried == 0
    b.ask(poll)
    assert b.replicator.hurried > 0
    commit(b)
    b.replicator.hurried = 0
    b.turn()
    assert b.replicator.hurried == 0


def test_a_send_hurries_when_a_receive_waits_already() -> None:
    """The order does not matter: here the lease is in the batch of the message, and the whole batch
    is urgent. Only the send is answered early."""
    b = bench()
    poll, send = b.poll(), produce(b, ("t", -1))
    b.ask(poll)
    assert b.replicator.hurried == 0
    b.ask(send)
    assert b.replicator.urgencies == [(True, True)] and b.replicator.proposals[-1] == 2
    replicate(b)
    assert send.token in b.done and poll.token not in b.done
    commit(b)
    assert poll.token in b.done


def test_leases_and_acknowledgements_are_urgent() -> None:
    """Whatever is no client message never waits, whichever policy: consumers are not slowed
    down."""
    b = bench()
    b.replicator.commit_at_once = True
    b.ask(produce(b, ("t", -1)))
    b.replicator.urgencies.clear()
    (lease,) = b.receive()
    b.ack(lease)
    assert set(b.replicator.urgencies) == {(True, False)} and len(b.replicator.urgencies) == 2


def test_lost_leadership_ends_early_answers_once() -> None:
    """What was answered from memory is not answered again; what was not yet is unknown, unless it
    is committed already."""
    b = bench()
    told, committed, open_ = produce(b, ("t", -1)), produce(b, ("t", -1)), produce(b, ("t", -1))
    b.ask(told)
    replicate(b)
    assert told.token in b.done
    b.ask(committed)
    after = b.log.end_index
    b.ask(open_)
    b.replicator.replicated = None
    b.replicator.commit_index = after
    b.replicator.follow(2, "n2")
    b.turn()
    assert b.done[committed.token].durability == "memory"  # type: ignore[union-attr]
    outcome = b.done[open_.token]
    assert isinstance(outcome, Refused) and outcome.reason == "unknown-outcome"


def test_a_later_term_does_not_answer_for_an_earlier_one() -> None:
    """Deposed and elected again within one step: the replicated index of the new term says nothing
    about the old calls."""
    b = bench()
    call = produce(b, ("t", -1))
    b.ask(call)
    b.replicator.replicated = 1 << 40
    b.replicator.lead(5)
    b.turn()
    assert isinstance(b.done[call.token], Refused)


def test_memory_acknowledgements_leave_no_growing_state() -> None:
    """Once answered a call is forgotten, however far the commit is behind; uncommitted topics are
    as many as there are topics (I11)."""
    b = bench()
    for _ in range(50):
        b.ask(produce(b, ("t", -1), ("memory", -1)))
        replicate(b)
    leader = b.group.leader
    assert (
        not leader.early
        and not leader._awaited
        and set(leader.uncommitted_topics) == {"t", "memory"}
    )
    commit(b)
    assert not leader.uncommitted_topics


def test_calls_are_not_held_while_writes_are_refused() -> None:
    """The batch of a send that no majority has room for stays open: the sends behind it are refused
    at once, not at their deadlines."""
    b = Bench()
    b.lead(1)
    assert b.turn().hold_calls is True
    b.group.writes_refused = True
    assert b.turn().hold_calls is False
    call = produce(b, ("t", 0))
    b.ask(call)
    assert b.done[call.token] == Refused("disk-full")
    b.group.writes_refused = False
    assert b.turn().hold_calls is True


def test_only_a_leader_reports_that_writes_are_refused() -> None:
    """A full disk of a follower refuses nobody's writes."""
    b = Bench()
    b.group.writes_refused = True
    assert b.group.statistics()["writes_refused"] == 0
    b.lead(1)
    assert b.group.statistics()["writes_refused"] == 1
    b.replicator.follow(2, "n2")
    b.turn()
    assert b.group.statistics()["writes_refused"] == 0


@pytest.mark.parametrize(
    ("policy", "durability", "hold"),
    [
        (FlushPolicy.DURABLE, TopicDurability.GROUP, True),
        (FlushPolicy.DURABLE, TopicDurability.HIGH, True),
        (FlushPolicy.MEMORY, TopicDurability.HIGH, True),
        (FlushPolicy.DURABLE, TopicDurability.HYBRID, False),
        (FlushPolicy.MEMORY, TopicDurability.GROUP, False),
        (FlushPolicy.HYBRID, TopicDurability.GROUP, False),
    ],
)
def test_calls_are_held_only_where_every_send_waits_for_a_sync(
    policy: FlushPolicy, durability: TopicDurability, hold: bool
) -> None:
    """A call that could be answered from memory must not wait for a running fdatasync; topics may
    change this at run time."""
    b = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), policy=policy))
    b.lead(1)
    b.ask(Configure(next(b.tokens), topics=[topic("t", durability)]))
    assert b.turn().hold_calls is hold
    b.ask(Configure(next(b.tokens), topics=[topic("t", TopicDurability.HIGH)]))
    assert b.turn().hold_calls is True


def test_the_durability_of_a_topic_is_part_of_the_state() -> None:
    """It comes into force with its record, outlives a snapshot, and older snapshots without it mean
    the group's policy."""
    b = bench()
    exported = b.machine.export("log")
    restored = Machine(MemoryQueues(), b.log.record)
    restored.restore(exported)
    assert (
        restored.topics == b.machine.topics
        and restored.topics["high"].durability is TopicDurability.HIGH
    )
    for fields in exported["topics"].values():
        del fields["durability"]
    restored.restore(exported)
    assert {config.durability for config in restored.topics.values()} == {TopicDurability.GROUP}
    b.replicator.commit_at_once = True
    b.ask(Configure(next(b.tokens), topics=[topic("high")]))
    assert b.machine.topics["high"].durability is TopicDurability.GROUP
    assert b.turn(at_ns=b.now_ns + SECOND).view is None
