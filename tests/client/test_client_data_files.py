"""Files that `consume` writes: what a crash leaves, what is appended, what is complete; and the
loop that commits what is in them."""

from __future__ import annotations

import asyncio
import csv
import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from ledgermq import cli
from ledgermq.client.errors import BadArgument, Refused
from ledgermq.client.messages import data_files
from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.client.native.sinks.consuming import Filling, Progress, by_offsets
from ledgermq.proto.status import ExitCode
from tests.client.fake_reading import FakeConnection, FakeLog
from tests.client.virtual_time import VirtualLoop


def filled(count: int = 20) -> FakeLog:
    log = FakeLog({"g1": 2})
    for queue in (0, 1):
        log.store(
            "g1",
            queue,
            [b"%d/%d" % (queue, k) for k in range(count)],
            tags=["a", "b"] * (count // 2),
        )
    return log


def fill(
    log: FakeLog,
    file: Any,
    limit: int | None = None,
    commits: bool = True,
    empty_s: float | None = 5.0,
    **options: Any,
) -> Filling:
    """One run of `consume --to`."""

    async def work() -> Filling:
        filling = Filling(file, limit, commits, lambda done: None, lambda total: None)
        consumer = AsyncConsumer(";".join(log.endpoints), "t", group="x", **options)
        consumer._connection = FakeConnection(log)
        async with consumer:
            await filling.run(consumer, empty_s)
        return filling

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet", "x.txt"])
def test_export_writes_all_messages_and_commits_their_ends(tmp_path: Path, name: str) -> None:
    """The same messages whatever the format; the offsets are those behind them."""
    log, path = filled(), tmp_path / name
    file = data_files.Parquet(path) if name == "x.parquet" else data_files.lines_to(str(path))
    assert fill(log, file).done == 40
    rows = READERS[path.suffix](path)
    assert (
        sorted(rows) == sorted((f"{q}/{k}", "ab"[k % 2]) for q in (0, 1) for k in range(20))
        or name == "x.txt"
    )
    assert sorted(body for body, _ in rows) == sorted(f"{q}/{k}" for q in (0, 1) for k in range(20))
    assert log.committed == {("g1", 0): 20, ("g1", 1): 20} and list(tmp_path.iterdir()) == [path]


def _csv(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="") as lines:
        return [(row["body"], row["tag"]) for row in csv.DictReader(lines)]


READERS: dict[str, Callable[[Path], list[tuple[str, str]]]] = {
    ".jsonl": lambda path: [
        (row["body"], row["tag"]) for row in map(json.loads, path.read_text().splitlines())
    ],
    ".csv": _csv,
    ".parquet": lambda path: [
        (row["body"].decode(), row["tag"]) for row in pyarrow.parquet.read_table(path).to_pylist()
    ],
    ".txt": lambda path: [(line, "") for line in path.read_text().splitlines()],
}


def test_an_election_is_not_the_end(tmp_path: Path) -> None:
    """No message arrived within the wait, but without a leader the end of the queue is unknown."""

    async def work() -> None:
        log, path = filled(), tmp_path / "x.jsonl"
        filling = Filling(
            data_files.lines_to(str(path)), None, True, lambda done: None, lambda total: None
        )
        consumer = AsyncConsumer(";".join(log.endpoints), "t", group="x")
        consumer._connection = FakeConnection(log)
        log.lead("g1", None)
        asyncio.get_running_loop().call_later(20, log.lead, "g1", 2)
        async with consumer:
            await filling.run(consumer, 1.0)
        assert filling.done == 40

    loop = VirtualLoop()
    loop.run_until_complete(work())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_a_limit_cuts_a_batch_and_the_next_run_goes_on_behind_it(tmp_path: Path, name: str) -> None:
    """In a second file, or in the same one."""
    log = filled()
    log.run_max = 16
    found = []
    for turn in range(3):
        path = tmp_path / (f"{turn}.parquet" if name == "x.parquet" else name)
        file = data_files.Parquet(path) if name == "x.parquet" else data_files.lines_to(str(path))
        assert fill(log, file, limit=7).done == 7
        found = READERS[path.suffix](path) + (found if name == "x.parquet" else [])
    assert len(found) == len(set(found)) == 21


def test_export_without_acknowledgement_commits_no_offset(tmp_path: Path) -> None:
    """And tags are exact."""
    log = filled()
    fill(log, data_files.lines_to(str(tmp_path / "x.jsonl")), commits=False, tags={"a"})
    assert log.committed == {} and len((tmp_path / "x.jsonl").read_text().splitlines()) == 20


def test_export_commits_only_flushed_messages(tmp_path: Path) -> None:
    """A disk that fails ends the run; the offsets are those of the last flush that worked."""
    log = filled(40)

    class Failing(data_files.Lines):
        flushed = 0

        def flush(self) -> None:
            if self.flushed == 2:
                raise OSError(28, "No space left on device")
            Failing.flushed += 1
            super().flush()

    loop_clock = iter(range(10_000))
    file = Failing(data_files.appended(str(tmp_path / "x.jsonl")), ".jsonl", synced=True)
    with pytest.raises(OSError, match="No space"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "ledgermq.client.native.sinks.consuming._now", lambda: float(next(loop_clock))
        )
        fill(log, file)
    rows = {
        (row["queue"], row["offset"])
        for row in map(json.loads, (tmp_path / "x.jsonl").read_text().splitlines())
    }
    committed = {
        (queue, offset) for (_, queue), end in log.committed.items() for offset in range(end)
    }
    assert committed and committed <= rows and len(committed) < 80


def test_a_parquet_file_is_there_when_it_is_complete(tmp_path: Path) -> None:
    """A run that fails leaves nothing and commits nothing; one that is interrupted is complete."""
    log, path = filled(), tmp_path / "x.parquet"
    log.corrupt = 1000
    with pytest.raises(Refused, match="damaged"):
        fill(log, data_files.Parquet(path))
    assert list(tmp_path.iterdir()) == [] and log.committed == {}
    log.corrupt = 0

    async def interrupted() -> None:
        filling = Filling(
            data_files.Parquet(path), None, True, lambda done: None, lambda total: None
        )
        consumer = AsyncConsumer(";".join(log.endpoints), "t", group="x")
        consumer._connection = FakeConnection(log)
        async with consumer:
            task = asyncio.ensure_future(filling.run(consumer, None))
            await asyncio.sleep(30)
            assert not path.exists()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    loop = VirtualLoop()
    loop.run_until_complete(interrupted())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert pyarrow.parquet.read_table(path).num_rows == 40 and sum(log.committed.values()) == 40
    with pytest.raises(BadArgument, match="exists"):
        data_files.Parquet(path)
    with pytest.raises(BadArgument, match="cannot be written"):
        data_files.Parquet(tmp_path / "no" / "x.parquet")


def test_a_queue_that_retention_emptied_is_read_to_its_end(tmp_path: Path) -> None:
    """What is gone does not keep `--until-empty` waiting for it."""
    log, path = filled(), tmp_path / "x.txt"
    log.trim("g1", 0, 20)
    log.committed = {("g1", 0): 5, ("g1", 1): 0}
    assert fill(log, data_files.lines_to(str(path))).done == 20


def test_export_to_a_full_disk_commits_no_offset_and_ends_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line says what it is."""
    log = filled()
    with pytest.raises(OSError, match="No space left") as full:
        fill(log, data_files.lines_to("/dev/full"))
    assert not any(log.committed.values())
    assert cli._unexpected(full.value) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("error: cannot write: No space left on device")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EIO, "Input/output error", "/data/n1/f"),
            "error: /data/n1/f: Input/output error; check the disk",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/n1"),
            "error: /n1: Permission denied; run the command as a user who may",
        ),
        (
            OSError(errno.EIO, "Input/output error"),
            "error: a file: Input/output error; check the disk",
        ),
    ],
)
def test_a_failing_disk_or_a_missing_permission_is_no_bug(
    error: OSError, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever command meets it."""
    assert cli._unexpected(error) == ExitCode.REFUSED
    assert capsys.readouterr().err.startswith(said)


def test_parquet_export_without_messages_leaves_no_file(tmp_path: Path) -> None:
    """It would have no columns."""
    fill(FakeLog({"g1": 1}), data_files.Parquet(tmp_path / "x.parquet"), empty_s=0.5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("x.jsonl", b'{"a":1}\n{"b":', b'{"a":1}\n'),
        ("x.jsonl", b'{"a":1}\n{"b":2}', b'{"a":1}\n{"b":2}\n'),
        ("x.jsonl", b'{"a":1}\n', b'{"a":1}\n'),
        ("x.jsonl", b"{", b""),
        ("x.txt", b"one\ntw", b"one\ntw\n"),
        ("x.txt", b"", b""),
        ("x.csv", b"body\na\n", b"body\na\n"),
        ("x.csv", b"body\na\nb", b"body\na\nb\n"),
        ("x.csv", b'body\n"a ""b"', b'body\n"a ""b"\n'),
        ("x.csv", b'body\n"a,', b'body\n"a,"\n'),
        ("x.csv", b'body\n"a\n', b'body\n"a\n"\n'),
        ("x.jsonl", b'{"a":1}\n{"b":"' + bytes(3 << 20), b'{"a":1}\n'),
        (
            "x.jsonl",
            b'{"a":1}\n{"b":"' + b"x" * (3 << 20) + b'"}',
            b'{"a":1}\n{"b":"' + b"x" * (3 << 20) + b'"}\n',
        ),
        ("x.jsonl", b"[" * 100_000, b""),
    ],
)
def test_torn_last_line_is_cut_or_ended(
    tmp_path: Path, name: str, before: bytes, after: bytes
) -> None:
    """Nothing that is whole is ever lost, and a new line begins at the beginning of one."""
    path = tmp_path / name
    path.write_bytes(before)
    data_files.lines_to(str(path)).close()
    assert path.read_bytes() == after


