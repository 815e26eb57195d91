"""The entry log of one replica (format §2, §3, §5, §7): append, read, truncate, group commit.

The log is appended to, cut and trimmed here: bytes, index units and term runs change together.
`placing.py` decides where entries lie, `durability.py` tracks what is durable, `log_recovery.py`
recovers. Roles, votes and commit are not known here.

Counters, and what holds between them:
  begin_index ≤ durable_index + 1 ≤ end_index + 1. `begin_index` is the first entry kept, at
  `begin_pos`; `begin_term` and `begin_chain` are those of the entry before it. Moved by `trim`.
  `end_index` is the last entry appended (begin_index − 1 for none), moved by `append_…` and
  `truncate_from`. `durable_index` is the last entry covered by a finished sync (`durability.py`).

One owner calls everything here, except `SyncJob.run`, which may run on another thread while the
owner continues to append, truncate and read. After the first error of a write or a sync the log is
fenced permanently (invariant I9).
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise

import crc32c
import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.entries.entry_sealing import chain_crc_at, chain_seed, make_range, seal
from ledgermq.proto.entries.layout import (
    CRC_WORDS_AT,
    ENTRY_MIN_BYTES,
    HEADER_BYTES,
    record_columns,
)
from ledgermq.proto.names import is_system_topic
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import I64, Identity, Range, SyncedMark, UnsealedBatch
from ledgermq.storage.files.errors import (
    LIMIT_REMEDY,
    BadRange,
    Exhausted,
    LogDamaged,
    LogFenced,
    NoSpace,
    is_exhausted,
    is_no_space,
)
from ledgermq.storage.files.mapped_files import MappedFiles, Submit, run_now
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.begin import Begin, read_begin, write_begin
from ledgermq.storage.log.durability import Durability, Fence, SyncJob
from ledgermq.storage.log.index_files import UNIT_BYTES, IndexFiles
from ledgermq.storage.log.log_recovery import Recovery, RecoveryReport
from ledgermq.storage.log.log_scan import Run
from ledgermq.storage.log.log_writer import LogWriter
from ledgermq.storage.log.phases import Phases
from ledgermq.storage.log.placing import fits, is_placed, make_blank, next_file, place
from ledgermq.storage.log.synced_mark import SyncedMarkFile

RESERVE_BYTES_MAX = 1 << 20
RESERVE_FRACTION = 8
"""The reserve for control records is this part of a file, at most RESERVE_BYTES_MAX."""
UNITS_A_READ = 4096
ERASE_BYTES = 1 << 20
"""The most zero bytes that one write of a truncation carries."""
BEFORE_BODY_BYTES = HEADER_BYTES - CRC_WORDS_AT - 4
"""An entry's header ends with the CRC of its body and the body's size."""
_INDEX_AT = 8
"""The offset of the index in an entry's header."""


