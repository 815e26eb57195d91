"""Consumers with leases below the local begin: a trim whose files the object store has moves no
position, and messages come from batches that the leader asks for. The invariants L1 to L6 are those
of docs/decisions/2026-11-28-leases-below-the-local-begin.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ledgermq.node.broker.calls.consumer_calls import Forward, Forwarded, Lease, Received
from ledgermq.node.broker.calls.operator_calls import Configure, Reset
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.tier_calls import TierFetch, TierFetched
from ledgermq.node.broker.parts.delivery import tier_messages
from ledgermq.node.broker.parts.delivery.picker import Job
from ledgermq.node.broker.queries.backlog import backlog, positions
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.replica.retention.retention_facts import consumed_queues, consumer_pins
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import DLQ_ORIGIN_TOPIC, parse
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicKind
from tests.call_counts import calls_of
from tests.node_core.core_fakes import LOG_ID, SECOND, Bench, handle

KEY: QueueKey = ("g", "t", 0)


def made(*, queues: int = 1, sent: int = 10, **group: object) -> Bench:
    """A group `g` with attempts to spare, and messages m0 … in queue 0."""
    bench = Bench()
    bench.lead()
    bench.configure(queues=queues)
    if group:
        bench.ask(Configure(next(bench.tokens), groups=(GroupConfig("", "g", **group),)))  # type: ignore[arg-type]
    for number in range(sent):
        bench.send(f"m{number}", tag="AB"[number % 2])
    return bench


def index_of(bench: Bench, offset: int, queue: int = 0) -> int:
    """The entry of a message of topic t."""
    return bench.log.index_at(bench.queues.rows["t", queue][offset][0])


def trim(bench: Bench, offset: int, *, stored: bool = True) -> None:
    """The local log begins with a message of topic t."""
    bench.trim(index_of(bench, offset), stored=stored)
    assert bench.machine.begin("t", 0) == offset


def bodies(leases: tuple[Lease, ...]) -> list[str]:
    return [decode_record(lease.record).body.decode() for lease in leases]


def names(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


def get(bench: Bench, **options: object) -> tuple[Lease, ...]:
    """A Receive that waits until the store has answered."""
    call = bench.poll(**options)  # type: ignore[arg-type]
    bench.turn(call)
    for _ in range(4):
        if call.token not in bench.done:
            bench.turn()
    outcome = bench.done.get(call.token)
    assert isinstance(outcome, Received), "the Receive still waits"
    return outcome.leases


def test_a_stored_trim_moves_no_position() -> None:
    """L1: a slow group goes on where it was, with its attempts, and a new one begins with the first
    message."""
    bench = made()
    first = bench.receive(n=3)
    assert bench.ack(first[0]) == (True,)
    trim(bench, 7)
    assert bench.machine.delivery.cursor(KEY) == 3 and bench.machine.delivery.in_flight == 2
    assert bench.ack(first[1]) == (True,)
    assert bodies(get(bench, n=5)) == names(3, 4, 5, 6, 7)
    assert bodies(get(bench, group="new", n=32)) == names(*range(10))
    bench.pass_time(11 * SECOND)
    again = get(bench, n=1)
    assert bodies(again) == ["m2"] and again[0].attempt == 2
    bench.send("behind")
    assert "behind" in bodies(bench.receive(group="new"))


def test_another_trim_still_raises_positions() -> None:
    """Without the store, what is trimmed is done for every group, also what an earlier trim had
    left in the store."""
    bench = made()
    trim(bench, 3)
    bench.turn(bench.poll(group="other", n=1))
    assert (bench.machine.delivery.cursor(KEY), bench.machine.first_position("t", 0)) == (0, 0)
    trim(bench, 6, stored=False)
    assert (bench.machine.delivery.cursor(KEY), bench.machine.first_position("t", 0)) == (6, 6)
    assert bodies(bench.receive(n=32)) == names(6, 7, 8, 9) and not bench.tier.pending
    bench.ask(Reset(next(bench.tokens), "g", "t", ((0, 1),)))
    assert bench.machine.delivery.cursor(KEY) == 6
    trim(bench, 8)
    bench.ask(Reset(next(bench.tokens), "g", "t", ((0, 1),)))
    assert bench.machine.delivery.cursor(KEY) == 1


def test_stored_trim_wakes_a_group_that_now_begins_lower() -> None:
    """A group that was served nothing of a queue begins with the first offset that the store may
    have, also one that waits already."""
    bench = made()
    bench.configure("u")
    bench.send("other", topic="u")
    bench.trim(bench.log.end_index, stored=False)
    call = bench.poll(n=32, wait_ns=60 * SECOND)
    bench.turn(call)
    assert (
        call.token not in bench.done
        and bench.machine.begin("t", 0) == bench.machine.end("t", 0) == 10
    )
    bench.send("another", topic="u")
    bench.trim(bench.log.end_index)
    bench.turn()
    assert bodies(bench.done[call.token].leases) == names(*range(10))  # type: ignore[union-attr]


def test_state_and_snapshot_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """L6: a replica that applies the log, and one that begins with a snapshot, have the same
    positions."""
    bench = made()
    bench.receive(n=2)
    trim(bench, 7)
    follower = Bench(bench.log)
    follower.replicator.commit_index = bench.replicator.commit_index
    follower.turn()
    exported = follower.machine.export(LOG_ID)
    assert (
        exported == bench.machine.export(LOG_ID)
        and exported["retained"]["trims"][-1][2]["stored"] is True
    )
    again = Bench()
    again.machine.restore(exported)
    assert again.machine.retained.stored and again.machine.delivery.cursor(KEY) == 2


def test_absent_store_delays_only_receives_that_need_it() -> None:
    """L2 and L4: other queues and groups go on, no position moves, and the leader asks again by
    itself."""
    bench = made(queues=2)
    bench.receive(group="ahead", n=32)
    bench.tier.away = True
    trim(bench, 7)
    bench.send("other", queue=1)
    waiting, behind = (
        bench.poll(group="new", n=1, wait_ns=60 * SECOND),
        bench.poll(group="new", n=32, wait_ns=60 * SECOND),
    )
    bench.turn(waiting, behind)
    assert bodies(bench.done[waiting.token].leases) == ["other"] and behind.token not in bench.done  # type: ignore[union-attr]
    bench.send("hot")
    assert sorted(bodies(bench.receive(group="ahead"))) == ["hot", "other"]
    for _ in range(3):
        bench.pass_time(3 * SECOND)
        assert (
            bench.machine.delivery.cursor(("new", "t", 0)) == 0 and behind.token not in bench.done
        )
        assert bench.output is not None and bench.output.wake_at_ns < bench.now_ns + 3 * SECOND
    assert (
        bench.group.statistics()["tier_waiting"] == 1
        and bench.group.statistics()["tier_failures"] >= 2
    )
    bench.tier.away = False
    bench.pass_time(3 * SECOND)
    bench.turn()
    found = bodies(bench.done[behind.token].leases)  # type: ignore[union-attr]
    assert [body for body in found if body != "other"] == [*names(*range(10)), "hot"]
    assert (
        bench.group.leader.tier.failure_of(("new", "t")) == ""
        and bench.group.statistics()["tier_waiting"] == 0
    )


@pytest.mark.parametrize("fifo", [False, True], ids=["ordinary", "fifo"])
def test_fetched_message_is_not_overtaken_by_lower_priority(fifo: bool) -> None:
    """L3: of the messages that wait, the one with the highest priority comes first, also from the
    store."""
    bench = Bench()
    bench.lead()
    topic = TopicConfig("", "t", TopicKind.PRIORITY, 2, Permission.READ_WRITE, 1)
    bench.ask(
        Configure(next(bench.tokens), topics=(topic,), groups=(GroupConfig("", "g", fifo=fifo),))
    )
    bench.send_of("A", "first", queue=1)
    bench.send_of("B", "high", queue=1)
    bench.send_of("C", "low", queue=0)
    assert bodies(bench.receive(n=1)) == ["first"]
    bench.trim(index_of(bench, 0))
    lead_again(bench)
    bench.tier.held = True
    call = bench.poll(n=1)
    bench.turn(call)
    assert call.token not in bench.done
    bench.tier.held = False
    bench.turn()
    bench.turn()
    assert bodies(bench.done[call.token].leases) == ["high"]  # type: ignore[union-attr]
    assert bodies(bench.receive(n=1)) == ["low"]


@pytest.mark.parametrize("fifo", [False, True], ids=["ordinary", "fifo"])
def test_messages_visible_again_wait_for_the_store_without_a_cost(
    fifo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4: a turn asks for one of them, and those that are on the disk are delivered."""
    bench = made(sent=0, fifo=fifo)
    for number in range(60):
        bench.send_of(f"G{number}", f"m{number}")
    assert len(bench.receive(n=60)) == 60
    trim(bench, 50)
    bench.tier.held = True
    bench.pass_time(11 * SECOND)
    considered: list[int] = []
    consider = Job._consider
    monkeypatch.setattr(
        Job,
        "_consider",
        lambda job, key, offset: (considered.append(offset), consider(job, key, offset))[1],
    )
    assert bodies(bench.receive(n=32)) == names(*range(50, 60))
    assert len(considered) == 11 and min(considered) < 50


