"""Restoring one log file from all replicas: each entry is taken from a replica that holds it
exactly, and proven before anything is written.

The proof is either the seal of a majority for the whole file, or that the entries, read and
computed again in sequence, lead to the chain CRCs on which a majority agrees. Own entries behind
the last agreed one stay: they were never acknowledged, and nothing contradicts them. If there is no
proof, the result is `Undecided`; no version is guessed.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import BLANK_MAGIC, ENTRY_MAGIC, HEADER, HEADER_BYTES, I64, crc
from ledgermq.audit.reading.files import open_file, stat_of
from ledgermq.audit.repairs.held_entries import CHAINED_BYTES, NONE, Entries
from ledgermq.audit.repairs.ports import Readable
from ledgermq.proto.records.repair_plan import FileRepair, Piece

CHUNK_BYTES = 1 << 20
WINDOW_BYTES = 4 << 20
NOWHERE = 1 << 62
UNMARKED = "without a synced mark it is unknown where this log ends"
START = "start the node, which gives up entries without a majority"
_BLANK = struct.Struct(">ii")


class Undecided(Exception):
    """There is no proof of the right bytes; the text says for which entries, and why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted state of one file of one replica. `followed`: later files hold entries, so this
    one is complete; otherwise it ends with the entry `last_index`. `compared`: the index up to
    which the majority decides. `replaced`: another history is replaced, so no own entry behind
    `compared` stays."""

    owner: Replica
    last_index: int
    compared: int
    followed: bool
    replaced: bool
    seal: str | None
    why: str
    marked: int
    """The entry that the owner's synced mark names, −1 if the mark ends before this file. An index
    alone does not tell: other replicas may follow another history, and have entries below that
    index here."""


@dataclass(frozen=True, slots=True)
class End:
    """The last entry of a restored file."""

    index: int
    term: int
    end_pos: int
    chain: int


def splice(entries: Entries, wanted: Wanted) -> tuple[FileRepair, End]:
    """The file as it should be. Raises Undecided, OSError."""
    chosen = _Splice(entries, wanted)
    # Adjacent pieces from the same source are joined, to be copied at once.
    pieces = tuple(_joined([*chosen.pieces(), *chosen.rest()]))
    end = chosen.verified()
    digest = _digest(pieces)
    return (
        FileRepair(
            base=entries.base,
            pieces=pieces,
            sha256=digest,
            why=wanted.why,
            proof=chosen.proof(digest),
            keep=wanted.replaced,
        ),
        end,
    )


def is_there(repair: FileRepair, wanted: Wanted) -> bool:
    """Whether the existing file has these bytes already. An unreadable one does not."""
    path = wanted.owner.task(f"{repair.base:020d}").path
    try:
        status = stat_of(path)
        return (
            status is not None
            and status.size == wanted.owner.sizes[0]
            and _digest([Piece(0, status.size, path)]) == repair.sha256
        )
    except OSError:
        return False


def emptied(entries: Entries, wanted: Wanted) -> FileRepair:
    """The repair of a file behind the log's end: allocated ahead, and zero. Raises Undecided if a
    part of it was synced."""
    mark = wanted.owner.mark
    if mark is None:
        raise Undecided(UNMARKED)
    if mark.end_pos > entries.base:
        raise Undecided(f"no replica holds a proven entry of the log file {entries.base:020d}")
    pieces = (Piece(0, wanted.owner.sizes[0], None),)
    proof = f"the log of this replica ends before it: nothing was synced behind byte {mark.end_pos}"
    return FileRepair(entries.base, pieces, _digest(pieces), wanted.why, proof)


def _lost(index: int) -> str:
    return f"entry {index} is not held by a majority, and no other replica can supply it: {START}"


class _Splice:
    """The source of each entry: `_picks` has a row per entry, `_expected` the chain CRC it must
    have (−1: only the owner has one). Both begin with the column `_first`."""

    def __init__(self, entries: Entries, wanted: Wanted) -> None:
        self._entries, self._wanted, self._own = entries, wanted, entries.row_of(wanted.owner)
        self._parted = self._parting()
        expected = np.where(np.arange(entries.width) < self._parted, entries.proven, NONE)
        self._first = self._first_column(expected)
        last = self._last_index()
        self._expected = expected[self._first : max(last - entries.low, self._first - 1) + 1]
        self._picks = self._picked(last)

    def _parting(self) -> int:
        """The column from which on the owner follows another history than the majority: unconfirmed
        entries that a former leader appended. They stay as they are, unless the whole history is to
        be replaced. If the owner holds a later entry with the majority's chain CRC, its history is
        the majority's, and a different entry before that one is damage, even if it is consistent
        with its own chain CRC."""
        entries, own = self._entries, self._entries.chain[self._own]
        held = (own != NONE) & (entries.proven != NONE)
        same, other = (
            np.flatnonzero(held & (own == entries.proven)),
            np.flatnonzero(held & (own != entries.proven)),
        )
        last = -1 if entries.last is None else entries.last - entries.low
        inside = 0 <= last < entries.width
        if inside and entries.sides[self._own].continues(
            entries.low + last, int(entries.proven[last])
        ):
            return NOWHERE
        other = other[other > same.max(initial=-1)]
        return int(other[0]) if len(other) and not self._wanted.replaced else NOWHERE

    def _first_column(self, expected: I64) -> int:
        """The column of the first entry of the file. Replicas with different histories may begin a
        file with different entries."""
        entries = self._entries
        held = (
            (entries.chain != NONE)
            & (entries.offset == 0)
            & ((expected == NONE) | (entries.chain == expected))
        )
        places = np.flatnonzero(held.any(axis=0))
        proven, own = places[expected[places] != NONE], np.flatnonzero(held[self._own])
        first = next((columns for columns in (proven, own, places) if len(columns)), None)
        if first is None:
            raise Undecided(
                f"no replica holds a proven first entry of the log file {entries.base:020d}"
            )
        return int(first[0])

    def _last_index(self) -> int:
        entries, wanted = self._entries, self._wanted
        if not wanted.followed:
            if wanted.owner.mark is None and not wanted.replaced:
                raise Undecided(UNMARKED)
            return wanted.last_index
        last = entries.last
        if self._parted < entries.width or not (entries.proven != NONE).any():
            # For the owner's own history, only its own next file tells where it ends.
            side, own = entries.sides[self._own], entries.chain[self._own]
            last = side.next_index - 1 if side.next_index is not None else None
            inside = last is not None and 0 <= last - entries.low < entries.width
            if last is not None and not (
                inside and side.continues(last, int(own[last - entries.low]))
            ):
                raise Undecided(_lost(last))
        if last is None:
            raise Undecided(f"no majority tells the last entry of the log file {entries.base:020d}")
        return last

    def _picked(self, last: int) -> I64:
        """For each entry the row to take it from: the owner's if it is right."""
        entries, wanted = self._entries, self._wanted
        columns = np.arange(self._first, self._first + len(self._expected))
        columns = columns[columns < entries.width]
        expected, index = self._expected[: len(columns)], columns + entries.low
        picks = np.full(len(columns), NONE, np.int64)
        for row in (self._own, *(row for row in range(len(entries.sides)) if row != self._own)):
            chain = entries.chain[row, columns]
            fits = (chain != NONE) & ((expected == NONE) | (chain == expected))
            if row != self._own:
                # Behind the compared entry a replica keeps its own entries and gets no others.
                fits &= (index <= wanted.compared) & (columns < self._parted)
            elif wanted.replaced:
                fits &= (expected != NONE) | (index > wanted.compared)
            picks = np.where((picks == NONE) & fits, row, picks)
        missing = np.flatnonzero(picks == NONE)
        first = int(index[missing[0]]) if len(missing) else entries.low + self._first + len(picks)
        if first > last:
            return picks
        if first <= wanted.compared and first - entries.low < self._parted:
            raise Undecided(f"no replica holds entry {first} as the chain of a majority proves it")
        marked = wanted.marked
        if first <= marked and first > entries.high and not wanted.followed and not wanted.replaced:
            raise Undecided(
                f"the synced mark names entry {marked}, and no replica holds entry {first}"
            )
        if wanted.followed or (first <= marked and not wanted.replaced):
            raise Undecided(_lost(first))
        return picks[: first - entries.low - self._first]

    # The bytes

    def pieces(self) -> Iterator[Piece]:
        """The entries, as stretches that each come from one replica."""
        picks, columns = self._picks, self._first + np.arange(len(self._picks))
        if not len(picks):
            raise Undecided(
                f"the log file {self._entries.base:020d} holds nothing that a majority has, or that"
                " was synced here"
            )
        offset, size = self._entries.offset[picks, columns], self._entries.size[picks, columns]
        holes = np.flatnonzero(offset != np.concatenate([[0], offset[:-1] + size[:-1]]))
        if len(holes):
            raise Undecided(self._no_successor(int(holes[0])))
        bounds = [0, *(np.flatnonzero(np.diff(picks)) + 1).tolist(), len(picks)]
        for low, high in pairwise(bounds):
            yield Piece(
                int(offset[low]),
                int(offset[high - 1] + size[high - 1]),
                _path(self._entries, int(picks[low])),
            )

    def rest(self) -> Iterator[Piece]:
        """The bytes behind the last entry: a blank if the log continues in the next file, otherwise
        zeros."""
        row, column = int(self._picks[-1]), self._first + len(self._picks) - 1
        end, length = (
            int(self._entries.offset[row, column] + self._entries.size[row, column]),
            self._wanted.owner.sizes[0],
        )
        if end < length:
            yield Piece(
                end,
                length,
                None,
                _BLANK.pack(BLANK_MAGIC, length - end) if self._wanted.followed else b"",
            )

    def verified(self) -> End:
        """Read every entry from its source and compute it again, in sequence. Returns the last
        one."""
        entries, picks = self._entries, self._picks
        chain, end = int(entries.before[picks[0], self._first]), End(-1, -1, 0, 0)
        with contextlib.ExitStack() as stack:
            files: dict[int, Readable] = {}
            for row in np.unique(picks).tolist():
                files[row] = file = open_file(_path(entries, row))
                stack.callback(file.close)
            at = 0
            while at < len(picks):
                row = int(picks[at])
                start, stop = int(entries.offset[row, self._first + at]), at
                while (
                    stop < len(picks)
                    and picks[stop] == row
                    and int(entries.offset[row, self._first + stop]) < start + WINDOW_BYTES
                ):
                    stop += 1
                column = self._first + stop - 1
                length = int(entries.offset[row, column] + entries.size[row, column]) - start
                window = memoryview(files[row].pread(length, start))
                for each in range(at, stop):
                    offset, size = (
                        int(entries.offset[row, self._first + each]) - start,
                        int(entries.size[row, self._first + each]),
                    )
                    chain = self._checked(each, window[offset : offset + size], chain)
                end = End(
                    entries.low + column,
                    int(entries.term[row, column]),
                    entries.base + start + length,
                    chain,
                )
                at = stop
        return end

    def _checked(self, at: int, data: memoryview, before: int) -> int:
        """The chain CRC of an entry, computed from its bytes behind `before`. Raises Undecided if
        the entry is not exactly the one examined, or does not continue the previous one: behind the
        compared entry it is unknown which of the two is right."""
        index = self._entries.low + self._first + at
        if len(data) < HEADER_BYTES:
            raise Undecided(self._no_successor(at))
        body = crc(data[HEADER_BYTES:])
        chain = crc(bytes(data[:CHAINED_BYTES]) + body.to_bytes(4, "big"), before)
        magic, size, its_index, _, _, _, *words = HEADER.unpack_from(data)
        wanted = [ENTRY_MAGIC, len(data), index, chain, body, len(data) - HEADER_BYTES]
        if [magic, size, its_index, *words] != wanted or int(self._expected[at]) not in (
            NONE,
            chain,
        ):
            raise Undecided(self._no_successor(at))
        return chain

    def _no_successor(self, at: int) -> str:
        name = self._entries.sides[int(self._picks[at])].replica.name
        return (
            f"entry {self._entries.low + self._first + at} of {name} does not continue the entry"
            " before it"
        )

    def proof(self, digest: str) -> str:
        """The proof of these bytes. Raises Undecided if there is none."""
        entries, wanted, picks = self._entries, self._wanted, self._picks
        if wanted.seal is not None:
            if wanted.seal != digest:
                evidence = f"the seal of a majority is {wanted.seal[:16]}…"
                raise Undecided(
                    f"the entries that the replicas hold make a file with SHA-256 {digest[:16]}…,"
                    f" {evidence}"
                )
            return f"the seal of a majority: SHA-256 {digest}"
        columns = self._first + np.arange(len(picks))
        agreed = columns[(entries.agreed[columns] != NONE) & (columns < self._parted)]
        unproven = columns[(picks != self._own) & (self._expected[: len(picks)] == NONE)]
        if len(unproven) or not len(agreed):
            first = entries.low + int(unproven[0] if len(unproven) else columns[0])
            raise Undecided(f"no majority holds entry {first} or one behind it in this file")
        last = int(agreed[-1])
        names = [
            side.replica.name
            for row, side in enumerate(entries.sides)
            if entries.chain[row, last] == entries.agreed[last]
        ]
        return (
            f"chain CRC {int(entries.agreed[last]):08x} of entry {entries.low + last} on"
            f" {', '.join(names)}"
        )


