"""Verification of a copied log: every entry up to a given one is read again, and both its CRCs and
the chain are computed (format §2, §3).

For logs that are not being written: backups and restored directories. `log_recovery.py` answers
another question, namely what may be kept. Nothing here writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from ledgermq.proto.entries.entry_sealing import chain_crc_at
from ledgermq.storage.backups.backup_manifest import BadCopy, Step
from ledgermq.storage.files.mapped_files import MappedFiles, file_name
from ledgermq.storage.log.log_scan import Piece, Point, Walker

STORE_TIME_AT = 104
"""The offset of the store time in an entry (format §4)."""
_STORE_TIME = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Proved:
    """The end of the verified part: `point` lies behind its last entry, whose store time is
    `store_ms`; `watched` are the term and chain CRC of the requested entry."""

    point: Point
    store_ms: int
    watched: tuple[int, int] | None


def prove(
    files: MappedFiles,
    begin: Point,
    last_index: int,
    stop: int,
    *,
    watch: int,
    each: Callable[[Piece], None],
    step: Step,
    remedy: str,
) -> Proved:
    """Read the entries from `begin` to `last_index`, none of which ends behind the position `stop`,
    and pass them to `each` piece by piece. Raises BadCopy, which names the damaged file and entry
    and contains `remedy`; OSError."""
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
            end = Point(
                pos=piece.pos + len(piece.data),
                index=last_index + 1,
                term=int(piece.terms[-1]),
                chain=chain,
            )
            return Proved(end, store_ms, watched)
    pos = walker.point.pos
    name = file_name(files.base_of(pos))
    problem = walker.problem or "there are zeros, or the file is missing"
    description = (
        f"{files.directory}/{name}: entry {walker.point.index} at byte {pos - files.base_of(pos)}"
        f" is damaged ({problem})"
    )
    raise BadCopy(description, remedy)


def _shortened(piece: Piece, last_index: int) -> Piece:
    """The entries of a piece up to `last_index`."""
    count = last_index - piece.first_index + 1
    if count >= len(piece.starts):
        return piece
    end = int(piece.starts[count - 1]) + int(piece.sizes[count - 1])
    return replace(
        piece,
        data=piece.data[:end],
        starts=piece.starts[:count],
        sizes=piece.sizes[:count],
        terms=piece.terms[:count],
    )