def test_a_poll_that_ends_while_the_store_is_away_is_not_empty() -> None:
    """An empty answer would say that there is nothing for the group. Once the group needs nothing
    of the store, it is true again."""
    bench = made()
    trim(bench, 10 - 1)
    bench.tier.away = True
    call = bench.poll(n=32, wait_ns=3 * SECOND)
    bench.turn(call)
    bench.turn()
    bench.pass_time(4 * SECOND)
    assert bench.done[call.token] == Refused("store-away", detail="away")
    bench.ask(Reset(next(bench.tokens), "g", "t", ((0, 10),)))
    assert bench.receive() == ()


def test_a_poll_that_ends_before_the_store_has_answered_is_not_empty() -> None:
    """A store that is slow, or has many to serve, has not said that nothing is left."""
    bench = made()
    trim(bench, 8)
    bench.tier.held = True
    calls = [
        bench.poll(group=f"g{number}", n=32, wait_ns=3 * SECOND)
        for number in range(tier_messages.FETCHES_MAX + 1)
    ]
    for number, call in enumerate(calls):
        bench.ask(Reset(next(bench.tokens), call.group, "t", ((0, number),)))
        bench.turn(call)
    assert len(bench.tier.pending) == tier_messages.FETCHES_MAX
    bench.pass_time(4 * SECOND)
    assert [bench.done[call.token] for call in calls] == [
        Refused("store-away", detail=tier_messages.NOT_YET)
    ] * len(calls)
    bench.tier.held = False
    bench.turn()
    assert (
        bodies(get(bench, group="g2", n=32)) == names(*range(2, 10))
        and bench.receive(group="g2") == ()
    )


