"""The terms of the log's entries, kept as runs of equal terms. Memory is O(terms). No bytes, no
positions, no files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from ledgermq.raft.messages import NO_INDEX, NO_TERM


class LogView:
    """Terms of entries `begin_index` … `end_index`; `end_index` is −1 for an empty log.

    `_firsts[i]` is the first index of run i and `_terms[i]` its term; both grow strictly, and
    `_firsts[0] == begin_index`. A log that was trimmed begins above 0; `begin_term` is the term of
    the entry before it, which was committed like everything below. `end_term` is the term of the
    last entry; −1 for an empty log, which is below every real term.
    """

    __slots__ = ("_firsts", "_terms", "begin_index", "begin_term", "end_index", "end_term")

    def __init__(
        self,
        runs: Iterable[tuple[int, int]] = (),
        end_index: int = NO_INDEX,
        begin_term: int = NO_TERM,
    ) -> None:
        """`runs` are (first index, term) in order."""
        self.begin_term = begin_term
        pairs = list(runs)
        self._firsts = [first for first, _ in pairs]
        self._terms = [term for _, term in pairs]
        self.end_index = end_index
        self._note_ends()
        assert all(a < b for a, b in zip(self._firsts, self._firsts[1:], strict=False)), self
        assert all(a < b for a, b in zip(self._terms, self._terms[1:], strict=False)), self
        self.check()

    def _note_ends(self) -> None:
        """The first or the last run is another one."""
        self.begin_index = self._firsts[0] if self._firsts else 0
        self.end_term = self._terms[-1] if self._terms else NO_TERM

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self._firsts, self._terms, strict=True))

    def term_at(self, index: int) -> int | None:
        """The term of an entry, or of the one before a trimmed log; None for any other index."""
        if self._firsts and index >= self._firsts[-1]:
            # Almost every question is about the last run.
            return self.end_term if index <= self.end_index else None
        if index == self.begin_index - 1 >= 0:
            return self.begin_term
        if not self.begin_index <= index <= self.end_index:
            return None
        return self._terms[bisect_right(self._firsts, index) - 1]

    def run_end(self, index: int) -> int:
        """The last index of the run that holds `index`, which may be the one before a trimmed
        log."""
        if index == self.begin_index - 1 >= 0:
            if self.begin_term != self._terms[0]:
                return index
            index += 1
        assert self.begin_index <= index <= self.end_index, index
        after = bisect_right(self._firsts, index)
        return self._firsts[after] - 1 if after < len(self._firsts) else self.end_index

    def last_at_most(self, index: int, term: int) -> int:
        """The greatest index ≤ `index` whose term is ≤ `term`; `begin_index` − 1 if there is none.
        Term-wise back-off rests on it."""
        index = min(index, self.end_index)
        run = bisect_right(self._terms, term)
        bound = self._firsts[run] - 1 if run < len(self._firsts) else self.end_index
        return max(min(index, bound), self.begin_index - 1)

    def append(self, first_index: int, last_index: int, term: int) -> None:
        """Entries at the end. Terms never fall along a log."""
        assert first_index == self.end_index + 1 and last_index >= first_index, (
            first_index,
            last_index,
            self,
        )
        assert term >= self.end_term, (term, self)
        if term > self.end_term:
            self._firsts.append(first_index)
            self._terms.append(term)
            self._note_ends()
        self.end_index = last_index

    def trim(self, begin_index: int) -> None:
        """Forget everything before `begin_index`; the end stays."""
        assert self.begin_index < begin_index <= self.end_index, (begin_index, self)
        before = self.term_at(begin_index - 1)
        assert before is not None
        first = bisect_right(self._firsts, begin_index) - 1
        del self._firsts[:first], self._terms[:first]
        self._firsts[0], self.begin_term = begin_index, before
        self._note_ends()

    def truncate_from(self, index: int) -> None:
        """Forget `index` and everything behind it: the log then ends at `index` − 1."""
        assert (self.begin_index < index or index == 0) and index <= self.end_index, (index, self)
        keep = bisect_right(self._firsts, index - 1)
        del self._firsts[keep:], self._terms[keep:]
        self._note_ends()
        self.end_index = index - 1

    def check(self) -> None:
        """The last run continues the one before it and lies inside the log; earlier ones were
        checked when they were last."""
        if len(self._firsts) > 1:
            assert self._firsts[-2] < self._firsts[-1] and self._terms[-2] < self._terms[-1], self
        assert (
            (self._firsts[-1] <= self.end_index) if self._firsts else self.end_index == NO_INDEX
        ), self
        assert (self.begin_index, self.end_term) == (
            (self._firsts[0], self._terms[-1]) if self._firsts else (0, NO_TERM)
        ), self

    def __repr__(self) -> str:
        return (
            f"LogView({' '.join(f'{first}:t{term}' for first, term in self.runs)}"
            f" ..{self.end_index})"
        )
