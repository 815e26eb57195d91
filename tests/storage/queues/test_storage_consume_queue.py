"""Consume queues: dense units by queue, repeated dispatch, cutting, bounds on open files, a full
disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ledgermq.proto.entries.layout import Columns
from ledgermq.storage.files.errors import DerivedLost, NoSpace
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.real_disk import RealDisk
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.queues.written_queues import WrittenQueues

FILE_BYTES = 200


def columns(*rows: tuple[str, int, int]) -> Columns:
    """Columns of (topic, queue, queue offset) rows whose other fields follow from the row."""
    topics = tuple(dict.fromkeys(topic for topic, _, _ in rows))
    offsets = np.array([offset for _, _, offset in rows], np.int64)
    return Columns(
        topics=topics,
        topic_of=np.array([topics.index(topic) for topic, _, _ in rows], np.int32),
        queues=np.array([queue for _, queue, _ in rows], np.int32),
        queue_offsets=offsets,
        tags_codes=offsets - 5,
        physical_offsets=offsets * 1000 + 48,
        sizes=(offsets + 91).astype(np.int32),
        origins=offsets * 0,
        flags=np.zeros(len(rows), np.int32),
    )


def run(topic: str, queue: int, first: int, count: int) -> Columns:
    return columns(*[(topic, queue, first + i) for i in range(count)])


def fresh(path: Path, disk: Disk | None = None, **options: int) -> WrittenQueues:
    disk = disk or RealDisk()
    disk.mkdirs(f"{path}/consumequeue")
    return WrittenQueues(disk, f"{path}/consumequeue", FILE_BYTES, **options)


def test_unit_layout_is_rocketmqs(tmp_path: Path) -> None:
    """A unit is the golden one: place, record size, sign-extended tag hash."""
    queues = fresh(tmp_path)
    one = np.array([1])
    queues.append(
        Columns(
            ("TopicTest",),
            one * 0,
            one * 3,
            one * 0,
            one * 2598919,
            one * 4096,
            np.array([115], np.int32),
            one * 0,
            one * 0,
        )  # type: ignore[arg-type]
    )
    data = (tmp_path / "consumequeue/TopicTest/3" / ("0" * 20)).read_bytes()
    assert len(data) == FILE_BYTES
    assert data[:20].hex() == "000000000000100000000073000000000027a807"
    assert data[20:] == bytes(FILE_BYTES - 20)


def test_units_go_to_their_queues_in_order(tmp_path: Path) -> None:
    """A mixed batch is taken apart by queue, and each queue reads back across its files."""
    queues = fresh(tmp_path)
    rows = [("a", 0, i // 2) if i % 2 else ("a", 1, i // 2) for i in range(50)] + [
        ("b", 7, i) for i in range(5)
    ]
    queues.append(columns(*rows))
    for topic, queue, count in (("a", 0, 25), ("a", 1, 25), ("b", 7, 5)):
        assert queues.next_offset(topic, queue) == count
        units = queues.read(topic, queue, 0, 1000)
        assert units.physical_offsets.tolist() == [i * 1000 + 48 for i in range(count)]
        assert units.sizes.tolist() == [i + 91 for i in range(count)]
        assert units.tags_codes.tolist() == [i - 5 for i in range(count)]
    part = queues.read("a", 0, 8, 5)
    assert (part.first, part.physical_offsets.tolist()) == (
        8,
        [i * 1000 + 48 for i in range(8, 13)],
    )
    assert len(queues.read("a", 0, 25, 5)) == 0
    assert len(queues.read("never", 0, 0, 5)) == 0
    assert queues.next_offsets() == {"a": {0: 25, 1: 25}, "b": {7: 5}}


def test_a_gap_is_a_broken_invariant(tmp_path: Path) -> None:
    """A message whose queue offset is not the next one stops the dispatcher."""
    queues = fresh(tmp_path)
    queues.append(run("a", 0, 0, 3))
    with pytest.raises(AssertionError, match="I6"):
        queues.append(run("a", 0, 4, 1))
    with pytest.raises(AssertionError, match="not dense"):
        queues.append(columns(("a", 0, 3), ("a", 0, 5)))
    assert queues.next_offset("a", 0) == 3


def test_repeated_dispatch_adds_only_new_units(tmp_path: Path) -> None:
    """Dispatching again what is there, in part or in whole, adds only what is new."""
    queues = fresh(tmp_path)
    queues.append(run("a", 0, 0, 8))
    queues.append(run("a", 0, 2, 4))
    queues.append(run("a", 0, 5, 10))
    assert queues.read("a", 0, 0, 99).physical_offsets.tolist() == [
        i * 1000 + 48 for i in range(15)
    ]


def test_start_cuts_to_the_snapshot(tmp_path: Path) -> None:
    """What was dispatched after the snapshot is erased and can be dispatched again; queues the
    snapshot does not know become empty."""
    queues = fresh(tmp_path)
    queues.append(run("a", 0, 0, 12))
    snapshot = queues.next_offsets()
    queues.append(run("a", 0, 12, 30))
    queues.append(run("b", 2, 0, 25))
    queues.close()
    again = fresh(tmp_path)
    again.start(snapshot, units_above_max=55)
    assert again.next_offsets() == {"a": {0: 12}}
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "consumequeue/a/0").iterdir()))
    assert data[12 * 20 :] == bytes(len(data) - 240)
    assert not any(
        path.read_bytes().strip(b"\0") for path in (tmp_path / "consumequeue/b/2").iterdir()
    )
    again.append(run("a", 0, 12, 30))
    again.append(run("b", 2, 0, 25))
    assert again.read("a", 0, 0, 99).physical_offsets.tolist() == [i * 1000 + 48 for i in range(42)]


def test_lost_files_are_noticed(tmp_path: Path) -> None:
    """A snapshot that counts on units which are gone asks for a rebuild; a discarded store starts
    from nothing."""
    queues = fresh(tmp_path)
    queues.append(run("a", 0, 0, 25))
    table = queues.next_offsets()
    queues.close()
    victim = tmp_path / "consumequeue/a/0" / f"{FILE_BYTES:020d}"
    victim.write_bytes(b"short")
    again = fresh(tmp_path)
    with pytest.raises(DerivedLost, match="rebuilt"):
        again.start(table, units_above_max=0)
    again.discard()
    assert list((tmp_path / "consumequeue/a/0").iterdir()) == []
    again.start({}, units_above_max=100)
    again.append(run("a", 0, 0, 25))
    again.sync()
    assert len(again.read("a", 0, 0, 99)) == 25


def test_foreign_queue_directories_are_left_alone(tmp_path: Path) -> None:
    """Directories whose names are no numbers, also if they are digits of other scripts."""
    queues = fresh(tmp_path)
    queues.append(run("a", 0, 0, 3))
    table = queues.next_offsets()
    queues.close()
    for name in ("x", "-1", "²", "\N{ARABIC-INDIC DIGIT THREE}"):
        (tmp_path / "consumequeue/a" / name).mkdir()
        (tmp_path / "consumequeue/a" / name / "file").touch()
    again = fresh(tmp_path)
    again.start(table, units_above_max=3)
    assert again.next_offsets() == {"a": {0: 3}}
    assert len(list((tmp_path / "consumequeue/a").glob("*/file"))) == 4


def test_open_files_are_bounded(tmp_path: Path) -> None:
    """A thousand queues work with a handful of open files, and every dirty file is still synced."""
    disk = FaultyDisk(RealDisk())
    queues = fresh(tmp_path, disk, open_files_max=4)
    rows = [("a", queue, 0) for queue in range(1000)]
    queues.append(columns(*rows))
    assert disk.open_files <= 4
    sync = queues.begin_sync()
    assert sync is not None
    assert len(sync.files) == 1000
    sync.run()
    assert queues.begin_sync() is None
    for queue in (0, 500, 999):
        assert len(queues.read("a", queue, 0, 10)) == 1
    assert disk.open_files <= 4


def test_full_disk_is_told_and_dispatch_resumes(tmp_path: Path) -> None:
    """After a full disk in the middle of a batch, dispatching the batch again loses and repeats
    nothing."""
    disk = FaultyDisk(RealDisk())
    queues = fresh(tmp_path, disk)
    batch = columns(*[("a", i % 3, i // 3) for i in range(60)])
    disk.fail_writes_after(2, errno_of="ENOSPC")
    with pytest.raises(NoSpace, match="free disk space"):
        queues.append(batch)
    disk.heal()
    queues.append(batch)
    for queue in range(3):
        assert queues.read("a", queue, 0, 99).physical_offsets.tolist() == [
            i * 1000 + 48 for i in range(20)
        ]


def test_new_names_are_synced(tmp_path: Path) -> None:
    """The directories of new files are part of the sync, up to the store's root."""
    queues = fresh(tmp_path)
    queues.append(run("a", 0, 0, 1))
    sync = queues.begin_sync()
    assert sync is not None
    root = str(tmp_path)
    assert set(sync.directories) == {
        root,
        f"{root}/consumequeue",
        f"{root}/consumequeue/a",
        f"{root}/consumequeue/a/0",
    }
