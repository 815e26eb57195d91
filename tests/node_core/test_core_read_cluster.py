"""Reads of complete replicas under partitions: the answer of any replica contains everything
acknowledged before the request."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.read_calls import Confirm, Confirmed, Peek, Peeked
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.proto.types import Permission, TopicConfig, TopicKind
from tests.node_core.core_cluster import MS, NAMES, Cluster, Node
from tests.node_core.core_fakes import draft

TOPIC = TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1)
STEP = 5 * MS


class Story:
    """One queue with a writer, and readers at every node that ask it whatever it believes to be."""

    def __init__(self, seed: int, *, rates: tuple[float, ...] = (1, 1, 1)) -> None:
        self.cluster = Cluster(seed)
        for node, rate in zip(self.cluster.nodes.values(), rates, strict=True):
            node.rate = rate
        self.rng = self.cluster.rng
        self.tokens = count(1)
        self.sends: set[int] = set()
        self.acknowledged = 0
        self.end = 0
        """Behind the last message acknowledged."""
        self.reads: dict[int, tuple[str, int]] = {}
        """Read → node it was put to, and the end of what had been acknowledged by then."""
        self.answered: dict[str, int] = dict.fromkeys(NAMES, 0)

    def begin(self) -> None:
        while self.cluster.leader() is None:
            self.run(STEP)
        call = Configure(next(self.tokens), topics=(TOPIC,))
        self.put(self.cluster.leader(), call)
        while call.token not in self.cluster.outcomes:
            self.run(STEP)
        assert self.cluster.outcomes[call.token] == Configured()

    def run(self, ns: int) -> None:
        self.cluster.run(self.cluster.now_ns + ns)
        self.hear()

    def put(self, node: Node | None, *calls: Produce | Peek | Confirm | Configure) -> None:
        if node is not None and node.alive:
            self.cluster.turn(node, calls=list(calls))
            self.hear()

    def send(self) -> None:
        node = self.cluster.leader()
        if node is not None:
            call = Produce(next(self.tokens), [draft("m")])
            self.sends.add(call.token)
            self.put(node, call)

    def ask(self, node: Node) -> None:
        call = Peek(next(self.tokens), "t", 0, 1 << 40, 0)
        self.reads[call.token] = node.name, self.end
        self.put(node, call)

    def hear(self) -> None:
        outcomes = self.cluster.outcomes
        for token in [token for token in self.sends if token in outcomes]:
            self.sends.remove(token)
            produced = outcomes[token]
            if isinstance(produced, Produced):
                self.acknowledged += 1
                self.end = max(self.end, produced.queue_offsets[-1] + 1)
        for token in [token for token in self.reads if token in outcomes]:
            name, known = self.reads.pop(token)
            outcome = outcomes[token]
            if isinstance(outcome, Peeked):
                self.answered[name] += 1
                assert outcome.end_offset >= known, (
                    f"{name} answered up to {outcome.end_offset}, {known} had been acknowledged"
                )
            else:
                assert isinstance(outcome, Refused) and outcome.reason == "not-leader", outcome


def isolate(story: Story) -> str:
    """Partition the leader, and let a new leader acknowledge a message."""
    old = story.cluster.leader()
    assert old is not None
    story.cluster.cut = {old.name}
    return old.name


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
def test_cut_off_leader_answers_no_stale_read(seed: int) -> None:
    """Every node is asked all the time, while leaders are cut off and come back, at whatever rates
    their clocks run: one that is cut off answers nothing."""
    story = Story(seed, rates=[(1, 1, 1), (0.6, 1.5, 1.5), (1.5, 0.6, 1.0)][seed % 3])
    story.begin()
    changes = 0
    for _ in range(3):
        for _ in range(20):
            story.run(STEP)
            story.send()
            story.ask(story.rng.choice(list(story.cluster.nodes.values())))
        isolated = isolate(story)
        for _ in range(300):
            story.run(STEP)
            leader = story.cluster.leader()
            changes += leader is not None and leader.name != isolated
            story.send()
            for node in story.cluster.nodes.values():
                story.ask(node)
        story.cluster.cut = set()
        story.run(1500 * MS)
    assert changes > 0 and story.acknowledged > 100 and sum(story.answered.values()) > 200, (
        changes,
        story.answered,
    )


@pytest.mark.parametrize("cut", [False, True], ids=["reached", "still cut off"])
@pytest.mark.parametrize("seed", range(4))
def test_suspended_leader_answers_no_stale_read(seed: int, cut: bool) -> None:
    """Its clock stood still meanwhile, so it takes itself for the leader that heard a majority a
    moment ago."""
    story = Story(seed)
    story.begin()
    story.run(500 * MS)
    old = story.cluster.leader()
    assert old is not None
    story.cluster.suspend(old)
    known = story.end
    while (leader := story.cluster.leader()) is None or leader is old or story.end < known + 3:
        story.run(STEP)
        if leader is not old:
            story.send()
    story.cluster.cut = {old.name} if cut else set()
    story.cluster.resume(old)
    assert old.group.leader.serving, "it believes that it leads"
    for _ in range(400):
        story.ask(old)
        story.run(STEP)
    assert not old.group.leader.serving and bool(story.answered[old.name]) is False


class Counted(Cluster):
    """Counts turns and packets by node."""

    def __init__(self, seed: int) -> None:
        self.turns: Counter[str] = Counter()
        self.packets: Counter[str] = Counter()
        super().__init__(seed)

    def turn(self, node: Node, *arguments: Any, **named: Any) -> None:
        self.turns[node.name] += 1
        super().turn(node, *arguments, **named)

    def later(self, delay_ns: int, what: str, node: str, value: Any) -> None:
        if what == "packet":
            self.packets[value[0]] += 1
        super().later(delay_ns, what, node, value)


@pytest.mark.parametrize("reads", [1, 64])
def test_concurrent_reads_share_one_round_of_packets(reads: int) -> None:
    """A packet to and from each follower, a turn of each follower, and three of the leader, with
    which the calls and the answers come; 64 reads cost as much as one."""
    story = Story(1)
    story.cluster = cluster = Counted(1)
    story.begin()
    story.run(2000 * MS)
    leader = cluster.leader()
    assert leader is not None
    cluster.packets.clear()
    while not cluster.packets[leader.name]:
        story.run(MS)
    # The heartbeats that were just sent are answered, and the next ones come in 100 ms.
    story.run(20 * MS)
    cluster.packets.clear()
    cluster.turns.clear()
    calls = [Confirm(next(story.tokens)) for _ in range(reads)]
    story.put(leader, *calls)
    story.run(20 * MS)
    assert all(isinstance(cluster.outcomes[call.token], Confirmed) for call in calls)
    followers = [name for name in NAMES if name != leader.name]
    assert cluster.packets == {leader.name: 2, **dict.fromkeys(followers, 1)}
    assert cluster.turns == {leader.name: 3, **dict.fromkeys(followers, 1)}


def test_a_leader_that_is_cut_off_says_that_it_does_not_lead() -> None:
    """A majority is asked; if none answers, callers are told to find another leader."""
    story = Story(3)
    story.begin()
    story.run(500 * MS)
    old = story.cluster.nodes[isolate(story)]
    call = Confirm(next(story.tokens))
    story.put(old, call)
    story.run(500 * MS)
    late = Peek(next(story.tokens), "t", 0, 1 << 40, 0)
    story.put(old, late)
    assert not {call.token, late.token} & set(story.cluster.outcomes)
    story.run(1500 * MS)
    for token in (call.token, late.token):
        outcome = story.cluster.outcomes[token]
        assert isinstance(outcome, Refused) and outcome.reason == "not-leader"
