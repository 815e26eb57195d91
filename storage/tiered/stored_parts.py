"""Verified parts of stored log files and of their index parts: ranges of bytes, heads and rows,
fetched once for all who need them.

Every byte that leaves this module belongs to a chunk whose SHA-256 is part of the digest that the
file's manifest names. Rows of index parts are claims: who uses them compares the entries. If the
store lacks an index part or holds a wrong one, it is made from the log file and stored again.

Methods block and belong on threads that nothing else waits for. They raise StoreFailure if the
store is away, WrongObject, OSError.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future

import numpy as np
from numpy.typing import NDArray

from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.file_digest import CHUNK_BYTES
from ledgermq.storage.tiered import index_part, manifests
from ledgermq.storage.tiered.index_part import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    ROW_BYTES,
    IndexHead,
    IndexPart,
    WrongEntries,
)
from ledgermq.storage.tiered.manifests import FileManifest
from ledgermq.storage.tiered.ports import Events, ObjectMissing, ObjectStore, StoreFailure
from ledgermq.storage.tiered.range_cache import RangeCache
from ledgermq.storage.tiered.transfer import WrongObject, pieces

RANGE_CHUNKS = 4
RANGE_BYTES = RANGE_CHUNKS * CHUNK_BYTES
"""The part of an object that one request fetches."""
AHEAD = 2
"""How many ranges behind the one that a sequential reader needs are fetched before it asks for
them."""
HEADS_MAX = 64
"""Heads of index parts in memory; one of a file of 1 GiB takes some 100 KB, and 200 bytes for each
queue."""
STREAMS_MAX = 64
"""The sequential readers that are told apart."""


class Ranges:
    """Fetches ranges of objects once for all who need them at a time, keeps them in the cache, and
    reads ahead. Any thread."""

    def __init__(self, store: ObjectStore, cache: RangeCache, ahead: Executor) -> None:
        self.store = store
        self.cache = cache
        self._ahead = ahead
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[bytes]] = {}

    def get(self, key: str, fetch: Callable[[], bytes]) -> bytes:
        """The range of a key. `fetch` returns verified bytes; what it raises is raised to all who
        wait for the range."""
        cached = self.cache.get(key)
        if cached is not None:
            return cached
        with self._lock:
            future = self._under_way.get(key)
            mine = future is None
            if future is None:
                future = self._under_way[key] = Future()
        if not mine:
            return future.result()
        try:
            data = fetch()
            self.cache.put(key, data)
            future.set_result(data)
            return data
        except BaseException as error:
            future.set_exception(error)
            # Nobody else may be waiting; the exception is raised here in any case.
            future.exception()
            raise
        finally:
            with self._lock:
                del self._under_way[key]

    def ahead(self, key: str, fetch: Callable[[], bytes]) -> None:
        """Fetch a range in the background, unless it is here or on its way. Its errors are met
        again by the reader who needs it."""
        with self._lock:
            if key in self._under_way or len(self._under_way) >= 2 * AHEAD:
                return
        if key not in self.cache:
            self._ahead.submit(self._try, key, fetch)

    def _try(self, key: str, fetch: Callable[[], bytes]) -> None:
        try:
            self.get(key, fetch)
        except (StoreFailure, WrongObject, OSError):
            return


class StoredParts:
    """Parts of the stored files of one log, whose objects lie in the folder `where`."""

    def __init__(self, ranges: Ranges, where: str, events: Events) -> None:
        self._ranges = ranges
        self._store = ranges.store
        self._where = where
        self._events = events
        self._heads: OrderedDict[str, IndexHead] = OrderedDict()
        self._lock = threading.Lock()
        self._streams: OrderedDict[tuple[int, int], None] = OrderedDict()
        """(base, range) that sequential readers need next."""

    def read(self, files: Sequence[FileManifest], at: int, pos: int, length: int) -> bytes:
        """Bytes of the log at a position, all of them in the file `at` of `files`, which follow
        each other. If a reader goes through the log, what it will need next is fetched in the
        background."""
        file = files[at]
        parts: list[memoryview] = []
        begin, end = pos - file.base, pos - file.base + length
        while begin < end:
            number = begin // RANGE_BYTES
            self._read_ahead(files, at, number)
            data = self._ranges.get(*self._fetching(file, number))
            inside = begin - number * RANGE_BYTES
            parts.append(memoryview(data)[inside : inside + end - begin])
            begin = (number + 1) * RANGE_BYTES
        return b"".join(parts)

    def _fetching(self, file: FileManifest, number: int) -> tuple[str, Callable[[], bytes]]:
        key = manifests.object_key(self._where, file.base, file.sha256)

        def fetch() -> bytes:
            head = self.head(file)
            offset = number * RANGE_BYTES
            data = self._store.read(key, offset, min(RANGE_BYTES, file.size - offset))
            self._events.fetched(len(data))
            for chunk, at in enumerate(range(0, len(data), CHUNK_BYTES), number * RANGE_CHUNKS):
                if hashlib.sha256(memoryview(data)[at : at + CHUNK_BYTES]).digest() != head.chunk(
                    chunk
                ):
                    raise self.wrong(
                        f"{self._store.place}/{key} does not have its digest at byte {offset + at}"
                    )
            return data

        return f"{key}/{number}", fetch

    def _read_ahead(self, files: Sequence[FileManifest], at: int, number: int) -> None:
        first, *behind = self._from(files, at, number)
        with self._lock:
            sequential = self._streams.pop((files[first[0]].base, first[1]), True) is None
            if behind:
                self._streams[files[behind[0][0]].base, behind[0][1]] = None
                if len(self._streams) > STREAMS_MAX:
                    self._streams.popitem(last=False)
        for place, range_ in behind if sequential else ():
            self._ranges.ahead(*self._fetching(files[place], range_))

    @staticmethod
    def _from(files: Sequence[FileManifest], at: int, number: int) -> list[tuple[int, int]]:
        """(file, range) of this range and of the next AHEAD ones, as far as there are any."""
        per_file = -(-files[at].size // RANGE_BYTES)
        places = [divmod(number + step, per_file) for step in range(AHEAD + 1)]
        return [(at + further, range_) for further, range_ in places if at + further < len(files)]

    def rows(
        self, file: FileManifest, dtype: np.dtype[np.void], row: int, count: int
    ) -> NDArray[np.void]:
        """Rows of an index part from one on: at least one, at most `count`, of one block."""
        number, inside = divmod(row, BLOCK_ROWS)
        data = self._block(file, number)
        return np.frombuffer(
            data, dtype, min(count, len(data) // ROW_BYTES - inside), inside * ROW_BYTES
        )

    def _block(self, file: FileManifest, number: int) -> bytes:
        head, key = self.head(file), index_part.rows_key(self._where, file)

        def fetch() -> bytes:
            try:
                data = self._store.read(key, number * BLOCK_BYTES, head.block_bytes(number))
                self._events.fetched(len(data))
                if hashlib.sha256(data).digest() == head.block(number):
                    return data
                self._events.wrong(f"{self._store.place}/{key} is not what its head names")
            except ObjectMissing:
                # Lost, or its upload was interrupted.
                pass
            part = self._make(file)
            return part.rows[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]

        return self._ranges.get(f"{key}/{number}", fetch)

    def head(self, file: FileManifest) -> IndexHead:
        """The head of the index part of a file."""
        with self._lock:
            head = self._heads.get(file.sha256)
            if head is not None:
                self._heads.move_to_end(file.sha256)
                return head
        key = index_part.head_key(self._where, file)
        heads: list[IndexHead] = []

        def fetch() -> bytes:
            try:
                data = self._store.get(key)
                self._events.fetched(len(data))
                heads.append(index_part.decode_head(data, key, file))
                return data
            except ObjectMissing:
                # The file was stored by a program that made no index parts, or it was lost.
                pass
            except Damaged as damage:
                self._events.wrong(str(damage))
            part = self._make(file)
            heads.append(part.head)
            return index_part.encode_head(part.head)

        data = self._ranges.get(key, fetch)
        head = heads[0] if heads else index_part.decode_head(data, key, file)
        with self._lock:
            self._heads[file.sha256] = head
            if len(self._heads) > HEADS_MAX:
                self._heads.popitem(last=False)
        return head

    def _make(self, file: FileManifest) -> IndexPart:
        """Make the index part from the log file, which is verified on the way, and store it for
        other readers."""
        key = manifests.object_key(self._where, file.base, file.sha256)

        def fetched() -> Iterator[bytes]:
            for piece in pieces(self._store, key, file.size):
                self._events.fetched(len(piece))
                yield piece

        try:
            part = index_part.build(file, fetched())
        except WrongEntries as wrong:
            raise self.wrong(f"{self._store.place}/{key}: {wrong}") from wrong
        for number, block in part.blocks():
            self._ranges.cache.put(f"{index_part.rows_key(self._where, file)}/{number}", block)
        try:
            index_part.put(self._store, self._where, file, part)
        except StoreFailure as error:
            self._events.not_stored(error)
        return part

    def wrong_index(self, file: FileManifest, names: str) -> WrongObject:
        """Report that the index part of a file names what is not there. Returns the error to
        raise."""
        return self.wrong(
            f"{self._store.place}/{index_part.head_key(self._where, file)} names {names}"
        )

    def wrong(self, problem: str) -> WrongObject:
        """Report that the store holds something wrong. Returns the error to raise."""
        self._events.wrong(problem)
        return WrongObject(problem)