def _joined(pieces: list[Piece]) -> Iterator[Piece]:
    held: Piece | None = None
    for piece in pieces:
        if held is not None and held.source is not None and held.source == piece.source:
            held = Piece(held.start, piece.end, held.source)
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held


def _digest(pieces: Iterable[Piece]) -> str:
    """The digest of the file that the pieces make (format §11, `seal`)."""
    whole, chunk, held = hashlib.sha256(), hashlib.sha256(), 0
    for data in _bytes(pieces):
        view = memoryview(data)
        while view:
            taken = view[: CHUNK_BYTES - held]
            chunk.update(taken)
            held, view = held + len(taken), view[len(taken) :]
            if held == CHUNK_BYTES:
                whole.update(chunk.digest())
                chunk, held = hashlib.sha256(), 0
    if held:
        whole.update(chunk.digest())
    return whole.hexdigest()


def _bytes(pieces: Iterable[Piece]) -> Iterator[bytes]:
    for piece in pieces:
        if piece.source is None:
            yield piece.data
            left = piece.end - piece.start - len(piece.data)
            while left:
                yield bytes(min(left, CHUNK_BYTES))
                left -= min(left, CHUNK_BYTES)
            continue
        with open_file(piece.source) as file:
            for offset in range(piece.start, piece.end, CHUNK_BYTES):
                data = file.pread(min(CHUNK_BYTES, piece.end - offset), offset)
                if len(data) != min(CHUNK_BYTES, piece.end - offset):
                    raise Undecided(f"{piece.source} ends at byte {offset + len(data)}")
                yield data


def _path(entries: Entries, row: int) -> str:
    return entries.sides[row].replica.task(f"{entries.base:020d}").path
