"""FIFO consumer groups: order and lock per message group, waiting rows, repeated polls, over a
replicator in memory."""

from __future__ import annotations

from functools import partial

import pytest

from ledgermq.node.broker.calls.consumer_calls import CancelReceive, Lease, Received
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.parts.delivery import fifo
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.types import GroupConfig
from tests.node_core.core_fakes import SECOND, Bench, leading

KEY = ("g", "t", 0)


make = partial(leading, fifo=True)


@pytest.fixture
def b() -> Bench:
    return make()


def said(leases: tuple[Lease, ...]) -> str:
    return " ".join(decode_record(lease.record).body.decode() for lease in leases)


def test_a_batch_holds_a_message_group_in_order_and_locks_it(b: Bench) -> None:
    """A leased message locks the rest of its message group for all clients; another group of the
    queue is still delivered."""
    b.send_of("a", "a1", "a2", "a3")
    assert said(b.receive(n=2)) == "a1 a2"
    b.send_of("b", "b1")
    assert said(b.receive(client="other")) == "b1"
    assert b.machine.delivery.row(KEY, 2) is not None, "a3 was jumped over: it waits"
    assert said(b.receive()) == ""


def test_acknowledgement_that_unlocks_a_message_group_answers_a_poll(b: Bench) -> None:
    """No time has to pass: the Receive that waits is looked at when the lock goes."""
    b.send_of("a", "a1", "a2")
    (one,) = b.receive(n=1)
    poll = b.poll(wait_ns=20 * SECOND)
    assert b.ask(poll) is None
    b.ack(one)
    outcome = b.done[poll.token]
    assert isinstance(outcome, Received) and said(outcome.leases) == "a2"


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_unacknowledged_message_of_a_fifo_batch_blocks_later_ones(b: Bench, kept: int) -> None:
    """Whichever message of it is left, and whether it was given back or its lease ended."""
    b.send_of("a", *[f"a{i}" for i in range(6)])
    batch = b.receive(n=3)
    b.ack(*[lease for lease in batch if lease is not batch[kept]])
    assert b.change(batch[kept], 0) is not None
    (left,) = b.receive(n=3)
    assert said((left,)) == f"a{kept}" and said(b.receive(n=3)) == ""
    b.pass_time(10 * SECOND)
    (left,) = b.receive(n=3)
    assert said((left,)) == f"a{kept}"
    b.ack(left)
    assert said(b.receive(n=3)) == "a3 a4 a5"


def test_a_message_of_the_batch_that_dies_lets_the_others_through() -> None:
    """In the middle of a batch the attempts of one message are used up: the others of the batch
    come again, and then what is behind it."""
    b = make(max_attempts=2)
    b.send_of("a", "a0", "a1", "a2", "a3")
    (zero,) = b.receive(n=1)
    b.ack(zero)
    b.receive(n=1)
    b.pass_time(10 * SECOND)
    assert said(b.receive(n=1)) == "a1", "for the last time"
    b.pass_time(10 * SECOND)
    two, three = b.receive(n=2)
    assert said((two, three)) == "a2 a3", (
        "a1 is a dead letter, and the batch was wholly done with it"
    )
    assert said(b.receive(topic="%DLQ%g", group="reader")) == "a1"
    b.ack(three)
    b.pass_time(10 * SECOND)
    assert said(b.receive()) == "a2"


def test_oversized_dead_letter_blocks_its_message_group() -> None:
    """It is delivered once more, alone: what is behind it must not come with it."""
    b = make(max_attempts=1)
    b.send_of("a", "x" * 900, "a1")
    b.group.leader.dead_lettering._entry_bytes_max = 1000
    (long,) = b.receive(n=1)
    b.pass_time(10 * SECOND)
    (long,) = b.receive()
    assert said((long,)) == "x" * 900 and long.attempt == 2
    assert said(b.receive()) == ""
    b.ack(long)
    assert said(b.receive()) == "a1"


