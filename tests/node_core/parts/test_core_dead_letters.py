"""Dead letters: after the last attempt, when a consumer gives up, and once only, whatever becomes
of the leader."""

from __future__ import annotations

from functools import partial

import pytest

from ledgermq.node.broker.calls.consumer_calls import Forward, Forwarded
from ledgermq.node.broker.calls.operator_calls import (
    LettersSettled,
    Reset,
    SettleLetters,
)
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.parts.dead_letters import dead_letters
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode, parse
from ledgermq.proto.names import member_group
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind
from tests.node_core.core_fakes import EPOCH_MS, SECOND, Bench, handle, leading

DLQ = "%DLQ%g"
make = partial(leading, max_attempts=2)


def letters(b: Bench) -> list[str]:
    """Bodies in the dead-letter topic, as a consumer group of their own finds them."""
    leases = b.receive(topic=DLQ, group="reader") if DLQ in b.machine.topics else ()
    assert all(lease.attempt == 1 for lease in leases)
    b.ack(*leases, topic=DLQ, group="reader")
    return [decode_record(lease.record).body.decode() for lease in leases]


def exhaust(b: Bench, times: int = 2) -> None:
    for _ in range(times):
        b.receive(invisible_ms=1000)
        b.pass_time(SECOND)


def test_after_the_last_attempt_the_copy_replaces_the_delivery() -> None:
    """Body, keys, tag and properties as they were; where it came from is added; the group is
    through with the message."""
    b = make()
    fields = Fields(
        message_id="id-1",
        tag="T",
        keys=("k1", "k 2"),
        message_group="mg",
        user={"a": "1", "DLQ_ORIGIN_TOPIC": "mine"},
    )
    b.ask(Produce(next(b.tokens), [Draft("t", 0, b"body", encode(fields), EPOCH_MS - 5, 84)]))
    index = b.log.end_index
    exhaust(b)
    (last,) = [b.machine.delivery.row(("g", "t", 0), 0)]
    assert last is not None and not b.receive()
    assert b.machine.topics[DLQ] == TopicConfig(
        "", DLQ, TopicKind.NORMAL, 1, Permission.READ_WRITE, 0
    )
    (lease,) = b.receive(topic=DLQ, group="reader", tags=("T",))
    record = decode_record(lease.record)
    stored = parse(record.properties)
    assert (record.body, record.born_ms, record.queue_offset) == (b"body", EPOCH_MS - 5, 0)
    assert stored["DLQ_ORIGIN_TOPIC"] == "t" and stored["DLQ_ORIGIN_MESSAGE_ID"] == "id-1"
    assert (
        stored["__LMQ.ORIGIN"] == f"dlq:g:t:0:0:{last.lease}"
        and int.from_bytes(lease.record[76:84], "big") == index
    )
    assert (
        stored["UNIQ_KEY"] == "id-1"
        and stored["a"] == "1"
        and stored["__LMQ.U.DLQ_ORIGIN_TOPIC"] == "mine"
    )
    assert b.machine.delivery.in_flight == 1, "the reader's"
    b.pass_time(100 * SECOND)
    assert not b.receive() and b.group.statistics()["dead_lettered"] == 1


def test_a_dead_letter_of_a_compressed_body_says_so() -> None:
    """A native message's body stays as its producer compressed it, and so does the record's word
    for that."""
    b = make()
    b.ask(
        Produce(
            next(b.tokens),
            [Draft("t", 0, b"packed", encode(Fields(message_id="id-1")), EPOCH_MS, sysflag=0x201)],
        )
    )
    exhaust(b)
    assert not b.receive()
    (lease,) = b.receive(topic=DLQ, group="reader")
    record = decode_record(lease.record)
    assert (record.body, record.sysflag) == (b"packed", 0x201)


def test_a_message_that_a_filter_no_longer_wants_is_no_dead_letter() -> None:
    """What does not match is consumed silently, on its last attempt too."""
    b = make()
    b.send("a", tag="X")
    exhaust(b)
    assert not b.receive(tags=("Y",)) and letters(b) == []
    assert b.machine.delivery.in_flight == 0


