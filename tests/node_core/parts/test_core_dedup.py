"""Topics with a deduplication window: a message id is stored once, whatever is repeated, restarted
or moved to another leader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.calls.member_calls import RaiseLevel
from ledgermq.node.broker.calls.operator_calls import Configure, Kept
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.calls.transaction_calls import Prepare, Resolve
from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.sends import message_ids as ids_module
from ledgermq.node.broker.parts.sends.message_ids import Ids
from ledgermq.node.broker.plan import Known
from ledgermq.proto.entries.properties import DELIVER_MS, Fields, edited, encode
from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.records.control import LevelRecord
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind
from tests.node_core.core_fakes import EPOCH_MS, SECOND, Bench, MemoryQueues
from tests.node_core.core_world import merged

WINDOW_MS = 60_000
LOG_ID = "00000000-0000-0000-0000-000000000001"


def config(
    name: str = "t",
    dedup_ms: int = WINDOW_MS,
    incarnation: int = 1,
    kind: TopicKind = TopicKind.NORMAL,
) -> TopicConfig:
    return TopicConfig("", name, kind, 2, Permission.READ_WRITE, incarnation, dedup_ms=dedup_ms)


def drafts(*names: str, topic: str = "t", queue: int = 0) -> list[Draft]:
    return [Draft(topic, queue, b"x", encode(Fields(message_id=name)), EPOCH_MS) for name in names]


def by(
    born_host: str,
    body: bytes = b"x",
    *keys: str,
    topic: str = "t",
    born_ms: int = EPOCH_MS,
    **fields: Any,
) -> Draft:
    """A message with the id "a"."""
    properties = encode(Fields(message_id="a", born_host=born_host, keys=keys, **fields))
    return Draft(topic, 0, body, properties, born_ms, deliver_ms=fields.get("deliver_ms", 0))


class DedupBench(Bench):
    def __init__(self, policy: FlushPolicy = FlushPolicy.DURABLE, level: int = LEVEL_MAX) -> None:
        super().__init__(settings=LeaderSettings(times=LeaseTimes(handover_ns=0), policy=policy))
        self.lead(1)
        self.upgrade(level)
        self.ask(Configure(next(self.tokens), topics=(config(), config("plain", 0))))

    def upgrade(self, level: int) -> None:
        asked = frozenset(self.replicator.members.voters)
        for wanted in range(self.machine.level + 1, level + 1):
            assert self.ask(RaiseLevel(next(self.tokens), LevelRecord(wanted), asked)) == Kept()

    def store(self, *names: str, topic: str = "t", queue: int = 0) -> tuple[int, ...]:
        return self.store_all(*drafts(*names, topic=topic, queue=queue))

    def store_all(self, *messages: Draft) -> tuple[int, ...]:
        outcome = self.ask(Produce(next(self.tokens), list(messages)))
        assert isinstance(outcome, Produced) and outcome.durability == "durable", outcome
        return outcome.queue_offsets

    def restarted(self) -> DedupBench:
        """Another replica that takes over from a snapshot."""
        other = DedupBench.__new__(DedupBench)
        Bench.__init__(other, self.log, self.settings)
        other.queues.rows = self.queues.rows
        other.machine.restore(self.machine.export(LOG_ID))
        other.now_ns, other.tokens = self.now_ns, self.tokens
        return other


@pytest.fixture(params=[1, LEVEL_MAX], ids="level-{}".format)
def bench(request: pytest.FixtureRequest) -> DedupBench:
    return DedupBench(level=request.param)


def test_a_duplicate_gets_the_first_offset_and_is_not_stored(bench: DedupBench) -> None:
    """Within the window the same id is answered with the offset of the first, whichever queue it
    names; other ids and topics are not concerned."""
    assert bench.store("a") == (0,)
    assert bench.store("b") == (1,)
    assert bench.store("a", queue=1) == (0,)
    assert (bench.machine.end("t", 0), bench.machine.end("t", 1)) == (2, 0)
    assert bench.store("a", topic="plain") == (0,) and bench.store("a", topic="plain") == (1,)
    assert (
        bench.group.statistics()["duplicates"] == 1 and bench.group.statistics()["message_ids"] == 2
    )


def test_the_window_is_counted_in_store_time(bench: DedupBench) -> None:
    """At the end of the window an id is still known, one millisecond later it is new, and
    remembered anew."""
    bench.store("a")
    bench.pass_time(WINDOW_MS * 1_000_000)
    assert bench.store("a") == (0,)
    bench.pass_time(1_000_000)
    assert bench.store("a") == (1,)
    assert bench.store("a") == (1,)
    assert bench.machine.ids.count == 1


def test_a_duplicate_of_an_uncommitted_message_waits_for_its_commit(bench: DedupBench) -> None:
    """Two calls in one turn, and one while the first copy is not committed: all are answered with
    it, after its commit, and nothing is stored twice."""
    bench.replicator.commit_at_once = False
    first, second = (
        Produce(next(bench.tokens), drafts("a")),
        Produce(next(bench.tokens), drafts("a", "b")),
    )
    bench.turn(first, second)
    third = Produce(next(bench.tokens), drafts("a"))
    bench.turn(third)
    assert not {first.token, second.token, third.token} & set(bench.done)
    bench.replicator.commit_at_once = True
    bench.turn()
    offsets = [bench.done[call.token].queue_offsets for call in (first, second, third)]  # type: ignore[union-attr]
    assert offsets == [(0,), (0, 1), (0,)]
    assert bench.machine.end("t", 0) == 2


def test_a_batch_that_the_log_refused_leaves_no_trace(bench: DedupBench) -> None:
    """A full disk takes nothing; the same id is stored once there is room."""
    bench.replicator.full = True
    refused = bench.ask(Produce(next(bench.tokens), drafts("a")))
    assert isinstance(refused, Refused) and refused.reason == "disk-full"
    bench.replicator.full = False
    assert bench.store("a") == (0,)


def test_the_window_survives_a_snapshot(bench: DedupBench) -> None:
    """A replica that starts from a snapshot answers as the others do, and its state is the same."""
    bench.store("a", "b")
    bench.pass_time(SECOND)
    bench.store("c")
    other = bench.restarted()
    assert other.machine.ids.export() == bench.machine.ids.export()
    other.lead(7)
    assert other.store("b", "c", "d") == (1, 2, 3)


def test_topics_that_change(bench: DedupBench) -> None:
    """Without a window ids are forgotten; a new incarnation has none; a window that begins later
    knows nothing of before."""
    bench.store("a")
    bench.ask(Configure(next(bench.tokens), topics=(config(dedup_ms=0),)))
    assert bench.machine.ids.count == 0
    assert bench.store("a") == (1,)
    bench.ask(Configure(next(bench.tokens), topics=(config(),)))
    assert bench.store("a") == (2,) and bench.store("a") == (2,)
    bench.ask(Configure(next(bench.tokens), topics=(config(incarnation=2),)))
    assert bench.store("a") == (3,)
    bench.ask(Configure(next(bench.tokens), deleted_topics=("t",)))
    assert bench.machine.ids.count == 0


def test_a_topic_with_a_window_is_always_durable() -> None:
    """Where the policy answers from memory, ids are answered when they are durable: a lost first
    copy would make the second a loss."""
    bench = DedupBench(FlushPolicy.MEMORY)
    bench.replicator.commit_at_once = False
    bench.replicator.replicated = 1 << 40
    call, plain = (
        Produce(next(bench.tokens), drafts("a")),
        Produce(next(bench.tokens), drafts("a", topic="plain")),
    )
    bench.turn(plain)
    bench.turn(call)
    assert plain.token in bench.done and call.token not in bench.done


def test_half_messages_are_stored_once(bench: DedupBench) -> None:
    """A transaction that is begun twice with one id is one transaction: the same half, one visible
    message, no second one afterwards."""
    bench.ask(Configure(next(bench.tokens), topics=(config("x", kind=TopicKind.TRANSACTION),)))
    half = drafts("m", topic="x")
    first = bench.ask(Prepare(next(bench.tokens), half, [None]))
    again = bench.ask(Prepare(next(bench.tokens), [*half, *drafts("n", topic="x")], [None, None]))
    assert isinstance(first, Produced) and isinstance(again, Produced)
    assert (first.queue_offsets, again.queue_offsets) == ((0,), (0, 1))
    bench.ask(Resolve(next(bench.tokens), 0, "x", "m", True))
    assert bench.machine.end("x", 0) == 1
    last = bench.ask(Prepare(next(bench.tokens), half, [None]))
    assert isinstance(last, Produced) and last.queue_offsets == (0,)
    assert bench.machine.end("x", 0) == 1


def test_delayed_messages_are_stored_once(bench: DedupBench) -> None:
    """A delayed message that is sent again while it waits, and after it was delivered, is the same
    one: same place in the wheel for its recall, one visible message."""
    at_ms = bench.now_ms + 10_000
    waiting = replace(
        *drafts("late"),
        properties=encode(Fields(message_id="late", deliver_ms=at_ms)),
        deliver_ms=at_ms,
    )
    first = bench.ask(Produce(next(bench.tokens), [waiting]))
    again = bench.ask(Produce(next(bench.tokens), [*drafts("other"), waiting]))
    assert isinstance(first, Produced) and isinstance(again, Produced)
    assert (
        first.fire_ms[0] > 0
        and again.fire_ms == (0, *first.fire_ms)
        and again.queue_offsets == (0, *first.queue_offsets)
    )
    for _ in range(12):
        bench.pass_time(SECOND)
    assert bench.machine.end("t", 0) == 2
    last = bench.ask(Produce(next(bench.tokens), [waiting]))
    assert isinstance(last, Produced) and (last.queue_offsets, last.fire_ms) == (
        first.queue_offsets,
        first.fire_ms,
    )
    assert bench.machine.end("t", 0) == 2
    assert bench.restarted().machine.ids.export() == bench.machine.ids.export()


def test_the_window_of_a_delayed_message_begins_when_it_is_sent(bench: DedupBench) -> None:
    """What a waiting message becomes is no new message with its id: a window that was over before
    stays over."""
    at_ms = bench.now_ms + 3 * WINDOW_MS
    late = replace(
        *drafts("m"), properties=encode(Fields(message_id="m", deliver_ms=at_ms)), deliver_ms=at_ms
    )
    bench.ask(Produce(next(bench.tokens), [late]))
    for _ in range(3 * WINDOW_MS // 1000 + 2):
        bench.pass_time(SECOND)
    assert bench.machine.end("t", 0) == 1
    assert bench.store("m") == (1,)


# -- equal ids of different messages


OTHERS = [
    by("h2"),
    by("h1", b"y"),
    by("h1", b""),
    by("h1", b"x", "k"),
    by("h1", b"x", "k l"),
    by("h1", b"x", "k", "l"),
]
"""Messages that differ from each other, and from `by("h1")`, in one of what is compared."""


@pytest.mark.parametrize("late", [False, True], ids=["at-once", "delayed"])
@pytest.mark.parametrize("half", [False, True], ids=["visible", "half"])
def test_another_message_with_a_known_id_is_stored(late: bool, half: bool) -> None:
    """Two senders that made one id, in one call and in several: each message is stored once, and
    each repetition is answered with the place of its own first copy. A message as a half or a
    delayed one is compared by its own topic and body."""
    bench = DedupBench()
    bench.ask(
        Configure(next(bench.tokens), topics=(config(), config("x", kind=TopicKind.TRANSACTION)))
    )
    messages = [by("h1"), *OTHERS]
    if late:
        at_ms = bench.now_ms + 10_000
        messages = [
            replace(
                one, properties=edited(one.properties, {DELIVER_MS: str(at_ms)}), deliver_ms=at_ms
            )
            for one in messages
        ]
    if half:
        messages = [replace(one, stored_topic="x", deliver_ms=0) for one in messages]

    def send(*some: Draft) -> tuple[int, ...]:
        if half:
            outcome = bench.ask(Prepare(next(bench.tokens), list(some), [None] * len(some)))
            assert isinstance(outcome, Produced)
            return outcome.queue_offsets
        return bench.store_all(*some)

    places = [*send(messages[0]), *send(*messages[1:4], messages[1], *messages[4:])]
    del places[4]
    assert len(set(places)) == len(messages)
    for _ in range(2):
        assert [send(one) for one in messages] == [(place,) for place in places]
        assert list(send(*messages)) == places
        bench = bench.restarted()
        bench.lead(7)
    assert bench.group.statistics()["message_ids"] == len(messages)


def test_repeated_send_with_changed_mutable_properties_is_a_duplicate(bench: DedupBench) -> None:
    """The time of birth, and what an interceptor may set anew: tag, trace context, properties,
    delivery time."""
    assert bench.store_all(by("h1")) == (0,)
    at_ms = bench.now_ms + 10_000
    again = (
        by("h1", born_ms=EPOCH_MS + 5),
        by("h1", tag="n", trace_context="c", user={"p": "1"}),
        by("h1", deliver_ms=at_ms),
    )
    assert [bench.store_all(one) for one in again] == [(0,)] * 3


def test_lite_topics_of_one_parent_are_compared_by_their_own_names() -> None:
    """The window belongs to the parent topic, and one message for two lite topics is two
    messages."""
    bench = DedupBench()
    bench.ask(Configure(next(bench.tokens), topics=(config("L", kind=TopicKind.LITE),)))
    one, other = by("h1", topic="L$x"), by("h1", topic="L$y")
    assert [
        bench.store_all(one),
        bench.store_all(other),
        bench.store_all(one),
        bench.store_all(other),
    ] == [(0,)] * 4
    assert (bench.machine.end("L$x", 0), bench.machine.end("L$y", 0)) == (1, 1)


def test_another_message_waits_while_its_id_is_not_committed() -> None:
    """It is stored when the first one is committed."""
    bench = DedupBench()
    bench.replicator.commit_at_once = False
    calls = [Produce(next(bench.tokens), [one]) for one in (by("h1"), by("h2"), by("h1"))]
    bench.turn(*calls)
    assert not {call.token for call in calls} & set(bench.done) and bench.machine.end("t", 0) == 0
    bench.replicator.commit_at_once = True
    bench.turn()
    bench.turn()
    assert [bench.done[call.token].queue_offsets for call in calls] == [(0,), (1,), (0,)]  # type: ignore[union-attr]


def test_below_the_level_an_id_alone_counts_and_goes_on_counting_for_its_window() -> None:
    """What was stored before the level was raised is recognised by its id, in whatever message,
    until its window ends. What is stored afterwards is compared."""
    bench = DedupBench(level=2)
    assert [bench.store_all(one) for one in (by("h1"), by("h2"))] == [(0,), (0,)]
    bench.upgrade(LEVEL_MAX)
    bench = bench.restarted()
    bench.lead(7)
    assert [bench.store_all(one) for one in (by("h1"), by("h2"))] == [(0,), (0,)]
    assert bench.store("b") == (1,)
    bench.pass_time((WINDOW_MS + 1) * 1_000_000)
    assert [bench.store_all(one) for one in (by("h1"), by("h2"), by("h1"), by("h2"))] == [
        (2,),
        (3,),
        (2,),
        (3,),
    ]


@given(st.lists(st.sampled_from(["h1", "h2", "raise", "turn"]), max_size=8), st.integers(1, 9))
def test_message_ids_are_equal_for_any_cut_of_applied_ranges(steps: list[str], most: int) -> None:
    """The level counts for the messages behind its record, also for a replica that applies both in
    one range."""
    bench = DedupBench(level=1)
    for step in steps:
        if step == "raise":
            bench.upgrade(min(LEVEL_MAX, bench.machine.level + 1))
        elif step == "turn":
            bench.pass_time(WINDOW_MS * 600_000)
        else:
            bench.store_all(by(step))
    other, ranges = Machine(MemoryQueues(), bench.log.record, bench.log.index_at), merged(bench.log)
    while other.applied_index < bench.log.end_index:
        first = other.applied_index + 1
        entries = tail_of(next(entries for entries in ranges if first <= entries.last_index), first)
        other.apply(cut(entries, first + most - 1))
    assert other.ids.export() == bench.machine.ids.export() and other.level == bench.machine.level


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of kept ids is bounded per topic and in total: the oldest ids of the largest topic
    are removed first; the export restores the state."""
    monkeypatch.setattr(ids_module, "TOPIC_MAX", 5)
    monkeypatch.setattr(ids_module, "ALL_MAX", 8)
    ids = Ids()
    for n in range(7):
        ids.apply("big", b"%016d" % n, Known(n, 1, n), 1000)
    assert (ids.count, ids.forgotten_early) == (5, 2)
    for n in range(5):
        ids.apply("small", b"%016d" % n, Known(10 + n, 0, n), 1000)
    assert (ids.count, ids.forgotten_early) == (8, 4)
    known = {
        topic: [n for n in range(7) if ids.find(topic, b"%016d" % n, "", 0)]
        for topic in ("big", "small")
    }
    assert known == {"big": [3, 4, 5, 6], "small": [1, 2, 3, 4]}
    again = Ids()
    again.restore(ids.export())
    assert again.export() == ids.export() and again.count == 8
    assert (
        again.find("big", b"%016d" % 4, "", 0) == Known(4, 1, 4)
        and again.find("big", b"%016d" % 4, "", 5) is None
    )


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4)),
        st.tuples(st.just("hold"), st.booleans()),
        st.tuples(st.just("time"), st.sampled_from([1, WINDOW_MS // 2, WINDOW_MS])),
        st.tuples(st.just("fail"), st.booleans()),
    ),
    max_size=25,
)


@given(steps)
def test_no_id_is_stored_twice_within_a_window(history: list[tuple[str, object]]) -> None:
    """Against a plain list of what is in the log: sends, held commits, passing time, elections that
    keep or cut the tail. No two entries of the topic with one id lie within a window, and every
    answer names an entry with that id."""
    bench = DedupBench()
    asked: dict[int, list[str]] = {}
    term = 1
    for what, value in history:
        if what == "send":
            call = Produce(next(bench.tokens), drafts(*value))  # type: ignore[misc]
            asked[call.token] = list(value)  # type: ignore[call-overload]
            bench.turn(call)
        elif what == "hold":
            bench.replicator.commit_at_once = not value
            bench.turn()
        elif what == "time":
            bench.pass_time(value * 1_000_000)  # type: ignore[operator]
        else:
            term += 2
            bench.replicator.follow(term - 1, "n2")
            bench.turn()
            if value:
                bench.log.cut(bench.replicator.commit_index)
            bench.lead(term)
    bench.replicator.commit_at_once = True
    bench.turn()
    stored = list(entries_of(bench))
    for at, (_, name, ms) in enumerate(stored):
        assert all(
            other != name or later - ms > WINDOW_MS for _, other, later in stored[at + 1 :]
        ), stored
    names = {offset: name for offset, name, _ in stored}
    for token, wanted in asked.items():
        outcome = bench.done[token]
        if isinstance(outcome, Produced):
            assert [names[offset] for offset in outcome.queue_offsets] == wanted
    assert bench.restarted().machine.export(LOG_ID) == bench.machine.export(LOG_ID)


def entries_of(bench: DedupBench) -> Iterator[tuple[int, str, int]]:
    """(queue offset, id, store time) of everything committed in the topic."""
    for offset in range(bench.machine.end("t", 0)):
        positions, sizes, _ = bench.machine.units("t", 0, offset, 1)
        record = bench.machine.properties(int(positions[0]), int(sizes[0])).decode()
        yield (
            offset,
            record.split("\x01")[1].split("\x02")[0],
            bench.machine.stored_ms("t", 0, offset),
        )
