"""The entries of one log file on all replicas, compared: on which a majority agrees, and which
replica holds each one exactly.

A replica holds an entry *exactly* if each of its bytes is right: the body has the bodyCrc of the
header, every header field has the expected value, and the stored chain CRC continues the previous
one. The audit's scan calls an entry intact if its content is proven, although a word of its header
may be damaged; such an entry is never copied and never kept. Decisions are made only by counting:
an entry is agreed if a majority of the voters holds it exactly with the same chain CRC, and a chain
CRC is a function of the whole history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.checks.scan import Scan
from ledgermq.audit.reading.columns import Columns
from ledgermq.audit.reading.decode import (
    ENTRY_MAGIC,
    HEADER,
    HEADER_BYTES,
    I64,
    PREFIX,
    Flags,
    crc,
    gather,
)
from ledgermq.audit.reading.files import open_file, read_at
from ledgermq.audit.reading.lookup import stored_chain
from ledgermq.audit.rules import Flaw

NONE = -1
WINDOW_BYTES = 4 << 20
CHAINED_BYTES = 36
"""The part of a header that its chain CRC covers, besides the bodyCrc."""
CONTENT_PREFIX = "record."
CONTENT_RULES = frozenset({"entry.channel", "entry.term-order", "entry.room", "blank.needless"})
"""Rules broken by entries that are stored as they were written: no replica has other bytes for
them."""
Matrix = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Side:
    """One replica's copy of the file; a missing file has no entries."""

    replica: Replica
    index: I64
    chain: I64
    """The stored chain CRC of an entry that is held exactly, otherwise −1."""
    before: I64
    """The chain CRC of the previous entry, which such an entry continues."""
    vote: I64
    """The chain CRC for which this copy counts in a majority: `chain`, and if only header words
    outside the chain are damaged, the chain CRC that other replicas store for the same content."""
    offset: I64
    size: I64
    term: I64
    miswritten: bool
    """Whether some entry breaks a rule although it is stored as it was written."""
    next_head: bytes | None
    """The header of the first entry of the next file, if there is one."""

    @property
    def next_index(self) -> int | None:
        return None if self.next_head is None else int(HEADER.unpack(self.next_head)[2])

    def continues(self, index: int, word: int) -> bool:
        """Whether the next file begins behind the entry `index` with this chain CRC."""
        return self.next_head is not None and _continues(self.next_head, index, word)


@dataclass(frozen=True, slots=True)
class Entries:
    """All copies of one log file. Rows are sides, columns are entries `low` … `low + width − 1`."""

    base: int
    sides: tuple[Side, ...]
    low: int
    chain: Matrix
    before: Matrix
    offset: Matrix
    size: Matrix
    term: Matrix
    agreed: I64
    """The chain CRC of each entry on which a majority agrees, −1 for others."""
    proven: I64
    """The same, plus the chain CRC that a proven entry continues: before an agreed entry, a single
    replica is enough."""
    last: int | None
    """The last entry of the file, according to the next file of a majority; None if none tells."""

    @property
    def width(self) -> int:
        return len(self.agreed)

    @property
    def high(self) -> int:
        """The last entry in any copy."""
        return self.low + self.width - 1

    def row_of(self, replica: Replica) -> int:
        return next(row for row, side in enumerate(self.sides) if side.replica is replica)


def read_entries(replicas: Sequence[Replica], voters: Sequence[str], base: int) -> Entries:
    """Scan one log file on every replica."""
    copies = [_Copy(one, base) for one in replicas]
    _link(copies)
    sides = tuple(copy.side() for copy in copies)
    # The index of an entry that is not held exactly may be damaged; only the others bound the
    # range.
    right = [side.index[side.chain != NONE] for side in sides]
    low = min((int(index.min()) for index in right if len(index)), default=0)
    width = max((int(index.max()) for index in right if len(index)), default=-1) - low + 1
    chain, before, vote, offset, size, term = (
        np.full((len(sides), width), NONE, np.int64) for _ in range(6)
    )
    for row, side in enumerate(sides):
        chained = side.chain != NONE
        places = side.index[chained] - low
        columns = (side.chain, side.before, side.offset, side.size, side.term)
        for matrix, column in zip((chain, before, offset, size, term), columns, strict=True):
            matrix[row, places] = column[chained]
        voted = side.vote != NONE
        vote[row, side.index[voted] - low] = side.vote[voted]
    agreed = _agreed(sides, voters, vote)
    last, word = _closing(sides, voters, low, chain, agreed)
    proven = _proven(
        agreed, chain, before, None if word is None or last is None else (last - low, word)
    )
    agreed = np.where(agreed == proven, agreed, NONE)
    return Entries(
        base=base,
        sides=sides,
        low=low,
        chain=chain,
        before=before,
        offset=offset,
        size=size,
        term=term,
        agreed=agreed,
        proven=proven,
        last=last,
    )


