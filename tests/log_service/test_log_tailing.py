"""What a reader is given, whichever way it comes: from files, from memory, from the window; in any
cuts, with any company in the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.node.broker import recent
from ledgermq.node.broker.ports import Unreadable
from ledgermq.node.frontend.native.log_tail import LogTail
from ledgermq.node.frontend.native.reading import read_ends
from ledgermq.node.frontend.native.sources import GroupSource, Sources, Waiter
from ledgermq.node.frontend.native.tailing import Gone, QueueTail
from ledgermq.storage.log import entry_reader
from ledgermq.storage.log.log_reader import LogReader
from tests.example_counts import examples
from tests.log_service.fetch_stage import Got, Group, got


async def reader(
    group: Group, sources: Sources, topic: str, places: dict[int, int], *, until_end: bool = False
) -> tuple[GroupSource, QueueTail]:
    source = await sources.open("g1", Waiter(topic))
    ends = read_ends(group.driver.group, topic)
    assert ends is not None
    goals = {queue: ends.ends[queue] for queue in places} if until_end else None
    return source, QueueTail(source, topic, ends, places, goals)


async def rest(group: Group, topic: str, tail: QueueTail, max_bytes: int = 1 << 20) -> list[Got]:
    """Everything there is now."""
    found = []
    while answers := await tail.read(group.ends(topic), group.topics[topic].incarnation, max_bytes):
        found += [got(answer) for answer in answers]
    return found


def bodies(found: list[Got], queue: int) -> list[bytes]:
    """Those of one queue, which came without a gap."""
    out: list[bytes] = []
    mine = [one for one in found if one.queue == queue]
    for one in mine:
        assert one.first == mine[0].first + len(out)
        out += one.bodies
    return out


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30))
def test_every_message_comes_once_and_in_order_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Messages of two topics and several queues, in batches of all sizes; readers start anywhere,
    read any amount at any time, fall out of the window, and continue at other nodes: they get
    exactly the stored messages."""
    chance = random.Random(seed)
    group = Group(tmp_path_factory.mktemp("any"))
    keep = (
        recent.ENTRIES_MAX,
        entry_reader.BLOCK_BYTES,
        entry_reader.OVER_BYTES,
        entry_reader.LONG_RUN_BYTES,
    )
    recent.ENTRIES_MAX = chance.choice((1, 20, 100, keep[0]))
    entry_reader.BLOCK_BYTES, entry_reader.OVER_BYTES = chance.choice(
        ((512, 256), (4096, 1024), keep[1:3])
    )
    entry_reader.LONG_RUN_BYTES = chance.choice((1, 300, 2000, keep[3]))
    group.configure("a", 5)
    group.configure("b", 2)

    def produce() -> None:
        queues = chance.choice(
            ([("a", 0)], [("a", 0), ("a", 1)], [("a", q) for q in range(5)] + [("b", 0), ("b", 1)])
        )
        longest = chance.choice((60, 60, 3000))
        rows = [
            (*chance.choice(queues), chance.choice((60, chance.randint(12, longest))))
            for _ in range(chance.choice((1, 3, 40, 200)))
        ]
        group.produce(rows)

    async def read() -> None:
        sources = Sources(group.engine)
        for _ in range(chance.randint(0, 6)):
            produce()
        chosen = chance.sample(range(5), chance.randint(1, 5))
        begins = {queue: chance.randint(0, group.ends("a")[queue]) for queue in chosen}
        found: list[Got] = []
        source, tail = await reader(group, sources, "a", begins)
        for _ in range(chance.randint(3, 20)):
            action = chance.random()
            if action < 0.45:
                produce()
            elif action < 0.9:
                for answer in await tail.read(
                    group.ends("a"), 1, chance.choice((1, 500, 5000, 1 << 20))
                ):
                    found.append(got(answer))
            else:
                waiter = next(iter(sources._waiters["g1"]))
                sources.close(source, waiter)
                source, tail = await reader(
                    group, sources, "a", {queue: tail.next_of(queue) for queue in chosen}
                )
        found += await rest(group, "a", tail)
        for queue in chosen:
            assert bodies(found, queue) == group.stored.get(("a", queue), [])[begins[queue] :]
        assert {one.queue for one in found} <= set(chosen) and not any(one.skipped for one in found)

    try:
        asyncio.run(read())
    finally:
        (
            recent.ENTRIES_MAX,
            entry_reader.BLOCK_BYTES,
            entry_reader.OVER_BYTES,
            entry_reader.LONG_RUN_BYTES,
        ) = keep
        group.close()