def test_messages_removed_by_total_retention_are_passed_over() -> None:
    """L2: messages never leased, leased ones whose lease is over, and nothing else; the log has
    it."""
    bench = made()
    kept = bench.receive(n=4)
    bench.pass_time(11 * SECOND)
    trim(bench, 8)
    bench.tier.begin_pos = bench.queues.rows["t", 0][6][0]
    assert bodies(get(bench, group="new")) == names(6, 7, 8, 9)
    assert bench.machine.delivery.in_flight == 4 + 4
    # The messages of the other group went while they were visible again.
    assert bodies(get(bench)) == names(6, 7, 8, 9)
    bench.turn()
    assert (
        bench.group.statistics()["gone"] == 6 + 4 + 2
        and bench.group.statistics()["passed_over"] == 0
    )
    assert bench.machine.delivery.is_done(KEY, 0) and bench.machine.delivery.lease(KEY, 3) is None
    assert bench.ack(kept[0]) == (False,)
    bench.tier.begin_pos = bench.queues.rows["t", 0][8][0]
    assert bodies(get(bench, group="early")) == names(6, 7, 8, 9), "what is at hand was committed"
    bench.group.leader.tier.resign()
    assert bodies(get(bench, group="late")) == names(8, 9)


def test_filters_and_dead_letters_of_messages_in_the_store() -> None:
    """L3: what does not match is passed over, and what used up its attempts is copied as it was
    stored."""
    bench = made(max_attempts=1)
    trim(bench, 8)
    assert bodies(get(bench, tags=["B"], n=2)) == names(1, 3)
    assert bench.machine.delivery.is_done(KEY, 2)
    bench.pass_time(11 * SECOND)
    assert bodies(get(bench, tags=["B"])) == names(5, 7, 9)
    stored = [bench.machine.record(*row[:2]) for row in bench.queues.rows["%DLQ%g", 0]]
    letters = [decode_record(record) for record in stored]
    assert [letter.body for letter in letters] == [b"m1", b"m3"]
    assert parse(letters[0].properties)[DLQ_ORIGIN_TOPIC] == "t" and int.from_bytes(
        stored[0][76:84], "big"
    ) == index_of(bench, 1)


