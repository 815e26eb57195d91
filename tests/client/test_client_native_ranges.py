"""Reads ranges of queues from a cluster in memory, on virtual time: each message is returned once,
and loss by retention is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ledgermq.client.errors import Refused
from ledgermq.client.native.consumers.positions import EntryName, Place, Start
from ledgermq.client.native.log_connection import Located
from ledgermq.client.native.once.ranges import MessagesGone, RangeReader, find_offsets, name_before
from tests.client.fake_reading import FakeConnection, FakeLog
from tests.client.test_client_native_consumer import Run, body, filled
from tests.client.virtual_time import VirtualLoop


@pytest.fixture
def run() -> Iterator[Run]:
    loop = VirtualLoop()
    yield loop.run_until_complete
    assert not asyncio.all_tasks(loop), "a reader leaves nothing running"
    loop.close()


async def read(
    log: FakeLog, first: int, end: int, fail_on_loss: bool = True, group: str = "g1"
) -> list[int]:
    """The offsets of what a range gives; the bodies are held to them."""
    reader = RangeReader(
        FakeConnection(log, 1000.0), "t", "", Place(group, 1), first, end, "", fail_on_loss
    )
    found: list[int] = []
    try:
        while (batch := await reader.next_batch()) is not None:
            assert batch.bodies() == [body(group, 1, offset) for offset in batch.offsets.tolist()]
            found += batch.offsets.tolist()
    finally:
        await reader.close()
    return found


@pytest.mark.parametrize(("first", "end"), [(0, 30), (7, 8), (13, 29), (5, 5)])
def test_a_range_is_exact(run: Run, first: int, end: int) -> None:
    """From one offset to another, and nothing beside it."""
    assert run(read(filled(30), first, end)) == list(range(first, end))


@pytest.mark.parametrize("batch_bytes", [1, 20, 1000])
def test_long_batches_are_cut_and_a_range_stays_exact(run: Run, batch_bytes: int) -> None:
    """Also where the range begins and ends within a piece, and over streams that break; what came
    is taken once from the window."""
    log = filled(60)
    log.trouble = 0.3

    async def work(first: int, end: int) -> None:
        reader = RangeReader(
            FakeConnection(log, 1000.0),
            "t",
            "",
            Place("g1", 1),
            first,
            end,
            batch_bytes=batch_bytes,
        )
        found: list[int] = []
        try:
            while (batch := await reader.next_batch()) is not None:
                assert len(batch) == 1 or sum(map(len, batch.bodies())) <= batch_bytes
                found += batch.offsets.tolist()
            assert reader._stream.flow.window.waiting == sum(
                len(left.entries) for left in reader._stream.runs
            )
        finally:
            await reader.close()
        assert found == list(range(first, end))

    for first, end in ((0, 60), (7, 8), (13, 51)):
        run(work(first, end))


def test_range_streams_that_break_deliver_each_message_once(run: Run) -> None:
    """The next stream begins with the next offset."""
    log = filled(60)
    log.trouble = 0.3
    assert run(read(log, 0, 60)) == list(range(60)) and log.fetches > 5


@pytest.mark.parametrize("begin", [10, 25, 30])
def test_range_with_trimmed_messages_fails_or_leaves_them_out(run: Run, begin: int) -> None:
    """A failure that names the first of it; or left out, be it a part of the range or all of it."""
    log = filled(30)
    log.trim("g1", 1, begin)
    with pytest.raises(MessagesGone, match=f"messages 5 to {min(begin, 25) - 1} of queue 1"):
        run(read(log, 5, 25))
    assert run(read(log, 5, 25, fail_on_loss=False)) == list(range(begin, 25))


def test_range_trimmed_while_read_fails(run: Run) -> None:
    """Messages that vanish in the middle of a stream come with the gap they leave, and that is a
    failure too."""
    log = filled(200)

    async def work() -> None:
        reader = RangeReader(FakeConnection(log, 1000.0), "t", "", Place("g1", 1), 0, 200)
        position = reader._stream.positions[Place("g1", 1)]
        try:
            while not reader._stream.runs:
                await asyncio.sleep(0)
            log.trim("g1", 1, 190)
            while position.next != 200:
                await asyncio.sleep(0)
            with pytest.raises(MessagesGone, match="to 189 of queue 1"):
                while await reader.next_batch() is not None:
                    pass
        finally:
            await reader.close()

    run(work())


def test_damage_in_the_log_is_an_error(run: Run) -> None:
    """Read again first, for it may have been damaged on its way."""
    log = filled(30)
    log.corrupt = 2
    assert run(read(log, 3, 30)) == list(range(3, 30))
    log.corrupt = 1_000
    with pytest.raises(Refused, match="is damaged from offset 0 on"):
        run(read(log, 0, 30))


def test_places_are_found_in_every_broker_group(run: Run) -> None:
    """The first message, the end, and a moment, of every queue that there is."""
    log = filled(20, {"g1": 2, "g2": 1})
    log.trim("g1", 1, 4)

    async def found(start: Start) -> tuple[dict[Place, int], dict[Place, int]]:
        connection = FakeConnection(log, 1000.0)
        located: Located = await connection.locate("t", "")
        return await find_offsets(connection, located, "t", "", start)

    places = [Place("g1", 0), Place("g1", 1), Place("g2", 0)]
    ends = dict.fromkeys(places, 20)
    assert run(found(Start())) == (dict(zip(places, (0, 4, 0), strict=True)), ends)
    assert run(found(Start(earliest=False))) == (ends, ends)
    assert run(found(Start(store_ms=7))) == (dict.fromkeys(places, 7), ends)


def test_the_name_of_a_message_costs_that_message(run: Run) -> None:
    """However many are behind it."""
    log = filled(30)

    async def named(end: int) -> EntryName:
        return await name_before(FakeConnection(log, 1000.0), "t", "", Place("g1", 1), end)

    for end in (1, 17, 30):
        assert run(named(end)) == EntryName.of(
            memoryview(log.groups["g1"].queues[1].entries[end - 1])
        )
    assert log.sent == 3
    log.trim("g1", 1, 5)
    with pytest.raises(MessagesGone):
        run(named(3))
