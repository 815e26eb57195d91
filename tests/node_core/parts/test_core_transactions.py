"""Transactions on virtual time: invisible before the commit, visible once after it, never after a
rollback; and which clients are checked, how often."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produced
from ledgermq.node.broker.calls.transaction_calls import (
    ChecksCounted,
    CountChecks,
    Overdue,
    OverdueHalves,
    Prepare,
    Resolve,
    Resolved,
    UndecidedHalf,
)
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.transactions import transactions
from ledgermq.node.broker.parts.transactions.transaction_checks import TransactionRules
from ledgermq.node.broker.parts.transactions.transactions import ENDED_MAX, Half, Transactions
from ledgermq.node.replica.retention.retention_facts import half_pin
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import parse
from ledgermq.proto.names import HALF_TOPIC
from ledgermq.proto.records import control
from tests.node_core.core_fakes import LOG_ID, MS, SECOND, Bench, draft

RULES = TransactionRules(
    check_ns=6 * SECOND, interval_ns=30 * SECOND, checks_max=3, retry_ns=5 * SECOND, undecided_max=4
)


def make(rules: TransactionRules = RULES, queues: int = 2) -> Bench:
    b = Bench(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), transactions=rules))
    b.lead(1)
    b.configure("t", queues=queues)
    return b


def prepare(
    b: Bench, *bodies: str, queue: int = 0, tag: str | None = None, recovery_ms: int | None = None
) -> Prepare:
    return Prepare(
        next(b.tokens),
        [draft(body, "t", queue, tag) for body in bodies],
        [recovery_ms] * len(bodies),
    )


def resolve(b: Bench, offset: int, body: str, commit: bool = True) -> Resolve:
    return Resolve(next(b.tokens), offset, "t", f"id-{body}", commit)


def half(b: Bench, body: str, **options: object) -> int:
    """The offset of a half message that is stored."""
    produced = b.ask(prepare(b, body, **options))  # type: ignore[arg-type]
    assert isinstance(produced, Produced)
    return produced.queue_offsets[0]


def bodies(b: Bench) -> list[str]:
    """What a consumer group that was never seen before gets."""
    group = f"g{next(b.tokens)}"
    return [decode_record(lease.record).body.decode() for lease in b.receive(group=group)]


def due(b: Bench, limit: int = 100) -> tuple[tuple[int, str], ...]:
    found = b.ask(Overdue(next(b.tokens), limit))
    assert isinstance(found, OverdueHalves)
    return found.halves


def count(b: Bench, *offsets: int) -> tuple[UndecidedHalf, ...]:
    found = b.ask(CountChecks(next(b.tokens), offsets))
    assert isinstance(found, ChecksCounted)
    return found.halves


def last_transaction_record(b: Bench) -> control.TransactionRecord:
    record = decode_record(b.log.ranges[-1].data[48:])
    found = control.decode(parse(record.properties)["TAGS"], record.body)
    assert isinstance(found, control.TransactionRecord)
    return found


# The main road


def test_half_message_is_delivered_once_and_only_after_its_commit() -> None:
    """The copy carries everything its producer sent, on the queue chosen at the send, and names the
    entry it was made from."""
    b = make()
    offset = half(b, "a", queue=1, tag="blue", recovery_ms=7000)
    assert bodies(b) == [] and b.machine.end("t", 1) == 0
    index = b.machine.transactions.halves[offset].index
    assert b.ask(resolve(b, offset, "a")) == Resolved(True)
    (lease,) = b.receive(tags=["blue"])
    record = decode_record(lease.record)
    assert (record.body, record.queue, lease.queue_offset) == (b"a", 1, 0)
    assert parse(record.properties) == {
        "UNIQ_KEY": "id-a",
        "TAGS": "blue",
        "__LMQ.ORIGIN": f"tx:{offset}",
    }
    assert int.from_bytes(lease.record[76:84], "big") == index
    assert b.machine.transactions.halves == {} and b.machine.transactions.ended == {
        offset: "commit"
    }


def test_decision_with_wrong_offset_id_or_topic_is_refused() -> None:
    """An unknown half, another message id, another topic: not ok, and nothing happens."""
    b = make()
    offset = half(b, "a")
    assert b.ask(resolve(b, offset + 1, "a")) == Resolved(False)
    assert b.ask(resolve(b, offset, "b")) == Resolved(False)
    assert b.ask(replace(resolve(b, offset, "a"), topic="other")) == Resolved(False)
    assert offset in b.machine.transactions.halves and bodies(b) == []


def test_many_in_one_turn() -> None:
    """Halves, commits and rollbacks of a turn share one batch; the rollbacks share one record."""
    b = make(replace(RULES, undecided_max=100))
    first = prepare(b, *"abcdef")
    b.turn(first, prepare(b, "x", queue=1))
    end = b.log.end_index
    b.turn(
        *[resolve(b, offset, body, commit=body in "ace") for offset, body in enumerate("abcdef")]
    )
    assert b.log.end_index == end + 4
    assert sorted(bodies(b)) == ["a", "c", "e"]
    assert list(b.machine.transactions.halves) == [6]


# Leaders, topics, disks


def test_a_topic_that_goes_takes_its_undecided_messages_along() -> None:
    """Also when it is created again: a commit is refused, a rollback agreed with."""
    b = make()
    offsets = half(b, "a"), half(b, "b")
    b.ask(Configure(next(b.tokens), deleted_topics=("t",)))
    assert b.machine.transactions.halves == {} and set(b.machine.transactions.ended.values()) == {
        "topic"
    }
    b.configure("t", queues=2, incarnation=2)
    assert b.ask(resolve(b, offsets[0], "a")) == Resolved(False)
    assert b.ask(resolve(b, offsets[1], "b", commit=False)) == Resolved(True)
    assert bodies(b) == []


def test_a_commit_behind_a_pending_deletion_of_its_topic_waits_for_it() -> None:
    """No message is ever appended to a topic that is gone when its entry is applied."""
    b = make()
    offset = half(b, "a")
    b.replicator.commit_at_once = False
    b.turn(Configure(next(b.tokens), deleted_topics=("t",)))
    call, late = resolve(b, offset, "a"), prepare(b, "b")
    b.turn(call, late)
    assert call.token not in b.done and late.token not in b.done
    b.replicator.commit_at_once = True
    b.turn()
    b.turn()
    assert b.done[call.token] == Resolved(False)
    assert isinstance(b.done[late.token], Refused)
    assert b.machine.transactions.halves == {}


def test_a_full_disk_takes_no_half_and_no_commit_but_a_rollback() -> None:
    """A commit copies a message; a rollback is a small record and may use the reserve."""
    b = make()
    one, two = half(b, "a"), half(b, "b")
    b.group.writes_refused = True
    assert b.ask(prepare(b, "c")) == Refused("disk-full")
    assert b.ask(resolve(b, one, "a")) == Refused("disk-full")
    assert b.ask(resolve(b, two, "b", commit=False)) == Resolved(True)
    b.group.writes_refused = False
    assert b.ask(resolve(b, one, "a")) == Resolved(True)
    assert bodies(b) == ["a"]


def test_refusals_of_half_messages() -> None:
    """Of no topic, of no queue, too large, and more than may be undecided."""
    b = make()
    for wrong in (draft("x", "nowhere"), draft("x", "t", 2)):
        outcome = b.ask(Prepare(next(b.tokens), [wrong], [None]))
        assert isinstance(outcome, Refused) and outcome.reason == "unknown-topic"
    large = replace(draft("x"), properties=b"k\x01" + b"v" * 32700 + b"\x02")
    outcome = b.ask(Prepare(next(b.tokens), [large], [None]))
    assert isinstance(outcome, Refused) and outcome.reason == "too-large"
    assert isinstance(b.ask(prepare(b, *"abcd")), Produced)
    outcome = b.ask(prepare(b, "e"))
    assert isinstance(outcome, Refused) and outcome.reason == "too-many-transactions"
    b.ask(resolve(b, 0, "a"))
    assert isinstance(b.ask(prepare(b, "e")), Produced)


def test_the_first_undecided_half_pins_the_log() -> None:
    """Its position, and for people what it waits for; nothing undecided, no pin."""
    b = make()
    one, two = half(b, "a"), half(b, "b")
    (pin,) = half_pin(b.machine)
    assert pin.kind == "transaction" and pin.pos == b.queues.rows[HALF_TOPIC, 0][one][0]
    assert f"half message {one}" in pin.detail and "1 more" in pin.detail
    b.turn(resolve(b, one, "a"))
    (pin,) = half_pin(b.machine)
    assert pin.pos == b.queues.rows[HALF_TOPIC, 0][two][0]
    b.turn(resolve(b, two, "b", commit=False))
    assert list(half_pin(b.machine)) == []


# Checks


def test_a_half_brings_its_own_immunity() -> None:
    """Shorter or longer than what is configured."""
    b = make()
    soon, late = half(b, "a", recovery_ms=1000), half(b, "b", recovery_ms=60_000)
    b.now_ns += SECOND
    assert due(b) == ((soon, "t"),)
    count(b, soon)
    b.now_ns += 59 * SECOND
    assert due(b) == ((soon, "t"), (late, "t"))


def test_check_without_a_producer_is_uncounted_and_retried() -> None:
    """Handed out and not counted, it is put aside for the retry time; only its age ends it."""
    b = make(replace(RULES, age_max_ms=100_000))
    offset = half(b, "a")
    b.now_ns += 6 * SECOND
    for _ in range(18):
        assert due(b) == ((offset, "t"),)
        assert due(b) == ()
        b.now_ns += 5 * SECOND
    assert b.machine.transactions.halves[offset].checks == 0
    b.now_ns += 10 * SECOND
    assert due(b) == ()
    assert last_transaction_record(b) == control.TransactionRecord(ended=((offset, "age"),))


def test_a_new_leader_counts_time_anew_and_checks_on() -> None:
    """Immunity begins when it leads; the number of checks is in the log."""
    b = make()
    offset = half(b, "a")
    b.now_ns += 6 * SECOND
    due(b)
    count(b, offset)
    new = b.successor()
    assert due(new) == ()
    new.now_ns += 30 * SECOND
    assert due(new) == ((offset, "t"),)
    assert [check.checks for check in count(new, offset)] == [2]


def test_concurrent_counts_send_one_check_and_none_of_a_decided_half() -> None:
    """Two concurrent counts send one check; a commit in the log ends the checks."""
    b = make()
    offset, other = half(b, "a"), half(b, "b")
    b.replicator.commit_at_once = False
    calls = [
        CountChecks(next(b.tokens), (offset,)),
        CountChecks(next(b.tokens), (offset,)),
        resolve(b, other, "b"),
    ]
    b.turn(*calls)
    assert count(b, other) == ()
    b.replicator.commit_at_once = True
    b.turn()
    assert [len(b.done[call.token].halves) for call in calls[:2]] == [1, 0]  # type: ignore[union-attr]
    assert b.machine.transactions.halves[offset].checks == 1


def test_overdue_halves_take_turns() -> None:
    """No more than asked for, the longest due first, and those that were handed out come behind the
    others."""
    b = make()
    offsets = []
    for body in "abcd":
        offsets.append(half(b, body))
        b.now_ns += MS
    b.now_ns += 6 * SECOND
    assert [offset for offset, _ in due(b, 3)] == offsets[:3]
    assert [offset for offset, _ in due(b, 3)] == offsets[3:]
    b.now_ns += 5 * SECOND
    assert [offset for offset, _ in due(b, 9)] == offsets


# The state


def test_the_last_ended_transactions_are_remembered_in_log_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table has a fixed size, and the first to end is the first to be forgotten."""
    assert ENDED_MAX == 32_768
    monkeypatch.setattr(transactions, "ENDED_MAX", 2)
    found = Transactions(lambda topic, queue: 0)
    for offset in range(3):
        found.apply_half(offset, Half(10 + offset, "t", 0))
    found.apply_commit(2)
    found.apply_record(control.TransactionRecord(ended=((0, "rollback"), (1, "checks"))))
    assert list(found.ended.items()) == [(0, "rollback"), (1, "checks")]


def test_the_state_survives_a_snapshot() -> None:
    """Undecided and ended ones; a snapshot without transactions is one with none."""
    b = make()
    one, _, three = half(b, "a"), half(b, "b", recovery_ms=9000), half(b, "c")
    b.turn(resolve(b, one, "a"), resolve(b, three, "c", commit=False))
    b.turn(CountChecks(next(b.tokens), (1,)))
    exported = b.machine.export(LOG_ID)
    again = Transactions(lambda topic, queue: 0)
    again.restore(json.loads(json.dumps(exported["transactions"])))
    assert again.halves == {1: Half(3, "t", b.machine.transactions.halves[1].stored_ms, 9000, 1)}
    assert list(again.ended.items()) == [(one, "commit"), (three, "rollback")]
    assert again.export() == exported["transactions"]
    again.restore({})
    assert again.export() == {"halves": {}, "ended": {}}
