"""Consume queues that are forgotten, and begin again elsewhere: written at once and through the
buffer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.queues.queue_buffer import BufferedQueues
from tests.storage.queues.test_storage_consume_queue import FILE_BYTES, columns, run
from tests.storage.queues.written_queues import WrittenQueues

KINDS = [WrittenQueues, BufferedQueues]
LITE = "L$a", 0
FLOOR = 30


def make(kind: type[BufferedQueues], path: Path) -> BufferedQueues:
    disk: Disk = RealDisk()
    disk.mkdirs(f"{path}/consumequeue")
    return kind(disk, f"{path}/consumequeue", FILE_BYTES)


def files(path: Path) -> list[str]:
    return sorted(
        str(file.relative_to(path / "consumequeue")) for file in path.rglob("*") if file.is_file()
    )


def vanished(kind: type[BufferedQueues], path: Path) -> BufferedQueues:
    """A queue whose 25 messages were all trimmed and that was forgotten, beside a queue in use."""
    queues = make(kind, path)
    queues.append(run(*LITE, 0, 25))
    queues.append(columns(("t", 0, 0)))
    queues.raise_minimums(26_000)
    assert queues.next_offset(*LITE) == queues.min_offset(*LITE) == 25
    queues.forget(*LITE)
    return queues


@pytest.mark.parametrize("kind", KINDS)
def test_forgotten_queue_is_gone_at_once_and_its_files_with_the_trim(
    kind: type[BufferedQueues], tmp_path: Path
) -> None:
    """At once for every question, in files with the trim; what else there is stays."""
    queues = vanished(kind, tmp_path)
    assert (queues.next_offset(*LITE), queues.min_offset(*LITE)) == (0, 0)
    assert "L$a" not in queues.next_offsets() and "L$a" not in queues.minimums()
    assert len(files(tmp_path)) == 4
    removed = queues.trim(26_000)
    assert files(tmp_path) == ["t/0/" + "0" * 20] and len(removed) == 3
    queues.sync()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trimmed", [False, True])
def test_forgotten_queue_restarts_above_its_former_end(
    kind: type[BufferedQueues], trimmed: bool, tmp_path: Path
) -> None:
    """Whether its files are gone by then or not: the same answers, and the same bytes as a queue
    made from the snapshot and the log."""
    queues = vanished(kind, tmp_path / "own")
    if trimmed:
        queues.trim(26_000)
    queues.begin_at(*LITE, FLOOR)
    assert queues.next_offset(*LITE) == queues.min_offset(*LITE) == FLOOR
    queues.append(run(*LITE, FLOOR, 3))
    queues.append(run(*LITE, FLOOR + 1, 4))
    units = queues.read(*LITE, 0, 100)
    assert (units.first, units.physical_offsets.tolist()) == (
        FLOOR,
        [(FLOOR + at) * 1000 + 48 for at in range(5)],
    )
    queues.trim(26_000)
    queues.sync()
    again = make(kind, tmp_path / "again")
    again.begin_again(queues.minimums())
    again.append(columns(("t", 0, 0)))
    again.append(run(*LITE, FLOOR, 5))
    again.sync()
    for name in files(tmp_path / "again"):
        own = (tmp_path / "own/consumequeue" / name).read_bytes()
        assert own == (tmp_path / "again/consumequeue" / name).read_bytes(), name
    assert files(tmp_path / "own") == files(tmp_path / "again")


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_from_a_snapshot_without_the_queue_removes_its_files_later(
    kind: type[BufferedQueues], tmp_path: Path
) -> None:
    """The process ended before the trim was carried out."""
    queues = vanished(kind, tmp_path)
    queues.sync()
    ends, lows = queues.next_offsets(), queues.minimums()
    queues.close()
    after = make(kind, tmp_path)
    after.start(ends, 10, lows)
    after.append(run("u", 0, 0, 2))
    assert after.next_offset(*LITE) == 0
    after.trim(0)
    assert not [name for name in files(tmp_path) if name.startswith("L$a")]
    assert after.read("u", 0, 0, 9).physical_offsets.tolist() == [48, 1048]


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_from_the_snapshot_before_goes_on_with_the_queue(
    kind: type[BufferedQueues], tmp_path: Path
) -> None:
    """Files stay until every snapshot knows that the queue is gone."""
    queues = make(kind, tmp_path)
    queues.append(run(*LITE, 0, 25))
    queues.sync()
    ends = queues.next_offsets()
    queues.raise_minimums(26_000)
    queues.forget(*LITE)
    queues.sync()
    queues.close()
    after = make(kind, tmp_path)
    after.start(ends, 10, {})
    assert after.read(*LITE, 0, 99).physical_offsets.tolist() == [
        at * 1000 + 48 for at in range(25)
    ]


def test_a_number_in_the_buffer_is_used_again(tmp_path: Path) -> None:
    """Names that come and go leave nothing in memory."""
    queues = make(BufferedQueues, tmp_path)
    assert isinstance(queues, BufferedQueues)
    for number in range(100):
        queues.append(columns((f"L$n{number}", 0, 0)))
        queues.raise_minimums(1 << 40)
        queues.forget(f"L$n{number}", 0)
        queues.trim(1 << 40)
    assert (
        len(queues._keys) == 1
        and not queues._numbers
        and not queues._files
        and not queues._forgotten
    )
