"""Filters that must read records: only matching messages are delivered, nothing stalls, and no
consumer starves."""

from __future__ import annotations

from dataclasses import replace

from ledgermq.node.broker.calls.consumer_calls import Receive
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.read_calls import Pull, Pulled
from ledgermq.node.broker.filters.filters import LOOKS_PER_CALL, LOOKS_PER_TURN, sql_filter
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft, GroupConfig
from tests.node_core.core_fakes import EPOCH_MS, Bench


class CountedBench(Bench):
    """Counts the records whose properties were looked at."""

    looked = 0

    def __init__(self) -> None:
        super().__init__()
        read = self.machine.properties

        def counted(position: int, size: int) -> bytes:
            self.looked += 1
            return read(position, size)

        self.machine.properties = counted  # type: ignore[method-assign]
        self.lead(1)

    def flood(self, topic: str, count: int, match_at: int = -1) -> None:
        """Messages with a property `n`; the one at `match_at` has `wanted`."""
        drafts = []
        for n in range(count):
            user = {"n": str(n), **({"wanted": "1"} if n == match_at else {})}
            drafts.append(
                Draft(
                    topic, 0, b"x", encode(Fields(message_id=f"{topic}-{n}", user=user)), EPOCH_MS
                )
            )
        self.ask(replace(self.produce(), drafts=drafts))

    def sql(self, expression: str, topic: str = "t", **options: object) -> Receive:
        return replace(self.poll(topic=topic, **options), filter=sql_filter(expression))  # type: ignore[arg-type]


def test_a_match_behind_a_flood_comes_though_each_turn_looks_at_few() -> None:
    """Non-matching messages are passed over in bounded turns that follow each other by themselves,
    until the match is reached."""
    bench = CountedBench()
    bench.configure("t")
    bench.flood("t", 5 * LOOKS_PER_TURN, match_at=5 * LOOKS_PER_TURN - 1)
    call = bench.sql("wanted = 1")
    turns, output = 0, bench.turn(call)
    while call.token not in bench.done:
        assert output.wake_at_ns <= bench.now_ns, (
            "the group goes to sleep before it has looked at everything"
        )
        before = bench.looked
        output = bench.turn()
        assert bench.looked - before <= LOOKS_PER_TURN + 1
        turns += 1
        assert turns < 20
    (lease,) = bench.done[call.token].leases  # type: ignore[union-attr]
    assert (lease.queue_offset, lease.attempt) == (5 * LOOKS_PER_TURN - 1, 1)
    assert bench.machine.delivery.cursor(("g", "t", 0)) == 5 * LOOKS_PER_TURN
    assert bench.machine.delivery.in_flight == 1


def test_a_flood_does_not_starve_other_pairs_that_look_too() -> None:
    """Pairs that look at records take turns, also when a turn does not reach all of them: the one
    behind little is served while more than a turn can look at still work through their floods."""
    bench = CountedBench()
    floods = [f"flooded-{n}" for n in range(LOOKS_PER_TURN // LOOKS_PER_CALL + 2)]
    for topic in (*floods, "quiet"):
        bench.configure(topic)
        bench.flood(
            topic,
            LOOKS_PER_CALL if topic == "quiet" else 5 * LOOKS_PER_TURN,
            match_at=5 if topic == "quiet" else -1,
        )
    slow, quick = (
        [bench.sql("wanted = 1", topic=topic) for topic in floods],
        bench.sql("wanted = 1", topic="quiet"),
    )
    bench.turn(*slow, quick)
    for _ in range(3):
        bench.turn()
    assert quick.token in bench.done and not {call.token for call in slow} & set(bench.done)


def test_receives_without_a_filter_are_served_beside_a_flood() -> None:
    """A receive without a filter needs no record reads, and is served in the turn in which the
    flood used up the budget of reads."""
    bench = CountedBench()
    bench.configure("flooded")
    bench.configure("plain")
    bench.flood("flooded", 4 * LOOKS_PER_TURN)
    bench.send("hello", topic="plain")
    slow, quick = bench.sql("wanted = 1", topic="flooded"), bench.poll(topic="plain")
    bench.turn(slow, quick)
    assert quick.token in bench.done and slow.token not in bench.done


def test_an_implied_tag_spares_reading() -> None:
    """With a tag equality only records whose tag has that hash are read."""
    bench = CountedBench()
    bench.configure("t")
    for tag in ("x", "y", "y", "y", "x"):
        bench.send("m", tag=tag)
    call = bench.sql("TAGS = 'x' AND nothing IS NULL")
    bench.turn(call)
    assert [lease.queue_offset for lease in bench.done[call.token].leases] == [0, 4]  # type: ignore[union-attr]
    assert bench.looked == 2


def test_messages_visible_again_are_filtered_as_well() -> None:
    """A message leased under one filter and visible again is passed over under another, and
    done."""
    bench = CountedBench()
    bench.configure("t")
    bench.flood("t", 2, match_at=1)
    first, second = bench.receive()
    bench.change(first, 0)
    bench.change(second, 0)
    call = bench.sql("wanted = 1")
    bench.turn(call)
    assert [lease.queue_offset for lease in bench.done[call.token].leases] == [1]  # type: ignore[union-attr]
    assert bench.machine.delivery.in_flight == 1


def test_a_pull_goes_through_a_flood_in_bounded_turns() -> None:
    """A pull with an SQL filter finds the match behind many other messages, and returns where to
    continue."""
    bench = CountedBench()
    bench.configure("t")
    bench.flood("t", 3 * LOOKS_PER_TURN, match_at=3 * LOOKS_PER_TURN - 1)
    call = Pull(
        next(bench.tokens),
        "t",
        0,
        0,
        sql_filter("wanted = 1"),
        32,
        1 << 20,
        bench.now_ns + 5_000_000_000,
    )
    output = bench.turn(call)
    for _ in range(20):
        if call.token in bench.done:
            break
        assert output.wake_at_ns <= bench.now_ns
        before = bench.looked
        output = bench.turn()
        assert bench.looked - before <= LOOKS_PER_TURN + 1
    outcome = bench.done[call.token]
    assert isinstance(outcome, Pulled) and outcome.offsets == (3 * LOOKS_PER_TURN - 1,)


def test_a_fifo_group_goes_through_a_flood_as_well() -> None:
    """In a FIFO group, messages that do not match are skipped in bounded turns too, and lock no
    message group. The properties of each are read twice: for the filter, and for the message
    group."""
    bench = CountedBench()
    bench.configure("t")
    bench.ask(Configure(next(bench.tokens), groups=(GroupConfig("", "g", fifo=True),)))
    bench.flood("t", 3 * LOOKS_PER_TURN, match_at=3 * LOOKS_PER_TURN - 1)
    call = bench.sql("wanted = 1")
    bench.turn(call)
    for _ in range(20):
        if call.token in bench.done:
            break
        before = bench.looked
        bench.turn()
        assert bench.looked - before <= 2 * (LOOKS_PER_TURN + 1)
    assert [lease.queue_offset for lease in bench.done[call.token].leases] == [
        3 * LOOKS_PER_TURN - 1
    ]  # type: ignore[union-attr]
    assert bench.machine.delivery.in_flight == 1
