"""HA groups whose nodes stop, lose their disks and come back whole or empty, in every order: they
serve again whenever they may."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledgermq.raft.config import Members, Rule
from ledgermq.raft.core import Core
from ledgermq.raft.isr_review import IsrReview
from ledgermq.raft.leader import Leader
from ledgermq.raft.member_changes import MemberChanges
from ledgermq.raft.membership import MemberChange
from ledgermq.raft.policy import POLICIES, InSync, Peers
from tests.raft.lost_disks import LostDisks, Search

FEW = [
    (2, 1, (1, 0, 0), 100),
    (2, 2, (1, 0, 1), 200),
    (3, 1, (1, 0, 0), 100),
    (3, 2, (1, 0, 0), 100),
    (3, 3, (1, 0, 0), 100),
]
TWO = [(2, 1, (1, 1, 0), 1_000), (2, 2, (1, 1, 1), 2_000), (2, 2, (2, 1, 0), 2_000)]
THREE = [(3, minimum, (2, 0, 0), 2_000) for minimum in (1, 2, 3)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("size", "minimum", "bounds", "least"), FEW, ids=str)
def test_a_group_serves_again_whenever_it_may(
    size: int, minimum: int, bounds: tuple[int, int, int], least: int
) -> None:
    """All states: disks lost, nodes stopped, heartbeats in which the controller does not answer
    (`bounds`), at any moment."""
    search = Search(LostDisks(size, minimum, bounds))
    assert search.run(10_000) > least
    assert search.finished


@pytest.mark.verify
@pytest.mark.in_turn(2)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("size", "minimum", "bounds", "least"), [*TWO, *THREE], ids=str)
def test_a_group_serves_again_after_two_losses(
    size: int, minimum: int, bounds: tuple[int, int, int], least: int
) -> None:
    """All states here too."""
    search = Search(LostDisks(size, minimum, bounds))
    assert search.run(20_000) > least
    assert search.finished


# Every rule broken alone


class WaitsForACommit(Core):
    """Planted, a former bug: a lost directory is taken back only once an entry of the epoch is
    committed."""

    class changes_type(MemberChanges):
        def _may_come_first(self, leader: Leader, change: MemberChange) -> bool:
            return False


class KeepsTheSilent(Core):
    """Planted, a former bug: a copy that would become a voter does not make up for a member of the
    set that is gone."""

    class review_type(IsrReview):
        def _outside(self, now_ns: int) -> int:
            return 0


class LowersAtOncePolicy(InSync):
    """Planted: the minimum is what can be heard."""

    def may_commit(self, index: int, peers: Peers, members_at: Callable[[int], Members]) -> bool:
        return True


class LowersAtOnce(Core):
    """It has that."""

    policies = {**POLICIES, Rule.IN_SYNC: LowersAtOncePolicy}  # noqa: RUF012  as in Core


@pytest.mark.parametrize(
    ("core", "size", "bounds", "said"),
    [
        (WaitsForACommit, 2, (1, 0, 0), "do not serve"),
        (KeepsTheSilent, 3, (2, 0, 0), "do not serve"),
        (LowersAtOnce, 2, (1, 0, 0), "is confirmed with 1 copies"),
    ],
)
def test_the_search_finds_every_broken_rule(
    core: type[Core], size: int, bounds: tuple[int, int, int], said: str
) -> None:
    """And names the steps that lead there."""
    with pytest.raises(AssertionError, match=said) as found:
        Search(LostDisks(size, 2, bounds, core)).run(2_000)
    assert str(found.value).startswith("after lose-n")
