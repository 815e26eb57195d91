"""The files of a log under repair by themselves: which are made anew, what is found behind damage,
and what is written and synced when."""

from __future__ import annotations

import copy
import errno
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest

from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.types import SyncedMark
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files import mapped_files
from ledgermq.storage.files.errors import Damaged, NoSpace
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.ports import PAGE_BYTES
from ledgermq.storage.log.begin import Begin, whole
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_scan import Point, next_chain
from ledgermq.storage.log.placing import BLANK_BYTES
from ledgermq.storage.repair import mending as mending_module
from ledgermq.storage.repair.mending import MARK, MARKER, Good, Mending, _Tolerant
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.log_material import append, make_identity, sync

ROOT = "/log"
SIZE = 2 * PAGE_BYTES
IDENTITY = make_identity(data_file_bytes=SIZE, index_file_bytes=32 * 16)
LAST = 39
"""Index of the last entry of the log below."""


def path_of(base: int, kind: str = "data") -> str:
    return f"{ROOT}/{kind}/{file_name(base)}"


BODIES = [600 + number % 7 * 10 for number in range(LAST + 1)]


class Log:
    """By default forty entries of 747 to 807 bytes in several files, closed cleanly, and where each
    of them lies."""

    def __init__(
        self, bodies: Sequence[int] = BODIES, terms: Sequence[int] = [1] * (LAST + 1)
    ) -> None:
        self.disk = ForgetfulDisk()
        self.disk.mkdirs(ROOT)
        EntryLog.create(self.disk, ROOT, IDENTITY)
        log = EntryLog.open(self.disk, ROOT, IDENTITY, clean=True)
        for body_bytes, term in zip(bodies, terms, strict=True):
            append(log, 1, body_bytes=body_bytes, term=term)
        sync(log)
        log.flush_mark()
        self.mark = log.synced_mark
        found = [log.read(index, 1) for index in range(len(bodies))]
        self.entries = [
            verify_range(bytes(one.data), one.first_index, one.term, one.pos, one.prev_chain)
            for one in found
        ]
        self.ends = [entry.end_pos for entry in self.entries]
        log.close()
        self.before = {path: self.disk.read_file(path) for path in self.disk.files()}

    def point(self, index: int) -> Point:
        """The place behind the entry before this one."""
        if index == 0:
            begin = whole(IDENTITY.log_id)
            return Point(pos=begin.pos, index=begin.index, term=begin.term, chain=begin.chain)
        before = self.entries[index - 1]
        return Point(pos=before.end_pos, index=index, term=before.term, chain=before.last_chain)

    def mending(
        self,
        disk: FaultyDisk | ForgetfulDisk | None = None,
        begin: Begin | None = None,
        *,
        files: bool = True,
    ) -> Mending:
        made = Mending(
            disk or self.disk, ROOT, IDENTITY, begin or whole(IDENTITY.log_id), self.mark
        )
        if files:
            made.mend_files()
        return made

    def write(self, pos: int, data: bytes) -> None:
        file = self.disk.open(path_of(pos - pos % SIZE))
        file.pwrite(pos % SIZE, data)
        file.close()

    def same(self) -> bool:
        return {path: self.disk.read_file(path) for path in self.disk.files()} == self.before


@pytest.fixture
def log() -> Log:
    return Log()


def first_of_files(log: Log) -> list[int]:
    """The entries that begin a file, but for the first."""
    return [entry.first_index for entry in log.entries if entry.pos % SIZE == 0 and entry.pos]


# Reading what the disk cannot read


