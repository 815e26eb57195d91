"""A B+tree of 4 KiB pages in one file: the index of the journal-plus-index store that
`storage_modes` compares with.

Keys are 16 bytes, values unsigned 64-bit integers. Changed pages stay in memory until `checkpoint`
writes them, first to a recovery file, which is synced, then to their places: a torn page write is
repaired from it. Changes after the last checkpoint are replayed from the journal.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path

import crc32c

PAGE_BYTES = 4096
KEY_BYTES = 16
ENTRIES_MAX = (PAGE_BYTES - 3) // (KEY_BYTES + 8)
CACHED_PAGES = 10_000
_HEAD = struct.Struct(">BH")
_META = struct.Struct(">QQQ")
_CRC = struct.Struct(">II")


class Page:
    """A leaf (keys and values) or a branch: `keys[i]` is the lowest key below the child
    `values[i]`; the first counts as the lowest of all."""

    __slots__ = ("keys", "leaf", "values")

    def __init__(self, leaf: bool, keys: list[bytes], values: list[int]) -> None:
        self.leaf, self.keys, self.values = leaf, keys, values

    def encode(self) -> bytes:
        numbers = struct.pack(f">{len(self.values)}Q", *self.values)
        return (_HEAD.pack(self.leaf, len(self.keys)) + b"".join(self.keys) + numbers).ljust(
            PAGE_BYTES, b"\0"
        )

    @classmethod
    def decode(cls, data: bytes) -> Page:
        leaf, count = _HEAD.unpack_from(data)
        end = _HEAD.size + count * KEY_BYTES
        keys = [data[at : at + KEY_BYTES] for at in range(_HEAD.size, end, KEY_BYTES)]
        return cls(bool(leaf), keys, list(struct.unpack_from(f">{count}Q", data, end)))


class PageTree:
    """The tree in `directory`. `position` is the owner's position at the last checkpoint."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / "pages", os.O_RDWR | os.O_CREAT, 0o644)
        self._redo = os.open(directory / "redo", os.O_RDWR | os.O_CREAT, 0o644)
        self._pages: dict[int, Page] = {}
        self.dirty: set[int] = set()
        self._recover()
        self._root, self._count, self.position = _META.unpack(
            os.pread(self._file, PAGE_BYTES, 0)[: _META.size].ljust(_META.size, b"\0")
        )
        if not self._root:
            self._root, self._count = 1, 2
            self._pages[1] = Page(True, [], [])
            self.dirty.add(1)

    def put(self, key: bytes, value: int) -> None:
        """Insert or replace."""
        path: list[tuple[int, int]] = []
        number = self._root
        page = self._page(number)
        while not page.leaf:
            at = max(0, bisect_right(page.keys, key) - 1)
            path.append((number, at))
            number = page.values[at]
            page = self._page(number)
        at = bisect_left(page.keys, key)
        self.dirty.add(number)
        if at < len(page.keys) and page.keys[at] == key:
            page.values[at] = value
            return
        page.keys.insert(at, key)
        page.values.insert(at, value)
        while len(page.keys) > ENTRIES_MAX:
            number, page = self._split(number, page, path)

    def _split(self, number: int, page: Page, path: list[tuple[int, int]]) -> tuple[int, Page]:
        """Move a part of a full page to a new one behind it; when the tree grows at the end, the
        old page stays full."""
        cut = ENTRIES_MAX if self._is_last(path) else len(page.keys) // 2
        new = Page(page.leaf, page.keys[cut:], page.values[cut:])
        del page.keys[cut:], page.values[cut:]
        self._pages[self._count] = new
        self.dirty.update((number, self._count))
        if not path:
            self._pages[self._count + 1] = Page(
                False, [page.keys[0], new.keys[0]], [number, self._count]
            )
            self._root = self._count + 1
            self.dirty.add(self._root)
            self._count += 2
            return self._root, self._pages[self._root]
        above, at = path.pop()
        parent = self._page(above)
        parent.keys.insert(at + 1, new.keys[0])
        parent.values.insert(at + 1, self._count)
        self.dirty.add(above)
        self._count += 1
        return above, parent

    def _is_last(self, path: list[tuple[int, int]]) -> bool:
        return all(at == len(self._page(number).keys) - 1 for number, at in path)

    def scan(self, first: bytes, stop: bytes) -> Iterator[int]:
        """The values of the keys in [first, stop), in order."""
        yield from self._scan(self._root, first, stop)

    def _scan(self, number: int, first: bytes, stop: bytes) -> Iterator[int]:
        page = self._page(number)
        if page.leaf:
            yield from page.values[bisect_left(page.keys, first) : bisect_left(page.keys, stop)]
            return
        low, high = max(0, bisect_right(page.keys, first) - 1), bisect_left(page.keys, stop)
        for child in page.values[low : max(high, low + 1)]:
            yield from self._scan(child, first, stop)

    def checkpoint(self, position: int) -> None:
        """Make every change and `position` durable together."""
        images = [(number, self._pages[number].encode()) for number in sorted(self.dirty)]
        images.append((0, _META.pack(self._root, self._count, position).ljust(PAGE_BYTES, b"\0")))
        body = b"".join(struct.pack(">Q", number) + image for number, image in images)
        os.pwrite(self._redo, _CRC.pack(len(body), crc32c.crc32c(body)) + body, 0)
        os.fdatasync(self._redo)
        self._write(images)
        self.position = position
        self.dirty.clear()
        for number in list(self._pages)[: max(0, len(self._pages) - CACHED_PAGES)]:
            del self._pages[number]

    def close(self) -> None:
        os.close(self._file)
        os.close(self._redo)

    def _write(self, images: list[tuple[int, bytes]]) -> None:
        for number, image in images:
            os.pwrite(self._file, image, number * PAGE_BYTES)
        os.fdatasync(self._file)

    def _recover(self) -> None:
        """Write the pages of the last checkpoint again, because some may not have reached the
        file."""
        head = os.pread(self._redo, _CRC.size, 0)
        if len(head) < _CRC.size:
            return
        length, checksum = _CRC.unpack(head)
        body = os.pread(self._redo, length, _CRC.size)
        if len(body) == length and crc32c.crc32c(body) == checksum:
            step = 8 + PAGE_BYTES
            self._write(
                [
                    (int.from_bytes(body[at : at + 8], "big"), body[at + 8 : at + step])
                    for at in range(0, length, step)
                ]
            )

    def _page(self, number: int) -> Page:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = Page.decode(
                os.pread(self._file, PAGE_BYTES, number * PAGE_BYTES)
            )
        return page
