"""Term runs against a plain list of terms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.log_view import LogView


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 2)), max_size=25),
    st.integers(-2, 40),
    st.integers(-1, 12),
)
def test_runs_agree_with_a_list_of_terms(
    steps: list[tuple[bool, int, int]], index: int, term: int
) -> None:
    """Appending and cutting in any order leaves exactly the terms that a list would hold, for every
    question the core asks."""
    view, terms = LogView([(0, 0)], 0), [0]
    for cut, count, rise in steps:
        if cut:
            at = max(1, len(terms) - count)
            if at < len(terms):
                view.truncate_from(at)
                del terms[at:]
        else:
            view.append(len(terms), len(terms) + count - 1, terms[-1] + rise)
            terms += [terms[-1] + rise] * count
        view.check()
    assert view.end_index == len(terms) - 1
    assert view.end_term == terms[-1]
    assert view.term_at(index) == (terms[index] if 0 <= index < len(terms) else None)
    assert view.last_at_most(index, term) == max(
        (i for i, t in enumerate(terms) if i <= index and t <= term), default=-1
    )
    if 0 <= index < len(terms):
        assert view.run_end(index) == max(i for i, t in enumerate(terms) if t == terms[index])
    assert len(view.runs) == len(set(terms))


def test_an_empty_view_answers_below_every_real_term() -> None:
    """An empty log is older than any other."""
    view = LogView()
    assert (
        view.begin_index,
        view.end_index,
        view.end_term,
        view.term_at(0),
        view.last_at_most(5, 5),
    ) == (0, -1, -1, None, -1)


@pytest.mark.parametrize(
    ("first", "last", "term"),
    [(3, 3, 2), (1, 1, 2), (2, 1, 2), (2, 2, 0)],
    ids=["gap", "overlap", "backwards", "term falls"],
)
def test_append_with_gap_overlap_or_falling_term_is_an_assertion(
    first: int, last: int, term: int
) -> None:
    """Gaps, overlaps and falling terms never get in."""
    view = LogView([(0, 1)], 1)
    with pytest.raises(AssertionError):
        view.append(first, last, term)


def test_runs_out_of_order_are_refused() -> None:
    """A log whose terms fall was not written by us."""
    with pytest.raises(AssertionError):
        LogView([(0, 3), (4, 2)], 9)


def logs() -> Iterator[tuple[int, list[int]]]:
    """(begin, terms of the entries from the one before it on) of every log of up to three entries;
    a begin above 0 is that of a trimmed log, whose entry before the begin is known by its term."""
    for begin in (0, 1, 3):
        for length in range(0 if begin == 0 else 1, 4):
            for rises in product((0, 2), repeat=length + (begin > 0)):
                yield begin, list(accumulate(rises))


def view_of(begin: int, terms: list[int]) -> LogView:
    """The view of a log as it is found at a start."""
    before, own = (terms[0], terms[1:]) if begin else (-1, terms)
    firsts = [at for at, term in enumerate(own) if at == 0 or own[at - 1] != term]
    return LogView([(begin + at, own[at]) for at in firsts], begin + len(own) - 1, before)


def answers(view: LogView) -> list[object]:
    """Everything that the core asks a view, for every index and term around it."""
    indexes, terms = range(-2, view.end_index + 3), range(-2, 10)
    first = view.begin_index - 1 if view.begin_index else 0
    runs = [view.run_end(index) for index in range(first, view.end_index + 1)]
    found = [view.last_at_most(index, term) for index in indexes for term in terms]
    return [
        view.begin_index,
        view.end_index,
        view.end_term,
        [view.term_at(index) for index in indexes],
        runs,
        found,
    ]


def expected(begin: int, terms: list[int]) -> list[object]:
    """The same answers from a list of terms."""
    known = dict(enumerate(terms, begin - 1 if begin else 0))
    own = {index: term for index, term in known.items() if index >= begin}
    end = max(own, default=-1)
    indexes, asked = range(-2, end + 3), range(-2, 10)
    runs = [max(i for i, t in known.items() if t == term) for term in known.values()]
    found = [
        max((i for i, t in own.items() if i <= index and t <= term), default=begin - 1)
        for index in indexes
        for term in asked
    ]
    return [begin, end, own.get(end, -1), [known.get(index) for index in indexes], runs, found]


def test_contradictory_runs_are_an_assertion() -> None:
    """A run behind the end, and a last run that does not follow the one before it."""
    with pytest.raises(AssertionError):
        LogView([(0, 1), (6, 2)], 5)
    view = LogView([(0, 1), (4, 2)], 9)
    view._terms[1] = view.end_term = 1
    with pytest.raises(AssertionError):
        view.check()


def test_every_small_log_answers_as_a_list_of_its_terms() -> None:
    """As found at a start, and after every cut and every trim."""
    for begin, terms in logs():
        view = view_of(begin, terms)
        assert answers(view) == expected(begin, terms)
        known = begin - (begin > 0)
        for cut in range(begin + (begin > 0), view.end_index + 1):
            view = view_of(begin, terms)
            view.truncate_from(cut)
            view.check()
            assert answers(view) == expected(begin, terms[: cut - known])
        for to in range(begin + 1, view_of(begin, terms).end_index + 1):
            view = view_of(begin, terms)
            view.trim(to)
            view.check()
            assert answers(view) == expected(to, terms[to - 1 - known :])
