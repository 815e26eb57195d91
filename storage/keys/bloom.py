"""Bloom filters over key hashes (format §14.2): can an index file hold a key with this hash? A
negative answer is certain.

The bits of a key lie in one block of 32 bytes, one bit in each of its eight words, so a stored
filter answers with one small read. The arithmetic and the file live here; `key_index.py` decides
which filter belongs to which index. A filter is derived from hashes alone: losing one costs reads,
never answers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import crc32c
import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.types import I32
from ledgermq.storage.files.ports import Disk, DiskFile

BITS_A_KEY = 12
"""False positive rate of a full filter: 0.6 %; lower while it is not full."""
WORDS = 8
BLOCK_BYTES = 4 * WORDS
_BLOCK_BITS = 8 * BLOCK_BYTES
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SALTS = np.array(
    [
        0x2545F491,
        0x6C8E9CF5,
        0x8F1BBCDD,
        0xA0761D65,
        0xC2B2AE3D,
        0xD6E8FEB9,
        0xE7037ED1,
        0xFF51AFD7,
    ],
    np.uint32,
)
_U32 = np.dtype(">u4")

MAGIC = b"LMKB"
VERSION = 1
_HEADER = struct.Struct(">4siIIII")
HEADER_BYTES = 32
_READ_BYTES = 1 << 20
_ADD_KEYS = 2048


def _places(hashes: I32, blocks: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The block of each hash, and (n, 8) the bit in each of its words."""
    mixed = hashes.astype(np.uint64) * _MIX
    block = ((mixed >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)
    seed = (mixed >> np.uint64(8)).astype(np.uint32)
    return block.astype(np.int64), np.uint32(1) << ((seed[:, None] * _SALTS) >> np.uint32(27))


class Bloom:
    """A filter in memory, made for `capacity` keys."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks = max(1, -(-capacity * BITS_A_KEY // _BLOCK_BITS))
        self._words = np.zeros(self.blocks * WORDS, np.uint32)

    def add(self, hashes: I32) -> None:
        """Add hashes, a few thousand at a time, sorted by block so that each block is fetched from
        memory once."""
        blocks = self._words.reshape(-1, WORDS)
        for first in range(0, len(hashes), _ADD_KEYS):
            block, bits = _places(hashes[first : first + _ADD_KEYS], self.blocks)
            order = np.argsort(block)
            block = block[order]
            starts = np.flatnonzero(np.diff(block, prepend=-1))
            blocks[block[starts]] |= np.bitwise_or.reduceat(bits[order], starts, axis=0)

    def may_have(self, hash_: int) -> bool:
        block, bits = _places(np.array([hash_], np.int32), self.blocks)
        at = int(block[0]) * WORDS
        return bool((self._words[at : at + WORDS] & bits[0] == bits[0]).all())

    def encode(self, units: int) -> bytes:
        """The file's bytes. `units`: the number of units of the index file that the filter
        covers."""
        body = self._words.astype(_U32).tobytes()
        head = _HEADER.pack(MAGIC, VERSION, self.blocks, units, crc32c.crc32c(body), 0)
        header = (
            head + bytes(HEADER_BYTES - len(head) - 4) + int(crc32c.crc32c(head)).to_bytes(4, "big")
        )
        return header + body


class StoredBloom:
    """A filter in its file. `verified` after all of it was read and found intact."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks

    @classmethod
    def verify(
        cls, disk: Disk, path: str, units: int, keep_going: Iterable[None]
    ) -> StoredBloom | None:
        """Read the whole file, one piece per step of `keep_going`. None if it is missing or
        damaged, covers anything but the first `units` units, or was not read to its end."""
        try:
            file = disk.open(path)
        except FileNotFoundError:
            return None
        try:
            header = file.pread(0, HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                return None
            magic, version, blocks, covered, body_crc, _ = _HEADER.unpack_from(header)
            sound = crc32c.crc32c(header[: _HEADER.size]) == int.from_bytes(header[-4:], "big")
            if (
                not sound
                or (magic, version, covered) != (MAGIC, VERSION, units)
                or file.size != HEADER_BYTES + blocks * BLOCK_BYTES
            ):
                return None
            at, crc = HEADER_BYTES, 0
            for _ in keep_going:
                piece = file.pread(at, _READ_BYTES)
                if not piece:
                    return cls(blocks) if crc == body_crc else None
                crc = crc32c.crc32c(piece, crc)
                at += len(piece)
            return None
        finally:
            file.close()

    def may_have(self, file: DiskFile, hash_: int) -> bool:
        """Look up a hash with one read of one block."""
        block, bits = _places(np.array([hash_], np.int32), self._blocks)
        words = np.frombuffer(
            file.pread(HEADER_BYTES + int(block[0]) * BLOCK_BYTES, BLOCK_BYTES), _U32
        )
        return len(words) < WORDS or bool((words & bits[0] == bits[0]).all())