@pytest.mark.parametrize(
    ("committed", "progress", "streams"),
    [
        ({}, [], True),
        ({}, [Progress("g1", 0, 0, 0)], True),
        ({}, [Progress("g1", 0, 7, 0)], False),
        ({}, [Progress("g1", 0, 0, 3)], False),
        ({0: 9}, [Progress("g1", 0, 9, 0)], True),
        ({0: 9}, [Progress("g1", 0, 12, 0)], False),
        ({0: 9}, None, True),
        ({}, None, False),
    ],
)
def test_which_way_a_group_reads(
    committed: dict[int, int], progress: list[Progress] | None, streams: bool
) -> None:
    """A group with leases continues with leases."""
    log = filled()
    log.committed = {("g1", queue): offset for queue, offset in committed.items()}
    assert asyncio.run(by_offsets(FakeConnection(log), "t", "x", "", progress)) is streams


def test_progress_begins_at_the_first_retained_message() -> None:
    """The place of a group that has not begun is the first message there is."""
    log = filled()
    log.trim("g1", 0, 5)
    assert (
        asyncio.run(by_offsets(FakeConnection(log), "t", "x", "", [Progress("g1", 0, 5, 0)]))
        is True
    )
    with pytest.raises(Refused, match="no topic u"):
        asyncio.run(by_offsets(FakeConnection(log), "u", "x", "", []))


