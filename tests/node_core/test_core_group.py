"""A broker group on virtual time over a replicator in memory: leadership, refusals, configuration,
full disks, derived state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
    CancelReceive,
    Change,
    ClientsAlive,
    Received,
)
from ledgermq.node.broker.calls.member_calls import Returned
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery import picker
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.broker.queries.backlog import positions
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft, GroupConfig, Permission, Role, TopicConfig, TopicKind
from tests.node_core.core_fakes import EPOCH_MS, LOG_ID, MS, SECOND, Bench, MemoryLog, draft, handle

PACKET = PeerPacket(b"", b"")


def make(queues: int = 2, **settings: Any) -> Bench:
    b = Bench(
        settings=LeaderSettings(times=LeaseTimes(handover_ns=0), **settings) if settings else None
    )
    b.lead(1)
    b.configure("t", queues=queues)
    return b


def config(
    topic: str = "t",
    queues: int = 2,
    incarnation: int = 1,
    permission: Permission = Permission.READ_WRITE,
) -> TopicConfig:
    return TopicConfig("", topic, TopicKind.NORMAL, queues, permission, incarnation)


def records(log: MemoryLog) -> list[control.ControlRecord | str]:
    """Every entry: a control record, or the body of a message."""
    out: list[control.ControlRecord | str] = []
    for entries in log.ranges:
        for start, size in zip(entries.starts.tolist(), entries.sizes.tolist(), strict=True):
            record = decode_record(entries.data[start + 48 : start + size])
            if record.topic.startswith("rmq_sys_"):
                tag = record.properties.decode().removeprefix("TAGS\x01").removesuffix("\x02")
                out.append(control.decode(tag, record.body))
            else:
                out.append(record.body.decode())
    return out


# The main road


def test_one_batch_and_few_records_a_turn() -> None:
    """All calls of a turn share one proposal; acknowledgements share one record, changes
    another."""
    b = make()
    b.send(*"abcdef")
    leases = b.receive()
    before, entries = len(b.replicator.proposals), b.log.end_index
    acks = [Ack(next(b.tokens), [handle(lease)]) for lease in leases[:4]]
    changes = [Change(next(b.tokens), handle(lease), 1000, "c") for lease in leases[4:]]
    b.turn(b.produce("x"), *acks, *changes, b.produce("y", queue=1))
    assert len(b.replicator.proposals) == before + 1
    assert b.log.end_index == entries + 4
    assert [type(r).__name__ if not isinstance(r, str) else r for r in records(b.log)[-4:]] == [
        "x",
        "AckRecord",
        "ChangeRecord",
        "y",
    ]
    assert all(b.done[call.token].ok == (True,) for call in acks)  # type: ignore[union-attr]
    numbers = {b.done[call.token].lease_number for call in changes}  # type: ignore[union-attr]
    assert numbers == {entries + 3}


def test_calls_are_answered_after_commit_and_apply() -> None:
    """Produce, lease, acknowledgement and change wait for their entry."""
    b = make()
    b.send("a", "b", "c")
    one, two, _ = b.receive()
    b.replicator.commit_at_once = False
    calls = [
        b.produce("x"),
        Ack(next(b.tokens), [handle(one)]),
        Change(next(b.tokens), handle(two), 5, "c"),
        b.poll(),
    ]
    b.turn(*calls)
    b.turn()
    assert not any(call.token in b.done for call in calls)
    b.replicator.commit_index = b.log.end_index
    b.turn()
    assert isinstance(b.done[calls[0].token], Produced) and b.done[calls[1].token] == Acked((True,))


def test_an_answer_that_hangs_on_an_uncommitted_entry_waits_for_it() -> None:
    """A second acknowledgement is confirmed only when the first one is sure."""
    b = make()
    b.send("a")
    (lease,) = b.receive()
    b.replicator.commit_at_once = False
    first, second = Ack(next(b.tokens), [handle(lease)]), Ack(next(b.tokens), [handle(lease)])
    b.turn(first)
    b.turn(second)
    assert second.token not in b.done
    b.replicator.follow(2, "n2")
    b.turn()
    assert b.done[first.token] == b.done[second.token] == Refused("unknown-outcome", "n2")


def test_waiting_receives_are_served_in_order_of_arrival() -> None:
    """The longest waiting receive is served first; receives without messages keep waiting."""
    b = make()
    polls = [b.poll(n=1) for _ in range(3)]
    b.turn(*polls)
    b.send("a", "b")
    assert [poll.token in b.done for poll in polls] == [True, True, False]
    b.send("c", queue=1)
    assert polls[2].token in b.done


def test_a_poison_message_does_not_starve_new_ones() -> None:
    """A message that always fails at once takes at most every second Receive."""
    b = make(queues=1)
    b.send(*[str(i) for i in range(10)])
    (poison,) = b.receive(n=1)
    assert b.change(poison, 0) is not None
    seen = []
    for _ in range(18):
        (lease,) = b.receive(n=1)
        seen.append(lease.queue_offset)
        if lease.queue_offset == 0:
            assert b.change(lease, 0) is not None
        else:
            assert b.ack(lease) == (True,)
    assert sorted(set(seen)) == list(range(10))


def test_queues_take_turns() -> None:
    """With small batches no queue waits for another to be empty."""
    b = make(queues=4)
    for queue in range(4):
        b.send(*[f"{queue}-{i}" for i in range(20)], queue=queue)
    first = [b.receive(n=1)[0].queue for _ in range(8)]
    assert sorted(set(first)) == [0, 1, 2, 3]


def test_a_receive_is_bounded_in_bytes() -> None:
    """Large messages come a few at a time."""
    b = make(receive_bytes_max=2500)
    b.send(*["x" * 1000] * 5)
    assert [len(b.receive()) for _ in range(3)] == [3, 2, 0]


@pytest.mark.parametrize("spare", [0, 1])
def test_the_bound_in_bytes_counts_whole_records(spare: int) -> None:
    """The same for messages read from the log and for messages leased in the batch that stores
    them, whose records do not exist yet."""
    sizes = make()
    sizes.send("x")
    record = int(sizes.machine.units("t", 0, 0, 1)[1][0])
    limit = 2 * record + spare
    read = make(receive_bytes_max=limit)
    read.send(*["x"] * 5)
    direct = make(receive_bytes_max=limit)
    waiting = direct.poll()
    direct.turn(waiting)
    direct.send(*["x"] * 5)
    outcome = direct.done[waiting.token]
    assert isinstance(outcome, Received)
    assert len(read.receive()) == len(outcome.leases) == 2 + spare


# Leadership


def test_a_term_opens_with_its_record_and_serves_only_after_it() -> None:
    """Calls that come before wait; then they are decided."""
    b = Bench()
    b.replicator.commit_at_once = False
    b.replicator.lead(3)
    b.turn()
    assert records(b.log) == [control.TermStart(3, "n1")]
    assert not b.group.view().serving
    configure = Configure(next(b.tokens), topics=(config(),))
    b.turn(configure)
    assert b.log.end_index == 0
    b.replicator.commit_at_once = True
    b.turn()
    assert b.done[configure.token] == Configured() and b.group.view().serving


def test_a_follower_refuses_and_names_the_leader() -> None:
    """Calls without an answer are dropped silently."""
    b = Bench()
    b.replicator.follow(4, "n9")
    calls = [b.produce("a"), b.poll(), Ack(next(b.tokens), []), Configure(next(b.tokens))]
    b.turn(*calls, ClientsAlive(frozenset({"c"}), 0))
    assert all(b.done[call.token] == Refused("not-leader", "n9") for call in calls)


def test_losing_leadership_ends_every_call_once() -> None:
    """Appended: unknown outcome. Waiting: not leader. Committed meanwhile: answered."""
    b = make()
    b.send("a", "b")
    b.replicator.commit_at_once = False
    committed = b.produce("c")
    b.turn(committed)
    commit_to = b.log.end_index
    appended, leasing, waiting = b.produce("d"), b.poll(), b.poll(group="g2", topic="none")
    b.turn(appended, leasing)
    idle = b.poll(group="g")
    b.turn(idle)
    b.turn(waiting)
    b.replicator.commit_index = commit_to
    b.replicator.follow(2, "n2")
    b.turn()
    assert isinstance(b.done[committed.token], Produced)
    assert b.done[appended.token] == b.done[leasing.token] == Refused("unknown-outcome", "n2")
    assert b.done[idle.token] == Refused("not-leader", "n2")
    b.turn()


def test_a_leader_of_a_later_term_in_one_step_starts_over() -> None:
    """Leadership lost and won between two turns is a new leadership."""
    b = make()
    b.send("a")
    b.replicator.commit_at_once = False
    call = b.produce("b")
    b.turn(call)
    b.log.cut(b.replicator.commit_index)
    b.replicator.lead(5)
    b.turn()
    assert b.done[call.token] == Refused("unknown-outcome", "n1")
    assert records(b.log)[-1] == control.TermStart(5, "n1")
    b.replicator.commit_at_once = True
    b.turn()
    sent = b.send("c")
    assert isinstance(sent, Produced) and sent.queue_offsets == (1,)


def test_a_new_leader_counts_on_from_the_uncommitted_tail() -> None:
    """Queue offsets and store time continue after entries that are not committed yet (I6)."""
    b = make()
    b.send("a")
    b.replicator.commit_at_once = False
    b.turn(b.produce("b", "c"), b.produce("d", queue=1))
    other = Bench(b.log, node="n2")
    other.now_ns = 0
    other.replicator.commit_index = b.replicator.commit_index
    other.lead(2)
    other.pass_time(0)
    sent, sent_1 = other.send("e"), other.send("f", queue=1)
    assert isinstance(sent, Produced) and isinstance(sent_1, Produced)
    assert (sent.queue_offsets, sent_1.queue_offsets) == ((3,), (1,))
    assert sent.store_ms == b.now_ms > other.now_ms, "store time never falls along the log"


def test_call_whose_entry_was_replaced_has_an_unknown_outcome() -> None:
    """An index that is committed with another term is not ours."""
    b = make()
    b.replicator.commit_at_once = False
    call = b.produce("b")
    b.turn(call)
    index = b.log.end_index
    b.log.cut(index - 1)
    other = Bench(b.log, node="n2")
    other.replicator.commit_index = index - 1
    other.lead(2)
    assert b.log.end_index == index
    b.replicator.commit_index = index
    b.replicator.follow(2, "n2")
    b.turn()
    assert b.done[call.token] == Refused("unknown-outcome")


# Refusals


def test_unknown_topics_and_queues_are_refused() -> None:
    """Such a call appends nothing."""
    b = make(queues=2)
    end = b.log.end_index
    for call in (
        b.produce("a", topic="no"),
        b.produce("a", queue=2),
        b.produce("a", queue=-1),
        b.poll(topic="no"),
    ):
        outcome = b.ask(call)
        assert isinstance(outcome, Refused) and outcome.reason == "unknown-topic"
    mixed = Produce(next(b.tokens), [draft("good"), draft("bad", topic="no")])
    assert isinstance(b.ask(mixed), Refused) and b.log.end_index == end


def test_message_larger_than_a_log_file_or_record_is_refused() -> None:
    """The limit is the file size minus the room for a blank; long properties fit no record."""
    b = make(entry_bytes_max=1000)
    assert isinstance(b.send("x" * 700), Produced)
    outcome = b.send("x" * 1000)
    assert isinstance(outcome, Refused) and outcome.reason == "too-large"
    b = make()
    outcome = b.ask(
        Produce(next(b.tokens), [Draft("t", 0, b"x", b"k\x01" + b"v" * 40_000 + b"\x02", EPOCH_MS)])
    )
    assert isinstance(outcome, Refused) and outcome.reason == "too-large"


def test_shared_records_fit_into_a_log_file_however_many_calls_come_at_once() -> None:
    """Changes, acknowledgements and leases given back share one record each: what does not fit
    follows in the next batch of the turn."""
    most = 65_528
    b = make(entry_bytes_max=most)
    for _ in range(4):
        b.send(*["x"] * 500)
    client = "c" * 200
    changed, acked, given_back = (
        b.receive(n=700, client=client),
        b.receive(n=700, client=client),
        b.poll(n=600, client=client),
    )
    b.turn(given_back)
    changes = [Change(next(b.tokens), handle(lease), 60_000, client) for lease in changed]
    acks = [Ack(next(b.tokens), [handle(lease)]) for lease in acked]
    b.turn(*changes, *acks, CancelReceive(given_back.token))
    while b.output is not None and b.output.wake_at_ns <= b.now_ns:
        b.turn()
    assert all(b.done[call.token].lease_number is not None for call in changes)  # type: ignore[union-attr]
    assert all(b.done[call.token] == Acked((True,)) for call in acks)
    assert len(b.receive(n=1000)) == 600, "all that was given back is visible again"
    assert max(int(entries.sizes.max()) for entries in b.log.ranges) <= most


def test_full_disk_refuses_sends_and_serves_reads_and_acknowledgements() -> None:
    """Reads, leases and acknowledgements continue in the reserve; writes resume by themselves; no
    queue offset is lost."""
    b = make()
    b.send("a", "b")
    b.replicator.full = True
    sent, poll = b.produce("c"), b.poll(n=1)
    b.turn(sent, poll)
    assert b.done[sent.token] == Refused("disk-full")
    outcome = b.done[poll.token]
    assert isinstance(outcome, Received)
    assert b.ack(*outcome.leases) == (True,)
    b.replicator.full = False
    again = b.send("d")
    assert isinstance(again, Produced) and again.queue_offsets == (2,)
    assert [x.queue_offset for x in b.receive()] == [1, 2]


def test_a_full_reserve_refuses_acknowledgements_and_keeps_receives_waiting() -> None:
    """When not even control records fit, nothing is half done: the same calls work when space
    returns."""
    b = make()
    b.send("a", "b")
    (one,) = b.receive(n=1)
    b.replicator.full = b.replicator.full_for_control = True
    ack, poll = Ack(next(b.tokens), [handle(one)]), b.poll()
    b.turn(ack, poll)
    assert b.done[ack.token] == Refused("disk-full") and poll.token not in b.done
    assert b.output is not None and b.output.wake_at_ns <= b.now_ns + 100 * MS
    b.replicator.full = b.replicator.full_for_control = False
    b.turn()
    outcome = b.done[poll.token]
    assert isinstance(outcome, Received) and [x.queue_offset for x in outcome.leases] == [1]
    assert b.ack(one) == (True,)


def test_deliveries_leave_room_in_the_reserve_for_elections() -> None:
    """Leases on a full disk stop before the reserve is used up; a new term still finds room."""
    b = make(max_attempts=10_000)
    b.send(*["x"] * 3)
    b.replicator.full = True
    while leases := b.receive(n=1, invisible_ms=0):
        assert leases[0].attempt < 5000
    assert b.machine.delivery.row(("g", "t", 0), 0).attempt > 100  # type: ignore[union-attr]
    b.replicator.lead(2)
    b.turn()
    assert b.group.view().serving


def test_a_leader_without_room_for_its_term_start_tries_again() -> None:
    """It does not serve until the record is in the log."""
    b = Bench()
    b.replicator.full = b.replicator.full_for_control = True
    b.lead(1)
    assert (
        not b.group.view().serving
        and b.output is not None
        and b.output.wake_at_ns <= b.now_ns + 100 * MS
    )
    b.replicator.full = b.replicator.full_for_control = False
    b.turn()
    assert b.group.view().serving


def test_consume_queues_without_room_stop_applying_and_refuse() -> None:
    """What was appended is answered when space returns; meanwhile nothing is accepted that could
    not be applied."""
    b = make()
    b.queues.full = True
    first = b.produce("a")
    b.turn(first)
    assert first.token not in b.done
    assert b.ask(b.produce("b")) == Refused("disk-full")
    b.queues.full = False
    b.turn()
    assert isinstance(b.done[first.token], Produced)
    sent = b.send("c")
    assert isinstance(sent, Produced) and sent.queue_offsets == (1,)
    assert b.group.statistics()["dispatch_stalled"] >= 2


@pytest.mark.parametrize("leads", [True, False])
def test_stalled_dispatch_is_retried_after_a_packet_turn(
    leads: bool,
) -> None:
    """A packet that only moves the commit index decides nothing, but applying what it committed may
    find the disk full."""
    b = make()
    b.replicator.commit_at_once = False
    sent = b.produce("a")
    b.turn(sent)
    if not leads:
        b.replicator.follow(2, "n2")
        b.turn()
    b.queues.full = True
    b.replicator.commit_index = b.log.end_index
    output = b.group.turn(b.now_ns, b.now_ms, (), [("n2", PeerPacket(b""))])
    assert b.group.dispatch_stalled == 1 and output.wake_at_ns == b.now_ns + 100 * MS
    b.queues.full = False
    b.turn(at_ns=output.wake_at_ns)
    assert b.machine.end("t", 0) == 1


def test_stalled_queues_cause_no_busy_turns_while_a_node_returns() -> None:
    """No change of members is tried without space; its time to try again must not wake the group
    before the disk is tried again."""
    b = make()
    b.replicator.commit_at_once = False
    b.turn(Returned("n2", "another"))
    b.turn(b.produce("a"))
    b.queues.full = True
    b.replicator.commit_index = b.log.end_index
    for _ in range(3):
        assert b.pass_time(SECOND).wake_at_ns == b.now_ns + 100 * MS


# Configuration


def test_only_differences_are_proposed() -> None:
    """Configuring what is in force answers without an entry."""
    b = make()
    end = b.log.end_index
    call = Configure(
        next(b.tokens), topics=(config(),), groups=(GroupConfig("", "g"),), deleted_topics=("none",)
    )
    assert b.ask(call) == Configured()
    assert b.log.end_index == end + 1, "the group only"
    assert b.ask(replace(call, token=next(b.tokens))) == Configured()
    assert b.log.end_index == end + 1
    assert b.group.view().groups == {"g": GroupConfig("", "g")}


def test_configuration_waits_for_configuration_under_way() -> None:
    """Two Configures about one topic are applied one after the other; a Produce between them waits
    too."""
    b = make(queues=1)
    b.replicator.commit_at_once = False
    grow, send, shrink = (
        Configure(next(b.tokens), topics=(config(queues=4),)),
        b.produce("a"),
        Configure(next(b.tokens), topics=(config(queues=4, permission=Permission.READ),)),
    )
    b.turn(grow)
    b.turn(send, shrink)
    assert len(records(b.log)) == 3
    b.replicator.commit_at_once = True
    b.turn()
    assert b.done[grow.token] == b.done[shrink.token] == Configured()
    assert isinstance(b.done[send.token], Produced)
    assert b.group.view().topics["t"] == config(queues=4, permission=Permission.READ)


def test_an_older_incarnation_never_replaces_a_newer_one() -> None:
    """Intent read late from the controller changes nothing."""
    b = make()
    b.configure("t", queues=2, incarnation=3)
    b.configure("t", queues=2, incarnation=2)
    assert b.group.view().topics["t"].incarnation == 3


def test_deleted_topic_refuses_sends_receives_and_acknowledgements() -> None:
    """Sends and new Receives are refused, waiting ones are answered, leases are worth nothing."""
    b = make()
    b.send("a")
    (lease,) = b.receive()
    waiting = b.poll()
    b.ask(waiting)
    b.ask(Configure(next(b.tokens), deleted_topics=("t",)))
    outcome = b.done[waiting.token]
    assert isinstance(outcome, Refused) and outcome.reason == "unknown-topic"
    assert isinstance(b.send("b"), Refused) and b.ack(lease) == (False,)
    assert b.group.view().topics == {} and b.machine.delivery.in_flight == 0


def test_a_new_incarnation_continues_queue_offsets_and_starts_empty() -> None:
    """Old messages belong to the old topic; offsets continue; a snapshot contains the begin of the
    incarnation."""
    b = make(queues=1)
    b.send("old", "older")
    b.receive(n=1)
    b.ask(Configure(next(b.tokens), deleted_topics=("t",)))
    b.configure("t", queues=2, incarnation=2)
    sent = b.send("new")
    assert isinstance(sent, Produced) and sent.queue_offsets == (2,)
    assert [x.queue_offset for x in b.receive()] == [2]
    assert [x.queue_offset for x in b.receive(group="other")] == [2]
    assert b.ask(Peek(next(b.tokens), "t", 0, 0, 10)).next_offset == 3  # type: ignore[union-attr]
    assert b.group.view().queue_ends == {"t": (3, 0)}
    again = Bench(b.log)
    again.queues.rows = b.queues.rows
    again.machine.restore(b.machine.export(LOG_ID))
    assert (again.machine.begin("t", 0), again.machine.begin("t", 1)) == (2, 0)


def test_topics_change_between_messages_of_one_range() -> None:
    """A range with deletions and creations between messages is applied piece by piece, also when
    the disk is full in between."""
    b = Bench()
    b.lead(1)
    drafts = [
        control.draft(control.TopicRecord(config(queues=1)), EPOCH_MS),
        draft("a"),
        draft("b"),
        control.draft(control.TopicRecord(config(queues=1), deleted=True), EPOCH_MS),
        control.draft(control.TopicRecord(config(queues=1, incarnation=2)), EPOCH_MS),
        draft("c"),
        control.draft(control.TopicRecord(config(queues=2, incarnation=2)), EPOCH_MS),
    ]
    offsets = [0, 0, 1, 1, 2, 2, 3]
    b.replicator.propose(0, encode_entries(drafts), np.array(offsets, np.int64), b.now_ms)
    b.queues.full = True
    b.turn()
    b.queues.full = False
    b.turn()
    assert b.machine.begin("t", 0) == 2
    assert [x.queue_offset for x in b.receive()] == [2]
    replay = Bench(b.log)
    replay.replicator.commit_index = b.replicator.commit_index
    replay.turn()
    assert replay.machine.export(LOG_ID) == b.machine.export(LOG_ID)


def test_a_deleted_group_starts_over() -> None:
    """Created again, it begins at the beginning; leases of its old life are gone."""
    b = make()
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "g", max_attempts=3),)))
    b.send("a", "b")
    leases = b.receive(n=1)
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    assert b.ack(*leases) == (False,)
    assert [(x.queue_offset, x.attempt) for x in b.receive()] == [(0, 1), (1, 1)]


def test_a_group_that_was_only_used_is_deleted_once_it_is_created() -> None:
    """Before, it has no record that could be deleted. Created, it keeps its positions, and its
    deletion ends them."""
    b = make()
    b.send("a", "b")
    (lease,) = b.receive(n=1)
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    assert ("g", "t") in positions(b.machine)
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "g", max_attempts=3),)))
    assert b.ack(lease) == (True,)
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    assert ("g", "t") not in positions(b.machine) and not b.machine.groups
    assert [(x.queue_offset, x.attempt) for x in b.receive()] == [(0, 1), (1, 1)]


def test_unknown_control_record_stops_before_its_range_is_applied() -> None:
    """A newer version's log is not half understood: the error carries the exit code."""
    b = make()
    bad = control.draft(control.TermStart(1, "n1"), EPOCH_MS)
    bad = replace(bad, properties=b"TAGS\x01future\x02")
    b.replicator.propose(0, encode_entries([draft("a"), bad]), np.array([0, 1], np.int64), b.now_ms)
    index = b.machine.applied_index
    with pytest.raises(control.UnknownControlRecord) as error:
        b.turn()
    assert error.value.exit_code == 76
    assert b.machine.applied_index == index and b.queues.next_offset("t", 0) == 0


