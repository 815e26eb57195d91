"""Settling dead letters: each is resent at most once, to its consumer group only, whichever leader
fails; a purged one never."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.calls.consumer_calls import Lease
from ledgermq.node.broker.calls.operator_calls import (
    LETTERS_MAX,
    Configure,
    LettersSettled,
    Reset,
    SettleLetters,
)
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.parts.dead_letters.dead_letters import place_of, state_of
from ledgermq.node.broker.parts.dead_letters.letters import Letters
from ledgermq.node.broker.parts.delivery.delivery import Delivery
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.names import member_group
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft, GroupConfig
from tests.node_core.core_fakes import EPOCH_MS, SECOND, Bench, leading

DLQ = "%DLQ%g"
make = partial(leading, max_attempts=1)


def bury(b: Bench, *bodies: str) -> None:
    """Make dead letters of new messages."""
    b.send(*bodies)
    fail(b)


def fail(b: Bench) -> None:
    """Receive everything, and give it up."""
    for lease in b.receive():
        assert b.forward(lease)


def settle(b: Bench, *offsets: int, how: str = "resent", user: str = "") -> tuple[str, ...]:
    outcome = b.ask(SettleLetters(next(b.tokens), DLQ, offsets, how, user))
    assert isinstance(outcome, LettersSettled), outcome
    return outcome.states


def bodies(leases: tuple[Lease, ...]) -> list[str]:
    return [decode_record(lease.record).body.decode() for lease in leases]


def got(b: Bench, group: str = "g") -> list[str]:
    """Receive everything, and acknowledge it."""
    leases = b.receive(group=group)
    b.ack(*leases, group=group)
    return bodies(leases)


def records(b: Bench) -> list[control.LettersRecord]:
    found = []
    for entries in b.log.ranges:
        for at, start in enumerate(entries.starts.tolist()):
            record = decode_record(bytes(entries.data[start + 48 : start + int(entries.sizes[at])]))
            if b"letters" in bytes(record.properties):
                decoded = control.decode("letters", record.body)
                assert isinstance(decoded, control.LettersRecord)
                found.append(decoded)
    return found


def test_a_resent_letter_is_delivered_again_to_its_group_with_all_its_attempts() -> None:
    """The original itself: same place, no copy, and attempt 1."""
    b = make()
    bury(b, "a", "b")
    assert got(b, group="other") == ["a", "b"]
    end = b.machine.end("t", 0)
    assert settle(b, 0, user="me") == ("resent",)
    (lease,) = b.receive()
    assert (bodies((lease,)), lease.queue_offset, lease.attempt) == (["a"], 0, 1)
    assert b.ack(lease) == (True,) and not b.receive() and not b.receive(group="other")
    assert b.machine.end("t", 0) == end and b.machine.delivery.in_flight == 0
    assert records(b) == [control.LettersRecord(DLQ, "resent", (0,), (("g", "t", 0, 0),), "me")]
    assert b.group.statistics()["letters_resent"] == 1


def test_it_wakes_a_receive_that_waits() -> None:
    """No consumer has to ask again."""
    b = make()
    bury(b, "a")
    call = b.poll(wait_ns=5 * SECOND)
    b.turn(call)
    assert call.token not in b.done
    settle(b, 0)
    b.turn()
    assert bodies(b.done[call.token].leases) == ["a"]  # type: ignore[union-attr]


def test_a_settled_letter_stays_as_it_is() -> None:
    """Resent twice is once; a resent one is not purged, a purged one not resent; and the answer
    says so."""
    b = make()
    bury(b, "a", "b", "c")
    assert settle(b, 0, 0, 1) == ("resent", "resent", "resent")
    assert settle(b, 2, how="purged") == ("purged",)
    before = b.log.end_index
    assert settle(b, 0, 1, 2, 3, -1) == ("resent", "resent", "purged", "gone", "gone")
    assert settle(b, 0, 2, how="purged") == ("resent", "purged")
    assert b.log.end_index == before, "nothing was written"
    assert got(b) == ["a", "b"] and got(b) == []


def test_a_message_that_fails_again_is_another_letter() -> None:
    """It has all its attempts again, and its new letter can be resent."""
    b = make()
    bury(b, "a")
    settle(b, 0)
    fail(b)
    assert b.machine.end(DLQ, 0) == 2
    assert settle(b, 0, 1) == ("resent", "resent") and got(b) == ["a"]


def test_an_uncommitted_settlement_is_no_answer_and_a_second_call_waits_for_it() -> None:
    """Both callers get the same answer, once it is committed; the record is there once."""
    b = make()
    bury(b, "a")
    b.replicator.commit_at_once = False
    one, two = (SettleLetters(next(b.tokens), DLQ, (0,), "resent") for _ in range(2))
    b.turn(one)
    b.turn(two)
    assert one.token not in b.done and two.token not in b.done
    b.replicator.commit_at_once = True
    b.turn()
    b.turn()
    assert b.done[one.token] == b.done[two.token] == LettersSettled(("resent",))
    assert len(records(b)) == 1 and got(b) == ["a"] and got(b) == []


def test_two_settlements_of_a_letter_agree_while_neither_is_committed() -> None:
    """The first one counts, and the answer to the second one says so."""
    b = make()
    bury(b, "a")
    b.replicator.commit_at_once = False
    one, two = (SettleLetters(next(b.tokens), DLQ, (0,), how) for how in ("purged", "resent"))
    b.turn(one)
    b.turn(two)
    b.replicator.commit_at_once = True
    b.turn()
    b.turn()
    assert b.done[one.token] == b.done[two.token] == LettersSettled(("purged",)) and got(b) == []


@pytest.mark.parametrize("kept", [False, True])
def test_leader_failure_before_commit_resends_a_letter_once(kept: bool) -> None:
    """The record survives or not; asked again, the letter is resent once in both cases."""
    b = make()
    bury(b, "a")
    b.replicator.commit_at_once = False
    call = SettleLetters(next(b.tokens), DLQ, (0,), "resent")
    b.turn(call)
    b.replicator.follow(1, "n2")
    if not kept:
        b.log.cut(b.log.end_index - 1)
    b.turn()
    assert isinstance(b.done[call.token], Refused)
    b.replicator.commit_at_once = True
    b.lead(2)
    b.turn()
    assert settle(b, 0) == ("resent",) and len(records(b)) == 1
    assert got(b) == ["a"] and got(b) == []


@pytest.mark.parametrize("restore", [False, True])
def test_new_leader_knows_settled_letters_from_log_and_snapshot(restore: bool) -> None:
    """From the log, and from a snapshot."""
    b = make()
    bury(b, "a", "b")
    settle(b, 0)
    settle(b, 1, how="purged")
    other = b.successor(snapshot=restore)
    assert settle(other, 0, 1) == ("resent", "purged")
    assert got(other) == ["a"] and got(other) == []


def test_letter_without_a_deliverable_original_is_orphaned() -> None:
    """The group was deleted, the topic was created again, or a client sent the letter: not resent,
    and it can be purged."""
    b = make()
    bury(b, "a")
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    assert settle(b, 0) == ("orphaned",)
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "g", 1),)))
    bury(b, "b")
    b.ask(
        Produce(next(b.tokens), [Draft(DLQ, 0, b"mine", encode(Fields(message_id="x")), EPOCH_MS)])
    )
    last = b.machine.end(DLQ, 0) - 1
    assert settle(b, 0, last) == ("resent", "orphaned"), (
        "the group, created again, gave the message up again"
    )
    b.configure("t", incarnation=2)
    assert settle(b, last - 1, last) == ("orphaned", "orphaned")
    assert settle(b, last - 1, last, how="purged") == ("purged", "purged")


def test_a_message_that_is_delivered_anyway_is_not_delivered_twice() -> None:
    """A reset made it new, or it is leased: the letter is settled, and nothing else happens."""
    b = make()
    bury(b, "a")
    b.ask(Reset(next(b.tokens), "g", "t", [(0, 0)]))
    assert settle(b, 0) == ("resent",)
    (lease,) = b.receive()
    assert b.forward(lease) and b.machine.end(DLQ, 0) == 2
    b.ask(Reset(next(b.tokens), "g", "t", [(0, 0)]))
    (lease,) = b.receive()
    assert settle(b, 1) == ("resent",)
    assert b.ack(lease) == (True,) and not b.receive()


def test_a_pending_reset_is_waited_for() -> None:
    """It could remove the row that the settlement made."""
    b = make()
    bury(b, "a")
    b.replicator.commit_at_once = False
    b.turn(Reset(next(b.tokens), "g", "t", [(0, 1)]))
    call = SettleLetters(next(b.tokens), DLQ, (0,), "resent")
    b.turn(call)
    assert not records(b)
    b.replicator.commit_at_once = True
    b.turn()
    b.turn()
    assert b.done[call.token] == LettersSettled(("resent",)) and got(b) == ["a"]


def test_a_fifo_group_gets_it_again_and_goes_on() -> None:
    """Of its message group, before those that were not delivered yet."""
    b = make(fifo=True)
    b.send_of("x", "x1", "x2")
    (lease,) = b.receive(n=1)
    assert b.forward(lease) and settle(b, 0) == ("resent",)
    assert got(b) == ["x1", "x2"] and got(b) == []


def test_settlement_of_other_topics_or_too_many_ranges_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the reason; nothing is appended."""
    b = make()
    bury(b, "a", "b", "c")
    before = b.log.end_index
    many = [0] * (LETTERS_MAX + 1)
    for topic, offsets, reason in (
        ("t", [0], "unknown-topic"),
        ("%DLQ%h", [0], "unknown-topic"),
        (DLQ, many, "too-many-letters"),
    ):
        outcome = b.ask(SettleLetters(next(b.tokens), topic, offsets, "purged"))
        assert isinstance(outcome, Refused) and outcome.reason == reason
    assert b.log.end_index == before
    monkeypatch.setattr("ledgermq.node.broker.parts.dead_letters.dead_lettering.RANGES_MAX", 1)
    assert settle(b, 0, how="purged") == ("purged",)
    outcome = b.ask(SettleLetters(next(b.tokens), DLQ, [2], "purged"))
    assert isinstance(outcome, Refused) and outcome.reason == "too-many-letters"


