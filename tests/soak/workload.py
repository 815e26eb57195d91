"""Producers and consumers of four message types that run beside other work, their recorded answers,
and the check of these.

No acknowledged message is lost, no rolled back message is delivered, no message is delivered again
after its acknowledgement was answered with OK, no delayed message is early, and message groups keep
their order.
"""

from __future__ import annotations

import itertools
import time

import grpc

from ledgermq.client.api import service
from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import ClusterError
from ledgermq.client.messages.receiving import Receiver
from ledgermq.client.messages.sending import Outgoing, new_message_id
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from tests import cluster as real
from tests.faults.histories import METADATA, SEND_S, Client

KINDS = ("normal", "fifo", "delay", "transaction")
EVERY_S = 0.05
INVISIBLE_S = 4.0
NEGLECTED = 10
"""One of this many messages is not acknowledged at its first delivery, so that it is delivered
again after its lease."""
Place = tuple[int, int]


class Producer(Client):
    """Sends one message after the other, each once, with its number as its body."""

    def __init__(self, cluster: LocalCluster, kind: str, node: str) -> None:
        super().__init__(cluster, f"soak_{kind}", 0, [node])
        self.kind = kind
        self.accepted: set[int] = set()
        self.withdrawn: set[int] = set()
        self._numbers = itertools.count()

    def once(self, channel: grpc.Channel) -> bool:
        self.ended.wait(EVERY_S)
        number = next(self._numbers)
        message = self._made(number)
        try:
            answer = service.send_message(
                channel, pb.SendMessageRequest(messages=[message]), METADATA, SEND_S
            ).result()
            if answer.status.code != pb.OK:
                return False
            if self.kind == "transaction":
                return self._decided(channel, number, answer.entries[0])
        except grpc.RpcError:
            return False
        self.accepted.add(number)
        return True

    def _made(self, number: int) -> pb.Message:
        group = str(number % 3) if self.kind == "fifo" else None
        deliver_ms = (
            time.time_ns() // 1_000_000 + 500 * (number % 6) if self.kind == "delay" else None
        )
        message = Outgoing(
            self.topic, str(number).encode(), message_group=group, deliver_ms=deliver_ms
        ).to_proto(new_message_id())
        if self.kind == "transaction":
            message.system_properties.message_type = pb.TRANSACTION
        return message

    def _decided(self, channel: grpc.Channel, number: int, entry: pb.SendResultEntry) -> bool:
        how = pb.COMMIT if number % 3 else pb.ROLLBACK
        request = pb.EndTransactionRequest(
            topic=pb.Resource(name=self.topic), message_id=entry.message_id, resolution=how
        )
        request.transaction_id = entry.transaction_id
        answer = service.unary(
            channel,
            service.MESSAGING + "EndTransaction",
            request,
            pb.EndTransactionResponse,
            SEND_S,
            METADATA,
        )
        if answer.status.code != pb.OK:
            return False
        (self.accepted if how == pb.COMMIT else self.withdrawn).add(number)
        return True


class Consumer(Client):
    """Receives and acknowledges one message at a time. It is alone in its group, so it knows which
    messages must not be delivered again."""

    def __init__(self, cluster: LocalCluster, kind: str, node: str) -> None:
        super().__init__(cluster, f"soak_{kind}", 0, [node])
        self.seen: list[int] = []
        """Numbers in the order of their first delivery."""
        self.acknowledged: set[Place] = set()
        self.finished: set[int] = set()
        """Numbers that the consumer tried to acknowledge; with an unknown outcome they may or may
        not be delivered again."""
        self.unknown = 0
        self.repeated = 0
        self.violations: list[str] = []
        self._places: set[Place] = set()
        connection = Connection(real.target(cluster, node), timeout_s=5)
        self._receiver = Receiver(connection, self.topic, self.topic, invisible_s=INVISIBLE_S)

    def once(self, channel: grpc.Channel) -> bool:
        try:
            for message in self._receiver.receive(1.0):
                self._take(message)
        except ClusterError:
            return False
        return True

    def _take(self, message: pb.Message) -> None:
        system = message.system_properties
        place, number = (system.queue_id, system.queue_offset), int(message.body)
        if place in self.acknowledged:
            self.violations.append(
                f"{self.topic} {number} at {place}: acknowledged, and delivered again as attempt"
                f" {system.delivery_attempt}"
            )
        if (
            system.HasField("delivery_timestamp")
            and time.time_ns() // 1_000_000 < system.delivery_timestamp.ToMilliseconds()
        ):
            self.violations.append(f"{self.topic} {number}: delivered too early")
        first = place not in self._places
        self._places.add(place)
        if first:
            self.seen.append(number)
        else:
            self.repeated += 1
        if first and len(self._places) % NEGLECTED == 0:
            return
        self.finished.add(number)
        self.unknown += 1
        if self._receiver.acknowledge([message]) == 1:
            self.acknowledged.add(place)
            self.unknown -= 1


class Workload:
    """A producer and a consumer for each type, connected to one node."""

    def __init__(self, cluster: LocalCluster, node: str) -> None:
        for kind in KINDS:
            real.create_topic(cluster, f"soak_{kind}", kind)
            real.create_group(cluster, f"soak_{kind}", fifo=kind == "fifo")
        self.producers = {kind: Producer(cluster, kind, node) for kind in KINDS}
        self.consumers = {kind: Consumer(cluster, kind, node) for kind in KINDS}

    def __enter__(self) -> Workload:
        for client in (*self.producers.values(), *self.consumers.values()):
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        clients = (*self.producers.values(), *self.consumers.values())
        for client in clients:
            client.ended.set()
        for client in clients:
            client.end()

    def end_producers(self) -> None:
        for producer in self.producers.values():
            producer.end()

    def drain(self) -> None:
        """Wait until all accepted messages are finished, and the remaining leases have expired
        twice since."""
        for kind, producer in self.producers.items():
            finished = self.consumers[kind].finished
            real.wait_for(
                lambda p=producer, f=finished: p.accepted <= f,
                120,
                f"the messages of {producer.topic}",
            )  # type: ignore[misc]
        time.sleep(2 * INVISIBLE_S)

    def check(self) -> str:
        """Check the results after the end. Returns the counts."""
        counts = []
        for kind, producer in self.producers.items():
            consumer = self.consumers[kind]
            assert not consumer.violations, consumer.violations[:10]
            lost = producer.accepted - consumer.finished
            assert not lost, (
                f"{producer.topic}: {sorted(lost)[:10]} were accepted and never delivered"
            )
            came = producer.withdrawn & set(consumer.seen)
            assert not came, f"{producer.topic}: {sorted(came)[:10]} were rolled back and delivered"
            assert len(producer.accepted) > 100, (
                f"{producer.topic}: only {len(producer.accepted)} messages"
            )
            counted = (
                f"{len(consumer.acknowledged)} acknowledged, {consumer.unknown} not known,"
                f" {consumer.repeated} repeated"
            )
            counts.append(f"{kind} {len(producer.accepted)} accepted, {counted}")
        self._check_order()
        return "; ".join(counts)

    def _check_order(self) -> None:
        accepted = self.producers["fifo"].accepted
        for group in range(3):
            came = [
                number
                for number in self.consumers["fifo"].seen
                if number % 3 == group and number in accepted
            ]
            assert came == sorted(came), f"message group {group} was delivered out of order"
