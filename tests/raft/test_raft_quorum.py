"""Quorum arithmetic against a slow second version that enumerates sets of voters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.quorum import Ballot, ballot, majority, reached_by_majority


def quorums(voters: list[str]) -> list[set[str]]:
    """All sets of voters that outnumber the rest."""
    return [
        set(c)
        for n in range(len(voters) + 1)
        for c in combinations(voters, n)
        if 2 * n > len(voters)
    ]


@pytest.mark.parametrize("size", range(1, 10))
def test_any_two_majorities_share_a_member_and_no_smaller_sets_do(size: int) -> None:
    """The majority is the least size with a guaranteed overlap."""
    needed = majority(size)
    assert 2 * needed > size
    assert 2 * (needed - 1) <= size


def test_a_group_without_voters_is_refused() -> None:
    """A group without voters has no majority."""
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
    assert ballot(voters, votes) is (
        Ballot.WON if won else Ballot.PENDING if open_ else Ballot.LOST
    )


def orders(size: int) -> Iterator[tuple[int, ...]]:
    """All rankings of this many voters by progress, including ties."""
    for values in product(range(size), repeat=size):
        if set(values) == set(range(max(values) + 1)):
            yield values


@pytest.mark.parametrize("size", range(1, 8))
def test_reached_by_majority_in_every_order_of_up_to_seven_voters(size: int) -> None:
    """A second version that only counts: the greatest value with more than half of the voters at or
    above it. Only the order of the values matters, so all rankings are all cases."""
    for values in orders(size):
        count = [sum(value >= limit for value in values) for limit in range(max(values) + 1)]
        assert reached_by_majority(values) == max(
            limit for limit, above in enumerate(count) if 2 * above > size
        ), values


@pytest.mark.parametrize("size", range(1, 8))
def test_ballots_of_up_to_seven_voters_in_every_state(size: int) -> None:
    """Every voter granted, refused or silent, with strangers beside them: won once more than half
    granted, lost once they cannot."""
    voters = [f"n{i}" for i in range(size)]
    for states in product((True, False, None), repeat=size):
        votes = {
            voter: state for voter, state in zip(voters, states, strict=True) if state is not None
        }
        granted, silent = states.count(True), states.count(None)
        expected = (
            Ballot.WON
            if 2 * granted > size
            else Ballot.PENDING
            if 2 * (granted + silent) > size
            else Ballot.LOST
        )
        for strangers in (
            {},
            {"x": True, "y": True, "z": True},
            {"x": False, "y": False, "z": False},
        ):
            assert ballot(voters, strangers | votes) is expected, (states, strangers)


@pytest.mark.parametrize("size", range(1, 8))
def test_every_two_quorums_of_up_to_seven_voters_share_one(size: int) -> None:
    """Set by set: a set that `ballot` lets win meets every other such set, and a set that wins
    leaves the rest without a majority."""
    voters = [f"n{i}" for i in range(size)]
    winning = [
        set(c)
        for n in range(size + 1)
        for c in combinations(voters, n)
        if ballot(voters, dict.fromkeys(c, True)) is Ballot.WON
    ]
    assert winning == quorums(voters) and min(map(len, winning)) == majority(size)
    assert all(one & other for one, other in product(winning, repeat=2))
    assert all(
        ballot(voters, dict.fromkeys(set(voters) - one, True)) is not Ballot.WON for one in winning
    )
