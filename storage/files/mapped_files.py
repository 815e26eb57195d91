"""A sequence of files of one fixed length, named by the absolute offset of their first byte (format
§1).

This module does naming, contiguity, lookup by offset, opening on demand with a bound, the maps of
the files, and creating the next file. At most one file is created ahead of need: an injected
background runner prepares it as `next.alloc` and syncs it, and the owner renames it. The owner
knows what the bytes mean, and when a directory or a file is synced; `names_changed` tells it that
the directory needs a sync.

The next file gets its blocks, its map populated and, if wanted, its pages locked, all by the
background runner; an owner that cannot wait creates the file without its map. Maps that were not
used for a while are unmapped. This is counted in sweeps (the owner calls `sweep` after each group
commit), because the store has no clock. A map that a reader's view pins stays.

Not thread-safe, except for the functions that the runner executes: they fill a file that no other
code uses yet, and call only methods of `DiskFile` that any thread may call.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from ledgermq.storage.files.errors import (
    LIMIT_REMEDY,
    Damaged,
    Exhausted,
    LogDamaged,
    NoSpace,
    is_exhausted,
    is_no_space,
)
from ledgermq.storage.files.memory import LOCK_REMEDY
from ledgermq.storage.files.ports import Disk, DiskFile

Submit = Callable[[Callable[[], object]], None]
"""Runs a function later, possibly on another thread; `run_now` runs it synchronously."""

NAME_DIGITS = 20
OPEN_FILES_MAX = 64
HEADROOM_FRACTION = 8
"""Creating a file leaves this part of its length free, for everything that is not allocated
ahead."""
UNFINISHED = (".alloc", ".tmp")
STAGED = ".staged"
"""Files of a log that is being installed: only the installation (`installing.py`) reads and removes
them."""
MAPS_MAX = 4
"""At most this many maps of files before the one being written are kept, those used last …"""
COLD_SWEEPS = 256
"""… and none that was not used for this many sweeps."""
SWEEP_EVERY = 16
"""Maps are checked at every n-th sweep: with many open files a check costs as much as a small
append."""


def run_now(function: Callable[[], object]) -> None:
    """The runner without a background thread."""
    function()


def file_name(base: int) -> str:
    return f"{base:0{NAME_DIGITS}d}"


def parse_name(name: str) -> int | None:
    """The absolute offset in a file's name; None for any other name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


def ignore(_: str) -> None:
    """A listener that does nothing."""


@dataclass(frozen=True, slots=True)
class Warmth:
    """How the memory of the next file is prepared: `stores` = its map will be written through;
    `refused` is called once if locking or populating is not possible, with the remedy."""

    populate: bool = False
    stores: bool = False
    lock: bool = False
    refused: Callable[[str], None] = ignore


COLD = Warmth()


class _Warmer:
    """Warms files on any thread; a failure is reported once and has no other effect."""

    def __init__(self, warmth: Warmth) -> None:
        self.warmth = warmth
        self._reported = False

    def warm(self, file: DiskFile) -> None:
        if self.warmth.populate:
            self._attempt(
                "populated",
                "it is faulted in page by page instead",
                lambda: file.warm(stores=self.warmth.stores),
                file,
            )
        self.lock(file)

    def lock(self, file: DiskFile) -> None:
        if not self.warmth.lock:
            return
        if self.warmth.stores:
            # Lock the map that will be written through; the read-only map would be replaced by it.
            self._attempt(
                "mapped", "it is mapped when it is written", lambda: file.store(0, b""), file
            )
        self._attempt("locked in memory", LOCK_REMEDY, file.lock, file)

    def _attempt(self, action: str, remedy: str, act: Callable[[], None], file: DiskFile) -> None:
        try:
            act()
        except OSError as error:
            # A file that was closed in the meantime is not a failure.
            if not self._reported and error.errno != errno.EBADF:
                self._reported = True
                self.warmth.refused(f"{file.path} cannot be {action} ({error.strerror}): {remedy}")


