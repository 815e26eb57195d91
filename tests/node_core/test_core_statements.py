"""Statements of the client contract's checklist that are rules of delivery, on exact virtual time.
The number is in the name."""

from __future__ import annotations

import pytest

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
    CancelReceive,
    ClientGone,
    ClientsAlive,
    Received,
)
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.proto.entries.message_record import decode_record
from tests.node_core.core_fakes import MS, SECOND, Bench, handle

MINUTE = 60 * SECOND


@pytest.fixture
def bench() -> Bench:
    b = Bench()
    b.lead(1)
    b.configure("t", queues=2)
    return b


def bodies(bench: Bench, leases: tuple[object, ...]) -> list[tuple[int, int]]:
    return [(lease.queue, lease.queue_offset) for lease in leases]  # type: ignore[attr-defined]


def test_statement_042_an_empty_receive_is_answered_at_its_deadline_not_earlier(
    bench: Bench,
) -> None:
    """A Receive on an empty topic waits exactly as long as it may."""
    call = bench.poll(wait_ns=5 * SECOND)
    assert bench.ask(call) is None
    assert bench.output is not None and bench.output.wake_at_ns <= call.deadline_ns
    bench.turn(at_ns=call.deadline_ns - 1)
    assert call.token not in bench.done
    bench.turn(at_ns=call.deadline_ns)
    assert bench.done[call.token] == Received(())


def test_statement_051_a_redelivery_the_new_filter_does_not_want_is_consumed_too(
    bench: Bench,
) -> None:
    """The filter of the Receive at hand counts, for redeliveries as well."""
    bench.send("1", tag="BB")
    bench.receive(invisible_ms=1000)
    bench.pass_time(SECOND)
    assert bench.receive(tags=("Aa",)) == ()
    bench.pass_time(MINUTE)
    assert bench.receive() == ()
    assert bench.machine.delivery.in_flight == 0


def test_statement_051_filter_without_matches_consumes_while_it_waits(
    bench: Bench,
) -> None:
    """Many messages without a match are passed over, in several scans, before the Receive is
    answered empty."""
    for _ in range(3):
        bench.turn(*[bench.produce(*["x"] * 1000, tag="C") for _ in range(5)])
    assert bench.receive(tags=("Aa",)) == ()
    assert bench.receive() == ()
    assert bench.machine.delivery.cursor(("g", "t", 0)) == 15_000


@pytest.mark.parametrize("auto", [True, False])
def test_statement_055_a_lease_under_way_for_a_cancelled_receive_is_given_back(
    bench: Bench, auto: bool
) -> None:
    """The lease was in the log already: as soon as it is applied, the message is visible again."""
    bench.send("a")
    bench.replicator.commit_at_once = False
    call = bench.poll(invisible_ms=None if auto else 30_000)
    bench.ask(call)
    bench.turn(CancelReceive(call.token))
    assert bench.done[call.token] == Received(())
    bench.replicator.commit_at_once = True
    bench.turn()
    (lease,) = bench.receive()
    assert lease.attempt == 2


def test_statement_055_a_lease_answered_to_a_dead_caller_is_given_back(bench: Bench) -> None:
    """The answer was on its way when the caller went: what it leased is visible at once."""
    bench.send("a")
    call = bench.poll()
    outcome = bench.ask(call)
    assert isinstance(outcome, Received) and len(outcome.leases) == 1
    assert bench.receive() == ()
    bench.turn(CancelReceive(call.token))
    (again,) = bench.receive()
    assert again.attempt == 2
    assert bench.ack(*outcome.leases) == (False,)


@pytest.mark.parametrize("what", ["group", "topic", "queue", "offset", "number"])
def test_statement_062_handle_with_a_wrong_part_is_refused(bench: Bench, what: str) -> None:
    """Any part of a handle that does not fit makes it invalid."""
    bench.send("a")
    (lease,) = bench.receive()
    good = handle(lease)
    parts = {"group": "x", "topic": "x", "queue": 1, "offset": 7, "number": 1}
    names = {"queue": "queue", "offset": "queue_offset", "number": "lease_number"}
    outcome = bench.ask(
        Ack(next(bench.tokens), [good._replace(**{names.get(what, what): parts[what]})])
    )
    assert outcome == Acked((False,))
    assert bench.ack(lease) == (True,)


def test_statement_064_a_change_to_zero_makes_it_visible_at_once(bench: Bench) -> None:
    """The same moment, attempt + 1; the handle of the change itself is already over."""
    bench.send("a")
    (lease,) = bench.receive()
    waiting = bench.poll()
    bench.ask(waiting)
    number = bench.change(lease, 0)
    assert number is not None
    outcome = bench.done[waiting.token]
    assert isinstance(outcome, Received) and [x.attempt for x in outcome.leases] == [2]


def test_statement_071_an_auto_renewed_lease_ends_at_the_cap(bench: Bench) -> None:
    """Three hours after delivery the message is released, however alive the client is."""
    bench.send("a")
    (lease,) = bench.receive(invisible_ms=None)
    start = bench.now_ns
    while bench.now_ns < start + 3 * 3600 * SECOND - 60 * SECOND:
        bench.pass_time(60 * SECOND)
        bench.turn(ClientsAlive(frozenset({"c"}), bench.now_ns))
    bench.turn(at_ns=start + 3 * 3600 * SECOND - 1)
    assert bench.receive(client="other") == ()
    bench.turn(at_ns=start + 3 * 3600 * SECOND)
    assert bench.ack(lease) == (False,)
    assert [x.attempt for x in bench.receive(client="other")] == [2]


