"""Changes of members of HA groups, in every state that a small group can reach: each ends, and none
leaves too few in sync."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgermq.raft.config import Rule
from ledgermq.raft.core import Core
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.isr_review import IsrReview
from ledgermq.raft.policy import POLICIES, InSync
from ledgermq.sim.nodes.bugs import WishesEvictedBack
from tests.raft.appointed_states import Goal, Search, States

REMOVALS = (Goal("n2"), Goal("n3"))
ASKED_EVERY = (1, 2)
"""Heartbeats between two questions of an operator."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("minimum", "goals", "least"),
    [
        (1, (Goal("n3"),), 50),
        (2, REMOVALS, 500),
        (2, (Goal("n3", "n4"),), 100),
        (2, (Goal("n1", "n4"),), 100),
    ],
    ids=["removal", "two-removals", "move-of-a-slave", "move-of-the-master"],
)
def test_every_change_ends_from_every_state(
    minimum: int, goals: tuple[Goal, ...], least: int
) -> None:
    """All states, with wishes and news that are as late as can be. The search is over when there is
    no new one."""
    search = Search(States(minimum), goals, ASKED_EVERY)
    assert search.run(10_000) > least
    assert search.finished


@pytest.mark.verify
@pytest.mark.parametrize("minimum", [1, 2])
def test_every_change_ends_although_a_node_is_cut_off(minimum: int) -> None:
    """The states nearest to the initial state; whichever node is partitioned permanently, the
    others continue if enough remain."""
    assert Search(States(minimum, cuts=1), (Goal("n3"),), (2,)).run(1_500) >= 1_500


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "goals",
    [(Goal("n3"),), (Goal("n3", "n4"),), (Goal("n1", "n4"),), (Goal("n1", "n4"), Goal("n3"))],
    ids=str,
)
@pytest.mark.parametrize("minimum", [1, 2])
@pytest.mark.parametrize("cuts", [0, 1])
def test_every_change_ends_from_very_many_states(
    minimum: int, goals: tuple[Goal, ...], cuts: int
) -> None:
    """As many as fit; all of them where the search ends sooner."""
    found = Search(States(minimum, cuts=cuts), goals, ASKED_EVERY).run(100_000)
    print(f"{found} states")


class WishesBack(Core):
    """Planted: the simulator's bug."""

    review_type = WishesEvictedBack


class LeavesAnywayReview(IsrReview):
    """Planted, a former bug: a node that a change removes leaves the set, however few remain."""

    def leaving_set(self, agreed: Appointment, now_ns: int) -> set[str]:
        return super().leaving_set(agreed, now_ns) | (self.evicting.keys() & agreed.in_sync.keys())


class LeavesAnyway(Core):
    """It has that."""

    review_type = LeavesAnywayReview


class RemovesAnywayPolicy(InSync):
    """Planted, a former bug: a change is made although too few of the remaining nodes respond."""

    def would_stall(
        self, voters: Sequence[str], there: Sequence[str], *, leaves: bool
    ) -> str | None:
        return None


class RemovesAnyway(Core):
    """It has that."""

    policies = {**POLICIES, Rule.IN_SYNC: RemovesAnywayPolicy}  # noqa: RUF012  as in Core


@pytest.mark.verify
@pytest.mark.parametrize(
    ("core", "cuts", "goals", "said"),
    [
        (WishesBack, 0, (Goal("n3"),), "does not end"),
        (LeavesAnyway, 0, REMOVALS, "leaves too few in-sync members"),
        (RemovesAnyway, 1, (Goal("n3"),), "was removed although too few"),
    ],
)
def test_the_search_finds_every_broken_rule(
    core: type[Core], cuts: int, goals: tuple[Goal, ...], said: str
) -> None:
    """And names the steps that lead there."""
    with pytest.raises(AssertionError, match=said) as found:
        Search(States(2, cuts, core), goals, (2,)).run(10_000)
    assert str(found.value).startswith("after want-n")