def test_forwarding_waits_for_an_uncommitted_acknowledgement() -> None:
    """An acknowledgement that is not committed yet decides: no copy beside it."""
    b = make()
    b.send("a")
    (lease,) = b.receive()
    b.replicator.commit_at_once = False
    b.ack_only(lease)
    call = Forward(next(b.tokens), handle(lease))
    assert b.ask(call) is None
    b.replicator.commit_index = b.log.end_index
    b.turn()
    b.turn()
    assert b.done[call.token] == Forwarded(True) and letters(b) == []


def test_a_reset_brings_a_dead_letter_back_once_more() -> None:
    """Read again from the beginning, the message has all its attempts, and is given up again after
    them."""
    b = make()
    b.send("a")
    exhaust(b)
    b.receive()
    b.ask(Reset(next(b.tokens), "g", "t", [(0, 0)]))
    exhaust(b)
    assert not b.receive() and letters(b) == ["a", "a"]


@pytest.mark.parametrize("tail", ["kept", "lost"])
def test_failover_keeps_exactly_one_dead_letter_copy(tail: str) -> None:
    """The copy is the mark: with it in the log the message is done, without it the next leader
    writes one."""
    b = make()
    b.send("a")
    exhaust(b)
    commit = b.replicator.commit_index
    b.replicator.commit_at_once = False
    b.turn(b.poll())
    assert b.log.end_index > commit, "the dead letter is in the log"
    b.now_ns += 100 * SECOND
    new = b.successor(end=commit if tail == "lost" else None)
    new.pass_time(100 * SECOND)
    assert not new.receive() and not new.receive()
    assert letters(new) == ["a"]


def test_on_a_full_disk_exhausted_messages_stay() -> None:
    """A dead letter is as large as a message: it waits for room like one; nothing is delivered
    beyond its attempts."""
    b = make()
    b.send("a")
    exhaust(b)
    b.replicator.full = True
    assert not b.receive()
    assert b.done and b.machine.delivery.in_flight == 1
    b.replicator.full = False
    assert not b.receive() and letters(b) == ["a"]


def test_a_copy_that_fits_no_file_is_delivered_instead() -> None:
    """Attempts continue instead, and nothing is lost; a consumer that gives up such a message gets
    an error with the reason."""
    b = make(fifo=True)
    b.send_of("x", "x1", "x2")
    b.group.leader.dead_lettering._entry_bytes_max = 100
    exhaust(b)
    leases = b.receive()
    assert [(decode_record(x.record).body, x.attempt) for x in leases] == [(b"x1", 3), (b"x2", 3)]
    outcome = b.ask(Forward(next(b.tokens), handle(leases[0])))
    assert isinstance(outcome, Refused) and outcome.reason == "too-large"


def test_a_crowded_property_string_still_makes_a_dead_letter() -> None:
    """What only repeats or accompanies makes room for where the message came from."""
    b = make()
    fields = Fields(message_id="id", keys=("k k", "x" * 16_000), trace_context="t" * 500)
    b.ask(Produce(next(b.tokens), [Draft("t", 0, b"a", encode(fields), EPOCH_MS)]))
    exhaust(b)
    assert not b.receive() and letters(b) == ["a"]


def test_names_of_dead_letter_topics_keep_the_namespace() -> None:
    """The namespace stays in front: a stored name is namespace@name."""
    assert (
        dead_letters.dead_letter_topic("ns@g") == "ns@%DLQ%g"
        and dead_letters.dead_letter_topic("g") == DLQ
    )
    assert dead_letters.topic_config("ns@%DLQ%g").namespace == "ns"