# Reading


def test_the_leader_answers_peek() -> None:
    """The range is limited to applied entries; a follower names the leader."""
    b = make()
    b.send("a", "b", "c")
    peeked = b.ask(Peek(1000, "t", 0, 1, 10))
    assert isinstance(peeked, Peeked)
    assert [decode_record(record).body for record in peeked.records] == [b"b", b"c"]
    assert (peeked.next_offset, peeked.end_offset) == (3, 3)
    assert b.ask(Peek(1001, "t", 0, 99, 10)) == Peeked((), 3, 3)
    assert b.ask(Peek(1002, "t", 0, -5, 1)).next_offset == 1  # type: ignore[union-attr]
    assert b.ask(Peek(1003, "t", 7, 0, 1)) == Refused("unknown-topic", detail="queue 7 of topic t")
    follower = Bench(b.log, node="n2")
    follower.replicator.commit_index = b.replicator.commit_index
    follower.replicator.leader = "n1"
    assert follower.ask(Peek(1000, "t", 0, 1, 10)) == Refused("not-leader", "n1")


def test_view_is_published_only_after_a_change() -> None:
    """Outsiders see leader, topics and ends; a turn in which nothing happened publishes nothing."""
    b = make()
    assert b.turn().view is None
    b.send("a", queue=1)
    view = b.output.view if b.output is not None else None
    assert (
        view is not None
        and view.queue_ends == {"t": (0, 1)}
        and view.leader == "n1"
        and view.serving
    )
    b.replicator.follow(2, None)
    assert b.turn().view is not None


