"""When a follower applies what the leader committed, on virtual time: within a heartbeat, and much
sooner where a reader waits.

`Cluster` delivers a packet within 3 ms and ends a sync within 8 ms. Invariant: the state of a
reachable follower is behind the leader's by at most one heartbeat period and one packet; where a
reader waits, by at most `news_ns` and one packet.
"""

from __future__ import annotations

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.proto.types import Permission, TopicConfig, TopicKind
from ledgermq.raft.config import Timing
from tests.node_core.core_cluster import MS, Cluster, Node
from tests.node_core.core_fakes import draft

STEP_NS = MS // 2
PACKET_NS, SYNC_NS = 3 * MS, 8 * MS
TIMING = Timing()
COMMITS = 12


class Stage:
    """A cluster with a leader, a topic, and idle links."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(seed)
        self.token = 0
        while self.cluster.leader() is None:
            self.pass_time(100 * MS)
        leader = self.cluster.leader()
        assert leader is not None
        self.leader = leader
        self.followers = [node for node in self.cluster.nodes.values() if node is not leader]
        self.token += 1
        topic = TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1)
        self.cluster.turn(leader, calls=[Configure(self.token, (topic,))])
        self.pass_time(300 * MS)

    def pass_time(self, ns: int) -> None:
        self.cluster.run(self.cluster.now_ns + ns)

    def commit(self) -> int:
        """Send one message; returns the leader's applied index once it is acknowledged."""
        self.token += 1
        self.cluster.turn(self.leader, calls=[Produce(self.token, [draft(f"{self.token}")])])
        while self.token not in self.cluster.outcomes:
            self.pass_time(STEP_NS)
        assert isinstance(self.cluster.outcomes[self.token], Produced)
        return self.leader.machine.applied_index

    def lag_ns(self, node: Node, index: int) -> int:
        """How long it takes until the node has applied this entry."""
        began_ns = self.cluster.now_ns
        while node.machine.applied_index < index:
            self.pass_time(STEP_NS)
        return self.cluster.now_ns - began_ns

    def watch(self, node: Node) -> None:
        """A reader comes, as `Sources.open` brings it: between two turns, and a turn follows."""
        node.group.keep_recent()
        self.cluster.turn(node)


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_at_a_follower_does_not_wait_for_a_heartbeat(seed: int) -> None:
    stage = Stage(seed)
    reader, other = stage.followers
    stage.watch(reader)
    stage.pass_time(2 * PACKET_NS)
    lags = []
    for _ in range(COMMITS):
        index = stage.commit()
        lags.append(stage.lag_ns(reader, index))
        assert stage.lag_ns(other, index) <= TIMING.heartbeat_ns + PACKET_NS
    # The copy here may be received after the commit; a heartbeat may be the news.
    assert max(lags) <= TIMING.news_ns + 2 * PACKET_NS + SYNC_NS + STEP_NS
    stage.pass_time(TIMING.heartbeat_ns)
    assert (
        other.machine.applied_index
        == reader.machine.applied_index
        == stage.leader.machine.applied_index
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_that_comes_after_the_commit_does_not_wait_either(seed: int) -> None:
    """The follower tells the leader at once that a reader waits, and what is committed already
    comes at once."""
    stage = Stage(seed)
    follower = stage.followers[0]
    lags = []
    for _ in range(COMMITS):
        index = stage.commit()
        stage.pass_time(PACKET_NS + SYNC_NS)
        stage.watch(follower)
        lags.append(stage.lag_ns(follower, index))
        assert follower.group.recent is not None
        follower.group.release_recent(follower.group.recent)
        stage.pass_time(2 * TIMING.heartbeat_ns)
    assert max(lags) <= TIMING.news_ns + 2 * PACKET_NS + STEP_NS


@pytest.mark.parametrize("seed", range(3))
def test_without_readers_followers_are_behind_by_a_heartbeat_at_most(seed: int) -> None:
    stage = Stage(seed)
    for _ in range(COMMITS):
        index = stage.commit()
        lags = [stage.lag_ns(node, index) for node in stage.followers]
        assert max(lags) <= TIMING.heartbeat_ns + PACKET_NS + STEP_NS
