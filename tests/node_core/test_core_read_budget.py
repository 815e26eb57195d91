"""A group reads messages for Receives and pulls only while the budget admits them: the others wait,
and nothing is leased for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ledgermq.node.broker.calls.consumer_calls import Receive, Received
from ledgermq.node.broker.calls.outcome import UNREAD
from ledgermq.node.broker.calls.read_calls import Pull, Pulled
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.ports import PeerPacket
from tests.node_core.core_fakes import SECOND, Bench
from tests.node_core.parts import test_core_lite as lite

BODY = "x" * 1000


@dataclass
class Budget:
    """A budget of a number of bytes, and calls that it does not admit."""

    left: int
    version: int = 0
    barred: set[int] = field(default_factory=set)
    taken: dict[int, int] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.left > 0

    @property
    def crowded(self) -> bool:
        return bool(self.barred)

    def admits(self, token: int) -> bool:
        return self.open and token not in self.barred

    def take(self, token: int, size: int) -> None:
        self.left -= size
        self.taken[token] = self.taken.get(token, 0) + size

    def give_back(self, size: int) -> None:
        self.left += size
        self.version += 1


def leading(budget: Budget) -> Bench:
    bench = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), budget=budget))
    bench.lead()
    bench.configure()
    for _ in range(40):
        bench.send(BODY)
    return bench


def pull(bench: Bench, offset: int = 0, patience_ns: int = 0) -> Pull:
    until_ns = bench.now_ns + 5 * SECOND
    return Pull(
        next(bench.tokens),
        "t",
        0,
        offset,
        TagFilter(),
        4,
        1 << 20,
        until_ns,
        patience_ns=patience_ns,
    )


def is_calm(bench: Bench) -> bool:
    """Whether the group asks for no turn at once, so that a waiting call does not make it spin."""
    assert bench.output is not None
    return bench.output.wake_at_ns > bench.now_ns


def test_pulls_are_answered_one_after_the_other_as_room_comes() -> None:
    bench = leading(budget := Budget(1))
    pulls = [pull(bench) for _ in range(50)]
    bench.turn(*pulls)
    assert [call.token for call in pulls if call.token in bench.done] == [pulls[0].token]
    assert (
        budget.taken.keys() == {pulls[0].token}
        and budget.taken[pulls[0].token] > 4000
        and is_calm(bench)
    )
    for answered, call in enumerate(pulls[1:], 2):
        bench.turn()
        assert len(budget.taken) == answered - 1, "a turn for the time changes nothing"
        budget.give_back(1 - budget.left)
        bench.turn()
        outcome = bench.done[call.token]
        assert isinstance(outcome, Pulled) and len(outcome.records) == 4
        assert len(budget.taken) == answered and is_calm(bench)


def test_room_is_noticed_in_a_turn_for_a_packet() -> None:
    """The turn that the budget asks for may come together with packets, which alone would decide
    nothing."""
    bench = leading(budget := Budget(0))
    call = pull(bench)
    bench.turn(call)
    budget.give_back(1)
    bench.took(bench.group.turn(bench.now_ns, bench.now_ms, (), [("n2", PeerPacket(b""))]))
    assert isinstance(bench.done[call.token], Pulled)


def test_receives_wait_without_a_lease() -> None:
    bench = leading(budget := Budget(0))
    polls = [bench.poll(n=4) for _ in range(20)]
    bench.turn(*polls)
    end = bench.replicator.end_index
    assert not bench.done.keys() & {poll.token for poll in polls} and is_calm(bench)
    bench.turn()
    assert bench.replicator.end_index == end, "nothing was leased"
    budget.give_back(1)
    bench.turn()
    (first,) = (poll.token for poll in polls if poll.token in bench.done)
    outcome = bench.done[first]
    assert first == polls[0].token and isinstance(outcome, Received) and len(outcome.leases) == 4
    assert budget.taken[first] == sum(len(lease.record) for lease in outcome.leases) and is_calm(
        bench
    )


def test_a_full_connection_does_not_keep_others_waiting() -> None:
    bench = leading(budget := Budget(1 << 30))
    pulls, polls = [pull(bench) for _ in range(3)], [bench.poll(n=4) for _ in range(3)]
    budget.barred = {pulls[0].token, polls[0].token}
    bench.turn(*pulls, *polls)
    assert {
        call.token for call in (*pulls, *polls)
    } - bench.done.keys() == budget.barred and is_calm(bench)
    budget.barred.clear()
    budget.version += 1
    bench.turn()
    found = bench.done[polls[0].token]
    assert (
        isinstance(bench.done[pulls[0].token], Pulled)
        and isinstance(found, Received)
        and len(found.leases) == 4
    )


def test_read_without_budget_until_its_deadline_is_refused() -> None:
    bench = leading(Budget(0))
    waiting, polled, nothing = pull(bench), bench.poll(), pull(bench, offset=40)
    bench.turn(waiting, polled, nothing)
    bench.pass_time(6 * SECOND)
    assert bench.done[waiting.token] == bench.done[polled.token] == UNREAD
    # Whether there was something behind the end was not looked at either.
    assert bench.done[nothing.token] == UNREAD


def test_read_without_budget_waits_until_the_caller_deadline() -> None:
    """So a read that does not wait for messages may still wait for room. Nothing else waits
    longer."""
    bench = leading(budget := Budget(0))
    waiting, empty = (
        pull(bench, patience_ns=10 * SECOND),
        pull(bench, offset=40, patience_ns=10 * SECOND),
    )
    polled = replace(bench.poll(), patience_ns=10 * SECOND)
    bench.turn(waiting, polled)
    bench.pass_time(6 * SECOND)
    assert not bench.done.keys() & {waiting.token, polled.token} and is_calm(bench)
    budget.give_back(1 << 30)
    bench.turn(empty)
    assert isinstance(bench.done[waiting.token], Pulled) and isinstance(
        bench.done[polled.token], Received
    )
    again = replace(bench.poll(group="h"), patience_ns=10 * SECOND)
    budget.left = 0
    bench.turn(again)
    bench.pass_time(6 * SECOND)
    assert bench.done[empty.token] == Pulled((), (), 40) and again.token not in bench.done
    bench.pass_time(10 * SECOND)
    assert bench.done[again.token] == UNREAD and not bench.group.leader.polls.deadlines


def test_queue_found_empty_is_answered_empty_without_budget() -> None:
    bench = leading(budget := Budget(1 << 30))
    assert len(bench.receive(n=40)) == 40
    call, read = bench.poll(), pull(bench, offset=40)
    bench.turn(call, read)
    budget.left = 0
    bench.pass_time(6 * SECOND)
    assert bench.done[call.token] == Received(()) and bench.done[read.token] == Pulled((), (), 40)


def test_a_receive_of_lite_topics_waits_too() -> None:
    b = lite.make(budget=(budget := Budget(0)))
    lite.sync(b, "set", "a")
    lite.send(b, "a", BODY)
    call = Receive(
        next(b.tokens), "g", "L", "c", TagFilter(), 32, 10_000, b.now_ns + 5 * SECOND, lite=True
    )
    end = b.replicator.end_index
    b.turn(call)
    assert call.token not in b.done and b.replicator.end_index == end and is_calm(b)
    budget.give_back(1)
    b.turn()
    outcome = b.done[call.token]
    assert (
        isinstance(outcome, Received)
        and budget.taken[call.token] == sum(len(lease.record) for lease in outcome.leases) > 1000
    )