@pytest.mark.parametrize("member", [False, True], ids=["group", "member of a broadcasting group"])
@pytest.mark.parametrize("fifo", [False, True], ids=["any order", "FIFO"])
@pytest.mark.parametrize("full", [False, True], ids=["room", "full disk"])
def test_a_group_that_gives_up_its_own_dead_letter_leaves_it_where_it_lies(
    member: bool, fifo: bool, full: bool
) -> None:
    """A copy would be the next one to fail: the topic would grow without end. Its attempts are
    those of the group, and need no room."""
    b = make(fifo=fifo)
    group = member_group("g", "c") if member else "g"
    b.send("a", "b")
    exhaust(b)
    assert not b.receive() and b.machine.end(DLQ, 0) == 2
    if member:
        b.receive(topic=DLQ, group=group)
        b.ask(Reset(next(b.tokens), group, DLQ, ((0, 0),)))
    b.replicator.full = full
    for attempt in (1, 2):
        assert [
            lease.attempt for lease in b.receive(topic=DLQ, group=group, invisible_ms=1000)
        ] == [attempt, attempt]
        b.pass_time(SECOND)
    for _ in range(3):
        assert not b.receive(topic=DLQ, group=group)
        b.pass_time(SECOND)
    assert b.machine.end(DLQ, 0) == 2 and b.machine.delivery.in_flight == 0
    assert b.group.statistics()["letters_ended"] == 2 and b.group.statistics()["dead_lettered"] == 2
    assert b.group.statistics()["passed_over"] == 0, "that counts what a filter skipped"
    assert [dead_letters.state_of(b.machine, DLQ, offset) for offset in (0, 1)] == [
        dead_letters.WAITING
    ] * 2


def test_a_client_that_forwards_its_own_dead_letter_ends_it_there() -> None:
    """Official push consumers of FIFO groups forward what fails: yes, without a copy, also on a
    full disk and with the lease ended."""
    b = make(max_attempts=17)
    b.send("a", "b")
    for lease in b.receive():
        assert b.forward(lease)
    b.replicator.full = True
    late, now = b.receive(topic=DLQ, invisible_ms=1000)
    assert b.forward(now, topic=DLQ) and b.forward(now, topic=DLQ)
    b.pass_time(SECOND)
    assert b.forward(late, topic=DLQ)
    assert b.ack(late, now, topic=DLQ) == (False, False), "an acknowledgement did not end them"
    assert (
        not b.receive(topic=DLQ)
        and b.machine.end(DLQ, 0) == 2
        and b.machine.delivery.in_flight == 0
    )
    assert b.group.statistics()["letters_ended"] == 2


def test_another_group_gives_a_dead_letter_up_into_its_own_topic() -> None:
    """Only the group's own topic could grow by itself; whoever reads another group's has letters of
    its own."""
    b = make(max_attempts=17)
    b.send("a")
    assert b.forward(b.receive()[0])
    (lease,) = b.receive(topic=DLQ, group="h")
    assert b.forward(lease, group="h", topic=DLQ)
    assert (b.machine.end(DLQ, 0), b.machine.end("%DLQ%h", 0)) == (1, 1)


def test_a_dead_letter_that_ended_in_its_topic_can_be_resent() -> None:
    """Its group gets the original again, and what fails then is another letter."""
    b = make(max_attempts=1)
    b.send("a")
    assert b.forward(b.receive()[0]) and b.forward(b.receive(topic=DLQ)[0], topic=DLQ)
    assert b.ask(SettleLetters(next(b.tokens), DLQ, (0,), "resent")) == LettersSettled(("resent",))
    (again,) = b.receive()
    assert again.attempt == 1 and b.forward(again)
    assert b.machine.end(DLQ, 0) == 2


def test_many_dead_letters_come_over_several_turns() -> None:
    """A pick gives up a bounded number; all are given up in the end, in order."""
    b = make(max_attempts=1)
    b.send(*[f"m{i}" for i in range(200)])
    while b.receive(invisible_ms=1000):
        pass
    b.pass_time(SECOND)
    assert not b.receive()
    for _ in range(10):
        b.turn(b.poll(wait_ns=SECOND))
    found: list[str] = []
    while chunk := letters(b):
        found += chunk
    assert found == [f"m{i}" for i in range(200)]
