"""Replacing a replica's log with one fetched from peers (format §16): new files are staged beside
the old ones under names that no other code reads, a durable record says that they are complete, and
then they get their final names.

The old log counts until the record is durable, then the new one: `carry_out` finishes an exchange
that a crash interrupted, and every open calls it first. Identity, incarnation, vote and the table
of peers are not changed; the term of the hard state never stays below that of the log.
`node/replica/shipping/installation.py` decides what is fetched, from which peer, and what proves
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ledgermq.proto.entries.entry_sealing import chain_crc_at, chain_seed
from ledgermq.proto.types import Identity, Range, SyncedMark
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, NoSpace, needing_room
from ledgermq.storage.files.mapped_files import STAGED, file_name, parse_name
from ledgermq.storage.files.ports import Disk, DiskFile
from ledgermq.storage.log.begin import BEGIN_FILE, Begin, write_begin
from ledgermq.storage.log.index_files import UNIT_BYTES, Units, make_units
from ledgermq.storage.log.log_scan import Piece, Point, Walker, is_place
from ledgermq.storage.log.placing import whole_blank
from ledgermq.storage.log.synced_mark import SyncedMarkFile
from ledgermq.storage.repair.mending import MARKER
from ledgermq.storage.state import checkpoints
from ledgermq.storage.state.hard_state import raise_term
from ledgermq.storage.state.snapshot import PREVIOUS_FILE, SNAPSHOT_FILE, discard_snapshot

RECORD_FILE = "install"
"""In the log's directory: the staged files are complete and durable, and are about to get their
names."""
VERSION = 1
REBUILDING_FILE = "rebuilding"
"""In `state/`: consume queues are being rebuilt below the snapshot."""
ZERO_BYTES = 1 << 20
SYNC_BYTES = 64 << 20
COPIES = 4
"""Copies of a snapshot while it replaces both generations: the old files are removed when the new
ones have their names."""
OUTDATED = ("keyindex", "digests", "scrub")
"""Files of `state/` that describe replaced files."""


class StagedFiles:
    """The staged files of one kind, created as needed; sparse until they are written."""

    def __init__(self, disk: Disk, directory: str, file_bytes: int) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.bases: set[int] = set()
        self._disk = disk
        self._open: dict[int, DiskFile] = {}
        self._dirty: dict[DiskFile, None] = {}
        self._unsynced = 0

    def load(self, origin: int) -> None:
        """Find the files that an earlier attempt left from `origin` on; remove the others."""
        for name in self._disk.listdir(self.directory):
            base = parse_name(name.removesuffix(STAGED)) if name.endswith(STAGED) else None
            if name.endswith(STAGED):
                path = f"{self.directory}/{name}"
                if (
                    base is None
                    or base % self.file_bytes
                    or base < origin
                    or self._disk.file_size(path) != self.file_bytes
                ):
                    self._disk.unlink(path)
                else:
                    self.bases.add(base)

    def adopt(self, base: int, path: str) -> None:
        """Take a complete and synced file under another name as the staged file at `base`, in place
        of what was staged there."""
        self.drop(base)
        self._disk.rename(path, f"{self.directory}/{file_name(base)}{STAGED}")
        self.bases.add(base)

    def drop(self, base: int) -> None:
        """Forget what was staged at `base`."""
        file = self._open.pop(base, None)
        if file is not None:
            self._dirty.pop(file, None)
            file.close()
        path = f"{self.directory}/{file_name(base)}{STAGED}"
        if base in self.bases and self._disk.exists(path):
            self._disk.unlink(path)
        self.bases.discard(base)

    def has(self, pos: int) -> bool:
        return pos - pos % self.file_bytes in self.bases

    def at(self, pos: int) -> DiskFile:
        base = pos - pos % self.file_bytes
        file = self._open.get(base)
        if file is None:
            for other in [other for other in self._open if other + self.file_bytes < base]:
                # Files are written front to back, so this one is complete.
                done = self._open.pop(other)
                if done in self._dirty:
                    del self._dirty[done]
                    done.sync()
                done.close()
            path = f"{self.directory}/{file_name(base)}{STAGED}"
            exists = base in self.bases
            with needing_room(path):
                file = (
                    self._disk.open(path)
                    if exists
                    else self._disk.create(path, self.file_bytes, allocate=False)
                )
            self._open[base] = file
            self.bases.add(base)
        return file

    def write(self, pos: int, data: bytes | memoryview) -> None:
        """Write bytes at a position, across files if needed. Raises NoSpace, OSError."""
        view = memoryview(data)
        while view:
            file, inside = self.at(pos), pos % self.file_bytes
            length = min(len(view), self.file_bytes - inside)
            with needing_room(file.path):
                file.pwrite(inside, view[:length])
            self._dirty[file] = None
            self._unsynced += length
            if self._unsynced >= SYNC_BYTES:
                # Sync in small steps: syncing a whole file at the end would take seconds.
                self._unsynced = 0
                file.sync()
            pos, view = pos + length, view[length:]

    def sync(self) -> None:
        for file in self._dirty:
            file.sync()
        self._dirty.clear()
        self._disk.sync_dir(self.directory)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


class Staging:
    """The log that is being fetched, beside the current one."""

    def __init__(self, disk: Disk, root: str, identity: Identity) -> None:
        self.watched: tuple[int, int] | None = None
        """Term and chain CRC of the entry `watch`, once it was read."""
        self._disk, self._root, self._identity = disk, root, identity
        self._directory = f"{root}/dledger-{identity.replica}"
        self._data = StagedFiles(disk, f"{self._directory}/data", identity.data_file_bytes)
        self._units = StagedFiles(disk, f"{self._directory}/index", identity.index_file_bytes)
        self._begin = Point(pos=0, index=0, term=-1, chain=chain_seed(identity.log_id))
        self._watch = -1
        self._whole: set[int] = set()
        """Adopted files: they have their blanks."""
        self._received: DiskFile | None = None
        """A whole file that is being received; it counts for nothing until it is adopted."""

    def begin(self, begin: Point, watch: int) -> Point:
        """Stage a log that begins at this point. Files of an earlier attempt are kept, to be
        verified by `resume`. `watch` is the index of an entry whose term and chain CRC are
        wanted."""
        self._begin, self._watch = begin, watch
        self.watched = (begin.term, begin.chain) if watch == begin.index - 1 else None
        self._data.load(begin.pos)
        at = begin.index * UNIT_BYTES
        self._units.load(at - at % self._units.file_bytes)
        return begin

    def resume(self, point: Point, stop: int, *, synced: bool = False) -> Iterator[Point]:
        """Verify staged entries from `point` on; yields the point behind each piece. They may be in
        the page cache only, so they are written again (docs/architecture.md, Durability), unless
        this process has `synced` them."""
        walker = Walker(self._data, point, verify=True)  # type: ignore[arg-type]
        for piece in walker.pieces(stop):
            if piece.blank_at is not None and not synced:
                self._write_blank(piece.blank_at, piece.pos)
            if not synced:
                self._data.write(piece.pos, piece.data)
            self._note(piece)
            yield walker.point

    def receive(self, base: int, offset: int, data: bytes) -> None:
        """Write a part of a whole log file beside the staged ones, from its begin on. Raises
        NoSpace, OSError."""
        path = self._received_path(base)
        if offset == 0:
            self._forget_received()
            if self._disk.exists(path):
                self._disk.unlink(path)
            with needing_room(path):
                self._received = self._disk.create(path, self._data.file_bytes, allocate=False)
        assert self._received is not None, "a file is received from its begin on"
        with needing_room(path):
            self._received.pwrite(offset, data)
        if (offset + len(data)) % SYNC_BYTES == 0:
            self._received.sync()

    def adopt(self, point: Point, base: int) -> None:
        """The file at `base` was received completely, and its first entry follows `point`: sync it,
        and stage it. Raises OSError."""
        assert self._received is not None, "a file was received"
        self._received.sync()
        self._forget_received()
        if point.pos != base and base - self._data.file_bytes not in self._whole:
            self._write_blank(point.pos, base)
        self._data.adopt(base, self._received_path(base))
        self._whole.add(base)

    def give_up(self, base: int) -> None:
        """What was adopted at `base` is not what belongs there."""
        self._whole.discard(base)
        self._data.drop(base)

    def _received_path(self, base: int) -> str:
        """A name that every begin and every exchange removes."""
        return f"{self._data.directory}/{file_name(base)}.received{STAGED}"

    def _forget_received(self) -> None:
        if self._received is not None:
            self._received.close()
            self._received = None

    def _note(self, piece: Piece) -> None:
        units: Units = make_units(piece.first_index, 0, piece.starts + piece.pos, piece.sizes)
        units["term"] = piece.terms
        self._units.write(piece.first_index * UNIT_BYTES, units.tobytes())
        at = self._watch - piece.first_index
        if 0 <= at < len(piece.starts):
            self.watched = int(piece.terms[at]), chain_crc_at(piece.data, int(piece.starts[at]))

    def put(self, point: Point, entries: Range) -> Point:
        """Write verified entries that continue `point`. Returns the point behind them."""
        if entries.pos != point.pos:
            self._write_blank(point.pos, entries.pos)
        self._data.write(entries.pos, entries.data)
        units = make_units(
            entries.first_index, entries.term, entries.starts + entries.pos, entries.sizes
        )
        self._units.write(entries.first_index * UNIT_BYTES, units.tobytes())
        at = self._watch - entries.first_index
        if 0 <= at < len(entries.starts):
            self.watched = entries.term, chain_crc_at(entries.data, int(entries.starts[at]))
        return Point(
            pos=entries.end_pos,
            index=entries.last_index + 1,
            term=entries.term,
            chain=entries.last_chain,
        )

    def _write_blank(self, start: int, stop: int) -> None:
        for pos, data in whole_blank(start, stop - start):
            self._data.write(pos, data)

    def fits(self, point: Point, entries: Range) -> bool:
        """Whether entries that continue `point` may be written at their stated position."""
        return is_place(point, entries, self._data.file_bytes)

    def complete(self, end: Point, snapshot: bytes | None) -> None:
        """Everything up to `end` is staged, verified and committed: make it durable, record it, and
        exchange the files. Raises NoSpace, OSError."""
        size = self._data.file_bytes
        last = max(self._begin.pos, end.pos - 1)
        base = last - last % size
        # Files that an earlier attempt staged for a longer log are not part of this one; blocks
        # behind the end are allocated.
        at = end.pos if end.pos > base else base
        while at < base + size:
            length = min(ZERO_BYTES, base + size - at)
            self._data.write(at, bytes(length))
            at += length
        used = (end.index * UNIT_BYTES) % self._units.file_bytes
        if used:
            self._units.write(end.index * UNIT_BYTES, bytes(self._units.file_bytes - used))
        self._data.sync()
        self._units.sync()
        if snapshot is not None:
            path = f"{self._root}/state/{SNAPSHOT_FILE}{STAGED}"
            if self._disk.free_bytes(self._root) < COPIES * len(snapshot):
                raise NoSpace(
                    f"no space for {path}: free disk space; the installation resumes by itself"
                )
            if self._disk.exists(path):
                self._disk.unlink(path)
            self._disk.replace_file(path, snapshot)
        record = {
            "v": VERSION,
            "log_id": self._identity.log_id,
            "begin": asdict(
                Begin(self._begin.index, self._begin.pos, self._begin.term, self._begin.chain)
            ),
            "mark": asdict(SyncedMark(end.term, end.index - 1, end.pos, end.chain)),
            "data": sorted(
                base for base in self._data.bases if base < end.pos or base == self._begin.pos
            ),
            "index": sorted(base for base in self._units.bases if base < end.index * UNIT_BYTES),
            "snapshot": snapshot is not None,
        }
        self.close()
        sealed_json.write(self._disk, f"{self._directory}/{RECORD_FILE}", record)
        carry_out(self._disk, self._root, self._identity)

    def close(self) -> None:
        self._forget_received()
        self._data.close()
        self._units.close()


def carry_out(disk: Disk, root: str, identity: Identity) -> bool:
    """Exchange the files of an installation that is recorded as complete; False if none is. May be
    repeated after an interruption at any point. Raises OSError, Damaged (the record itself)."""
    directory = f"{root}/dledger-{identity.replica}"
    path = f"{directory}/{RECORD_FILE}"
    if not disk.exists(path):
        return False
    record = sealed_json.read(disk, path)
    if record.get("v") != VERSION or record.get("log_id") != identity.log_id:
        raise Damaged(f"{path} is of another version or another log: it was put there by hand")
    for kind in ("data", "index"):
        _exchange(disk, f"{directory}/{kind}", frozenset(record[kind]))
    begin, mark = Begin(**record["begin"]), SyncedMark(**record["mark"])
    raise_term(disk, f"{directory}/hardstate", mark.term)
    if begin.index > 0 or begin.chain != chain_seed(identity.log_id):
        write_begin(disk, directory, identity.log_id, begin)
    elif disk.exists(f"{directory}/{BEGIN_FILE}"):
        disk.unlink(f"{directory}/{BEGIN_FILE}")
    _set_mark(disk, directory, identity.log_id, mark)
    checkpoints.write_log_checkpoint(
        disk, directory, checkpoints.LogCheckpoint(mark.index, mark.index)
    )
    _exchange_state(disk, root, record)
    if disk.exists(f"{directory}/{MARKER}"):
        # The files of an unfinished repair are replaced.
        disk.unlink(f"{directory}/{MARKER}")
    disk.unlink(path)
    disk.sync_dir(directory)
    return True


def _exchange(disk: Disk, directory: str, bases: frozenset[int]) -> None:
    """Remove old files and give staged ones their names; files that have their names already
    stay."""
    names = disk.listdir(directory)
    for name in names:
        if parse_name(name) is not None and int(name) not in bases:
            disk.unlink(f"{directory}/{name}")
        elif name.endswith(STAGED):
            base = parse_name(name.removesuffix(STAGED))
            if base in bases:
                disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(STAGED)}")
            else:
                disk.unlink(f"{directory}/{name}")
    disk.sync_dir(directory)


def _set_mark(disk: Disk, directory: str, log_id: str, mark: SyncedMark) -> None:
    file = SyncedMarkFile.open(disk, f"{directory}/syncedmark", log_id)
    try:
        file.lower(mark)
    finally:
        file.close()


def _exchange_state(disk: Disk, root: str, record: Mapping[str, Any]) -> None:
    """Write the snapshot to both generations. The consume queues describe the old log: they are not
    used until they are rebuilt."""
    state = f"{root}/state"
    if record["snapshot"]:
        disk.replace_file(f"{state}/{REBUILDING_FILE}", b"consumequeue\n")
        staged = f"{state}/{SNAPSHOT_FILE}{STAGED}"
        if disk.exists(staged):
            data = disk.read_file(staged)
            disk.replace_file(f"{state}/{PREVIOUS_FILE}", data)
            disk.replace_file(f"{state}/{SNAPSHOT_FILE}", data)
            disk.unlink(staged)
    else:
        discard_snapshot(disk, state)
    for name in OUTDATED:
        if disk.exists(f"{state}/{name}"):
            disk.unlink(f"{state}/{name}")
    disk.sync_dir(state)
