"""Moves single log files between a disk and an object store, and verifies them there by the digest
of format §11.

`step` is called with the length of every piece, on the caller's thread or on one of the library's;
an exception from it ends the work and is raised as it is. Nothing here retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.files.file_digest import CHUNK_BYTES, FileDigest, read_chunks
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.tiered.ports import PART_BYTES, ObjectMissing, ObjectStore

Step = Callable[[int], None]
_WHOLE_PART = PART_BYTES // CHUNK_BYTES * CHUNK_BYTES
assert _WHOLE_PART == PART_BYTES, "a part holds whole chunks of the digest"


class WrongObject(StorageError):
    """The object is missing, shorter, or has other bytes than the file it stands for."""


class WrongFile(StorageError):
    """The local file does not have the digest that a majority sealed."""


def upload(store: ObjectStore, key: str, disk: Disk, path: str, sha256: str, step: Step) -> None:
    """Write the file `path` under `key`. Raises WrongFile if it does not have the digest, and then
    leaves no object; StoreFailure, OSError."""

    def chunks() -> Iterator[bytes]:
        summed = FileDigest()
        before = b""
        for chunk in read_chunks(disk, path):
            summed.add(chunk)
            step(len(chunk))
            if before:
                yield before
            before = chunk
        # The last chunk goes only if the whole file is right: an upload that lacks it never becomes
        # an object.
        if summed.hexdigest() != sha256:
            raise WrongFile(f"{path} does not have the digest that a majority sealed")
        yield before

    store.put_parts(key, chunks())


def pieces(store: ObjectStore, key: str, size: int) -> Iterator[bytes]:
    """The content of an object of `size` bytes in parts, the length of each as read. Raises
    StoreFailure."""
    for offset in range(0, size, PART_BYTES):
        yield store.read(key, offset, min(PART_BYTES, size - offset))


def verify(
    store: ObjectStore,
    key: str,
    size: int,
    sha256: str,
    step: Step,
    see: Callable[[bytes], None] = lambda piece: None,
) -> None:
    """Read the whole object and compare its digest; `see` gets every piece. Raises WrongObject;
    StoreFailure, after which nothing is known about the object; and what `see` raises."""
    summed = FileDigest()
    try:
        for piece in pieces(store, key, size):
            summed.add(piece)
            see(piece)
            step(len(piece))
    except ObjectMissing as missing:
        raise WrongObject(str(missing)) from missing
    if summed.hexdigest() != sha256:
        raise WrongObject(f"{store.place}/{key} has the digest {summed.hexdigest()}")
