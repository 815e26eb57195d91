"""Members of whole replicas: a node that lost its directory comes back by itself, under faults, and
nothing acknowledged is lost."""

from __future__ import annotations

from itertools import count

import pytest

from ledgermq.node.broker.calls.member_calls import ChangeMembers, MembersChanged
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.types import Permission, Role, TopicConfig, TopicKind
from tests.node_core.core_cluster import MS, NAMES, Cluster
from tests.node_core.core_fakes import draft

TOPIC = TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1)


class Story:
    """One queue, a writer, and what was acknowledged to it."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(seed)
        self.tokens = count(1)
        self.sent: dict[int, str] = {}
        self.bodies = count()
        while self.cluster.leader() is None:
            self.run(50)
        assert self.ask(Configure(next(self.tokens), topics=(TOPIC,))) == Configured()

    def run(self, milliseconds: int) -> None:
        self.cluster.run(self.cluster.now_ns + milliseconds * MS)

    def ask(self, call: Configure | ChangeMembers | Peek | Produce, patience: int = 200) -> object:
        """Call the current leader until it answers; a `not-leader` refusal is retried."""
        for _ in range(patience):
            node = self.cluster.leader()
            if node is None:
                self.run(10)
                continue
            self.cluster.turn(node, calls=[call])
            while call.token not in self.cluster.outcomes:
                self.run(10)
            outcome = self.cluster.outcomes.pop(call.token)
            if not isinstance(outcome, Refused) or outcome.reason != "not-leader":
                return outcome
        raise AssertionError("no node leads")

    def send(self, messages: int = 1) -> None:
        for _ in range(messages):
            body = f"m{next(self.bodies)}"
            outcome = self.ask(Produce(next(self.tokens), [draft(body)]))
            if isinstance(outcome, Produced):
                self.sent[outcome.queue_offsets[0]] = body

    def send_without_waiting(self) -> None:
        node = self.cluster.leader()
        if node is not None:
            self.cluster.turn(node, calls=[Produce(next(self.tokens), [draft("x")])])

    def members(self) -> tuple[tuple[str, ...], frozenset[str]]:
        node = self.cluster.leader()
        assert node is not None and node.machine.members is not None
        return node.machine.members.voters, node.machine.members.learners

    def until_whole(self, named: str = "") -> None:
        """Wait until all three vote again, `named` by its new directory: right after its loss they
        still seem to."""
        for _ in range(2000):
            leader = self.cluster.leader()
            if leader is not None and self.members() == (NAMES, frozenset()):
                members = leader.machine.members
                if not named or (members is not None and named in members.incarnations):
                    return
            self.run(20)
        raise AssertionError(f"not whole: {self.members()}")

    def check(self) -> None:
        """Every acknowledged message is where it was acknowledged, and replicas agree."""
        found = self.ask(Peek(next(self.tokens), "t", 0, 0, 1 << 20))
        assert isinstance(found, Peeked) and found.begin_offset == 0
        bodies = [bytes(decode_record(record).body).decode() for record in found.records]
        assert all(bodies[offset] == body for offset, body in self.sent.items())
        self.run(1000)
        ends = {node.machine.chain_crc for node in self.cluster.nodes.values() if node.alive}
        assert len(ends) == 1, "replicas that rest have applied the same"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_wiped_node_votes_again_by_itself(seed: int, which: str) -> None:
    """It becomes a learner of its new directory, catches up, and is promoted; then the two others'
    data rests on it, too."""
    story = Story(seed)
    story.send(20)
    leader = story.cluster.leader()
    assert leader is not None
    lost = leader.name if which == "leader" else next(name for name in NAMES if name != leader.name)
    story.cluster.lose(lost)
    story.send(5)
    story.until_whole(lost)
    node = story.cluster.nodes[lost]
    assert story.cluster.leader().machine.members.incarnations == {lost: node.identity.incarnation}  # type: ignore[union-attr]
    other = next(name for name in NAMES if name != lost)
    story.cluster.crash(other, power=True)
    story.send(5)
    story.cluster.heal()
    story.check()
    assert (
        node.machine.members is not None
        and node.machine.members.voters == NAMES
        and node.group.replicator.role is not Role.LEARNER
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
def test_a_wiped_node_comes_back_under_faults(seed: int) -> None:
    """Packet loss, crashes and leader changes while it catches up; greetings inform nodes that
    forgot the new directory."""
    story = Story(100 + seed)
    rng = story.cluster.rng
    story.send(30)
    lost = rng.choice(NAMES)
    story.cluster.lose(lost)
    for _ in range(6):
        story.cluster.drop = rng.choice((0.0, 0.1, 0.3))
        if rng.random() < 0.5:
            victim = rng.choice(NAMES)
            if story.cluster.nodes[victim].alive:
                story.cluster.crash(victim, power=rng.random() < 0.5)
        for _ in range(10):
            story.send_without_waiting()
            story.run(rng.randint(5, 60))
        story.cluster.heal()
        story.cluster.greet(lost)
        story.run(rng.randint(0, 800))
    story.cluster.heal()
    story.cluster.greet(lost)
    story.until_whole()
    story.send(3)
    story.check()


def test_the_rest_must_be_able_to_commit_without_a_wiped_node() -> None:
    """With one voter down and one wiped, no change is made, because the remaining voters could not
    commit it. When the stopped voter is back, the change continues by itself."""
    story = Story(7)
    story.send(5)
    leader = story.cluster.leader()
    assert leader is not None
    down, lost = (name for name in NAMES if name != leader.name)
    story.cluster.crash(down, power=False)
    story.cluster.lose(lost)
    story.run(300)
    for node in story.cluster.nodes.values():
        if node.alive and node.name != lost and node.machine.members is not None:
            assert node.machine.members.voters == NAMES
    story.cluster.heal()
    story.cluster.greet(lost)
    story.until_whole()
    story.check()


def test_a_voter_is_removed_and_its_successor_added() -> None:
    """One at a time; each answer names the members in effect."""
    story = Story(9)
    story.send(3)
    leader = story.cluster.leader()
    assert leader is not None
    gone = next(name for name in NAMES if name != leader.name)
    outcome = story.ask(ChangeMembers(next(story.tokens), "demote", gone))
    assert (
        isinstance(outcome, MembersChanged)
        and outcome.members.learners == {gone}
        and outcome.members.returning == frozenset()
    )
    story.run(3000)
    assert story.members()[1] == {gone}, "a learner stays one until it is promoted"
    promoted = story.ask(ChangeMembers(next(story.tokens), "promote", gone))
    assert isinstance(promoted, MembersChanged) and promoted.members.voters == NAMES
    removed = story.ask(ChangeMembers(next(story.tokens), "remove", gone))
    assert isinstance(removed, MembersChanged) and gone not in removed.members.nodes
    story.run(3000)
    story.send(3)
    assert story.cluster.leader() is not None and story.members()[0] == tuple(
        name for name in NAMES if name != gone
    )
