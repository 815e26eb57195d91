"""The digest of a log file, by which replicas compare it: SHA-256 over the SHA-256 digests of its
chunks of 1 MiB (format §11).

The same pass can also compute the root of the tree over the file's entries, which a seal records
from feature level 2 on.

Reads with `pread` through its own handle, so any thread may compute it. The caller paces the work,
being called after every chunk, and decides whether the file is complete and committed.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator

from ledgermq.proto.proofs.entries_tree import EntriesTree
from ledgermq.storage.files.ports import Disk

CHUNK_BYTES = 1 << 20


class FileDigest:
    """The digest of a file that passes through in pieces; every piece but the last consists of
    whole chunks."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()

    def add(self, piece: bytes) -> None:
        for at in range(0, len(piece), CHUNK_BYTES):
            self._whole.update(hashlib.sha256(memoryview(piece)[at : at + CHUNK_BYTES]).digest())

    def hexdigest(self) -> str:
        return self._whole.hexdigest()


def read_chunks(disk: Disk, path: str, *, from_medium: bool = False) -> Iterator[bytes]:
    """The chunks of a whole file, read through its own handle. `from_medium`: bypass the page cache
    as far as the system allows. Raises OSError."""
    file = disk.open(path)
    try:
        for offset in range(0, file.size, CHUNK_BYTES):
            length = min(CHUNK_BYTES, file.size - offset)
            if from_medium:
                file.forget(offset, length)
            chunk = file.pread(offset, length)
            if len(chunk) != length:
                raise OSError(
                    errno.EIO, f"{path} ends at byte {offset + len(chunk)} of {file.size}", path
                )
            yield chunk
    finally:
        file.close()


def file_digest(disk: Disk, path: str, step: Callable[[int], None]) -> str:
    """The digest in hexadecimal. `step` is called with the length of every chunk read; an exception
    from it ends the work. Raises OSError."""
    return digest_and_root(disk, path, None, step)[0]


def digest_and_root(
    disk: Disk, path: str, end: int | None, step: Callable[[int], None]
) -> tuple[str, str]:
    """The digest, and the root of the entries tree, both in hexadecimal. `end`: where the last
    entry ends in the file; None: no root is wanted. The root is empty if none is wanted, or if the
    bytes before `end` are no entries. `step` and errors as in `file_digest`."""
    whole, offset = FileDigest(), 0
    tree = None if end is None else EntriesTree()
    for chunk in read_chunks(disk, path):
        whole.add(chunk)
        if tree is not None and end is not None and offset < end:
            try:
                tree.add(chunk if offset + len(chunk) <= end else chunk[: end - offset])
            except ValueError:
                # The file is damaged, which its digest shows.
                tree = None
        offset += len(chunk)
        step(len(chunk))
    return whole.hexdigest(), _root_of(tree)


def _root_of(tree: EntriesTree | None) -> str:
    try:
        return "" if tree is None else tree.root().hex()
    except ValueError:
        return ""
