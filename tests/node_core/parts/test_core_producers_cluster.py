"""Native producers on three whole replicas under crashes, power cuts, partitions: each message
once, in order, as its receipt says."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from ledgermq.node.broker.calls.operator_calls import Configure, Configured
from ledgermq.node.broker.calls.outcome import Call, Refused
from ledgermq.node.broker.calls.send_calls import (
    FrameKnown,
    FrameProduced,
    OpenProducer,
    ProduceFrame,
    ProducerOpened,
    ResumeProducer,
)
from ledgermq.node.replica.consensus.replica_boot import read_verified
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.types import Permission, Range, TopicConfig, TopicKind
from tests.node_core.core_cluster import MS, NAMES, Cluster
from tests.node_core.core_frames import check_sequences, numbered, sequences

TOPIC = TopicConfig("", "t", TopicKind.NORMAL, 3, Permission.READ_WRITE, 1)
LOST = ("not-leader", "unknown-outcome", "sequence-gap", "partial-frame")


class Client:
    """A producer with five frames in flight that sends unanswered frames again after any
    failure."""

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self.rng = rng
        self.opened: ProducerOpened | None = None
        self.next_new = 0
        self.waiting: dict[int, tuple[int, int]] = {}
        """Token → (first sequence number, count)."""
        self.unanswered: dict[int, int] = {}
        """Frames by their first sequence number."""
        self.receipts: list[tuple[int, FrameProduced]] = []
        self.asking: int | None = None
        self.broken = True
        """It has to open, or to resume, before it sends."""

    def act(self, tokens: count[int]) -> list[Call]:
        """What it asks the leader for at this moment."""
        if self.asking is not None:
            return []
        if self.broken:
            self.asking = next(tokens)
            if self.opened is None or (self.name and self.rng.random() < 0.3):
                return [OpenProducer(self.asking, self.name)]
            return [ResumeProducer(self.asking, self.opened.producer_id, self.opened.epoch)]
        while len(self.unanswered) < 5:
            size = self.rng.choice((1, 3, 40))
            self.unanswered[self.next_new] = size
            self.next_new += size
        under_way = {first for first, _ in self.waiting.values()}
        calls: list[Call] = []
        for first, size in sorted(self.unanswered.items()):
            if first in under_way and self.rng.random() < 0.9:
                continue
            assert self.opened is not None
            token = next(tokens)
            self.waiting[token] = first, size
            frame = numbered(self.opened.producer_id, self.opened.epoch, first, size, queues=3)
            calls.append(ProduceFrame(token, "t", frame))
        return calls

    def hear(self, token: int, outcome: object) -> None:
        if token == self.asking:
            self.asking = None
            if isinstance(outcome, ProducerOpened):
                assert self.opened is None or outcome.producer_id == self.opened.producer_id
                self.opened, self.broken = outcome, False
                self.waiting.clear()
                assert outcome.next_sequence <= self.next_new, "no other producer has this name"
                self.split(outcome.next_sequence)
            return
        if token not in self.waiting:
            return
        first, size = self.waiting.pop(token)
        if isinstance(outcome, FrameProduced):
            assert outcome.count == size
            self.receipts.append((first, outcome))
            self.unanswered.pop(first, None)
        elif isinstance(outcome, FrameKnown):
            assert outcome.next_sequence >= first + size
            self.unanswered.pop(first, None)
        else:
            assert isinstance(outcome, Refused) and outcome.reason in LOST, outcome
            if outcome.reason == "partial-frame":
                assert outcome.next_sequence is not None
                self.split(outcome.next_sequence)
            self.broken = True

    def split(self, next_sequence: int) -> None:
        """A frame of which a part is stored is two frames from now on."""
        for first, size in list(self.unanswered.items()):
            if first < next_sequence < first + size:
                self.unanswered[first] = next_sequence - first
                self.unanswered[next_sequence] = first + size - next_sequence


def whole(cluster: Cluster, name: str) -> list[Range]:
    log = cluster.nodes[name].store.log
    out: list[Range] = []
    while (out[-1].last_index if out else -1) < log.end_index:
        out.append(read_verified(log, out[-1].last_index + 1 if out else 0, 1 << 20))
    return out


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
def test_every_message_once_in_order_where_its_receipt_says(seed: int) -> None:
    """Three producers, one with a repeatedly opened name, with crashes of every kind."""
    cluster, tokens, rng = Cluster(seed), count(1), Random(seed)
    clients = [Client("", rng), Client("", rng), Client("w", rng)]

    def talk(calls: list[Call]) -> None:
        node = cluster.leader()
        if node is not None and calls:
            cluster.turn(node, calls=calls)

    def step(ms: int) -> None:
        for client in clients:
            lost = [token for token in client.waiting if token not in cluster.outcomes]
            calls = client.act(tokens)
            if cluster.leader() is None or not calls:
                if (
                    client.asking is not None
                    and client.asking not in cluster.outcomes
                    and rng.random() < 0.2
                ):
                    client.asking, client.broken = None, True
                for token in lost if rng.random() < 0.1 else ():
                    client.waiting.pop(token)
                    client.broken = True
                for call in calls:
                    client.waiting.pop(call.token, None)  # type: ignore[union-attr]
                    client.asking = None
                continue
            talk(calls)
        cluster.run(cluster.now_ns + ms * MS)
        for client in clients:
            for token in [*client.waiting, *([client.asking] if client.asking else [])]:
                if token in cluster.outcomes:
                    client.hear(token, cluster.outcomes[token])

    def configure() -> None:
        for _ in range(100):
            cluster.run(cluster.now_ns + 100 * MS)
            token = next(tokens)
            talk([Configure(token, topics=(TOPIC,))])
            cluster.run(cluster.now_ns + 100 * MS)
            if isinstance(cluster.outcomes.get(token), Configured):
                return
        raise AssertionError("no leader came up")

    configure()
    for _ in range(60):
        what = rng.random()
        if what < 0.06:
            running = [node for node in cluster.nodes.values() if node.alive]
            if running:
                cluster.crash(
                    (cluster.leader() or rng.choice(running)).name, power=rng.random() < 0.5
                )
        elif what < 0.1:
            cluster.cut = {rng.choice(NAMES)}
        elif what < 0.14:
            cluster.drop = rng.choice((0.0, 0.1))
        elif what < 0.16:
            for node in cluster.nodes.values():
                if node.alive:
                    node.save()
        elif what < 0.3 or sum(node.alive for node in cluster.nodes.values()) < 2:
            cluster.heal()
        step(rng.choice((2, 20, 300)))
    cluster.heal()
    for _ in range(30):
        step(200)
    cluster.run(cluster.now_ns + 10_000 * MS)

    tables = {name: node.machine.producers.export() for name, node in cluster.nodes.items()}
    assert tables["n1"] == tables["n2"] == tables["n3"]
    assert not any(node.machine.producers.astray for node in cluster.nodes.values())
    log = whole(cluster, "n1")
    check_sequences(log, cluster.nodes["n1"].machine.producers)
    places = {(producer, sequence): index for index, producer, _, sequence in sequences(log)}
    told = 0
    for client in clients:
        assert client.opened is not None
        for first, receipt in client.receipts:
            told += 1
            numbers = range(first, first + receipt.count)
            assert [
                places[client.opened.producer_id, number] - receipt.first_index
                for number in numbers
            ] == list(range(receipt.count))
            last = next(r for r in log if r.first_index <= receipt.last_index <= r.last_index)
            at = int(last.starts[receipt.last_index - last.first_index])
            assert int.from_bytes(last.data[at + 36 : at + 40], "big") == receipt.chain_crc
            assert (
                len([node for node, index in receipt.durable if index >= receipt.last_index]) >= 1
            )
            for queue, offset, many in receipt.ranges:
                units = cluster.nodes["n1"].machine.units("t", queue, offset, many)
                bodies = [
                    decode_record(cluster.nodes["n1"].machine.record(int(p), int(s))).body
                    for p, s, _ in zip(*units, strict=True)
                ]
                assert bodies == [
                    f"{client.opened.producer_id}:{n}".encode() for n in numbers if n % 3 == queue
                ]
    assert told > 20, told
