"""The disk port: the only way any code of LedgerMQ touches a file of a node directory.

The protocol and its contract live here; `real_disk.py` implements it over POSIX,
`ledgermq.sim.machine.disk` over pages that a crash can lose. One conformance suite
(`tests/disk_conformance.py`) runs on both. This module does not know what the bytes mean.

Durability contract: bytes written with `pwrite` or `store` survive a power cut only after `sync` of
that file has returned; a created, renamed or removed name only after `sync_dir` of its directory.
Any subset of unsynced 4096-byte pages may survive, in any order and whichever of the two calls
wrote them. Every failure is an `OSError`, except that a `store` (or a read through a view) that
finds no page behind the map ends the process by SIGBUS. After the first `OSError` from `sync` the
caller must never sync again: it fences (I9).

A file has at most one map that this object uses. A view pins it: `swap_out` keeps a map that a view
still uses, and views outlive `close`, `swap_out` and the removal of the name.
"""

from __future__ import annotations

from typing import Protocol

Buffer = bytes | bytearray | memoryview
PAGE_BYTES = 4096


class DiskFile(Protocol):
    """One open file of fixed length. Reads and writes are positional; there is no cursor."""

    path: str
    size: int

    def pread(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`; fewer only at the end of the file."""
        ...

    def pwrite(self, offset: int, data: Buffer) -> None:
        """Write all of `data` at `offset`, inside the file. Raises OSError (ENOSPC, EIO, …); part
        of the data may have been written then."""
        ...

    def store(self, offset: int, data: Buffer) -> None:
        """As `pwrite`, but through a writable map of the file, whose blocks must be allocated
        (`allocate`)."""
        ...

    def sync(self) -> None:
        """Block until every byte written before the call is on stable storage (fdatasync). Safe to
        call from another thread."""
        ...

    def view(self) -> memoryview:
        """A read-only view of the whole file through a shared map; sees every later write. For
        bytes this process wrote or verified."""
        ...

    def warm(self, *, stores: bool) -> None:
        """Create the map (a writable one for `stores`) and fault in all of it, so that first
        accesses do not block. Any thread."""
        ...

    def lock(self) -> None:
        """Lock the map's pages in memory until `unlock`, `swap_out` or `close`. Raises OSError if
        that is not allowed. Any thread."""
        ...

    def unlock(self) -> None: ...

    def swap_out(self) -> bool:
        """Unmap the file; it is mapped again when needed. False while a view pins it. Any
        thread."""
        ...

    def forget(self, offset: int, length: int) -> None:
        """Drop these bytes from the page cache if they are on stable storage and not mapped, so
        that the next read goes to the medium. A hint. Any thread."""
        ...

    @property
    def mapped_bytes(self) -> int:
        """Address space of this object's maps, including those that only views still hold."""
        ...

    @property
    def locked_bytes(self) -> int: ...

    def close(self) -> None:
        """Release descriptor and map; every later call is an error. Views handed out stay valid
        until they are dropped."""
        ...


class Disk(Protocol):
    """A file system as the store sees it. Paths are absolute strings."""

    def open(self, path: str) -> DiskFile:
        """An existing file, for reading and writing."""
        ...

    def create(self, path: str, size: int, *, allocate: bool) -> DiskFile:
        """Create a file of `size` zero bytes. `allocate` writes real blocks, so that no later write
        can fail with ENOSPC; else it is sparse."""
        ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def listdir(self, path: str) -> list[str]:
        """Sorted names; an empty list if the directory does not exist."""
        ...

    def mkdirs(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make names created, renamed or removed in `path` durable."""
        ...

    def read_file(self, path: str) -> bytes:
        """The whole content of a small file. Raises FileNotFoundError if it does not exist."""
        ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Atomically and durably replace a small file: write `path`.tmp, sync, rename, sync the
        directory."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """The capacity of the file system for this process: used and free bytes together."""
        ...