def test_filters_of_several_consumers_keep_the_batch_together(b: Bench) -> None:
    """What a filter passes over is done. The rest of the batch still comes before all others."""
    b.send_of("a", "a0", tag="X")
    b.send_of("a", "a1", tag="Y")
    b.send_of("a", "a2", "a3", tag="Y")
    assert said(b.receive(n=2, tags=("X", "Y"))) == "a0 a1"
    b.pass_time(10 * SECOND)
    (one,) = b.receive(tags=("Y",))
    assert said((one,)) == "a1" and said(b.receive(tags=("Y",))) == ""
    b.ack(one)
    assert said(b.receive(tags=("Y",))) == "a2 a3"


def test_delivery_stops_at_the_first_message_that_is_leased_still(b: Bench) -> None:
    """a1 is visible again, a2 was put off for longer: a1 comes alone, and nothing behind a2."""
    b.send_of("a", "a1", "a2", "a3")
    one, two = b.receive(n=2, invisible_ms=10_000)
    number = b.change(two, 60_000)
    b.pass_time(10 * SECOND)
    assert said(b.receive(invisible_ms=60_000)) == "a1"
    assert said(b.receive()) == ""
    assert number is not None and b.ack(two._replace(lease_number=number)) == (True,)
    assert said(b.receive()) == "", "a1 is leased again"
    assert b.ack(one) == (False,)


def test_messages_without_a_group_are_one_group_per_queue() -> None:
    """In a FIFO consumer group, messages of such a queue are delivered one by one; the other queue
    has its own order."""
    b = make(queues=2)
    b.send("x1", "x2", queue=0)
    b.send("y1", "y2", queue=1)
    assert sorted([said(b.receive(n=1)), said(b.receive(n=1))]) == ["x1", "y1"]
    assert said(b.receive(n=1)) == ""


def test_two_polls_of_one_turn_share_no_message_group(b: Bench) -> None:
    """A lease that is planned locks like one that is applied."""
    b.send_of("a", "a1", "a2")
    b.send_of("b", "b1")
    one, two = b.poll(n=1, wait_ns=0), b.poll(n=2, wait_ns=0)
    b.turn(one, two)
    outcomes = [b.done[call.token] for call in (one, two)]
    assert [said(x.leases) for x in outcomes if isinstance(x, Received)] == ["a1", "b1"]


def test_a_refused_plan_leaves_no_lock(b: Bench) -> None:
    """The log had no room for the lease: the message comes as soon as it has."""
    b.send_of("a", "a1", "a2")
    b.send_of("b", "b1")
    b.replicator.full = b.replicator.full_for_control = True
    assert said(b.receive(n=1)) == ""
    b.replicator.full = b.replicator.full_for_control = False
    b.turn()
    assert said(b.receive(n=1)) == "a1" and said(b.receive()) == "b1"


def test_backlog_of_a_locked_message_group_appends_no_rows(b: Bench) -> None:
    """Messages of a locked group at the end of the queue get no row: nothing is behind them."""
    b.send_of("a", *[f"a{i}" for i in range(100)])
    b.receive(n=1)
    end = b.log.end_index
    assert said(b.receive()) == "" and b.log.end_index == end and b.machine.delivery.in_flight == 1