class Broken:
    """A file of four pages, some of which the disk cannot read."""

    def __init__(self, bad: set[int], code: int) -> None:
        self.data, self.bad, self.code = bytes(range(1, 251)) * 66, bad, code

    def pread(self, offset: int, length: int) -> bytes:
        if length and any(
            page in self.bad
            for page in range(offset // PAGE_BYTES, (offset + length - 1) // PAGE_BYTES + 1)
        ):
            raise OSError(self.code, "pending sector")
        return self.data[offset : offset + length]


@pytest.mark.parametrize("bad", [set(), {0}, {1}, {3}, {0, 2}, {1, 2}])
def test_unreadable_pages_read_as_zeros(bad: set[int]) -> None:
    """Whatever part of the file is read. Other failures are failures."""
    file = Broken(bad, errno.EIO)
    shown = b"".join(
        bytes(PAGE_BYTES) if page in bad else file.data[page * PAGE_BYTES :][:PAGE_BYTES]
        for page in range(4)
    )
    places = [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES, 3 * PAGE_BYTES + 7]
    for offset, length in product(places, (1, 2, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES + 3)):
        if offset + length <= 4 * PAGE_BYTES:
            assert _Tolerant(file).pread(offset, length) == shown[offset : offset + length]  # type: ignore[arg-type]
    if bad:
        with pytest.raises(OSError, match="pending sector"):
            _Tolerant(Broken(bad, errno.EACCES)).pread(0, 4 * PAGE_BYTES)  # type: ignore[arg-type]


def test_a_page_that_fails_in_another_way_is_a_failure() -> None:
    """Also if the whole could not be read because of a pending sector."""
    file = Broken({1}, errno.EIO)
    read = file.pread

    def pread(offset: int, length: int) -> bytes:
        file.code = errno.EIO if length > PAGE_BYTES else errno.EACCES
        return read(offset, length)

    file.pread = pread  # type: ignore[method-assign]
    with pytest.raises(OSError, match="pending sector") as failed:
        _Tolerant(file).pread(0, 3 * PAGE_BYTES)  # type: ignore[arg-type]
    assert failed.value.errno == errno.EACCES


# The files


STATES = ("whole", "missing", "short", "long", "unreadable")


@pytest.mark.parametrize(("first", "second"), list(product(STATES, repeat=2)))
def test_mending_replaces_files_with_their_readable_bytes(
    log: Log, first: str, second: str
) -> None:
    """The bytes that can be read stay where they are, all others are zeros. A new file replaces the
    old one when it is durable."""
    for base in (0, SIZE):
        log.write(base, b"x")
    before = {path: log.disk.read_file(path) for path in log.disk.files()}
    expected = dict(before)
    for base, state in ((0, first), (SIZE, second)):
        path = path_of(base)
        if state == "missing":
            log.disk.vanish(path)
            expected[path] = bytes(SIZE)
        elif state == "short":
            log.disk.shorten(path, PAGE_BYTES + 5)
            expected[path] = before[path][: PAGE_BYTES + 5].ljust(SIZE, b"\0")
        elif state == "long":
            log.disk.vanish(path)
            longer = log.disk.create(path, SIZE + 9, allocate=True)
            longer.pwrite(0, before[path] + b"x" * 9)
            longer.close()
        elif state == "unreadable":
            log.disk.break_page(path, 0)
            log.disk.shorten(path, SIZE - 1)
            log.disk.break_page(path, 0)
            expected[path] = (bytes(PAGE_BYTES) + before[path][PAGE_BYTES : SIZE - 1]).ljust(
                SIZE, b"\0"
            )
    made = [path_of(base) for base, state in ((0, first), (SIZE, second)) if state != "whole"]
    unfinished = log.disk.create(f"{ROOT}/data/repair.alloc", 3, allocate=True)
    unfinished.close()
    disk = FaultyDisk(log.disk)
    mending = log.mending(disk, files=False)
    assert mending.mend_files() == made
    names = [
        event[:2] for event in disk.trace if event[0] in ("create", "sync", "rename", "sync_dir")
    ]
    for path in made:
        at = names.index(("rename", path))
        assert [name for name, _ in names[at - 2 : at]] == ["create", "sync"]
    assert names[-1] == ("sync_dir", f"{ROOT}/data")
    mending.close()
    assert disk.open_files == 0
    log.disk.mend()
    assert {path: log.disk.read_file(path) for path in log.disk.files()} == expected


def test_mending_of_a_trimmed_log_keeps_files_behind_its_begin(log: Log) -> None:
    """What lies before its begin is left over from an interrupted trim: a whole file stays for the
    trim, any other is removed."""
    index = first_of_files(log)[1]
    begin = Begin(index, 2 * SIZE, 1, log.entries[index - 1].last_chain)
    log.disk.shorten(path_of(0), 100)
    log.disk.vanish(path_of(2 * SIZE))
    mending = log.mending(begin=begin, files=False)
    assert mending.mend_files() == [path_of(2 * SIZE)]
    assert not log.disk.exists(path_of(0)) and log.disk.file_size(path_of(SIZE)) == SIZE
    assert (
        mending.start == Point(pos=2 * SIZE, index=index, term=1, chain=begin.chain)
        and mending.base_of(2 * SIZE + 5) == 2 * SIZE
    )
    mending.close()


def test_mending_ignores_gaps_before_the_begin(log: Log) -> None:
    """A gap there is none of the log, and index files that are gone are not made again."""
    index = first_of_files(log)[1]
    begin = Begin(index, 2 * SIZE, 1, log.entries[index - 1].last_chain)
    log.disk.vanish(path_of(SIZE))
    log.disk.vanish(path_of(0, "index"))
    mending = log.mending(begin=begin)
    end = mending._files.end
    mending._reach(end + 1)
    assert mending._files.bases == list(range(2 * SIZE, end + SIZE, SIZE))
    assert log.disk.exists(path_of(0)) and not log.disk.exists(path_of(0, "index"))
    mending.close()


def test_blocks_are_reserved_for_files_of_the_log_and_not_for_those_of_the_index(log: Log) -> None:
    """A disk that is full later must not stop an append halfway; units are reserved as they are
    needed."""
    log.disk.vanish(path_of(0))
    log.disk.vanish(path_of(512, "index"))
    used = log.disk.used_bytes
    mending = log.mending()
    assert log.disk.exists(path_of(512, "index")) and log.disk.used_bytes == used + SIZE
    mending._reach(mending._files.end + 1)
    assert log.disk.used_bytes == used + 2 * SIZE
    mending.close()


@pytest.mark.parametrize("again", [False, True])
def test_few_files_are_open_at_once(log: Log, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that still have to be synced."""
    monkeypatch.setattr(mapped_files, "OPEN_FILES_MAX", 1)
    if again:
        log.disk.replace_file(f"{ROOT}/{MARKER}", MARK)
    disk = FaultyDisk(log.disk)
    mending = log.mending(disk)
    files = log.ends[-1] // SIZE + 1
    for count, _ in enumerate(mending.walk(mending.start), 1):
        assert disk.open_files == (count if again else 1)
    assert count == files
    assert mending.next_good(log.point(3)) is not None
    mending.sync()
    mending.close()
    assert disk.open_files == 0


def test_strange_names_are_no_files_of_the_log(log: Log) -> None:
    """A name between two files is damage that no repair understands; it is not taken for a file."""
    file = log.disk.create(path_of(SIZE + 1), 5, allocate=True)
    file.close()
    with pytest.raises(Damaged, match="is not a file of this store"):
        log.mending()


def test_a_full_disk_leaves_the_old_file(log: Log) -> None:
    log.disk.shorten(path_of(SIZE), 100)
    disk = FaultyDisk(log.disk)
    disk.fail_creation(errno_of="ENOSPC")
    with pytest.raises(NoSpace, match=r"repair\.alloc"):
        log.mending(disk)
    assert log.disk.file_size(path_of(SIZE)) == 100 and disk.open_files == 0


def test_an_unreadable_index_is_removed_and_built_anew_by_the_next_open(log: Log) -> None:
    """Only the files that cannot be read; other failures are failures."""
    log.disk.break_page(path_of(512, "index"), 0)
    disk = FaultyDisk(log.disk)
    mending = log.mending(disk)
    disk.trace.clear()
    assert mending.drop_unreadable_units() == [path_of(512, "index")]
    assert ("sync_dir", f"{ROOT}/index") in disk.names("sync_dir") and not log.disk.exists(
        path_of(512, "index")
    )
    disk.trace.clear()
    assert mending.drop_unreadable_units() == [] and not disk.names("sync_dir")
    mending.close()
    assert disk.open_files == 0


# What is found


def test_which_entries_continue_a_point() -> None:
    """By index, chain, and a position that is not before it."""
    header = bytes(range(60))
    point, chain = Point(pos=100, index=7, term=1, chain=5), next_chain(header, 5)
    for index, pos, its_chain in product((6, 7, 8), (99, 100, 101), (chain, chain + 1)):
        assert Good(index, pos, its_chain, header).continues(point) is (
            index == 7 and pos >= 100 and its_chain == chain
        )


def spoil_header(offset: int, value: bytes) -> Callable[[Log, int], None]:
    return lambda log, index: log.write(log.entries[index].pos + offset, value)


SPOILT: dict[str, Callable[[Log, int], None]] = {
    "magic": spoil_header(0, struct.pack(">i", 9)),
    "size": spoil_header(4, struct.pack(">i", 61)),
    "index": spoil_header(8, struct.pack(">q", 99)),
    "position": spoil_header(24, struct.pack(">q", 1)),
    "body": spoil_header(100, b"\xff"),
}


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("at", [0, 10, LAST - 3])
def test_the_next_intact_entry_behind_damage_is_found(
    log: Log, what: str, count: int, at: int
) -> None:
    """By the units of the index; without them, at the start of a later file. No damaged entry is
    taken for an intact one."""
    for index in range(at, at + count):
        SPOILT[what](log, index)
    mending = log.mending()
    *_, reached = [mending.start, *mending.walk(mending.start)]
    assert reached == log.point(at)
    found = mending.next_good(reached)
    assert found is not None and (found.index, found.pos) == (
        at + count,
        log.entries[at + count].pos,
    )
    assert found.chain == log.entries[at + count].last_chain and found.header == bytes(
        log.entries[at + count].data[: len(found.header)]
    )
    mending.close()
    drop_units(log)
    mending = log.mending()
    later = [index for index in first_of_files(log) if index > at and index >= at + count]
    found = mending.next_good(reached)
    assert (None if found is None else found.index) == (later[0] if later else None)
    mending.close()


def drop_units(log: Log) -> None:
    for path in [path for path in log.disk.files() if "/index/" in path]:
        file = log.disk.open(path)
        file.pwrite(0, bytes(file.size))
        file.close()


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("at", [1, 4, 10, 20, LAST - 1])
def test_an_entry_of_another_history_is_as_bad_as_a_damaged_one(
    log: Log, at: int, units: bool
) -> None:
    """It is valid by itself, and continues nothing: the next one behind it is what was looked
    for."""
    other = Log(terms=[2] * (LAST + 1))
    log.write(log.entries[at].pos, bytes(other.entries[at].data))
    if not units:
        drop_units(log)
    mending = log.mending()
    *_, reached = [mending.start, *mending.walk(mending.start)]
    assert reached == log.point(at)
    found = mending.next_good(reached)
    after = (
        at + 1
        if units
        else min((index for index in first_of_files(log) if index > at), default=None)
    )
    assert (None if found is None else found.index) == after
    mending.close()


@pytest.mark.parametrize("units", [True, False])
def test_the_last_entry_below_the_mark_is_found_too(units: bool) -> None:
    """By its unit or, as the first of its file, without."""
    log = Log([3000] * 3, [1] * 3)
    assert log.entries[2].pos == SIZE and log.mark.index == 2
    SPOILT["body"](log, 1)
    if not units:
        drop_units(log)
    mending = log.mending()
    found = mending.next_good(log.point(1))
    assert found is not None and found.index == 2
    mending.close()


def test_units_are_tried_up_to_a_number(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind more damage than that, the next file is."""
    monkeypatch.setattr(mending_module, "UNITS_TRIED", 3)
    for index in (2, 3, 4):
        SPOILT["body"](log, index)
        mending = log.mending()
        found = mending.next_good(log.point(2))
        assert found is not None and found.index == (
            index + 1 if index < 4 else first_of_files(log)[0]
        )
        mending.close()


def test_a_whole_log_is_walked_to_its_mark(log: Log) -> None:
    mending = log.mending()
    *_, reached = mending.walk(mending.start)
    assert reached == Point(
        pos=log.ends[-1], index=LAST + 1, term=1, chain=log.entries[-1].last_chain
    )
    assert mending.next_good(reached) is None and mending.written_bytes == 0 and not mending.again
    assert mending.used_end() == log.ends[-1]
    mending.sync()
    mending.close()
    assert log.same()


def test_damage_of_the_blank_alone_is_closed(log: Log) -> None:
    """If what follows continues the log. A gap that held entries is no blank."""
    index = first_of_files(log)[0]
    gap = SIZE - log.ends[index - 1] % SIZE
    log.write(log.ends[index - 1], b"x" * gap)
    mending = log.mending()
    point = log.point(index)
    found = mending.next_good(point)
    assert found is not None and found.index == index
    assert not mending.close_gap(log.point(index - 1), found)
    assert not mending.close_gap(point, Good(index + 1, found.pos, found.chain, found.header))
    assert not mending.close_gap(replace(point, pos=point.pos + gap - 7), found), (
        "there is no room for a blank"
    )
    assert not mending.close_gap(replace(point, pos=found.pos), found), "there is no gap"
    assert mending.close_gap(point, found) and mending.written_bytes == gap
    mending.sync()
    mending.close()
    assert log.same()


def test_the_shortest_blank_is_closed_too() -> None:
    extra = len(Log([8], [1]).entries[0].data) - 8
    log = Log([600, SIZE - BLANK_BYTES - 600 - 2 * extra, 600], [1] * 3)
    log.write(log.ends[1], b"x" * BLANK_BYTES)
    mending = log.mending()
    found = mending.next_good(log.point(2))
    assert found is not None and mending.close_gap(log.point(2), found)
    mending.sync()
    mending.close()
    assert log.same()


# What is written


def operations(disk: FaultyDisk) -> list[tuple[str, str]]:
    found = [
        (str(event[0]), str(event[1]).rpartition("/")[2])
        for event in disk.trace
        if event[0] in ("pwrite", "sync", "replace_file", "unlink", "sync_dir")
    ]
    disk.trace.clear()
    return found


@pytest.mark.parametrize("index", [0, 7, 10, LAST])
def test_an_entry_is_put_back_where_it_was(log: Log, index: int) -> None:
    """With the blank before it. The marker is there from before the first byte until everything is
    durable."""
    log.write(log.entries[index].pos + 70, b"damage")
    if log.entries[index].pos % SIZE == 0 and index:
        log.write(log.ends[index - 1], b"damage")
    mending, point = log.mending(), log.point(index)
    assert mending.fits(point, log.entries[index], further=False)
    assert mending.put(point, log.entries[index]) == Point(
        pos=log.ends[index], index=index + 1, term=1, chain=log.entries[index].last_chain
    )
    assert log.disk.read_file(f"{ROOT}/{MARKER}") == MARK
    assert mending.written_bytes >= len(log.entries[index].data)
    mending.sync()
    assert not log.disk.exists(f"{ROOT}/{MARKER}") and log.same()
    for path, data in log.before.items():
        if "/data/" in path:
            assert log.disk.on_medium(path, 0, len(data)) == data
    written = mending.written_bytes
    mending.put(point, log.entries[index])
    assert mending.written_bytes == written and not log.disk.exists(f"{ROOT}/{MARKER}"), (
        "what is right already is not written"
    )
    mending.close()


def test_repair_marker_is_removed_after_the_sync(log: Log) -> None:
    log.write(log.entries[3].pos + 70, b"damage")
    disk = FaultyDisk(log.disk)
    mending = log.mending(disk)
    disk.trace.clear()
    mending.put(log.point(3), log.entries[3])
    written = operations(disk)
    assert written[-1] == ("pwrite", file_name(0))
    mending.sync()
    synced = operations(disk)
    assert synced[0] == ("sync", file_name(0)) and synced[-1] == ("sync_dir", "log")
    mending.sync()
    assert operations(disk) == []
    log.write(log.entries[3].pos + 70, b"damage")
    mending.put(log.point(3), log.entries[3])
    assert log.disk.exists(f"{ROOT}/{MARKER}")
    mending.close()
    assert disk.open_files == 0


def test_a_failed_sync_leaves_the_marker(log: Log) -> None:
    log.write(log.entries[3].pos + 70, b"damage")
    disk = FaultyDisk(log.disk)
    mending = log.mending(disk)
    mending.put(log.point(3), log.entries[3])
    disk.syncs_fail = True
    with pytest.raises(OSError, match="Input/output"):
        mending.sync()
    assert log.disk.exists(f"{ROOT}/{MARKER}")
    mending.close()


@pytest.mark.parametrize("content", [MARK, b"another\n"])
def test_interrupted_repair_rewrites_valid_bytes(log: Log, content: bytes) -> None:
    """Valid bytes, too, and blanks: they may be in the page cache only. A marker that says
    something else says from the first write on that bytes are written in place."""
    log.disk.replace_file(f"{ROOT}/{MARKER}", content)
    mending = log.mending()
    assert mending.again
    *_, reached = mending.walk(mending.start)
    assert reached.pos == log.ends[-1] == mending.written_bytes
    assert log.disk.read_file(f"{ROOT}/{MARKER}") == MARK
    mending.sync()
    assert not log.disk.exists(f"{ROOT}/{MARKER}") and log.same()
    mending.close()


def test_where_entries_may_be_written(log: Log) -> None:
    """At their place behind a point, and behind the mark only if a file for them is asked for; what
    does not continue the log may not."""
    mending, entry = log.mending(), log.entries[7]
    assert mending.fits(log.point(7), entry, further=False)
    assert not mending.fits(log.point(6), entry, further=False)
    assert not mending.fits(
        Point(pos=log.point(7).pos, index=7, term=2, chain=0), entry, further=False
    ), "a term that falls"
    end = mending._files.end
    behind = copy.copy(entry)
    behind.pos = end
    assert not mending.fits(Point(pos=end, index=40, term=1, chain=0), behind, further=False)
    assert mending.fits(Point(pos=end, index=40, term=1, chain=0), behind, further=True)
    assert mending._files.end == end + SIZE and log.disk.exists(path_of(end))
    mending.put(Point(pos=end, index=40, term=1, chain=0), behind)
    mending.sync()
    assert log.disk.on_medium(path_of(end), 0, len(entry.data)) == entry.data, "with its name"
    mending.close()


def test_files_behind_a_gap_make_room_for_entries_that_were_received(log: Log) -> None:
    """Nothing behind a gap above the mark counts."""
    mending = log.mending(files=False)
    mending.mend_files()
    end = mending._files.end
    mending.close()
    for base in (end + SIZE, end + 2 * SIZE):
        file = log.disk.create(path_of(base), SIZE, allocate=True)
        file.pwrite(5, b"left over")
        file.close()
    disk = FaultyDisk(log.disk)
    mending = log.mending(disk)
    assert mending.used_end() == end + 2 * SIZE + 5 + len(b"left over")
    mending._reach(end + SIZE)
    assert mending._files.bases[-1] == end and log.disk.read_file(path_of(end)) == bytes(SIZE)
    assert not log.disk.exists(path_of(end + SIZE))
    mending.close()
    assert disk.open_files == 0


def test_the_used_end_of_files_without_a_byte_is_their_begin() -> None:
    disk = ForgetfulDisk()
    disk.mkdirs(f"{ROOT}/data")
    disk.mkdirs(f"{ROOT}/index")
    mending = Mending(disk, ROOT, IDENTITY, whole(IDENTITY.log_id), SyncedMark(1, 0, 1, 0))
    assert mending.mend_files() == [path_of(0)]
    assert mending.used_end() == 0
    mending._write(SIZE - 1, b"x")
    assert mending.used_end() == SIZE
    mending.close()


def test_places_are_named_by_file_and_byte(log: Log) -> None:
    mending = log.mending()
    assert mending.name(SIZE + 17) == f"{path_of(SIZE)}, byte 17"
    mending.close()
