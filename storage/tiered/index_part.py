"""The index part of a stored log file (format §21): where its messages lie, by queue offset and by
key, and what its chunks must hash to.

An index part is a function of its log file. It consists of a head, which is read whole, and rows,
of which a reader fetches single blocks. The head repeats the digests of the file's chunks, from
which the digest of the file is computed (format §11): so a reader can prove any range of the file
against the digest that a majority sealed without reading the rest. The rows are claims; a reader
compares each entry that it finds through them. `IndexBuilder` makes an index part while a file
passes through in pieces, and verifies every entry on the way.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.key_columns import key_columns
from ledgermq.proto.entries.layout import ENTRY_MAGIC, ENTRY_MIN_BYTES, HEADER_BYTES, record_columns
from ledgermq.proto.types import Range
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, StorageError, UnknownFormat
from ledgermq.storage.files.file_digest import CHUNK_BYTES
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import ObjectStore

VERSION = 1
ROW_BYTES = 12
BLOCK_ROWS = 4096
BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES
UNIT = np.dtype([("pos", ">i8"), ("size", ">i4")])
"""One message: position and size of its entry."""
KEY = np.dtype([("pos", ">i8"), ("hash", ">i4")])
"""One key: position of its entry, and its hash (format §14)."""
_HEAD = struct.Struct(">iiqq")
_STORE_MS_AT = HEADER_BYTES + 56
_HASH_BYTES = 32

QueueKey = tuple[str, int]


class WrongEntries(StorageError):
    """The bytes of a log file are not the entries that its manifest names."""


@dataclass(frozen=True, slots=True)
class QueueRows:
    """The messages of one queue in the file: offsets first … last, described by the rows from `row`
    on."""

    first: int
    last: int
    row: int


@dataclass(frozen=True)
class IndexHead:
    """The head of an index part. `marks`: per chunk of the file, index, position and store time of
    the first entry that begins in it or behind it; missing behind the last entry. `rows`, `keys`:
    how many rows describe messages, and keys behind them."""

    sha256: str
    chunks: bytes
    marks: tuple[tuple[int, int, int], ...]
    queues: dict[QueueKey, QueueRows]
    rows: int
    keys: int
    blocks: bytes

    def chunk(self, number: int) -> bytes:
        """The SHA-256 of a chunk of the log file."""
        return self.chunks[number * _HASH_BYTES : (number + 1) * _HASH_BYTES]

    def block(self, number: int) -> bytes:
        """The SHA-256 of a block of rows."""
        return self.blocks[number * _HASH_BYTES : (number + 1) * _HASH_BYTES]

    def block_bytes(self, number: int) -> int:
        return min(BLOCK_BYTES, (self.rows + self.keys) * ROW_BYTES - number * BLOCK_BYTES)

    @cached_property
    def mark_indexes(self) -> list[int]:
        return [index for index, _, _ in self.marks]


def head_key(where: str, file: FileManifest) -> str:
    return f"{where}/{file_name(file.base)}-{file.sha256}.index"


def rows_key(where: str, file: FileManifest) -> str:
    return f"{where}/{file_name(file.base)}-{file.sha256}.rows"


def encode_head(head: IndexHead) -> bytes:
    queues = [
        [topic, queue, rows.first, rows.last, rows.row]
        for (topic, queue), rows in head.queues.items()
    ]
    fields = {
        "sha256": head.sha256,
        "chunks": head.chunks.hex(),
        "marks": head.marks,
        "queues": queues,
    }
    return sealed_json.encode(
        {"v": VERSION, **fields, "rows": head.rows, "keys": head.keys, "blocks": head.blocks.hex()}
    )


def decode_head(data: bytes, key: str, file: FileManifest) -> IndexHead:
    """The head of the index part of `file`; its chunks are proved to be those of the file's digest.
    Raises Damaged, UnknownFormat."""
    value = sealed_json.decode(data, key)
    if value.get("v") != VERSION:
        raise UnknownFormat(
            f"{key} was written by another version of LedgerMQ: use the program that wrote it"
        )
    try:
        queues = {
            (topic, queue): QueueRows(first, last, row)
            for topic, queue, first, last, row in value["queues"]
        }
        marks = tuple([(index, pos, store_ms) for index, pos, store_ms in value["marks"]])
        chunks, blocks = bytes.fromhex(value["chunks"]), bytes.fromhex(value["blocks"])
        head = IndexHead(
            sha256=value["sha256"],
            chunks=chunks,
            marks=marks,
            queues=queues,
            rows=int(value["rows"]),
            keys=int(value["keys"]),
            blocks=blocks,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{key} lacks fields, or has unknown ones ({error})") from error
    if hashlib.sha256(chunks).hexdigest() != file.sha256 or head.sha256 != file.sha256:
        raise Damaged(f"{key} belongs to another file than the one with the digest {file.sha256}")
    if len(blocks) != _HASH_BYTES * -(-(head.rows + head.keys) // BLOCK_ROWS) or not marks:
        raise Damaged(f"{key} has another number of rows than of digests for them")
    return head


@dataclass(frozen=True, slots=True)
class IndexPart:
    """A whole index part: the head, and the rows as one object."""

    head: IndexHead
    rows: bytes

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        for number, at in enumerate(range(0, len(self.rows), BLOCK_BYTES)):
            yield number, self.rows[at : at + BLOCK_BYTES]


def put(store: ObjectStore, where: str, file: FileManifest, part: IndexPart) -> None:
    """Store an index part: the rows first, so that a head always has its rows. Raises
    StoreFailure."""
    if part.rows:
        store.put_parts(rows_key(where, file), iter([part.rows]))
    store.put(head_key(where, file), encode_head(part.head))


class IndexBuilder:
    """Makes the index part of a file from its bytes, which come in pieces of whole chunks, but for
    the last one."""

    def __init__(self, file: FileManifest) -> None:
        self._file = file
        self._rest = b""
        self._pos, self._index, self._term, self._chain = (
            file.base,
            file.first,
            file.term,
            file.chain,
        )
        self._chunks = bytearray()
        self._marks: list[tuple[int, int, int]] = []
        self._units: dict[QueueKey, tuple[int, list[NDArray[Any]]]] = {}
        """Queue → its first offset, and its rows."""
        self._counts: dict[QueueKey, int] = {}
        self._keys: list[NDArray[Any]] = []

    def add(self, piece: bytes) -> None:
        """Continue with the next bytes of the file. Raises WrongEntries."""
        for at in range(0, len(piece), CHUNK_BYTES):
            self._chunks += hashlib.sha256(memoryview(piece)[at : at + CHUNK_BYTES]).digest()
        room = self._file.end - self._pos - len(self._rest)
        data = self._rest + piece[:room] if room > 0 else self._rest
        at = 0
        for low, high, term in self._runs(data):
            self._add_range(memoryview(data)[low:high], term)
            at = high
        self._rest = data[at:]

    def _runs(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """(begin, end, term) of the whole entries at the start of `data`, cut where the term
        changes."""
        at = low = 0
        run_term = -1
        while at + HEADER_BYTES <= len(data):
            magic, size, _, term = _HEAD.unpack_from(data, at)
            if magic != ENTRY_MAGIC or size < ENTRY_MIN_BYTES:
                raise self._wrong(f"no entry begins at {self._pos + at}")
            if at + size > len(data):
                break
            if term != run_term:
                if at > low:
                    yield low, at, run_term
                low, run_term = at, term
            at += size
        if at > low:
            yield low, at, run_term

    def _add_range(self, data: memoryview, term: int) -> None:
        if term < self._term:
            raise self._wrong(f"entry {self._index} has a lower term than the one before it")
        try:
            entries = verify_range(data, self._index, term, self._pos, self._chain)
        except BadEntry as bad:
            raise self._wrong(str(bad)) from bad
        self._mark(entries)
        columns = record_columns(entries)
        positions = columns.physical_offsets - HEADER_BYTES
        sizes = columns.sizes + np.int32(HEADER_BYTES)
        for number, topic in enumerate(columns.topics):
            of_topic = np.flatnonzero(columns.topic_of == number)
            for queue in np.unique(columns.queues[of_topic]).tolist():
                chosen = of_topic[columns.queues[of_topic] == queue]
                self._add_units(
                    (topic, queue), columns.queue_offsets[chosen], positions[chosen], sizes[chosen]
                )
        keys = key_columns(entries)
        if len(keys):
            rows = np.empty(len(keys), KEY)
            rows["pos"], rows["hash"] = keys.physical_offsets - HEADER_BYTES, keys.hashes
            self._keys.append(rows)
        self._pos, self._index = self._pos + len(data), entries.last_index + 1
        self._term, self._chain = term, entries.last_chain

    def _mark(self, entries: Range) -> None:
        """Note the entry for every chunk that begins at or before it and has none yet."""
        while True:
            wanted = self._file.base + len(self._marks) * CHUNK_BYTES
            at = int(np.searchsorted(entries.starts, wanted - entries.pos))
            if at == len(entries.starts):
                return
            start = int(entries.starts[at])
            store_ms = int.from_bytes(
                entries.data[start + _STORE_MS_AT : start + _STORE_MS_AT + 8], "big"
            )
            self._marks.append((entries.first_index + at, entries.pos + start, store_ms))

    def _add_units(
        self, key: QueueKey, offsets: NDArray[Any], positions: NDArray[Any], sizes: NDArray[Any]
    ) -> None:
        first, parts = self._units.setdefault(key, (int(offsets[0]), []))
        expected = first + self._counts.get(key, 0)
        if not bool((offsets == np.arange(expected, expected + len(offsets))).all()):
            raise self._wrong(
                f"the offsets of queue {key[1]} of topic {key[0]} have a gap at {expected}"
            )
        rows = np.empty(len(offsets), UNIT)
        rows["pos"], rows["size"] = positions, sizes
        parts.append(rows)
        self._counts[key] = expected - first + len(offsets)

    def finish(self) -> IndexPart:
        """The index part, after the last byte of the file. Raises WrongEntries if the file is not
        the one of its manifest."""
        file = self._file
        end = (
            self._pos,
            self._index - 1,
            self._term,
            self._chain,
            hashlib.sha256(self._chunks).hexdigest(),
        )
        if end != (file.end, file.last, file.last_term, file.last_chain, file.sha256) or self._rest:
            raise self._wrong(f"the entries end with {self._index - 1} at {self._pos}")
        queues: dict[QueueKey, QueueRows] = {}
        row = 0
        rows: list[bytes] = []
        for key, (first, parts) in sorted(self._units.items()):
            queues[key] = QueueRows(first, first + self._counts[key] - 1, row)
            row += self._counts[key]
            rows += [part.tobytes() for part in parts]
        # Joining arrays changes their byte order to that of this machine.
        keys = np.concatenate(self._keys) if self._keys else np.empty(0, KEY)
        keys = keys[np.lexsort((keys["pos"], keys["hash"]))].astype(KEY)
        data = b"".join((*rows, keys.tobytes()))
        blocks = b"".join(
            [
                hashlib.sha256(data[at : at + BLOCK_BYTES]).digest()
                for at in range(0, len(data), BLOCK_BYTES)
            ]
        )
        return IndexPart(
            IndexHead(
                sha256=file.sha256,
                chunks=bytes(self._chunks),
                marks=tuple(self._marks),
                queues=queues,
                rows=row,
                keys=len(keys),
                blocks=blocks,
            ),
            data,
        )

    def _wrong(self, difference: str) -> WrongEntries:
        return WrongEntries(
            f"the log file at {self._file.base} is not what its manifest names: {difference}"
        )


def build(file: FileManifest, pieces: Sequence[bytes] | Iterator[bytes]) -> IndexPart:
    """The index part of a file that comes in pieces. Raises WrongEntries, and what the iterator
    raises."""
    builder = IndexBuilder(file)
    for piece in pieces:
        builder.add(piece)
    return builder.finish()