class EntryLog:
    """One log. Open it with `EntryLog.open`; `report` describes the recovery."""

    recovery_type: type[Recovery] = Recovery

    def __init__(
        self,
        disk: Disk,
        data: MappedFiles,
        index: IndexFiles,
        mark: SyncedMarkFile,
        report: RecoveryReport,
        runs: list[Run],
        writer: LogWriter,
        begin: Begin,
        home: tuple[str, str],
    ) -> None:
        """`home`: the log's directory and its id."""
        self.report = report
        self.begin_index, self.begin_pos = begin.index, begin.pos
        self.begin_term, self.begin_chain = begin.term, begin.chain
        self.end_index = report.end.index - 1
        self.end_pos = report.end.pos
        self.end_term = report.end.term
        self.end_chain = report.end.chain
        self._disk = disk
        self._directory, self._log_id = home
        self._data = data
        self._index = index
        self._fence = Fence()
        self.durability = Durability(
            disk,
            files=(data, index),
            mark=mark,
            writer=writer,
            fence=self._fence,
            index=self.end_index,
        )
        self._seed = chain_seed(self._log_id)
        self._runs = runs
        self._writer = writer
        self._reserve = min(RESERVE_BYTES_MAX, data.file_bytes // RESERVE_FRACTION)
        self._known_from = report.known_from
        """The bytes from here to the end were written or verified by this process: only these are
        served from maps."""

    @classmethod
    def create(cls, disk: Disk, directory: str, identity: Identity) -> None:
        """Create an empty log in an existing, empty directory; durable on return, except for the
        directory's own name."""
        for name in ("data", "index"):
            disk.mkdirs(f"{directory}/{name}")
        empty = SyncedMark(chain_crc=chain_seed(identity.log_id))
        SyncedMarkFile.create(disk, f"{directory}/syncedmark", identity.log_id, empty).close()

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        identity: Identity,
        *,
        clean: bool,
        submit: Submit = run_now,
        writer: LogWriter | None = None,
        phases: Phases | None = None,
    ) -> EntryLog:
        """Recover the log in `directory`. `clean`: the last owner stopped cleanly. `submit` runs
        the creation of files ahead of need. `writer` appends to them (by default with `pwrite`);
        the log owns it from now on.

        Damage at or below the synced mark opens the log fenced (exit code 75), without changing
        anything. Raises Unusable, Damaged (a damaged mark or begin file), UnknownFormat, OSError.
        """
        phases, writer = phases or Phases(), writer or LogWriter()
        with phases.phase("log_files"):
            begin = read_begin(disk, directory, identity.log_id)
            mark = SyncedMarkFile.open(disk, f"{directory}/syncedmark", identity.log_id)
            data = MappedFiles(
                disk,
                f"{directory}/data",
                identity.data_file_bytes,
                submit,
                allocate=True,
                warmth=writer.warmth,
            )
            index = IndexFiles(
                MappedFiles(disk, f"{directory}/index", identity.index_file_bytes, allocate=False)
            )
            data.origin = begin.pos
            index.files.origin = index.files.base_of(begin.index * UNIT_BYTES)
            data.load()
            suspect = index.files.repair()
        recovery = cls.recovery_type(
            disk,
            data,
            index,
            mark.value,
            begin,
            clean=clean and not suspect,
            thorough=suspect,
            phases=phases,
        )
        recovered = recovery.run()
        log = cls(
            disk,
            data,
            index,
            mark,
            recovered.report,
            runs=recovered.runs,
            writer=writer,
            begin=begin,
            home=(directory, identity.log_id),
        )
        if recovered.fenced is not None:
            log._fence.shut(recovered.fenced, status=ExitCode.DAMAGED)
            return log
        index.start(recovered.end.index)
        log.durability.found(log._mark_of_end())
        log._prepare()
        data.lock_tail(log.end_pos)
        return log

    # Questions

    @property
    def fenced(self) -> LogFenced | None:
        """Why the log is fenced; None if it is not."""
        return self._fence.error

    @property
    def durable_index(self) -> int:
        """The last entry covered by a finished sync."""
        return self.durability.index

    @property
    def dirty(self) -> bool:
        """Whether there are bytes written after the last sync began."""
        return self.durability.is_dirty

    @property
    def synced_mark(self) -> SyncedMark:
        """The last mark written."""
        return self.durability.marked

    @property
    def has_room(self) -> bool:
        """Whether another file would fit on the disk, or is there already."""
        return self._data.has_room

    @property
    def mapped_bytes(self) -> int:
        """Address space of the maps of log files."""
        return self._data.mapped_bytes

    @property
    def locked_bytes(self) -> int:
        """Memory of this log that is locked against paging."""
        return self._data.locked_bytes + self._writer.locked_bytes

    def term_runs(self) -> list[Run]:
        """(first index, term) of every run of entries of one term, ascending."""
        return list(self._runs)

    def term_at(self, index: int) -> int:
        """The term of an entry; before the first entry, the term in the begin file (−1 in a log
        that was never trimmed)."""
        if index == self.begin_index - 1:
            return self.begin_term
        self._require_entry(index)
        return self._runs[bisect_right(self._runs, index, key=lambda run: run[0]) - 1][1]

    def chain_at(self, index: int) -> int:
        """The stored chain CRC of an entry; before the first entry, the one in the begin file (the
        seed in a log that was never trimmed)."""
        if index == self.end_index:
            return self.end_chain
        if index == self.begin_index - 1:
            return self.begin_chain
        return self._chain_at_pos(self.pos_of(index))

    def pos_of(self, index: int) -> int:
        """The position of an entry; of the end for end_index + 1."""
        if index == self.end_index + 1:
            return self.end_pos
        self._require_entry(index)
        units = self._index.get(index, 1)
        if len(units) != 1 or int(units["index"][0]) != index:
            raise LogDamaged(
                f"the index unit of entry {index} is damaged: restart the node, which rebuilds it"
            )
        return int(units["pos"][0])

    def is_in_last_file(self, index: int) -> bool:
        """Whether an entry is in the file being written; False for one that was trimmed."""
        return index >= self.begin_index and self.pos_of(index) >= self._data.base_of(self.end_pos)

    def read(self, first_index: int, max_bytes: int) -> Range:
        """Entries from `first_index` on: at least one, then up to `max_bytes`, never across a term
        run or a file. Bytes of the hot tail are a view of the map and change if the entries are
        truncated; others are copied. Raises OSError, Damaged."""
        self._require_entry(first_index)
        run = bisect_right(self._runs, first_index, key=lambda run: run[0])
        last = self._runs[run][0] - 1 if run < len(self._runs) else self.end_index
        before = 1 if first_index > self.begin_index else 0
        wanted = min(last - first_index + 1, UNITS_A_READ, max_bytes // ENTRY_MIN_BYTES + 1)
        units = self._index.get(first_index - before, wanted + before)
        if len(units) != wanted + before or int(units["index"][-1]) != first_index + wanted - 1:
            raise LogDamaged(
                f"the index units of entry {first_index} and after are damaged: restart the node,"
                " which rebuilds them"
            )
        positions: I64 = units["pos"].astype(np.int64)
        sizes = units["size"].astype(np.int32)
        prev_chain = self._chain_at_pos(int(positions[0])) if before else self.begin_chain
        positions, sizes = positions[before:], sizes[before:]
        pos = int(positions[0])
        limit = min(pos + max_bytes, self._data.base_of(pos) + self._data.file_bytes)
        count = max(1, int(np.searchsorted(positions + sizes, limit, side="right")))
        data = self._bytes(pos, int(positions[count - 1]) + int(sizes[count - 1]) - pos)
        starts = positions[:count] - pos
        return Range(
            first_index=first_index,
            last_index=first_index + count - 1,
            term=self._runs[run - 1][1],
            pos=pos,
            data=data,
            starts=starts,
            sizes=sizes[:count],
            prev_chain=prev_chain,
            last_chain=chain_crc_at(data, int(starts[-1])),
        )

    def record_at(self, physical_offset: int, size: int) -> memoryview:
        """The bytes at the position in a consume queue unit. Raises OSError."""
        return self._bytes(physical_offset, size)

    def whole_record_at(self, physical_offset: int, size: int) -> memoryview:
        """The message record at the position in a consume queue unit. A record that this process
        neither wrote nor verified is checked against the CRC in front of it. Raises OSError,
        LogDamaged."""
        if self.is_verified(physical_offset):
            return self._bytes(physical_offset, size)
        data = self._bytes(physical_offset - BEFORE_BODY_BYTES, size + BEFORE_BODY_BYTES)
        if int.from_bytes(data[:4], "big") != crc32c.crc32c(data[BEFORE_BODY_BYTES:]):
            raise LogDamaged(f"the message at {physical_offset} is not what was stored there")
        return data[BEFORE_BODY_BYTES:]

    def index_at(self, physical_offset: int) -> int:
        """The index of the entry whose message record lies at the position in a consume queue unit.
        Raises OSError, LogDamaged."""
        pos = physical_offset - HEADER_BYTES
        index = int.from_bytes(self._bytes(pos + _INDEX_AT, 8), "big")
        # A damaged header of an entry that this process has not read must not lead to another
        # entry.
        if not self.begin_index <= index <= self.end_index or self.pos_of(index) != pos:
            raise LogDamaged(f"the header of the entry at {pos} is not what was stored there")
        return index

    def is_verified(self, pos: int) -> bool:
        """Whether the bytes at `pos` were written or verified by this process."""
        return pos >= self._known_from

    # Appending

    def append_leader(
        self,
        term: int,
        batch: UnsealedBatch,
        queue_offsets: I64,
        store_ms: int | I64,
        store_host: bytes | NDArray[np.void],
        *,
        control: bool = False,
        new_file: bool = False,
    ) -> list[Range]:
        """Seal a batch and append it, one range per file touched; `store_ms` and `store_host` as in
        `seal`. `control` may use the reserve. With `new_file` the file being written ends, and the
        batch begins the next one. Raises NoSpace (nothing was appended), LogFenced."""
        if self._fence.error is not None:
            raise self._fence.error
        assert term >= self.end_term, f"term {term} after term {self.end_term}"
        first, pos, size, count = (
            self.end_index + 1,
            self.end_pos,
            self._data.file_bytes,
            batch.count,
        )
        early = new_file and bool(pos % size)
        if early:
            pos = next_file(pos, size)
        end = pos + len(batch.data)
        positions: int | I64 = pos
        cuts, places = [0, count], [pos]
        if not fits(pos, len(batch.data), size):
            positions, cuts, end = place(batch.sizes, pos, size)
            places = positions[cuts[:-1]].tolist()
        self._make_room(end, count, control=control, early=early)
        seal(
            batch,
            first_index=first,
            term=term,
            pos=positions,
            queue_offsets=queue_offsets,
            store_ms=store_ms,
            store_host=store_host,
            prev_chain=self.end_chain,
        )
        ranges = []
        for (low, high), at in zip(pairwise(cuts), places, strict=True):
            piece = make_range(
                batch,
                low,
                high,
                first_index=first + low,
                term=term,
                pos=at,
                prev_chain=self.end_chain,
            )
            self._write(piece)
            ranges.append(piece)
        self._prepare()
        return ranges

    def append_range(self, entries: Range) -> Range:
        """Append a verified range (`verify_range`) unchanged. It must continue the log in index,
        term, chain and position; raises BadRange otherwise, NoSpace (nothing was appended),
        LogFenced."""
        if self._fence.error is not None:
            raise self._fence.error
        if (entries.first_index, entries.prev_chain) != (
            self.end_index + 1,
            self.end_chain,
        ) or entries.term < self.end_term:
            raise BadRange(
                f"range {entries.first_index} of term {entries.term} does not continue"
                f" {self.end_index} of {self.end_term}"
            )
        if not is_placed(entries, self.end_pos, self._data.file_bytes):
            raise BadRange(
                f"range {entries.first_index} lies at {entries.pos}, which is not its place after"
                f" {self.end_pos}"
            )
        end, count = entries.pos + len(entries.data), entries.last_index - entries.first_index + 1
        early = entries.pos != self.end_pos and fits(
            self.end_pos, int(entries.sizes[0]), self._data.file_bytes
        )
        try:
            self._make_room(end, count, control=False, early=early)
        except NoSpace:
            if not all(map(is_system_topic, record_columns(entries).topics)):
                raise
            self._make_room(end, count, control=True, early=early)
        self._write(entries)
        self._prepare()
        return entries

    # Truncating

    def truncate_from(self, index: int) -> None:
        """Remove the entry `index` and everything behind it, and the blank before it if it starts a
        file: the log then ends with `index` −
        1. The mark is lowered durably before the first byte is erased."""
        self._fence.require_open()
        self._require_entry(index)
        assert index > self.begin_index or index == 0, (
            f"entry {index} is the first of a trimmed log: it is committed"
        )
        pos = self.pos_of(index)
        last, end = index - 1, pos
        if last >= self.begin_index:
            units = self._index.get(last, 1)
            end = int(units["pos"][0]) + int(units["size"][0])
        mark = (
            SyncedMark(self.term_at(last), last, end, self.chain_at(last))
            if last >= 0
            else self._empty_mark()
        )
        try:
            if self.durability.marked.index > last:
                self._lower_mark(mark)
            self.durability.cut(mark)
            # The writer must not copy bytes behind the new end any more.
            self._writer.drain()
            self._erase(end, index)
        except OSError as error:
            raise self._fence.shut(
                f"truncating the log from entry {index} failed: {error}", error
            ) from error
        self.end_index, self.end_pos, self.end_term, self.end_chain = (
            last,
            end,
            mark.term,
            mark.chain_crc,
        )
        while self._runs and self._runs[-1][0] > last:
            self._runs.pop()
        self._known_from = min(self._known_from, end)

    def _lower_mark(self, mark: SyncedMark) -> None:
        self.durability.lower(mark)

    def _erase(self, end: int, index: int) -> None:
        """Zero the bytes from `end` to the current end; files behind the next one are removed."""
        spare = self._data.base_of(end) + 2 * self._data.file_bytes
        for file in self._data.drop_from(spare):
            self.durability.retire(file)
        at, stop = end, min(self.end_pos, self._data.end)
        while at < stop:
            length = (
                min(stop, self._data.base_of(at) + self._data.file_bytes, at + ERASE_BYTES) - at
            )
            file = self._data.at(at)
            self.durability.dirty[file] = None
            file.pwrite(at % self._data.file_bytes, bytes(length))
            at += length
        self._index.erase(index, self.end_index + 1)

    # Trimming

    def trim(self, begin_index: int) -> list[str]:
        """Make the log begin with `begin_index`, the first entry of a file, which is durable.
        Removes the files before it, and index files that describe only removed entries. Returns the
        removed paths. Raises NoSpace (nothing was changed), LogFenced.

        The begin file is durable before the first file is removed; removed names become durable
        with the next sync."""
        self._fence.require_open()
        self._require_entry(begin_index)
        pos = self.pos_of(begin_index)
        assert pos == self._data.base_of(pos) and begin_index <= self.durable_index, (
            f"no trim to entry {begin_index} at {pos}"
        )
        if begin_index == self.begin_index:
            return []
        begin = Begin(
            begin_index, pos, self.term_at(begin_index - 1), self.chain_at(begin_index - 1)
        )
        try:
            # A process that finds the new begin must not find an older mark.
            self.durability.raise_mark_to(begin_index)
            write_begin(self._disk, self._directory, self._log_id, begin)
        except OSError as error:
            if is_no_space(error):
                raise NoSpace(
                    f"no space to note the begin of {self._directory}: free disk space; trimming"
                    " resumes by itself"
                ) from error
            raise self._fence.shut(
                f"trimming the log to entry {begin_index} failed: {error}", error
            ) from error
        self.begin_index, self.begin_pos, self.begin_term, self.begin_chain = (
            begin.index,
            begin.pos,
            begin.term,
            begin.chain,
        )
        run = bisect_right(self._runs, begin_index, key=lambda run: run[0]) - 1
        self._runs[: run + 1] = [(begin_index, self._runs[run][1])]
        return self._drop_front()

    def _drop_front(self) -> list[str]:
        removed = []
        try:
            for files, begin in (
                (self._data, self.begin_pos),
                (self._index.files, self.begin_index * UNIT_BYTES),
            ):
                paths, dropped = files.drop_below(begin)
                removed += paths
                for file in dropped:
                    self.durability.retire(file)
        except OSError as error:
            raise self._fence.shut(f"removing trimmed files failed: {error}", error) from error
        return removed

    # Durability

    def begin_sync(self, *, idle: bool = False) -> SyncJob | None:
        """Start a group commit of everything written so far; None if there is nothing to sync. At
        most one is in progress. With `idle` a lagging mark alone is a reason."""
        if self._fence.error is not None:
            raise self._fence.error
        if self._data.upcoming is not None and (idle or self.dirty):
            self._adopt()
        return self.durability.begin(self._mark_of_end(), idle=idle)

    def finish_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Record the outcome of a job. Raises LogFenced after any error: the content of the disk is
        then unknown."""
        self.durability.finish(job, error)
        self._data.sweep(self.end_pos, self.durability.is_busy)
        self._index.files.close_idle(self.durability.is_busy)

    def flush_mark(self) -> None:
        """Sync everything now, the mark last: for a clean stop, without a job in progress. Raises
        LogFenced."""
        self._data.stop_preparing()
        while (job := self.begin_sync(idle=True)) is not None:
            error = None
            try:
                job.run()
            except OSError as failure:
                error = failure
            self.finish_sync(job, error)
        try:
            self._index.sync()
        except OSError as failure:
            raise self._fence.shut(f"a sync of the index failed: {failure}") from failure

    def give_up(self) -> None:
        """Abandon the sync in progress, if any: nothing that it was to cover counts as durable.
        Only for an owner that abandons the log, when no thread works on the job."""
        self.durability.give_up()

    def close(self) -> None:
        """Close all files. A job in progress must have finished."""
        assert self.durability.job is None, "a sync is still under way"
        if self.fenced is None:
            # A caller that needs these bytes to be safe has synced before, and has seen that error.
            with suppress(OSError):
                self._writer.drain()
        self._writer.close()
        self._data.close()
        self._index.files.close()
        self.durability.close()

    # Writing

    def prepare_next(self) -> bool:
        """Start to create the file behind the one being written, unless that was done; returns
        whether it is there. A file that ends early ends before the next one was made ahead of need,
        and creating that takes as long as writing it. Raises LogFenced."""
        data = self._data
        try:
            if data.end <= data.base_of(self.end_pos) + data.file_bytes:
                data.prepare()
                self._adopt_next()
        except OSError as error:
            raise self._fence.shut(f"making room for the log failed: {error}", error) from error
        return data.end > data.base_of(self.end_pos) + data.file_bytes

    def _make_room(self, end: int, count: int, *, control: bool, early: bool = False) -> None:
        """Ensure files and index blocks for everything up to `end` and, unless `control`, a reserve
        behind it. `early`: the file being written ends before it is full, and the creation of the
        next one is not waited for. Raises NoSpace."""
        if early and not self.prepare_next():
            raise NoSpace(
                f"the log file behind {self._data.base_of(self.end_pos)} is not there yet; writing"
                " resumes by itself"
            )
        wanted, data = end if control else end + self._reserve, self._data
        try:
            if data.upcoming is not None:
                self._adopt_next()
            while data.end < wanted:
                data.extend()
            self._index.reserve(self.end_index + 1 + count, control=control)
            for base in range(self.end_pos - self.end_pos % data.file_bytes, end, data.file_bytes):
                # Opened before anything is written, so that a process at its limit of descriptors
                # refuses instead of failing halfway.
                self._writer.ready(data.at(base))
        except OSError as error:
            if is_exhausted(error):
                raise Exhausted(
                    f"the log cannot open its files ({error}): {LIMIT_REMEDY}; writing resumes by"
                    " itself"
                ) from error
            raise self._fence.shut(f"making room for the log failed: {error}", error) from error

    def _adopt(self) -> None:
        """Give a file that was created ahead its name, so that the next sync makes the name
        durable."""
        try:
            self._adopt_next()
        except OSError as error:
            raise self._fence.shut(f"making room for the log failed: {error}", error) from error

    def _adopt_next(self) -> None:
        """Adopt the next file, but never a second one ahead of the file being written; after a
        truncation one may be ready."""
        if self._data.end <= self._data.base_of(self.end_pos) + self._data.file_bytes:
            self._data.adopt_if_ready()

    def _prepare(self) -> None:
        """Start creating the next file when a quarter of the last one is used."""
        if self._data.end - self.end_pos < self._data.file_bytes - self._data.file_bytes // 4:
            self._data.prepare()

    def _write(self, entries: Range) -> None:
        """Write bytes and units of one range whose position and room are settled. Any failure
        fences the log: what was written is unknown."""
        try:
            if entries.pos != self.end_pos:
                self._put(self.end_pos, make_blank(entries.pos - self.end_pos))
                self.durability.file_ended()
            self._put(entries.pos, entries.data)
            self._index.put_range(entries)
        except OSError as error:
            raise self._fence.shut(
                f"writing entry {entries.first_index} failed: {error}", error
            ) from error
        if entries.term != self.end_term or not self._runs:
            self._runs.append((entries.first_index, entries.term))
        self.end_index, self.end_pos = entries.last_index, entries.pos + len(entries.data)
        self.end_term, self.end_chain = entries.term, entries.last_chain

    def _put(self, pos: int, data: bytes | memoryview) -> None:
        file = self._data.at(pos)
        self.durability.dirty[file] = None
        self._writer.write(file, pos % self._data.file_bytes, data)

    # Helpers

    def _bytes(self, pos: int, length: int) -> memoryview:
        file = self._data.at(pos)
        inside = pos % self._data.file_bytes
        if pos + length > self._known_from:
            # The newest part may not be in the file yet, also of a range that began before this
            # process started.
            held = self._writer.held(file, inside, length)
            if held is not None:
                return memoryview(held)
        if pos >= self._known_from:
            return file.view()[inside : inside + length]
        data = file.pread(inside, length)
        if len(data) != length:
            raise OSError(5, f"{file.path} ends inside an entry at {pos}")
        self._data.close_idle(self.durability.is_busy)
        self._index.files.close_idle(self.durability.is_busy)
        return memoryview(data)

    def _chain_at_pos(self, pos: int) -> int:
        at = pos + CRC_WORDS_AT
        held = self._writer.held(self._data.at(at), at % self._data.file_bytes, 4)
        return int.from_bytes(self._data.read(at, 4) if held is None else held, "big")

    def _mark_of_end(self) -> SyncedMark:
        if self.end_index < 0:
            return self._empty_mark()
        return SyncedMark(self.end_term, self.end_index, self.end_pos, self.end_chain)

    def _empty_mark(self) -> SyncedMark:
        return SyncedMark(chain_crc=self._seed)

    def _require_entry(self, index: int) -> None:
        assert self.begin_index <= index <= self.end_index, (
            f"entry {index} is not in {self.begin_index} … {self.end_index}"
        )