class _Preparation:
    """One file being created, by the first thread that claims it: the background runner, or the
    owner that cannot wait."""

    def __init__(
        self, disk: Disk, path: str, size: int, allocate: bool, free_bytes: int, warmer: _Warmer
    ) -> None:
        self.path = path
        self.free_bytes = free_bytes
        """Free space of the file system before the attempt."""
        self.error: OSError | None = None
        self.cancelled = False
        self.file: DiskFile | None = None
        """The open file; None for a kind of files that is not warmed."""
        self._disk = disk
        self._size = size
        self._allocate = allocate
        self._warmer = warmer
        self._claim = threading.Lock()
        self._made = threading.Event()
        self._settled = threading.Event()

    def run(self) -> None:
        """For the background: create the file, unless another thread does, and warm it in either
        case."""
        self._make()
        self._made.wait()
        if self.file is not None and not self.cancelled:
            self._warmer.warm(self.file)
        self._settled.set()

    @property
    def ready(self) -> bool:
        """Whether the background has finished its work."""
        return self._settled.is_set()

    def finish(self) -> None:
        """Create the file now, or wait for the thread that is creating it; its map is left to the
        background."""
        self._make()
        self._made.wait()

    def cancel(self) -> None:
        """Prevent the creation of the file from starting; wait for one that has started."""
        if self._claim.acquire(blocking=False):
            self.cancelled = True
            self._made.set()
            self._settled.set()
        self._settled.wait()

    def _make(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            if self._disk.exists(self.path):
                self._disk.unlink(self.path)
            file = self._disk.create(self.path, self._size, allocate=self._allocate)
            try:
                file.sync()
            except OSError:
                file.close()
                raise
            if self._warmer.warmth.populate or self._warmer.warmth.lock:
                self.file = file
            else:
                file.close()
        except OSError as error:
            self.error = error
        finally:
            self._made.set()


class MappedFiles:
    """The files of one directory. `bases` are the offsets of the existing files, ascending and
    without gaps."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file_bytes: int,
        submit: Submit = run_now,
        *,
        allocate: bool,
        warmth: Warmth = COLD,
    ) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.bases: list[int] = []
        self.names_changed = False
        """Whether a name was added or removed since the owner last reset this; the directory then
        needs a sync."""
        self.origin = 0
        """Where the first file begins, or would begin; the owner moves it when files at the front
        are no longer needed."""
        self.left_over: list[int] = []
        """Files before the origin that still exist after an interrupted removal."""
        self._disk = disk
        self._submit = submit
        self._allocate = allocate
        self._warmer = _Warmer(warmth)
        self._open: OrderedDict[int, DiskFile] = OrderedDict()
        self._used: dict[int, int] = {}
        """base of an open file -> the sweep of its last use"""
        self._sweeps = 0
        self._lingering: list[DiskFile] = []
        """Closed files whose map a view may still hold."""
        self.upcoming: _Preparation | None = None
        """The file that is created ahead."""
        self._room_wanted = 0
        self._refusal: OSError | None = None
        """Why the last attempt to create a file failed."""

    def load(self) -> None:
        """Find the files, and remove unfinished ones. Raises LogDamaged for a wrong length, Damaged
        for an invalid name; `gap_after` reports gaps. Files before the origin become
        `left_over`."""
        bases = []
        for name in self._disk.listdir(self.directory):
            path = f"{self.directory}/{name}"
            if name.endswith(UNFINISHED):
                self._disk.unlink(path)
                continue
            if name.endswith(STAGED):
                continue
            base = parse_name(name)
            if base is None or base % self.file_bytes:
                raise Damaged(
                    f"{path} is not a file of this store (its files have {self.file_bytes} bytes):"
                    " move it away"
                )
            size = self._disk.file_size(path)
            if size != self.file_bytes:
                raise LogDamaged(
                    f"{path} has {size} bytes instead of {self.file_bytes}: restore this replica"
                    " from its peers"
                )
            bases.append(base)
        self.bases = [base for base in bases if base >= self.origin]
        self.left_over = [base for base in bases if base < self.origin]
        # The former process may have stopped between creating a name and syncing it: the names may
        # be in the cache only.
        if self._disk.exists(self.directory):
            self._disk.sync_dir(self.directory)
        self.names_changed = False

    def repair(self) -> bool:
        """As `load`, for derived files: files of wrong name or length are removed, and missing
        files from the origin on are created empty. True if there were any."""
        bases: list[int] = []
        suspect = False
        # As in `load`, a name may be in the cache only. The owner's first sync of names covers it.
        self.names_changed = self._disk.exists(self.directory)
        for name in self._disk.listdir(self.directory):
            path = f"{self.directory}/{name}"
            if name.endswith(STAGED):
                continue
            base = parse_name(name)
            if (
                base is not None
                and base % self.file_bytes == 0
                and self._disk.file_size(path) == self.file_bytes
            ):
                bases.append(base)
                continue
            suspect = suspect or not name.endswith(UNFINISHED)
            self._disk.unlink(path)
        self.bases = []
        self.left_over = [base for base in bases if base < self.origin]
        for base in bases[len(self.left_over) :]:
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
        return self.bases[0] if self.bases else self.origin

    @property
    def end(self) -> int:
        """The offset behind the last existing file."""
        return self.bases[-1] + self.file_bytes if self.bases else self.origin

    def base_of(self, offset: int) -> int:
        return offset - offset % self.file_bytes

    def has(self, offset: int) -> bool:
        return self.begin <= offset < self.end

    def at(self, offset: int) -> DiskFile:
        """The file that holds the byte at `offset`. Open files beyond the bound are closed, least
        recently used first; views and syncs hold the content independently."""
        base = offset - offset % self.file_bytes
        file = self._open.get(base)
        if file is None:
            assert self.has(offset), (
                f"{self.directory} has no file for offset {offset}: it holds {self.begin} to"
                f" {self.end}"
            )
            file = self._open[base] = self._disk.open(f"{self.directory}/{file_name(base)}")
        else:
            self._open.move_to_end(base)
        self._used[base] = self._sweeps
        return file

    def close_idle(self, keep: Callable[[DiskFile], bool]) -> None:
        """Close files beyond the bound, except those for which `keep` is true."""
        if len(self._open) > OPEN_FILES_MAX:
            for base, file in list(self._open.items())[: len(self._open) - OPEN_FILES_MAX]:
                if not keep(file):
                    del self._open[base]
                    self._lingering.append(file)
                    file.close()

    def sweep(self, end: int, keep: Callable[[DiskFile], bool]) -> None:
        """Called after each group commit, with the offset to be written next: unlocks files before
        that one, unmaps unused maps, and closes files beyond the bound for which `keep` is
        false."""
        if len(self._open) > OPEN_FILES_MAX:
            self.close_idle(keep)
        self._sweeps += 1
        if self._sweeps % SWEEP_EVERY:
            return
        self._lingering = [file for file in self._lingering if file.mapped_bytes]
        self._used = {base: self._used.get(base, self._sweeps) for base in self._open}
        hot, kept = self.base_of(end), 0
        for base, file in reversed(self._open.items()):
            if base >= hot or not file.mapped_bytes:
                continue
            if file.locked_bytes:
                self._submit(file.unlock)
            kept += 1
            if kept > MAPS_MAX or self._sweeps - self._used[base] > COLD_SWEEPS:
                self._submit(file.swap_out)

    def lock_tail(self, end: int) -> None:
        """Lock existing files: the one that holds `end` and the next one."""
        for base in self.bases[-2:]:
            if base >= self.base_of(end) and self._warmer.warmth.lock:
                self._submit(partial(self._warmer.lock, self.at(base)))

    @property
    def mapped_bytes(self) -> int:
        """Address space of all maps of these files, including pinned ones of closed files."""
        return sum(file.mapped_bytes for file in self._files())

    @property
    def locked_bytes(self) -> int:
        return sum(file.locked_bytes for file in self._files())

    def prepare(self) -> None:
        """Start creating the next file in the background, unless that was started or the disk is
        known to be too full."""
        if self.upcoming is not None and self.upcoming.ready and self.upcoming.cancelled:
            self.upcoming = None
        if self.upcoming is None and self._has_room():
            free = self._disk.free_bytes(self.directory) if self._allocate else 0
            self.upcoming = _Preparation(
                self._disk,
                path=self._unfinished_path(),
                size=self.file_bytes,
                allocate=self._allocate,
                free_bytes=free,
                warmer=self._warmer,
            )
            self._submit(self.upcoming.run)

    def adopt_if_ready(self) -> bool:
        """Give the prepared file its final name, if it is ready. The owner must sync the directory
        before it relies on the name."""
        return self.upcoming is not None and self.upcoming.ready and self._adopt()

    def _adopt(self) -> bool:
        assert self.upcoming is not None
        preparation, self.upcoming = self.upcoming, None
        if preparation.cancelled:
            return False
        if preparation.error is not None:
            self._refusal = preparation.error
            if is_exhausted(preparation.error):
                return False
            if is_no_space(preparation.error):
                self._room_wanted = preparation.free_bytes + self.file_bytes // HEADROOM_FRACTION
                return False
            raise preparation.error
        self._refusal = None
        base = self.end
        path = f"{self.directory}/{file_name(base)}"
        self._disk.rename(preparation.path, path)
        if preparation.file is not None:
            preparation.file.path = path
            self._open[base] = preparation.file
        self.bases.append(base)
        self.names_changed = True
        return True

    def extend(self) -> None:
        """Ensure that one more file exists behind the last one, waiting for its creation. Raises
        NoSpace, OSError."""
        self.prepare()
        if self.upcoming is not None:
            self.upcoming.finish()
        if self.upcoming is None or not self._adopt():
            if self._refusal is not None and is_exhausted(self._refusal):
                raise Exhausted(
                    f"no log file can be made in {self.directory} ({self._refusal}):"
                    f" {LIMIT_REMEDY}; writing resumes by itself"
                )
            raise NoSpace(
                f"no space for {self.file_bytes} bytes more in {self.directory}: free disk space;"
                " writing resumes by itself"
            )

    def stop_preparing(self) -> None:
        """Stop preparing; on return no file is being created. A file that is ready can still be
        adopted."""
        if self.upcoming is not None:
            self.upcoming.cancel()

    def drop_from(self, offset: int) -> list[DiskFile]:
        """Remove the files that begin at or behind `offset`, last first. Returns those that were
        open, for the owner to close."""
        dropped = []
        while self.bases and self.bases[-1] >= offset:
            base = self.bases.pop()
            self._disk.unlink(f"{self.directory}/{file_name(base)}")
            self.names_changed = True
            file = self._open.pop(base, None)
            if file is not None:
                self._lingering.append(file)
                dropped.append(file)
        return dropped

    def drop_below(self, offset: int) -> tuple[list[str], list[DiskFile]]:
        """Remove the files that end at or before `offset`, first one first, but never the last
        file. Returns their paths, and the open ones for the owner to close: views of them stay
        valid."""
        while len(self.bases) > 1 and self.bases[0] + self.file_bytes <= offset:
            self.left_over.append(self.bases.pop(0))
        self.origin = self.begin
        paths, dropped = [], []
        while self.left_over:
            path = f"{self.directory}/{file_name(self.left_over[0])}"
            self._disk.unlink(path)
            self.names_changed = True
            paths.append(path)
            file = self._open.pop(self.left_over.pop(0), None)
            if file is not None:
                self._lingering.append(file)
                dropped.append(file)
        return paths, dropped

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
        if self.upcoming is not None and self.upcoming.file is not None:
            self.upcoming.file.close()
        self.upcoming = None
        for file in self._open.values():
            file.close()
        self._lingering.extend(self._open.values())
        self._open.clear()

    def _files(self) -> list[DiskFile]:
        ahead = [] if self.upcoming is None or self.upcoming.file is None else [self.upcoming.file]
        return [*self._open.values(), *self._lingering, *ahead]

    def _unfinished_path(self) -> str:
        return f"{self.directory}/next.alloc"

    @property
    def has_room(self) -> bool:
        """Whether the next file is there, is being made, or would fit on the disk."""
        return self.upcoming is not None or self._has_room()

    def _has_room(self) -> bool:
        """Whether an attempt may succeed. A failed attempt is repeated only after space was freed,
        because it writes until it fails."""
        if not self._allocate:
            return True
        free = self._disk.free_bytes(self.directory)
        return (
            free >= self.file_bytes + self.file_bytes // HEADROOM_FRACTION
            and free >= self._room_wanted
        )
