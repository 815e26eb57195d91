"""Comparing bytes of two replicas: where a damaged place differs from an intact one, and how two
histories are related.

Reads only small ranges; decides nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ledgermq.audit.reading.decode import HEADER_BYTES, I64, RECORD_FIXED_BYTES, SECTOR, crc
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.native import KERNEL, Kernel
from ledgermq.audit.reading.trees import EntriesTree

READ_MAX = 64 << 20
LOOK_AHEAD = 64
CHUNK = 1 << 20


def read(path: str, start: int, end: int) -> bytes | None:
    """Bytes start … end − 1 of a file; None if they cannot be read."""
    try:
        with open_file(path) as file:
            return file.pread(end - start, start)
    except OSError:
        return None


def difference(own: bytes, theirs: bytes) -> tuple[int, int] | None:
    """The first and the last (exclusive) place where two byte strings of equal length differ; None
    if they are equal."""
    if own == theirs:
        return None
    places = np.flatnonzero(np.frombuffer(own, np.uint8) != np.frombuffer(theirs, np.uint8))
    return int(places[0]), int(places[-1]) + 1


def cut_by_sector(has: bytes, wants: bytes, place: int) -> bool:
    """Whether the bytes at `place` of a file equal the expected ones except for unwritten sectors:
    they are right up to a sector boundary, or from one on, and zero on the other side."""
    edge = SECTOR - place % SECTOR
    return edge < len(has) and (
        (has[:edge] == wants[:edge] and not any(has[edge:]))
        or (has[edge:] == wants[edge:] and not any(has[:edge]))
    )


def contents(path: str, offsets: I64, sizes: I64, first: int) -> list[int]:
    """The content of entries, independent of their positions: CRCs of body, topic and properties of
    some entries from row `first` on."""
    start = HEADER_BYTES + RECORD_FIXED_BYTES
    crcs = []
    for offset, size in zip(
        offsets[first : first + LOOK_AHEAD].tolist(),
        sizes[first : first + LOOK_AHEAD].tolist(),
        strict=True,
    ):
        data = read(path, offset + start, offset + size) if offset >= 0 else None
        crcs.append(crc(data) if data else -1)
    return crcs


def relation(own: list[int], theirs: list[int]) -> str:
    """The rule that is broken by two histories that diverge at their first entry."""
    if not own or not theirs or own[0] == theirs[0] or -1 in (own[0], theirs[0]):
        return "replica.divergence"
    if own[0] in theirs[1:] and theirs[0] in own[1:]:
        return "replica.reordered"
    if len(theirs) > 1 and own[0] == theirs[1]:
        return "replica.missing"
    if len(own) > 1 and own[1] == theirs[0]:
        return "replica.extra"
    return "replica.divergence"


def digest(path: str, limit: int) -> str:
    """SHA-256 over the SHA-256s of the 1 MiB chunks of the first `limit` bytes of a file."""
    whole = hashlib.sha256()
    with open_file(path) as file:
        for offset in range(0, limit, CHUNK):
            whole.update(hashlib.sha256(file.pread(min(CHUNK, limit - offset), offset)).digest())
    return whole.hexdigest()


def entries_root(path: str, end: int) -> str:
    """The root over the entries in the first `end` bytes of a file, in hexadecimal; empty if these
    bytes are not exactly entries. Raises OSError."""
    tree = EntriesTree(KERNEL)
    with open_file(path) as file:
        for offset in range(0, end, 4 * CHUNK):
            tree.add(file.pread(min(4 * CHUNK, end - offset), offset))
    return tree.root(end)


class Digests:
    """Digest and tree of a log file that passes through from front to back, in pieces of whole
    chunks but for the last."""

    def __init__(self, kernel: Kernel | None) -> None:
        self._whole = hashlib.sha256()
        self._tree = EntriesTree(kernel)

    def add(self, piece: bytes) -> None:
        for at in range(0, len(piece), CHUNK):
            self._whole.update(hashlib.sha256(memoryview(piece)[at : at + CHUNK]).digest())
        self._tree.add(piece)

    def found(self, end: int) -> tuple[str, str]:
        """What `digest` of the whole file and `entries_root` of its first `end` bytes give."""
        return self._whole.hexdigest(), self._tree.root(end)
