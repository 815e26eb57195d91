"""One log file made whole from what all replicas hold of it: entry by entry from whoever has it intact, proven before anything is written.

The proof is the seal of a majority for the whole file, or that the entries, read and computed again one after the other, lead to the chain
CRCs on which a majority agrees. Own entries behind the last agreed one stay: nobody was promised them, and nobody contradicts them. What
is not proven is `Undecided`, never picked.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.decode import BLANK_MAGIC, HEADER, HEADER_BYTES, I64, crc
from ledgermq.audit.reading.files import open_file, stat_of
from ledgermq.audit.repairs.entries import NONE, Entries, chain_before
from ledgermq.proto.repair_plan import FileRepair, Piece

CHUNK_BYTES = 1 << 20
WINDOW_BYTES = 4 << 20
_BLANK = struct.Struct(">ii")


class _Readable(Protocol):
    def pread(self, size: int, offset: int) -> bytes: ...


class Undecided(Exception):
    """Nobody proves what belongs there; the text says which entries, and why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of one file of one replica: entries up to `last_index` (as far as they lie in it). `compared`: up to where the
    majority decides. `followed`: entries lie in later files. `replaced`: another history goes, so no own entry behind `compared` stays."""

    owner: Replica
    last_index: int
    compared: int
    followed: bool
    replaced: bool
    seal: str | None
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """The last entry of a file that was made whole."""

    index: int
    term: int
    end_pos: int
    chain: int


def splice(entries: Entries, wanted: Wanted) -> tuple[FileRepair | None, End]:
    """The repair of this file; None when what is there is that already. Raises Undecided, OSError."""
    own = entries.row_of(wanted.owner)
    picks = _picks(entries, wanted, own)
    pieces = [*_pieces(entries, picks), *_rest(entries, picks, wanted)]
    end, agreed_to = _verify(entries, picks)
    unproven = np.flatnonzero((picks != own) & (np.arange(len(picks)) + entries.low > agreed_to))
    digest = _digest(pieces)
    proof = _proof(entries, wanted, digest, agreed_to, unproven)
    path = _path(entries, own)
    found = stat_of(path)
    if found is not None and found.size == wanted.owner.sizes[0] and _digest([Piece(0, found.size, path)]) == digest:
        return None, end
    # Whoever copies takes whole stretches: pieces of the same source that touch are one.
    return FileRepair(entries.base, tuple(_joined(pieces)), digest, wanted.why, proof, wanted.replaced), end


def emptied(entries: Entries, wanted: Wanted) -> FileRepair:
    """The repair of a file that lies behind the log's end: allocated ahead, and zero. Raises Undecided where something was synced in it."""
    mark = wanted.owner.mark
    if entries.width or mark is None or mark.end_pos > entries.base:
        raise Undecided(f"no replica holds an entry of the log file {entries.base:020d}")
    pieces = (Piece(0, wanted.owner.sizes[0], None),)
    proof = f"no replica holds an entry in it, and nothing was synced behind byte {mark.end_pos}"
    return FileRepair(entries.base, pieces, _digest(list(pieces)), wanted.why, proof)


def _picks(entries: Entries, wanted: Wanted, own: int) -> I64:
    """For each entry from the first one of the file on, the row it is taken from: the own one where that is right."""
    width = min(wanted.last_index, entries.high) - entries.low + 1
    if width <= 0:
        raise Undecided(f"no replica holds an entry of the log file {entries.base:020d} that this one had")
    agreed = entries.agreed[:width]
    index = np.arange(width) + entries.low
    picks = np.full(width, NONE, np.int64)
    for row in (own, *(row for row in range(len(entries.sides)) if row != own)):
        chain = entries.chain[row, :width]
        fits = (chain != NONE) & ((agreed == NONE) | (chain == agreed))
        if row != own:
            # Behind what a majority decides only its own entries are a replica's.
            fits &= index <= wanted.compared
        elif wanted.replaced:
            fits &= (agreed != NONE) | (index > wanted.compared)
        picks = np.where((picks == NONE) & fits, row, picks)
    missing = np.flatnonzero(picks == NONE)
    if not len(missing):
        return picks
    first = entries.low + int(missing[0])
    if first <= min(wanted.compared, wanted.last_index):
        raise Undecided(f"no replica holds entry {first} intact, or as a majority does")
    marked = -1 if wanted.owner.mark is None else wanted.owner.mark.index
    if first <= marked and not wanted.replaced:
        raise Undecided(f"entry {first} was synced here, and no majority holds it")
    return picks[: first - entries.low]


