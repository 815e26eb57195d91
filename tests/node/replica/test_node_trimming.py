"""Carrying out trims, digests and the reserve: what each waits for, and what an interruption or a
full disk leaves."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.node.broker.ports import Fenced
from ledgermq.node.replica.background import digests as digests_module
from ledgermq.node.replica.background.digests import Digests
from ledgermq.node.replica.background.disk_watch import KINDS, used_by_kind
from ledgermq.node.replica.background.trim_reports import STEP_BYTES, Trimming
from ledgermq.node.replica.retention.pins import PinBook
from ledgermq.storage.files.file_digest import CHUNK_BYTES, file_digest
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.files.reserve import Reserve
from tests.storage.faulty_disk import FaultyDisk

FILE = 1000
S = 1_000_000_000


class FakeLog:
    """A log with ten entries a file."""

    def __init__(self) -> None:
        self.begin_index = 0
        self.begin_pos = 0
        self.end_index = 55
        self.trimmed: list[int] = []

    def pos_of(self, index: int) -> int:
        return index // 10 * FILE + index % 10 * 90

    def term_at(self, index: int) -> int:
        return 1 + index // 40

    def chain_at(self, index: int) -> int:
        return 7 * index

    def trim(self, begin_index: int) -> list[str]:
        assert begin_index % 10 == 0, "whole files only"
        self.trimmed.append(begin_index)
        self.begin_index, self.begin_pos = begin_index, self.pos_of(begin_index)
        return [f"file before {begin_index}"]


class Stage:
    """A replica whose records say that the log begins with entry 30, by the record at entry 50."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.pins = PinBook()
        self.queues: list[int] = []
        self.retained = SimpleNamespace(trim_index=50, begin_term=1, begin_chain=7 * 29)
        self.machine = cast(
            Any, SimpleNamespace(begin_index=30, begin_pos=3 * FILE, retained=self.retained)
        )
        self.looks = 0

        def trimming(begin_pos: int, removed: list[str]) -> Any:
            for _ in range(3):
                self.looks += 1
                yield STEP_BYTES
            self.queues.append(begin_pos)

        queues: Any = SimpleNamespace(trimming=trimming)
        self.index: list[int] = []
        index: Any = SimpleNamespace(trim=self.index.append)
        self.trimming = Trimming("g1", self.machine, self.log, queues, index, self.pins, FILE)


def test_trim_waits_until_both_snapshots_cover_its_record() -> None:
    """Whatever snapshot a later start finds, derived state must not ask for entries that are
    gone."""
    stage = Stage()
    stage.trimming.step(49, 0)
    assert stage.log.trimmed == [] and stage.trimming.wants_snapshot(49)
    assert "entry 50" in str(stage.trimming.obstacle(49, 0))
    stage.trimming.step(50, 0)
    assert stage.log.trimmed == [10] and not stage.trimming.wants_snapshot(50)


@pytest.mark.parametrize("word", ["begin_term", "begin_chain"])
def test_trim_record_of_another_history_fences_before_removal(word: str) -> None:
    """The record names term and chain CRC of the entry before the begin as the leader has it: a
    replica that has another one is fenced, and its files are the evidence (I2)."""
    stage = Stage()
    setattr(stage.retained, word, 6)
    with pytest.raises(Fenced, match=r"entry 29 .* \(invariant I2\)"):
        stage.trimming.step(50, 0)
    assert stage.log.trimmed == []


def test_trim_removes_one_file_a_turn_then_queues_and_index() -> None:
    """Removing a file of a gigabyte takes its time; consume queues follow when the log is where the
    records say."""
    stage = Stage()
    for expected in ([10], [10, 20], [10, 20, 30]):
        stage.trimming.step(50, 0)
        assert stage.log.trimmed == expected and stage.queues == []
    assert stage.trimming.obstacle(50, 0) is None
    for looks in range(4):
        stage.trimming.step(50, 0)
        assert (stage.looks, stage.queues, stage.index) == (looks, [], [3 * FILE]), "in pieces"
    for _ in range(3):
        stage.trimming.step(50, 0)
    assert (
        stage.log.trimmed == [10, 20, 30]
        and stage.queues == [3 * FILE]
        and stage.index == [3 * FILE]
    )


