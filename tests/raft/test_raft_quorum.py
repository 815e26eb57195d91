"""Quorum arithmetic against a slow second version that enumerates sets of voters."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.quorum import Ballot, ballot, majority, reached_by_majority


def quorums(voters: list[str]) -> list[set[str]]:
    """All sets of voters that outnumber the rest."""
    return [set(c) for n in range(len(voters) + 1) for c in combinations(voters, n) if 2 * n > len(voters)]


@pytest.mark.parametrize("size", range(1, 10))
def test_any_two_majorities_share_a_member_and_no_smaller_sets_do(size: int) -> None:
    """The majority is the least size with a guaranteed overlap."""
    needed = majority(size)
    assert 2 * needed > size
    assert 2 * (needed - 1) <= size


def test_a_group_without_voters_is_refused() -> None:
    """Nobody can be a majority of nothing."""
    with pytest.raises(ValueError, match="at least one voter"):
        majority(0)


@given(st.lists(st.integers(-1, 30), min_size=1, max_size=7))
def test_reached_by_majority_agrees_with_enumeration(values: list[int]) -> None:
    """The greatest value that every member of some quorum has reached."""
    names = [str(i) for i in range(len(values))]
    slow = max(min(values[int(n)] for n in quorum) for quorum in quorums(names))
    assert reached_by_majority(values) == slow


@given(st.integers(1, 6), st.dictionaries(st.integers(0, 8).map(str), st.booleans()))
def test_ballot_agrees_with_enumeration(size: int, votes: dict[str, bool]) -> None:
    """Won when a quorum granted; lost when no quorum can grant any more; strangers never count."""
    voters = [str(i) for i in range(size)]
    won = any(all(votes.get(v) is True for v in quorum) for quorum in quorums(voters))
    open_ = any(all(votes.get(v, True) for v in quorum) for quorum in quorums(voters))
    assert ballot(voters, votes) is (Ballot.WON if won else Ballot.PENDING if open_ else Ballot.LOST)
