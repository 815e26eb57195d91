"""The key index of one broker group (format §14): from the hash of `topic#key` to the positions of
messages, newest first.

Derived from the committed log, message by message and in order, so that the files of two replicas
are equal. This module holds the sequence of files, the position up to which everything is durable,
and the choice of files for a lookup; `key_file.py` handles the bytes of a file, `lookup.py`
compares actual keys. In doubt, files are discarded from one on, and their part is derived again.

Recovery. `state/keyindex` names the files and how much of each counts; it is replaced only after
everything it names was synced. Content above that is not trusted: units there are blanked (the same
keys get the same numbers again), slots are rebuilt from the units below it, and files that it does
not name are removed.

One thread, the indexer's, calls everything here, except `find` and the plain attributes, which any
thread may use concurrently.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ledgermq.proto.entries.entry_sealing import chain_crc_at
from ledgermq.proto.entries.key_columns import KeyColumns, key_columns
from ledgermq.proto.entries.ports import Entries
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, DerivedLost, NoSpace, is_no_space
from ledgermq.storage.files.ports import Disk, DiskFile
from ledgermq.storage.keys.bloom import StoredBloom
from ledgermq.storage.keys.key_file import (
    HEADER_BYTES,
    KeyFileWriter,
    KeyNote,
    build_filter,
    slot_of,
    walk,
)

SLOTS = 5_000_000
UNITS = 20_000_000
POSITION_FILE = "keyindex"
VERSION = 1
PUT_UNITS = 1 << 15
"""Units written at once: bounds the memory and the time of one write."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS_MAX = 253_402_300_799_999


def name_of(ms: int) -> str:
    """The name of a file, from the store time of its first message: yyyyMMddHHmmssSSS, UTC."""
    moment = _EPOCH + timedelta(milliseconds=min(max(ms, 0), _MS_MAX))
    return moment.strftime("%Y%m%d%H%M%S").rjust(14, "0") + f"{moment.microsecond // 1000:03d}"


