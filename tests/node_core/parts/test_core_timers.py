"""Delayed messages in one group on virtual time: when they fire, that each fires once, and what a
recall, a restart or a full log does."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce, Produced, Recall, Recalled
from ledgermq.node.broker.parts.timers import timer_firing, timer_window
from ledgermq.node.broker.parts.timers.timers import (
    RECALLED_MAX,
    SLOT_MS,
    SLOTS,
    Watermark,
    slot_of,
)
from ledgermq.node.replica.retention.retention_facts import timer_pin
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode, parse
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.types import Draft
from tests.node_core.core_fakes import EPOCH_MS, MS, SECOND, Bench

NUMBERS = count(1)
HOUR = 3_600 * SECOND


def delayed(body: str, deliver_ms: int, topic: str = "t") -> Draft:
    """A message as the service hands it over."""
    properties = encode(Fields(message_id=f"id-{body}", tag="a", deliver_ms=deliver_ms))
    return Draft(topic, 0, body.encode(), properties, EPOCH_MS, 97, deliver_ms=deliver_ms)


def bench() -> Bench:
    made = Bench()
    made.lead()
    made.configure()
    return made


def delay(b: Bench, body: str, after_ms: int, topic: str = "t") -> Produced:
    outcome = b.ask(Produce(next(b.tokens), [delayed(body, b.now_ms + after_ms, topic)]))
    assert isinstance(outcome, Produced)
    return outcome


def recall(b: Bench, produced: Produced, deliver_ms: int) -> bool:
    outcome = b.ask(
        Recall(next(b.tokens), deliver_ms, produced.fire_ms[0], produced.queue_offsets[0])
    )
    assert isinstance(outcome, Recalled), outcome
    return outcome.ok


def bodies(b: Bench, topic: str = "t") -> list[str]:
    """What is in the topic, in order."""
    return [
        decode_record(b.log.record(p, s)).body.decode()
        for p, s, _ in b.queues.rows.get((topic, 0), ())
    ]


def settle(b: Bench) -> None:
    """Turn until nothing is due at this moment."""
    for _ in range(1000):
        assert b.output is not None
        if b.output.wake_at_ns > b.now_ns:
            return
        b.turn()
    raise AssertionError("it never settles")


def pass_ms(b: Bench, ms: int) -> None:
    """Let time pass, stopping wherever the group wants to wake."""
    end = b.now_ns + ms * MS
    while True:
        settle(b)
        assert b.output is not None
        at = min(end, b.output.wake_at_ns)
        if at == end:
            b.turn(at_ns=end)
            settle(b)
            return
        b.turn(at_ns=at)


def test_a_delayed_message_becomes_visible_at_its_time_and_not_before() -> None:
    """It waits on the timer topic, in the slot of its minute, and its copy says where it came
    from."""
    b = bench()
    due = b.now_ms + 1500
    produced = delay(b, "x", 1500)
    assert produced.fire_ms == (due,) and bodies(b) == []
    assert (b.machine.end(TIMER_TOPIC, slot_of(due)), b.machine.timers.pending) == (1, 1)
    pass_ms(b, 1499)
    assert bodies(b) == []
    pass_ms(b, 1)
    assert bodies(b) == ["x"] and b.machine.timers.pending == 0
    position, size, code = b.queues.rows["t", 0][0]
    stored = parse(decode_record(b.log.record(position, size)).properties)
    assert stored == {
        "UNIQ_KEY": "id-x",
        "TAGS": "a",
        "TIMER_DELIVER_MS": str(due),
        "__LMQ.ORIGIN": f"timer:{due}:{slot_of(due)}:0",
    }
    assert code == 97
    assert b.machine.timers.watermark == Watermark(due, 0)


def test_messages_fire_by_time_and_then_as_they_came() -> None:
    """Whatever the order in which they were sent, over several slots."""
    b = bench()
    for body, after in (("c", 90_000), ("a", 10), ("d", 90_000), ("b", 11), ("e", 200_000)):
        delay(b, body, after)
    pass_ms(b, 300_000)
    assert bodies(b) == ["a", "b", "c", "d", "e"]


def test_a_message_that_arrives_behind_the_window_still_fires_in_time() -> None:
    """One for an earlier minute than the leader reads, and one for the very millisecond that has
    just fired."""
    b = bench()
    base = b.now_ms // SLOT_MS * SLOT_MS + SLOT_MS - b.now_ms
    delay(b, "first", base + 10)
    delay(b, "last", base + 50_000)
    pass_ms(b, base + 10)
    assert bodies(b) == ["first"]
    delay(b, "soon", 5)
    pass_ms(b, 5)
    assert bodies(b) == ["first", "soon"]


def test_uncommitted_delayed_message_fires_before_later_ones() -> None:
    """A logged but uncommitted message must fire before any later one; otherwise the watermark
    would pass it permanently."""
    b = bench()
    delay(b, "later", 20)
    b.replicator.commit_at_once = False
    call = Produce(next(b.tokens), [delayed("sooner", b.now_ms + 10)])
    b.turn(call)
    assert call.token not in b.done
    for _ in range(50):
        b.pass_time(MS)
    assert bodies(b) == []
    b.replicator.commit_at_once = True
    b.turn()
    settle(b)
    assert bodies(b) == ["sooner", "later"]


def test_a_clock_that_goes_back_makes_messages_late_and_never_early() -> None:
    """The watermark stays; what is for a time below it waits until the clock is there again."""
    b = bench()
    delay(b, "a", 5_000)
    pass_ms(b, 5_000)
    back = b.now_ms - 4_000

    def turn_at(ms: int, *calls: Produce) -> None:
        b.now_ns += MS
        for _ in range(20):
            output = b.group.turn(b.now_ns, ms, calls)
            calls = ()
            if output.wake_at_ns > b.now_ns:
                return

    turn_at(back, Produce(next(b.tokens), [delayed("b", back + 1_000)]))
    turn_at(back + 3_999)
    assert bodies(b) == ["a"]
    turn_at(back + 4_000)
    assert bodies(b) == ["a", "b"]


def test_a_message_beyond_the_wheel_is_stored_again_until_its_time() -> None:
    """Forty days take a dozen rounds; each leaves a copy that is the mark of the one before, and
    the last one is delivered."""
    b = bench()
    days = 40 * 24 * 3_600_000
    due = b.now_ms + days
    produced = delay(b, "x", days)
    assert produced.fire_ms[0] < due
    for _ in range(days // (SLOT_MS * (SLOTS // 2)) + 2):
        b.turn(at_ns=b.now_ns + SLOTS // 2 * SLOT_MS * MS)
        settle(b)
        assert (bodies(b) == ["x"]) == (b.now_ms >= due)
    counts = b.machine.timers.counts
    assert (counts["fired"], counts["stored"]) == (1, counts["rolled"] + 1) and counts[
        "rolled"
    ] >= 14
    assert b.machine.timers.pending == 0


def test_a_recalled_message_never_comes() -> None:
    """Once; and not when its time has come, nor twice."""
    b = bench()
    due = b.now_ms + 1_000
    kept, gone = delay(b, "kept", 1_000), delay(b, "gone", 1_000)
    assert recall(b, gone, due) and not recall(b, gone, due)
    assert b.machine.timers.pending == 1
    pass_ms(b, 1_000)
    assert bodies(b) == ["kept"]
    assert not recall(b, kept, due)
    pass_ms(b, 2 * SLOT_MS)
    assert b.machine.timers.recalled_count in (0, 1)
    delay(b, "other", 1)
    pass_ms(b, 1)
    assert b.machine.timers.recalled_count == 0


def test_a_message_of_a_deleted_topic_is_not_recalled() -> None:
    """Its handle names the next topic of the name too; the recall would be a promise about another
    topic's message."""
    b = bench()
    due = b.now_ms + 10_000
    produced = delay(b, "old", 10_000)
    b.ask(Configure(next(b.tokens), deleted_topics=("t",)))
    assert not recall(b, produced, due)
    b.configure(incarnation=2)
    assert not recall(b, produced, due)
    assert recall(b, delay(b, "new", 10_000), b.now_ms + 10_000)
    pass_ms(b, 20_000)
    assert bodies(b) == [] and b.machine.timers.counts["dropped"] == 1


