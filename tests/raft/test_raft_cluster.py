"""Hundreds of random lives of three and five bare cores; the checks are in `memory_cluster.py`."""

from __future__ import annotations

import pytest

from ledgermq.proto.types import HardState
from ledgermq.raft.core import Core
from ledgermq.raft.election import Election
from ledgermq.raft.leader import Leader
from ledgermq.raft.log_state import LogState
from ledgermq.raft.messages import VoteRequest
from tests.raft.memory_cluster import Cluster, Member

STEPS = 1000


MANY = [pytest.param(*case, marks=pytest.mark.verify) for case in ((3, 400), (5, 200))]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("size", "seeds"), [(1, 20), (2, 20), (3, 50), (5, 30), *MANY])
def test_random_faults_break_no_invariant_and_healing_brings_progress(
    size: int, seeds: int
) -> None:
    """I1 to I5 and log matching hold under loss, repetition, reordering, one-way cuts and power
    cuts, and a healed cluster commits."""
    committed = 0
    for seed in range(seeds):
        cluster = Cluster(size, seed)
        for _ in range(STEPS):
            cluster.step()
        cluster.heal()
        assert not cluster.fences, f"seed {seed}: {cluster.fences}"
        committed += max(cluster.committed)
    assert committed > 0


class CountsReceived(Core):
    """Planted: an acknowledgement before the sync."""

    class log_type(LogState):
        def leader_claim(self) -> int:
            return self.view.end_index

        def follower_claim(self) -> int:
            return self.verified_index


class CountsOldTerms(Core):
    """Planted: commits entries of earlier terms by counting."""

    class leader_type(Leader):
        def is_of_this_term(self, index: int) -> bool:
            return True


class BelievesEverySync(Core):
    """Planted: ABA in `synced`."""

    class log_type(LogState):
        def covered_by_sync(self, term: int, index: int) -> int:
            return min(index, self.view.end_index)


class VotesForAnyone(Core):
    """Planted: votes without looking at the candidate's log."""

    class election_type(Election):
        def is_up_to_date(self, request: VoteRequest) -> bool:
            return True


class ForgetsVote(Member):
    """Planted: term and vote do not survive a crash."""

    def start(self, now_ns: int) -> None:
        self.disk.hard_state = HardState(max(term for term, _ in self.disk.written), None)
        super().start(now_ns)


@pytest.mark.parametrize(
    ("planted", "first_seed"),
    [
        *((CountsReceived, 0), (BelievesEverySync, 0), (VotesForAnyone, 0), (ForgetsVote, 0)),
        pytest.param(CountsOldTerms, 60, marks=pytest.mark.verify),
    ],
)
def test_the_checks_find_a_broken_rule(planted: type[Core] | type[Member], first_seed: int) -> None:
    """Each rule that safety hangs on, broken alone, is noticed: the checks can fail. Figure 8 is
    rare, so its search begins near one."""
    member = (
        planted
        if issubclass(planted, Member)
        else type("BrokenMember", (Member,), {"core_type": planted})
    )
    cluster_type = type("BrokenCluster", (Cluster,), {"member_type": member})
    for seed in range(first_seed, first_seed + 300):
        cluster = cluster_type(3, seed)
        try:
            for _ in range(3 * STEPS):
                cluster.step()
        except AssertionError:
            return
    raise AssertionError(f"{planted.__name__} went unnoticed")
