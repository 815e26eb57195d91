"""How appended bytes reach the log's files: three modes behind one interface
(docs/decisions/2026-11-21-append-modes.md).

`LogWriter` writes with `pwrite`, `MapWriter` stores through the map, `PoolWriter` puts bytes into
memory buffers, from which a commit runner copies them into the files. `entry_log.py` decides where
bytes belong, what is dirty and when it is synced; its promises do not depend on the mode: bytes
accepted by `write` are visible to every reader of the log at once, and when `drain` has returned
they are in the files, where a sync makes them durable. Erasing and index units always use `pwrite`.

A failure is an `OSError` of `write` or `drain`, whichever comes first, and of every later call: the
content of the files is then unknown, the log is fenced, and nothing is retried (invariant I9).
"""

from __future__ import annotations

import errno
import mmap
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from ledgermq.storage.files import memory
from ledgermq.storage.files.mapped_files import Submit, Warmth, ignore, run_now
from ledgermq.storage.files.ports import Buffer, DiskFile

MODES = ("pwrite", "map", "pool")
POOL_BUFFERS = 5
POOL_BUFFER_BYTES = 8 << 20
COPY_LEAST_BYTES = 4 * 4096
"""The commit runner is called when this many bytes wait; fewer wait for the next sync."""
SHORT_SYNC_S = 0.0005
"""A sync that is shorter ends sooner than two hand-overs between threads."""
REMEMBERED_SYNCS = 16


Together = Callable[[Sequence[Callable[[], object]]], None]
"""Runs several independent syncs and returns when all have ended; raises the error of one that
failed."""


Work = SimpleQueue[tuple[Callable[[], object], SimpleQueue[BaseException | None]] | None]


def in_turn(syncs: Sequence[Callable[[], object]]) -> None:
    """Run them one after the other in the calling thread; stop at the first failure."""
    for sync in syncs:
        sync()


