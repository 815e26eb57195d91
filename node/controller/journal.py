"""The controller's journal: puts a node's promises to the quorum (log entries, term, vote) on
stable storage first.

This module has the file format (docs/format.md §12), its recovery, and the class that replaces the
library's own journal, which never syncs. The library calls `add`, `setCurrentTerm` and the rest,
and then answers a peer or applies an entry. Those calls only collect changes; `flush` makes them
durable with one record, one write and one fdatasync. Everything that leaves the process must wait
for `flush`: `wire.QuorumTransport.send` calls it for messages and `setRaftCommitIndex` for entries
that are about to be applied.

Torn is not corrupt. A record is written only after the previous one was synced. So an invalid
record without a valid one behind it was never promised and is cut off. An invalid record with a
valid one behind it was promised: it is damaged, and the node refuses to start. While the journal is
idle, and when it is closed, a mark record follows the last change, so that damage to the last
change is recognised too.

The first failed write or sync is final (invariant I9): every later call raises.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import crc32c
from pysyncobj.journal import Journal as JournalInterface

from ledgermq.proto.status import ExitCode
from ledgermq.storage.files.errors import Damaged, LogFenced, NoSpace, UnknownFormat, is_no_space
from ledgermq.storage.files.ports import Disk, DiskFile

Entry = tuple[bytes, int, int]
"""A log entry as the library has it: (command, index, term)."""
Change = list[Any]

NAME = "journal"
MAGIC = b"LMCJ"
VERSION = 1
HEADER = struct.Struct(">4sII")  # magic, version, CRC-32C of the eight bytes before
FRAME = struct.Struct(">IIQ")  # length of the payload, CRC-32C of sequence and payload, sequence
SEQUENCE = struct.Struct(">Q")
FIRST_SEQUENCE = 1
DEFAULT_FILE_BYTES = 2 << 20


def frame(sequence: int, changes: Sequence[Change]) -> bytes:
    """Encode one record: changes that become durable together."""
    body = SEQUENCE.pack(sequence) + json.dumps(changes, separators=(",", ":")).encode("ascii")
    return (
        FRAME.pack(len(body) - SEQUENCE.size, crc32c.crc32c(body), sequence) + body[SEQUENCE.size :]
    )


def record_at(data: bytes, offset: int) -> tuple[int, bytes] | None:
    """Sequence and payload of the valid record at `offset`; None if there is none."""
    if offset + FRAME.size > len(data):
        return None
    length, checksum, sequence = FRAME.unpack_from(data, offset)
    start = offset + FRAME.size
    if not length or start + length > len(data):
        return None
    payload = data[start : start + length]
    return (
        (sequence, payload)
        if crc32c.crc32c(payload, crc32c.crc32c(SEQUENCE.pack(sequence))) == checksum
        else None
    )


def scan(data: bytes, path: str) -> Iterator[list[Change]]:
    """Yield the changes of each record of a journal file in order, up to a torn record. Raises
    Damaged or UnknownFormat."""
    check_header(data, path)
    offset, expected = HEADER.size, FIRST_SEQUENCE
    while True:
        found = record_at(data, offset)
        if found is None or found[0] != expected:
            break
        yield json.loads(found[1])
        offset += FRAME.size + len(found[1])
        expected += 1
    # The first record was put in place with the file, by a rename: it is never torn.
    if expected == FIRST_SEQUENCE or valid_behind(data, offset, expected):
        raise Damaged(
            f"the controller journal {path} is damaged at byte {offset}, before its last record:"
            " restore the file from a backup; or, while a majority of the nodes runs without this"
            " one, remove the directory that holds it and start this node again"
        )


def check_header(data: bytes, path: str) -> None:
    """Raises Damaged for an invalid header, UnknownFormat for another version."""
    if (
        len(data) < HEADER.size
        or HEADER.unpack_from(data)[2] != crc32c.crc32c(data[: HEADER.size - 4])
        or data[:4] != MAGIC
    ):
        raise Damaged(
            f"{path} does not begin like a controller journal: restore the file from a backup"
        )
    version = HEADER.unpack_from(data)[1]
    if version != VERSION:
        raise UnknownFormat(
            f"{path} has format version {version}, this program reads {VERSION}: start the version"
            " that wrote it"
        )


def valid_behind(data: bytes, offset: int, expected: int) -> bool:
    """Whether a valid record with a later sequence lies behind `offset`. Payloads are ASCII text,
    so they contain no four zero bytes; the upper half of every sequence, eight bytes into its
    record, is four zero bytes."""
    end = len(data.rstrip(b"\0"))
    found = data.find(bytes(4), offset + 8, end)
    while found >= 0:
        record = record_at(data, found - 8)
        if record is not None and record[0] > expected:
            return True
        found = data.find(bytes(4), found + 1, end)
    return False


@dataclass(slots=True)
class Kept:
    """The result of applying the records of a journal in order."""

    term: int = 0
    vote: str | None = None
    commit: int = 1
    entries: list[Entry] = field(default_factory=list)

    def carry_out(self, change: Change) -> None:
        """Apply one change; the kinds are the rows of docs/format.md §12."""
        kind, *fields = change
        if kind == "all":
            self.term, self.vote, self.commit, entries = fields
            self.entries = [(text.encode("latin-1"), index, term) for text, index, term in entries]
        elif kind == "entry":
            self.entries.append((fields[0].encode("latin-1"), fields[1], fields[2]))
        elif kind == "term":
            self.term, self.vote = fields
        elif kind == "commit":
            self.commit = fields[0]
        elif kind == "cut":
            del self.entries[fields[0] :]
        elif kind == "drop":
            del self.entries[: fields[0]]
        else:
            assert kind == "mark", f"unknown change {kind!r} with a valid checksum"

    def as_change(self) -> Change:
        """One change that produces this whole state, independent of the state before it."""
        entries = [
            [command.decode("latin-1"), index, term] for command, index, term in self.entries
        ]
        return ["all", self.term, self.vote, self.commit, entries]


class Journal(JournalInterface):  # type: ignore[misc]  # the library has no types
    """The library's journal interface over one file. Used by one thread."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        snapshot: tuple[Entry, Entry] | None = None,
        file_bytes: int = DEFAULT_FILE_BYTES,
    ) -> None:
        """Open or create the journal of `directory`. `snapshot`: the last two entries that the
        snapshot beside it covers. Raises StorageError, OSError."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self._unfinished = f"{self._path}.tmp"
        self._file_bytes = file_bytes
        self._file: DiskFile | None = None
        self._end = 0
        self._sequence = 0
        self._failure: LogFenced | None = None
        self._pending: list[Change] = []
        self._must_sync = False
        self._marked = True
        self._kept = self._recovered()
        self._finish_compaction(snapshot)
        self._stored_commit = self._kept.commit
        # The bytes that were read may be in the page cache only; a fresh file makes them durable
        # before the node answers from them.
        self._rewrite()

    # -- called by the library
    # ----------------------------------------------------------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._check()
        entries = self._kept.entries
        assert not entries or idx == entries[-1][1] + 1, f"entry {idx} after {entries[-1][1]}"
        entries.append((command, idx, term))
        self._change(["entry", command.decode("latin-1"), idx, term])

    def clear(self) -> None:
        self.deleteEntriesFrom(0)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        self._check()
        del self._kept.entries[entryFrom:]
        self._change(["cut", entryFrom])

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Drop entries that the snapshot beside this file covers. First sync the directory, so that
        the snapshot's name is durable."""
        self._check()
        try:
            self._disk.sync_dir(self._directory)
        except OSError as error:
            self._fence("cannot be synced", error)
        del self._kept.entries[:entryTo]
        self._pending.append(["drop", entryTo])
        try:
            self._rewrite()
        except NoSpace:
            # The old file stays and gets one more record; the next compaction tries again.
            self._must_sync = True

    def __getitem__(self, item: Any) -> Any:
        return self._kept.entries[item]

    def __len__(self) -> int:
        return len(self._kept.entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """The library applies entries up to this index next and counts this node among those that
        have them, so they must be durable."""
        self.flush()
        self._kept.commit = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self._kept.commit

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self._check()
        self._kept.term, self._kept.vote = term, votedForNodeId
        self._change(["term", term, votedForNodeId])

    def getCurrentTerm(self) -> int:
        return self._kept.term

    def getVotedForNodeId(self) -> str | None:
        return self._kept.vote

    def onOneSecondTimer(self) -> None:
        self.mark()

    def _destroy(self) -> None:
        if self._file is None:
            return
        if self._failure is None:
            self.mark()
        self._file.close()
        self._file = None

    # -- durability
    # ---------------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all pending changes durable. Does nothing if there are none. Raises LogFenced, on
        this and every later call."""
        self._check()
        if self._must_sync:
            self._write()

    def mark(self) -> None:
        """Write a mark record behind the last change, if there is none yet."""
        self.flush()
        if not self._marked or self._kept.commit != self._stored_commit:
            self._pending.append(["mark"])
            self._write()
            self._marked = True

    def _change(self, change: Change) -> None:
        self._pending.append(change)
        self._must_sync = True

    def _write(self) -> None:
        changes = self._pending
        # The commit index is useful but not essential, so it travels with the next record.
        if self._kept.commit != self._stored_commit:
            changes = [*changes, ["commit", self._kept.commit]]
        record = frame(self._sequence, changes)
        if self._file is None or self._end + len(record) > self._file.size:
            self._grow()
            return
        try:
            self._file.pwrite(self._end, record)
            self._file.sync()
        except OSError as error:
            self._fence("cannot be written", error)
        self._end += len(record)
        self._written()

    def _grow(self) -> None:
        try:
            self._rewrite()
        except NoSpace as error:
            self._failure = LogFenced(str(error), NoSpace.exit_code or ExitCode.SYNC_FAILED)
            raise self._failure from error

    def _rewrite(self) -> None:
        """Write the whole state to a fresh file and replace the old one atomically. Raises NoSpace
        with the old file still in place."""
        record = frame(FIRST_SEQUENCE, [self._kept.as_change()])
        size = max(self._file_bytes, 2 * (HEADER.size + len(record)))
        try:
            if self._disk.exists(self._unfinished):
                self._disk.unlink(self._unfinished)
            fresh = self._disk.create(self._unfinished, size, allocate=True)
        except OSError as error:
            if is_no_space(error):
                text = (
                    f"the disk has no room for {size} bytes of controller journal in"
                    f" {self._directory}: free some space"
                )
                raise NoSpace(text) from error
            self._fence("cannot be created", error)
        try:
            head = MAGIC + VERSION.to_bytes(4)
            fresh.pwrite(0, head + crc32c.crc32c(head).to_bytes(4) + record)
            fresh.sync()
            fresh.close()
            self._disk.rename(self._unfinished, self._path)
            self._disk.sync_dir(self._directory)
            if self._file is not None:
                self._file.close()
            self._file = self._disk.open(self._path)
        except OSError as error:
            self._fence("cannot be replaced", error)
        self._sequence = FIRST_SEQUENCE
        self._end = HEADER.size + len(record)
        self._written()
        # The first record of a file cannot be torn, so it needs no mark behind it.
        self._marked = True

    def _written(self) -> None:
        self._sequence += 1
        self._pending = []
        self._must_sync = False
        self._marked = False
        self._stored_commit = self._kept.commit

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fence(self, what: str, error: OSError) -> NoReturn:
        text = (
            f"the controller journal {self._path} {what} ({error.strerror or error}): check the"
            " disk, then start the node again"
        )
        self._failure = LogFenced(text, ExitCode.SYNC_FAILED)
        raise self._failure from error

    # -- recovery
    # -----------------------------------------------------------------------------------------------------------------

    def _recovered(self) -> Kept:
        kept = Kept()
        if self._disk.exists(self._path):
            for changes in scan(self._disk.read_file(self._path), self._path):
                for change in changes:
                    kept.carry_out(change)
        if kept.entries:
            kept.commit = min(kept.commit, kept.entries[-1][1])
        return kept

    def _finish_compaction(self, snapshot: tuple[Entry, Entry] | None) -> None:
        """Drop the entries that a snapshot covers if the node stopped between writing the snapshot
        and shortening the journal.

        The library would discard the whole journal instead, including entries that this node has
        promised to keep.
        """
        entries = self._kept.entries
        if snapshot is None:
            if entries and entries[0][1] > 1:
                text = (
                    f"{self._path} begins at entry {entries[0][1]} and the snapshot before it is"
                    " missing"
                )
                raise Damaged(f"{text}: restore {self._directory} from a backup")
            return
        if entries and entries[0][1] > snapshot[0][1]:
            raise Damaged(
                f"the snapshot beside {self._path} is older than the journal: restore"
                f" {self._directory} from a backup"
            )
        if snapshot[0] in entries and snapshot[1] in entries:
            del entries[: entries.index(snapshot[0])]
            self._kept.commit = max(self._kept.commit, snapshot[1][1])