def test_topic_takes_messages_of_its_incarnation_and_queues() -> None:
    """And to a queue that it has: a message that names another one could not be delivered."""
    b = bench()
    b.configure(queues=2, incarnation=3)
    asked = [("t", 3, 0), ("t", 3, 1), ("t", 3, 2), ("t", 2, 0), ("t", 4, 0), ("u", 3, 0)]
    assert [b.machine.takes(*one) for one in asked] == [True, True, False, False, False, False]


def test_topic_deletion_drops_only_waiting_delayed_messages() -> None:
    """What was recalled, or delivered, before the topic was deleted stays that."""
    b = bench()
    states = []
    made = {
        body: delay(b, body, ms)
        for body, ms in (("waits", 9_000), ("recalled", 9_000), ("comes", 1_000))
    }
    assert recall(b, made["recalled"], b.now_ms + 9_000)
    pass_ms(b, 1_000)
    for _ in range(2):
        for produced in made.values():
            offset = produced.queue_offsets[0]
            positions, sizes, _codes = b.machine.units(
                TIMER_TOPIC, slot_of(produced.fire_ms[0]), offset, 1
            )
            states.append(
                b.machine.delayed_state(
                    offset, bytes(b.machine.properties(int(positions[0]), int(sizes[0])))
                )[0]
            )
        b.ask(Configure(next(b.tokens), deleted_topics=("t",)))
    assert states[:3] == ["delayed", "recalled", states[2]] and states[2] not in (
        "delayed",
        "dropped",
    )
    assert states[3:] == ["dropped", *states[1:3]]


