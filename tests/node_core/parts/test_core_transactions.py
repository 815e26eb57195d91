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


def successor(b: Bench) -> Bench:
    """Another replica with the same log leads the next term."""
    b.replicator.follow(b.replicator.term + 1, None)
    b.turn()
    new = Bench(b.log, b.settings, node="n2")
    new.now_ns, new.tokens, new.done = b.now_ns, b.tokens, b.done
    new.replicator.commit_index = b.replicator.commit_index
    new.lead(b.replicator.term)
    return new


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


def test_a_rollback_is_for_ever() -> None:
    """Nothing becomes visible, and a later commit is refused."""
    b = make()
    offset = half(b, "a")
    assert b.ask(resolve(b, offset, "a", commit=False)) == Resolved(True)
    assert last_transaction_record(b) == control.TransactionRecord(ended=((offset, "rollback"),))
    assert b.ask(resolve(b, offset, "a")) == Resolved(False)
    assert bodies(b) == []


@pytest.mark.parametrize("first", [True, False])
def test_a_repeated_decision_is_agreed_with_and_the_opposite_is_not(first: bool) -> None:
    """Whether the first one is applied already, only in the log, or in the same turn; and still
    under the next leader."""
    b = make()
    b.replicator.commit_at_once = True
    offset = half(b, "a")
    b.replicator.commit_at_once = False
    calls = [
        resolve(b, offset, "a", first),
        resolve(b, offset, "a", first),
        resolve(b, offset, "a", not first),
    ]
    b.turn(*calls[:2])
    b.turn(calls[2])
    assert not any(call.token in b.done for call in calls), "the answer waits for the entry"
    b.replicator.commit_at_once = True
    b.turn()
    assert [b.done[call.token] for call in calls] == [
        Resolved(True),
        Resolved(True),
        Resolved(False),
    ]
    for leader in (b, None):
        leader = leader or successor(b)
        assert leader.ask(resolve(leader, offset, "a", first)) == Resolved(True)
        assert leader.ask(resolve(leader, offset, "a", not first)) == Resolved(False)
        assert bodies(leader) == ["a"] * first


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


@pytest.mark.parametrize("survives", [True, False])
def test_an_uncommitted_end_counts_only_if_it_stays(survives: bool) -> None:
    """The next leader finds the copy in its log, or not: there is one copy after the client's
    retry, either way."""
    b = make()
    offset = half(b, "a")
    committed = b.log.end_index
    b.replicator.commit_at_once = False
    call = resolve(b, offset, "a")
    b.turn(call)
    b.replicator.follow(2, None)
    b.turn()
    assert b.done[call.token] == Refused("unknown-outcome")
    if not survives:
        b.log.cut(committed)
    b.replicator.commit_at_once = True
    new = successor(b)
    assert new.ask(resolve(new, offset, "a")) == Resolved(True)
    assert bodies(new) == ["a"]


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


def test_checks_come_after_the_immunity_and_then_at_intervals_until_there_are_enough() -> None:
    """A check counts when its record is applied; after the last one the transaction is dropped,
    with a record that says why."""
    b = make()
    offset = half(b, "a")
    b.now_ns += 6 * SECOND - 1
    assert due(b) == ()
    for number in (1, 2, 3):
        b.now_ns += 1 if number == 1 else 30 * SECOND
        assert due(b) == ((offset, "t"),)
        (check,) = count(b, offset)
        assert (check.offset, check.topic, check.checks) == (offset, "t", number)
        assert decode_record(check.record).body == b"a"
        assert last_transaction_record(b) == control.TransactionRecord(checked=((offset, number),))
        b.now_ns += 30 * SECOND - 1
        assert due(b) == ()
        b.now_ns += 1 - 30 * SECOND
    assert count(b, offset) == (), "there is no fourth check"
    b.now_ns += 30 * SECOND
    assert due(b) == ()
    assert last_transaction_record(b) == control.TransactionRecord(ended=((offset, "checks"),))
    assert (
        b.group.statistics()["transactions_dropped"] == 1
        and b.group.statistics()["transactions_undecided"] == 0
    )
    assert b.ask(resolve(b, offset, "a")) == Resolved(False)
    assert bodies(b) == []


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
    new = successor(b)
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
