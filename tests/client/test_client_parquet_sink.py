"""The files of a sink: each message in exactly one, whatever ends the process, and whichever files
are moved away."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client import aside
from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import BadArgument, ClusterError
from ledgermq.client.native.consumers.positions import Place, Run
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.sinks import parquet_sink
from ledgermq.client.native.sinks.parquet_sink import ParquetSink
from ledgermq.client.native.sinks.ports import Queue
from ledgermq.client.native.sinks.sinking import Sinking
from tests.client.fake_reading import FakeLog, served
from tests.client.fake_reading import Queue as Stored
from tests.client.test_client_native_consumer import filled

pq = pytest.importorskip("pyarrow.parquet")

HOUR_MS = 3_600_000
QUEUES: list[Queue] = [("g1", 0), ("g1", 1), ("g2", 0)]


class Killed(BaseException):
    """The process ends here."""


def batch_of(name: Queue, stored: Stored, begin: int, end: int, missed: int = 0) -> Batch:
    entries = stored.entries[begin:end]
    sizes = np.array([len(entry) for entry in entries], "<u4").tobytes()
    return Batch.read(
        Run(
            Place(*name),
            1,
            begin,
            0,
            len(entries),
            missed,
            memoryview(sizes),
            memoryview(b"".join(entries)),
        ),
        0,
        True,
    )


def open_sink(
    directory: Path, topic: str = "t", cluster: str = "c", partition: str = "hour"
) -> ParquetSink:
    return ParquetSink(directory, cluster, topic, partition, 1 << 30, 1e9)


def kill(sink: ParquetSink) -> None:
    """What is left of a process: its files, and no lock."""
    sink._lock.close()
    for file in sink._open.values():
        file._aside.file.close()


def rows_of(*directories: Path) -> dict[str, list[int]]:
    """The offsets in the files, in the order of the files' names, by queue."""
    found: dict[str, list[int]] = {}
    paths = [path for directory in directories for path in directory.rglob("*.parquet")]
    for path in sorted(paths, key=lambda path: path.name):
        table = pq.read_table(path, partitioning=None)
        about = {
            key.decode(): value.decode()
            for key, value in pq.read_metadata(path).metadata.items()
            if key.startswith(b"ledgermq")
        }
        offsets = table["offset"].to_pylist()
        assert (
            int(about["ledgermq.first_offset"]) == offsets[0]
            and int(about["ledgermq.next_offset"]) == offsets[-1] + 1
        )
        assert len({store_ms // HOUR_MS for store_ms in table["store_ms"].to_pylist()}) == 1
        found.setdefault(f"{about['ledgermq.broker_group']}/{about['ledgermq.queue']}", []).extend(
            offsets
        )
        assert [body.decode() for body in table["body"].to_pylist()] == [
            str(offset) for offset in offsets
        ]
    return found


STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(range(len(QUEUES))), st.integers(1, 5)),
    st.tuples(st.just("later"), st.just(0), st.integers(-1, 2)),
    st.tuples(
        st.sampled_from(
            [
                "roll",
                "kill",
                "kill before the positions",
                "kill before the name",
                "move away",
                "end",
            ]
        )
    ),
)


