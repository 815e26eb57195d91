"""Membership change under random faults (Raft dissertation ch. 4): three voters, two nodes that may
join, changes of every kind at every moment, wiped directories, crashes and partitions. The checks
of `memory_cluster.py` hold throughout, and healing brings progress.
"""

from __future__ import annotations

from itertools import count

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft.config import MS, Members
from ledgermq.raft.core import Core
from ledgermq.raft.membership import Change, MemberChange, Membership, changed
from tests.raft.memory_cluster import Cluster, Disk, Entry, Member

BEGIN = 3
STEPS = 2500
KINDS = [kind for kind in Change if kind is not Change.RULE]


class ChangingCluster(Cluster):
    """`n1` to `n3` vote at first; `n4` and `n5` have empty logs."""

    def __init__(self, seed: int) -> None:
        super().__init__(5, seed)
        self.said: dict[int, Members] = {}
        self.directories = count(1)
        self.changes = 0
        self.loss, self.pace_ms, self.calm = min(self.loss, 0.02), 30, 0.97
        voters = tuple(self.members)[:BEGIN]
        for name, member in self.members.items():
            member.said, member.voters = self.said, voters
            member.directory = f"{name}/0"
            if name not in voters:
                self.wipe(member)
            else:
                member.start(0)

    def wipe(self, member: Member) -> None:
        """A new directory that no record names and no member has seen."""
        member.disk = Disk(written=[], durable=-1)
        member.directory, member.admitted, member.voters = (
            f"{member.name}/{next(self.directories)}",
            False,
            (),
        )
        member.start(self.now_ns)
        self.commits[member.name] = -1

    def disturb(self) -> None:
        what = self.chance.random()
        if what < 0.6:
            self.change_something()
        elif what < 0.64:
            self.wipe_somebody()
        elif what < 0.8:
            self.cut.clear()
        else:
            super().disturb()

    def change_something(self) -> None:
        for leader in [m for m in self.up() if m.core.accepting]:
            node, kind = self.chance.choice(list(self.members)), self.chance.choice(KINDS)
            members = leader.core.members
            change = leader.core.due_change(self.now_ns) or MemberChange(
                kind, node, self.members[node].directory
            )
            if lost := [node for node in members.nodes if not self.known(members, node)]:
                # A further change before this node is back may lose the quorum permanently.
                change = MemberChange(Change.RETURN, lost[0], self.members[lost[0]].directory)
            if leader.change(change, self.now_ns) is None:
                self.changes += 1
                self.turn(leader)

    def wipe_somebody(self) -> None:
        """One at a time, of a group that can do without it: what was lost on a majority is lost
        (docs/architecture.md, Durability)."""
        leader = max(
            (m for m in self.up() if m.core.role is Role.LEADER),
            key=lambda m: m.core.term,
            default=None,
        )
        if leader is None:
            return
        members, certain = (
            leader.core.members,
            leader.core.configurations.latest_index <= leader.core.commit_index,
        )
        whole = all(self.known(members, voter) for voter in members.voters)
        name = self.chance.choice(list(self.members))
        if (
            certain
            and whole
            and name != leader.name
            and name not in self.down
            and (name not in members.voters or len(members.voters) > 2)
        ):
            self.wipe(self.members[name])

    def known(self, members: Members, node: str) -> bool:
        directory = self.members[node].directory
        return members.incarnations.get(node, f"{node}/0") == directory

    def check(self, member: Member) -> None:
        """Of the base class all but I5, which counts the voters of the moment: on a leader, when
        commit rises."""
        core = member.core
        core.check_invariants()
        assert core.log.end_index == len(member.disk.written) - 1
        changes = [
            (index, self.said[word])
            for index, (_, word) in enumerate(member.disk.written)
            if word in self.said
        ]
        assert list(core.configurations.runs[1:]) == changes, "configurations are those of the log"
        self.check_elections(member)
        for index, (term, word) in enumerate(member.disk.written):
            assert self.seen.setdefault((index, term), word) == word, (
                f"I2: ({index}, {term}) has two different predecessors"
            )
        before = self.commits.get(member.name, -1)
        assert core.commit_index >= before, f"I4: the commit index of {member.name} went back"
        self.commits[member.name] = core.commit_index
        for index in range(before + 1, core.commit_index + 1):
            entry = member.disk.written[index]
            assert self.committed.setdefault(index, entry) == entry, (
                f"I3: two entries committed at {index}"
            )
            self.committed_in.setdefault(index, core.term)
        if core.role is Role.LEADER and core.commit_index > max(before, 0):
            self.check_holders(member)

    def check_elections(self, member: Member) -> None:
        core = member.core
        if core.role is not Role.LEADER:
            return
        assert self.leaders.setdefault(core.term, member.name) == member.name, (
            f"I1: two leaders in term {core.term}"
        )
        for index, entry in self.committed.items():
            if self.committed_in[index] < core.term:
                assert index < len(member.disk.written) and member.disk.written[index] == entry, (
                    f"I3: {member.name} lacks {index}"
                )

    def check_holders(self, leader: Member) -> None:
        index, members = leader.core.commit_index, leader.core.members
        word, voters = leader.disk.written[index], members.voters
        # A directory that is gone may have held it when it said so.
        holders = [
            voter
            for voter in voters
            if not self.known(members, voter) or self.holds(voter, index, word)
        ]
        assert 2 * len(holders) > len(voters), (
            f"I5: entry {index} committed but durable on {len(holders)} of {voters}"
        )

    def holds(self, node: str, index: int, word: Entry) -> bool:
        disk = self.members[node].disk
        return disk.durable >= index and disk.written[index] == word

    def heal(self) -> None:
        """Everything works again: the wiped return, and every member commits a new entry."""
        self.cut.clear()
        self.loss = self.repeat = 0.0
        self.shuffle = False
        for name in list(self.down):
            self.members[name].start(self.now_ns)
            self.commits[name] = min(0, self.members[name].core.log.end_index)
        self.down.clear()
        deadline = self.now_ns + 40_000 * MS
        while self.now_ns < deadline:
            while self.network:
                self.deliver()
            for member in self.up():
                member.begin_sync()
                member.end_sync()
                self.turn(member)
            if not self.network and self.settled():
                return
            if not self.network:
                self.now_ns += 10 * MS
                for member in self.up():
                    member.core.tick(self.now_ns)
                    self.turn(member)
        raise AssertionError(
            "no progress after healing:"
            f" {[(repr(m.core), m.core.members.nodes) for m in self.members.values()]}"
        )

    def settled(self) -> bool:
        """Let the leader do what is owed; whether nothing is, and every member has committed
        all."""
        leader = next((m for m in self.up() if m.core.accepting), None)
        if leader is None:
            return False
        members = leader.core.members
        lost = [node for node in members.nodes if not self.known(members, node)]
        if (
            leader.core.commit_index < leader.core.log.end_index
            or leader.core.log.end_term != leader.core.term
        ):
            if leader.core.log.end_term != leader.core.term:
                leader.propose(1)
        elif lost:
            leader.change(
                MemberChange(Change.RETURN, lost[0], self.members[lost[0]].directory), self.now_ns
            )
        elif change := leader.core.due_change(self.now_ns):
            leader.change(change, self.now_ns)
        elif all(
            self.members[node].core.commit_index == leader.core.log.end_index
            for node in members.nodes
        ):
            return not members.returning
        self.turn(leader)
        return False