class AtOnceIfSlow:
    """Run them all at the same time, one of them in the calling thread, if the disk is slow. A
    group commit syncs the log file and the synced mark: in sequence it would take twice as long as
    the disk needs. A fast disk ends a sync sooner than a thread is woken, so there they run in
    turn. A bare queue, because an executor's future costs as much as a sync on a fast disk."""

    def __init__(
        self, threads: int, name: str, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._work: Work = SimpleQueue()
        self._now_s = now_s
        self._lately: deque[float] = deque(maxlen=REMEMBERED_SYNCS)
        """How long the calling thread's longest sync took in the last commits."""
        for number in range(threads):
            threading.Thread(
                target=_serve, args=(self._work,), name=f"{name}-{number}", daemon=True
            ).start()
            weakref.finalize(self, self._work.put, None)

    def __call__(self, syncs: Sequence[Callable[[], object]]) -> None:
        # A sync on a fast disk now and then takes long, because the thread waited for a processor
        # or for the interpreter.
        fast = min(self._lately, default=SHORT_SYNC_S) < SHORT_SYNC_S
        own, others = (syncs, ()) if fast else (syncs[:1], syncs[1:])
        outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        for sync in others:
            self._work.put((sync, outcomes))
        try:
            longest = 0.0
            for sync in own:
                began_s = self._now_s()
                sync()
                longest = max(longest, self._now_s() - began_s)
            if own:
                self._lately.append(longest)
        finally:
            errors = [outcomes.get() for _ in others]
        for error in errors:
            if error is not None:
                raise error


def _serve(work: Work) -> None:
    """One thread of AtOnceIfSlow; ends when it receives no work."""
    while (item := work.get()) is not None:
        sync, outcomes = item
        try:
            sync()
        except BaseException as error:  # any error must reach the waiting caller
            outcomes.put(error)
        else:
            outcomes.put(None)


class LogWriter:
    """`pwrite`: the kernel copies into its cache, in the calling thread and outside the interpreter
    lock."""

    mode = "pwrite"

    def __init__(
        self,
        *,
        lock_memory: bool = False,
        refused: Callable[[str], None] = ignore,
        together: Together = in_turn,
    ) -> None:
        """`lock_memory`: pages of the files being written, and buffers, stay in memory; `refused`
        is called if that is not allowed. `together` runs the syncs of one group commit."""
        self.together = together
        self.warmth = Warmth(
            populate=True, stores=self.mode == "map", lock=lock_memory, refused=refused
        )

    def ready(self, file: DiskFile) -> None:
        """Prepare what `write` needs for this file, so that a limit of the operating system is met
        before the first byte. Raises OSError."""

    def write(self, file: DiskFile, offset: int, data: Buffer) -> None:
        """Append bytes at an offset. Raises OSError."""
        file.pwrite(offset, data)

    def taken(self) -> int:
        """A mark behind everything written so far, for `drain`."""
        return 0

    def drain(self, mark: int | None = None) -> None:
        """Block until everything written before `mark` (by default everything) is in the files. Any
        thread. Raises OSError."""

    def held(self, file: DiskFile, offset: int, length: int) -> bytes | None:
        """These bytes of a file, if some of them are not in the file yet; otherwise None."""
        return None

    @property
    def locked_bytes(self) -> int:
        """Locked memory that belongs to no file."""
        return 0

    def close(self) -> None:
        """Free the memory. Bytes that were not drained are lost, as in a crash."""


class MapWriter(LogWriter):
    """`map`: stores into the pages directly. At best this needs no system call, but a page fault
    blocks with the interpreter lock held."""

    mode = "map"

    def ready(self, file: DiskFile) -> None:
        file.store(0, b"")

    def write(self, file: DiskFile, offset: int, data: Buffer) -> None:
        file.store(offset, data)


@dataclass(slots=True, eq=False)
class _Run:
    """Consecutive bytes of one file in one buffer: `used` of them, of which the first `copied` are
    in the file."""

    file: DiskFile
    offset: int
    area: mmap.mmap
    used: int = 0
    copied: int = 0
    sealed: bool = False
    """Nothing is added any more; the buffer becomes free when all of it is copied."""


class PoolWriter(LogWriter):
    """`pool`: appended bytes wait in `buffers` buffers of `buffer_bytes` each.

    Invariants, under `_lock`: every buffer is free or in exactly one run; only the last run is
    unsealed; runs are copied in the order in which they were written, by one thread at a time
    (`_copying`); `_copied` ≤ `_taken`, and both count bytes since the start. Only the owner writes;
    the runner, a sync and the owner drain.
    """

    mode = "pool"

    def __init__(
        self,
        buffers: int = POOL_BUFFERS,
        buffer_bytes: int = POOL_BUFFER_BYTES,
        submit: Submit = run_now,
        *,
        lock_memory: bool = False,
        refused: Callable[[str], None] = ignore,
        together: Together = in_turn,
    ) -> None:
        """Raises OSError if there is no memory for the buffers."""
        super().__init__(lock_memory=lock_memory, refused=refused, together=together)
        assert buffers > 0 and buffer_bytes > 0
        self._submit = submit
        self._buffer_bytes = buffer_bytes
        self._free = [memory.anonymous(buffer_bytes) for _ in range(buffers)]
        self._locked = lock_memory and self._lock_buffers(refused)
        self._buffers = buffers
        self._runs: deque[_Run] = deque()
        self._taken = 0
        self._copied = 0
        self._error: OSError | None = None
        self._submitted = False
        self._lock = threading.Lock()
        self._copying = threading.Lock()

    def write(self, file: DiskFile, offset: int, data: Buffer) -> None:
        left = memoryview(data).cast("B")
        while left:
            run = self._run_for(file, offset)
            length = min(len(left), self._buffer_bytes - run.used)
            # Other threads read only below `used`, so the copy itself needs no lock.
            run.area[run.used : run.used + length] = left[:length]
            with self._lock:
                run.used += length
                run.sealed = run.used == self._buffer_bytes
                self._taken += length
                due = not self._submitted and self._taken - self._copied >= COPY_LEAST_BYTES
                self._submitted = self._submitted or due
            if due:
                self._submit(self._copy_waiting)
            offset += length
            left = left[length:]

    def taken(self) -> int:
        return self._taken

    def drain(self, mark: int | None = None) -> None:
        goal = self._taken if mark is None else mark
        with self._copying:
            self._require_sound()
            while self._copied < goal:
                self._copy_first()

    def held(self, file: DiskFile, offset: int, length: int) -> bytes | None:
        with self._lock:
            end = offset + length
            waiting = (run for run in self._runs if run.file is file and run.copied < run.used)
            runs = [
                run
                for run in waiting
                if run.offset + run.copied < end and offset < run.offset + run.used
            ]
            if not runs:
                return None
            content = bytearray(file.pread(offset, length))
            for run in runs:
                low, high = max(offset, run.offset + run.copied), min(end, run.offset + run.used)
                content[low - offset : high - offset] = run.area[
                    low - run.offset : high - run.offset
                ]
            return bytes(content)

    @property
    def locked_bytes(self) -> int:
        return self._buffers * self._buffer_bytes if self._locked else 0

    def close(self) -> None:
        with self._copying, self._lock:
            self._error = self._error or OSError(errno.EBADF, "the pool is closed")
            self._locked = False
            for area in (*self._free, *(run.area for run in self._runs)):
                area.close()
            self._free.clear()
            self._runs.clear()

    # Inside

    def _run_for(self, file: DiskFile, offset: int) -> _Run:
        """The run that ends at this offset, or a new one. Without a free buffer everything is
        copied now. Raises OSError."""
        self._require_sound()
        with self._lock:
            last = self._runs[-1] if self._runs else None
            if last is not None and not last.sealed:
                if last.file is file and last.offset + last.used == offset:
                    return last
                last.sealed = True
                self._release_copied()
            free = bool(self._free)
        if not free:
            self.drain()
        with self._lock:
            run = _Run(file, offset, self._free.pop())
            self._runs.append(run)
            return run

    def _copy_waiting(self) -> None:
        """For the commit runner: copy waiting bytes. An error is kept, and raised by the next call
        of the owner or of a sync."""
        with self._lock:
            self._submitted = False
        with suppress(OSError):
            self.drain()

    def _copy_first(self) -> None:
        """Copy the bytes of the first run. Called with `_copying` held, when something waits."""
        with self._lock:
            run = self._runs[0]
            start, stop = run.copied, run.used
        part = memoryview(run.area)[start:stop]
        try:
            run.file.pwrite(run.offset + start, part)
        except OSError as error:
            self._error = error
            raise
        finally:
            part.release()
        with self._lock:
            run.copied = stop
            self._copied += stop - start
            self._release_copied()

    def _release_copied(self) -> None:
        """Free the buffers of finished runs. Called with `_lock` held."""
        while self._runs and self._runs[0].sealed and self._runs[0].copied == self._runs[0].used:
            self._free.append(self._runs.popleft().area)

    def _require_sound(self) -> None:
        if self._error is not None:
            raise self._error

    def _lock_buffers(self, refused: Callable[[str], None]) -> bool:
        try:
            for area in self._free:
                memory.lock(area)
        except OSError as error:
            refused(
                f"the buffers of the pool cannot be locked in memory ({error.strerror}):"
                f" {memory.LOCK_REMEDY}"
            )
            return False
        return True


def make_writer(
    mode: str,
    *,
    lock_memory: bool = False,
    refused: Callable[[str], None] = ignore,
    together: Together = in_turn,
    buffers: int = POOL_BUFFERS,
    buffer_bytes: int = POOL_BUFFER_BYTES,
    submit: Submit = run_now,
) -> LogWriter:
    """The writer of a configured mode; the last three arguments are for the pool. Raises OSError if
    there is no memory for a pool."""
    if mode == "pool":
        return PoolWriter(
            buffers,
            buffer_bytes,
            submit,
            lock_memory=lock_memory,
            refused=refused,
            together=together,
        )
    assert mode in MODES, mode
    return (MapWriter if mode == "map" else LogWriter)(
        lock_memory=lock_memory, refused=refused, together=together
    )
