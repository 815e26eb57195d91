"""Checking one log file on its own: every entry's header, both CRCs, its record, its index unit and
its consume queue unit.

`scan` is the plain function (file → report) that both engines run; only a small report per file is
returned. Checks that need more than one file (chain and index across files, the end of the log,
other replicas) are in `after_scan` and `group_comparison`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.checks import derived
from ledgermq.audit.checks.order import OrderCheck, ProducerRun
from ledgermq.audit.reading import bytewise
from ledgermq.audit.reading.columns import RAFT_TOPIC, Columns, Parts, native_ids, take_apart
from ledgermq.audit.reading.decode import (
    ENTRY_MAGIC,
    HEADER_BYTES,
    I64,
    RECORD_FIXED_BYTES,
    Flags,
    body_crcs,
    chain_crcs,
    chain_inputs,
    crc,
    properties_are_whole,
    tags_code,
)
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.lookup import stored_chain
from ledgermq.audit.reading.native import KERNEL, PYTHON, SCAN, Kernel, may_ask
from ledgermq.audit.reading.objects import StoredObject
from ledgermq.audit.reading.walk import WINDOW_BYTES, LogFile, Piece, Progress, Walk
from ledgermq.audit.rules import Flaw, coalesce

if TYPE_CHECKING:
    from ledgermq_native.audit_scan import Clean

RECORD = HEADER_BYTES
U32 = NDArray[np.uint32]
FLAWS_MAX = 2000
STORAGE_TOPIC = b"rmq_sys_ledgermq_storage"
TRIM_TAG = b"TAGS\x01trim\x02"
SEAL_TAG = b"TAGS\x01seal\x02"
MARKER_TAG = b"TAGS\x01audit\x02"
DELIVERY_TOPIC = b"rmq_sys_ledgermq_delivery"
RESET_CODE = tags_code(b"reset")
TIME_EPOCH_CODE = tags_code(b"time-epoch")
ELECTION_CODES = (tags_code(b"term-start"), tags_code(b"forced"))
NOTED = (
    (STORAGE_TOPIC, None),
    (DELIVERY_TOPIC, RESET_CODE),
    (RAFT_TOPIC, TIME_EPOCH_CODE),
    *((RAFT_TOPIC, code) for code in ELECTION_CODES),
)
"""Topic and tags code of the records whose bodies are kept; membership records are besides."""
_STORAGE, _RESET, _TIME_EPOCH, _MEMBERSHIP = 0, 1, 2, len(NOTED)


@dataclass(frozen=True, slots=True)
class _Links:
    """The chain of one piece, per entry: the input, the word before, the computed word, and the
    word accepted so far."""

    inputs: bytes
    before: list[int]
    calculated: I64
    good: Flags
    intact: Flags
    proven: Flags
    flawed: Flags
    unchecked: bool


@dataclass(slots=True)
class LogReport:
    """What is known about one log file after the scan; plain values, so that it can cross process
    boundaries as JSON."""

    file: str
    base: int
    length: int
    entries: int = 0
    first_index: int | None = None
    last_index: int | None = None
    first_term: int = 0
    last_term: int = 0
    first_size: int = 0
    prev_chain: int | None = None
    """The chain value against which the first entry was checked; None: unchecked."""
    first_input: str = ""
    """Header[0:36] and body CRC of the first entry, in hexadecimal, for checking its chain CRC."""
    first_chain: int = 0
    first_store_ms: int = 0
    last_store_ms: int = 0
    highest_store_ms: int = 0
    time_epochs: list[int] = field(default_factory=list)
    """The indexes of the records with which a time epoch begins."""
    last_chain: int = 0
    last_intact_index: int = -1
    last_at: int = 0
    """Offset of the last entry."""
    end: int = 0
    """Offset behind the last entry."""
    ending: str = "zero"
    memberships: list[tuple[int, str]] = field(default_factory=list)
    elections: list[tuple[int, str]] = field(default_factory=list)
    """Index and body of every record that began a term, or forced a master."""
    trims: list[tuple[int, str]] = field(default_factory=list)
    """Index and body of every trim record."""
    seals: list[tuple[int, str]] = field(default_factory=list)
    """Index and body of every seal record."""
    markers: list[tuple[int, str]] = field(default_factory=list)
    """Index and body of every audit marker."""
    sha256: str = ""
    """For a file that ends in a blank, if bytes are compared (`--deep`), and for every stored one:
    the digest in the form of a seal."""
    root: str = ""
    """Likewise the root of the tree over its entries; empty if they are damaged."""
    resets: list[tuple[int, str]] = field(default_factory=list)
    """Index and body of every record by which an operator moved a consumer group."""
    sound: int = 0
    """The number of intact entries (`Columns`)."""
    last_sound_term: int | None = None
    """The term of the last proven entry."""
    unnumbered: list[int] = field(default_factory=list)
    """Indexes of intact messages whose producer and sequence number are unknown."""
    queues: list[derived.QueueRun] = field(default_factory=list)
    producers: list[ProducerRun] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    """Indexes of entries that are not intact."""
    election_tail: int | None = None
    """From this index on, the file holds only term-start records."""
    scanned_by: str = PYTHON
    """The scan that read the windows in which every entry is in order; the Python scan reads the
    others."""


PACKINGS = (0x101, 0x201)
"""SYSFLAGs of compressed bodies: LZ4, ZSTD."""
OLD_PACKING = 0x301
"""zlib: in imported messages, and in messages made from them. No native message has it."""


class Scan:
    """One pass over one log file. Iterate over `columns()`; afterwards `report` is complete. With a
    kernel, the windows that it finds in order have no columns."""

    def __init__(
        self, task: LogFile, progress: Progress | None = None, kernel: Kernel | None = None
    ) -> None:
        self.task = task
        self.report = LogReport(
            task.shown, task.base, 0, scanned_by=PYTHON if kernel is None else SCAN
        )
        self._kernel = kernel
        self._progress = progress or (lambda _bytes: None)
        self._queues = derived.QueueCheck(task)
        self._index = derived.IndexCheck(task)
        self._order = OrderCheck(task)
        self._flaws: list[Flaw] = []
        self._store_ms = -1
        self._term = 0
        self._done = 0

    def columns(self, window_bytes: int = WINDOW_BYTES) -> Iterator[Columns]:
        """Read the file; every piece is checked before it is yielded. An OSError becomes a flaw and
        ends the pass."""
        report = self.report
        try:
            file = open_file(self.task.path)
        except OSError as error:
            self._unreadable(error)
            self._finish()
            return
        try:
            digests = bytewise.Digests(self._kernel)
            if isinstance(file, StoredObject):
                # An object is fetched once, so it is digested in the same pass, which reads all of
                # it.
                file.watch(digests.add)
            report.length = file.size
            self._check_length()
            limit = self.task.limit(report.length)
            walk = Walk(self.task, file, limit, self._kernel)
            for piece in walk.pieces(
                window_bytes, take=None if self._kernel is None else self._scan_window
            ):
                yield self._check(piece)
                self._reach(
                    piece.start + int(piece.offsets[piece.count - 1] + piece.sizes[piece.count - 1])
                )
            report.end, report.ending = walk.end, walk.ending
            self._flaws += walk.flaws
            self._reach(limit)
            if isinstance(file, StoredObject):
                report.sha256, report.root = digests.found(report.end)
        except OSError as error:
            self._unreadable(error)
        finally:
            file.close()
            self._finish()

    def _reach(self, place: int) -> None:
        self._progress(place - self._done)
        self._done = place

    def _unreadable(self, error: OSError) -> None:
        self._flaws.append(
            Flaw(
                "file.read",
                self.task.shown,
                index=self.report.last_index,
                byte_from=0,
                byte_to=self.report.length,
                proof=f"{error.strerror}",
            )
        )

    def _check_length(self) -> None:
        has, wants = self.report.length, self.task.data_file_bytes
        if has != wants:
            flaw = Flaw(
                "file.length",
                self.task.shown,
                index=None,
                byte_from=min(has, wants),
                byte_to=max(has, wants),
                proof=f"{has} bytes instead of {wants}",
            )
            self._flaws.append(flaw)

    def _finish(self) -> None:
        report = self.report
        report.queues = self._queues.runs()
        report.producers, report.unnumbered = self._order.runs(), self._order.unnumbered
        ordered = (
            sorted(self._flaws, key=lambda flaw: (flaw.byte_from, flaw.rule)) + self._order.flaws
        )
        ordered += self._index.flaws + self._queues.flaws
        report.flaws = coalesce(ordered, FLAWS_MAX)

    # ------------------------------------------------------------------------------------------------- a window in order

    def _scan_window(self, window: bytes, start: int, joined: bool) -> Clean | None:
        """Let the kernel go over a window. If everything is in order, with what came before and
        with the derived files too, the report has then what `_check` would give it; otherwise
        nothing has changed."""
        report, kernel = self.report, self._kernel
        if kernel is None:
            return None
        previous = report.last_chain if joined else self._hint(start, window)
        index = None if report.last_index is None else report.last_index + 1
        pos = self.task.base + start
        if previous is None or not may_ask(pos, index or 0, previous):
            return None
        clean = kernel.scan(
            window,
            pos=pos,
            room=self.task.limit(report.length) - start,
            left=report.length - start,
            chain=previous,
            index=index,
            term=self._term,
            store_ms=self._store_ms,
            deep=self.task.deep,
            wanted=NOTED,
        )
        if clean is None or not self._order.continues(clean.producers):
            return None
        if not self._index.agrees(clean.index, clean.index_units) or not self._queues.agrees(
            clean.queues
        ):
            return None
        self._keep(clean, window, start, previous)
        return clean

    def _keep(self, clean: Clean, window: bytes, start: int, previous: int) -> None:
        report = self.report
        if not report.entries:
            report.first_index, report.first_term = clean.index, clean.first_term
            report.first_size, report.prev_chain = clean.first_size, previous
            report.first_input, report.first_chain = clean.first_input.hex(), clean.first_chain
            report.first_store_ms = clean.first_store_ms
        self._order.add_window(clean, start, report.sound)
        self._queues.add_window(clean, start, report.sound)
        report.entries += clean.count
        report.sound += clean.count
        report.last_index = report.last_intact_index = clean.index + clean.count - 1
        self._term = report.last_term = report.last_sound_term = clean.last_term
        report.last_chain = clean.last_chain
        self._store_ms = report.last_store_ms = clean.last_store_ms
        report.highest_store_ms = max(report.highest_store_ms, clean.last_store_ms)
        report.last_at = start + clean.last_at
        for note in clean.noted:
            index = clean.index + note.row
            if note.kind == _STORAGE:
                self._note_storage_record(window, note.at, note.at + note.size, index)
            elif note.kind == _TIME_EPOCH:
                report.time_epochs.append(index)
            else:
                kept = {_RESET: report.resets, _MEMBERSHIP: report.memberships}.get(
                    note.kind, report.elections
                )
                kept.append((index, _body(window, note.at)))
        if clean.last_plain_row is not None:
            report.election_tail = clean.index + clean.last_plain_row + 1
        elif report.election_tail is None:
            report.election_tail = clean.index
        self._reach(start + clean.stop)

    # ------------------------------------------------------------------------------------------------------- one piece

    def _check(self, piece: Piece) -> Columns:
        report, rows, count = self.report, piece.rows, piece.count
        bodies = body_crcs(piece.window, piece.offsets, piece.sizes)
        inputs = chain_inputs(rows, bodies)
        previous = report.last_chain if piece.joined else self._hint(piece.start, piece.window)
        index, header_flawed = self._check_headers(piece, inputs, previous)
        intact, proven = self._check_chain(
            piece, index, bodies, inputs, previous, flawed=header_flawed
        )
        if not report.entries:
            report.first_index, report.first_term = int(index[0]), int(rows["term"][0])
            report.first_size, report.prev_chain = int(piece.sizes[0]), previous
            report.first_input, report.first_chain = inputs[:40].hex(), int(rows["chain_crc"][0])
            report.first_store_ms = int(rows["store_ms"][0])
        columns = self._records(piece, index, bodies, intact, proven)
        self._check_order(piece, columns)
        report.entries += count
        report.last_index, report.last_term = int(index[count - 1]), int(columns.term[-1])
        report.last_chain = int(rows["chain_crc"][count - 1])
        report.last_at = piece.start + int(piece.offsets[count - 1])
        report.damaged += columns.index[~columns.intact].tolist()
        sound_indexes = columns.index[columns.intact]
        report.last_intact_index = (
            max(report.last_intact_index, int(sound_indexes[-1]))
            if len(sound_indexes)
            else report.last_intact_index
        )
        self._index.check(columns)
        self._queues.check(columns)
        self._note_memberships(piece, columns)
        self._note_storage(piece, columns)
        self._note_resets(piece, columns)
        self._note_elections(piece, columns)
        return columns

    def _hint(self, start: int, window: bytes) -> int | None:
        """The chain value before the first entry of a window, which follows no other: the seed, or
        the word of the previous file's last entry, found by the index."""
        if start == 0 and self.task.base == self.task.begin_pos:
            return self.task.seed
        return None if start else stored_chain(self.task, int.from_bytes(window[8:16]) - 1)

    def _flaw(
        self,
        piece: Piece,
        at: int,
        index: int,
        rule: str,
        start: int,
        end: int,
        proof: str,
        torn: bool = True,
    ) -> None:
        place = piece.start + int(piece.offsets[at])
        self._flaws.append(
            Flaw(
                rule,
                self.task.shown,
                index=index,
                byte_from=place + start,
                byte_to=place + end,
                proof=proof,
                torn=torn,
            )
        )

    def _check_headers(
        self, piece: Piece, inputs: bytes, previous: int | None
    ) -> tuple[I64, Flags]:
        """The indexes that the entries must have, and which headers have a field that is wrong by
        itself."""
        rows, count, sizes = piece.rows, piece.count, piece.sizes
        index = self._true_indexes(piece, inputs, previous)
        pos = self.task.base + piece.start + piece.offsets
        checks = (
            ("entry.magic", 0, 4, rows["magic"], np.full(len(rows), ENTRY_MAGIC)),
            ("entry.size", 4, 8, rows["size"], sizes),
            ("entry.index", 8, 16, rows["index"], index),
            ("entry.pos", 24, 32, rows["pos"], pos),
            ("entry.body-size", 44, 48, rows["body_size"], sizes - HEADER_BYTES),
        )
        flawed = np.zeros(len(rows), np.bool_)
        for rule, start, end, has, wants in checks:
            bad = has.astype(np.int64) != wants
            flawed |= bad
            for at in np.flatnonzero(bad[:count]).tolist():
                self._flaw(
                    piece,
                    at,
                    index=int(index[at]),
                    rule=rule,
                    start=start,
                    end=end,
                    proof=f"{int(has[at])} instead of {int(wants[at])}",
                )
        beyond = piece.start + piece.offsets + sizes + 8 > self.report.length
        for at in np.flatnonzero(beyond[:count]).tolist():
            self._flaw(
                piece,
                at,
                index=int(index[at]),
                rule="entry.room",
                start=0,
                end=int(sizes[at]),
                proof="the entry leaves no room for a blank",
            )
        return index, flawed

    def _true_indexes(self, piece: Piece, inputs: bytes, previous: int | None) -> I64:
        """The correct index fields: they count up by one; a deviation of a single field is an
        error, a lasting jump is a gap. Of two fields alone the chain tells which one is right."""
        index: I64 = piece.rows["index"].astype(np.int64)
        total = len(index)
        last = self.report.last_index
        if piece.joined and last is not None:
            if total == 1 or index[1] == last + 2:
                index[0] = last + 1
            elif index[0] != last + 1:
                self._jump(piece, 0, last + 1, int(index[0]))
        elif total > 1 and (
            index[1] + 1 == index[2]
            if total > 2
            else _second_is_right(piece.rows, inputs, previous)
        ):
            index[0] = index[1] - 1
        for at in (np.flatnonzero(np.diff(index) != 1) + 1).tolist():
            if index[at] == index[at - 1] + 1:
                continue
            if at + 1 == total or index[at + 1] == index[at - 1] + 2:
                index[at] = index[at - 1] + 1
            else:
                self._jump(piece, at, int(index[at - 1]) + 1, int(index[at]))
        return index

    def _jump(self, piece: Piece, at: int, expected: int, actual: int) -> None:
        rule = "entry.gap" if actual > expected else "entry.repeat"
        self._flaw(
            piece,
            at,
            index=min(expected, actual),
            rule=rule,
            start=8,
            end=16,
            proof=f"index {actual} follows index {expected - 1}",
            torn=False,
        )

    def _check_chain(
        self,
        piece: Piece,
        index: I64,
        bodies: U32,
        inputs: bytes,
        previous: int | None,
        flawed: Flags,
    ) -> tuple[Flags, Flags]:
        """Recompute the chain with the stored value before each entry, and distinguish damage of
        body, header and both CRC words. Returns which entries are intact, and which are proven (see
        `Columns`)."""
        rows, count = piece.rows, piece.count
        stored = rows["chain_crc"].astype(np.int64)
        before = [previous or 0, *stored[:-1].tolist()]
        calculated = chain_crcs(inputs, before)
        good = calculated == stored
        same_body = rows["body_crc"] == bodies
        if previous is None:
            # The value before this entry is unknown: only the body can be checked. `after_scan`
            # checks the link across files.
            good[0] = same_body[0]
            if piece.start:
                self._unlinked(piece, int(index[0]))
        link = _Links(
            inputs=inputs,
            before=before,
            calculated=calculated,
            good=good,
            intact=good.copy(),
            proven=good.copy(),
            flawed=flawed,
            unchecked=previous is None,
        )
        for at in np.flatnonzero(~(good & same_body)).tolist():
            if at < count:
                self._tell_damage(piece, at, int(index[at]), link)
        link.proven[:] |= link.intact
        return link.intact[:count], link.proven[:count]

    def _unlinked(self, piece: Piece, index: int) -> None:
        """Only a peer can confirm the header of an entry behind an unreadable place. Without a peer
        that place is the finding."""
        start, size = piece.start, int(piece.sizes[0])
        proof = "the entry before it cannot be read, so nothing continues to this one"
        flaw = Flaw(
            "entry.chain",
            self.task.shown,
            index=index,
            byte_from=start,
            byte_to=start + size,
            proof=proof,
            torn=True,
        )
        self._flaws.append(replace(flaw, measures=((self.task.shown, start - 1, start),)))

    def _tell_damage(self, piece: Piece, at: int, index: int, link: _Links) -> None:
        size, row = int(piece.sizes[at]), piece.rows[at]
        has, wants = (
            int.from_bytes(link.inputs[40 * at + 36 : 40 * at + 40], "big"),
            int(row["body_crc"]),
        )
        body = f"the body has CRC {has:08x}, its header says {wants:08x}"
        stored, calculated = int(row["chain_crc"]), int(link.calculated[at])
        if at == 0 and link.unchecked:
            self._flaw(piece, at, index, "entry.body", start=40, end=size, proof=body)
            return
        if not link.good[at] and at + 1 < len(piece.rows) and not link.good[at + 1]:
            following = crc(link.inputs[40 * at + 40 : 40 * at + 80], calculated)
            if following == int(piece.rows["chain_crc"][at + 1]):
                link.good[at] = link.good[at + 1] = link.intact[at] = link.intact[at + 1] = True
                proof = f"the word is {stored:08x}, the chain goes on from {calculated:08x}"
                self._flaw(piece, at, index, "entry.chain-word", start=36, end=40, proof=proof)
                # The comparison of replicas uses the entry's content, not the damaged word.
                piece.rows["chain_crc"][at] = calculated
        if link.good[at]:
            if has != wants:
                self._flaw(piece, at, index, "entry.body-crc", start=40, end=44, proof=body)
            return
        header = (
            self._mended(piece, at, index)
            if link.flawed[at]
            else link.inputs[40 * at : 40 * at + 36]
        )
        authentic = crc(header + wants.to_bytes(4, "big"), link.before[at]) == stored
        if has != wants:
            self._flaw(
                piece,
                at,
                index,
                "entry.body",
                start=HEADER_BYTES if authentic else 0,
                end=size,
                proof=body,
            )
        elif authentic and link.flawed[at]:
            link.proven[at] = True
        else:
            # The body may have been altered together with its bodyCrc: no part of this entry is
            # proven.
            rule = (
                "chain.seed"
                if at == 0 and piece.start == 0 and self.task.base == self.task.begin_pos
                else "entry.chain"
            )
            self._flaw(
                piece,
                at,
                index,
                rule,
                start=0,
                end=size,
                proof=f"the chain CRC is {stored:08x}, recomputed {calculated:08x}",
            )

    def _mended(self, piece: Piece, at: int, index: int) -> bytes:
        """The first 36 bytes of a header, with the fields corrected that `_check_headers` found
        wrong: if the chain continues over these bytes, the rest of the header is right."""
        row = piece.rows[at].copy()
        row["magic"], row["size"], row["index"] = ENTRY_MAGIC, piece.sizes[at], index
        row["pos"] = self.task.base + piece.start + piece.offsets[at]
        return bytes(row)[:36]

    # --------------------------------------------------------------------------------------------------------- records

    def _records(
        self, piece: Piece, index: I64, bodies: U32, intact: Flags, proven: Flags
    ) -> Columns:
        rows, count = piece.rows[: piece.count], piece.count
        parts = take_apart(piece.window, piece.offsets[:count], piece.sizes[:count], rows)
        sound = proven & parts.fits
        columns = Columns(
            index=index[:count],
            term=rows["term"].astype(np.int64),
            offset=piece.start + piece.offsets[:count],
            size=piece.sizes[:count],
            chain=rows["chain_crc"].astype(np.int64),
            body_crc=bodies[:count].astype(np.int64),
            channel=rows["channel"].astype(np.int64),
            queue=rows["queue"].astype(np.int64),
            queue_offset=rows["queue_offset"].astype(np.int64),
            store_ms=rows["store_ms"].astype(np.int64),
            total_size=rows["total_size"].astype(np.int64),
            tags_code=parts.tags_codes,
            topic_of=parts.topic_of,
            topics=parts.topics,
            intact=intact,
            proven=proven,
            sound=sound,
            ordinal=self.report.sound + np.cumsum(sound) - sound,
        )
        self.report.sound += int(np.count_nonzero(sound))
        self._check_records(piece, rows, columns, parts)
        self._order.check(piece, columns, parts)
        return columns

    def _check_records(
        self, piece: Piece, rows: NDArray[np.void], columns: Columns, parts: Parts
    ) -> None:
        """Check the rules of a record, for proven entries only; elsewhere the damage itself is the
        finding."""
        pos = self.task.base + columns.offset
        # Term 0 has no leader: except for the first membership record, its entries were imported,
        # and keep these fields.
        constant = ((rows["born_host"] != 0) | (rows["reconsume_times"] != 0)) & (columns.term > 0)
        packed = rows["sys_flag"].astype(np.int64)
        flagged = self._odd_flags(piece, rows, columns, parts)
        odd_packing = (
            (packed != 0)
            & ~np.isin(packed, PACKINGS)
            & ((packed != OLD_PACKING) | (rows["flag"] != 0))
        )
        origin = rows["prepared_offset"].astype(np.int64)
        odd_origin = (origin < 0) | (origin >= np.maximum(columns.index, 1))
        whole = columns.sound
        checks = (
            (
                "record.total-size",
                0,
                4,
                columns.proven & (columns.total_size != columns.size - HEADER_BYTES),
                "TOTALSIZE is not bodySize",
            ),
            (
                "record.magic",
                4,
                8,
                columns.proven & ~parts.right_magic,
                "MAGICCODE does not fit the topic",
            ),
            (
                "record.structure",
                RECORD_FIXED_BYTES - 4,
                0,
                columns.proven & ~parts.fits,
                "its parts do not fill the record",
            ),
            (
                "record.crc",
                8,
                12,
                whole & (rows["record_crc"] != parts.record_crcs),
                "BODYCRC is not that of the body",
            ),
            (
                "record.constant",
                48,
                76,
                columns.proven & constant,
                "a field that must be zero is not",
            ),
            (
                "record.sysflag",
                36,
                40,
                columns.proven & odd_packing,
                "SYSFLAG is none of those that a record may have",
            ),
            (
                "record.native",
                16,
                20,
                flagged,
                "FLAG is not the place of a native message in its frame",
            ),
            ("record.origin", 76, 84, columns.proven & odd_origin, "its origin is not before it"),
            (
                "record.position",
                28,
                36,
                columns.proven & (rows["physical_offset"] != pos + HEADER_BYTES),
                "PHYSICALOFFSET is not pos + 48",
            ),
            (
                "record.topic",
                12,
                0,
                whole & (~parts.right_topic | (columns.queue < 0)),
                "the topic or the queue id is illegal",
            ),
            (
                "record.properties",
                RECORD_FIXED_BYTES,
                0,
                whole & ~parts.closed,
                "the property string does not end in 02",
            ),
            (
                "entry.channel",
                -16,
                -12,
                columns.proven & (columns.channel != parts.membership),
                "the channel does not fit the record",
            ),
        )
        for rule, start, end, bad, proof in checks:
            for at in np.flatnonzero(bad).tolist():
                stop = RECORD + end if end else int(columns.size[at])
                self._flaw(
                    piece,
                    at,
                    index=int(columns.index[at]),
                    rule=rule,
                    start=RECORD + start,
                    end=stop,
                    proof=proof,
                    torn=False,
                )
        if self.task.deep:
            for at in np.flatnonzero(whole & parts.closed).tolist():
                a, b = int(parts.property_at[at]), int(piece.offsets[at] + piece.sizes[at])
                if not properties_are_whole(piece.window[a:b]):
                    proof = "the property string is not name 01 value 02, repeated"
                    place = a - int(piece.offsets[at])
                    self._flaw(
                        piece,
                        at,
                        index=int(columns.index[at]),
                        rule="record.properties",
                        start=place,
                        end=int(piece.sizes[at]),
                        proof=proof,
                        torn=False,
                    )

    def _odd_flags(
        self, piece: Piece, rows: NDArray[np.void], columns: Columns, parts: Parts
    ) -> Flags:
        """Records whose FLAG is neither 0 nor that of the next message of a frame with a native id.
        Behind a damaged entry, or at the start of a piece, the previous record is unknown."""
        flags = rows["flag"].astype(np.int64)
        odd: Flags = columns.proven & (flags < 0)
        if flags.any():
            later = np.flatnonzero(columns.sound & (flags > 1))
            later = later[(later > 0) & columns.proven[later - 1]]
            odd[later] |= flags[later] != flags[later - 1] + 1
            native = np.flatnonzero(columns.sound & (flags > 0))
            ends = piece.offsets[native] + piece.sizes[native]
            odd[native] |= ~native_ids(piece.window, parts.property_at[native], ends)
        return odd

    def _check_order(self, piece: Piece, columns: Columns) -> None:
        """Terms and store times never decrease from one proven entry to the next, but store times
        where a time epoch begins."""
        rows = np.flatnonzero(columns.proven)
        if not len(rows):
            return
        report = self.report
        terms, times = columns.term[rows], columns.store_ms[rows]
        for at in np.flatnonzero(np.diff(terms, prepend=self._term) < 0).tolist():
            proof = f"term {int(terms[at])} follows term {int(terms[at - 1]) if at else self._term}"
            self._flaw(
                piece,
                at=int(rows[at]),
                index=int(columns.index[rows[at]]),
                rule="entry.term-order",
                start=16,
                end=24,
                proof=proof,
                torn=False,
            )
        raft = np.array([topic == RAFT_TOPIC for topic in columns.topics], np.bool_)
        begins = (
            columns.sound[rows]
            & raft[columns.topic_of[rows]]
            & (columns.tags_code[rows] == TIME_EPOCH_CODE)
        )
        report.time_epochs += columns.index[rows[begins]].tolist()
        for at in np.flatnonzero((np.diff(times, prepend=self._store_ms) < 0) & ~begins).tolist():
            proof = (
                f"store time {int(times[at])} follows"
                f" {int(times[at - 1]) if at else self._store_ms}"
            )
            self._flaw(
                piece,
                at=int(rows[at]),
                index=int(columns.index[rows[at]]),
                rule="record.store-time",
                start=RECORD + 56,
                end=RECORD + 64,
                proof=proof,
                torn=False,
            )
        self._term = report.last_sound_term = int(terms[-1])
        self._store_ms = int(times[-1])
        report.last_store_ms = self._store_ms
        report.highest_store_ms = max(report.highest_store_ms, int(times.max()))

    def _note_memberships(self, piece: Piece, columns: Columns) -> None:
        for at in np.flatnonzero(columns.sound & (columns.channel == 1)).tolist():
            self.report.memberships.append(
                (int(columns.index[at]), _body(piece.window, int(piece.offsets[at])))
            )

    def _note_storage(self, piece: Piece, columns: Columns) -> None:
        storage = [number for number, topic in enumerate(columns.topics) if topic == STORAGE_TOPIC]
        for at in (
            np.flatnonzero(columns.sound & np.isin(columns.topic_of, storage)).tolist()
            if storage
            else []
        ):
            start, end = int(piece.offsets[at]), int(piece.offsets[at] + piece.sizes[at])
            self._note_storage_record(piece.window, start, end, int(columns.index[at]))

    def _note_storage_record(self, window: bytes, start: int, end: int, index: int) -> None:
        for tag, noted in (
            (TRIM_TAG, self.report.trims),
            (SEAL_TAG, self.report.seals),
            (MARKER_TAG, self.report.markers),
        ):
            if tag in window[start:end]:
                noted.append((index, _body(window, start)))

    def _note_resets(self, piece: Piece, columns: Columns) -> None:
        delivery = [
            number for number, topic in enumerate(columns.topics) if topic == DELIVERY_TOPIC
        ]
        if delivery:
            chosen = (
                columns.sound
                & np.isin(columns.topic_of, delivery)
                & (columns.tags_code == RESET_CODE)
            )
            self.report.resets += _bodies(piece, columns, chosen)

    def _note_elections(self, piece: Piece, columns: Columns) -> None:
        """Record which leader began which term, and where the run of such records at the end of the
        file begins."""
        raft = np.array([topic == RAFT_TOPIC for topic in columns.topics], np.bool_)
        chosen = columns.sound & raft[columns.topic_of] & np.isin(columns.tags_code, ELECTION_CODES)
        self.report.elections += _bodies(piece, columns, chosen)
        other = np.flatnonzero(~(raft[columns.topic_of] & (columns.channel == 0) & columns.sound))
        if len(other):
            self.report.election_tail = int(columns.index[other[-1]]) + 1
        elif self.report.election_tail is None:
            self.report.election_tail = int(columns.index[0])