def test_flush_of_a_pipe_waits_for_its_reader() -> None:
    """Not when the bytes are in the pipe; a reader that ends before is an error, also when the
    bytes were written."""
    read, write = os.pipe()
    lines = data_files.Lines(os.fdopen(write, "wb"))
    flushed = threading.Event()

    def flush() -> None:
        lines.flush()
        flushed.set()

    lines.write([b"one"], [])
    flushing = threading.Thread(target=flush)
    flushing.start()
    assert os.read(read, 3) == b"one" and not flushed.is_set()
    assert os.read(read, 9) == b"\n"
    flushing.join(10)
    assert flushed.is_set()
    lines.write([b"two"], [])
    lines._out.flush()
    os.close(read)
    with pytest.raises(BrokenPipeError, match="before it had read everything"):
        lines.flush()
    lines._out.close()


def test_a_pipe_that_holds_much_of_another_writer_is_written_to() -> None:
    """`(cat large; ledgermq consume …) | …`: its pages are waited for by nobody."""
    read, write = os.pipe()
    os.write(write, bytes(9000))
    lines = data_files.Lines(os.fdopen(write, "wb"))
    lines.write([b"one"], [])
    lines.flush()
    assert os.read(read, 10_000)[9000:] == b"one\n"
    os.close(read)
    lines._out.close()
