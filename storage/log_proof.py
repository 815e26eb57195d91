"""Proof that a copied log is right: every entry up to a given one read again, both its CRCs and the chain computed (format §2, §3).

For logs that nobody writes: backups and what is restored from them. Recovery answers another question (what may be kept) in
`log_recovery.py`. Nothing here writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from ledgermq.proto.entry_sealing import chain_crc_at
from ledgermq.storage.backup_manifest import BadCopy, Step
from ledgermq.storage.log_scan import Piece, Point, Walker
from ledgermq.storage.mapped_files import MappedFiles, file_name

STORE_TIME_AT = 104
"""Where an entry keeps its store time (format §4)."""
_STORE_TIME = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Proved:
    """The end of the proved part: `point` lies behind its last entry, whose store time is `store_ms`; `watched` are the term and the chain
    CRC of the entry that was asked for."""

    point: Point
    store_ms: int
    watched: tuple[int, int] | None


def prove(
    files: MappedFiles, begin: Point, last_index: int, stop: int, *, watch: int, each: Callable[[Piece], None], step: Step, remedy: str
) -> Proved:
    """Read the entries from `begin` to `last_index`, none of which ends behind the position `stop`. `each` gets them piece by piece. Raises
    BadCopy, which names the file and the entry that is wrong and says `remedy`; OSError."""
    walker = Walker(files, begin, verify=True)
    watched = (begin.term, begin.chain) if watch == begin.index - 1 else None
    for whole in walker.pieces(stop):
        piece = _shortened(whole, last_index)
        last = piece.first_index + len(piece.starts) - 1
        if piece.first_index <= watch <= last:
            at = watch - piece.first_index
            watched = int(piece.terms[at]), chain_crc_at(piece.data, int(piece.starts[at]))
        each(piece)
        step(len(piece.data))
        if last == last_index:
            start = int(piece.starts[-1])
            chain = chain_crc_at(piece.data, start)
            (store_ms,) = _STORE_TIME.unpack_from(piece.data, start + STORE_TIME_AT)
            end = Point(piece.pos + len(piece.data), last_index + 1, int(piece.terms[-1]), chain)
            return Proved(end, store_ms, watched)
    pos = walker.point.pos
    name = file_name(files.base_of(pos))
    problem = walker.problem or "there are zeros, or the file is missing"
    what = f"{files.directory}/{name}: entry {walker.point.index} at byte {pos - files.base_of(pos)} is damaged ({problem})"
    raise BadCopy(what, remedy)


def _shortened(piece: Piece, last_index: int) -> Piece:
    """The entries of a piece up to `last_index`."""
    count = last_index - piece.first_index + 1
    if count >= len(piece.starts):
        return piece
    end = int(piece.starts[count - 1]) + int(piece.sizes[count - 1])
    return replace(piece, data=piece.data[:end], starts=piece.starts[:count], sizes=piece.sizes[:count], terms=piece.terms[:count])
