"""The durability of a log (format §7): files with unsynced bytes, the sync in progress, and when
the synced mark moves.

This module does not know where entries lie: callers give it files, and the end of the log as a
mark. Its invariants:
  `index` is the last entry covered by a finished sync, moved by `finish` and `cut`.
  `allowed` is the mark that `index` allows; the mark on disk is never above it.

One owner calls everything here, except `SyncJob.run`, which may run on another thread. The first
error of a write or a sync fences the log permanently (invariant I9).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import SyncedMark
from ledgermq.storage.files.errors import LIMIT_REMEDY, LogFenced, is_exhausted, lacks_descriptors
from ledgermq.storage.files.mapped_files import MappedFiles
from ledgermq.storage.files.ports import Disk, DiskFile
from ledgermq.storage.log.index_files import IndexFiles
from ledgermq.storage.log.log_writer import LogWriter
from ledgermq.storage.log.synced_mark import SyncedMarkFile


class Fence:
    """Shut by the first failure: afterwards the log writes and acknowledges nothing, and retries
    nothing."""

    def __init__(self) -> None:
        self.error: LogFenced | None = None

    def require_open(self) -> None:
        """Raises LogFenced."""
        if self.error is not None:
            raise self.error

    def shut(
        self, reason: str, cause: OSError | None = None, *, status: int = ExitCode.SYNC_FAILED
    ) -> LogFenced:
        """`cause` is given if no sync is involved: it tells a limit of the operating system from a
        failing disk."""
        if cause is not None and is_exhausted(cause):
            reason, status = f"{reason}; {LIMIT_REMEDY}, then start again", ExitCode.LIMIT
        self.error = LogFenced(reason, status)
        return self.error


@dataclass(slots=True)
class SyncJob:
    """One group commit: everything written before `EntryLog.begin_sync`. `run` blocks, is called
    once, on any thread, and raises OSError; its outcome is passed to `EntryLog.finish_sync`. `term`
    and `index` name the last entry it covers that is still in the log."""

    number: int
    term: int
    index: int
    _disk: Disk
    _files: tuple[DiskFile, ...]
    _directories: tuple[str, ...]
    _mark: SyncedMark
    _wrote_mark: bool
    _rolled: bool
    _writer: LogWriter
    _taken: int
    """Bytes that the writer held when the job began: they must be in the files before the sync."""

    def run(self) -> None:
        self._writer.drain(self._taken)
        directories = (partial(self._disk.sync_dir, directory) for directory in self._directories)
        self._writer.together([*(file.sync for file in self._files), *directories])


class Durability:
    """The durability of one log. A caller that writes to a file must first add the file to
    `dirty`."""

    def __init__(
        self,
        disk: Disk,
        files: tuple[MappedFiles, IndexFiles],
        mark: SyncedMarkFile,
        writer: LogWriter,
        fence: Fence,
        index: int,
    ) -> None:
        """`index`: the last entry that recovery found. `found` sets the mark, unless recovery found
        damage."""
        self.index = index
        self.allowed = mark.value
        self.mark_pending = False
        """Whether the mark on disk is behind what is durable; an idle node raises it with
        `begin(idle=True)`. Derived from both, because every turn asks."""
        self.mark_due = False
        """Whether the mark must follow the last sync immediately, because that sync covered the end
        of a file."""
        self.dirty: dict[DiskFile, None] = {}
        self.job: SyncJob | None = None
        """The sync in progress."""
        self._disk = disk
        self._data, self._index = files
        self._mark = mark
        self._writer = writer
        self._fence = fence
        self._jobs = 0
        self._retired: list[DiskFile] = []
        self._rolled = False

    def found(self, end: SyncedMark) -> None:
        """Recovery has made everything up to `end` durable. Raises OSError."""
        if self._mark.value != end:
            self._mark.write_and_sync(end)
        self._allow(end)

    def _allow(self, mark: SyncedMark) -> None:
        """The mark on disk may be this one, and no higher one."""
        self.allowed = mark
        self.mark_pending = self._mark.value != mark
        self.mark_due = self.mark_due and self.mark_pending

    @property
    def is_dirty(self) -> bool:
        """Whether there are bytes written after the last sync began."""
        return bool(self.dirty) or self._data.names_changed

    @property
    def marked(self) -> SyncedMark:
        """The last mark written."""
        return self._mark.value

    # Syncs

    def file_ended(self) -> None:
        """A log file was completed: the next sync also covers the index, and the mark follows that
        sync immediately."""
        self._rolled = True

    def begin(self, end: SyncedMark, *, idle: bool) -> SyncJob | None:
        """A sync of everything written so far, up to `end`; None if there is nothing to sync. With
        `idle` a lagging mark alone is a reason. Raises LogFenced."""
        assert self.job is None, "a sync is already under way"
        wants_mark = self.mark_pending
        if not (wants_mark and (idle or self.mark_due)) and not self.is_dirty:
            return None
        files = list(self.dirty)
        directories = []
        if wants_mark:
            try:
                self._mark.write(self.allowed)
            except OSError as error:
                raise self._fence.shut(f"writing the synced mark failed: {error}", error) from error
            files.append(self._mark.slots.file)
        if self._rolled:
            files += self._index.dirty
            self._index.dirty.clear()
        for kind in (self._data, self._index.files):
            if kind.names_changed:
                directories.append(kind.directory)
                kind.names_changed = False
        self.dirty.clear()
        self._jobs += 1
        self.job = SyncJob(
            number=self._jobs,
            term=end.term,
            index=end.index,
            _disk=self._disk,
            _files=tuple(files),
            _directories=tuple(directories),
            _mark=end,
            _wrote_mark=wants_mark,
            _rolled=self._rolled,
            _writer=self._writer,
            _taken=self._writer.taken(),
        )
        self._rolled = self.mark_pending = self.mark_due = False
        return self.job

    def finish(self, job: SyncJob, error: OSError | None) -> None:
        """Record the outcome of a job. Raises LogFenced after any error: the content of the disk is
        then unknown."""
        assert job is self.job, "this sync is not the one under way"
        self.job = None
        for file in self._retired:
            file.close()
        self._retired.clear()
        if error is not None:
            if lacks_descriptors(error):
                raise self._fence.shut(
                    f"a sync of the log could not begin ({error}): nothing is acknowledged any"
                    " more",
                    error,
                )
            problem = f"a sync of the log failed ({error}): nothing is acknowledged any more"
            raise self._fence.shut(f"{problem}; check the disk, then start again")
        if job._wrote_mark:
            self._mark.slots.synced()
        if job.index > self.index:
            self.index = job.index
        self.mark_due = job._rolled
        self._allow(job._mark if job._mark.index >= self.allowed.index else self.allowed)

    def give_up(self) -> None:
        """Abandon the sync in progress, if any: nothing that it was to cover counts as durable."""
        self.job = None

    def close(self) -> None:
        assert self.job is None, "a sync is still under way"
        self._mark.close()

    # Files that go, and those that must stay open

    def is_busy(self, file: DiskFile) -> bool:
        """Whether the file waits for a sync, or the sync in progress covers it."""
        return (
            file in self.dirty
            or file in self._index.dirty
            or (self.job is not None and file in self.job._files)
        )

    def retire(self, file: DiskFile) -> None:
        """The file was removed: later syncs do not cover it, and it is closed when no sync in
        progress uses it."""
        self._index.dirty.pop(file, None)
        self.dirty.pop(file, None)
        if self.job is None:
            file.close()
        else:
            self._retired.append(file)

    # The mark outside of syncs

    def lower(self, mark: SyncedMark) -> None:
        """Lower the mark durably before the first byte is erased; otherwise a crash would make the
        cut look like damage. Raises OSError."""
        self._mark.lower(mark)
        self._allow(self.allowed)

    def cut(self, end: SyncedMark) -> None:
        """The log now ends with `end`: nothing behind it is durable, whatever a sync in progress
        covers."""
        if self.allowed.index > end.index:
            self._allow(end)
        if self.job is not None and self.job.index > end.index:
            self.job.index, self.job.term, self.job._mark = end.index, end.term, end
        self.index = min(self.index, end.index)

    def raise_mark_to(self, index: int) -> None:
        """Ensure a mark on disk that is at or above `index`, which is durable. Raises OSError if it
        could not be written. A failed sync of the mark fences the log (LogFenced), even on a full
        disk."""
        if self._mark.value.index >= index and not self._mark.slots.unsynced:
            return
        self._mark.write(self.allowed)
        self._allow(self.allowed)
        try:
            self._mark.sync()
        except OSError as error:
            problem = (
                f"a sync of the synced mark failed ({error}): nothing is acknowledged any more"
            )
            raise self._fence.shut(f"{problem}; check the disk") from error
