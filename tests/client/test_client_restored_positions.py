"""Positions outside of the cluster after its log was restored from an older state: every case of a
small log, through both sinks.

Law: a sink either ends with status 64 and changes nothing, or everything that the log has is in it.
It ends so exactly if the log has another message, or none, in the place of the last one that the
sink wrote. What retention removed cannot be compared, and leaves nothing out.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.native.consumers import consumer
from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.client.native.consumers.positions import (
    Changed,
    Entries,
    EntryName,
    Gap,
    Place,
    Positions,
    Start,
)
from ledgermq.client.native.sinks import sinking
from ledgermq.client.native.sinks.iceberg_sink import IcebergSink, Mark
from ledgermq.client.native.sinks.parquet_sink import ParquetSink
from ledgermq.client.native.sinks.ports import Sink
from ledgermq.client.native.sinks.sinking import Sinking
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.status import Code, ExitCode
from tests.client.fake_reading import FakeConnection, FakeLog, Group
from tests.client.test_client_iceberg_sink import FakeTable, Lake
from tests.client.virtual_time import VirtualLoop

pq = pytest.importorskip("pyarrow.parquet")

PLACE = Place("g1", 0)
Row = tuple[int, bytes]
"""Offset and body."""


class Target(NamedTuple):
    """Where the messages of the topic's first queue go: how a sink is opened there, what is in it,
    and what it knows of its positions."""

    opened: Callable[[str, str], Sink]
    rows: Callable[[], set[Row]]
    state: Callable[[], Any]
    forget: Callable[[], None]
    """Make the positions those of a former version, which kept no names."""


def files(directory: Path) -> Target:
    kept = directory / ".t.positions.json"

    def forget() -> None:
        tree = json.loads(kept.read_text())
        del tree["last"], tree["crc32c"]
        kept.write_text(json.dumps(tree))

    def rows() -> set[Row]:
        tables = [
            pq.read_table(path, columns=["queue", "offset", "body"], partitioning=None)
            for path in directory.rglob("*.parquet")
        ]
        return {
            (row["offset"], row["body"])
            for table in tables
            for row in table.to_pylist()
            if row["queue"] == 0
        }

    return Target(
        lambda cluster, topic: ParquetSink(directory, cluster, topic, "none", 1 << 30, 1e9),
        rows,
        lambda: json.loads(kept.read_text())["last"] if kept.exists() else [],
        forget,
    )


class Bodies(FakeTable):
    """A table that also keeps the bodies."""

    def __init__(self, lake: Lake, bodies: set[Row]) -> None:
        super().__init__(lake)
        self.bodies = bodies

    def append(self, rows: Any, mark: Mark) -> None:
        super().append(rows, mark)
        self.bodies |= {
            (row["offset"], row["body"]) for row in rows.to_pylist() if row["group_queue"] == 0
        }


def table(lake: Lake, bodies: set[Row]) -> Target:
    def state() -> Any:
        mark = lake.mark()
        return [] if mark is None else json.loads(mark.text())["last"]

    def forget() -> None:
        assert lake.head is not None and lake.head.mark is not None
        tree = json.loads(lake.head.mark.text())
        del tree["last"], tree["crc32c"]
        lake.head.mark = Mark.read(json.dumps(tree))

    return Target(
        lambda cluster, topic: IcebergSink(Bodies(lake, bodies), cluster, topic, 1 << 30, 1e9),
        lambda: bodies,
        state,
        forget,
    )


KINDS: dict[str, Callable[[Path], Target]] = {
    "parquet": files,
    "iceberg": lambda directory: table(Lake(), set()),
}


class Wire:
    """What `Sinking` takes of a connection."""

    timeout_s = 1000.0
    options: ClassVar[dict[str, Any]] = {"endpoints": "127.0.0.1:1"}


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()


def sunk(loop: VirtualLoop, log: FakeLog, place: Target, patch: pytest.MonkeyPatch) -> Sinking:
    """One run to the end of the topic. Raises as `Sinking.run`."""
    with patch.context() as during:
        for module in (consumer, sinking):
            during.setattr(module, "LogConnection", lambda *_, **options: FakeConnection(log))
        run = Sinking(Wire(), "t", "", lambda rows, lag: None)  # type: ignore[arg-type]
        loop.run_until_complete(run.run(place.opened, 0.1))
    return run


def log_of(count: int, seed: int = 0) -> FakeLog:
    log = FakeLog({"g1": 2}, chance=random.Random(seed))
    log.store("g1", 0, [b"%d" % k for k in range(count)])
    log.store("g1", 1, [b"other"])
    return log


def readable(log: FakeLog) -> set[Row]:
    """The messages that retention has left."""
    queue = log.groups["g1"].queues[0]
    return {(offset, body_of(queue.entries[offset])) for offset in range(queue.begin, queue.end)}


def body_of(entry: bytes) -> bytes:
    return entry[136 : 136 + int.from_bytes(entry[132:136], "big")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("written", [0, 1, 3])
def test_sink_of_a_restored_log_is_complete_or_refused(
    kind: str, written: int, loop: VirtualLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position before, at and behind the point of the restore; the log behind it, at it and
    past it; retention anywhere."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    tried = refused = unproven = 0
    for point, new in product(range(5), range(4)):
        for begin in range(point + new + 1):
            case = (written, point, new, begin)
            log = log_of(written, tried)
            directory = tmp_path / f"{point}-{new}-{begin}"
            place = KINDS[kind](directory)
            sunk(loop, log, place, monkeypatch)
            log.store("g1", 0, [b"later %d" % k for k in range(max(0, point - written))])
            queue = log.groups["g1"].queues[0]
            queue.restore(point)
            log.store("g1", 0, [b"new %d" % k for k in range(new)])
            log.trim("g1", 0, begin)
            before, state = set(place.rows()), place.state()
            if point < written and begin < written:
                with pytest.raises(
                    BadArgument,
                    match=(
                        r"has messages that the cluster does not have.*; write the topic to anoth"
                    ),
                ) as told:
                    sunk(loop, log, place, monkeypatch)
                assert told.value.exit_code == ExitCode.USAGE, case
                assert place.rows() == before and place.state() == state, case
                refused += 1
            else:
                run = sunk(loop, log, place, monkeypatch)
                assert readable(log) <= place.rows() and before <= place.rows(), case
                assert run.unproven == (0 < written <= begin), case
                unproven += run.unproven
            tried += 1
    assert tried == 90 and (refused > 0) == (unproven > 0) == (written > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_of_former_versions_are_accepted_once(
    kind: str, loop: VirtualLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name no message. They get their names with the next messages of their queue, and nothing
    is written twice."""
    log, place = log_of(3), KINDS[kind](tmp_path)
    sunk(loop, log, place, monkeypatch)
    named = place.state()
    place.forget()
    assert sunk(loop, log, place, monkeypatch).rows == 0
    log.store("g1", 0, [b"3"])
    assert sunk(loop, log, place, monkeypatch).rows == 1
    assert place.rows() == readable(log)
    (name,) = place.state()
    entry = log.groups["g1"].queues[0].entries[3]
    assert name == ["g1", 0, *EntryName.of(memoryview(entry))] and named[0] != name
    log.groups["g1"].queues[0].restore(1)
    with pytest.raises(BadArgument, match="the cluster does not have"):
        sunk(loop, log, place, monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_former_position_behind_the_end_is_refused(
    kind: str, loop: VirtualLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, place = log_of(3), KINDS[kind](tmp_path)
    sunk(loop, log, place, monkeypatch)
    place.forget()
    log.groups["g1"].queues[0].restore(2)
    with pytest.raises(BadArgument, match="offset 3 is outside of queue 0"):
        sunk(loop, log, place, monkeypatch)


def test_a_sink_does_not_end_before_its_positions_are_compared(
    loop: VirtualLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has passed the old position by nothing: there is nothing to read, and only the
    comparison shows that it is another one."""
    log, place, held = log_of(3), files(tmp_path), [False]
    sunk(loop, log, place, monkeypatch)
    log.groups["g1"].queues[0].restore(2)
    log.store("g1", 0, [b"new"])
    answer = FakeLog._entries

    def entries(self: FakeLog, group: Group, *rest: Any) -> pb.Entries | None:
        return None if held[0] else answer(self, group, *rest)

    monkeypatch.setattr(FakeLog, "_entries", entries)
    held[0] = True
    loop.call_later(100.0, lambda: (held.__setitem__(0, False), log.changed()))
    with pytest.raises(BadArgument, match="the cluster does not have"):
        sunk(loop, log, place, monkeypatch)
    assert loop.time() >= 100.0


@pytest.mark.parametrize("new", [0, 1, 2, 5])
def test_a_reader_that_lives_through_a_restore_notices(new: int, loop: VirtualLoop) -> None:
    """Its position is in its memory only. It is compared whenever a stream is opened."""
    log = log_of(3)

    async def work() -> None:
        reader = AsyncConsumer(";".join(log.endpoints), "t", queues=[0])
        reader._connection = FakeConnection(log)
        async with reader:
            read = 0
            while read < 3:
                batch = await reader.next_batch(10.0)
                assert batch is not None
                read += len(batch)
            log.break_streams("g1")
            log.store("g1", 0, [b"3"])
            batch = await reader.next_batch(10.0)
            assert batch is not None and batch.bodies() == [b"3"] and batch.skipped == 0
            log.groups["g1"].queues[0].restore(2)
            log.store("g1", 0, [b"new"] * new)
            log.break_streams("g1")
            with pytest.raises(Refused) as told:
                await reader.next_batch(10.0)
            assert told.value.code == Code.ILLEGAL_OFFSET

    loop.run_until_complete(work())


def entries_of(log: FakeLog, first: int, *, skipped: int = 0, cut: int = 0) -> Entries:
    found = log.groups["g1"].queues[0].entries[first:]
    sizes = np.array([len(entry) for entry in found], "<u4").tobytes()
    data = b"".join(found)
    return Entries(
        0,
        first,
        memoryview(sizes),
        memoryview(data[: len(data) - cut]),
        first + len(found),
        skipped,
    )


def positioned(log: FakeLog, offset: int) -> tuple[Positions, int]:
    """A position behind that many messages, and its generation."""
    positions = Positions()
    name = EntryName.of(memoryview(log.groups["g1"].queues[0].entries[offset - 1]))
    positions.add(PLACE, Start(offset=offset, after=name))
    ((generation, start),) = positions.wanted("g1").values()
    where = pb.FetchFrom()
    start.fill(where)
    assert where.offset == offset - 1
    return positions, generation


def test_lagging_replica_does_not_prove_a_position() -> None:
    """It does not have the message yet; its end says nothing of the log, unlike a leader's."""
    log = log_of(4)
    positions, generation = positioned(log, 3)
    positions.opened(PLACE, generation, 2, 2, leads=False)
    positions.reached(PLACE, 2)
    assert positions.awaits() and not positions[PLACE].unproven and not positions.finished()
    run = positions.accept(PLACE, generation, entries_of(log, 2))
    assert run is not None and (run.offset, run.end) == (3, 4)
    assert not positions.awaits() and not positions[PLACE].unproven
    positions, generation = positioned(log, 3)
    with pytest.raises(Changed, match="the queue ends with offset 1"):
        positions.opened(PLACE, generation, 2, 2, leads=True)


def test_retention_may_take_the_message_while_it_is_awaited() -> None:
    """With messages behind it, which say so, and without."""
    log = log_of(5)
    positions, generation = positioned(log, 3)
    positions.opened(PLACE, generation, 2, 5, leads=True)
    assert positions.awaits()
    with pytest.raises(Gap):
        positions.accept(PLACE, generation, entries_of(log, 4))
    run = positions.accept(PLACE, generation, entries_of(log, 4, skipped=2))
    assert (
        run is not None and run.missed == 1 and not positions.awaits() and positions[PLACE].unproven
    )
    positions, generation = positioned(log, 3)
    positions.opened(PLACE, generation, 2, 3, leads=True)
    positions.reached(PLACE, 3)
    assert not positions.awaits() and positions[PLACE].unproven


def test_a_damaged_run_is_read_again_behind_the_same_message() -> None:
    log = log_of(5)
    positions, generation = positioned(log, 3)
    positions.opened(PLACE, generation, 2, 5, leads=True)
    run = positions.accept(PLACE, generation, entries_of(log, 2))
    assert run is not None
    positions.again(run)
    ((_, start),) = positions.wanted("g1").values()
    assert start == Start(offset=3, after=run.after) and run.after is not None


def test_sizes_that_do_not_belong_to_the_entries_are_no_entry() -> None:
    log = log_of(5)
    positions, generation = positioned(log, 3)
    positions.opened(PLACE, generation, 2, 5, leads=True)
    whole = sum(map(len, log.groups["g1"].queues[0].entries[2:]))
    with pytest.raises(Gap, match="an entry of 40 bytes"):
        positions.accept(PLACE, generation, entries_of(log, 2, cut=whole - 40))
    positions[PLACE].awaited = False
    with pytest.raises(Gap, match="an entry of 40 bytes"):
        positions.accept(PLACE, generation, entries_of(log, 2, cut=whole - 40))


def test_a_table_that_is_rolled_back_before_the_point_goes_on(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its positions are those of the snapshot. Nothing is added while they are ahead of the log."""
    lake, bodies = Lake(), set[Row]()
    log, place = log_of(2), table(lake, bodies)
    for more in range(3):
        log.store("g1", 0, [b"%d" % more] * more)
        sunk(loop, log, place, monkeypatch)
    log.groups["g1"].queues[0].restore(3)
    log.store("g1", 0, [b"new"] * 4)
    while True:
        try:
            run = sunk(loop, log, place, monkeypatch)
        except BadArgument:
            assert lake.head is not None
            lake.head = lake.head.parent
        else:
            break
    assert run.rows == 4 and len(lake.history()) == 3
    assert lake.rows() == Counter([("g1", 1, 0), *(("g1", 0, offset) for offset in range(7))])