def test_a_recall_with_another_time_means_another_message() -> None:
    """A client that repeats an id with another delivery time holds the place of the first message
    with the time of the second."""
    b = bench()
    due = b.now_ms + 10_000
    produced = delay(b, "one", 10_000)
    assert not recall(b, produced, due + 1_000) and not recall(b, produced, due - 1_000)
    pass_ms(b, 10_000)
    assert bodies(b) == ["one"]


def test_a_recall_finds_a_message_that_was_stored_again() -> None:
    """The handle names its first place; the message has moved to another slot since."""
    b = bench()
    after = 5 * 24 * 3_600_000
    due = b.now_ms + after
    produced = delay(b, "x", after)
    b.turn(at_ns=b.now_ns + 4 * 24 * HOUR)
    settle(b)
    assert b.machine.timers.counts["rolled"] == 1
    assert recall(b, produced, due) and not recall(b, produced, due)
    b.turn(at_ns=b.now_ns + 2 * 24 * HOUR)
    settle(b)
    assert bodies(b) == [] and b.machine.timers.pending == 0


def test_recalls_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a recall is refused, and says why."""
    monkeypatch.setattr("ledgermq.node.broker.parts.timers.timer_firing.RECALLED_MAX", 1)
    assert RECALLED_MAX > 1
    b = bench()
    due = b.now_ms + 1_000
    first, second = delay(b, "a", 1_000), delay(b, "b", 1_000)
    assert recall(b, first, due)
    outcome = b.ask(Recall(next(b.tokens), due, second.fire_ms[0], second.queue_offsets[0]))
    assert isinstance(outcome, Refused) and outcome.reason == "too-many-recalls"


def test_delayed_messages_of_a_deleted_topic_do_not_block_others() -> None:
    """Also when a topic of that name was made again meanwhile: it is another one."""
    b = bench()
    b.configure("u")
    delay(b, "of t", 1_000)
    delay(b, "of u", 1_000, "u")
    delay(b, "of t too", 1_001)
    b.ask(Configure(next(b.tokens), deleted_topics=("t",)))
    b.configure("t", incarnation=2)
    pass_ms(b, 2_000)
    assert (bodies(b), bodies(b, "u")) == ([], ["of u"])
    assert b.machine.timers.counts["dropped"] == 2 and b.machine.timers.pending == 0


def test_firing_waits_for_a_full_disk_without_spinning() -> None:
    """Nothing is lost, nothing fires twice, and the group does not wake all the time."""
    b = bench()
    delay(b, "x", 100)
    b.replicator.full = True
    b.pass_time(100 * MS)
    b.turn()
    turns = 0
    while b.now_ns < 11 * SECOND and turns < 100:
        assert b.output is not None
        b.turn(at_ns=max(b.now_ns + 1, b.output.wake_at_ns))
        turns += 1
    assert bodies(b) == [] and turns < 50
    b.replicator.full = False
    b.pass_time(SECOND)
    settle(b)
    assert bodies(b) == ["x"]


@pytest.mark.parametrize("ms", [1, 5_000])
def test_a_window_holds_no_more_than_its_rows(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """All due in one millisecond, or spread: they fire in order although a window holds but a few
    of them."""
    monkeypatch.setattr(timer_window, "WINDOW_ROWS", 8)
    monkeypatch.setattr(timer_window, "SCAN_UNITS", 16)
    monkeypatch.setattr(timer_firing, "BATCH", 5)
    b = bench()
    base = (b.now_ms // SLOT_MS + 1) * SLOT_MS
    times = [base + (i * 7919) % ms for i in range(100)]
    for start in range(0, 100, 10):
        b.ask(
            Produce(
                next(b.tokens),
                [
                    delayed(f"{at}-{start + i}", at)
                    for i, at in enumerate(times[start : start + 10])
                ],
            )
        )
    most = 0
    end = b.now_ns + 2 * SLOT_MS * MS
    while b.now_ns < end:
        assert b.output is not None
        b.turn(at_ns=max(b.now_ns, min(end, b.output.wake_at_ns)))
        held = b.group.leader.timer_firing._window
        most = max(most, 0 if held is None else len(held.keys))
    expected = [f"{at}-{i}" for at, i in sorted((at, i) for i, at in enumerate(times))]
    assert bodies(b) == expected and most <= 2 * 8 + 16


def test_a_leader_that_is_late_stores_again_before_it_moves_on() -> None:
    """A message beyond the reach fires hours late for its next round: its copy is logged before any
    record that moves the watermark past it."""
    b = bench()
    after = 10 * 24 * 3_600_000
    delay(b, "x", after)
    for _ in range(4):
        b.turn(at_ns=b.now_ns + 3 * 24 * HOUR)
        settle(b)
        delay(b, "y", 1)
        pass_ms(b, 1)
    assert bodies(b) == ["y", "y", "y", "x", "y"]
    assert b.machine.timers.counts["rolled"] >= 3 and b.machine.timers.pending == 0


def test_late_message_of_an_earlier_minute_fires_before_the_next_minute() -> None:
    """It was in the log and not committed while the leader went on to the next minute; in the turn
    that commits it nothing overtakes it."""
    b = bench()
    base = (b.now_ms // SLOT_MS + 1) * SLOT_MS - b.now_ms
    delay(b, "next minute", base + 10)
    b.replicator.commit_at_once = False
    b.turn(Produce(next(b.tokens), [delayed("this minute", b.now_ms + base - 10)]))
    for step in (base - 20, 20, 20):
        b.pass_time(step * MS)
        settle(b)
    assert bodies(b) == []
    b.replicator.commit_at_once = True
    b.turn()
    assert bodies(b) in ([], ["this minute"])
    settle(b)
    assert bodies(b) == ["this minute", "next minute"]


def test_watermark_stops_at_the_first_due_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message beyond the reach is sent while others are late: the watermark rises to the first of
    these and no further."""
    monkeypatch.setattr(timer_firing, "BATCH", 1)
    b = bench()
    ten_hours = 10 * 3_600_000
    for body in ("a", "b", "c"):
        delay(b, body, ten_hours)
    b.turn(at_ns=b.now_ns + 20 * HOUR)
    delay(b, "far", 90 * 3_600_000)
    settle(b)
    assert bodies(b) == ["a", "b", "c"]
    b.turn(at_ns=b.now_ns + 90 * HOUR)
    settle(b)
    b.turn(at_ns=b.now_ns + HOUR)
    settle(b)
    assert bodies(b) == ["a", "b", "c", "far"]