@pytest.mark.one_in(6)
@pytest.mark.parametrize("first", range(0, 100, 10))
def test_changes_break_no_invariant_and_healing_brings_progress(first: int) -> None:
    """Dissertation §4.1, §4.2: any interleaving of changes, crashes, wiped directories and
    partitions keeps I1 to I5."""
    changes = 0
    for seed in range(first, first + 10):
        cluster = ChangingCluster(seed)
        for _ in range(STEPS):
            cluster.step()
        cluster.heal()
        assert not cluster.fences, f"seed {seed}: {cluster.fences}"
        changes += cluster.changes
    assert changes > 20


class ChangesAtOnce(Core):
    """Planted: a change begins before the one before is committed, so that majorities need not
    meet."""

    def propose_members(self, change: MemberChange, now_ns: int) -> Members | str:
        return changed(self.members, change, 0)


class ForgetsToGoBack(Core):
    """Planted: a configuration stays in force although its entry was cut off."""

    class membership_type(Membership):
        def truncate_from(self, index: int) -> None:
            pass


@pytest.mark.parametrize("planted", [ChangesAtOnce, ForgetsToGoBack])
def test_the_checks_find_a_broken_rule_of_membership(planted: type[Core]) -> None:
    """Each rule broken alone is noticed by the checks."""
    broken = type("BrokenMember", (Member,), {"core_type": planted})
    cluster_type = type("BrokenCluster", (ChangingCluster,), {"member_type": broken})
    for seed in range(140, 240):
        cluster = cluster_type(seed)
        try:
            for _ in range(STEPS):
                cluster.step()
        except AssertionError:
            return
    raise AssertionError(f"{planted.__name__} went unnoticed")
