"""Quorum arithmetic: pure functions over small collections. Nothing here knows a role, a term or a
time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum


class Ballot(Enum):
    """The state of an election."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """The smallest number of voters such that any two sets of this size share a member."""
    if voters < 1:
        raise ValueError("a group needs at least one voter")
    return voters // 2 + 1


def reached_by_majority(values: Sequence[int]) -> int:
    """The greatest value that a majority has reached, one value per voter: for indexes the commit
    candidate, for times the last contact."""
    # The index is that of the last member of a `majority`.
    return sorted(values, reverse=True)[len(values) // 2]


def ballot(voters: Sequence[str], votes: Mapping[str, bool], *, unanimous: bool = False) -> Ballot:
    """The state of an election; votes of strangers do not count."""
    needed = len(voters) if unanimous else majority(len(voters))
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if granted >= needed:
        return Ballot.WON
    return Ballot.LOST if len(voters) - refused < needed else Ballot.PENDING
