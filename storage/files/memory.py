"""The store's system calls about memory: maps of files, anonymous buffers, populating and locking
pages.

Only calls live here: `real_disk.py`, `mapped_files.py` and `log_writer.py` decide what is mapped,
when and for how long. Populating and locking go through the C library, because these calls take
milliseconds for a large file and must not hold the interpreter lock. Both report a page without
backing as an `OSError`, where an access would be a SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import numpy as np

MADV_WILLNEED = 3
MADV_POPULATE_READ = 22
"""Since Linux 5.14. Fills the page tables; pages stay clean, so populating a file never makes it
dirty."""

LOCK_REMEDY = (
    "raise the limit on locked memory (ulimit -l; LimitMEMLOCK= of a systemd unit; --ulimit memlock"
    " of a container) or give the process CAP_IPC_LOCK, or set storage.lock_memory to false; the"
    " node continues without it"
)

_libc = ctypes.CDLL(None, use_errno=True)
for _name, _arguments in (("madvise", (ctypes.c_int,)), ("mlock", ()), ("munlock", ())):
    getattr(_libc, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t, *_arguments)


def map_file(fd: int, size: int, path: str, *, writable: bool) -> mmap.mmap:
    """A shared map of a whole file. Raises OSError, also for a closed file or one shorter than
    `size`."""
    if fd < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
    prot = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    try:
        return mmap.mmap(fd, size, prot=prot, flags=mmap.MAP_SHARED)
    except ValueError as error:
        raise OSError(
            errno.EIO, f"the file is shorter than the {size} bytes it was made with", path
        ) from error


def anonymous(size: int) -> mmap.mmap:
    """A zeroed buffer without a file. Raises OSError."""
    return mmap.mmap(
        -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE
    )


def populate(area: mmap.mmap) -> None:
    """Fault in all of a map. Raises OSError. On a kernel without this call, the pages are only read
    ahead."""
    try:
        _call("madvise", area, MADV_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _call("madvise", area, MADV_WILLNEED)


def lock(area: mmap.mmap) -> None:
    """Lock all of a map in memory until it is unlocked or unmapped. Raises OSError: EPERM, ENOMEM
    or EAGAIN if it is not allowed."""
    _call("mlock", area)


def unlock(area: mmap.mmap) -> None:
    """Unlock a map. Raises OSError."""
    _call("munlock", area)


def _call(name: str, area: mmap.mmap, *arguments: int) -> None:
    # The array prevents the map from being closed during the call.
    pages = np.frombuffer(area, np.uint8)
    if getattr(_libc, name)(pages.ctypes.data, pages.nbytes, *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