def test_statement_072_a_killed_client_loses_its_messages_within_the_liveness_limit(
    bench: Bench,
) -> None:
    """65 s after the last sign of life, exactly, another member gets them with attempt 2; a late
    sign of life changes nothing."""
    bench.send("a")
    (lease,) = bench.receive(invisible_ms=None)
    bench.pass_time(30 * SECOND)
    bench.turn(ClientsAlive(frozenset({"c"}), bench.now_ns - 5 * SECOND))
    last = bench.now_ns - 5 * SECOND
    waiting = bench.poll(client="other", wait_ns=100 * SECOND)
    bench.ask(waiting)
    bench.turn(at_ns=last + 65 * SECOND - 1)
    assert waiting.token not in bench.done
    bench.turn(ClientsAlive(frozenset({"c"}), last + 65 * SECOND), at_ns=last + 65 * SECOND)
    outcome = bench.done[waiting.token]
    assert isinstance(outcome, Received) and [x.attempt for x in outcome.leases] == [2]
    assert bench.ack(lease) == (False,)


def test_statement_072_terminated_client_returns_its_messages_after_a_second(
    bench: Bench,
) -> None:
    """Its waiting Receive ends too, and a client of the same name that comes back does not revive
    the old leases."""
    bench.send("a")
    bench.receive(invisible_ms=None)
    waiting = bench.poll(invisible_ms=None)
    bench.ask(waiting)
    bench.turn(ClientGone("c", bench.now_ns))
    assert bench.done[waiting.token] == Received(())
    bench.turn(ClientsAlive(frozenset({"c"}), bench.now_ns))
    bench.pass_time(SECOND - 1)
    assert bench.receive(client="other") == ()
    bench.pass_time(1)
    assert len(bench.receive(client="other")) == 1


def test_statement_072_fixed_leases_outlive_their_client(bench: Bench) -> None:
    """A simple consumer's invisible time is fixed: the end of the client does not shorten it."""
    bench.send("a")
    bench.receive(invisible_ms=30_000)
    bench.turn(ClientGone("c", bench.now_ns))
    bench.pass_time(30 * SECOND - 1)
    assert bench.receive() == ()


def test_statement_074_a_backlog_comes_completely_across_restarts(bench: Bench) -> None:
    """A late subscriber gets everything, though the leader changes in the middle."""
    for i in range(40):
        bench.send(*[f"{i}-{j}" for j in range(5)], queue=i % 2)
    seen: set[tuple[int, int]] = set()
    for term in range(2, 6):
        for _ in range(2):
            leases = bench.receive(n=20)
            assert bench.ack(*leases) == (True,) * 20
            seen |= set(bodies(bench, leases))
        bench.now_ns += SECOND
        bench = bench.successor(term)
    while leases := bench.receive():
        bench.ack(*leases)
        seen |= set(bodies(bench, leases))
    assert len(seen) == 200


def test_failover_handles_survive_and_get_the_full_time_again(bench: Bench) -> None:
    """A handle of the old leader works with the new one; a lease counts from when the new leader
    began to serve."""
    bench.send("a", "b", "c")
    one, two, three = bench.receive(invisible_ms=10_000)
    bench.now_ns += 9 * SECOND
    other = bench.successor()
    assert other.ack(one) == (True,)
    other.pass_time(10 * SECOND - 1)
    assert other.ack(two) == (True,)
    assert other.receive() == ()
    other.pass_time(1)
    assert other.ack(three) == (False,)
    assert [x.attempt for x in other.receive()] == [2]


def test_failover_auto_renewed_leases_get_their_grace(bench: Bench) -> None:
    """The new leader has no contact with clients yet: it waits 65 s before it considers a client
    dead."""
    bench.send("a")
    bench.receive(invisible_ms=None)
    bench.now_ns += 60 * MINUTE
    other = bench.successor()
    other.pass_time(65 * SECOND - 1)
    assert other.receive(client="other") == ()
    other.pass_time(1)
    assert len(other.receive(client="other")) == 1


def test_failover_renews_only_leases_of_living_sessions(bench: Bench) -> None:
    """Leases of a node that died, and of a session that ended because its answer was lost, are not
    renewed, though their client lives."""
    bench.send("a", "b", "c")
    for session in ("c via n1/1", "c via n2/1", "c via n2/1.1"):
        assert len(bench.receive(client=session, invisible_ms=None, n=1)) == 1
    other = Bench(bench.log, node="n3")
    other.now_ns = bench.now_ns + MINUTE
    other.replicator.commit_index = bench.replicator.commit_index
    other.lead(2)
    for _ in range(13):
        assert other.receive(client="other") == ()
        other.pass_time(5 * SECOND)
        other.turn(ClientsAlive(frozenset({"c via n2/1.1"}), other.now_ns))
    assert [
        decode_record(lease.record).body
        for lease in other.receive(client="other", invisible_ms=600_000)
    ] == [b"a", b"b"]
    other.pass_time(60 * SECOND)
    assert other.receive(client="other") == ()


def test_handover_time_is_added_to_every_lease_but_not_to_zero() -> None:
    """What a lease needs to reach its consumer never shortens the invisible time the consumer
    sees."""
    bench = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=20 * MS)))
    bench.lead(1)
    bench.configure("t")
    bench.send("a")
    (lease,) = bench.receive(invisible_ms=1000)
    bench.pass_time(SECOND + 20 * MS - 1)
    assert bench.receive() == ()
    assert bench.change(lease, 0) is not None
    assert len(bench.receive()) == 1
