"""Reads that must include everything acknowledged before them: which replica answers, when, and
their result after a loss of leadership."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Acked,
    Change,
    Changed,
    Forward,
    Forwarded,
    Handle,
)
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Call, Refused, Result
from ledgermq.node.broker.calls.read_calls import (
    Cold,
    Confirm,
    Confirmed,
    Peek,
    Peeked,
    Pull,
    Pulled,
)
from ledgermq.node.broker.calls.send_calls import Produce, Recall, Recalled
from ledgermq.node.broker.calls.transaction_calls import Resolve, Resolved
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.types import Draft
from ledgermq.raft.messages import LeaderContact
from tests.node_core.core_fakes import Bench

ALL = TagFilter()


def leading() -> Bench:
    bench = Bench()
    bench.lead()
    bench.configure()
    return bench


def peek(bench: Bench) -> Peek:
    return Peek(next(bench.tokens), "t", 0, 0, 10)


def found(outcome: object) -> list[bytes]:
    assert isinstance(outcome, Peeked), outcome
    return [bytes(decode_record(record).body) for record in outcome.records]


def test_read_of_a_lone_voter_is_answered_in_its_turn() -> None:
    """As in a group of one node."""
    bench = leading()
    bench.send("a")
    assert found(bench.ask(peek(bench))) == [b"a"]
    assert bench.ask(Confirm(next(bench.tokens))) == Confirmed(bench.machine.applied_index)


def test_a_majority_is_asked_once_for_all_reads_of_a_turn() -> None:
    bench = leading()
    bench.send("a")
    bench.replicator.confirms = False
    first, second = peek(bench), Confirm(next(bench.tokens))
    bench.turn(first, second)
    assert (
        first.token not in bench.done
        and second.token not in bench.done
        and len(bench.replicator.questions) == 1
    )
    bench.replicator.reads = [(bench.replicator.questions[0], bench.replicator.commit_index)]
    bench.turn()
    assert found(bench.done[first.token]) == [b"a"] and bench.done[second.token] == Confirmed(
        bench.machine.applied_index
    )


def test_a_read_waits_until_its_index_is_applied() -> None:
    """The majority may confirm an index that this replica has not applied yet."""
    bench = leading()
    bench.send("a")
    bench.replicator.confirms = False
    call = peek(bench)
    bench.turn(call)
    bench.replicator.reads = [(bench.replicator.questions[0], bench.machine.applied_index + 1)]
    bench.turn()
    assert call.token not in bench.done
    bench.send("b")
    assert found(bench.done[call.token]) == [b"a", b"b"]


@pytest.mark.parametrize("confirmed", [False, True], ids=["asked", "confirmed"])
def test_a_leader_that_is_deposed_answers_no_read(confirmed: bool) -> None:
    """Whether a majority was still being asked or had answered an index that is not applied yet:
    the next leader is to be asked."""
    bench = leading()
    bench.replicator.confirms = False
    call = peek(bench)
    bench.turn(call)
    if confirmed:
        bench.replicator.reads = [(bench.replicator.questions[0], bench.machine.applied_index + 9)]
        bench.turn()
    assert call.token not in bench.done
    bench.replicator.follow(2, "n2")
    bench.turn()
    assert bench.done[call.token] == Refused("not-leader", "n2")
    bench.replicator.reads = [(bench.replicator.questions[0], None)]
    bench.turn()


def test_a_question_that_lost_its_leader_is_refused() -> None:
    bench = leading()
    bench.replicator.confirms = False
    call = peek(bench)
    bench.turn(call)
    bench.replicator.reads = [(bench.replicator.questions[0], None)]
    bench.turn()
    assert bench.done[call.token] == Refused("not-leader", "n1")


def test_a_leader_that_has_not_opened_its_term_answers_no_read() -> None:
    """Its state may miss what an earlier leader acknowledged."""
    bench = leading()
    bench.replicator.commit_at_once = False
    bench.replicator.follow(1, None)
    bench.turn()
    bench.lead(2)
    assert not bench.group.leader.serving
    assert bench.ask(peek(bench)) == Refused("not-leader", "n1")


def test_a_full_disk_refuses_the_reads_that_would_wait_for_it() -> None:
    bench = leading()
    bench.send("a")
    bench.queues.full = True
    bench.send("b")
    call = peek(bench)
    bench.turn(call)
    assert bench.done[call.token] == Refused("disk-full")


def pull(
    bench: Bench, offset: int, *, max_age_ms: int = 1_000, bytes_behind: int = 0, queue: int = 0
) -> Pull:
    cold = Cold(max_age_ms * 1_000_000, bytes_behind)
    return Pull(next(bench.tokens), "t", queue, offset, ALL, 10, 1 << 20, bench.now_ns, cold)


def test_a_follower_answers_a_pull_that_begins_far_behind_the_end() -> None:
    """As the leader would; whatever is near the end, outside of the queue, or asked of a replica
    that is too old goes to the leader."""
    bench = leading()
    for body in "abc":
        bench.send(body)
    behind = bench.machine.applied_end_pos - int(bench.machine.units("t", 0, 1, 1)[0][0])
    bench.replicator.follow(2, "n2")
    bench.replicator.last_contact = LeaderContact(
        leader="n2",
        term=bench.machine.applied_term,
        at_ns=bench.now_ns,
        end_index=99,
        commit_index=bench.machine.applied_index,
    )
    bench.turn()
    found = bench.ask(pull(bench, 0))
    assert isinstance(found, Pulled) and found.offsets == (0, 1, 2) and found.next_offset == 3
    assert isinstance(bench.ask(pull(bench, 0, bytes_behind=behind)), Pulled)
    refused = Refused("not-leader", "n2")
    assert bench.ask(pull(bench, 1, bytes_behind=behind)) == refused, "not far enough behind"
    for offset, queue in ((3, 0), (-1, 0), (99, 0), (0, 99)):
        assert bench.ask(pull(bench, offset, queue=queue)) == refused
    bench.now_ns += 2_000_000_000
    assert bench.ask(pull(bench, 0)) == refused, "too old"


STALE = Handle("g", "t", 0, 0, 7, 1)
"""A lease that this replica does not know: its successor may have given it."""
DERIVED: dict[str, tuple[Callable[[int], Call], Result | Refused]] = {
    "acknowledgement": (lambda token: Ack(token, [STALE]), Acked((False,))),
    "change": (lambda token: Change(token, STALE, 1000, "c"), Changed(None)),
    "forward": (lambda token: Forward(token, STALE), Forwarded(True)),
    "recall": (lambda token: Recall(token, 1, 1, 1), Recalled(False)),
    "resolve": (lambda token: Resolve(token, 0, "t", "m", True), Resolved(False)),
    "configuration": (lambda token: Configure(token, topics=()), Configured()),
    "unknown topic": (
        lambda token: Produce(token, [Draft("u", 0, b"", b"", 0)]),
        Refused("unknown-topic", detail="queue 0 of topic u"),
    ),
}


@pytest.mark.parametrize("what", DERIVED)
def test_an_answer_derived_from_the_state_is_that_of_a_leader_that_still_leads(what: str) -> None:
    """A deposed leader that does not know it would refuse what its successor has confirmed. It is
    asked to confirm its leadership first."""
    make, told = DERIVED[what]
    bench = leading()
    assert bench.ask(make(next(bench.tokens))) == told, "confirmed at once"
    bench.replicator.confirms = False
    token = next(bench.tokens)
    assert bench.ask(make(token)) is None
    bench.replicator.reads = [(question, None) for question in bench.replicator.questions]
    bench.replicator.follow(2, "n2")
    bench.turn()
    outcome = bench.done[token]
    assert isinstance(outcome, Refused) and outcome.reason == "not-leader"