def test_contiguous_queue_is_read_in_one_piece(tmp_path: Path) -> None:
    """Nothing is looked at message by message: one read of the units, one of the log, one join."""
    group = Group(tmp_path)
    group.configure("a", 1)
    for _ in range(3):
        group.produce([("a", 0, 100)] * 500)

    async def read() -> None:
        source, tail = await reader(group, Sources(group.engine), "a", {0: 7})
        (found,) = await rest(group, "a", tail)
        assert (found.first, len(found.bodies), found.end) == (7, 1493, 1500)
        # What came while it followed is in the window, and needs neither file nor the owner's
        # turns.
        runs = group.engine.runs
        group.produce([("a", 0, 100)] * 300)
        (more,) = await rest(group, "a", tail)
        assert (more.first, len(more.bodies)) == (1500, 300) and group.engine.runs == runs
        assert source.files is not None

    asyncio.run(read())
    group.close()


def test_until_the_end_ends_where_the_end_was(tmp_path: Path) -> None:
    """What comes after the opening is not read, however often the reader asks."""
    group = Group(tmp_path)
    group.configure("a", 2)
    group.produce([("a", 0, 50), ("a", 1, 50), ("a", 0, 50)])

    async def read() -> None:
        _, tail = await reader(group, Sources(group.engine), "a", {0: 1, 1: 1}, until_end=True)
        assert not tail.finished
        group.produce([("a", 0, 50), ("a", 1, 50)])
        found = await rest(group, "a", tail)
        assert [(one.queue, one.first, len(one.bodies)) for one in found] == [
            (0, 1, 1)
        ] and tail.finished

    asyncio.run(read())
    group.close()


def test_recreated_topic_is_read_behind_its_former_messages(tmp_path: Path) -> None:
    """The messages of the former incarnation are skipped and counted; while it is deleted the
    reader ends."""
    group = Group(tmp_path)
    group.configure("a", 1)
    group.produce([("a", 0, 50)] * 10)

    async def read() -> None:
        _, tail = await reader(group, Sources(group.engine), "a", {0: 0})
        first = await tail.read(group.ends("a"), 1, 1)
        assert len(got(first[0]).bodies) == 1
        group.delete("a")
        with pytest.raises(Gone):
            await tail.read((), 2, 1 << 20)
        group.configure("a", 1, incarnation=2)
        group.produce([("a", 0, 50)] * 2)
        (found,) = await rest(group, "a", tail)
        assert (found.first, found.skipped, len(found.bodies)) == (10, 9, 2)

    asyncio.run(read())
    group.close()


def test_a_topic_made_again_with_fewer_queues_does_not_keep_a_reader_from_the_end(
    tmp_path: Path,
) -> None:
    """What the missing queues held will never come."""
    group = Group(tmp_path)
    group.configure("a", 2)
    group.produce([("a", 0, 50), ("a", 1, 50)])

    async def read() -> None:
        _, tail = await reader(group, Sources(group.engine), "a", {0: 0, 1: 0}, until_end=True)
        group.delete("a")
        group.configure("a", 1, incarnation=2)
        assert await rest(group, "a", tail) == [] and tail.finished

    asyncio.run(read())
    group.close()


def test_reader_gone_during_opening_leaves_no_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the group opens the window between two turns, for a reader that does not wait
    for it any more."""
    group = Group(tmp_path)
    later: list[Callable[[], None]] = []

    def run(_: str, work: Callable[[Any], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        later.append(lambda: future.set_result(work(group.driver.group)))
        return future

    async def go() -> None:
        sources = Sources(group.engine)
        opening = asyncio.create_task(sources.open("g1", Waiter("")))
        while not later:
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        later.pop()()
        assert group.driver.group.group.recent is not None
        while not later:
            await asyncio.sleep(0)
        later.pop()()
        assert group.driver.group.group.recent is None

    monkeypatch.setattr(group.engine, "run", run)
    try:
        asyncio.run(go())
    finally:
        group.close()


def test_a_reader_that_comes_gets_a_turn(tmp_path: Path) -> None:
    """Its replica may have to tell the leader that a reader waits here; without a turn that message
    would wait for the next packet."""
    group = Group(tmp_path)

    async def go() -> None:
        sources = Sources(group.engine)
        await sources.open("g1", Waiter(""))
        assert group.engine.woken == 1
        await sources.open("g1", Waiter(""))
        assert group.engine.woken == 1

    try:
        asyncio.run(go())
    finally:
        group.close()


@pytest.mark.parametrize("window", [1, 1 << 17])
def test_the_log_itself_comes_entry_by_entry(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control records included, from files and from the window, without a gap."""
    monkeypatch.setattr(recent, "ENTRIES_MAX", window)
    group = Group(tmp_path)
    group.configure("a", 2)
    group.produce([("a", 0, 50), ("a", 1, 500)])

    async def read() -> None:
        source = await Sources(group.engine).open("g1", Waiter(""))
        tail = LogTail(source, 0, None)
        found: list[Got] = []
        for _ in range(5):
            while answers := await tail.read(900):
                found += [got(answer) for answer in answers]
            group.produce([("a", 1, 300)] * 4)
            group.produce([("a", 0, 30)])
        while answers := await tail.read(900):
            found += [got(answer) for answer in answers]
        place = 0
        for one in found:
            assert one.queue == -1 and one.first == place
            place += len(one.bodies)
        assert place == group.driver.group.machine.applied_index + 1
        data = b"".join(one.entries for one in found)
        log = group.driver.group.store.log
        assert data == bytes(log.record_at(0, log.end_pos))
        ended = LogTail(source, 2, 5)
        cut = [got(answer) for answer in await ended.read(1 << 20)]
        assert ended.finished and sum(len(one.bodies) for one in cut) == 3

    asyncio.run(read())
    group.close()