def test_pin_holds_the_files_behind_it_until_it_ends() -> None:
    """A backup of this node keeps its files although the cluster has trimmed them; files before the
    pin may go."""
    stage = Stage()
    stage.pins.take("p", FILE + 500, "backup", 10_000, 0)
    for _ in range(3):
        stage.trimming.step(50, 0)
    assert stage.log.trimmed == [10] and "backup" in str(stage.trimming.obstacle(50, 0))
    stage.trimming.step(50, 11 * S)
    assert stage.log.trimmed == [10, 20]


def test_derived_files_of_an_interrupted_life_are_trimmed_after_the_start() -> None:
    """The log was trimmed, then the process ended: consume queues catch up without a further
    trim."""
    stage = Stage()
    stage.log.begin_index, stage.log.begin_pos = 30, 3 * FILE
    for _ in range(5):
        stage.trimming.step(50, 0)
    assert stage.log.trimmed == [] and stage.queues == [3 * FILE]


def test_queues_that_could_not_be_trimmed_are_begun_again() -> None:
    """A failure on the way is the caller's to judge; nothing counts as done by it."""
    stage = Stage()
    stage.log.begin_index, stage.log.begin_pos = 30, 3 * FILE
    whole = stage.trimming._queues.trimming

    def broken(begin_pos: int, removed: list[str]) -> Any:
        yield STEP_BYTES
        raise OSError(28, "full")

    stage.trimming._queues = cast(Any, SimpleNamespace(trimming=broken))
    stage.trimming.step(50, 0)
    stage.trimming.step(50, 0)
    with pytest.raises(OSError, match="full"):
        stage.trimming.step(50, 0)
    stage.trimming._queues = cast(Any, SimpleNamespace(trimming=whole))
    for _ in range(5):
        stage.trimming.step(50, 0)
    assert stage.queues == [3 * FILE]


def expected_digest(data: bytes) -> str:
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    return hashlib.sha256(b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)).hexdigest()


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_digest_is_over_the_digests_of_chunks(tmp_path: Path, size: int) -> None:
    """The last chunk may be shorter; the callback gets every chunk."""
    data = bytes(k * 7 % 251 for k in range(size))
    path = tmp_path / "file"
    path.write_bytes(data)
    steps: list[int] = []
    assert file_digest(RealDisk(), str(path), steps.append) == expected_digest(data)
    assert sum(steps) == size and len(steps) == -(-size // CHUNK_BYTES)


def make_digests(
    tmp_path: Path, log_id: str = "log", disk: Any = None, failures: list[Exception] | None = None
) -> Digests:
    for name in ("data", "state"):
        (tmp_path / name).mkdir(exist_ok=True)
    identity = SimpleNamespace(log_id=log_id, group="g1")
    store: Any = SimpleNamespace(
        log_directory=str(tmp_path), state_directory=str(tmp_path / "state"), identity=identity
    )
    return Digests(
        disk or RealDisk(),
        store,
        1 << 40,
        failures.append if failures is not None else unexpected,
        ThreadPoolExecutor(1),
    )


def unexpected(failure: Exception) -> None:
    raise AssertionError(failure)


def log_file(tmp_path: Path, base: int, data: bytes) -> None:
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / f"{base:020d}").write_bytes(data)


def settle(digests: Digests, bases: list[int]) -> None:
    """Repeat the request as the checks do, until no work is pending."""
    for _ in bases:
        digests.want(bases)
        if digests._running is not None:
            digests._running[1].exception()
    digests.want([])