def test_status_carries_the_applied_index() -> None:
    """The replicator does not know what is applied; the group does."""
    b = make()
    assert b.group.status().applied_index == b.machine.applied_index == b.log.end_index
    assert b.group.status().role is Role.LEADER


# Bounded memory


def test_acknowledged_messages_leave_no_growing_state() -> None:
    """After many messages with a long lease were acknowledged, neither rows, deadlines nor clients
    are left (I11)."""
    b = make()
    for _ in range(100):
        b.turn(*[b.produce(*["x"] * 32) for _ in range(3)])
        b.ack(*b.receive(n=96, invisible_ms=12 * 3600 * 1000), *b.receive(n=96, invisible_ms=None))
        b.ack(*b.receive(n=96, invisible_ms=None))
    clock = b.group.leader.clock
    assert (
        b.machine.delivery.in_flight == 0
        and not clock._rows
        and not clock._batches
        and not clock._clients
        and len(clock.ends) <= 1100
    )
    assert (
        len(b.group.leader._uncommitted) == 0 and len(b.group.leader.lease_server.answered) <= 1024
    )


def test_a_group_that_never_acknowledges_gets_no_new_messages_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages in flight are bounded per queue (I11); an acknowledgement makes room for a Receive
    that waits."""
    monkeypatch.setattr(picker, "IN_FLIGHT_MAX", 10)
    b = make()
    b.send(*["x"] * 30)
    leases = [*b.receive(n=5), *b.receive(n=5)]
    assert len(leases) == 10 and b.receive(n=5) == ()
    waiting = b.poll(n=5)
    b.turn(waiting)
    assert waiting.token not in b.done
    assert b.ack(*leases[:3]) == (True,) * 3
    b.turn()
    assert b.done[waiting.token].leases[0].queue_offset == 10
    assert b.machine.delivery.in_flight <= 10 + 5


def test_answered_receives_are_remembered_without_their_messages() -> None:
    """A thousand answers of up to 16 MiB each must not stay in memory, only what giving their
    leases back needs (I11)."""
    b = make()
    b.send(*["x" * 1000] * 8)
    call = b.poll(wait_ns=0)
    assert all(lease.record for lease in b.ask(call).leases)
    ((_, leases),) = b.group.leader.lease_server.answered.values()
    assert leases == tuple(("", 0, offset, leases[0][3]) for offset in range(8))
    b.turn(CancelReceive(call.token))
    assert len(b.receive()) == 8


def test_cancelled_polls_leave_no_deadlines_behind() -> None:
    """A client that polls and cancels all the time does not fill the heap of deadlines."""
    b = make()
    for _ in range(2000):
        call = b.poll(wait_ns=3600 * SECOND)
        b.turn(call, CancelReceive(call.token))
    assert len(b.group.leader.polls.deadlines) < 300


def test_a_new_leader_counts_term_starts_that_were_never_committed() -> None:
    """System topics have dense queue offsets too, across terms in which nothing was committed."""
    b = Bench()
    b.replicator.commit_at_once = False
    b.lead(1)
    other = Bench(b.log, node="n2")
    other.replicator.commit_at_once = False
    other.lead(2)
    third = Bench(b.log)
    third.lead(3)
    assert third.group.view().serving and third.queues.next_offset("rmq_sys_ledgermq_raft", 0) == 3


def test_serving_waits_for_the_term_start_itself() -> None:
    """Entries of earlier terms that are committed first do not make a leader serve."""
    b = make()
    b.replicator.commit_at_once = False
    b.turn(b.produce("a"))
    other = Bench(b.log, node="n2")
    other.replicator.commit_at_once = False
    other.lead(2)
    other.replicator.commit_index = b.log.end_index - 1
    other.turn()
    assert other.machine.applied_index == b.log.end_index - 1 and not other.group.view().serving
    other.replicator.commit_index = b.log.end_index
    other.turn()
    assert other.group.view().serving


def test_a_lease_that_is_not_committed_in_time_answers_empty_and_is_given_back() -> None:
    """The Receive waits a little longer for a lease in the log, but not forever; the message is
    released once the lease is applied."""
    b = make()
    b.send("a")
    b.replicator.commit_at_once = False
    call = b.poll(wait_ns=SECOND)
    b.turn(call)
    b.turn(at_ns=call.deadline_ns + 99 * MS)
    assert call.token not in b.done
    assert b.output is not None and b.output.wake_at_ns <= call.deadline_ns + 100 * MS
    b.turn(at_ns=call.deadline_ns + 100 * MS)
    assert b.done[call.token] == Received(())
    b.replicator.commit_at_once = True
    b.turn()
    assert [x.attempt for x in b.receive()] == [2]


def test_a_committed_lease_is_handed_out_even_after_leadership_was_lost() -> None:
    """It was committed but not applied when leadership went: the caller still gets its messages,
    with handles that are good anywhere."""
    b = make()
    b.send("a")
    call = b.poll()
    b.queues.full = True
    b.turn(call)
    b.replicator.follow(2, "n2")
    b.turn()
    assert call.token not in b.done
    b.queues.full = False
    b.replicator.lead(3)
    b.turn()
    outcome = b.done[call.token]
    assert isinstance(outcome, Received) and [x.attempt for x in outcome.leases] == [1]
    assert b.ack(*outcome.leases) == (True,)


def test_names_of_clients_leave_no_trace_at_the_picker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose turn it is, is remembered of a bounded number of consumer groups: each client of a
    broadcasting one is a group."""
    monkeypatch.setattr(picker, "TURNS_MAX", 8)
    b = Bench()
    b.lead()
    b.configure()
    for number in range(50):
        b.receive(group=f"g{number}")
    assert len(b.group.leader._picker._turns) <= 8


