"""The indexes of a log, one operation at a time in every small state, against the rule written down
again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from ledgermq.raft.log_state import LogState
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import NO_INDEX, Extent

END = 3
INDEXES = range(NO_INDEX, END + 1)


def log(
    durable: int = END,
    verified: int = NO_INDEX,
    commit: int = NO_INDEX,
    urgent: int = NO_INDEX,
    early: int = NO_INDEX,
) -> LogState:
    """Entries 0 to 3, of the terms 1, 1, 2, 2."""
    made = LogState(LogView([(0, 1), (2, 2)], END), NO_INDEX)
    made.verify(verified)
    made.follow_commit(commit)
    made.request_flush_to(urgent)
    made.reply_early(early)
    made.durable_index = durable
    made.check()
    return made


def state_of(made: LogState) -> dict[str, object]:
    return {
        **{name: value for name, value in vars(made).items() if name != "view"},
        "view": (made.view.runs, made.view.end_index),
    }


def changed(before: LogState, after: LogState) -> dict[str, object]:
    """The fields that differ."""
    old = state_of(before)
    return {name: value for name, value in state_of(after).items() if old[name] != value}


def test_a_log_from_disk() -> None:
    """Everything that is there is durable; a trimmed log was committed up to its begin; nothing
    else is known."""
    fresh = {
        "verified_index": -1,
        "urgent_index": -1,
        "early_index": -1,
        "held_index": -1,
        "_cut_since_sync": None,
    }
    nothing = {**fresh, "truncating_from": None, "appending": None, "unreported": None}
    for commit in INDEXES:
        made = LogState(LogView([(0, 1)], END), commit)
        assert state_of(made) == {
            **nothing,
            "durable_index": END,
            "commit_index": commit,
            "view": (((0, 1),), END),
        }
        trimmed = LogState(LogView([(2, 1)], END, 1), commit)
        assert trimmed.commit_index == max(commit, 1)
    assert state_of(LogState(LogView(), NO_INDEX)) == {
        **nothing,
        "durable_index": -1,
        "commit_index": -1,
        "view": ((), -1),
    }


@pytest.mark.parametrize("urgent", [False, True])
def test_a_leader_appends(urgent: bool) -> None:
    made = log(durable=2, urgent=1)
    made.append_own(Extent(4, 6, 2, 100), urgent=urgent)
    assert changed(log(durable=2, urgent=1), made) == {
        **({"urgent_index": 6} if urgent else {}),
        "view": (((0, 1), (2, 2)), 6),
    }


def test_follower_verifies_a_range_once_its_write_is_reported() -> None:
    """The range counts as verified once it is written, and not before. Writes are handed out
    once."""
    made = log(verified=3)
    made.merge(4, 5, 3)
    assert (made.appending, made.verified_index, made.view.end_index) == ((4, 5), 3, 5)
    assert made.take_writes() == (None, (4, 5))
    assert (made.appending, made.truncating_from, made.unreported) == (None, None, (4, 5))
    made.append_written()
    assert (made.verified_index, made.unreported) == (5, None)
    assert made.take_writes() == (None, None)


def test_write_report_never_lowers_the_verified_index() -> None:
    made = log()
    made.merge(4, 5, 2)
    made.take_writes()
    made.verify(7)
    made.append_written()
    assert made.verified_index == 7


@pytest.mark.parametrize("urgent", range(NO_INDEX, 6))
def test_a_range_that_could_not_be_written_is_not_there(urgent: int) -> None:
    made = log()
    made.merge(4, 5, 2)
    made.request_flush_to(urgent)
    made.take_writes()
    assert made.append_refused() == 4
    assert (made.view.end_index, made.urgent_index, made.unreported, made.verified_index) == (
        END,
        min(urgent, END),
        None,
        NO_INDEX,
    )


def test_no_report_comes_without_a_write() -> None:
    for report in (log().append_written, log().append_refused):
        with pytest.raises(AssertionError):
            report()


@pytest.mark.parametrize("index", range(1, END + 1))
def test_a_contradiction_is_cut(index: int) -> None:
    """Nothing at or above the cut is durable, urgent or early any more; the driver truncates before
    it appends."""
    for durable, urgent, early in product(INDEXES, repeat=3):
        made = log(durable=durable, urgent=urgent, early=early)
        made.cut_from(index)
        found = (made.durable_index, made.urgent_index, made.early_index, made.view.end_index)
        assert found == (
            min(durable, index - 1),
            min(urgent, index - 1),
            min(early, index - 1),
            index - 1,
        )
        assert made.take_writes() == (index, None)
        made.check()


def cuts_and_appends() -> Iterator[list[int]]:
    """Up to three cuts, each followed by appends to the former end."""
    for count in range(4):
        yield from map(list, product(range(1, END + 1), repeat=count))


@pytest.mark.parametrize("durable", [NO_INDEX, 0, END])
def test_sync_covers_entries_not_cut_since_it_began(durable: int) -> None:
    """Whatever replaced the cut entries was written after the sync began, also if it has the same
    term."""
    for cuts in cuts_and_appends():
        made = log(durable=durable)
        assert made.begin_sync() == (2, END)
        for cut in cuts:
            made.cut_from(cut)
            made.merge(cut, END, 2)
        covered = min([END, *(cut - 1 for cut in cuts)])
        assert made.covered_by_sync(2, END) == covered
        assert made.covered_by_sync(1, END) == NO_INDEX, "another entry stands there now"
        assert made.covered_by_sync(2, END + 1) == NO_INDEX, "the log is shorter now"
        before = made.durable_index
        made.synced(2, END)
        assert made.durable_index == max(before, covered)
        made.begin_sync()
        assert made.covered_by_sync(2, END) == END, "a later sync covers all that is there"


def test_quorum_claims_are_durable_and_for_followers_verified() -> None:
    """A leader what is durable; a follower no more than it verified against this leader."""
    for durable, verified in product(INDEXES, repeat=2):
        made = log(durable=durable, verified=verified)
        assert (made.leader_claim(), made.follower_claim()) == (durable, min(durable, verified))


def test_commits_of_a_leader_count_as_far_as_the_log_is_verified() -> None:
    """They never fall."""
    for known, verified, news in product(INDEXES, INDEXES, range(NO_INDEX, END + 3)):
        made = LogState(LogView([(0, 1)], END), known)
        made.verify(verified)
        made.follow_commit(news)
        assert made.commit_index == max(known, min(news, verified))


def test_a_leader_commits_only_more() -> None:
    for known, index in product(INDEXES, INDEXES):
        made = LogState(LogView([(0, 1)], END), known)
        if index > known:
            made.commit(index)
            assert made.commit_index == index
        else:
            with pytest.raises(AssertionError):
                made.commit(index)


def test_a_flush_reaches_as_far_as_the_log_and_never_less() -> None:
    for before, index in product(INDEXES, range(NO_INDEX, END + 3)):
        made = log(urgent=before)
        made.request_flush_to(index)
        assert made.urgent_index == max(before, min(index, END))
        made.request_flush()
        assert made.urgent_index == END


def test_verified_only_rises_until_the_leader_is_another_one() -> None:
    for before, index in product(INDEXES, repeat=2):
        made = log(verified=before)
        made.verify(index)
        assert made.verified_index == max(before, index)
        made.forget_verified()
        assert made.verified_index == NO_INDEX


@pytest.mark.parametrize("begin", range(1, END + 1))
def test_trim_above_the_commit_index_is_an_assertion(begin: int) -> None:
    """The entry before the begin was committed; of what lies before that one, only this is
    known."""
    for commit in INDEXES:
        made = LogState(LogView([(0, 1)], END), commit)
        if commit < begin - 1:
            with pytest.raises(AssertionError):
                made.trim(begin)
            continue
        made.trim(begin)
        assert made.view.begin_index == begin
        assert [index for index in INDEXES if made.was_trimmed(index)] == list(
            range(NO_INDEX, begin - 1)
        )


def test_begin_leading_makes_the_log_urgent_and_clears_early_indexes() -> None:
    made = log(urgent=1, early=2)
    made.hold(2)
    made.begin_leading()
    assert (made.urgent_index, made.early_index, made.held_index) == (END, NO_INDEX, NO_INDEX)
    made.hold(3)
    assert made.held_index == 3


@pytest.mark.parametrize(
    "field", ["durable_index", "verified_index", "commit_index", "urgent_index", "early_index"]
)
def test_no_index_lies_beyond_the_end(field: str) -> None:
    for value in (END, END + 1):
        made = log()
        setattr(made, field, value)
        if value <= END:
            made.check()
        else:
            with pytest.raises(AssertionError):
                made.check()