def test_queues_written_together_are_read_together_while_the_log_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are shared by queues; the last one is read again once it has grown, an entry longer
    than a block is read by itself."""
    monkeypatch.setattr(recent, "ENTRIES_MAX", 1)
    monkeypatch.setattr(entry_reader, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(entry_reader, "OVER_BYTES", 512)
    group = Group(tmp_path)
    group.configure("a", 3)

    async def read() -> None:
        _, tail = await reader(group, Sources(group.engine), "a", {0: 0, 1: 0, 2: 0})
        found: list[Got] = []
        for size in (50, 90, 6000, 50, 700):
            # More units than wait in memory: they are in the files. And more ranges than the window
            # holds.
            for _ in range(2):
                group.produce([("a", queue % 3, size + queue % 2) for queue in range(60)])
            found += await rest(group, "a", tail, 5000)
        assert all(bodies(found, queue) == group.stored["a", queue] for queue in range(3))

    asyncio.run(read())
    group.close()


def test_trimmed_messages_are_skipped_and_counted(tmp_path: Path) -> None:
    """A lagging reader continues at the first kept message, and gets the number of skipped ones."""
    group = Group(tmp_path)
    group.configure("a", 2)
    for _ in range(3):
        group.produce([("a", 0, 60)] * 100 + [("a", 1, 60)])

    async def read() -> None:
        _, tail = await reader(group, Sources(group.engine), "a", {0: 0, 1: 0})
        (first,) = await tail.read(group.ends("a"), 1, 1)
        assert got(first).queue == 0 and len(got(first).bodies) == 1
        machine, queues = group.driver.group.machine, group.driver.group.store.queues
        queues.write_waiting()
        queues.trim(int(machine.units("a", 0, 150, 1)[0][0]))
        found = await rest(group, "a", tail)
        mine = [one for one in found if one.queue == 0]
        assert (mine[0].first, mine[0].skipped) == (150, 149) and not any(
            one.skipped for one in mine[1:]
        )
        assert bodies(found, 0) == group.stored["a", 0][150:]
        other = [one for one in found if one.queue == 1]
        assert (other[0].first, other[0].skipped) == (1, 1)

    asyncio.run(read())
    group.close()


@pytest.mark.parametrize("mended", [False, True])
def test_a_damaged_entry_ends_the_reader_and_is_told_to_the_group(
    tmp_path: Path, mended: bool
) -> None:
    """No part of the damaged read is sent; the damage is reported to the group, which is then
    repaired. If it was repaired while the read waited for the disk, the reopened group gets no
    report about the former log."""
    group = Group(tmp_path)
    group.configure("a", 1)
    for _ in range(2):
        group.produce([("a", 0, 60)] * 100)

    async def read() -> None:
        _, tail = await reader(group, Sources(group.engine), "a", {0: 0})
        running = group.driver.group
        pos = int(running.machine.units("a", 0, 120, 1)[0][0]) - 48
        (log_file,) = [
            path
            for path in (tmp_path / "g1").glob("dledger-*/data/*")
            if path.name.endswith("0" * 20)
        ]
        with log_file.open("r+b") as file:
            file.seek(pos + 8)
            file.write(b"\x7f" * 24)
        if mended:
            store = running.store
            running.reader = LogReader(
                store.disk,
                store.log_directory,
                store.identity.data_file_bytes,
                store.identity.index_file_bytes,
            )
        with pytest.raises(Unreadable):
            await rest(group, "a", tail)
        assert (running._damage is None) == mended

    asyncio.run(read())