def _pieces(entries: Entries, picks: I64) -> Iterator[Piece]:
    columns = np.arange(len(picks))
    offset, size = entries.offset[picks, columns], entries.size[picks, columns]
    if offset[0] != 0 or bool((offset[1:] != offset[:-1] + size[:-1]).any()):
        raise Undecided(f"the entries of the log file {entries.base:020d} do not lie one behind the other on the replicas that hold them")
    bounds = [0, *(np.flatnonzero(np.diff(picks)) + 1).tolist(), len(picks)]
    for low, high in pairwise(bounds):
        yield Piece(int(offset[low]), int(offset[high - 1] + size[high - 1]), _path(entries, int(picks[low])))


def _rest(entries: Entries, picks: I64, wanted: Wanted) -> Iterator[Piece]:
    """Behind the last entry: a blank, if the log goes on in the next file, else zeros."""
    last = len(picks) - 1
    end = int(entries.offset[picks[last], last] + entries.size[picks[last], last])
    length = wanted.owner.sizes[0]
    if end < length:
        yield Piece(end, length, None, _BLANK.pack(BLANK_MAGIC, length - end) if wanted.followed else b"")


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


def _verify(entries: Entries, picks: I64) -> tuple[End, int]:
    """Read every entry from where it is taken and compute it again, in a row. Returns the last one, and the last one that is agreed."""
    chain, agreed_to = chain_before(entries, entries.low), -1
    end = End(-1, -1, 0, 0)
    with contextlib.ExitStack() as stack:
        files: dict[int, _Readable] = {}
        for row in np.unique(picks).tolist():
            files[row] = file = open_file(_path(entries, row))
            stack.callback(file.close)
        column = 0
        while column < len(picks):
            row = int(picks[column])
            start, stop = int(entries.offset[row, column]), column
            while stop < len(picks) and picks[stop] == row and int(entries.offset[row, stop]) < start + WINDOW_BYTES:
                stop += 1
            length = int(entries.offset[row, stop - 1] + entries.size[row, stop - 1]) - start
            window = memoryview(files[row].pread(length, start))
            for at in range(column, stop):
                offset, size = int(entries.offset[row, at]) - start, int(entries.size[row, at])
                chain = _checked(entries, at, window[offset : offset + size], chain, entries.sides[row].replica.name)
                if entries.agreed[at] != NONE:
                    agreed_to = entries.low + at
            column = stop
            pos = entries.base + start + length
            end = End(entries.low + stop - 1, int(entries.term[row, stop - 1]), pos, -1 if chain is None else chain)
    return end, agreed_to


def _checked(entries: Entries, column: int, data: memoryview, before: int | None, name: str) -> int:
    """The chain CRC of an entry, computed from its bytes behind `before` (None: nobody knows that one, so its word is believed until an
    agreed one is reached). Raises Undecided when the bytes are not those that were scanned."""
    index = entries.low + column
    if len(data) < HEADER_BYTES:
        raise Undecided(f"entry {index} of {name} cannot be read")
    _, size, its_index, _, _, _, stored, body_crc, _ = HEADER.unpack_from(data)
    body = crc(data[HEADER_BYTES:])
    chain = stored if before is None else crc(bytes(data[:36]) + body.to_bytes(4, "big"), before)
    wanted = int(entries.agreed[column])
    if (size, its_index, body_crc, stored) != (len(data), index, body, chain) or wanted not in (NONE, chain):
        raise Undecided(f"entry {index} of {name} does not continue the one before it as the majority has it")
    return chain


def _digest(pieces: list[Piece]) -> str:
    """Of the file that the pieces make (format §11, `seal`)."""
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


def _bytes(pieces: list[Piece]) -> Iterator[bytes]:
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


def _proof(entries: Entries, wanted: Wanted, digest: str, agreed_to: int, unproven: I64) -> str:
    if wanted.seal is not None:
        if wanted.seal != digest:
            raise Undecided(f"what the replicas hold has the SHA-256 {digest[:16]}…, the seal of a majority says {wanted.seal[:16]}…")
        return f"the seal of a majority: SHA-256 {digest}"
    if len(unproven) or agreed_to < entries.low:
        first = entries.low + (int(unproven[0]) if len(unproven) else 0)
        raise Undecided(f"no majority holds entry {first} or one behind it in this file")
    names = [
        side.replica.name
        for row, side in enumerate(entries.sides)
        if entries.chain[row, agreed_to - entries.low] == entries.agreed[agreed_to - entries.low]
    ]
    return f"chain CRC {int(entries.agreed[agreed_to - entries.low]):08x} of entry {agreed_to} on {', '.join(names)}"


def _path(entries: Entries, row: int) -> str:
    return entries.sides[row].replica.task(f"{entries.base:020d}").path
