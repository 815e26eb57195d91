"""The digest of a log file, by which replicas compare it: SHA-256 over the SHA-256 digests of its chunks of 1 MiB (format §11).

Reads with `pread` through its own handle, so any thread may compute it. The caller paces the work, being called after every chunk, and
decides whether the file is complete and committed.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator

from ledgermq.storage.disk import Disk

CHUNK_BYTES = 1 << 20


def read_chunks(disk: Disk, path: str, *, from_medium: bool = False) -> Iterator[bytes]:
    """The chunks of a whole file, read through its own handle. `from_medium`: bypass the page cache as far as the system allows. Raises
    OSError."""
    file = disk.open(path)
    try:
        for offset in range(0, file.size, CHUNK_BYTES):
            length = min(CHUNK_BYTES, file.size - offset)
            if from_medium:
                file.forget(offset, length)
            chunk = file.pread(offset, length)
            if len(chunk) != length:
                raise OSError(errno.EIO, f"{path} ends at byte {offset + len(chunk)} of {file.size}", path)
            yield chunk
    finally:
        file.close()


def file_digest(disk: Disk, path: str, step: Callable[[int], None]) -> str:
    """The digest in hexadecimal. `step` is called with the length of every chunk read; an exception from it ends the work. Raises
    OSError."""
    whole = hashlib.sha256()
    for chunk in read_chunks(disk, path):
        whole.update(hashlib.sha256(chunk).digest())
        step(len(chunk))
    return whole.hexdigest()