def test_digests_come_one_after_the_other_and_survive_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed is noted; another log's note is not believed."""
    for base in (0, 1000):
        log_file(tmp_path, base, b"content of %d" % base)
    digests = make_digests(tmp_path)
    settle(digests, [0, 1000])
    known = {base: expected_digest(b"content of %d" % base) for base in (0, 1000)}
    assert digests.known == known
    digests.keep_from(1000)
    assert digests.known == {1000: known[1000]}
    digests.stop()
    monkeypatch.setattr(digests_module, "digest_and_root", None)
    again = make_digests(tmp_path)
    assert again.known == known
    again.stop()
    other = make_digests(tmp_path, log_id="other")
    assert other.known == {}
    other.stop()


def test_unreadable_file_is_told_once_and_not_asked_again(tmp_path: Path) -> None:
    """A file that cannot be read has no digest; the files after it get theirs. A missing one was
    trimmed and is no failure."""
    for base in (0, 1000):
        log_file(tmp_path, base, b"x")

    class Broken(RealDisk):
        def open(self, path: str) -> Any:
            if path.endswith("0" * 20):
                raise OSError(5, "no")
            return super().open(path)

    digests = make_digests(tmp_path, disk=Broken())
    settle(digests, [0, 1000, 2000])
    assert list(digests.known) == [1000] and digests._failed == {0}
    digests.stop()


@pytest.mark.parametrize(("number", "final"), [(5, True), (28, False), (24, False)])
def test_note_that_could_not_be_synced_ends_the_node(
    tmp_path: Path, number: int, final: bool
) -> None:
    """It is a hint, but a failed sync is not tried again (I9); a full disk or a limit of the
    process is no reason to stop."""
    log_file(tmp_path, 0, b"x")

    class Failing(RealDisk):
        def replace_file(self, path: str, data: bytes) -> None:
            raise OSError(number, "no")

    failures: list[Exception] = []
    digests = make_digests(tmp_path, disk=Failing(), failures=failures)
    settle(digests, [0])
    digests.stop()
    assert [type(failure) for failure in failures] == ([Fenced] if final else [])


def test_stop_does_not_wait_for_a_large_file(tmp_path: Path) -> None:
    """A slow digest is given up; the next life computes it."""
    log_file(tmp_path, 0, b"x" * 100)
    digests = make_digests(tmp_path)
    digests._bytes_per_s = 1e-6  # type: ignore[assignment]  # so slow that only a stop ends it
    digests.want([0])
    stopper = threading.Thread(target=digests.stop)
    stopper.start()
    stopper.join(30)
    assert not stopper.is_alive() and digests.known == {}


def test_reserve_is_real_space_and_given_back_once(tmp_path: Path) -> None:
    """Filled when there is room for it twice over; released, it is gone until it is filled
    again."""
    disk = FaultyDisk(RealDisk())
    reserve = Reserve(disk, str(tmp_path / "reserve"), 1 << 16)
    disk.free = (1 << 17) - 1
    assert not reserve.fill() and not reserve.held
    disk.free = 1 << 17
    assert (
        reserve.fill()
        and reserve.fill()
        and (tmp_path / "reserve").stat().st_blocks * 512 >= 1 << 16
    )
    assert reserve.release() and not reserve.release() and not reserve.held
    assert sorted(tmp_path.iterdir()) == []
    assert not Reserve(disk, str(tmp_path / "none"), 0).fill()


def test_disk_use_is_sorted_by_kind(tmp_path: Path) -> None:
    """Every kind is listed, even if empty; unknown files count as `other`."""
    places = {
        "log": "dledger-n1/data/0",
        "index": "dledger-n1/index/0",
        "consume-queue": "consumequeue/t/0/0",
        "key-index": "index/20260101000000000",
        "state": "state/bloom/x",
        "other": "checkpoint",
    }
    for kind, place in places.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 4096 * (1 + KINDS.index(kind)))
    (tmp_path / "dledger-n1" / "syncedmark").write_bytes(b"")
    used = used_by_kind(str(tmp_path))
    assert (
        set(used) == set(KINDS)
        and [used[kind] for kind in KINDS] == sorted(used.values())
        and min(used.values()) >= 4096
    )
