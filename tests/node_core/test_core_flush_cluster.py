"""Hybrid sends to whole replicas under crashes and power cuts: what was called durable is there in
the end, at its own queue offset."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Call
from ledgermq.node.broker.calls.send_calls import Produce, Produced
from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.types import Permission, TopicConfig, TopicKind
from tests.node_core.core_cluster import MS, NAMES, SETTINGS, Cluster
from tests.node_core.core_fakes import draft

HYBRID = replace(SETTINGS, policy=FlushPolicy.HYBRID)
TOPIC = TopicConfig("", "t", TopicKind.NORMAL, 1, Permission.READ_WRITE, 1)


class Senders:
    """Clients that send and record the answers."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(seed, HYBRID)
        self.tokens = count(1)
        self.open: dict[int, Produce] = {}
        self.told: dict[str, dict[int, str]] = {"durable": {}, "memory": {}}
        """class → queue offset → body"""

    def call(self, call: Call) -> None:
        node = self.cluster.leader()
        if node is not None:
            self.cluster.turn(node, calls=[call])

    def configure(self) -> None:
        for _ in range(100):
            self.cluster.run(self.cluster.now_ns + 100 * MS)
            token = next(self.tokens)
            self.call(Configure(token, topics=(TOPIC,)))
            self.cluster.run(self.cluster.now_ns + 100 * MS)
            if isinstance(self.cluster.outcomes.get(token), Configured):
                return
        raise AssertionError("no leader came up")

    def send(self, priority: int) -> int:
        token = next(self.tokens)
        self.open[token] = Produce(token, [replace(draft(f"m{token}"), priority=priority)])
        self.call(self.open[token])
        return token

    def hear(self) -> None:
        for token in [token for token in self.open if token in self.cluster.outcomes]:
            call, outcome = self.open.pop(token), self.cluster.outcomes[token]
            if isinstance(outcome, Produced):
                assert outcome.durability == (
                    "durable" if call.drafts[0].priority >= 4 else "memory"
                )
                (offset,) = outcome.queue_offsets
                self.told[outcome.durability][offset] = call.drafts[0].body.decode()

    def stored(self) -> list[str]:
        """The bodies of the queue, as every node has them in the end."""
        self.cluster.heal()
        self.configure()
        self.cluster.run(self.cluster.now_ns + 15_000 * MS)
        self.hear()
        found = []
        for node in self.cluster.nodes.values():
            units = node.machine.units("t", 0, 0, node.machine.end("t", 0))
            found.append(
                [
                    bytes(decode_record(node.machine.record(int(at), int(size))).body).decode()
                    for at, size, _ in zip(*units, strict=True)
                ]
            )
        assert found[0] == found[1] == found[2]
        return found[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(8))
def test_durable_sends_survive_losses_of_memory_sends(seed: int) -> None:
    """Each acknowledgement called durable is kept at its offset, on every replica, whatever became
    of those from memory around it."""
    s = Senders(seed)
    s.configure()
    rng = s.cluster.rng
    for _ in range(60):
        for _ in range(rng.randrange(6)):
            s.send(rng.choice((0, 9)))
            s.cluster.run(s.cluster.now_ns + rng.randrange(40) * MS)
            s.hear()
        if rng.random() < 0.15:
            for name in NAMES if rng.random() < 0.5 else (rng.choice(NAMES),):
                if s.cluster.nodes[name].alive:
                    s.cluster.crash(name, power=True)
            s.cluster.heal()
            s.cluster.run(s.cluster.now_ns + 2000 * MS)
            s.hear()
    stored = s.stored()
    assert len(s.told["durable"]) > 20 and len(s.told["memory"]) > 20
    for offset, body in s.told["durable"].items():
        assert stored[offset] == body


def test_sends_from_memory_are_answered_before_any_disk_is_asked() -> None:
    """With every sync stalled the answers still come, while a durable send waits and is answered
    after it."""
    s = Senders(1)
    s.configure()
    s.cluster.run(s.cluster.now_ns + 500 * MS)
    stalled = s.cluster.later
    s.cluster.later = lambda delay, what, node, value: stalled(
        delay + (60_000 * MS if what == "sync" else 0), what, node, value
    )  # type: ignore[method-assign]
    durable, memory = s.send(9), s.send(0)
    s.cluster.run(s.cluster.now_ns + 200 * MS)
    assert memory in s.cluster.outcomes and durable not in s.cluster.outcomes
