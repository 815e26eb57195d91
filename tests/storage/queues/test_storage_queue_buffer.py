"""Units of many queues that wait in memory: seen by every question, written before anybody counts
on them, equal in the end."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ledgermq.proto.entries.layout import Columns
from ledgermq.storage.files.errors import NoSpace
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.queues import queue_buffer
from ledgermq.storage.queues.consume_queue import UNIT_BYTES
from ledgermq.storage.queues.queue_buffer import BufferedQueues
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.queues.written_queues import WrittenQueues

FILE_BYTES = 200
QUEUES = [("a", queue) for queue in range(50)] + [("b", queue) for queue in (3, 70)]


class Log:
    """Messages of many queues in log order."""

    def __init__(self, seed: int, *, few: bool = False) -> None:
        self.few = few
        """Whether columns are described by rows."""
        self.chance = random.Random(seed)
        self.rows: list[tuple[str, int, int]] = []
        self._ends: dict[tuple[str, int], int] = {}

    def grow(self, count: int, queues: list[tuple[str, int]]) -> None:
        for _ in range(count):
            topic, queue = self.chance.choice(queues)
            offset = self._ends.get((topic, queue), 0)
            self._ends[topic, queue] = offset + 1
            self.rows.append((topic, queue, offset))

    def columns(self, first: int, end: int) -> Columns:
        rows = self.rows[first:end]
        topics = tuple(dict.fromkeys(topic for topic, _, _ in rows))
        numbers = np.arange(first, first + len(rows))
        if self.few:
            return Columns.of_few(
                [
                    (*row, number - 5, number * 1000 + 48, number + 91, 0, 0)
                    for number, row in enumerate(rows, first)
                ]  # type: ignore[misc]
            )
        return Columns(
            topics=topics,
            topic_of=np.array([topics.index(topic) for topic, _, _ in rows], np.int32),
            queues=np.array([queue for _, queue, _ in rows], np.int32),
            queue_offsets=np.array([offset for _, _, offset in rows], np.int64),
            tags_codes=numbers - 5,
            physical_offsets=numbers * 1000 + 48,
            sizes=(numbers + 91).astype(np.int32),
            origins=numbers * 0,
            flags=np.zeros(len(rows), np.int32),
        )


def opened(path: Path, disk: Disk | None = None, **options: int) -> BufferedQueues:
    disk = disk or RealDisk()
    disk.mkdirs(f"{path}/consumequeue")
    return BufferedQueues(disk, f"{path}/consumequeue", FILE_BYTES, **options)


def content(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def tell(queues: BufferedQueues, key: tuple[str, int]) -> tuple[int, list[list[int]]]:
    units = queues.read(*key, 0, 10_000)
    return queues.next_offset(*key), [
        units.physical_offsets.tolist(),
        units.sizes.tolist(),
        units.tags_codes.tolist(),
    ]


@pytest.mark.parametrize("waiting_max", [60, 120, 1000])
@pytest.mark.parametrize("few", ["arrays", "rows", "either"])
def test_answers_and_files_are_those_of_queues_written_at_once(
    tmp_path: Path, waiting_max: int, few: str
) -> None:
    """Batches large and small, scattered and not, some repeated, as arrays and as rows: every
    answer at every moment, and every byte in the end."""
    log = Log(waiting_max)
    plain = WrittenQueues(RealDisk(), str(tmp_path / "plain/consumequeue"), FILE_BYTES)
    (tmp_path / "plain/consumequeue").mkdir(parents=True)
    waiting = opened(tmp_path / "waiting", waiting_max=waiting_max)
    begin = 0
    for number in range(60):
        log.grow(
            log.chance.choice((1, 3, 40, 90)), log.chance.choice((QUEUES, QUEUES[:1], QUEUES[:4]))
        )
        columns = log.columns(max(0, begin - log.chance.choice((0, 0, 30))), len(log.rows))
        plain.append(columns)
        log.few = few == "rows" or (few == "either" and log.chance.random() < 0.5)
        waiting.append(log.columns(int(columns.physical_offsets[0]) // 1000, len(log.rows)))
        log.few = False
        begin = len(log.rows)
        for key in log.chance.sample(QUEUES, 5):
            assert tell(waiting, key) == tell(plain, key)
        first, count = log.chance.randrange(20), log.chance.randrange(20)
        assert (
            waiting.read("a", 7, first, count).sizes.tolist()
            == plain.read("a", 7, first, count).sizes.tolist()
        )
        assert waiting.next_offsets() == plain.next_offsets()
        if number % 20 == 19:
            waiting.sync()
            assert content(tmp_path / "waiting") == content(tmp_path / "plain")


def test_scattered_batches_wait_and_a_sync_writes_them(tmp_path: Path) -> None:
    """A scattered batch costs no write; beginning a sync writes everything, so that a snapshot may
    count on it."""
    disk = FaultyDisk(RealDisk())
    queues = opened(tmp_path, disk)
    log = Log(1)
    log.grow(60, QUEUES)
    queues.append(log.columns(0, 60))
    assert not disk.names("pwrite")
    sync = queues.begin_sync()
    assert sync is not None and set(sync.files) == {path for _, path in disk.names("pwrite")}
    assert sum(
        len(data) // 20 - data.count(bytes(20)) > 0 for data in content(tmp_path).values()
    ) == len(sync.files)


def test_units_of_messages_before_a_place_are_written_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All waiting units of queues with such a unit are written, some queues per step; other queues
    keep waiting."""
    monkeypatch.setattr(queue_buffer, "QUEUES_A_SLICE", 4)
    log = Log(7)
    log.grow(40, QUEUES[:10])
    log.grow(40, QUEUES[10:20])
    queues = opened(tmp_path)
    queues.append(log.columns(0, 40))
    queues.append(log.columns(40, 80))
    assert content(tmp_path) == {}
    steps = [queues.write_below(40 * 1000) for _ in range(3)]
    assert steps == [False, False, True] and queues.write_below(40 * 1000)
    written = {name.split("/")[-2] for name in content(tmp_path)}
    assert written == {str(queue) for _, queue, _ in log.rows[:40]}
    assert queues._count == 40, "the others wait"
    assert not queues.write_below(1 << 40)
    queues.write_waiting()
    assert len(content(tmp_path)) > len(written)


