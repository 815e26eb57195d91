"""The native consumer against a cluster in memory, on virtual time: what comes, where reading
begins, what is committed, what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from ledgermq.client import Consumer
from ledgermq.client.errors import BadArgument, Refused, Unreachable
from ledgermq.client.native.consumers import consumer as module
from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.client.native.consumers.fetching import Window
from ledgermq.client.native.consumers.received import Batch
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.status import Code
from tests.client.fake_reading import FakeConnection, FakeLog, Group, Queue, served
from tests.client.virtual_time import VirtualLoop

Run = Callable[[Awaitable[Any]], Any]


@pytest.fixture(autouse=True)
def run() -> Iterator[Run]:
    loop = VirtualLoop()
    yield loop.run_until_complete
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert not asyncio.all_tasks(loop), "a consumer leaves nothing running"
    loop.close()


def filled(count: int = 20, groups: dict[str, int] | None = None) -> FakeLog:
    """Every queue has `count` messages, which say where they are; message k was stored at k ms."""
    log = FakeLog(groups)
    for name, group in log.groups.items():
        for queue in group.queues:
            for k in range(count):
                queue.append([body(name, queue.queue, k)], store_ms=k)
    return log


def body(group: str, queue: int, offset: int) -> bytes:
    return f"{group}/{queue}/{offset}".encode()


def consumer_of(log: FakeLog, timeout_s: float = 1000.0, **options: Any) -> AsyncConsumer:
    consumer = AsyncConsumer(";".join(log.endpoints), "t", **options)
    consumer._connection = FakeConnection(log, timeout_s)
    return consumer


async def everything(consumer: AsyncConsumer) -> dict[int, list[bytes]]:
    """The bodies by queue, until the consumer ends by itself."""
    found: dict[int, list[bytes]] = {}
    async for batch in consumer.batches():
        found.setdefault(batch.queue, []).extend(batch.bodies())
    return found


async def read(log: FakeLog, **options: Any) -> dict[int, list[bytes]]:
    async with consumer_of(log, until_end=True, **options) as consumer:
        return await everything(consumer)


async def some(consumer: AsyncConsumer, messages: int) -> list[Batch]:
    """Read batches until there are at least this many messages."""
    batches: list[Batch] = []
    while sum(map(len, batches)) < messages:
        batch = await consumer.next_batch()
        assert batch is not None
        batches.append(batch)
    return batches


# -- what comes


def test_every_message_of_all_broker_groups_comes_once_and_in_order(run: Run) -> None:
    """Queues are numbered over all broker groups, in the order of their names."""
    log = filled(20, {"g1": 2, "g2": 1})
    expected = {
        number: [body(*place, k) for k in range(20)]
        for number, place in enumerate([("g1", 0), ("g1", 1), ("g2", 0)])
    }
    assert run(read(log)) == expected


@pytest.mark.parametrize("batch_bytes", [1, 20, 1000])
async def test_batches_are_bounded_by_bodies_and_complete(
    batch_bytes: int,
) -> None:
    """Over streams that break, up to the end there was; what was read ahead is taken once from the
    window."""
    log = filled(60)
    log.trouble = 0.3
    async with consumer_of(log, until_end=True, batch_bytes=batch_bytes) as consumer:
        found: dict[int, list[bytes]] = {}
        async for batch in consumer.batches():
            bodies = batch.bodies()
            assert len(bodies) == 1 or sum(map(len, bodies)) <= batch_bytes
            assert consumer._flows["g1"].window.waiting >= 0
            found.setdefault(batch.queue, []).extend(bodies)
        assert consumer._flows["g1"].window.waiting == 0
    assert found == {queue: [body("g1", queue, k) for k in range(60)] for queue in (0, 1)}


async def test_seek_drops_the_rest_of_a_cut_run() -> None:
    """As it drops everything else that was read ahead."""
    log = filled(30, {"g1": 1})
    async with consumer_of(log, batch_bytes=1) as consumer:
        first = await some(consumer, 1)
        consumer.seek(0, 20)
        rest = await some(consumer, 10)
    assert [int(batch.offsets[0]) for batch in (*first, *rest)] == [0, *range(20, 30)]


@pytest.mark.parametrize(
    "options", [{"batch_bytes": 0}, {"batch_bytes": (1 << 30) + 1}, {"expansion_max": 0}]
)
def test_wrong_bounds_of_batches_are_refused(options: dict[str, int]) -> None:
    """The error names the option."""
    with pytest.raises(
        BadArgument, match=f"{next(iter(options))} is {next(iter(options.values()))}"
    ):
        AsyncConsumer("localhost:1", "t", **options)  # type: ignore[misc]


def test_consumer_streams_that_break_deliver_each_message_once(run: Run) -> None:
    """The next stream begins with the next offset."""
    log = filled(60)
    log.trouble = 0.3
    assert run(read(log)) == {queue: [body("g1", queue, k) for k in range(60)] for queue in (0, 1)}
    assert log.fetches > 5


async def test_the_end_is_where_the_queues_ended_when_reading_began() -> None:
    """What is stored meanwhile does not make it longer, and no part of it comes."""
    log = filled(10, {"g1": 1})
    async with consumer_of(log, until_end=True) as consumer:
        first = await consumer.next_batch()
        assert first is not None
        log.store("g1", 0, [b"later"] * 5)
        rest = [batch async for batch in consumer.batches()]
    assert [b for batch in [first, *rest] for b in batch.bodies()] == [
        body("g1", 0, k) for k in range(10)
    ]


async def test_consumer_waits_for_later_messages_until_its_timeout() -> None:
    """And says None when nothing came in time."""
    log = filled(0, {"g1": 1})
    async with consumer_of(log) as consumer:
        assert await consumer.next_batch(wait_s=1.0) is None
        asyncio.get_running_loop().call_later(3, lambda: log.store("g1", 0, [b"x"]))
        batch = await consumer.next_batch()
        assert (
            batch is not None
            and batch.bodies() == [b"x"]
            and (batch.offsets.tolist(), batch.next_offset) == ([0], 1)
        )


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", None),
        (datetime(1970, 1, 1, 0, 0, 0, 7000, tzinfo=UTC), 7),
        (datetime(2100, 1, 1, tzinfo=UTC), None),
        ({0: 12}, 12),
        ({1: 3}, 0),
    ],
)
def test_where_reading_begins(run: Run, start: Any, first: int | None) -> None:
    """Earliest, latest, a time, an offset for one queue; a queue that is not named begins at its
    beginning."""
    found = (
        run(read(filled(20, {"g1": 1}), start=start))
        if start != {1: 3}
        else run(read(filled(20, {"g1": 2}), start=start, queues=[0]))
    )
    assert found == ({} if first is None else {0: [body("g1", 0, k) for k in range(first, 20)]})


@pytest.mark.parametrize(
    ("start", "former"),
    [
        ({1: 5}, {"g1": 0, "g2": 5}),
        ("latest", {"g1": 10, "g2": 10}),
        ("earliest", {"g1": 0, "g2": 0}),
    ],
)
async def test_queues_that_are_added_while_it_runs_begin_at_their_beginning(
    start: Any, former: dict[str, int]
) -> None:
    """The numbers of `start` are those of the opening; a queue that is added to the first broker
    group takes a number of the second."""
    log = filled(10, {"g1": 1, "g2": 1})
    async with consumer_of(log, start=start) as consumer:
        expected = {body(name, 0, k) for name, first in former.items() for k in range(first, 10)}
        bodies: list[bytes] = []
        while (batch := await consumer.next_batch(1.0)) is not None:
            bodies += batch.bodies()
        assert set(bodies) == expected and len(bodies) == len(expected)
        log.groups["g1"].queues.append(Queue(1))
        log.store("g1", 1, [b"new %d" % k for k in range(10)])
        added: list[bytes] = []
        while (batch := await consumer.next_batch(60.0)) is not None:
            added += batch.bodies()
        assert added == [b"new %d" % k for k in range(10)]


def test_only_some_queues(run: Run) -> None:
    """By their numbers; there is no queue 7."""
    log = filled(5, {"g1": 2, "g2": 2})
    assert set(run(read(log, queues=[1, 3]))) == {1, 3}
    with pytest.raises(BadArgument, match="no queue 7"):
        run(read(log, queues=[7]))


async def test_seek_drops_read_ahead_messages() -> None:
    """Back and forth, by offset and by time, in one queue and in all."""
    log = filled(30)
    async with consumer_of(log) as consumer:
        await some(consumer, 20)
        consumer.seek(1, 25)
        consumer.seek(0, 28)
        assert {
            batch.queue: int(batch.offsets[0]) for batch in reversed(await some(consumer, 7))
        } == {0: 28, 1: 25}
        consumer.seek_time(10)
        assert {
            batch.queue: int(batch.offsets[0]) for batch in reversed(await some(consumer, 40))
        } == {0: 10, 1: 10}
        consumer.seek(1, "latest")
        assert await consumer.next_batch(1.0) is None
        log.store("g1", 1, [b"new"])
        assert (await some(consumer, 1))[0].offsets.tolist() == [30]
        with pytest.raises(BadArgument, match="not an offset"):
            consumer.seek(0, -1)
        with pytest.raises(BadArgument, match="no queue"):
            consumer.seek(9, 0)


async def test_retained_gap_is_counted_as_skipped() -> None:
    """Before the first message, and in the middle of a stream."""
    log = filled(20, {"g1": 1})
    log.trim("g1", 0, 4)
    async with consumer_of(log, start={0: 0}, read_ahead_bytes=1 << 20) as consumer:
        first = await consumer.next_batch()
        assert first is not None and (first.skipped, int(first.offsets[0])) == (4, 4)
        await some(consumer, 16 - len(first))
        log.break_streams("g1")
        log.lead("g1", None)
        log.store("g1", 0, [b"x"] * 10)
        log.trim("g1", 0, 25)
        log.lead("g1", 1)
        batch = await consumer.next_batch()
        assert batch is not None and (batch.skipped, int(batch.offsets[0])) == (5, 25)
        assert consumer.statistics().skipped == 9


def test_unexplained_gap_fails_the_consumer(run: Run) -> None:
    """It is read again; a server that insists makes the consumer fail, not skip."""
    log = filled(20, {"g1": 1})
    honest = log._entries

    def hiding(*arguments: Any) -> pb.Entries | None:
        entries = honest(*arguments)
        if entries is not None and entries.first_offset > 5:
            entries.first_offset += 1
        return entries

    log._entries = hiding  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match="is due, and"):
        run(read(log, timeout_s=20.0))


def test_damage_on_the_way_is_read_again_and_damage_in_the_log_is_an_error(run: Run) -> None:
    """The body CRC detects damage; without the check, the consumer gets the stored bytes."""
    log = filled(20, {"g1": 1})
    log.corrupt = 2
    assert run(read(log)) == {0: [body("g1", 0, k) for k in range(20)]}
    log.corrupt = 1_000
    with pytest.raises(Refused, match="queue 0 is damaged from offset 0 on"):
        run(read(log))
    log.corrupt = 1
    assert run(read(log, verify=False))[0] != [body("g1", 0, k) for k in range(20)]


async def test_memory_is_bounded_by_credit() -> None:
    """A consumer that does not come back for more has at most its window; the server never sends
    beyond the credit."""
    log = FakeLog({"g1": 1})
    log.run_max = 50
    log.store("g1", 0, [bytes([k % 251]) * 5_000 for k in range(1500)])
    async with consumer_of(
        log, until_end=True, read_ahead_bytes=1 << 20, response_bytes=64 << 10
    ) as consumer:
        await asyncio.sleep(100)
        assert 0 < consumer.statistics().buffered_bytes <= (1 << 20) + 5_200
        count = 0
        async for batch in consumer.batches():
            count += len(batch)
            await asyncio.sleep(0.01)
            assert consumer.statistics().buffered_bytes <= (1 << 20) + 5_200
    assert (count, log.overdrawn) == (1500, 0)


def test_the_window_says_when_credit_is_worth_a_message() -> None:
    """A quarter of it, or anything when the server has none left."""
    window = Window(100)
    assert (window.opened(), window.due()) == (100, 0)
    window.came(90)
    window.kept(90)
    window.taken(20)
    assert window.due() == 0
    window.taken(10)
    assert window.due() == 30
    window.grant(30)
    assert (window.granted, window.due()) == (40, 0)
    window.came(45)
    window.kept(45)
    window.taken(10)
    assert (window.granted, window.due()) == (-5, 10)
    window.taken(95)
    assert window.due() == 105


def test_a_message_larger_than_all_credit_still_comes(run: Run) -> None:
    """The last entry may exceed what is left."""
    log = FakeLog({"g1": 1})
    log.store("g1", 0, [b"x" * (3 << 20), b"small"])
    assert [len(one) for one in run(read(log, read_ahead_bytes=1 << 20))[0]] == [3 << 20, 5]


async def test_messages_with_other_tags_are_passed_over() -> None:
    """Only messages with these tags are delivered; positions advance past the others."""
    log = FakeLog({"g1": 1})
    log.store("g1", 0, [b"%d" % k for k in range(100)], tags=["a", "b", "ab", ""] * 25)
    async with consumer_of(log, tags={"a", "c"}, group="x", until_end=True) as consumer:
        assert (await everything(consumer))[0] == [b"%d" % k for k in range(0, 100, 4)]
        await consumer.commit()
    assert log.committed == {("g1", 0): 100}


# -- where it is read


async def test_a_leader_that_moves_is_followed() -> None:
    """The consumer follows a leader change at any time, also through a period without a leader."""
    log = filled(100)
    seen: dict[int, list[bytes]] = {}
    async with consumer_of(log, until_end=True) as consumer:
        for turn in range(1000):
            batch = await consumer.next_batch()
            if batch is None:
                break
            seen.setdefault(batch.queue, []).extend(batch.bodies())
            if turn % 4 == 0:
                log.lead("g1", None if turn % 8 == 0 else turn % 3)
                asyncio.get_running_loop().call_later(0.5, log.lead, "g1", turn % 3)
    assert seen == {queue: [body("g1", queue, k) for k in range(100)] for queue in (0, 1)}


def test_no_leader_for_too_long_is_an_error(run: Run) -> None:
    """After the time-out, with the reason."""
    log = filled(5)
    log.lead("g1", None)
    with pytest.raises(Unreachable, match=r"g1 cannot be read \(broker group g1 has no leader"):
        run(read(log, timeout_s=20.0))


def test_a_topic_that_is_not_there(run: Run) -> None:
    """Is refused when the consumer is opened."""
    log = filled(1)
    consumer = AsyncConsumer(";".join(log.endpoints), "u")
    consumer._connection = FakeConnection(log)
    with pytest.raises(Refused, match="no topic u"):
        run(consumer.open())
    run(consumer.close())


async def test_a_silent_leader_is_left_when_another_one_is_named() -> None:
    """A node that hangs answers nothing, not even a redirect."""
    log = filled(5, {"g1": 1})
    async with consumer_of(log) as consumer:
        await some(consumer, 5)
        hung = consumer._flows["g1"]._call
        hung._task.cancel()
        log.lead("g1", 1)
        log.store("g1", 0, [b"x"])
        locate = consumer._connection.locate

        async def locating(*arguments: Any) -> Any:
            consumer._connection.redirected(log.redirect("g1"))
            return await locate(*arguments)

        consumer._connection.locate = locating  # type: ignore[method-assign]
        assert (await some(consumer, 1))[0].bodies() == [b"x"]
        assert asyncio.get_running_loop().time() < 4 * module.WATCH_S


async def test_queues_that_the_topic_gets_are_read_too() -> None:
    """A consumer without a group finds them by itself."""
    log = filled(3, {"g1": 1})
    async with consumer_of(log) as consumer:
        await some(consumer, 3)
        more = filled(3, {"g1": 2})
        log.groups["g1"].queues.append(more.groups["g1"].queues[1])
        assert {batch.queue for batch in await some(consumer, 3)} == {1}
        assert consumer.assigned() == (0, 1)


# -- consumer groups


async def test_commits_are_where_the_next_member_begins() -> None:
    """By hand: everything that was handed out, or what is named."""
    log = filled(30, {"g1": 1})
    async with consumer_of(log, group="x") as consumer:
        await some(consumer, 10)
        end = consumer.statistics().queues[0].position
        await consumer.commit()
    assert log.committed == {("g1", 0): end}
    async with consumer_of(log, group="x") as consumer:
        assert int((await some(consumer, 1))[0].offsets[0]) == end
        await consumer.commit({0: 3})
        assert consumer.statistics().queues[0].committed == 3
    async with consumer_of(log, group="x") as consumer:
        assert int((await some(consumer, 1))[0].offsets[0]) == 3


async def test_auto_commit_commits_a_batch_with_the_next_request() -> None:
    """A batch counts as processed when the next one is requested; a batch whose processing fails is
    delivered again."""
    log = filled(30, {"g1": 1})
    with pytest.raises(RuntimeError):
        async with consumer_of(log, group="x", auto_commit=True) as consumer:
            batches = await some(consumer, 10)
            await asyncio.sleep(10)
            assert log.committed == {("g1", 0): int(batches[-1].offsets[0])}
            raise RuntimeError("the work failed")
    async with consumer_of(log, group="x", auto_commit=True, until_end=True) as consumer:
        found = await everything(consumer)
    assert found[0] == [body("g1", 0, k) for k in range(int(batches[-1].offsets[0]), 30)]
    assert log.committed == {("g1", 0): 30}


async def test_members_share_the_queues_and_take_over_from_those_that_leave() -> None:
    """No member reads the queue of another member, and all messages are read."""
    log = filled(40, {"g1": 4})
    told: list[tuple[str, str, tuple[int, ...]]] = []

    def member(name: str) -> AsyncConsumer:
        def assigned(queues: tuple[int, ...]) -> None:
            told.append((name, "has", queues))

        async def revoked(queues: tuple[int, ...]) -> None:
            told.append((name, "gives", queues))

        return consumer_of(
            log, group="x", auto_commit=True, on_assigned=assigned, on_revoked=revoked
        )

    seen: dict[int, list[bytes]] = {}
    async with member("a") as a:
        for batch in await some(a, 20):
            seen.setdefault(batch.queue, []).extend(batch.bodies())
        # Ready for more, with nothing in hand.
        waiting = asyncio.ensure_future(a.next_batch())
        batch = await waiting
        assert batch is not None
        seen.setdefault(batch.queue, []).extend(batch.bodies())
        async with member("b") as b:
            while not b.assigned():
                batch = await a.next_batch(0.1)
                if batch is not None:
                    seen.setdefault(batch.queue, []).extend(batch.bodies())
            assert len(a.assigned()) == len(b.assigned()) == 2 and set(a.assigned()) | set(
                b.assigned()
            ) == {0, 1, 2, 3}
            while (batch := await b.next_batch(1.0)) is not None:
                assert batch.queue in b.assigned()
                seen.setdefault(batch.queue, []).extend(batch.bodies())
            while (batch := await a.next_batch(1.0)) is not None:
                seen.setdefault(batch.queue, []).extend(batch.bodies())
            mine = b.assigned()
        assert await a.next_batch(5.0) is None
        assert a.assigned() == (0, 1, 2, 3)
    for queue in range(4):
        assert list(dict.fromkeys(seen[queue])) == [body("g1", queue, k) for k in range(40)]
    assert told[:3] == [("a", "has", (0, 1, 2, 3)), ("a", "gives", mine), ("b", "has", mine)]
    assert set(log.committed.values()) == {40}


async def test_revoked_queue_is_committed_in_the_callback_only() -> None:
    """In the callback it still can be, afterwards it cannot."""
    log = filled(40, {"g1": 2})
    committed: list[dict[tuple[str, int], int]] = []

    async def revoked(queues: tuple[int, ...]) -> None:
        await a.commit()
        committed.append(dict(log.committed))

    a = consumer_of(log, group="x", on_revoked=revoked)
    async with a:
        batches = await some(a, 30)
        handed = {batch.queue: batch.next_offset for batch in batches}
        async with consumer_of(log, group="x") as b:
            await some(b, 1)
            assert committed == [{("g1", queue): offset for queue, offset in handed.items()}]
            (gone,) = b.assigned()
            await a.commit()
            await a.commit({gone: 1})
            assert log.committed["g1", gone] == handed[gone]
            assert (
                all(
                    gone not in [o.queue for o in request.offsets]
                    for _, request in log.commits[-1:]
                )
                or len(log.commits) == 1
            )


async def test_member_without_a_coordinator_drops_its_queues_and_rejoins() -> None:
    """Its queues may be assigned to others by then. Later it joins again and continues."""
    log = filled(10, {"g1": 1, "g2": 1})
    async with consumer_of(log, group="x") as consumer:
        await some(consumer, 20)
        log.lead("g1", None)
        await asyncio.sleep(10)
        assert consumer.assigned() == ()
        log.store("g2", 0, [b"x"])
        assert await consumer.next_batch(1.0) is None
        log.lead("g1", 2)
        await asyncio.sleep(5)
        assert consumer.assigned() == (0, 1)


async def test_members_that_begin_anew_ask_which_queues_the_numbers_mean() -> None:
    """A topic that grew in its first broker group counts the queues of the others on."""
    log = filled(10, {"g1": 1, "g2": 1})
    async with (
        consumer_of(log, group="x", auto_commit=True) as a,
        consumer_of(log, group="x", auto_commit=True) as b,
    ):
        await asyncio.sleep(5)
        assert len(a.assigned()) == len(b.assigned()) == 1
        log.lead("g1", None)
        await asyncio.sleep(10)
        assert a.assigned() == b.assigned() == ()
        log.groups["g1"].queues.append(Queue(1))
        log.store("g1", 1, [b"new"])
        log.lead("g1", 2)
        await asyncio.sleep(10)
        assert sorted(a.assigned() + b.assigned()) == [0, 1, 2]
        bodies = []
        for consumer in (a, b):
            while (batch := await consumer.next_batch(1.0)) is not None:
                bodies += batch.bodies()
        assert bodies.count(b"new") == 1


async def test_a_member_goes_along_when_another_broker_group_coordinates() -> None:
    """For example, because the topic got queues in a broker group that sorts before the first
    one."""
    log = filled(10, {"g1": 1})
    async with consumer_of(log, group="x", auto_commit=True) as consumer:
        await some(consumer, 10)
        log.groups["g0"] = Group(1)
        log.store("g0", 0, [b"new"])
        log.lead("g0", 2)
        log.lead("g1", 1)
        await asyncio.sleep(20)
        assert consumer.assigned() == (0, 1)
        bodies = []
        while (batch := await consumer.next_batch(1.0)) is not None:
            bodies += batch.bodies()
        assert bodies.count(b"new") == 1


def test_an_error_of_a_callback_reaches_the_application(run: Run) -> None:
    """It is not lost in a task."""

    def assigned(queues: tuple[int, ...]) -> None:
        raise ZeroDivisionError

    async def work() -> None:
        async with consumer_of(filled(1), group="x", on_assigned=assigned) as consumer:
            await consumer.next_batch()

    with pytest.raises(ZeroDivisionError):
        run(work())


def test_invalid_consumer_options_are_refused_without_a_call() -> None:
    """BadArgument when it is made."""
    for options in (
        {"auto_commit": True},
        {"start": "committed"},
        {"start": "somewhere"},
        {"start": datetime(2026, 1, 1)},
        {"start": {0: -1}},
        {"group": "x", "queues": [0]},
        {"read_ahead_bytes": 10},
        {"response_bytes": 0},
    ):
        with pytest.raises(BadArgument):
            AsyncConsumer("127.0.0.1:1", "t", **options)  # type: ignore[typeddict-item]


async def test_committing_without_a_group_is_an_error() -> None:
    """Without a group, there is no offset to commit."""
    async with consumer_of(filled(1)) as consumer:
        with pytest.raises(BadArgument):
            await consumer.commit()


async def test_progress_and_statistics() -> None:
    """Progress is reported with batches; the lag is unknown until every queue is known."""
    log = filled(50, {"g1": 1})
    told: list[Any] = []
    async with consumer_of(log, on_progress=told.append) as consumer:
        assert consumer.statistics().lag is None
        while consumer.statistics().messages < 50:
            # Longer than the interval of the reports.
            await asyncio.sleep(0.2)
            assert await consumer.next_batch(60) is not None
        now = consumer.statistics()
        assert (now.messages, now.lag, now.buffered_bytes, now.streams) == (50, 0, 0, 1)
    assert told[-1].messages == 50 and [one.messages for one in told] == sorted(
        one.messages for one in told
    )


# -- over gRPC


def test_the_same_over_real_streams() -> None:
    """Leaders that move and streams that break, seen through grpc.aio."""

    async def work() -> None:
        log = filled(200, {"g1": 2, "g2": 1})
        log.trouble = 0.05
        async with served(log) as endpoints:
            async with AsyncConsumer(
                endpoints, "t", group="x", until_end=True, auto_commit=True
            ) as consumer:
                seen: dict[int, list[bytes]] = {}
                async for batch in consumer.batches():
                    seen.setdefault(batch.queue, []).extend(batch.bodies())
                    if len(seen[batch.queue]) == len(batch):
                        consumer.seek(batch.queue, batch.next_offset)
                        log.lead(batch.broker_group, batch.queue)
            with pytest.raises(Refused, match="no topic u") as refused:
                async with AsyncConsumer(endpoints, "u"):
                    pass
            assert refused.value.code == Code.TOPIC_NOT_FOUND
        places = [("g1", 0), ("g1", 1), ("g2", 0)]
        assert seen == {
            number: [body(*place, k) for k in range(200)] for number, place in enumerate(places)
        }
        assert log.committed == {place: 200 for place in places}

    asyncio.run(work())


# -- from another replica than the leader


def test_a_consumer_reads_from_the_endpoint_it_was_given_where_that_serves(run: Run) -> None:
    """Node 0 is the first endpoint and node 2 leads: node 0 serves only consumers that asked for
    the nearest replica."""
    for read_from, expected in (("leader", [2]), ("nearest", [0])):
        log = filled(20, {"g1": 1})
        log.lead("g1", 2)
        log.replicas = {0}
        assert run(read(log, read_from=read_from)) == {0: [body("g1", 0, k) for k in range(20)]}
        assert log.fetched_at == expected


async def test_where_no_replica_serves_the_leader_does_and_the_nearest_is_tried_again() -> None:
    """Sent away from node 0 to the leader, back to node 0 once it serves; every message once and in
    order."""
    log = filled(10, {"g1": 1})
    log.lead("g1", 2)
    async with consumer_of(log, read_from="nearest") as consumer:
        bodies = [b for batch in await some(consumer, 10) for b in batch.bodies()]
        assert log.fetched_at == [2]
        log.replicas = {0}
        await asyncio.sleep(60)
        assert log.fetched_at[-1] == 0
        log.store("g1", 0, [body("g1", 0, k) for k in range(10, 20)])
        bodies += [b for batch in await some(consumer, 10) for b in batch.bodies()]
        assert [found.replica for found in consumer.statistics().served_by] == ["somebody"]
        log.replicas = set()
        log.changed()
        log.store("g1", 0, [body("g1", 0, k) for k in range(20, 30)])
        bodies += [b for batch in await some(consumer, 10) for b in batch.bodies()]
        assert log.fetched_at[-1] == 2 and bodies == [body("g1", 0, k) for k in range(30)]


async def test_silent_replica_is_left_for_the_leader() -> None:
    """A quiet leader is believed; a quiet replica is not: it would say that it is there."""
    log = filled(10, {"g1": 1})
    log.lead("g1", 2)
    log.replicas = {0}
    async with consumer_of(log, read_from="nearest") as consumer:
        await some(consumer, 10)
        await asyncio.sleep(60)
        assert log.fetched_at == [0], "signs of life are enough"
        log.frozen = {0}
        await asyncio.sleep(12)
        assert log.fetched_at[-1] == 2


# -- as an Arrow stream


class Capsule:
    """Only the Arrow stream interface of another object, as DuckDB and Polars use it."""

    def __init__(self, of: Any) -> None:
        self.__arrow_c_stream__ = of.__arrow_c_stream__


def threaded(log: FakeLog, **options: Any) -> Consumer:
    consumer = Consumer(";".join(log.endpoints), "t", until_end=True, **options)
    consumer._consumer._connection = FakeConnection(log, 1000.0)
    return consumer


def test_a_consumer_is_an_arrow_stream() -> None:
    """Each message once, with the same schema for all batches, also of a topic without messages."""
    pa = pytest.importorskip("pyarrow")
    with threaded(filled(20, {"g1": 2, "g2": 1})) as consumer:
        table = pa.table(Capsule(consumer.arrow(["queue", "offset", "body"])))
    places = [("g1", 0), ("g1", 1), ("g2", 0)]
    assert sorted(table.to_pylist(), key=lambda row: (row["queue"], row["offset"])) == [
        {"queue": queue, "offset": k, "body": body(*place, k)}
        for queue, place in enumerate(places)
        for k in range(20)
    ]
    with threaded(filled(0)) as consumer:
        empty = pa.table(Capsule(consumer.arrow()))
    with threaded(filled(1)) as consumer:
        assert (empty.num_rows, empty.schema) == (0, next(consumer.arrow_batches()).schema)
    with threaded(filled(1)) as consumer, pytest.raises(BadArgument, match="no column 'bodies'"):
        consumer.arrow(["bodies"])


def test_arrow_stream_commits_a_batch_with_the_next_request() -> None:
    """With `auto_commit`, a batch is committed when the reader asks for the next one: a reader that
    fails gets its last batch again."""
    pytest.importorskip("pyarrow")
    log = filled(20, {"g1": 1})
    with threaded(log, group="lake", auto_commit=True, response_bytes=1024) as consumer:
        reader = consumer.arrow(["offset"])
        first = reader.read_next_batch().num_rows
        reader.read_next_batch()
    assert first < 20 and list(log.committed.values()) == [first]
