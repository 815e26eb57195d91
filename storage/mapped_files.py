"""A sequence of files of one fixed length, named by the absolute offset of their first byte (format §1).

Here live naming, contiguity, opening on demand with a bound, and making the next file: at most one ahead of need, prepared by an injected
background runner as `<name>.alloc`, synced there, and renamed by the owner. What the bytes mean and when a directory or a file is synced is
the owner's affair; `created` tells it which directories have new or removed names.

Not thread-safe, except for what the runner executes: it only fills a file that nobody else knows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from ledgermq.storage.disk import Disk, DiskFile
from ledgermq.storage.errors import Damaged, NoSpace, is_no_space

Submit = Callable[[Callable[[], None]], None]
"""Runs a function later, maybe on another thread; `run_now` is the synchronous one."""

NAME_DIGITS = 20
OPEN_FILES_MAX = 64
HEADROOM_FRACTION = 8
"""Making a file leaves this part of its length free, for everything that is not allocated ahead."""
UNFINISHED = (".alloc", ".tmp")


def run_now(function: Callable[[], None]) -> None:
    """The runner without a background."""
    function()


def file_name(base: int) -> str:
    return f"{base:0{NAME_DIGITS}d}"


def parse_name(name: str) -> int | None:
    """The absolute offset a file is named by, or None for any other name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


class _Preparation:
    """One file being made. Whoever claims it first makes it: the background, or the owner who cannot wait for it."""

    def __init__(self, disk: Disk, path: str, size: int, allocate: bool, free_bytes: int) -> None:
        self.path = path
        self.free_bytes = free_bytes
        """What the file system had to offer before the attempt."""
        self.error: OSError | None = None
        self.cancelled = False
        self._disk = disk
        self._size = size
        self._allocate = allocate
        self._claim = threading.Lock()
        self._done = threading.Event()

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            if self._disk.exists(self.path):
                self._disk.unlink(self.path)
            file = self._disk.create(self.path, self._size, allocate=self._allocate)
            try:
                file.sync()
            finally:
                file.close()
        except OSError as error:
            self.error = error
        finally:
            self._done.set()

    @property
    def ready(self) -> bool:
        return self._done.is_set()

    def finish(self) -> None:
        """Make the file here, or wait for the thread that is making it."""
        self.run()
        self._done.wait()

    def cancel(self) -> None:
        """Nobody will begin to make the file any more; one being made is waited for."""
        if self._claim.acquire(blocking=False):
            self.cancelled = True
            self._done.set()
        self._done.wait()