def test_a_consumer_gives_up_a_message_that_is_in_the_store() -> None:
    """The copy waits for the message; of one that no longer exists there is none."""
    bench = made()
    first, second = bench.receive(n=2)
    trim(bench, 8)
    call = Forward(next(bench.tokens), handle(first))
    bench.turn(call)
    assert call.token not in bench.done
    bench.turn()
    assert bench.done[call.token] == Forwarded(True) and len(bench.queues.rows["%DLQ%g", 0]) == 1
    bench.group.leader.tier.resign()
    bench.tier.begin_pos = bench.queues.rows["t", 0][5][0]
    call = Forward(next(bench.tokens), handle(second))
    bench.turn(call)
    bench.turn()
    assert bench.done[call.token] == Forwarded(False) and len(bench.queues.rows["%DLQ%g", 0]) == 1


def test_a_message_is_not_given_up_while_the_store_is_away() -> None:
    """The caller is told, and nothing is kept for calls that are repeated for as long as that
    lasts; the lease stays."""
    bench = made()
    (first,) = bench.receive(n=1)
    trim(bench, 8)
    bench.tier.away = True
    for _ in range(3):
        call = Forward(next(bench.tokens), handle(first))
        bench.turn(call)
        bench.turn()
        assert bench.done[call.token] == Refused("store-away", detail="away")
    assert len(bench.tier.asked) == 1 and bench.machine.delivery.lease(KEY, 0) is not None
    bench.pass_time(3 * SECOND)
    bench.tier.away = False
    call = Forward(next(bench.tokens), handle(first))
    bench.turn(call)
    bench.turn()
    assert bench.done[call.token] == Forwarded(True)


def lead_again(bench: Bench) -> None:
    bench.replicator.follow(bench.replicator.term + 1, None)
    bench.turn()
    bench.lead()


def test_message_groups_keep_their_order() -> None:
    """L3, in a FIFO group: the next leader reads the message groups of what is in flight from the
    store, before it hands out anything."""
    bench = made(sent=0, fifo=True)
    for number in range(8):
        bench.send_of("A" if number % 2 == 0 else "B", f"m{number}")
    first = bench.receive(n=1, attempt_id="one")
    assert bodies(first) == ["m0"]
    trim(bench, 6)
    lead_again(bench)
    bench.tier.held = True
    call = bench.poll(n=32, attempt_id="two")
    bench.turn(call)
    bench.turn()
    assert call.token not in bench.done, "m0 may lock what comes behind it"
    bench.tier.held = False
    bench.turn()
    bench.turn()
    assert bodies(bench.done[call.token].leases) == names(1, 3, 5, 7)  # type: ignore[union-attr]
    lead_again(bench)
    again = get(bench, n=32, attempt_id="one")
    assert bodies(again) == ["m0"] and bench.ack(again[0]) == (True,)
    assert bodies(get(bench, n=32, attempt_id="three")) == names(2, 4, 6)
    bench.pass_time(11 * SECOND)
    assert bodies(get(bench, n=32, attempt_id="four")) == names(1, 3, 5, 7, 2, 4, 6)


def test_message_groups_that_are_fetched_cost_no_turn() -> None:
    """L4: while the message groups of many messages in flight are not known, a turn that looks at
    the queue asks for one of them."""
    bench = made(sent=0, fifo=True)
    for number in range(40):
        bench.send_of(f"G{number}", f"m{number}")
    assert len(bench.receive(n=39)) == 39
    trim(bench, 39)
    lead_again(bench)
    bench.tier.held = True
    bench.turn(bench.poll(n=1))
    groups, asked = bench.group.leader._groups, []
    groups._name_of = lambda key, offset: asked.append(offset)
    assert groups.order(KEY) is None and asked == [0]