def test_waiting_delayed_message_pins_the_log() -> None:
    """From the first message of the earliest slot that something waits in; what was recalled or has
    fired pins nothing."""
    b = bench()
    assert list(timer_pin(b.machine)) == []
    due = b.now_ms + 5_000
    b.send("before")
    first = delay(b, "x", 5_000)
    delay(b, "y", 200_000)
    (pin,) = timer_pin(b.machine)
    positions = [
        b.queues.rows[TIMER_TOPIC, slot_of(due)][0][0],
        b.queues.rows[TIMER_TOPIC, slot_of(b.now_ms + 200_000)][0][0],
    ]
    assert (pin.kind, pin.pos) == (
        "timer",
        positions[0],
    ) and "2 delayed messages wait" in pin.detail
    assert recall(b, first, due)
    pass_ms(b, 60_000)
    delay(b, "z", 1)
    pass_ms(b, 100_000)
    (pin,) = timer_pin(b.machine)
    assert pin.pos == positions[1] and "1 delayed message waits" in pin.detail
    pass_ms(b, 60_000)
    assert list(timer_pin(b.machine)) == []
    statistics = b.group.statistics()
    assert [
        statistics[f"timers_{name}"] for name in ("pending", "stored", "fired", "recalled")
    ] == [0, 3, 2, 1]