def test_packet_without_progress_runs_no_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the wall clock nor the waiting work is looked at, and the next turn stays where it
    was."""
    b = Bench()
    b.lead()
    b.configure()
    b.send("m")
    b.pass_time(MS)
    looked: list[int] = []
    next_times_ns = b.group.leader.next_times_ns
    monkeypatch.setattr(
        b.group.leader,
        "next_times_ns",
        lambda now_ns: looked.append(now_ns) or next_times_ns(now_ns),
    )
    after = b.group.turn(b.now_ns + MS, b.now_ms, (), [("n2", PACKET)])
    assert (looked, after.done, after.view, after.wake_at_ns) == (
        [],
        [],
        None,
        b.now_ns + MS + SECOND,
    )
    b.group.turn(b.now_ns + 2 * MS, b.now_ms)
    assert looked == [b.now_ns + 2 * MS]


def test_due_lease_is_handed_out_with_the_next_packet() -> None:
    """A lease that has ended gives its message to a waiting Receive, also if only a packet
    comes."""
    b = Bench()
    b.lead()
    b.configure()
    b.send("m")
    (lease,) = b.receive(invisible_ms=1000)
    waiting = b.poll(wait_ns=60 * SECOND)
    b.turn(waiting)
    early = b.group.turn(b.now_ns + 999 * MS, b.now_ms, (), [("n2", PACKET)])
    late = b.group.turn(b.now_ns + 1000 * MS, b.now_ms, (), [("n2", PACKET)])
    (found,) = late.done
    assert (early.done, found.token) == ([], waiting.token) and isinstance(found.outcome, Received)
    assert [again.queue_offset for again in found.outcome.leases] == [lease.queue_offset]


def test_an_acknowledgement_waits_for_the_last_entry_that_its_answer_depends_on() -> None:
    """One handle is refused because of a change in the same batch, whose record stands behind that
    of the acknowledgements: the refusal must not be told before the change is committed."""
    b = make()
    b.send("a", "b", "c")
    first, second, third = map(handle, b.ask(b.poll()).leases)
    calls = [
        Ack(next(b.tokens), [first]),
        Change(next(b.tokens), second, 5000, "c"),
        Ack(next(b.tokens), [second, third]),
    ]
    assert not b.group.leader.take(calls, None, b.now_ns)
    plan = b.group.leader.plan(b.now_ns, b.now_ms, 100, lambda topic, queue: 0)
    assert plan.awaited[0][0] == 100 and plan.awaited[1][0] == 101
    assert plan.awaited[2] == (101, calls[2].token, Acked((False, True)))
