"""Complete replicas under faults: answers to clients stay true, replicas agree, and every message
is delivered in the end."""

from __future__ import annotations

from itertools import count

import pytest

from ledgermq.node.broker.calls.consumer_calls import Ack, Acked, Handle, Receive, Received
from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.proto.types import Permission, TopicConfig, TopicKind
from tests.node_core.core_cluster import MS, Cluster, Node
from tests.node_core.core_fakes import draft
from tests.node_core.delivery_model import LoggedState, Message

TOPIC = TopicConfig("", "t", TopicKind.NORMAL, 2, Permission.READ_WRITE, 1)


class Story:
    """Clients of a cluster and what they know."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(seed)
        self.rng = self.cluster.rng
        self.tokens = count(1)
        self.bodies = count()
        self.calls: dict[int, Produce | Receive | Ack | Configure] = {}
        self.sent: dict[tuple[int, int], str] = {}
        self.held: dict[Message, Handle] = {}
        self.acked: set[Message] = set()
        self.logged = LoggedState()

    def call(self, call: Produce | Receive | Ack | Configure) -> None:
        node = self.cluster.leader()
        if node is not None:
            self.calls[call.token] = call
            self.cluster.turn(node, calls=[call])
            self.hear()

    def hear(self) -> None:
        """Take note of every new answer."""
        self.follow()
        for token in [token for token in self.calls if token in self.cluster.outcomes]:
            call, outcome = self.calls.pop(token), self.cluster.outcomes[token]
            if isinstance(outcome, Produced):
                assert isinstance(call, Produce)
                for item, offset in zip(call.drafts, outcome.queue_offsets, strict=True):
                    assert (item.queue, offset) not in self.sent
                    self.sent[item.queue, offset] = item.body.decode()
            elif isinstance(outcome, Received):
                assert isinstance(call, Receive)
                for lease in outcome.leases:
                    message = (call.group, "t", lease.queue, lease.queue_offset)
                    assert message not in self.acked, "acknowledged and delivered again"
                    self.held[message] = Handle(*message, lease.lease_number, lease.attempt)
            elif isinstance(outcome, Acked):
                assert isinstance(call, Ack)
                for handle, ok in zip(call.handles, outcome.ok, strict=True):
                    message = (handle.group, handle.topic, handle.queue, handle.queue_offset)
                    self.held.pop(message, None)
                    if ok:
                        self.acked.add(message)
                        assert message in self.logged.done

    def follow(self) -> None:
        """Read the entries that any replica applied; every record must be valid at its position."""
        for node in self.cluster.nodes.values():
            while node.alive and self.logged.next_index <= node.machine.applied_index:
                last = node.machine.applied_index
                entries = node.store.log.read(
                    self.logged.next_index, 1 if self.rng.random() < 0.1 else 1 << 20
                )
                if entries.last_index <= last:
                    self.logged.read(entries)
                else:
                    self.logged.read(node.store.log.read(self.logged.next_index, 1))

    def act(self) -> None:
        what = self.rng.random()
        token = next(self.tokens)
        if what < 0.35:
            drafts = [
                draft(f"m{next(self.bodies)}", queue=self.rng.randrange(2))
                for _ in range(self.rng.choice((1, 3, 40)))
            ]
            self.call(Produce(token, drafts))
        elif what < 0.7:
            wait = self.rng.choice((0, 200, 2000)) * MS
            invisible = self.rng.choice((0, 100, 1000, None))
            group = self.rng.choice("ab")
            self.call(
                Receive(
                    token,
                    group,
                    "t",
                    "c",
                    TagFilter(),
                    self.rng.choice((1, 32)),
                    invisible,
                    self.cluster.now_ns + wait,
                )
            )
        elif self.held:
            chosen = self.rng.sample(list(self.held.values()), min(len(self.held), 10))
            self.call(Ack(token, chosen))

    def fault(self) -> None:
        nodes = list(self.cluster.nodes.values())
        what = self.rng.randrange(6)
        node = self.rng.choice(nodes)
        if what == 0 and all(n.alive for n in nodes):
            self.cluster.crash(node.name, power=self.rng.random() < 0.6)
        elif what == 1:
            self.cluster.cut = {node.name}
        elif what == 2:
            self.cluster.drop = self.rng.choice((0.02, 0.2))
        elif what == 3 and node.alive:
            node.save()
        else:
            self.cluster.heal()

    def configure(self) -> None:
        for _ in range(100):
            self.cluster.run(self.cluster.now_ns + 100 * MS)
            call = Configure(next(self.tokens), topics=(TOPIC,))
            self.call(call)
            self.cluster.run(self.cluster.now_ns + 100 * MS)
            if self.cluster.outcomes.get(call.token) == Configured():
                return
        raise AssertionError("no leader was found")

    def settle(self) -> Node:
        """Heal, and consume until nothing is left."""
        self.cluster.heal()
        self.cluster.run(self.cluster.now_ns + 5000 * MS)
        self.hear()
        for group in "ab":
            for _ in range(2000):
                receive = Receive(
                    next(self.tokens),
                    group,
                    "t",
                    "z",
                    TagFilter(),
                    32,
                    1000,
                    self.cluster.now_ns + 1500 * MS,
                )
                self.call(receive)
                self.cluster.run(self.cluster.now_ns + 50 * MS)
                self.hear()
                outcome = self.cluster.outcomes.get(receive.token)
                if outcome is None:
                    self.cluster.run(self.cluster.now_ns + 4000 * MS)
                    self.hear()
                    outcome = self.cluster.outcomes[receive.token]
                assert isinstance(outcome, Received)
                if not outcome.leases:
                    break
                handles = [
                    Handle(group, "t", x.queue, x.queue_offset, x.lease_number, x.attempt)
                    for x in outcome.leases
                ]
                self.call(Ack(next(self.tokens), handles))
                self.cluster.run(self.cluster.now_ns + 50 * MS)
                self.hear()
            else:
                raise AssertionError("messages never end")
        leader = self.cluster.leader()
        assert leader is not None
        return leader


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(12))
def test_whole_replicas_under_faults(seed: int) -> None:
    """Crashes with and without power, partitions, loss: nothing acknowledged is lost or comes
    twice; replicas and restarts agree (I8)."""
    story = Story(seed)
    story.configure()
    for _ in range(60):
        for _ in range(story.rng.randint(1, 5)):
            story.act()
        story.cluster.run(story.cluster.now_ns + story.rng.choice((5, 50, 500)) * MS)
        story.hear()
        if story.rng.random() < 0.3:
            story.fault()
    leader = story.settle()
    for (queue, offset), body in story.sent.items():
        assert story.logged.bodies["t", queue, offset][0] == body
        for group in "ab":
            assert (group, "t", queue, offset) in story.logged.done
    log_id = leader.identity.log_id
    expected = leader.machine.export(log_id)
    for node in story.cluster.nodes.values():
        assert node.machine.export(log_id) == expected
    node = story.cluster.nodes["n1"]
    node.save()
    story.cluster.crash("n1", power=True)
    node.start(story.cluster.now_ns)
    assert node.restored and node.machine.export(log_id) == expected


def test_a_snapshot_counts_on_names_a_former_life_made() -> None:
    """A queue file made before a crash and found after it is as durable as one made now, once a
    snapshot was written."""
    story = Story(1)
    cluster, node = story.cluster, story.cluster.nodes["n1"]
    cluster.run(2000 * MS)
    node.save()
    story.configure()
    node.store.queues.write_waiting()
    assert node.disk.exists("/data/g/consumequeue/rmq_sys_ledgermq_config/0")
    cluster.crash("n1", power=False)
    cluster.heal()
    assert node.restored
    cluster.run(cluster.now_ns + 2000 * MS)
    node.save()
    node.disk.power_cut(_Nothing())
    node.disk = node.disk.successor()
    node.start(cluster.now_ns)
    assert node.restored


class _Nothing:
    """A power cut in which nothing unsynced survives."""

    def random(self) -> float:
        return 0.0

    def randrange(self, stop: int, /) -> int:
        return 0
