"""Full disks: a node that says that it takes no messages leads only what no other can, and costs no
election, commit or handover."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft.config import MS, Timing
from ledgermq.raft.transfer import HANDOVERS, Cause
from tests.raft.memory_cluster import Cluster, Member
from tests.raft.test_raft_election_timer import BEGIN_NS, FIRST_NS, LONGEST_NS, SECOND_NS, timer
from tests.raft.test_raft_members import leading
from tests.raft.test_raft_paper import LATER

PATIENCE_NS = 2_000 * MS
FULL = [frozenset(full) for count in range(4) for full in combinations("abc", count)]


class QuietCluster(Cluster):
    """Without faults, and with a leader and equal logs on all members."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.heal()

    def say_full(self, full: frozenset[str]) -> None:
        """Each member knows of itself, and a leader of all."""
        for member in self.up():
            leads = member.core.role is Role.LEADER
            member.core.note_full(full if leads else full & {member.name})

    def pass_time(self, milliseconds: int) -> None:
        for _ in range(milliseconds):
            self.now_ns += MS
            for member in self.up():
                member.core.tick(self.now_of(member))
                member.begin_sync()
                member.end_sync()
                self.turn(member)
            while self.network:
                self.deliver()

    def leader(self) -> Member | None:
        return max(
            (m for m in self.up() if m.core.role is Role.LEADER),
            key=lambda m: m.core.term,
            default=None,
        )

    def elect(self, *, without: str) -> Member:
        """The next leader, after this one stopped for good."""
        self.members[without].crash()
        self.down[without] = 1 << 62
        while (leader := self.leader()) is None:
            self.pass_time(1)
        return leader


def test_a_full_replica_waits_until_the_others_had_their_chance() -> None:
    """From the next timeout on, by the longest timeout of another; and not any longer once it has
    room."""
    made = timer()
    made.hold_back(True)
    assert made.due_ns == BEGIN_NS + FIRST_NS
    made.heard(BEGIN_NS)
    assert made.due_ns == BEGIN_NS + SECOND_NS + LONGEST_NS
    made.hold_back(False)
    made.heard(BEGIN_NS)
    assert made.due_ns == BEGIN_NS + Timing().election_min_ns


def test_a_replica_waits_for_its_own_disk_alone() -> None:
    """A leader knows whose disks are full; one of another node is no reason to campaign later
    itself, should it lose leadership."""
    raft = leading()
    held = []
    for full in ("b", "ab", "", "a", "bc"):
        raft.note_full(frozenset(full))
        held.append(raft.timer.held_back)
    assert held == [False, True, False, True, False]


@pytest.mark.parametrize(("size", "seed"), list(product((3, 5), range(12))))
def test_an_election_prefers_no_full_node_while_an_equal_log_has_room(size: int, seed: int) -> None:
    """Whichever nodes are full: of those with the whole log, one with room is elected if there is
    any, else one without."""
    names = [f"n{i + 1}" for i in range(size)]
    full = frozenset(name for k, name in enumerate(names) if (seed + 3) * 37 >> k & 1)
    cluster = QuietCluster(size, seed)
    cluster.say_full(full)
    cluster.pass_time(300)
    former = cluster.leader()
    assert former is not None
    elected = cluster.elect(without=former.name).name
    roomy = set(names) - full - {former.name}
    assert elected in (roomy or set(names)), (full, former.name)


@pytest.mark.parametrize("seed", range(6))
def test_a_complete_log_comes_before_room(seed: int) -> None:
    """Committed entries that only the full node has besides its former leader: it is elected, and
    votes like any other before that."""
    cluster = QuietCluster(3, seed)
    former = cluster.leader()
    assert former is not None
    full, behind = sorted(set(cluster.members) - {former.name})
    cluster.cut |= {(former.name, behind)}
    former.propose(3)
    cluster.turn(former)
    cluster.say_full(frozenset({full}))
    cluster.pass_time(150)
    assert former.core.commit_index == former.core.log.end_index
    cluster.cut.clear()
    assert cluster.elect(without=former.name).name == full


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(12))
def test_full_disks_under_faults_break_no_invariant_and_cost_no_progress(seed: int) -> None:
    """Disks that fill and empty at any time, among all other faults; and in the end all of them are
    full."""
    cluster = Cluster(3 if seed % 2 else 5, 900 + seed)
    for _ in range(1500):
        cluster.step()
        if cluster.chance.random() < 0.02:
            full = frozenset(name for name in cluster.members if cluster.chance.random() < 0.5)
            for member in cluster.up():
                member.core.note_full(
                    full if member.core.role is Role.LEADER else full & {member.name}
                )
    for member in cluster.members.values():
        member.core.note_full(frozenset(cluster.members))
    cluster.heal()
    assert not cluster.fences


@pytest.mark.parametrize("full", FULL, ids=lambda full: "".join(sorted(full)) or "none")
@pytest.mark.parametrize("cause", sorted(HANDOVERS))
def test_handover_prefers_voters_with_room_on_disk(full: frozenset[str], cause: Cause) -> None:
    """The leader `a` has two followers that keep up. Nobody gets a full node by asking while any
    voter has room; a leader that has to go hands over to a full one if there is no other."""
    raft = leading()
    for peer in raft.peers.values():
        peer.contact_ns = LATER
    raft.note_full(full)
    best = raft.best_successor(LATER)
    assert best == ("b" if "c" in full and "b" not in full else "c")
    refused = "b" in full and len(full) < 3 and cause in (Cause.OPERATOR, Cause.PREFERRED)
    better = ", ".join(sorted(set("abc") - full))
    why = f"the disk of b is full: as leader it would refuse sends, and {better} would not"
    assert raft.transfer("b", cause, LATER, PATIENCE_NS) == (why if refused else None)


def test_room_on_an_unelectable_voter_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one outside of the in-sync set of an HA group: it is no reason against a full node, and is
    not named as the better one."""
    raft = leading()
    for peer in raft.peers.values():
        peer.contact_ns = LATER
    monkeypatch.setattr(type(raft.membership.policy), "electors", lambda _: ("a", "b"))
    raft.note_full(frozenset("b"))
    why = "the disk of b is full: as leader it would refuse sends, and a would not"
    assert raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS) == why
    raft.note_full(frozenset("ab"))
    assert raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS) is None


def test_room_on_a_lagging_successor_is_ignored() -> None:
    """A leader that stops has no time for it."""
    raft = leading()
    for peer in raft.peers.values():
        peer.contact_ns = LATER
    raft.peers["b"].next_index -= 1
    raft.note_full(frozenset({"c"}))
    assert raft.best_successor(LATER) == "c"