def _agreed(sides: Sequence[Side], voters: Sequence[str], vote: Matrix) -> I64:
    rows = [row for row, side in enumerate(sides) if side.replica.name in voters]
    agreed = np.full(vote.shape[1], NONE, np.int64)
    for row in rows:
        votes = (vote[rows] == vote[row]).sum(axis=0)
        agreed = np.where((votes > len(voters) // 2) & (vote[row] != NONE), vote[row], agreed)
    return agreed


def _closing(
    sides: Sequence[Side], voters: Sequence[str], low: int, chain: Matrix, agreed: I64
) -> tuple[int | None, int | None]:
    """The last entry of the file, and its chain CRC if a replica holds it: what the next file of a
    majority continues, or any next file that continues an agreed entry. A next file whose first
    index contradicts an agreed entry of this one is damaged itself."""
    votes = Counter(
        side.next_head
        for side in sides
        if side.next_head is not None and side.replica.name in voters
    )
    highest = low + int(np.flatnonzero(agreed != NONE).max(initial=NONE))
    for head, count in votes.most_common():
        index = HEADER.unpack(head)[2] - 1
        if index < highest:
            continue
        inside = 0 <= index - low < len(agreed)
        words = {int(word) for word in chain[:, index - low] if word != NONE} if inside else set()
        word = next((word for word in words if _continues(head, index, word)), None)
        if count > len(voters) // 2 or (word is not None and word == agreed[index - low]):
            return index, word
    return None, None


def _continues(head: bytes, index: int, word: int) -> bool:
    _, _, its_index, _, _, _, its_word, body_crc, _ = HEADER.unpack(head)
    return bool(
        word != NONE
        and its_index == index + 1
        and crc(head[:CHAINED_BYTES] + body_crc.to_bytes(4, "big"), word) == its_word
    )


def _proven(agreed: I64, chain: Matrix, before: Matrix, closing: tuple[int, int] | None) -> I64:
    """The chain CRC that a proven entry continues is proven too, and overrules a different agreed
    one: if one replica decides for an HA group, its entry may have been altered together with its
    own chain CRC."""
    proven = agreed.copy()
    if closing is not None:
        proven[closing[0]] = closing[1]
    # One history has one chain CRC before an entry, whichever replica has it; −1 if none holds the
    # entry.
    continued = np.where((chain == proven) & (proven != NONE), before, NONE).max(
        axis=0, initial=NONE
    )
    for start in np.flatnonzero(
        (proven[:-1] == NONE) | ((continued[1:] != NONE) & (continued[1:] != proven[:-1]))
    )[::-1].tolist():
        for at in range(start, -1, -1):
            word = before[
                (chain[:, at + 1] == proven[at + 1]) & (proven[at + 1] != NONE), at + 1
            ].max(initial=NONE)
            if word in (NONE, proven[at]):
                break
            proven[at] = word
    return proven


# ----------------------------------------------------------------------------------------------------------------- one copy


class _Copy:
    """One replica's copy during the scan. `written`: all header fields fit the position, the index
    and the body, so that only the chain must still be verified; `linked`: the chain is verified
    too, from `before`."""

    def __init__(self, one: Replica, base: int) -> None:
        self.replica = one
        self.task = one.task(f"{base:020d}")
        scan = Scan(self.task)
        pieces = list(scan.columns())
        self.index, self.word, self.offset, self.size, self.term, self.body_crc = (
            np.concatenate(
                [np.empty(0, np.int64), *(getattr(piece, name) for piece in pieces)]
            ).astype(np.int64)
            for name in ("index", "chain", "offset", "size", "term", "body_crc")
        )
        self.written = _written(self.task.path, base, pieces)
        self.before = np.full(len(self.index), NONE, np.int64)
        self.linked = np.zeros(len(self.index), np.bool_)
        self.vote = np.full(len(self.index), NONE, np.int64)
        if len(self.index):
            # The scan verified each entry from the one before it; behind a hole, and at the start,
            # there is none.
            follows = np.zeros(len(self.index), np.bool_)
            follows[1:] = self.offset[1:] == self.offset[:-1] + self.size[:-1]
            intact = np.concatenate([piece.intact for piece in pieces])
            self.linked = self.written & intact & follows
            self.before[1:] = np.where(self.linked[1:], self.word[:-1], NONE)
        self.miswritten = any(_is_content(flaw) for flaw in scan.report.flaws)

    def link(self, at: int, words: Iterable[int]) -> None:
        """Verify the chain of an entry from any of the words that the entry before it may have."""
        data = self._chained(at)
        for word in words:
            if crc(data, word) == int(self.word[at]):
                self.linked[at], self.before[at] = True, word
                return

    def _chained(self, at: int) -> bytes:
        return read_at(self.task.path, int(self.offset[at]), CHAINED_BYTES) + int(
            self.body_crc[at]
        ).to_bytes(4, "big")

    def vote_with(self, at: int, others: Sequence[_Copy]) -> None:
        """Count for the chain CRC of another replica's entry, if this damaged one has the same
        content and place in the chain."""
        data = self._chained(at)
        for other in others:
            row = int(np.searchsorted(other.offset, self.offset[at]))
            if (
                row < len(other.linked)
                and other.linked[row]
                and crc(data, int(other.before[row])) == int(other.word[row])
            ):
                # The scan may have replaced a right index because the next entry's is damaged.
                self.index[at], self.vote[at] = other.index[row], other.word[row]

    def words_in_front_of(self, offset: int) -> Iterator[int]:
        """The chain CRC of the entry that ends at this offset, if there is one."""
        at = int(np.searchsorted(self.offset, offset)) - 1
        if at >= 0 and int(self.offset[at] + self.size[at]) == offset:
            yield from self.words_of(at)

    def words_of(self, at: int) -> Iterator[int]:
        """The chain CRC of an entry: as stored, and as computed, because the stored one may be
        damaged."""
        yield int(self.word[at])
        if at:
            yield crc(self._chained(at), int(self.word[at - 1]))

    def side(self) -> Side:
        chain = np.where(self.linked, self.word, NONE)
        columns = (
            self.index,
            chain,
            self.before,
            np.where(self.linked, self.word, self.vote),
            self.offset,
            self.size,
            self.term,
        )
        return Side(self.replica, *columns, self.miswritten, self._next_head())

    def _next_head(self) -> bytes | None:
        base = self.task.base + self.task.data_file_bytes
        try:
            head = read_at(self.replica.task(f"{base:020d}").path, 0, HEADER_BYTES)
        except OSError:
            # Missing, or damaged: the next file has its own finding.
            return None
        fields = HEADER.unpack(head) if len(head) == HEADER_BYTES else None
        return (
            head if fields is not None and (fields[0], fields[4]) == (ENTRY_MAGIC, base) else None
        )


def _is_content(flaw: Flaw) -> bool:
    return flaw.rule.startswith(CONTENT_PREFIX) or flaw.rule in CONTENT_RULES


def _written(path: str, base: int, pieces: Sequence[Columns]) -> Flags:
    """Which headers have the expected bytes in the file itself; the scan accepts an index derived
    from neighbours, and a chain CRC that the next entry continues."""
    equal = [np.empty(0, np.bool_)]
    if not pieces:
        return equal[0]
    with open_file(path) as file:
        for piece in pieces:
            at = 0
            while at < len(piece):
                start = int(piece.offset[at])
                stop = int(np.searchsorted(piece.offset, start + WINDOW_BYTES))
                window = file.pread(int(piece.offset[stop - 1]) + PREFIX.itemsize - start, start)
                rows = gather(window, piece.offset[at:stop] - start)
                wanted = {
                    "magic": np.full(stop - at, ENTRY_MAGIC),
                    "size": piece.size[at:stop],
                    "index": piece.index[at:stop],
                    "pos": base + piece.offset[at:stop],
                    "chain_crc": piece.chain[at:stop],
                    "body_crc": piece.body_crc[at:stop],
                    "body_size": piece.size[at:stop] - HEADER_BYTES,
                }
                same = [rows[name].astype(np.int64) == value for name, value in wanted.items()]
                equal.append(np.logical_and.reduce(same))
                at = stop
    return np.concatenate(equal)


# ----------------------------------------------------------------------------------------------------------------- the chain


def _link(copies: Sequence[_Copy]) -> None:
    """Verify the entries whose predecessor is damaged, lost, or in the previous file. Any replica
    may supply the predecessor's chain CRC; the proof is that the entry continues it. Entries that
    stay unverified count as damaged."""
    _link_first(copies)
    for copy in copies:
        for at in np.flatnonzero(copy.written & ~copy.linked).tolist():
            copy.link(
                at,
                [
                    word
                    for other in copies
                    for word in other.words_in_front_of(int(copy.offset[at]))
                ],
            )
    for copy in copies:
        for at in np.flatnonzero(~copy.linked).tolist():
            copy.vote_with(at, copies)


def _link_first(copies: Sequence[_Copy]) -> None:
    """Verify the first entries of the file from the seed of the log, or from the last entry of the
    previous file."""
    firsts = [copy for copy in copies if len(copy.index) and copy.written[0]]
    for known in (_words_before, _last_words):
        words = set(known(copies)) if not all(copy.linked[0] for copy in firsts) else ()
        for copy in firsts:
            if not copy.linked[0]:
                copy.link(0, words)


def _words_before(copies: Sequence[_Copy]) -> Iterator[int]:
    """The chain CRC before the file, from begin files, identities and index files."""
    firsts = {int(copy.index[0]) for copy in copies if len(copy.index)}
    for task in (copy.task for copy in copies):
        at_begin = task.base == task.begin_pos
        words = (
            [task.seed]
            if at_begin
            else [stored_chain(task, index - 1) for index in firsts if index > 0]
        )
        yield from (word for word in words if word is not None)


def _last_words(copies: Sequence[_Copy]) -> Iterator[int]:
    """The same from the previous file, read whole, because index files may be damaged, too."""
    for copy in copies:
        base = copy.task.base - copy.task.data_file_bytes
        before = _Copy(copy.replica, base) if base >= copy.task.begin_pos else None
        if before is not None and len(before.index):
            yield from before.words_of(len(before.index) - 1)
