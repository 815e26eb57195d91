"""Term runs against a plain list of terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.log_view import LogView


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 2)), max_size=25), st.integers(-2, 40), st.integers(-1, 12))
def test_runs_agree_with_a_list_of_terms(steps: list[tuple[bool, int, int]], index: int, term: int) -> None:
    """Appending and cutting in any order leaves exactly the terms that a list would hold, for every question the core asks."""
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
    assert view.last_at_most(index, term) == max((i for i, t in enumerate(terms) if i <= index and t <= term), default=-1)
    if 0 <= index < len(terms):
        assert view.run_end(index) == max(i for i, t in enumerate(terms) if t == terms[index])
    assert len(view.runs) == len(set(terms))


def test_an_empty_view_answers_below_every_real_term() -> None:
    """An empty log is older than any other."""
    view = LogView()
    assert (view.begin_index, view.end_index, view.end_term, view.term_at(0), view.last_at_most(5, 5)) == (0, -1, -1, None, -1)


@pytest.mark.parametrize(
    ("first", "last", "term"), [(3, 3, 2), (1, 1, 2), (2, 1, 2), (2, 2, 0)], ids=["gap", "overlap", "backwards", "term falls"]
)
def test_what_does_not_continue_the_log_is_an_assertion(first: int, last: int, term: int) -> None:
    """Gaps, overlaps and falling terms never get in."""
    view = LogView([(0, 1)], 1)
    with pytest.raises(AssertionError):
        view.append(first, last, term)


def test_runs_out_of_order_are_refused() -> None:
    """A log whose terms fall was not written by us."""
    with pytest.raises(AssertionError):
        LogView([(0, 3), (4, 2)], 9)