def test_repeated_attempt_waits_for_its_stored_messages() -> None:
    """A Receive with the attempt id of one whose messages only the store has gets those, and no
    other message meanwhile."""
    bench = made(queues=2, sent=0, fifo=True)
    for number in range(8):
        bench.send_of("A", f"m{number}")
    assert bodies(bench.receive(n=1, attempt_id="one")) == ["m0"]
    trim(bench, 6)
    bench.send_of("B", "other", queue=1)
    lead_again(bench)
    bench.tier.held = True
    call = bench.poll(n=32, attempt_id="one")
    bench.turn(call)
    assert call.token not in bench.done
    assert bodies(bench.receive(n=32, attempt_id="two")) == ["other"]
    bench.tier.held = False
    bench.turn()
    bench.turn()
    assert bodies(bench.done[call.token].leases) == ["m0"]  # type: ignore[union-attr]


def test_removed_message_does_not_lock_a_fifo_group() -> None:
    """A message that no longer exists locks no other one."""
    bench = made(sent=0, fifo=True)
    for number in range(8):
        bench.send_of("A", f"m{number}")
    bench.receive(n=2)
    trim(bench, 7)
    bench.tier.begin_pos = bench.queues.rows["t", 0][4][0]
    lead_again(bench)
    assert bodies(get(bench, n=32)) == names(4, 5, 6, 7)
    bench.pass_time(11 * SECOND)
    assert bodies(get(bench, n=32)) == names(4, 5, 6, 7) and not bench.machine.delivery.holds(
        ("x", "t", 0), 0
    )
    assert bench.machine.delivery.lease(KEY, 0) is None


def test_late_and_foreign_answers_have_no_effect() -> None:
    """An answer of a former leadership is no message of this one."""
    bench = made()
    trim(bench, 8)
    bench.tier.held = True
    bench.turn(bench.poll(n=1))
    (fetch,) = bench.tier.pending
    answer = bench.tier.answer(fetch)
    lead_again(bench)
    bench.turn(answer, TierFetched(replace(fetch, number=99), 5))
    assert bench.group.leader.tier.size == 0
    bench.turn(bench.poll(n=1))
    assert bench.tier.pending[-1].number > fetch.number
    bench.tier.held, bench.tier.away = False, True
    bench.turn()
    assert (
        bench.group.leader.tier.failure_of(("g", "t"))
        and bench.group.leader.tier.retry_ns < 1 << 62
    )
    lead_again(bench)
    assert (
        not bench.group.leader.tier.failure_of(("g", "t"))
        and bench.group.leader.tier.retry_ns == 1 << 62
    )


def test_an_answer_to_a_former_life_is_no_answer() -> None:
    """A replica that was opened again in the same process counts its fetches from 1 again, for
    other messages. Nor is one for the same message that was asked for at another time."""
    former = made(queues=2)
    for number in range(10):
        former.send(f"other{number}", queue=1)
    former.trim(former.log.end_index)
    former.tier.held = True
    former.turn(former.poll(group="a", n=1))
    (late, *_) = [former.tier.answer(fetch) for fetch in former.tier.pending]
    bench = Bench(former.log)
    bench.replicator.commit_index = former.replicator.commit_index
    bench.lead(2)
    bench.ask(Reset(next(bench.tokens), "g", "t", ((0, 10),)))
    bench.tier.held = True
    call = bench.poll(n=1)
    bench.turn(call)
    (fetch,) = bench.tier.pending
    assert (fetch.queue, fetch.number) == (1, late.fetch.number) and late.fetch.queue == 0
    bench.turn(late)
    bench.turn(TierFetched(replace(fetch, number=fetch.number + 1), fetch.first + 5))
    assert call.token not in bench.done
    bench.tier.held = False
    bench.turn()
    assert bodies(bench.done[call.token].leases) == ["other0"]  # type: ignore[union-attr]