@given(st.lists(STEPS, max_size=40))
def test_each_message_is_in_one_file(steps: list[tuple[Any, ...]]) -> None:
    """Batches in any sizes, with store times that may go back, among kills at any place; files are
    moved away. Each process continues where the files end."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        directory, away = Path(place) / "lake", Path(place) / "away"
        away.mkdir()
        stored, now = [Stored(queue) for _, queue in QUEUES], 100
        sink = open_sink(directory)
        for step in [*steps, ("end",)]:
            if step[0] == "write":
                queue = stored[step[1]]
                queue.append(
                    [str(queue.end + k).encode() for k in range(step[2])], store_ms=now * HOUR_MS
                )
                begin = sink.positions.get(QUEUES[step[1]], 0)
                assert sink.write(batch_of(QUEUES[step[1]], queue, begin, queue.end))
            elif step[0] == "later":
                now += step[2]
            elif step[0] == "roll":
                sink.roll()
            elif step[0] == "move away":
                for path in directory.rglob("*.parquet"):
                    path.rename(away / path.name)
                for path in directory.glob("date=*/hour=*"):
                    with suppress(OSError):
                        path.rmdir()
            else:
                sink = ended(sink, step[0], patch)
                for name, queue in zip(QUEUES, stored, strict=True):
                    begin = sink.positions.get(name, 0)
                    assert rows_of(directory, away).get(f"{name[0]}/{name[1]}", []) == list(
                        range(begin)
                    )
                    if step[0] == "end":
                        assert begin == queue.end
                    elif queue.end > begin:
                        assert sink.write(batch_of(name, queue, begin, queue.end))
        kill(sink)


def ended(sink: ParquetSink, how: str, patch: pytest.MonkeyPatch) -> ParquetSink:
    """The sink of the process after this one."""
    if how == "end":
        with sink:
            pass
        return open_sink(sink.directory)
    with patch.context() as during:
        if how == "kill before the positions":
            during.setattr(ParquetSink, "_keep", die)
        elif how == "kill before the name":
            during.setattr(parquet_sink, "name_file", die)
        with suppress(Killed):
            if how != "kill":
                sink.roll()
    kill(sink)
    return open_sink(sink.directory)


def die(*_: object) -> None:
    raise Killed


def test_a_complete_file_is_closed(tmp_path: Path) -> None:
    """A sink that runs for months has a descriptor for each queue, not for each file."""
    stored = Stored(0)
    stored.append([b"0"])
    with open_sink(tmp_path) as sink:
        sink.write(batch_of(("g1", 0), stored, 0, 1))
        (file,) = sink._open.values()
        sink.roll()
        assert file._aside.file.closed


def test_a_part_has_a_durable_name_before_the_positions_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could keep the positions and lose the messages."""
    steps: list[str] = []
    sync, rename = parquet_sink.sync_directory, os.rename

    def syncing(path: Path) -> None:
        steps.append(f"sync {path.name}")
        sync(path)

    def renaming(old: Path, new: Path) -> None:
        steps.append(f"name {new.name}")
        rename(old, new)

    stored = Stored(0)
    stored.append([b"0"])
    with open_sink(tmp_path) as sink:
        sink.write(batch_of(("g1", 0), stored, 0, 1))
        (file,) = sink._open.values()
        for module in (parquet_sink, aside):
            monkeypatch.setattr(module, "sync_directory", syncing)
        monkeypatch.setattr(os, "rename", renaming)
        sink.roll()
    place, positions = file.path.parent.name, sink._positions_path.name
    named = [
        f"name {positions}",
        f"sync {tmp_path.name}",
        f"name {file.path.name}",
        f"sync {place}",
    ]
    assert steps == [f"sync {place}", *named]


def test_sink_refuses_batches_that_do_not_continue_a_queue(tmp_path: Path) -> None:
    """A batch that repeats messages, or leaves some out, is refused; not so if retention removed
    them."""
    stored = Stored(0)
    stored.append([str(k).encode() for k in range(20)])
    with open_sink(tmp_path) as sink:
        assert sink.write(batch_of(("g1", 0), stored, 0, 5))
        for begin in (4, 6):
            assert not sink.write(batch_of(("g1", 0), stored, begin, 10))
        assert sink.write(batch_of(("g1", 0), stored, 7, 10, missed=2))
    assert rows_of_one(tmp_path) == [0, 1, 2, 3, 4, 7, 8, 9]


def rows_of_one(directory: Path) -> list[int]:
    (path,) = directory.rglob("*.parquet")
    offsets: list[int] = pq.read_table(path, partitioning=None)["offset"].to_pylist()
    return offsets


def test_sink_on_a_full_disk_leaves_no_file_and_continues_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process writes the messages."""
    stored = Stored(0)
    stored.append([b"0", b"1"])
    with pytest.raises(OSError), open_sink(tmp_path) as sink:
        sink.write(batch_of(("g1", 0), stored, 0, 2))
        monkeypatch.setattr(parquet_sink.os, "fsync", full)
        sink.roll()
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.p*t"))
    with open_sink(tmp_path) as sink:
        assert not sink.positions and sink.write(batch_of(("g1", 0), stored, 0, 2))
    assert rows_of_one(tmp_path) == [0, 1]


def test_a_second_ctrl_c_loses_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before a complete file has its name, while another file is open.
    `test_client_sink_crashes.py` has every place."""
    monkeypatch.setattr(parquet_sink, "name_file", interrupted)
    with suppress(KeyboardInterrupt), open_sink(tmp_path) as sink:
        for queue in QUEUES[:2]:
            stored = Stored(queue[1])
            stored.append([b"0", b"1"])
            assert sink.write(batch_of(queue, stored, 0, 2))
        sink.roll(lambda file: file.queue == QUEUES[0])
    with open_sink(tmp_path) as sink:
        assert sink.positions == {QUEUES[0]: 2} and rows_of(tmp_path) == {"g1/0": [0, 1]}


def interrupted(_: Path) -> None:
    raise KeyboardInterrupt