def test_states_and_places() -> None:
    """A letter knows its original by its mark; other texts are none."""
    b = make()
    bury(b, "a", "b")
    settle(b, 0)
    assert [state_of(b.machine, DLQ, offset) for offset in (0, 1, 2)] == [
        "resent",
        "waiting",
        "gone",
    ]
    assert (
        place_of("dlq:g:t:3:7:99") == (("g", "t", 3), 7)
        and place_of("tx:4") is None
        and place_of("") is None
    )


OPS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(control.SETTLEMENTS)), max_size=40)


def letters() -> Letters:
    return Letters(Delivery(lambda topic, queue: 0), lambda topic, queue: 0)


@given(OPS, st.integers(0, 14))
def test_settlement_ranges_equal_a_dictionary_model(ops: list[tuple[int, str]], begin: int) -> None:
    """Every offset has its first settlement; ranges are maximal, ascending and apart; trimming
    removes what is below."""
    found, known = letters(), dict[int, str]()
    for offset, how in ops:
        assert found.settle(DLQ, offset, how) is (offset not in known)
        known.setdefault(offset, how)
    if known:
        found.trim(DLQ, begin)
    known = {offset: how for offset, how in known.items() if offset >= begin}
    assert {
        offset: found.settlement(DLQ, offset)
        for offset in range(15)
        if found.settlement(DLQ, offset)
    } == known
    ranges = found.ranges(DLQ)
    assert all(
        one[1] < other[0] or (one[1] == other[0] and one[2] != other[2])
        for one, other in pairwise(ranges)
    )
    assert [found.next_unsettled(DLQ, at) for at in range(15)] == [
        min(set(range(at, 16)) - known.keys()) for at in range(15)
    ]
    again = letters()
    again.restore(found.export())
    assert (
        again.export() == found.export()
        and again.count == len(ranges)
        and bool(again.ranges(DLQ)) is bool(known)
    )


def test_a_broadcasting_group_s_letter_goes_to_the_client_that_gave_it_up() -> None:
    """Each client has its own position; the letters of all of them are in one topic."""
    b = make()
    b.ask(Configure(next(b.tokens), groups=(GroupConfig("", "b", 1, broadcast=True),)))
    readers = [member_group("b", client) for client in ("c", "d")]
    for reader in readers:
        assert b.receive(group=reader) == ()
    b.send("a")
    held = {reader: b.receive(group=reader) for reader in readers}
    assert all(b.forward(leases[0], group=reader) for reader, leases in held.items())
    call = SettleLetters(next(b.tokens), "%DLQ%b", (1,), "resent")
    assert b.ask(call) == LettersSettled(("resent",))
    assert [got(b, reader) for reader in readers] == [[], ["a"]]