def test_half_applied_trim_delays_fetches() -> None:
    """Where the queues begin and where the log does would not fit each other, and what lies between
    would look gone."""
    bench = made()
    trim(bench, 8)
    tier = bench.group.leader.tier
    tier.want(KEY, 0)
    bench.machine.settled = False
    assert tier.fetches() == ()
    bench.machine.settled = True
    assert [fetch.first for fetch in tier.fetches()] == [0]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """L5: few fetches at a time, each limited, and old batches make room; groups that read the same
    place share it."""
    for name, value in {
        "BATCH_BYTES": 1000,
        "BATCH_MESSAGES": 5,
        "FETCHES_MAX": 2,
        "BYTES_MAX": 4000,
    }.items():
        monkeypatch.setattr(tier_messages, name, value)
    bench = made(queues=3, sent=0)
    for queue in range(3):
        bench.send(*[f"{queue}-{number:02d}" for number in range(40)], queue=queue)
    bench.trim(bench.log.end_index)
    most = sent = 0
    calls = [bench.poll(group=f"g{number}", n=1) for number in range(3)]
    bench.turn(*calls)
    assert [
        (fetch.topic, fetch.queue, fetch.first, fetch.count) for fetch in bench.tier.pending
    ] == [("t", 0, 0, 5), ("t", 1, 0, 5)]
    got: dict[str, list[str]] = {}
    for _ in range(400):
        if not calls:
            break
        bench.turn()
        most = max(most, bench.group.leader.tier.size)
        assert (
            len(bench.tier.pending) <= 2 and len(bench.group.leader.tier._by_position) * 100 < 4000
        )
        for call in [call for call in calls if call.token in bench.done]:
            leases = bench.done[call.token].leases  # type: ignore[union-attr]
            got.setdefault(call.group, []).extend(bodies(leases))
            calls.remove(call)
            sent += 1
            if len(got[call.group]) < 120:
                calls.append(bench.poll(group=call.group, n=7))
                bench.turn(calls[-1])
    assert not calls and 0 < most <= 2000
    for found in got.values():
        assert sorted(found) == sorted(
            {f"{queue}-{number:02d}" for queue in range(3) for number in range(40)}
        )


def test_turn_cost_is_independent_of_receives_waiting_for_the_store() -> None:
    """L4: while the store is slow, a turn does not look at everyone who waits for it, and the end
    of a poll not at all who failed."""

    def calls(waiting: int) -> int:
        bench = made()
        trim(bench, 8)
        tier = bench.group.leader.tier
        for number in range(waiting):
            tier.want((f"g{number}", "t", number % 2), number % 3)
            tier._failing[f"h{number}", "t"] = {0: "away"}
        tier.fetches()

        def work() -> None:
            assert tier.fetches() == () and tier.lacks(("other", "t")) == ""

        return calls_of(work)

    assert calls(10) == calls(500)


def test_group_pins_local_files_only_without_a_store() -> None:
    """Where it begins is no need for local files; the pin of a log that is not stored is what it
    was."""
    bench = made(max_attempts=1)
    bench.receive(n=1)
    trim(bench, 4)
    keys = consumed_queues(bench.machine)
    assert [pin.pos for pin in consumer_pins(bench.machine, keys)] == [
        bench.queues.rows["t", 0][4][0]
    ]


def test_lag_counts_messages_of_the_store() -> None:
    """The age of a message that only the store has is at least the one that is reported."""
    bench = made(max_attempts=3)
    bench.receive(n=2)
    trim(bench, 8)
    key = positions(bench.machine)["g", "t"]
    bench.now_ns += 50 * SECOND
    found = backlog(
        bench.machine, bench.group.leader.clock, key, bench.now_ms, bench.machine.stored_ms
    )
    assert (found.lag, found.in_flight, found.ready) == (10, 2, 8) and found.lag_age_ms >= 50_000
    bench.trim(bench.log.end_index)
    found = backlog(
        bench.machine, bench.group.leader.clock, key, bench.now_ms, bench.machine.stored_ms
    )
    assert found.lag == 10 and 0 <= found.lag_age_ms < 50_000


@pytest.mark.parametrize(
    "change", [lambda fetch: replace(fetch, first=fetch.first + 1)], ids=["later"]
)
def test_a_batch_that_begins_later_means_that_the_store_does(
    change: Callable[[TierFetch], TierFetch],
) -> None:
    """What a batch leaves out before its first message is gone, and only that."""
    bench = made()
    trim(bench, 8)
    bench.tier.held = True
    call = bench.poll(n=2)
    bench.turn(call)
    (fetch,) = bench.tier.pending
    bench.tier.pending.clear()
    bench.turn(replace(bench.tier.answer(change(fetch)), fetch=fetch))
    assert bodies(bench.done[call.token].leases) == names(1, 2)  # type: ignore[union-attr]
    assert bench.machine.delivery.is_done(KEY, 0)
