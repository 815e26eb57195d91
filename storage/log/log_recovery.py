"""Recovery of an entry log: finds the facts, decides with the table of `log_decision.py`, and
carries out the decision.

Rules (docs/architecture.md, Durability). Damage at or below the synced mark is *corrupt*: nothing
is changed and the log opens fenced. Bytes above the mark that are not a valid continuation are
*torn*: they are erased. Valid bytes above the mark may exist in the page cache only, so they are
written again in place and synced before any other code sees them. Index units that differ from the
log are rebuilt from it. A log begins where its `begin` file says: earlier files remain from an
interrupted trim and are removed; a missing file behind the begin is damage.

How much is read: after a clean stop the units of the last files, the headers at both ends of every
run of terms, and a window behind the end; otherwise also every header of the last files, every byte
above the mark, and all of the space behind the end. Bodies below the mark are left to the audit,
except in files whose units differ from the entries: those are verified with both CRCs before any
unit is rebuilt from them.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace

from ledgermq.proto.entries.layout import BLANK_MAGIC, ENTRY_MAGIC, HEADER_BYTES
from ledgermq.proto.types import SyncedMark
from ledgermq.storage.files.mapped_files import MappedFiles
from ledgermq.storage.files.ports import Disk, DiskFile
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.log.index_files import UNIT_BYTES, IndexFiles, make_units
from ledgermq.storage.log.log_decision import Above, Act, Below, decide
from ledgermq.storage.log.log_scan import (
    CHUNK_BYTES,
    ENTRY_HEAD,
    Disagreement,
    Piece,
    Point,
    Run,
    Walker,
    add_runs,
    check_units,
    first_nonzero,
    next_chain,
)
from ledgermq.storage.log.phases import Phases
from ledgermq.storage.log.placing import BLANK, BLANK_BYTES, STALE_BYTES, make_blank

STRUCTURE_BYTES = 1 << 30
"""At least this much of the log's end (in whole files) is checked entry by entry below the mark."""
ZERO_AGAIN_BYTES = STALE_BYTES
"""After an unclean stop this much space behind the end is zeroed again."""
CLEAN_WINDOW_BYTES = 64 << 10
"""After a clean stop only this much space behind the end is checked to be zero."""


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did, for logging and tests. `row` is the label of the decision."""

    row: str
    reason: str = ""
    known_from: int = 0
    """The bytes of the log from this position on were verified."""
    end: Point = field(default_factory=lambda: Point(pos=0, index=0, term=-1, chain=0))
    rewritten_bytes: int = 0
    erased_bytes: int = 0
    removed_files: int = 0
    rebuilt_units: int = 0
    checked_files: int = 0


@dataclass(slots=True)
class Recovered:
    """The state of the log after recovery. `fenced` is the reason why it must not be used, or
    None."""

    report: RecoveryReport
    end: Point
    runs: list[Run] = field(default_factory=list)
    fenced: str | None = None


class _Damage(Exception):
    """Bytes at or below the mark have changed."""


@dataclass(slots=True)
class _Rebuild:
    """Units of one file that must be rewritten: for the entries from `point` up to the position
    `stop`."""

    point: Point
    stop: int
    last_index: int
    chain: int
    """The chain CRC of the last of these entries."""


class Recovery:
    """One recovery of one log. `run` is called once."""

    def __init__(
        self,
        disk: Disk,
        files: MappedFiles,
        index: IndexFiles,
        mark: SyncedMark,
        begin: Begin,
        *,
        clean: bool,
        thorough: bool,
        phases: Phases,
    ) -> None:
        if mark.index < begin.index:
            # Everything before the begin was synced, even if a damaged slot brought back an older
            # mark.
            mark = SyncedMark(begin.term, begin.index - 1, begin.pos, begin.chain)
        self._disk = disk
        self._phases = phases
        self._files = files
        self._index = index
        self._mark = mark
        self._begin = begin
        self._clean = clean
        self._thorough = thorough
        """Check every file, not only the last ones, because index files were missing."""
        self._runs: list[Run] = []
        self._rebuilds: list[_Rebuild] = []
        self._dirty: dict[DiskFile, None] = {}
        self._report = RecoveryReport("", known_from=mark.end_pos)

    def run(self) -> Recovered:
        """Raises OSError; every other failure becomes a row of the table. On return all bytes of
        the log are durable."""
        with self._phases.phase("below_mark"):
            below = self._look_below()
        with self._phases.phase("above_mark"):
            above, walker = (
                self._look_above() if below is not Below.DAMAGED else (Above.NOTHING, None)
            )
        row = decide(self._clean, below, above)
        self._report.row = row.label
        if row.act is Act.REFUSE or walker is None:
            mark = self._mark
            self._report.end = Point(
                pos=mark.end_pos, index=mark.index + 1, term=mark.term, chain=mark.chain_crc
            )
            runs = self._runs or [(mark.index, mark.term)]
            return Recovered(self._report, self._report.end, runs, fenced=self._report.reason)
        self._report.end = end = walker.point
        with self._phases.phase("above_mark"):
            if row.act in (Act.REWRITE, Act.CUT):
                self._rewrite(end)
            if row.act is Act.CUT:
                self._report.reason = walker.problem or "a blank without an entry"
                self._erase(end.pos)
            if not self._clean:
                self._zero_again(end.pos)
        for files in (self._files, self._index.files):
            # Only now, when the rest has proved to be the log that the begin file describes.
            self._report.removed_files += len(files.drop_below(files.origin)[0])
        with self._phases.phase("index"):
            self._rebuild_units()
            self._index.erase(end.index, self._index_limit(end.index))
        with self._phases.phase("above_mark"):
            self._sync()
        return Recovered(self._report, end, self._runs)

    # What lies below the mark

    def _look_below(self) -> Below:
        mark = self._mark
        try:
            if mark.index < 0:
                return Below.NOTHING
            if self._files.begin != self._begin.pos or not self._files.bases:
                raise _Damage(self._name_missing())
            if mark.index < self._begin.index:
                return Below.INTACT
            self._require_files(mark.end_pos)
            firsts = self._read_firsts(mark.end_pos)
            self._check_files(firsts)
            self._check_mark()
        except _Damage as damage:
            return self._damaged(str(damage))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # Nothing was written or synced so far: an unreadable page counts as damage.
            return self._damaged(f"the disk cannot read it ({error})")
        return Below.INTACT

    def _damaged(self, damage: str) -> Below:
        self._report.reason = (
            f"{damage}; the log was synced up to entry {self._mark.index}: restore this replica"
            " from"
            " its peers"
        )
        return Below.DAMAGED

    def _name_missing(self) -> str:
        present = (
            f"the first log file begins at {self._files.begin}"
            if self._files.bases
            else "there is no log file"
        )
        source = (
            "the begin file says that the log begins there"
            if self._begin.index
            else "no begin file says that it was trimmed"
        )
        return f"{present}, that at {self._begin.pos} is missing ({source})"

    def _require_files(self, end_pos: int) -> None:
        gap = self._files.gap_after()
        reach = self._files.end if gap is None else gap
        if reach < end_pos:
            raise _Damage(f"the log files end at {reach}, the synced part at {end_pos}")

    def _read_firsts(self, end_pos: int) -> list[Point]:
        """The first entry of every file below the mark; all other checks start from these."""
        firsts: list[Point] = []
        for base in self._files.bases:
            if base >= end_pos:
                break
            head = self._header(base)
            low = (
                (firsts[-1].index + 1, firsts[-1].term)
                if firsts
                else (self._begin.index, self._begin.term)
            )
            if (
                head is None
                or head.index < low[0]
                or head.term < low[1]
                or (not firsts and head.index != self._begin.index)
            ):
                raise _Damage(
                    f"the log file at {base} does not begin with the entry that belongs there"
                )
            if (
                not firsts
                and head.index
                and next_chain(self._files.read(base, HEADER_BYTES), self._begin.chain)
                != head.chain
            ):
                raise _Damage(
                    f"entry {head.index}, with which the log begins, does not continue what was"
                    " trimmed"
                )
            firsts.append(head)
            self._files.close_idle(lambda file: False)
        return firsts

    def _header(self, pos: int) -> Point | None:
        """The entry whose header lies at `pos` (its index, term and stored chain CRC), or None."""
        raw = self._files.read(pos, HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            return None
        magic, size, index, term, its_pos, _, chain, _, body_size = ENTRY_HEAD.unpack(raw)
        return (
            Point(pos=pos, index=index, term=term, chain=chain)
            if magic == ENTRY_MAGIC and its_pos == pos and size == body_size + HEADER_BYTES
            else None
        )

    def _check_files(self, firsts: list[Point]) -> None:
        """Check the last files entry by entry; find the terms of older files by bisection."""
        checked_from = (
            0
            if self._thorough
            else len(firsts) - max(1, -(-STRUCTURE_BYTES // self._files.file_bytes))
        )
        for at, first in enumerate(firsts):
            after = firsts[at + 1] if at + 1 < len(firsts) else None
            last_index = self._mark.index if after is None else after.index - 1
            if at >= checked_from or not self._bisect_terms(first, last_index):
                self._check_file(first, last_index, after)
            # Nothing is written yet. Close files, because a log of many files must not need as many
            # descriptors.
            for files in (self._files, self._index.files):
                files.close_idle(lambda file: False)

    def _check_file(self, first: Point, last_index: int, after: Point | None) -> None:
        self._report.checked_files += 1
        runs = list(self._runs)
        end_pos = self._mark.end_pos if after is None else self._end_of(last_index, after)
        try:
            if end_pos is None:
                raise Disagreement(f"the unit of entry {last_index} is wrong")
            check_units(
                self._files,
                self._index,
                point=first,
                last_index=last_index,
                end_pos=end_pos,
                runs=runs,
                headers=not self._clean,
            )
        except Disagreement as disagreement:
            self._walk_file(first, last_index, after, str(disagreement))
            return
        if after is not None:
            self._check_blank(end_pos, after)
        self._runs = runs

    def _end_of(self, last_index: int, after: Point) -> int | None:
        """The end of the last entry of a file that has a successor, according to its unit."""
        units = self._index.get(last_index, 1)
        if len(units) != 1 or int(units["index"][0]) != last_index:
            return None
        end = int(units["pos"][0]) + int(units["size"][0])
        return end if after.pos - self._files.file_bytes < end <= after.pos - BLANK_BYTES else None

    def _check_blank(self, end_pos: int, after: Point) -> None:
        if BLANK.unpack(self._files.read(end_pos, BLANK_BYTES)) != (
            BLANK_MAGIC,
            after.pos - end_pos,
        ):
            raise _Damage(
                f"there is no blank at {end_pos} between entry {after.index - 1} and entry"
                f" {after.index}"
            )
        if (
            not self._clean
            and first_nonzero(self._files, end_pos + BLANK_BYTES, after.pos) is not None
        ):
            raise _Damage(f"the blank at {end_pos} is not zero")

    def _walk_file(self, first: Point, last_index: int, after: Point | None, why: str) -> None:
        """Check a file whose units cannot be trusted: its entries decide, and the units are
        rewritten. Without the units as a second witness, the entries must match their CRCs:
        otherwise an older entry that reappeared at a position would not be noticed."""
        stop = self._mark.end_pos if after is None else after.pos
        walker = Walker(self._files, replace(first, chain=self._chain_before(first)), verify=True)
        for piece in walker.pieces(stop):
            add_runs(self._runs, piece.first_index, piece.terms)
        if walker.point.index != last_index + 1 or (after is None and walker.point.pos != stop):
            raise _Damage(
                f"entry {walker.point.index} at {walker.point.pos} is damaged"
                f" ({walker.problem or 'zero bytes'}; {why})"
            )
        if after is not None:
            self._check_blank(walker.point.pos, after)
            if (
                next_chain(self._files.read(after.pos, HEADER_BYTES), walker.point.chain)
                != after.chain
            ):
                raise _Damage(
                    f"entry {after.index} at {after.pos} does not continue entry {last_index}"
                    f" ({why})"
                )
        self._rebuilds.append(_Rebuild(first, walker.point.pos, last_index, walker.point.chain))

    def _chain_before(self, first: Point) -> int:
        """The chain CRC in front of the first entry of a file: that of the last entry of the
        previous file, which was checked before."""
        if first.index == self._begin.index:
            return self._begin.chain
        if self._rebuilds and self._rebuilds[-1].last_index == first.index - 1:
            return self._rebuilds[-1].chain
        units = self._index.get(first.index - 1, 1)
        head = self._header(int(units["pos"][0])) if len(units) == 1 else None
        if head is None or head.index != first.index - 1:
            raise _Damage(
                f"entry {first.index - 1}, the last of its file, is not where its unit says"
            )
        return head.chain

    def _bisect_terms(self, first: Point, last_index: int) -> bool:
        """Add the term runs of a whole file by reading few units. False if a unit is wrong; the
        file must then be checked in full."""
        runs: list[Run] = []
        index, term = first.index, first.term
        last = self._probe(last_index)
        if last is None or last < term:
            return False
        while True:
            runs.append((index, term))
            if term == last:
                break
            low, high, after = index, last_index, last
            while low < high:
                middle = (low + high) // 2
                its_term = self._probe(middle)
                if its_term is None or not term <= its_term <= last:
                    return False
                if its_term == term:
                    low = middle + 1
                else:
                    high, after = middle, its_term
            index, term = low, after
        self._runs += [run for run in runs if not self._runs or run[1] != self._runs[-1][1]]
        return True

    def _probe(self, index: int) -> int | None:
        """The term of an entry, if its unit and its header agree."""
        units = self._index.get(index, 1)
        if len(units) != 1 or int(units["index"][0]) != index:
            return None
        head = self._header(int(units["pos"][0]))
        return (
            head.term
            if head is not None and head.index == index and head.term == int(units["term"][0])
            else None
        )

    def _check_mark(self) -> None:
        """Check that the last synced entry is the one in the mark."""
        mark = self._mark
        pos = None
        if self._rebuilds and self._rebuilds[-1].stop == mark.end_pos:
            walker = Walker(self._files, self._rebuilds[-1].point, verify=False)
            for piece in walker.pieces(mark.end_pos):
                pos = piece.pos + int(piece.starts[-1])
        else:
            pos = int(self._index.get(mark.index, 1)["pos"][0])
        head = None if pos is None else self._header(pos)
        if head is None or (head.index, head.term, head.chain) != (
            mark.index,
            mark.term,
            mark.chain_crc,
        ):
            raise _Damage(f"entry {mark.index} is not the one that was synced")

    # What lies above it

    def _start(self) -> Point:
        mark = self._mark
        return (
            Point(pos=mark.end_pos, index=mark.index + 1, term=mark.term, chain=mark.chain_crc)
            if mark.index >= 0
            else Point(pos=0, index=0, term=-1, chain=self._begin.chain)
        )

    def _look_above(self) -> tuple[Above, Walker]:
        gap = 0 if self._files.begin > self._start().pos else self._files.gap_after()
        if gap is not None:
            self._drop(gap)
        walker = Walker(self._files, self._start(), verify=True)
        for piece in walker.pieces(self._files.end):
            add_runs(self._runs, piece.first_index, piece.terms)
        end = walker.point
        if end.index > self._start().index:
            return (
                Above.TORN if self._is_soiled(end.pos) or gap is not None else Above.ENTRIES
            ), walker
        if walker.blank_at is not None and not self._is_soiled(walker.blank_at + BLANK_BYTES):
            return Above.BLANK, walker
        return (
            Above.GARBAGE if self._is_soiled(end.pos) or gap is not None else Above.NOTHING
        ), walker

    def _is_soiled(self, start: int) -> bool:
        stop = min(self._files.end, start + CLEAN_WINDOW_BYTES) if self._clean else self._files.end
        return first_nonzero(self._files, start, stop) is not None

    # Carrying it out

    def _drop(self, offset: int) -> None:
        """Remove files behind a gap. The gap is above the mark, so an interrupted truncation left
        it, or a power cut lost a name that was not synced yet."""
        dropped = [base for base in self._files.bases if base >= offset]
        for file in self._files.drop_from(offset):
            file.close()
        self._report.removed_files += len(dropped)

    def _rewrite(self, end: Point) -> None:
        walker = Walker(self._files, self._start(), verify=True)
        for piece in walker.pieces(end.pos):
            if piece.blank_at is not None:
                self._write(piece.blank_at, make_blank(piece.pos - piece.blank_at))
            self._write(piece.pos, piece.data)
            self._put_units(piece)
            self._report.rewritten_bytes += len(piece.data)
        if walker.point != end:
            # The bytes differ between two reads: the medium returned other bytes than the page
            # cache.
            raise OSError(
                5, f"the log reads differently a second time, from entry {walker.point.index} on"
            )

    def _erase(self, start: int) -> None:
        """Zero the nonzero bytes behind the end, and remove all empty files but one."""
        spare = self._files.base_of(start) + 2 * self._files.file_bytes
        if self._files.end > spare:
            self._drop(spare)
        while (soiled := first_nonzero(self._files, start, self._files.end)) is not None:
            start = min(soiled + CHUNK_BYTES, self._files.base_of(soiled) + self._files.file_bytes)
            self._write(soiled, bytes(start - soiled))
            self._report.erased_bytes += start - soiled

    def _zero_again(self, start: int) -> None:
        """Write zeros behind the end although it reads as zeros: a truncation whose sync failed may
        have left older bytes on the medium, and a later power cut would bring them back."""
        stop = min(start + ZERO_AGAIN_BYTES, self._files.end)
        while start < stop:
            length = min(
                CHUNK_BYTES,
                stop - start,
                self._files.base_of(start) + self._files.file_bytes - start,
            )
            self._write(start, bytes(length))
            start += length

    def _rebuild_units(self) -> None:
        for rebuild in self._rebuilds:
            for piece in Walker(self._files, rebuild.point, verify=False).pieces(rebuild.stop):
                self._put_units(piece)
                self._report.rebuilt_units += len(piece.starts)
            self._files.close_idle(lambda file: file in self._dirty)

    def _put_units(self, piece: Piece) -> None:
        self._index.rewrite(
            piece.first_index,
            make_units(piece.first_index, piece.terms, piece.starts + piece.pos, piece.sizes),
        )

    def _index_limit(self, end_index: int) -> int:
        limit = self._index.files.end // UNIT_BYTES
        return min(limit, end_index + CLEAN_WINDOW_BYTES // UNIT_BYTES) if self._clean else limit

    def _write(self, pos: int, data: bytes) -> None:
        file = self._files.at(pos)
        file.pwrite(pos % self._files.file_bytes, data)
        self._dirty[file] = None

    def _sync(self) -> None:
        for file in self._dirty:
            file.sync()
        self._index.sync()
        for files in (self._files, self._index.files):
            if files.names_changed:
                self._disk.sync_dir(files.directory)
                files.names_changed = False
