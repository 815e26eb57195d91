"""A time epoch begins after all clocks were wrong together: what was done stays done, and what
waits comes when a right clock is there."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace

import pytest

from ledgermq.node.broker.calls.member_calls import BeginTimeEpoch, RaiseLevel, TimeEpochBegun
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import (
    OpenProducer,
    Produce,
    Produced,
    ProducerOpened,
    Recall,
    Recalled,
)
from ledgermq.node.broker.parts.producers.producers import UNNAMED_MS, Producers
from ledgermq.node.broker.parts.timers import timer_firing
from ledgermq.node.broker.parts.transactions.transactions import Half, Transactions
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import DELIVER_MS, parse
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.records import control
from ledgermq.proto.records.time_epochs import AHEAD_MS, EPOCHS_MAX, TimeEpoch, TimeEpochs
from ledgermq.proto.types import Permission, TopicConfig, TopicKind
from tests.node_core.core_fakes import MS, SECOND, Bench
from tests.node_core.core_world import exported
from tests.node_core.parts.test_core_timers import bodies, delay, delayed, pass_ms, settle
from tests.node_core.parts.test_core_transactions import half

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FAR_MS = 400 * DAY_MS


class Skewed(Bench):
    """A group whose clock can be wrong."""

    skew_ms = 0

    @property
    def now_ms(self) -> int:
        return super().now_ms + self.skew_ms


def skewed(level: int = 3) -> Skewed:
    b = Skewed()
    b.lead()
    for raised in range(2, level + 1):
        b.turn(
            RaiseLevel(
                next(b.tokens), control.LevelRecord(raised), frozenset(b.replicator.members.nodes)
            )
        )
    b.configure()
    return b


def begin(b: Bench) -> TimeEpochBegun:
    outcome = b.ask(BeginTimeEpoch(next(b.tokens), "me"))
    assert isinstance(outcome, TimeEpochBegun), outcome
    return outcome


def taken_over(b: Skewed, *, cut_to: int | None = None, snapshot: bool = False) -> Skewed:
    """Another leader of the same log, at the same moment. `cut_to`: the last entry that
    survives."""
    end = b.log.end_index if cut_to is None else cut_to
    assert b.machine.applied_index <= end
    b.log.cut(end)
    successor = Skewed(log=b.log, node="n2")
    successor.skew_ms, successor.now_ns, successor.tokens = b.skew_ms, b.now_ns, b.tokens
    if snapshot:
        successor.queues = successor.machine._queues = b.queues
        successor.machine.restore(json.loads(json.dumps(b.machine.export("log"))))
        successor.replicator.commit_index = b.machine.applied_index
    successor.lead(b.replicator.term + 1)
    settle(successor)
    return successor


def leap(b: Skewed, to_ms: int) -> None:
    """The next turn is at this time."""
    b.turn(at_ns=b.now_ns + (to_ms - b.now_ms) * MS)
    settle(b)


def deliveries(b: Bench) -> list[tuple[str, int, int]]:
    """(body, delivery time, store time) of what is in the topic."""
    records = [decode_record(b.log.record(p, s)) for p, s, _ in b.queues.rows.get(("t", 0), ())]
    return [
        (r.body.decode(), int(parse(r.properties)[DELIVER_MS]), r.store_ms)
        for r in records
        if DELIVER_MS in parse(r.properties)
    ]


def test_delayed_messages_come_at_their_time_again() -> None:
    """A timer fired while the clock was ahead, so that the watermark is ahead: until an epoch
    begins nothing is delivered any more."""
    b = skewed()
    delay(b, "early", 10 * 60_000)
    b.skew_ms = FAR_MS
    pass_ms(b, 3_000)
    assert bodies(b) == ["early"]
    b.skew_ms = 0
    delay(b, "stuck", 3_000)
    pass_ms(b, 10_000)
    assert bodies(b) == ["early"], "the fault that the epoch is for"
    begun = begin(b)
    assert begun.ms == b.now_ms and begun.before_ms > b.now_ms + FAR_MS - HOUR_MS
    settle(b)
    assert bodies(b) == ["early", "stuck"] and b.machine.timers.former is None
    delay(b, "on time", 3_000)
    due_ms = b.now_ms + 3_000
    pass_ms(b, 2_999)
    assert bodies(b) == ["early", "stuck"]
    pass_ms(b, 1)
    assert bodies(b) == ["early", "stuck", "on time"] and deliveries(b)[-1][2] == due_ms
    assert b.machine.timers.pending == 0


STEPS = ("before the epoch", "record not committed", "in the middle of moving", "all moved")


JUMPS_MS = (2 * AHEAD_MS, HOUR_MS, 2 * DAY_MS, FAR_MS)
CASES = list(itertools.product(JUMPS_MS, (False, True), ("", *STEPS), (False, True)))


@pytest.mark.parametrize(("jump_ms", "fires", "restart", "snapshot"), CASES)
def test_delayed_message_fires_once_across_time_epochs_and_leaders(
    monkeypatch: pytest.MonkeyPatch, jump_ms: int, fires: bool, restart: str, snapshot: bool
) -> None:
    """Jumps shorter and longer than the wheel, with and without a timer that fires in them;
    messages sent before, during and behind; a new leader, from the log or from a snapshot, at every
    step. Everything comes once, nothing before its time by the clock of the moment."""
    monkeypatch.setattr(timer_firing, "BATCH", 3)
    b = skewed()
    delays = (1_000, 2_000, 70_000, 3 * HOUR_MS, 3 * DAY_MS)
    expected: dict[str, int] = {}

    def send(when: str) -> None:
        for after_ms in delays:
            expected[f"{when} {after_ms}"] = b.now_ms + after_ms
            delay(b, f"{when} {after_ms}", after_ms)

    send("right")
    b.skew_ms = jump_ms
    send("ahead")
    if fires:
        pass_ms(b, 1_500)
    else:
        b.send("plain")
    b.skew_ms = 0
    send("back")
    pass_ms(b, 500)
    if restart == STEPS[0]:
        b = taken_over(b, snapshot=snapshot)
    early = {body for body, _, _ in deliveries(b)}
    token = next(b.tokens)
    if restart == STEPS[1]:
        b.replicator.commit_at_once = False
        b.turn(BeginTimeEpoch(token))
        send_late = Produce(next(b.tokens), [delayed("meanwhile", b.now_ms + 100)])
        b.turn(send_late)
        assert send_late.token not in b.done, (
            "nothing is appended between the record and its application"
        )
        b = taken_over(b, snapshot=snapshot)
    else:
        b.turn(BeginTimeEpoch(token))
        assert isinstance(b.done[token], TimeEpochBegun)
    if restart == STEPS[2]:
        b = taken_over(b, snapshot=snapshot)
        for _ in range(3):
            b.turn()
        if b.machine.timers.former is not None:
            b = taken_over(b, snapshot=snapshot)
    settle(b)
    assert b.machine.timers.former is None
    if restart == STEPS[3]:
        b = taken_over(b, snapshot=snapshot)
    send("epoch")
    healed_ms = b.now_ms
    for at_ms in sorted({*expected.values(), healed_ms + 4 * DAY_MS}):
        if healed_ms < at_ms <= healed_ms + 4 * DAY_MS:
            leap(b, at_ms)
    counts = Counter(body for body, _, _ in deliveries(b))
    assert set(counts.values()) <= {1}, counts
    due = {body for body, at in expected.items() if at <= b.now_ms}
    assert due <= counts.keys() <= due | early
    for body, deliver_ms, store_ms in deliveries(b):
        if body not in early:
            assert store_ms == deliver_ms or (deliver_ms <= store_ms <= healed_ms), (
                body,
                deliver_ms,
                store_ms,
            )
    assert b.machine.timers.pending == len(expected) - len(counts)
    fresh = Skewed(log=b.log)
    fresh.replicator.commit_index = b.log.end_index
    fresh.turn()
    while fresh.machine.applied_index < b.machine.applied_index:
        fresh.turn()
    assert exported(fresh.machine) == exported(b.machine)


def test_store_times_fall_at_the_record_only_and_count_as_not_falling() -> None:
    """Before and behind it they never fall; counted ones never do, and the search by time goes by
    them."""
    b = skewed()
    b.send("a")
    b.pass_time(SECOND)
    b.skew_ms = FAR_MS
    b.send("b")
    b.skew_ms = 0
    b.pass_time(SECOND)
    b.send("c")
    begun = begin(b)
    b.pass_time(SECOND)
    b.send("d")
    entries = [b.log.read(index) for index in range(b.log.end_index + 1)]
    records = [decode_record(bytes(cut(e, e.first_index).data[48:])) for e in entries]
    times = [record.store_ms for record in records]
    falls = [at for at in range(1, len(times)) if times[at] < times[at - 1]]
    epoch = b.machine.time_epochs.begins[0]
    assert falls == [epoch.index] and times[epoch.index] == begun.ms == epoch.ms
    assert control.decode("time-epoch", records[epoch.index].body) == control.TimeEpochRecord(
        begun.before_ms, "me"
    )
    counted = [
        b.machine.time_epochs.counted(record.store_ms, e.pos)
        for record, e in zip(records, entries, strict=True)
    ]
    assert counted == sorted(counted) and max(counted) == times[-1]
    first, last = times[entries_of(b, "a")], times[-1]
    at = [
        b.machine.offset_at("t", 0, ms)
        for ms in (first, first + 1, begun.ms, begun.ms + 1, last, last + 1, begun.before_ms)
    ]
    assert at == [0, 1, 1, 3, 3, 4, 4]


def entries_of(b: Bench, body: str) -> int:
    position = b.queues.rows["t", 0][bodies(b).index(body)][0]
    return b.log.index_at(position)


def test_a_window_ends_after_its_length_from_the_epoch_on() -> None:
    """Ids of before are known for one more window, and then forgotten; ids of behind as always."""
    b = skewed()
    config = TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1, dedup_ms=HOUR_MS)
    b.ask(Configure(next(b.tokens), topics=(config,)))

    def send(body: str) -> Produced:
        outcome = b.ask(Produce(next(b.tokens), [replace(delayed(body, 0), deliver_ms=0)]))
        assert isinstance(outcome, Produced)
        return outcome

    b.skew_ms = FAR_MS
    assert send("x").queue_offsets == (0,)
    b.skew_ms = 0
    leap(b, b.now_ms + 2 * HOUR_MS)
    assert send("x").queue_offsets == (0,), "the fault that the epoch is for"
    begin(b)
    assert send("x").queue_offsets == (0,)
    leap(b, b.now_ms + HOUR_MS + 1)
    assert send("x").queue_offsets == (1,)
    assert send("x").queue_offsets == (1,) and b.machine.ids.count == 1


def test_producers_and_halves_of_before_age_from_the_epoch_on() -> None:
    """What was heard or stored later than the epoch began counts as of then; what was earlier
    stays."""
    producers, transactions = Producers(), Transactions(lambda topic, queue: 0)
    for number, ms in ((2, 5), (4, 90), (6, 95)):
        producers.apply_record(control.ProducerRecord(number, 0), ms)
        transactions.apply_half(number, Half(number, "t", ms))
    assert [*producers.expired(UNNAMED_MS + 40)] == [2]
    producers.time_epoch_began(40)
    transactions.time_epoch_began(40)
    assert [*producers.expired(UNNAMED_MS + 40)] == [2, 4, 6] and [*producers.by_silence()] == [
        2,
        4,
        6,
    ]
    assert [half.stored_ms for half in transactions.halves.values()] == [5, 40, 40]


def test_an_applied_epoch_reaches_producers_and_halves() -> None:
    b = skewed()
    b.ask(
        Configure(
            next(b.tokens),
            topics=(TopicConfig("", "t", TopicKind.TRANSACTION, 1, Permission.READ_WRITE, 2),),
        )
    )
    b.skew_ms = FAR_MS
    assert b.ask(OpenProducer(next(b.tokens))) == ProducerOpened(1, 0, 0)
    offset = half(b, "x")
    b.skew_ms = 0
    begun = begin(b)
    producer = b.machine.producers.get(1)
    assert producer is not None and producer.last_ms == begun.ms
    assert b.machine.transactions.halves[offset].stored_ms == begun.ms


def test_refused_without_reason_or_level() -> None:
    """Below its level, with store times that are not ahead, and while another epoch's messages are
    still moved."""
    low = skewed(level=2)
    low.skew_ms = FAR_MS
    low.send("a")
    low.skew_ms = 0
    outcome = low.ask(BeginTimeEpoch(next(low.tokens)))
    assert (
        isinstance(outcome, Refused)
        and outcome.reason == "time-epoch-refused"
        and "upgrade finish" in outcome.detail
    )
    b = skewed()
    for ahead_ms in (-1, 0, AHEAD_MS):
        b.skew_ms = ahead_ms
        b.send("a")
        b.skew_ms = 0
        outcome = b.ask(BeginTimeEpoch(next(b.tokens)))
        assert isinstance(outcome, Refused) and outcome.reason == "time-epoch-refused", ahead_ms
    b.skew_ms = FAR_MS
    delay(b, "x", 10)
    pass_ms(b, 20)
    b.skew_ms = 0
    begin(b)
    assert b.machine.timers.former is not None
    b.skew_ms = -FAR_MS
    outcome = b.ask(BeginTimeEpoch(next(b.tokens)))
    assert isinstance(outcome, Refused) and "still moves delayed messages" in outcome.detail
    settle(b)
    begin(b)
    assert [epoch.ms for epoch in b.machine.time_epochs.begins] == [b.now_ms + FAR_MS, b.now_ms]


def test_two_requests_begin_one_epoch() -> None:
    """Both are answered with it; a third is refused, because nothing is ahead any more."""
    b = skewed()
    b.skew_ms = FAR_MS
    b.send("a")
    b.skew_ms = 0
    b.replicator.commit_at_once = False
    first, second = BeginTimeEpoch(next(b.tokens)), BeginTimeEpoch(next(b.tokens))
    b.turn(first)
    b.turn(second)
    assert not {first.token, second.token} & b.done.keys()
    b.replicator.commit_at_once = True
    b.turn()
    assert b.done[first.token] == b.done[second.token] and isinstance(
        b.done[first.token], TimeEpochBegun
    )
    assert isinstance(b.ask(BeginTimeEpoch(next(b.tokens))), Refused)
    follower = Bench(log=b.log)
    outcome = follower.ask(BeginTimeEpoch(next(follower.tokens)))
    assert isinstance(outcome, Refused) and outcome.reason == "not-leader"


def test_a_recall_finds_a_message_of_before_the_epoch() -> None:
    """One that waits is recalled, while it waits to be moved and behind that; one that was
    delivered early is not."""
    b = skewed()
    early = delay(b, "early", HOUR_MS)
    early_ms = b.now_ms + HOUR_MS
    b.skew_ms = 2 * HOUR_MS
    pass_ms(b, 10)
    assert bodies(b) == ["early"]
    b.skew_ms = 0
    handles = [(delay(b, f"m{n}", 30 * 60_000 + n), b.now_ms + 30 * 60_000 + n) for n in range(3)]

    def recall(handle: tuple[Produced, int]) -> bool:
        produced, deliver_ms = handle
        outcome = b.ask(
            Recall(next(b.tokens), deliver_ms, produced.fire_ms[0], produced.queue_offsets[0])
        )
        assert isinstance(outcome, Recalled), outcome
        return outcome.ok

    assert recall(handles[0])
    begin(b)
    assert recall(handles[1])
    settle(b)
    assert recall(handles[2]) and not recall(handles[2]) and not recall(handles[0])
    assert not recall((early, early_ms))
    leap(b, b.now_ms + 3 * HOUR_MS)
    assert bodies(b) == ["early"] and b.machine.timers.pending == 0


def test_counted_times_never_fall() -> None:
    """Whatever times epochs begin at; and the oldest are forgotten."""
    for begins in itertools.product(range(4), repeat=3):
        epochs = TimeEpochs()
        for number, ms in enumerate(begins):
            epochs = epochs.with_begin(TimeEpoch(10 * number + 5, 10 * number + 5, ms))
        assert TimeEpochs.restored(epochs.export()).export() == epochs.export()
        for raw in itertools.product(range(4), repeat=3):
            times: list[tuple[int, int]] = []
            floor = 0
            for number, (ms, up) in enumerate(zip(begins, raw, strict=True)):
                times.append((floor + up, 10 * number))
                times.append((ms, 10 * number + 5))
                floor = ms
            counted = [epochs.counted(ms, pos) for ms, pos in times]
            assert counted == sorted(counted), (begins, raw)
            assert all(c <= ms for c, (ms, _) in zip(counted, times, strict=True))
    many = TimeEpochs()
    for number in range(EPOCHS_MAX + 2):
        many = many.with_begin(TimeEpoch(number, number, number))
    assert len(many.begins) == EPOCHS_MAX and many.with_begin(many.begins[-1]) is many


def test_the_record_has_its_bytes() -> None:
    """As docs/format.md §11 says; its level is 3."""
    record = control.TimeEpochRecord(1_700_000_000_000, "ops")
    assert record.encode() == b'{"v":1,"before":1700000000000,"u":"ops"}'
    assert control.TimeEpochRecord(5).encode() == b'{"v":1,"before":5}'
    assert control.decode("time-epoch", record.encode()) == record
    with pytest.raises(AssertionError, match="needs level 3"):
        control.draft(record, 0, 2)
