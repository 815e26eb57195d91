"""The controller's journal: nothing promised is forgotten, torn is cut, damage is refused, the
first failed sync is final."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import crc32c
import pytest

from ledgermq.node.controller.journal import (
    FRAME,
    HEADER,
    NAME,
    Journal,
    check_header,
    frame,
    record_at,
    scan,
)
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.errors import Damaged, LogFenced, NoSpace, UnknownFormat

DIR = "/n1/controller"
PATH = f"{DIR}/{NAME}"
FILE_BYTES = 1 << 14


class PowerCut(Exception):
    """Raised out of a sync at which the power goes."""


def opened(disk: ForgetfulDisk, **more: Any) -> Journal:
    disk.mkdirs(DIR)
    return Journal(disk, DIR, file_bytes=FILE_BYTES, **more)


def content(journal: Journal) -> tuple[int, str | None, list[tuple[bytes, int, int]]]:
    return journal.getCurrentTerm(), journal.getVotedForNodeId(), list(journal[:])


def entry(index: int, term: int = 1) -> tuple[bytes, int, int]:
    return b'J{"n":%d}' % index, index, term


def filled(disk: ForgetfulDisk, last: int = 5) -> Journal:
    """One record per entry, entries 1 to `last`."""
    journal = opened(disk)
    journal.setCurrentTerm(3, "h:1")
    for index in range(1, last + 1):
        journal.add(*entry(index))
        journal.flush()
    return journal


def records(disk: ForgetfulDisk) -> list[tuple[int, int]]:
    """(offset, end) of every record of the file."""
    data, offset, found = disk.read_file(PATH), HEADER.size, []
    while (record := record_at(data, offset)) is not None:
        found.append((offset, offset + FRAME.size + len(record[1])))
        offset = found[-1][1]
    return found


def test_reopened_journal_has_all_flushed_records() -> None:
    """Term, vote, entries and commit index survive a clean stop, indices and slices work as the
    library uses them."""
    disk = ForgetfulDisk()
    journal = filled(disk)
    journal.deleteEntriesFrom(4)
    journal.add(b"\x01\xff raw", 5, 2)
    journal.setRaftCommitIndex(4)
    journal._destroy()
    again = opened(disk)
    assert content(again) == (
        3,
        "h:1",
        [entry(1), entry(2), entry(3), entry(4), (b"\x01\xff raw", 5, 2)],
    )
    assert again.getRaftCommitIndex() == 4
    assert (len(again), again[-1][1], again[0], again[1:3]) == (
        5,
        5,
        entry(1),
        [entry(2), entry(3)],
    )


def test_changes_between_two_flushes_are_one_record() -> None:
    """A batch costs one write and one sync, whatever it holds."""
    disk = ForgetfulDisk()
    journal = opened(disk)
    syncs: list[str] = []
    disk.trace = syncs.append
    before = len(records(disk))
    journal.setCurrentTerm(2, None)
    journal.setCurrentTerm(2, "h:1")
    for index in range(1, 4):
        journal.add(*entry(index))
    journal.flush()
    journal.flush()
    assert (len(records(disk)) - before, syncs) == (1, [PATH])


def test_a_torn_last_record_is_cut_at_every_byte() -> None:
    """Whatever prefix of the last record reached the disk, the journal holds exactly what was
    promised before it."""
    disk = ForgetfulDisk()
    filled(disk)
    data = disk.read_file(PATH)
    start, end = records(disk)[-1]
    for cut in range(start, end):
        torn = ForgetfulDisk()
        torn.mkdirs(DIR)
        torn.replace_file(PATH, data[:cut] + bytes(len(data) - cut))
        again = opened(torn)
        assert content(again) == (3, "h:1", [entry(i) for i in range(1, 5)])
        again.add(*entry(5))
        again.flush()
        again._destroy()
        assert len(opened(torn)) == 5


def test_a_flipped_byte_is_refused_or_belongs_to_an_unpromised_record() -> None:
    """A changed byte in front of the last record, header included, never yields a journal; in the
    last it costs that only."""
    disk = ForgetfulDisk()
    filled(disk)
    data = disk.read_file(PATH)
    start, end = records(disk)[-1]
    for place in range(end):
        for mask in (0x01, 0x80):
            bad = bytearray(data)
            bad[place] ^= mask
            if place < start:
                with pytest.raises((Damaged, UnknownFormat)):
                    list(scan(bytes(bad), PATH))
            else:
                assert len(list(scan(bytes(bad), PATH))) == len(records(disk)) - 1


def test_an_erased_record_in_the_middle_is_damage() -> None:
    """Zeros where a promised record was do not look like the end of the journal."""
    disk = ForgetfulDisk()
    filled(disk)
    start, end = records(disk)[-2]
    data = bytearray(disk.read_file(PATH))
    data[start:end] = bytes(end - start)
    with pytest.raises(Damaged, match=f"byte {start}"):
        list(scan(bytes(data), PATH))


def test_the_idle_mark_protects_the_last_change() -> None:
    """After a quiet second a record follows the last promise too, so rot in it is damage and not
    torn; at rest nothing is written."""
    disk = ForgetfulDisk()
    journal = filled(disk)
    start, _ = records(disk)[-1]
    journal.onOneSecondTimer()
    count = len(records(disk))
    journal.onOneSecondTimer()
    assert len(records(disk)) == count
    disk.flip(PATH, start + FRAME.size)
    with pytest.raises(Damaged, match="before its last record"):
        opened(disk)


def test_foreign_and_newer_files_are_refused() -> None:
    """A file that is no journal, or one of a later version, stops the node with a sentence."""
    with pytest.raises(Damaged, match="does not begin like"):
        check_header(bytes(100), PATH)
    head = b"LMCJ" + (2).to_bytes(4)
    with pytest.raises(UnknownFormat, match="version 2"):
        check_header(head + crc32c.crc32c(head).to_bytes(4), PATH)


class Work:
    """Random work as the library does it, with what the journal may come back as if the power goes
    now."""

    def __init__(self, journal: Journal, chance: random.Random) -> None:
        self.journal = journal
        self.chance = chance
        self.possible = [content(journal)]
        self.snapshot: tuple[Any, Any] | None = None

    def durably(self, call: Callable[[], None]) -> None:
        """While the call runs, the old promise or the new one may survive; afterwards only the new
        one."""
        self.possible.append(content(self.journal))
        call()
        self.possible = [content(self.journal)]

    def run(self) -> None:
        journal, chance = self.journal, self.chance
        term = journal.getCurrentTerm()
        for _ in range(25):
            kind = chance.randrange(6)
            if kind == 0:
                term += 1
                journal.setCurrentTerm(term, chance.choice([None, "h:1", "h:2"]))
            elif kind == 1 and len(journal) > 2:
                oldest = 1 if self.snapshot is None else 2
                journal.deleteEntriesFrom(chance.randrange(oldest, len(journal)))
            elif kind == 2 and len(journal) > 3:
                self.durably(journal.flush)
                place = chance.randrange(1, len(journal) - 2)
                self.snapshot = (journal[place], journal[place + 1])
                self.durably(lambda place=place: journal.deleteEntriesTo(place))
            else:
                index = journal[-1][1] + 1
                for offset in range(chance.randrange(1, 4)):
                    journal.add(b"J" + b"x" * chance.choice([10, 600, 3000]), index + offset, term)
            if chance.random() < 0.6:
                self.durably(journal.flush)
            if chance.random() < 0.2:
                self.durably(journal.onOneSecondTimer)

    def covered(self, state: tuple[Any, Any, list[Any]]) -> tuple[Any, Any, list[Any]]:
        """A state as it is after recovery beside the newest snapshot."""
        term, vote, entries = state
        return (
            term,
            vote,
            entries[entries.index(self.snapshot[0]) :]
            if self.snapshot and self.snapshot[0] in entries
            else entries,
        )


@pytest.mark.parametrize("seed", range(100))
def test_a_power_cut_at_any_sync_keeps_every_promise(seed: int) -> None:
    """The power goes at a random sync (of a record, of a rewritten file, of the directory): the
    restored state has the last promise or the batch being written, never a mixture, and is never
    refused."""
    chance = random.Random(seed)
    disk = ForgetfulDisk()
    journal = opened(disk)
    journal.add(*entry(1))
    journal.flush()
    work = Work(journal, chance)
    fuse = chance.randrange(1, 40)

    def burn(_: str) -> None:
        nonlocal fuse
        fuse -= 1
        if fuse == 0:
            raise PowerCut

    disk.on_sync = burn
    with suppress(PowerCut):
        work.run()
    disk.power_cut(chance)
    recovered = content(opened(disk.successor(), snapshot=work.snapshot))
    assert recovered in [work.covered(state) for state in work.possible]


@pytest.mark.parametrize("operation", ["record", "rewrite", "directory"])
def test_the_first_failed_sync_is_final(operation: str) -> None:
    """After an error from a sync every call raises, and no later sync is tried (invariant I9)."""
    disk = ForgetfulDisk()
    journal = filled(disk)
    wanted = {"record": PATH, "rewrite": f"{PATH}.tmp", "directory": DIR}[operation]
    tried: list[str] = []

    def fail(path: str) -> None:
        tried.append(path)
        if path == wanted:
            raise OSError(errno.EIO, "Input/output error")

    disk.on_sync = fail
    with pytest.raises(LogFenced, match="check the disk") as caught:
        if operation == "record":
            journal.add(*entry(6))
            journal.flush()
        else:
            journal.deleteEntriesTo(2)
    assert caught.value.exit_code == 73
    count = len(tried)
    for call in (
        journal.flush,
        journal.clear,
        lambda: journal.add(*entry(6)),
        lambda: journal.setCurrentTerm(9, None),
        journal.mark,
    ):
        with pytest.raises(LogFenced):
            call()
    journal._destroy()
    assert len(tried) == count


def test_full_disk_postpones_journal_compaction() -> None:
    """Without room for a second file, promises and votes continue in the first; compaction happens
    when space returns."""
    disk = ForgetfulDisk()
    journal = filled(disk)
    disk.capacity_bytes = disk.used_bytes
    journal.deleteEntriesTo(2)
    journal.setCurrentTerm(9, "h:2")
    journal.flush()
    assert content(journal)[2] == [entry(3), entry(4), entry(5)]
    disk.capacity_bytes = None
    journal.deleteEntriesTo(1)
    journal._destroy()
    assert len(records(disk)) == 1
    assert content(opened(disk, snapshot=(entry(4), entry(5)))) == (9, "h:2", [entry(4), entry(5)])


def test_a_full_file_on_a_full_disk_is_fatal_and_says_so() -> None:
    """When neither the file nor the disk has room, the promise is not made: the node stops with the
    code for a full disk."""
    disk = ForgetfulDisk()
    journal = filled(disk)
    disk.capacity_bytes = disk.used_bytes
    journal.add(b"J" + b"x" * FILE_BYTES, 6, 1)
    with pytest.raises(LogFenced, match="free some space") as caught:
        journal.flush()
    assert caught.value.exit_code == NoSpace.exit_code
    disk.capacity_bytes = None
    assert content(opened(disk))[2] == [entry(i) for i in range(1, 6)]


def test_a_file_that_is_too_small_grows() -> None:
    """A promise larger than the rest of the file moves everything to a larger one."""
    disk = ForgetfulDisk()
    journal = filled(disk)
    big = (b"J" + b"x" * FILE_BYTES, 6, 1)
    journal.add(*big)
    journal.flush()
    assert disk.file_size(PATH) > FILE_BYTES
    assert content(opened(disk))[2][-1] == big


def test_an_interrupted_compaction_is_finished_without_losing_entries() -> None:
    """The snapshot is there, the journal not yet shortened: entries behind the snapshot stay, for
    they were acknowledged."""
    disk = ForgetfulDisk()
    filled(disk, last=9)
    journal = opened(disk, snapshot=(entry(4), entry(5)))
    assert [e[1] for e in journal[:]] == [4, 5, 6, 7, 8, 9]
    assert journal.getRaftCommitIndex() == 5


def test_a_snapshot_that_does_not_fit_the_journal_is_refused() -> None:
    """Without its snapshot, or with an older one, a compacted journal stops the node instead of
    starting from a gap."""
    disk = ForgetfulDisk()
    journal = filled(disk, last=9)
    journal.deleteEntriesTo(4)
    journal._destroy()
    with pytest.raises(Damaged, match="snapshot before it is missing"):
        opened(disk)
    with pytest.raises(Damaged, match="older than the journal"):
        opened(disk, snapshot=(entry(2), entry(3)))
    assert len(opened(disk, snapshot=(entry(5), entry(6)))) == 5


def test_entries_must_follow_each_other() -> None:
    """A gap in the log is a bug of the caller and never reaches the disk."""
    journal = filled(ForgetfulDisk())
    with pytest.raises(AssertionError):
        journal.add(*entry(9))


def test_a_frame_reads_back() -> None:
    """The framing is its own inverse and refuses a shortened record."""
    data = frame(7, [["term", 3, "h:1"]])
    assert record_at(data, 0) == (7, b'[["term",3,"h:1"]]')
    assert record_at(data[:-1], 0) is None
