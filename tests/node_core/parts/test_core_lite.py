"""Lite topics in one broker group: sets, places and order against a model, and the same state
however the log is cut into ranges."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    ClientGone,
    Forward,
    Forwarded,
    Lease,
    LiteSynced,
    Receive,
    Received,
    SyncLite,
)
from ledgermq.node.broker.calls.operator_calls import Configure, LettersSettled, SettleLetters, Trim
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.queues import LITE_FLOOR_STEP
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.proto.names import lite_stored
from ledgermq.proto.records import control
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicKind
from tests.node_core.core_fakes import LOG_ID, SECOND, Bench, MemoryQueues, draft, handle

TOPIC = TopicConfig("", "L", TopicKind.LITE, 2, Permission.READ_WRITE, 1)
LIVENESS_S = 10


def make(**options: Any) -> Bench:
    times = LeaseTimes(handover_ns=0, liveness_ns=LIVENESS_S * SECOND)
    b = Bench(settings=LeaderSettings(times=times, **options))
    b.lead(1)
    b.ask(
        Configure(
            next(b.tokens),
            topics=(TOPIC,),
            groups=(GroupConfig("", "g", lite_topic="L"), GroupConfig("", "h", lite_topic="L")),
        )
    )
    return b


def send(b: Bench, lite: str, *bodies: str) -> object:
    return b.ask(Produce(next(b.tokens), [draft(body, lite_stored("L", lite)) for body in bodies]))


def sync(
    b: Bench, action: Any, *names: str, group: str = "g", client: str = "c", **options: Any
) -> object:
    return b.ask(SyncLite(next(b.tokens), group, "L", client, action, names, **options))


def receive(
    b: Bench, group: str = "g", client: str = "c", n: int = 32, invisible_ms: int = 10_000
) -> tuple[Lease, ...]:
    call = Receive(
        next(b.tokens), group, "L", client, TagFilter(), n, invisible_ms, b.now_ns, lite=True
    )
    outcome = b.ask(call)
    assert isinstance(outcome, Received)
    return outcome.leases


def bodies(leases: tuple[Lease, ...]) -> list[tuple[str, str]]:
    return [
        (lease.topic.partition("$")[2], bytes(decode_record(lease.record).body).decode())
        for lease in leases
    ]


def ack(b: Bench, *leases: Lease, group: str = "g") -> tuple[bool, ...]:
    outcome = b.ask(Ack(next(b.tokens), [handle(lease, group, lease.topic) for lease in leases]))
    return outcome.ok  # type: ignore[union-attr]


def names(b: Bench, group: str = "g", client: str = "c") -> set[str]:
    return set(b.machine.lite.names((group, "L", client)))


def test_receive_examines_only_lite_topics_with_messages() -> None:
    """With thousands of lite topics in a set, a Receive looks at those that got something."""
    b = make()
    sync(b, "set", *(f"n{number}" for number in range(2000)))
    send(b, "n7", "a")
    send(b, "elsewhere", "x")
    send(b, "n1999", "b")
    looked: list[str] = []
    look = b.group.leader.lite._look

    def counted(key: Any, most: int, max_bytes: int) -> Any:
        looked.append(key[1])
        return look(key, most, max_bytes)

    b.group.leader.lite._look = counted  # type: ignore[method-assign]
    leases = receive(b)
    assert bodies(leases) == [("n7", "a"), ("n1999", "b")]
    assert ack(b, *leases) == (True, True)
    assert receive(b) == () and len(looked) <= 6


def test_a_plan_that_the_log_refused_hides_no_lite_topic() -> None:
    """A dead letter that found no room locked its lite topic while it was planned; waiting receives
    still get the message."""
    b = make()
    sync(b, "set", "a")
    send(b, "a", "1")
    (held,) = receive(b, invisible_ms=1000)
    b.pass_time(2 * SECOND)
    b.replicator.full = True
    forward = Forward(next(b.tokens), handle(held, "g", held.topic))
    again = Receive(
        next(b.tokens), "g", "L", "c", TagFilter(), 1, 1000, b.now_ns + SECOND, lite=True
    )
    b.turn(forward, again)
    assert isinstance(b.done[forward.token], Refused)
    assert bodies(b.done[again.token].leases) == [("a", "1")]  # type: ignore[union-attr]


def test_a_full_disk_costs_no_attempt_beyond_the_limit() -> None:
    """A message that used up its attempts waits for room for its dead letter, and those behind it
    wait with it."""
    b = make(max_attempts=1)
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    sync(b, "set", "a")
    send(b, "a", "1", "2")
    assert bodies(receive(b, n=1, invisible_ms=1000)) == [("a", "1")]
    b.pass_time(2 * SECOND)
    b.group.writes_refused = True
    call = Receive(
        next(b.tokens), "g", "L", "c", TagFilter(), 2, 1000, b.now_ns + 5 * SECOND, lite=True
    )
    assert b.ask(call) is None and b.pass_time(SECOND).wake_at_ns > b.now_ns
    b.group.writes_refused = False
    b.turn()
    assert bodies(b.done[call.token].leases) == [("a", "2")]  # type: ignore[union-attr]
    assert "%DLQ%g" in b.machine.topics


def test_a_client_is_given_the_liveness_limit_by_every_leader() -> None:
    """Its set goes when it was silent for that long under one leader."""
    b = make()
    sync(b, "set", "a")
    b.pass_time((LIVENESS_S - 1) * SECOND)
    b.replicator.follow(2, None)
    b.turn()
    b.lead(3)
    b.pass_time((LIVENESS_S - 1) * SECOND)
    assert names(b) == {"a"}
    for _ in range(3):
        b.pass_time(SECOND)
    assert names(b) == set()
    assert b.machine.lite.count == 0 and not b.group.leader.lite._maybe


def test_the_number_of_lite_topics_is_bounded() -> None:
    """A topic accepts a limited number of lite topics; existing ones continue."""
    b = make(lite_topics_max=2)
    assert not isinstance(send(b, "a", "1"), Refused) and not isinstance(send(b, "b", "1"), Refused)
    refused = send(b, "c", "1")
    assert isinstance(refused, Refused) and refused.reason == "lite-topics"
    assert not isinstance(send(b, "a", "2"), Refused)
    several = b.ask(Produce(next(b.tokens), [draft("x", "L$d"), draft("y", "L$e")]))
    assert isinstance(several, Refused) and several.reason == "lite-topics"


def test_a_place_in_an_empty_lite_topic_is_forgotten_with_its_last_reader() -> None:
    """Names that never had a message leave nothing behind, however many are subscribed to."""
    b = make()
    for number in range(50):
        sync(b, "set", f"n{number}", f"m{number}")
    assert len(b.machine.delivery.queues) == 2
    sync(b, "set", "kept", client="other")
    sync(b, "set", "kept")
    sync(b, "set")
    assert set(b.machine.delivery.queues) == {("g", "L$kept", 0)}
    b.turn(ClientGone("other", b.now_ns))
    b.turn()
    assert not b.machine.delivery.queues and names(b, client="other") == set()


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_where_a_group_begins_does_not_depend_on_how_the_log_is_cut(size: int) -> None:
    """Messages right before and right behind a subscription are on the right side of it on every
    replica."""
    b = make()
    b.replicator.commit_at_once = False
    tokens = [next(b.tokens) for _ in range(2)]
    b.turn(
        Produce(next(b.tokens), [draft("before", "L$a")]),
        SyncLite(tokens[0], "g", "L", "c", "add", ("a",)),
        Produce(next(b.tokens), [draft("behind", "L$a")]),
        SyncLite(tokens[1], "h", "L", "c", "add", ("a",), start="min"),
    )
    b.replicator.commit_at_once = True
    b.turn()
    assert replayed(b, size) == b.machine.export(LOG_ID)
    assert b.machine.delivery.cursor(("g", "L$a", 0)) == 1
    assert bodies(receive(b)) == [("a", "behind")]


def replayed(b: Bench, size: int) -> dict[str, Any]:
    """The state of another replica that applied the log in pieces of this many entries."""
    machine = Machine(MemoryQueues(), b.log.record)
    while machine.applied_index < b.machine.applied_index:
        first = machine.applied_index + 1
        entries = tail_of(b.log.read(first), first)
        last = min(entries.last_index, first + size - 1, b.machine.applied_index)
        machine.apply(cut(entries, last))
    return json.loads(json.dumps(machine.export(LOG_ID)))


NAMES = ("a", "b", "c")
NAME = st.sampled_from(NAMES)
CLIENT = st.tuples(st.sampled_from(["g", "h"]), st.sampled_from(["c", "d"]))
STEP = st.one_of(
    *[st.tuples(st.just("send"), NAME, st.integers(1, 3))] * 2,
    *[st.tuples(st.just("receive"), CLIENT, st.integers(1, 4))] * 3,
    *[st.tuples(st.just("add"), CLIENT, st.just(NAMES))] * 2,
    st.tuples(
        st.sampled_from(["add", "remove", "set"]), CLIENT, st.lists(NAME, max_size=3).map(tuple)
    ),
    st.tuples(st.just("min"), CLIENT, NAME),
    st.tuples(st.just("ack"), CLIENT, st.integers(0, 8)),
    *[st.tuples(st.just("pass"), st.sampled_from([1, 12, 40]))] * 2,
    st.tuples(st.just("gone"), st.sampled_from(["c", "d"])),
    st.tuples(st.just("lead")),
)


@dataclass
class Model:
    """What lite topics, sets and order mean, without a log."""

    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    sets: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    """(group, name) → next message never given"""
    held: dict[tuple[str, str], dict[int, Lease]] = field(default_factory=dict)
    until_ns: dict[tuple[str, str], int] = field(default_factory=dict)

    def change(self, client: tuple[str, str], wanted: set[str], start: int | None = None) -> None:
        group, before = client[0], self.sets.get(client, set())
        self.sets[client] = wanted
        for name in wanted - before:
            if start is not None:
                self.places[group, name] = start
                self.held.pop((group, name), None)
            else:
                self.places.setdefault((group, name), self.ends[name])
        for name in before - wanted:
            read = any(name in names for (other, _), names in self.sets.items() if other == group)
            if not read and not self.ends[name]:
                self.places.pop((group, name), None)


@given(st.lists(STEP, min_size=25, max_size=50), st.integers(1, 5))
def test_lite_delivery_equals_a_model(steps: list[tuple[Any, ...]], size: int) -> None:
    """Whatever is sent, subscribed, received, acknowledged and lost: each client gets its own lite
    topics only, each in order, none of one that is held; and another replica has the same state,
    however it came by the log."""
    b, model = make(), Model()
    for step in steps:
        if step[0] == "send":
            _, name, count = step
            send(b, name, *(f"{model.ends[name] + i}" for i in range(count)))
            model.ends[name] += count
        elif step[0] in ("add", "remove", "set"):
            action, client, wanted = step
            outcome = sync(b, action, *wanted, group=client[0], client=client[1])
            before = model.sets.get(client, set())
            model.change(
                client,
                before | set(wanted)
                if action == "add"
                else before - set(wanted)
                if action == "remove"
                else set(wanted),
            )
            assert outcome == LiteSynced(len(model.sets[client]))
        elif step[0] == "min":
            _, client, name = step
            sync(b, "add", name, group=client[0], client=client[1], start="min")
            model.change(client, model.sets.get(client, set()) | {name}, 0)
        elif step[0] == "receive":
            _, client, most = step
            check_receive(
                model, client, receive(b, *client, n=most, invisible_ms=10_000), b.now_ns, most
            )
        elif step[0] == "ack":
            _, client, which = step
            held = [
                (key, at)
                for key in sorted(model.held)
                if key[0] == client[0]
                for at in sorted(model.held[key])
            ]
            if held:
                key, at = held[which % len(held)]
                alive = b.now_ns < model.until_ns[key]
                assert ack(b, model.held[key][at], group=client[0]) == (alive,)
                if alive:
                    del model.held[key][at]
        elif step[0] == "pass":
            b.pass_time(step[1] * SECOND // 8)
        elif step[0] == "gone":
            b.turn(ClientGone(step[1], b.now_ns))
            b.turn()
            for group in ("g", "h"):
                model.change((group, step[1]), set())
        elif step[0] == "lead":
            b.replicator.follow(b.replicator.term + 1, None)
            b.turn()
            b.lead()
            model.until_ns = dict.fromkeys(model.until_ns, b.now_ns + 10 * SECOND)
        for group in ("g", "h"):
            for client in ("c", "d"):
                assert names(b, group, client) == model.sets.get((group, client), set())
        b.turn(
            *(
                Receive(next(b.tokens), "x", "L", c, TagFilter(), 1, 1, b.now_ns, lite=True)
                for c in ("c", "d")
            )
        )
    assert replayed(b, size) == json.loads(json.dumps(b.machine.export(LOG_ID)))


def check_receive(
    model: Model, client: tuple[str, str], leases: tuple[Lease, ...], now_ns: int, most: int
) -> None:
    group, got = client[0], {}  # type: ignore[var-annotated]
    for lease in leases:
        got.setdefault(lease.topic.partition("$")[2], []).append(lease)
    assert len(leases) <= most and got.keys() <= model.sets.get(client, set())
    free = 0
    for name in sorted(model.sets.get(client, set())):
        key = (group, name)
        held = model.held.get(key, {})
        locked = bool(held) and now_ns < model.until_ns[key]
        wanted = [] if locked else sorted(held) or list(range(model.places[key], model.ends[name]))
        given = [lease.queue_offset for lease in got.get(name, [])]
        assert given == wanted[: len(given)], (name, given, wanted)
        free += len(wanted)
        if given:
            model.places[key] = max(model.places[key], given[-1] + 1)
            model.held[key] = held | {lease.queue_offset: lease for lease in got[name]}
            model.until_ns[key] = now_ns + 10 * SECOND
    assert len(leases) == min(most, free)


def test_attempts_of_a_lite_topic_end_also_behind_a_resent_message() -> None:
    """A resent message has all its attempts again, and stands before one that has used up its
    own."""
    b = make(max_attempts=1)
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    sync(b, "set", "a")
    send(b, "a", "0", "1")
    zero, _ = receive(b, invisible_ms=1000)
    assert b.ask(Forward(next(b.tokens), handle(zero, "g", zero.topic))) == Forwarded(True)
    assert b.ask(SettleLetters(next(b.tokens), "%DLQ%g", (0,), "resent")) == LettersSettled(
        ("resent",)
    )
    b.pass_time(2 * SECOND)
    (again,) = receive(b, invisible_ms=1000)
    assert bodies((again,)) == [("a", "0")] and again.attempt == 1
    assert ack(b, again) == (True,)
    assert receive(b) == () and b.machine.end("%DLQ%g", 0) == 2, (
        "1 is a dead letter and was not delivered again"
    )


def test_exhausted_lite_batch_becomes_dead_letters_at_once() -> None:
    b = make(max_attempts=1)
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    sync(b, "set", "a")
    send(b, "a", "0", "1", "2", "3")
    assert len(receive(b, n=3, invisible_ms=1000)) == 3
    b.pass_time(2 * SECOND)
    assert bodies(receive(b)) == [("a", "3")] and b.machine.end("%DLQ%g", 0) == 3


def test_a_dead_letter_of_a_lite_topic_ends_in_the_dead_letter_topic_of_its_group() -> None:
    """The group that gives it up there again, by its attempts or by a forward, makes no copy."""
    b = make(max_attempts=1)
    b.ask(Configure(next(b.tokens), deleted_groups=("g",)))
    sync(b, "set", "a")
    send(b, "a", "0", "1")
    receive(b, invisible_ms=1000)
    b.pass_time(2 * SECOND)
    assert receive(b) == ()
    first, _ = b.receive(topic="%DLQ%g", invisible_ms=1000)
    assert b.forward(first, topic="%DLQ%g")
    b.pass_time(2 * SECOND)
    assert (
        b.receive(topic="%DLQ%g") == ()
        and b.machine.end("%DLQ%g", 0) == 2
        and b.machine.delivery.in_flight == 0
    )


def trim(b: Bench, index: int) -> None:
    """Let the log begin with this entry."""
    before = cut(tail_of(b.log.read(index - 1), index - 1), index - 1)
    entries = tail_of(b.log.read(index), index)
    record = control.TrimRecord(
        index,
        entries.pos,
        before.term,
        before.last_chain,
        b.machine.begin_index,
        ((0, None),),
        "operator",
    )
    assert not isinstance(b.ask(Trim(next(b.tokens), record)), Refused)


def test_a_lite_topic_without_messages_vanishes_with_a_trim() -> None:
    """Its queue, its name and positions of groups without readers are removed; if it is created
    again, it begins above all former offsets."""
    b = make(lite_topics_max=2)
    sync(b, "set", "a", "b")
    sync(b, "set", "a", group="h")
    send(b, "a", "0", "1")
    assert ack(b, *receive(b)) == (True, True)
    held = receive(b, "h")
    sync(b, "set", group="h")
    send(b, "b", "x")
    last = b.log.end_index
    assert isinstance(send(b, "c", "y"), Refused)
    trim(b, last)
    assert set(b.machine.lite_topics("L")) == {"L$b"} and "L$a" not in b.queues.next_offsets()
    assert ack(b, *held, group="h") == (False, False)
    assert {key[:2] for key in b.machine.delivery.queues} == {("g", "L$a"), ("g", "L$b")}
    restored = Machine(b.queues, b.log.record)
    restored.restore(json.loads(json.dumps(b.machine.export(LOG_ID))))
    assert restored.export(LOG_ID) == b.machine.export(LOG_ID)
    send(b, "a", "2")
    got = sorted(receive(b), key=lambda lease: lease.queue_offset)
    assert bodies(tuple(got)) == [("b", "x"), ("a", "2")]
    assert got[1].queue_offset == LITE_FLOOR_STEP and b.machine.begin("L$a", 0) == LITE_FLOOR_STEP
    assert ack(b, *got) == (True, True)
    send(b, "a", "3")
    assert receive(b)[0].queue_offset == LITE_FLOOR_STEP + 1
    assert isinstance(send(b, "c", "y"), Refused)


def test_a_send_behind_a_trim_that_is_not_applied_waits() -> None:
    """It must not get an offset of a lite topic that is about to vanish."""
    b = make()
    send(b, "a", "0")
    b.send("plain", topic="L$other")
    b.replicator.commit_at_once = False
    index = b.log.end_index
    entries, before = tail_of(b.log.read(index), index), tail_of(b.log.read(index - 1), index - 1)
    record = control.TrimRecord(
        index, entries.pos, before.term, before.last_chain, 0, ((0, None),), "operator"
    )
    late = Produce(next(b.tokens), [draft("1", "L$a")])
    b.turn(Trim(next(b.tokens), record), late)
    assert late.token not in b.done
    b.replicator.commit_at_once = True
    b.turn()
    b.turn()
    produced = b.done[late.token]
    assert isinstance(produced, Produced) and produced.queue_offsets == (LITE_FLOOR_STEP,)


def test_resent_letter_precedes_later_messages_of_its_lite_topic() -> None:
    """Its lite topic is locked by it as by any message, and a Receive that waits is woken."""
    b = make()
    sync(b, "set", "a")
    send(b, "a", "1", "2")
    (held,) = receive(b, n=1)
    assert b.ask(Forward(next(b.tokens), handle(held, "g", held.topic))) == Forwarded(True)
    call = SettleLetters(next(b.tokens), "%DLQ%g", (0,), "resent")
    assert b.ask(call) == LettersSettled(("resent",))
    b.turn()
    got = receive(b)
    assert bodies(got) == [("a", "1"), ("a", "2")] and [lease.attempt for lease in got] == [1, 1]
    assert ack(b, *got) == (True, True)
    (held,) = send(b, "a", "3") and receive(b)
    assert b.ask(Forward(next(b.tokens), handle(held, "g", held.topic))) == Forwarded(True)
    waiting = Receive(
        next(b.tokens), "g", "L", "c", TagFilter(), 1, 1000, b.now_ns + 5 * SECOND, lite=True
    )
    b.turn(waiting)
    b.ask(SettleLetters(next(b.tokens), "%DLQ%g", (1,), "resent"))
    b.turn()
    assert bodies(b.done[waiting.token].leases) == [("a", "3")]  # type: ignore[union-attr]