class MappedFiles:
    """The files of one directory. `bases` are the offsets of the existing files, ascending and without a gap."""

    def __init__(self, disk: Disk, directory: str, file_bytes: int, submit: Submit = run_now, *, allocate: bool) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.bases: list[int] = []
        self.names_changed = False
        """A name was added or removed since the owner last reset this; the directory needs a sync."""
        self._disk = disk
        self._submit = submit
        self._allocate = allocate
        self._open: OrderedDict[int, DiskFile] = OrderedDict()
        self._next: _Preparation | None = None
        self._room_wanted = 0

    def load(self) -> None:
        """Find the files, removing unfinished ones. Raises Damaged for a wrong length or a name that is none; gaps are `gap_after`'s."""
        bases = []
        for name in self._disk.listdir(self.directory):
            path = f"{self.directory}/{name}"
            if name.endswith(UNFINISHED):
                self._disk.unlink(path)
                continue
            base = parse_name(name)
            if base is None or base % self.file_bytes:
                raise Damaged(f"{path} is no file of this store (its files have {self.file_bytes} bytes): move it away")
            size = self._disk.file_size(path)
            if size != self.file_bytes:
                raise Damaged(f"{path} has {size} bytes instead of {self.file_bytes}: restore this replica from its peers")
            bases.append(base)
        self.bases = bases
        # The owner's last life may have ended between making a name and syncing it: what we find may be in the cache only.
        if self._disk.exists(self.directory):
            self._disk.sync_dir(self.directory)
        self.names_changed = False

    def repair(self) -> bool:
        """As `load`, for derived files: wrong names and lengths are removed, every missing file is made empty again. True if any was."""
        found: list[int] = []
        suspect = False
        for name in self._disk.listdir(self.directory):
            path = f"{self.directory}/{name}"
            base = parse_name(name)
            if base is not None and base % self.file_bytes == 0 and self._disk.file_size(path) == self.file_bytes:
                found.append(base)
                continue
            suspect = suspect or not name.endswith(UNFINISHED)
            self._disk.unlink(path)
            self.names_changed = True
        self.bases = []
        for base in found:
            while self.end < base:
                suspect = True
                self.extend()
            self.bases.append(base)
        return suspect

    def gap_after(self) -> int | None:
        """The end offset of the last file before the first gap; None without a gap."""
        for base, after in pairwise(self.bases):
            if after != base + self.file_bytes:
                return base + self.file_bytes
        return None

    @property
    def begin(self) -> int:
        return self.bases[0] if self.bases else 0

    @property
    def end(self) -> int:
        """The offset behind the last existing file."""
        return self.bases[-1] + self.file_bytes if self.bases else 0

    def base_of(self, offset: int) -> int:
        return offset - offset % self.file_bytes

    def has(self, offset: int) -> bool:
        return self.begin <= offset < self.end

    def at(self, offset: int) -> DiskFile:
        """The file that holds the byte at `offset`. Open files beyond the bound are closed, oldest use first, except where a view or
        a sync still needs them: both keep their own hold of the content."""
        base = self.base_of(offset)
        file = self._open.get(base)
        if file is None:
            assert self.has(offset), f"{self.directory} has no file for offset {offset}: it holds {self.begin} to {self.end}"
            file = self._open[base] = self._disk.open(f"{self.directory}/{file_name(base)}")
        else:
            self._open.move_to_end(base)
        return file

    def close_idle(self, keep: Callable[[DiskFile], bool]) -> None:
        """Close files beyond the bound that `keep` does not need."""
        if len(self._open) > OPEN_FILES_MAX:
            for base, file in list(self._open.items())[: len(self._open) - OPEN_FILES_MAX]:
                if not keep(file):
                    del self._open[base]
                    file.close()

    def prepare(self) -> None:
        """Have the next file made in the background, unless it is on the way or the disk is known to be too full."""
        if self._next is not None and self._next.ready and self._next.cancelled:
            self._next = None
        if self._next is None and self._has_room():
            free = self._disk.free_bytes(self.directory) if self._allocate else 0
            self._next = _Preparation(self._disk, self._unfinished_path(), self.file_bytes, self._allocate, free)
            self._submit(self._next.run)

    def adopt_if_ready(self) -> bool:
        """Give the prepared file its final name if it is there. The owner must sync the directory before it relies on the name."""
        if self._next is None or not self._next.ready:
            return False
        preparation, self._next = self._next, None
        if preparation.cancelled:
            return False
        if preparation.error is not None:
            if is_no_space(preparation.error):
                self._room_wanted = preparation.free_bytes + self.file_bytes // HEADROOM_FRACTION
                return False
            raise preparation.error
        self._disk.rename(preparation.path, f"{self.directory}/{file_name(self.end)}")
        self.bases.append(self.end)
        self.names_changed = True
        return True

    def extend(self) -> None:
        """Make sure that one more file exists behind the present last one, waiting for it. Raises NoSpace, OSError."""
        self.prepare()
        if self._next is not None:
            self._next.finish()
        if not self.adopt_if_ready():
            raise NoSpace(f"no space for {self.file_bytes} bytes more in {self.directory}: free disk space; writing resumes by itself")

    def stop_preparing(self) -> None:
        """No file is being made any more when this returns. One that is ready can still be adopted."""
        if self._next is not None:
            self._next.cancel()

    def drop_from(self, offset: int) -> list[DiskFile]:
        """Remove the files that begin at or behind `offset`, last first. Returns those that were open, for the owner to close."""
        dropped = []
        while self.bases and self.bases[-1] >= offset:
            base = self.bases.pop()
            self._disk.unlink(f"{self.directory}/{file_name(base)}")
            self.names_changed = True
            file = self._open.pop(base, None)
            if file is not None:
                dropped.append(file)
        return dropped

    def read(self, offset: int, length: int) -> bytes:
        """Bytes at an absolute offset, across files; short at the end of the last file."""
        parts = []
        while length > 0 and self.has(offset):
            inside = offset % self.file_bytes
            part = self.at(offset).pread(inside, min(length, self.file_bytes - inside))
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self.stop_preparing()
        self._next = None
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _unfinished_path(self) -> str:
        return f"{self.directory}/next.alloc"

    def _has_room(self) -> bool:
        """Whether it is worth trying. A failed attempt is not repeated before space was given back: every one writes until it fails."""
        if not self._allocate:
            return True
        free = self._disk.free_bytes(self.directory)
        return free >= self.file_bytes + self.file_bytes // HEADROOM_FRACTION and free >= self._room_wanted
