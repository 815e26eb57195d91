"""A log as a source for other replicas: read from the files alone, every entry verified, and damage
reported.

For shipping to replicas that lack entries. Works beside the owner of the log, and also if the log
has no owner because it is damaged: intact entries are served, damage is reported by name. Limited
by the begin of the log and the synced mark. Own handles, `pread` only; it writes nothing, and
trusts only what it computes, except for stored chain CRCs when a peer only asks for them.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from enum import Enum

import crc32c
import numpy as np

from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.layout import ENTRY_MAGIC, ENTRY_MIN_BYTES, HEADER_BYTES, INDEX_UNIT
from ledgermq.proto.types import Identity, Range
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.ports import Disk, DiskFile
from ledgermq.storage.log.begin import read_begin
from ledgermq.storage.log.index_files import UNIT_BYTES, UNIT_MAGIC
from ledgermq.storage.log.log_scan import ENTRY_HEAD, Point
from ledgermq.storage.log.synced_mark import read_mark
from ledgermq.storage.state import checkpoints, identity
from ledgermq.storage.state.snapshot import GENERATIONS

_SIZE_INDEX_TERM = struct.Struct(">iqq")
"""The part of an entry's header from byte 4 on."""


class Why(Enum):
    """Why entries are not served (`FetchRefused.Reason` in proto/shipping.proto, by name)."""

    UNKNOWN = "unknown"
    DAMAGED = "damaged"
    DIFFERS = "differs"
    TRIMMED = "trimmed"
    BEYOND = "beyond"
    OTHER_LOG = "other log"
    NO_SNAPSHOT = "no snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Which entry cannot be served (index and position), why, and a sentence for people."""

    why: Why
    index: int
    pos: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a log has. `begin` and `synced` are the points at its ends; `committed_index` (−1: none
    noted) lies before `synced`, and that entry ends at `committed_pos` (−1: not found) and has the
    term `committed_term` (0: not found). `points` lie behind the requested entries, as far as they
    are here."""

    data_file_bytes: int
    index_file_bytes: int
    begin: Point
    synced: Point
    committed_index: int
    committed_pos: int
    committed_term: int
    snapshot_index: int
    snapshot_bytes: int
    points: tuple[Point, ...] = ()


class LogSource:
    """The log of the group directory `root`. For one caller."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._identity: Identity | None = None
        self._begin = self._synced = Point(pos=0, index=0, term=-1, chain=0)
        self._open: tuple[str, DiskFile] | None = None
        self._applied: dict[tuple[str, int, int], int | None] = {}
        """The content of the snapshots that were read last, by path, length and CRC."""

    def identity(self) -> Identity | None:
        """The identity of these files; None if there is no replica. Raises Damaged, UnknownFormat,
        OSError."""
        if self._identity is None:
            self._identity = identity.read_identity(self._disk, self._root)
        return self._identity

    @property
    def log_id(self) -> str:
        """The log id; "" without a replica."""
        return "" if self._identity is None else self._identity.log_id

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def facts(self, places: tuple[tuple[int, int], ...] = ()) -> Facts:
        """What is here now. `places`: (index, position or −1) of requested entries. Raises Damaged,
        Unusable, OSError."""
        self._refresh()
        known = self._known()
        noted = checkpoints.read_log_checkpoint(self._disk, self._directory)
        snapshot = self.snapshot()
        committed = max(
            -1 if noted is None else noted.committed_index, -1 if snapshot is None else snapshot[0]
        )
        committed = min(committed, self._synced.index - 1)
        end = self._point_behind(committed, -1) if committed >= 0 else None
        return Facts(
            data_file_bytes=known.data_file_bytes,
            index_file_bytes=known.index_file_bytes,
            begin=self._begin,
            synced=self._synced,
            committed_index=committed,
            committed_pos=-1 if end is None else end.pos,
            committed_term=0 if end is None else max(0, end.term),
            snapshot_index=-1 if snapshot is None else snapshot[0],
            snapshot_bytes=0 if snapshot is None else len(snapshot[1]),
            points=tuple(
                point for place in places if (point := self._point_behind(*place)) is not None
            ),
        )

    def snapshot(self) -> tuple[int, bytes] | None:
        """Applied index and bytes of the newest intact snapshot of this log."""
        for name in GENERATIONS:
            path = f"{self._root}/state/{name}"
            try:
                data = self._disk.read_file(path)
            except FileNotFoundError:
                continue
            index = self._applied_index(path, data)
            if index is not None:
                return index, data
        return None

    def _applied_index(self, path: str, data: bytes) -> int | None:
        """The applied index of a snapshot that is intact and of this log, cached. Facts are
        requested twice per second, and decoding a large snapshot holds the interpreter, and thereby
        every group's heartbeats."""
        key = path, len(data), crc32c.crc32c(data)
        if key not in self._applied:
            try:
                value = sealed_json.decode(data, path)
            except Damaged:
                value = {}
            index = value.get("applied_index")
            fits = value.get("log_id") == self._known().log_id and isinstance(index, int)
            self._applied = {
                other: applied for other, applied in self._applied.items() if other[0] != path
            } | {key: index if fits else None}
        return self._applied[key]

    def entries(self, point: Point, end_pos: int, max_bytes: int) -> Range | Missing:
        """Whole entries of one term in one file from `point` on, up to `max_bytes` but at least
        one, each verified as the continuation of `point`. Raises OSError, Damaged."""
        if not self._begin.pos <= point.pos < self._synced.pos:
            self._refresh()
        if point.pos < self._begin.pos:
            return Missing(
                why=Why.TRIMMED,
                index=point.index,
                pos=point.pos,
                text=f"the log begins here with entry {self._begin.index}",
            )
        if point.pos >= self._synced.pos:
            return Missing(
                why=Why.BEYOND,
                index=self._synced.index,
                pos=self._synced.pos,
                text=f"the log is synced here up to entry {self._synced.index - 1}",
            )
        size = self._known().data_file_bytes
        pos, data = point.pos, self._read(point.pos, max_bytes)
        if data is not None and not _begins_entry(data, point.index, pos) and pos % size:
            # Only a blank may lie here; the requester writes its own.
            after = pos + size - pos % size
            head = (
                self._bytes("data", size, after, HEADER_BYTES) if after < self._synced.pos else None
            )
            if head is not None and _begins_entry(head, point.index, after):
                if after >= end_pos:
                    return Missing(
                        why=Why.DIFFERS,
                        index=point.index,
                        pos=point.pos,
                        text=f"entry {point.index} begins at {after} here",
                    )
                pos, data = after, self._read(after, max_bytes)
        if data is None:
            return self._gone(point, pos)
        return self._verified(point, pos, data, end_pos)

    def point_behind(self, index: int) -> Point | None:
        """The point behind an entry, by its index unit and stored header; None if it cannot be
        found. Raises OSError, Damaged."""
        self._refresh()
        return self._point_behind(index, -1)

    # Inside

    def _known(self) -> Identity:
        own_identity = self.identity()
        assert own_identity is not None, f"{self._root} holds no replica"
        return own_identity

    @property
    def _directory(self) -> str:
        return f"{self._root}/dledger-{self._known().replica}"

    def _refresh(self) -> None:
        """Read begin and synced mark again."""
        log_id = self._known().log_id
        begin = read_begin(self._disk, self._directory, log_id)
        mark = read_mark(self._disk, f"{self._directory}/syncedmark", log_id)
        self._begin = Point(pos=begin.pos, index=begin.index, term=begin.term, chain=begin.chain)
        if mark.index < begin.index:
            self._synced = self._begin
        else:
            self._synced = Point(
                pos=mark.end_pos, index=mark.index + 1, term=mark.term, chain=mark.chain_crc
            )

    def _point_behind(self, index: int, pos: int) -> Point | None:
        """The point behind an entry, by its stored header; None if the entry is not here or cannot
        be found, also if the disk cannot read its page (EIO)."""
        if index == self._begin.index - 1:
            return self._begin
        try:
            return self._stored_point(index, pos)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None

    def _stored_point(self, index: int, pos: int) -> Point | None:
        if not self._begin.index <= index < self._synced.index:
            return None
        if pos < 0:
            at = index * UNIT_BYTES
            raw = self._bytes("index", self._known().index_file_bytes, at, UNIT_BYTES)
            if raw is None or len(raw) < UNIT_BYTES:
                return None
            unit = np.frombuffer(raw, INDEX_UNIT)[0]
            if int(unit["magic"]) != UNIT_MAGIC or int(unit["index"]) != index:
                return None
            pos = int(unit["pos"])
        if not self._begin.pos <= pos < self._synced.pos:
            return None
        head = self._bytes("data", self._known().data_file_bytes, pos, HEADER_BYTES)
        if head is None or not _begins_entry(head, index, pos):
            return None
        _, size, _, term, _, _, chain, _, _ = ENTRY_HEAD.unpack(head)
        return Point(pos=pos + size, index=index + 1, term=term, chain=chain)

    def _read(self, pos: int, max_bytes: int) -> memoryview | None:
        """Bytes at a position: as many as wanted, limited by the synced end and the file; at least
        one whole entry, if its header gives a size. None if the file does not exist."""
        size = self._known().data_file_bytes
        room = min(size - pos % size, self._synced.pos - pos)
        data = self._bytes("data", size, pos, min(max_bytes, room))
        if data is None or len(data) < HEADER_BYTES:
            return None if data is None else memoryview(data)
        length = int.from_bytes(data[4:8], "big", signed=True)
        if len(data) < length <= room:
            data = self._bytes("data", size, pos, length)
        return None if data is None else memoryview(data)

    def _verified(self, point: Point, pos: int, data: memoryview, end_pos: int) -> Range | Missing:
        length, term = _whole(data, end_pos - pos)
        if not length:
            return self._complaint(point, pos, "bytes that are not an entry")
        try:
            return verify_range(data[:length], point.index, term, pos, point.chain)
        except BadEntry as bad:
            if bad.offset:
                return verify_range(data[: bad.offset], point.index, term, pos, point.chain)
            return self._complaint(point, pos, bad.reason)

    def _complaint(self, point: Point, pos: int, reason: str) -> Missing:
        """The bytes at `pos` do not continue `point`: report whether they are damaged or of another
        history. It is another history if fewer entries end here before it, or if this log's entry
        of that index continues another one than `point`, at whatever position."""
        if point.index >= self._synced.index:
            return Missing(
                why=Why.DIFFERS,
                index=point.index,
                pos=pos,
                text=f"entry {self._synced.index - 1} ends behind it here",
            )
        before = self._point_behind(point.index - 1, -1)
        if (
            before is not None
            and before.chain != point.chain
            and isinstance(self.entries(before, self._synced.pos, HEADER_BYTES), Range)
        ):
            return Missing(
                why=Why.DIFFERS,
                index=point.index,
                pos=pos,
                text=f"entry {point.index} follows another entry here",
            )
        return self._damaged(point, pos, reason)

    def _damaged(self, point: Point, pos: int, reason: str) -> Missing:
        size = self._known().data_file_bytes
        where = f"{self._directory}/data/{file_name(pos - pos % size)}, byte {pos % size}"
        return Missing(
            why=Why.DAMAGED,
            index=point.index,
            pos=pos,
            text=f"entry {point.index} is damaged here too ({where}: {reason})",
        )

    def _gone(self, point: Point, pos: int) -> Missing:
        """Report a missing file: trimmed in the meantime, or lost."""
        self._refresh()
        if pos < self._begin.pos:
            return Missing(
                why=Why.TRIMMED,
                index=point.index,
                pos=point.pos,
                text=f"the log begins here with entry {self._begin.index}",
            )
        return self._damaged(point, pos, "the file is missing")

    def _bytes(self, kind: str, file_bytes: int, offset: int, length: int) -> bytes | None:
        inside = offset % file_bytes
        path = f"{self._directory}/{kind}/{file_name(offset - inside)}"
        if self._open is None or self._open[0] != path:
            self.close()
            try:
                self._open = path, self._disk.open(path)
            except FileNotFoundError:
                return None
        elif not self._disk.exists(path):
            # Trimmed, or recreated by a repair, while it was held open.
            self.close()
            return None
        return self._open[1].pread(inside, length)


def _begins_entry(data: bytes | memoryview, index: int, pos: int) -> bool:
    if len(data) < HEADER_BYTES:
        return False
    magic, size, its_index, _, its_pos, _, _, _, body_size = ENTRY_HEAD.unpack_from(data)
    return bool(
        magic == ENTRY_MAGIC
        and its_index == index
        and its_pos == pos
        and size == body_size + HEADER_BYTES >= ENTRY_MIN_BYTES
    )


def _whole(data: memoryview, limit: int) -> tuple[int, int]:
    """How many bytes of `data` are whole entries of one term, according to their size fields, none
    of which begins at or behind `limit`; and that term."""
    unpack, end = _SIZE_INDEX_TERM.unpack_from, len(data)
    at, term = 0, -1
    while at < limit and at + ENTRY_MIN_BYTES <= end:
        size, _, its_term = unpack(data, at + 4)
        if size < ENTRY_MIN_BYTES or at + size > end or (at and its_term != term):
            break
        term = its_term
        at += size
    return at, term