def test_a_few_units_wait_behind_those_of_their_queue(tmp_path: Path) -> None:
    """They cost no write until there are many; then everything of their queue is in its files."""
    disk = FaultyDisk(RealDisk())
    queues = opened(tmp_path, disk)
    log = Log(8, few=True)
    log.grow(2, [("a", 1)])
    log.rows.append(("a", 2, 0))
    queues.append(log.columns(0, 3))
    for number in range(3, queue_buffer.WORTH_A_WRITE):
        assert disk.names("pwrite") == [] and queues._count == number
        log.grow(1, [("a", 1)])
        queues.append(log.columns(number, number + 1))
    assert (
        queues._count == 0
        and queues.written_offset("a", 1)
        == queues.next_offset("a", 1)
        == queue_buffer.WORTH_A_WRITE - 1
    )


def test_single_messages_share_their_writes(tmp_path: Path) -> None:
    """One message a batch, as lone sends make them: every question sees its unit at once, and its
    queue's files later."""
    disk = FaultyDisk(RealDisk())
    queues = opened(tmp_path, disk)
    log, many = Log(9, few=True), queue_buffer.WORTH_A_WRITE
    for number in range(many):
        assert disk.names("pwrite") == [] and queues.written_offset("a", 1) == 0
        log.grow(1, [("a", 1)])
        queues.append(log.columns(number, number + 1))
        assert queues.read("a", 1, number, 1).physical_offsets.tolist() == [number * 1000 + 48]
    units_of_a_file = FILE_BYTES // UNIT_BYTES
    assert (
        len(disk.names("pwrite")) == -(-many // units_of_a_file)
        and queues.written_offset("a", 1) == many
    )


def test_unit_written_at_once_takes_those_before_it_along(tmp_path: Path) -> None:
    """Waiting units are always the last ones of their queue: a queue's files never have a hole."""
    queues = opened(tmp_path)
    log = Log(2)
    log.grow(80, QUEUES)
    queues.append(log.columns(0, 80))
    log.grow(1, [("a", 1)])
    queues.append(log.columns(80, 81))
    count = queues.next_offset("a", 1)
    data = (tmp_path / "consumequeue/a/1" / ("0" * 20)).read_bytes()
    assert count > 1 and all(any(data[at : at + 20]) for at in range(0, 20 * count, 20))


@pytest.mark.parametrize("few", [False, True])
def test_gap_in_a_scattered_batch_is_a_broken_invariant(tmp_path: Path, few: bool) -> None:
    """As with any other batch: the dispatcher stops, nothing is kept."""
    queues = opened(tmp_path)
    log = Log(3, few=few)
    log.grow(300, QUEUES)
    with pytest.raises(AssertionError, match="I6"):
        queues.append(log.columns(150, 200))
    broken = log.columns(0, 60)
    if broken.rows is None:
        broken.queue_offsets[broken.queue_offsets > 0] += 1
    else:
        broken.rows = [(*row[:2], row[2] + (row[2] > 0), *row[3:]) for row in broken.rows]
    with pytest.raises(AssertionError, match="I6"):
        queues.append(broken)
    assert queues.next_offsets() == {}


@pytest.mark.parametrize("few", [False, True])
def test_full_disk_keeps_buffered_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """Neither a full buffer nor a sync loses a unit when a write finds no room; reads continue."""
    monkeypatch.setattr(queue_buffer, "QUEUES_A_SLICE", 5)
    disk = FaultyDisk(RealDisk())
    queues = opened(tmp_path / "waiting", disk, waiting_max=200)
    plain = WrittenQueues(RealDisk(), str(tmp_path / "plain/consumequeue"), FILE_BYTES)
    (tmp_path / "plain/consumequeue").mkdir(parents=True)
    log = Log(4, few=few)
    log.grow(600, QUEUES)
    for begin in range(0, 600, 60):
        columns = log.columns(begin, begin + 60)
        plain.append(columns)
        disk.fail_writes_after(begin // 60, errno_of="ENOSPC")
        for _ in range(50):
            try:
                queues.append(columns)
                break
            except NoSpace:
                assert (
                    queues.read("a", 7, 0, 1000).sizes.tolist()
                    == plain.read("a", 7, 0, queues.next_offset("a", 7)).sizes.tolist()
                )
                disk.fail_writes_after(7, errno_of="ENOSPC")
    disk.fail_writes_after(3, errno_of="ENOSPC")
    with pytest.raises(NoSpace):
        queues.sync()
    disk.heal()
    queues.sync()
    assert content(tmp_path / "waiting") == content(tmp_path / "plain")


def test_queues_made_again_from_any_snapshot_have_equal_bytes(tmp_path: Path) -> None:
    """Start from the offsets of a snapshot, dispatch the log behind it again: every file is as it
    was, empty ends too."""
    log = Log(5)
    log.grow(900, QUEUES)
    whole = opened(tmp_path / "whole")
    snapshots = {}
    for begin in range(0, 900, 90):
        snapshots[begin] = whole.next_offsets()
        whole.append(log.columns(begin, begin + 90))
    whole.sync()
    whole.close()
    wanted = content(tmp_path / "whole")
    assert len(wanted) > 80
    for begin, offsets in snapshots.items():
        queues = opened(tmp_path / "whole")
        queues.start(offsets, 900 - begin)
        for at in range(begin, 900, 77):
            queues.append(log.columns(at, min(at + 77, 900)))
        queues.sync()
        queues.close()
        assert content(tmp_path / "whole") == wanted
    queues = opened(tmp_path / "whole")
    queues.discard()
    queues.append(log.columns(0, 900))
    queues.sync()
    assert content(tmp_path / "whole") == wanted


def test_trim_counts_buffered_units_without_writing_them(tmp_path: Path) -> None:
    """Minimums are those of queues written at once; a full disk is freed without finding room for
    units first."""
    disk = FaultyDisk(RealDisk())
    queues = opened(tmp_path / "waiting", disk)
    plain = WrittenQueues(RealDisk(), str(tmp_path / "plain/consumequeue"), FILE_BYTES)
    (tmp_path / "plain/consumequeue").mkdir(parents=True)
    log = Log(6)
    log.grow(1500, QUEUES)
    for begin in range(0, 1500, 100):
        if begin == 700:
            queues.write_waiting()
        for each in (queues, plain):
            each.append(log.columns(begin, begin + 100))
    for begin_pos in (200 * 1000, 900 * 1000 + 48, 1400 * 1000):
        assert (
            sorted(queues.raise_minimums(begin_pos))
            == sorted(plain.raise_minimums(begin_pos))
            != []
        )
        assert queues.minimums() == plain.minimums()
    log.grow(100, QUEUES)
    queues.append(log.columns(1500, 1600))
    plain.append(log.columns(1500, 1600))
    disk.fail_writes_after(0, errno_of="ENOSPC")
    with pytest.raises(NoSpace):
        queues.begin_sync()
    waiting = queues._count
    # Blanking units may find no room, which is the base's affair; what waits has no part in it.
    with contextlib.suppress(OSError):
        for _ in queues.trimming(1400 * 1000, []):
            pass
    assert queues._count == waiting == 100
    disk.heal()
    queues.trim(1400 * 1000)
    plain.trim(1400 * 1000)
    queues.sync()
    assert content(tmp_path / "waiting") == content(tmp_path / "plain")


def test_append_imports_no_module() -> None:
    """NumPy loads parts of itself at their first use; an engine must not wait for that."""
    look = (
        "known = set(sys.modules); numpy.unique(numpy.array([1, 1])); print(set(sys.modules) -"
        " known)"
    )
    program = f"import sys, ledgermq.storage.queues.queue_buffer, numpy; {look}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