def _second_is_right(rows: NDArray[np.void], inputs: bytes, previous: int | None) -> bool:
    """Whether the second of two entries has the right index: if the chain does not lead to the
    first one, or, where the value before that is not known, if the chain leads to the second
    one."""
    if previous is None:
        return _leads_to(rows, inputs, 1, int(rows["chain_crc"][0]))
    return not _leads_to(rows, inputs, 0, previous)


def _leads_to(rows: NDArray[np.void], inputs: bytes, at: int, before: int) -> bool:
    """Whether the chain goes on from the value `before` over an entry, with the CRC of its body or
    with the one that its header names."""
    entry = inputs[40 * at :][:40]
    named = entry[:36] + rows["body_crc"][at : at + 1].tobytes()
    return int(rows["chain_crc"][at]) in (crc(entry, before), crc(named, before))


def _bodies(piece: Piece, columns: Columns, chosen: Flags) -> list[tuple[int, str]]:
    """Index and body of the chosen control records."""
    return [
        (int(columns.index[at]), _body(piece.window, int(piece.offsets[at])))
        for at in np.flatnonzero(chosen).tolist()
    ]


def _body(window: bytes, at: int) -> str:
    """The body of the control record in the entry at `at`."""
    start = at + HEADER_BYTES + RECORD_FIXED_BYTES
    return window[start : start + int.from_bytes(window[start - 4 : start], "big")].decode(
        "utf-8", "replace"
    )


def scan(
    task: LogFile, progress: Progress | None = None, kernel: Kernel | None = KERNEL
) -> LogReport:
    """Check one log file."""
    work = Scan(task, progress, kernel)
    for _ in work.columns():
        pass
    return work.report