def test_the_look_ahead_is_bounded(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message behind a number of locked messages is examined; after the lock ends, they are
    delivered."""
    monkeypatch.setattr("ledgermq.node.broker.parts.delivery.fifo_picker.LOOK_AHEAD", 3)
    b.send_of("a", "a1", "a2", "a3", "a4")
    b.send_of("b", "b1")
    (one,) = b.receive(n=1)
    assert said(b.receive()) == ""
    b.ack(one)
    assert said(b.receive(n=2)) == "a2 a3" and said(b.receive()) == "b1"


def test_rows_of_a_queue_are_bounded(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a number of messages leased or waiting, no new message is examined until some are
    done."""
    monkeypatch.setattr("ledgermq.node.broker.parts.delivery.fifo_picker.ROWS_MAX", 3)
    for number in range(5):
        b.send_of(f"g{number}", f"m{number}")
    leases = b.receive(n=3)
    assert said(leases) == "m0 m1 m2" and said(b.receive()) == ""
    b.ack(leases[1])
    assert said(b.receive(n=1)) == "m3"


def test_unmatched_waiting_message_is_passed_over_in_its_turn(b: Bench) -> None:
    """A waiting message that does not match is passed over for good, and so is a new one, without
    disturbing the order."""
    b.send_of("a", "a1", "a2", tag="X")
    b.send_of("a", "a3", tag="Y")
    b.send_of("b", "b1", tag="Y")
    b.send_of("a", "a4", tag="X")
    (one,) = b.receive(n=1, tags=("X",))
    assert said(b.receive(tags=("X",))) == ""
    b.ack(one)
    two, four = b.receive(tags=("X",))
    assert said((two, four)) == "a2 a4"
    b.ack(two, four)
    assert b.machine.delivery.in_flight == 0 and b.machine.delivery.cursor(KEY) == 5


@pytest.mark.parametrize("snapshot", [False, True])
def test_locks_and_attempt_ids_survive_a_failover(snapshot: bool) -> None:
    """The new leader knows waiting messages, leases and the results of attempt ids from the log."""
    b = make()
    b.send_of("a", "a1", "a2")
    b.send_of("b", "b1")
    b.receive(n=1, attempt_id="x", invisible_ms=60_000)
    (other,) = b.receive(n=1)
    new = b.successor(snapshot=snapshot)
    assert said(new.receive()) == ""
    assert said(new.receive(attempt_id="x", n=1)) == "a1"
    assert new.ack(other) == (True,)
    new.pass_time(60 * SECOND)
    (one,) = new.receive()
    assert said((one,)) == "a1"
    new.ack(one)
    assert said(new.receive()) == "a2"


def test_a_cancelled_poll_gives_its_message_group_back(b: Bench) -> None:
    """The caller leaves before its answer: the messages are delivered again, in order, before those
    behind them."""
    b.send_of("a", "a1", "a2", "a3")
    poll = b.poll(n=2)
    b.turn(poll)
    b.turn(CancelReceive(poll.token))
    leases = b.receive()
    assert said(leases) == "a1 a2"
    b.ack(*leases)
    assert said(b.receive()) == "a3"


def test_a_group_becomes_fifo_while_messages_are_in_flight() -> None:
    """What was leased before locks like anything else."""
    b = Bench()
    b.lead(1)
    b.configure("t")
    b.send_of("a", "a1", "a2")
    (one,) = b.receive(n=1)
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "g", fifo=True),)))
    assert said(b.receive()) == ""
    b.ack(one)
    assert said(b.receive()) == "a2"


def test_a_fifo_group_becomes_ordinary_while_messages_wait(b: Bench) -> None:
    """The waiting messages are delivered, once each, with attempt 1."""
    b.send_of("a", "a1", "a2")
    b.send_of("b", "b1")
    b.receive(n=1)
    assert said(b.receive(n=1)) == "b1"
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "g"),)))
    polls = [b.poll(n=1, wait_ns=0) for _ in range(2)]
    b.turn(*polls)
    leases = [x for poll in polls for x in b.done[poll.token].leases]  # type: ignore[union-attr]
    assert [(decode_record(x.record).body, x.attempt) for x in leases] == [(b"a2", 1)]


def test_names_of_passed_over_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of messages that a filter passed over do not pile up."""
    monkeypatch.setattr(fifo, "LOOK_AHEAD", 0)
    monkeypatch.setattr(fifo, "_STALE_MAX", 4)
    b = make()
    for number in range(50):
        b.send_of(f"g{number}", f"m{number}", tag="Y")
        b.receive(tags=("Aa", "X"))
        b.receive(tags=("Y",), n=1)
        b.pass_time(SECOND)
    order = b.group.leader._groups.order(KEY)
    assert len(order._names) <= len(b.machine.delivery.queues[KEY].rows) + 5