def _ms_of(name: str) -> int:
    moment = datetime.strptime(name[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1) + int(name[14:])


class KeyIndex:
    """The index of the group in `root`. Call `start` once, then `append` and `sync`."""

    def __init__(
        self, disk: Disk, root: str, log_id: str, *, slots: int = SLOTS, units: int = UNITS
    ) -> None:
        self.directory = f"{root}/index"
        self.next_index = 0
        """The first entry whose keys are not all in the index."""
        self.store_ms = 0
        """Store time of the last entry in the index; 0 for none."""
        self.durable_store_ms = 0
        """The same for what a power cut would leave."""
        self.setbacks = 0
        """How often keys were removed to be derived again. It increases after `next_index`
        decreased and before the keys are gone: a reader that finds both unchanged has searched the
        whole index."""
        self._disk = disk
        self._root = root
        self._log_id = log_id
        self._slots, self._units = slots, units
        self._filters = f"{root}/state/bloom"
        self._position_path = f"{root}/state/{POSITION_FILE}"
        self._rows = 0
        """Keys of the entries from `next_index` on that are in the index already: a full disk may
        have interrupted an append."""
        self._chain: int | None = None
        """Chain CRC of the entry before `next_index`, if known."""
        self._lock = threading.Lock()
        self._sealed: tuple[KeyNote, ...] = ()
        self._active: KeyFileWriter | None = None
        self._filter_of: dict[str, StoredBloom] = {}
        """Filters that were read and found intact, by file."""
        self._unsynced: list[str] = []
        self._names_changed = False
        self._durable: dict[str, Any] = {}
        self._dirty = False
        self._load_lock = threading.Lock()
        self._loaded = False

    # Starting

    def start(self, begin_index: int, end_index: int, chain_at: Callable[[int], int]) -> None:
        """Find the existing files. Fast: reads only the header of each file, and writes nothing.
        `chain_at` returns chain CRCs of the log's entries."""
        position = self._read_position()
        if position is not None:
            before = position["next"] - 1
            known = begin_index <= before <= end_index and position["chain"] is not None
            if before > end_index or (known and chain_at(before) != position["chain"]):
                position = None
        # A former process may have created names and stopped before syncing them.
        self._names_changed = True
        self._take_over(position)
        self.skip_to(begin_index)
        self._remove_strays()

    def _read_position(self) -> dict[str, Any] | None:
        try:
            value = sealed_json.read(self._disk, self._position_path)
        except (FileNotFoundError, Damaged):
            return None
        return value if value.get("v") == VERSION and value.get("log_id") == self._log_id else None

    def _take_over(self, position: dict[str, Any] | None) -> None:
        notes = [KeyNote(*fields) for fields in position["files"]] if position is not None else []
        kept = []
        for note in notes:
            if not self._is_sound(note):
                break
            kept.append(note)
        if position is not None and len(kept) == len(notes):
            self.next_index, self._rows, self._chain = (
                position["next"],
                position["rows"],
                position["chain"],
            )
            self.store_ms = self.durable_store_ms = position["store_ms"]
        else:
            self._resume_at(notes[len(kept)] if notes else None, kept)
        self._durable = position or {}
        last = kept.pop() if kept and kept[-1].room else None
        self._sealed = tuple(kept)
        self._active = (
            None if last is None else KeyFileWriter(self._disk, self.directory, last, new=False)
        )
        self._loaded = last is None

    def _resume_at(self, lost: KeyNote | None, kept: list[KeyNote]) -> None:
        """Continue where the first lost file began."""
        self.next_index, self._rows = (
            (0, 0) if lost is None else (lost.first_index, lost.first_rows)
        )
        self._chain = None
        self.store_ms = self.durable_store_ms = kept[-1].end_ms if kept else 0
        self._dirty = True

    def _is_sound(self, note: KeyNote) -> bool:
        """Whether the file exists; a full one must also have the header it had when it was
        synced."""
        path = f"{self.directory}/{note.name}"
        if not self._disk.exists(path) or self._disk.file_size(path) != note.file_bytes:
            return False
        if note.room:
            return True
        file = self._disk.open(path)
        try:
            return file.pread(0, HEADER_BYTES) == note.header()
        finally:
            file.close()

    def _remove_strays(self) -> None:
        names = {note.name for note in self._notes()}
        for directory in (self.directory, self._filters):
            for name in self._disk.listdir(directory):
                if name not in names:
                    self._disk.unlink(f"{directory}/{name}")

    def load(self, keep_going: Iterable[None]) -> bool:
        """Build slots and filter of the file being written from its units, one piece per step of
        `keep_going`. Needed once before anything is appended or found; False if it was
        interrupted."""
        with self._load_lock:
            if self._loaded:
                return True
            assert self._active is not None
            try:
                loaded = self._active.load(keep_going)
                if loaded and self._active.erase_rest():
                    # Slots and header may be ahead of the units as well: the next sync writes them.
                    self._dirty = True
                self._loaded = loaded
            except DerivedLost:
                self._drop_active()
            return self._loaded

    def _drop_active(self) -> None:
        """Drop the file being written, which is invalid: its part of the log is derived again."""
        assert self._active is not None
        lost = self._active
        self._resume_at(lost.note, list(self._sealed))
        self.setbacks += 1
        with self._lock:
            self._active = None
        lost.close()
        self._loaded = True
        # The position still names it: if the process ends now, the next one misses the file and
        # drops it as well.
        self._disk.unlink(lost.path)

    # Appending

    def append(self, entries: Entries) -> None:
        """Add the keys of committed entries; keys already present are skipped, a gap violates an
        invariant. Raises NoSpace: the same entries may be passed again."""
        assert self._loaded, "the key index is not loaded yet"
        first, last = entries.first_index, entries.last_index
        assert first <= self.next_index, (
            f"entry {first} does not follow {self.next_index - 1} in the key index"
        )
        if last < self.next_index:
            return
        columns = key_columns(entries)
        row = int((columns.entry_of < self.next_index - first).sum()) + self._rows
        try:
            while row < len(columns):
                put = self._put(columns, row)
                row += put
                self._rows += put
        except OSError as error:
            if is_no_space(error):
                raise NoSpace(
                    f"no space for the key index in {self.directory}: free disk space; indexing"
                    " resumes by itself"
                ) from error
            raise
        begin = int(entries.starts[-1])
        self.store_ms = int.from_bytes(entries.data[begin + 104 : begin + 112], "big", signed=True)
        self._chain = chain_crc_at(entries.data, begin)
        self.next_index, self._rows, self._dirty = last + 1, 0, True

    def _put(self, columns: KeyColumns, row: int) -> int:
        """Write as many keys as the file takes at once; a full file is first replaced by a new
        one."""
        active = self._active
        if active is not None and not active.note.room:
            self._seal(active)
            active = None
        if active is None:
            active = self._begin(int(columns.store_ms[row]))
        count = min(len(columns) - row, active.note.room, PUT_UNITS)
        part = slice(row, row + count)
        active.append(columns.hashes[part], columns.physical_offsets[part], columns.store_ms[part])
        self._dirty = True
        return count

    def _begin(self, store_ms: int) -> KeyFileWriter:
        """A new file. Until its first unit it has the end of the file before."""
        before = self._sealed[-1] if self._sealed else None
        name = name_of(store_ms)
        if before is not None and name <= before.name:
            name = name_of(_ms_of(before.name) + 1)
        note = KeyNote(name, self._slots, self._units, self.next_index, self._rows)
        if before is not None:
            note = replace(
                note,
                begin_ms=before.end_ms,
                end_ms=before.end_ms,
                begin_pos=before.end_pos,
                end_pos=before.end_pos,
            )
        self._disk.mkdirs(self.directory)
        path = f"{self.directory}/{name}"
        if self._disk.exists(path):
            # Left by an attempt that failed halfway.
            self._disk.unlink(path)
        active = KeyFileWriter(self._disk, self.directory, note, new=True)
        self._names_changed = True
        with self._lock:
            self._active = active
        return active

    def _seal(self, active: KeyFileWriter) -> None:
        """Finish a full file: write its slots and its filter."""
        active.flush()
        self._unsynced.append(active.path)
        # A filter for which there is no room is built later; until then lookups read the file.
        with contextlib.suppress(NoSpace):
            self._write_filter(active.note, active.filter.encode(active.note.count))
        with self._lock:
            self._sealed, self._active = (*self._sealed, active.note), None
        active.close()

    def _write_filter(self, note: KeyNote, content: bytes) -> None:
        try:
            self._disk.mkdirs(self._filters)
            self._disk.replace_file(f"{self._filters}/{note.name}", content)
        except OSError as error:
            if is_no_space(error):
                raise NoSpace(
                    f"no space for a filter in {self._filters}: free disk space; it is then built"
                    " by itself"
                ) from error
            raise

    def tend(self, keep_going: Iterable[None]) -> bool:
        """Called when idle: verify or build the filter of one full file. False if there is nothing
        to do. Raises NoSpace, OSError."""
        note = next(
            (note for note in reversed(self._sealed) if note.name not in self._filter_of), None
        )
        if note is None:
            return False
        path = f"{self._filters}/{note.name}"
        bloom = StoredBloom.verify(self._disk, path, note.count, keep_going)
        if bloom is None:
            file = self._disk.open(f"{self.directory}/{note.name}")
            try:
                made = build_filter(file, note, note.units, keep_going)
            finally:
                file.close()
            if made is None:
                return True
            self._write_filter(note, made.encode(note.count))
            bloom = StoredBloom(made.blocks)
        self._filter_of = {**self._filter_of, note.name: bloom}
        return True

    # Durability

    @property
    def dirty(self) -> bool:
        """Whether anything is not covered by the position on disk."""
        return self._dirty

    def sync(self) -> None:
        """Make everything durable, then the position that covers it. Raises NoSpace if the sync
        itself found no space, after going back to the durable state; and OSError: the disk may be
        full then too, and the call may be repeated."""
        if self._active is not None and self._loaded:
            self._active.flush()
        try:
            if self._active is not None and self._loaded:
                self._active.sync()
            for path in self._unsynced:
                file = self._disk.open(path)
                try:
                    file.sync()
                finally:
                    file.close()
            if self._names_changed:
                for directory in (self.directory, f"{self._root}/state", self._root):
                    if self._disk.exists(directory):
                        self._disk.sync_dir(directory)
        except OSError as error:
            if is_no_space(error):
                self._go_back()
                raise NoSpace(
                    f"no space to sync the key index in {self.directory}: free disk space; indexing"
                    " resumes by itself"
                ) from error
            raise
        self._unsynced.clear()
        self._names_changed = False
        self._write_position()

    def _write_position(self) -> None:
        value = {
            "v": VERSION,
            "log_id": self._log_id,
            "next": self.next_index,
            "rows": self._rows,
            "chain": self._chain,
            "store_ms": self.store_ms,
            "files": [
                [getattr(note, field) for field in KeyNote.__slots__] for note in self._notes()
            ],
        }
        sealed_json.write(self._disk, self._position_path, value)
        self._durable = value
        self.durable_store_ms = self.store_ms
        self._dirty = False

    def _go_back(self) -> None:
        """A sync found no space, so it is unknown which pages are on the medium: restart from the
        last durable position."""
        with self._load_lock:
            # The new position is not known yet; until then no reader may take the index as
            # complete.
            self.next_index = 0
            self.setbacks += 1
            with self._lock:
                active, self._active = self._active, None
            if active is not None:
                active.close()
            self._unsynced.clear()
            self._take_over(self._durable or None)
        self._remove_strays()

    # Trimming

    def skip_to(self, begin_index: int) -> None:
        """The log begins here now: keys of earlier entries are no longer needed."""
        if self.next_index < begin_index:
            self.next_index, self._rows, self._chain, self._dirty = begin_index, 0, None, True

    def trim(self, begin_pos: int) -> list[str]:
        """Remove the files whose messages all lie below `begin_pos`, but never the last one.
        Returns the removed paths."""
        named = {fields[0] for fields in self._durable.get("files", ())}
        notes = self._notes()
        gone = []
        for note in notes[:-1]:
            if note.end_pos >= begin_pos or note.name not in named:
                break
            gone.append(note)
        if not gone:
            return []
        names = {note.name for note in gone}
        position = {
            **self._durable,
            "files": [fields for fields in self._durable["files"] if fields[0] not in names],
        }
        sealed_json.write(self._disk, self._position_path, position)
        self._durable = position
        with self._lock:
            self._sealed = self._sealed[len(gone) :]
        self._filter_of = {
            name: bloom for name, bloom in self._filter_of.items() if name not in names
        }
        removed = [f"{self.directory}/{note.name}" for note in gone]
        # One that was filled since the last sync was to be synced by the next one.
        self._unsynced = [path for path in self._unsynced if path not in removed]
        for path in removed + [f"{self._filters}/{note.name}" for note in gone]:
            if self._disk.exists(path):
                self._disk.unlink(path)
        self._names_changed = True
        return removed

    def discard(self) -> None:
        """Drop everything: the index is derived again from the begin of the log."""
        if self._active is not None:
            self._active.close()
        with self._lock:
            self._sealed, self._active = (), None
        self._filter_of = {}
        self._unsynced.clear()
        self._resume_at(None, [])
        self._loaded = True
        self._write_position()
        self._remove_strays()

    def close(self) -> None:
        if self._active is not None:
            self._active.close()

    # Finding

    def find(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of messages that may have a key with this hash and a store time in begin
        … end, newest first. Times are compared in seconds, and other keys may share the hash: the
        caller checks the records. A file that was removed yields nothing. Raises OSError."""
        self.load(_for_ever())
        with self._lock:
            sealed, active = self._sealed, self._active
        if active is not None:
            note, number = active.newest(hash_)
            if number and note.begin_ms <= end_ms and note.end_ms >= begin_ms:
                yield from self._in_file(note, hash_, begin_ms, end_ms, number)
        for note in reversed(sealed):
            if note.end_ms < begin_ms:
                return
            if note.begin_ms <= end_ms and self._may_have(note, hash_):
                yield from self._in_file(note, hash_, begin_ms, end_ms, None)

    def _in_file(
        self, note: KeyNote, hash_: int, begin_ms: int, end_ms: int, number: int | None
    ) -> Iterator[int]:
        file = self._open(f"{self.directory}/{note.name}")
        if file is None:
            return
        try:
            yield from walk(
                file,
                note,
                number=slot_of(file, note, hash_) if number is None else number,
                hash_=hash_,
                begin_ms=begin_ms,
                end_ms=end_ms,
            )
        finally:
            file.close()

    def _may_have(self, note: KeyNote, hash_: int) -> bool:
        bloom = self._filter_of.get(note.name)
        if bloom is None:
            return True
        file = self._open(f"{self._filters}/{note.name}")
        if file is None:
            return True
        try:
            return bloom.may_have(file, hash_)
        finally:
            file.close()

    def _open(self, path: str) -> DiskFile | None:
        try:
            return self._disk.open(path)
        except FileNotFoundError:
            return None

    def _notes(self) -> list[KeyNote]:
        return [*self._sealed, *([self._active.note] if self._active is not None else [])]


def _for_ever() -> Iterator[None]:
    while True:
        yield