def test_recalled_message_pins_the_log_until_its_time() -> None:
    """Its record is read once more, to report the recall; then nothing is pinned, although no later
    message moves the watermark."""
    b = bench()
    due = b.now_ms + 5_000
    assert recall(b, delay(b, "x", 5_000), due)
    assert b.machine.timers.pending == 0
    (pin,) = timer_pin(b.machine)
    assert pin.pos == b.queues.rows[TIMER_TOPIC, slot_of(due)][0][0]
    pass_ms(b, 5_000)
    assert list(timer_pin(b.machine)) == [] and bodies(b) == []


def test_slot_without_waiting_messages_may_be_trimmed() -> None:
    """What comes into the same minute afterwards fires."""
    b = bench()
    base = (b.now_ms // SLOT_MS + 1) * SLOT_MS - b.now_ms
    delay(b, "x", base + 1)
    pass_ms(b, base + 1)
    # This one came after the leader had read the slot, and is taken back.
    slot, due = (TIMER_TOPIC, slot_of(b.now_ms)), b.now_ms + 30_000
    produced = b.group.turn(
        b.now_ns, b.now_ms, [Produce(99, [delayed("gone", due)]), Recall(98, due, due, 1)]
    ).done
    assert {done.token for done in produced} == {98, 99}
    b.queues.low[slot] = b.machine.end(*slot)
    delay(b, "y", 5)
    pass_ms(b, 5)
    assert bodies(b) == ["x", "y"]


@pytest.mark.parametrize("obstacle", ["consume queues", "handover"])
def test_due_timers_retry_slowly_while_appends_are_refused(obstacle: str) -> None:
    """The consume queues find no room, or leadership is being handed over: the group looks again
    now and then, and fires afterwards."""
    b = bench()
    delay(b, "x", 100)
    if obstacle == "handover":
        b.replicator.handover = SimpleNamespace(closed=True)  # type: ignore[assignment]
    else:
        b.queues.full = True
        b.send("y")
    b.pass_time(100 * MS)
    turns = 0
    while b.now_ns < 11 * SECOND and turns < 100:
        assert b.output is not None
        b.turn(at_ns=max(b.now_ns + 1, b.output.wake_at_ns))
        turns += 1
    assert bodies(b) == [] and turns < 60
    b.replicator.handover, b.queues.full = None, False
    b.pass_time(SECOND)
    settle(b)
    assert "x" in bodies(b)