def full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_no_flipped_bit_moves_the_positions(tmp_path: Path) -> None:
    """It would leave messages out, or write them twice."""
    stored = Stored(0)
    stored.append([b"%d" % k for k in range(1234)])
    with open_sink(tmp_path) as sink:
        sink.write(batch_of(("g1", 0), stored, 0, 1234))
    positions = tmp_path / ".t.positions.json"
    kept = positions.read_bytes()
    with open_sink(tmp_path) as sink:
        before = sink.positions, sink.last, sink.logs
    refused = 0
    for bit in range(0, 8 * len(kept), 5):
        flipped = bytearray(kept)
        flipped[bit // 8] ^= 1 << bit % 8
        positions.write_bytes(flipped)
        try:
            with open_sink(tmp_path) as sink:
                assert (sink.positions, sink.last, sink.logs) == before
        except BadArgument:
            refused += 1
    assert refused > len(kept)


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """One that another process writes, one of another cluster, one whose files or positions are not
    readable, one that is a file."""
    stored = Stored(0)
    stored.append([b"0"])
    with open_sink(tmp_path) as sink:
        sink.write(batch_of(("g1", 0), stored, 0, 1))
        with pytest.raises(BadArgument, match="another process"):
            open_sink(tmp_path)
        open_sink(tmp_path, topic="t2").__exit__(None)
    with pytest.raises(BadArgument, match="belongs to the cluster c"):
        open_sink(tmp_path, cluster="d")
    positions = tmp_path / ".t.positions.json"
    kept = positions.read_text()
    for text in ("", "[]", json.dumps({"v": 2}), kept.replace('"next"', '"former"')):
        positions.write_text(text)
        with pytest.raises(BadArgument, match=r"is damaged|has version 2"):
            open_sink(tmp_path)
    former = json.loads(kept)
    del former["crc32c"]
    positions.write_text(json.dumps(former))
    with open_sink(tmp_path) as sink:
        assert sink.positions == {("g1", 0): 1}, "sinks of former versions wrote no checksum"
    positions.unlink()
    with pytest.raises(BadArgument, match=r"positions\.json is not"):
        open_sink(tmp_path)
    (path,) = tmp_path.rglob("*.parquet")
    with pytest.raises(BadArgument, match="cannot be written"):
        open_sink(path)
    for name in ("node.json", "cluster.yaml", "backup.json"):
        other = tmp_path / f"with {name}"
        other.mkdir()
        (other / name).touch()
        with pytest.raises(BadArgument, match="directory of a node, of a cluster or of a backup"):
            open_sink(other)
        assert [path.name for path in other.iterdir()] == [name]


def into(directory: Path) -> Callable[[str, str], ParquetSink]:
    return lambda cluster, topic: open_sink(directory, topic, cluster, "none")


async def sunk(
    log: FakeLog, directory: Path, endpoints: str, until_empty_s: float = 0.1
) -> Sinking:
    with Connection(endpoints) as connection:
        sinking = Sinking(connection, "t", "", lambda rows, lag: None)
        await sinking.run(into(directory), until_empty_s)
    return sinking


async def test_a_topic_is_read_to_its_end_and_continued(tmp_path: Path) -> None:
    """All queues of all broker groups; the second run writes only what is new."""
    log = filled(20, {"g1": 2, "g2": 1})
    async with served(log) as endpoints:
        assert (await sunk(log, tmp_path, endpoints)).rows == 60
        log.groups["g1"].queues[1].append([b"20", b"21"])
        second = await sunk(log, tmp_path, endpoints)
        assert (second.rows, second.done) == (2, 1)
    found = {path.name.rpartition(".")[0].rpartition(".")[0] for path in tmp_path.glob("*.parquet")}
    assert found == {"t.g1.0", "t.g1.1", "t.g2.0"}
    assert sum(pq.read_metadata(path).num_rows for path in tmp_path.glob("*.parquet")) == 62


async def test_queues_that_are_added_while_it_reads_are_read_from_their_beginning(
    tmp_path: Path,
) -> None:
    """More queues in the first broker group change the numbers of the others: a position belongs to
    the queue, not to its number. After a recovery, which may have lost messages, it may belong to
    others."""
    log = filled(20, {"g1": 1, "g2": 1})
    async with served(log) as endpoints:
        await sunk(log, tmp_path, endpoints)
        more = Stored(1)
        more.append([str(k).encode() for k in range(5)])
        log.groups["g1"].queues.append(more)
        log.groups["g2"].queues[0].append([b"20"])
        assert (await sunk(log, tmp_path, endpoints)).rows == 6
        log.groups["g1"].log_id = "another"
        more.append([b"5"])
        with pytest.raises(BadArgument, match="broker group g1 was recovered since"):
            await sunk(log, tmp_path, endpoints)


def test_a_cluster_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    """And nothing is left in the directory."""
    with Connection("127.0.0.1:1", timeout_s=0.3) as connection, pytest.raises(ClusterError):
        asyncio.run(Sinking(connection, "t", "", lambda rows, lag: None).run(into(tmp_path), None))
    assert not list(tmp_path.iterdir())


async def test_a_cancelled_run_completes_its_files(tmp_path: Path) -> None:
    """Ctrl-C is the normal end of a sink: what was read before is in files."""
    log = filled(20, {"g1": 1})
    async with served(log) as endpoints:
        with Connection(endpoints, timeout_s=60.0) as connection:
            complete = asyncio.Event()
            sinking = Sinking(
                connection, "t", "", lambda rows, lag: complete.set() if rows == 20 else None
            )
            reading = asyncio.create_task(sinking.run(into(tmp_path), None))
            await complete.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
    assert (sinking.rows, sinking.done) == (20, 1)
    assert rows_of_one(tmp_path) == list(range(20))
