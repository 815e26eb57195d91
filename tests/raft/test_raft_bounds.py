"""What the core costs: its memory does not know how long the log is, and a slow follower costs a
leader nothing but its window. And what unsteady links cost: at most one election per heal, and no
terms (virtual time)."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft.config import MS
from ledgermq.raft.core import Core
from ledgermq.raft.messages import AppendReply, Extent
from tests.raft.memory_cluster import Cluster
from tests.raft.test_raft_members import heard, leading
from tests.raft.test_raft_paper import LATER

BYTES = 1 << 17


def push(raft: Core, count: int, now_ns: int = LATER) -> dict[str, int]:
    """Append a range and push what the windows allow, a range at a time; bytes per peer."""
    first = raft.log.end_index + 1
    raft.appended(Extent(first, first + count - 1, raft.term, BYTES))
    return pushes(raft, count, now_ns)


def pushes(raft: Core, count: int, now_ns: int) -> dict[str, int]:
    sent: dict[str, int] = {}
    for each in raft.take(now_ns).pushes:
        first, size, ranges = each.first_index, each.size, each.ranges
        while size > 0 and ranges > 0 and first <= raft.log.end_index:
            raft.pushed(each.to, Extent(first, first + count - 1, raft.term, BYTES))
            first, size, ranges = first + count, size - BYTES, ranges - 1
            sent[each.to] = sent.get(each.to, 0) + BYTES
    return sent


def test_memory_does_not_grow_with_the_log() -> None:
    """O(terms + peers + configurations): a thousand times as many entries, the same core (invariant
    I11)."""

    def after(rounds: int) -> int:
        raft = leading()
        for _ in range(rounds):
            push(raft, 1000)
            raft.synced(*raft.sync_begins())
            for node in ("b", "c"):
                heard(raft, node, raft.log.end_index)
        assert raft.commit_index == raft.log.end_index == 1000 * rounds + 1
        peers = [vars(peer) for peer in raft.peers.values()]
        return len(pickle.dumps((peers, raft.log.runs, raft.configurations.runs)))

    assert after(1000) < after(1) + 64


def test_a_follower_that_stops_reading_costs_its_window_and_no_more() -> None:
    """Bytes in flight are bounded by the window and one range; no range is read again for it,
    however long it takes; the others continue."""
    raft = leading()
    heard(raft, "c", 1)
    total = {"b": 0, "c": 0}
    for beat in range(1, 200):
        now_ns = LATER + beat * 50 * MS
        for node, size in push(raft, 10, now_ns).items():
            total[node] += size
        raft.synced(*raft.sync_begins())
        heard(raft, "b", raft.log.end_index, now_ns=now_ns)
    window = raft.config.timing.window_bytes
    assert raft.commit_index == raft.log.end_index and total["b"] == 199 * BYTES
    assert total["c"] <= window + BYTES and raft.peers["c"].underway_bytes == total["c"]
    assert len(raft.peers["c"].underway) <= raft.config.timing.window_ranges
    before = raft.peers["c"].received
    raft.step(
        AppendReply(
            sender="c",
            to="a",
            term=2,
            round=raft.election.leading.round,
            boot_id=1,
            rejected=False,
            received=before + 10,
            durable=1,
        ),
        now_ns,
    )
    assert sum(pushes(raft, 10, now_ns).values()) <= 2 * BYTES + window


class Links(Cluster):
    """Three members with reliable disks; the test cuts links. Elections are counted by the terms
    that had a leader."""

    def __init__(self, seed: int) -> None:
        super().__init__(3, seed)
        self.loss = self.repeat = 0.0
        self.shuffle = False

    def run(self, ms: int) -> None:
        for _ in range(0, ms, 10):
            self.now_ns += 10 * MS
            for member in self.up():
                member.core.tick(self.now_ns)
                self.turn(member)
            while self.network:
                self.deliver()
            for member in self.up():
                member.begin_sync()
                member.end_sync()
                self.turn(member)
            for member in self.up():
                if member.core.accepting and member.core.log.end_term != member.core.term:
                    member.propose(1)
                    self.turn(member)

    def leader(self) -> str:
        (name,) = [m.name for m in self.members.values() if m.core.role is Role.LEADER]
        return name

    def begin(self) -> tuple[str, str, str]:
        self.run(3000)
        leader = self.leader()
        one, other = sorted(set(self.members) - {leader})
        return leader, one, other

    @property
    def terms(self) -> int:
        return max(m.core.term for m in self.members.values())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "link",
    ["to the leader", "from the leader", "both ways to the leader", "both ways between followers"],
)
def test_a_flapping_link_of_a_follower_costs_at_most_one_election(link: str, seed: int) -> None:
    """Rows of the fault matrix: one-way and flapping partitions. Pre-vote and stickiness keep the
    leader, and terms stay (dissertation §9.6); only where the leader itself is cut off may one
    election follow."""
    links = Links(seed)
    leader, one, other = links.begin()
    before = links.terms
    chance = Random(seed)
    ways = {
        "to the leader": {(one, leader)},
        "from the leader": {(leader, one)},
        "both ways to the leader": {(one, leader), (leader, one)},
        "both ways between followers": {(one, other), (other, one)},
    }[link]
    for _ in range(8):
        links.cut = set(ways)
        links.run(chance.randrange(100, 3000))
        links.cut.clear()
        links.run(chance.randrange(100, 3000))
    links.run(3000)
    assert links.terms == before and links.leader() == leader


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", ["out", "in", "both"])
def test_cut_of_the_leader_costs_one_election_and_a_heal_costs_zero(way: str, seed: int) -> None:
    """The messages from a leader, to it, or both are lost repeatedly: each cut costs one election
    (a split vote adds a term), a heal none."""
    links = Links(seed)
    links.begin()
    chance = Random(seed)
    for _ in range(4):
        leader, before = links.leader(), links.terms
        others = set(links.members) - {leader}
        links.cut = {(leader, o) for o in others if way != "in"} | {
            (o, leader) for o in others if way != "out"
        }
        links.run(chance.randrange(2500, 6000))
        cut = links.terms
        links.cut.clear()
        links.run(3000)
        assert links.terms == cut, "a heal cost an election"
        assert cut <= before + 2
