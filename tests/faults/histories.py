"""Clients that record their history for the checkers of `ledgermq.audit.history`: senders, readers, and the final check.

Every send is made once, with a deadline; the outcome of a failed send is unknown. No send is repeated, because that could hide errors.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import grpc

from ledgermq.audit.history import Read, Send, Violation, check_queue
from ledgermq.client import service
from ledgermq.client.sending import Outgoing, new_message_id
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2, admin_pb2_grpc
from ledgermq.proto import messaging_pb2 as pb
from tests.cluster import target, wait_for
from tests.faults.deliveries import check_deliveries

METADATA = (("x-mq-client-id", "faults"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))
OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 32 << 20))
SEND_S = 2.0
READ_S = 2.0
READ_EVERY_S = 0.1
PAGE = 1000
WAIT_S = 60.0


class Client(threading.Thread, ABC):
    """Repeats an operation until it is asked to end; after a failure it uses the next node."""

    def __init__(self, cluster: LocalCluster, topic: str, number: int, nodes: Sequence[str] | None = None) -> None:
        super().__init__(daemon=True, name=f"client-{number}")
        self.topic = topic
        self.number = number
        self._targets = [target(cluster, node) for node in nodes or cluster.nodes]
        self.ended = threading.Event()

    def end(self) -> None:
        self.ended.set()
        self.join(30)
        assert not self.is_alive(), f"{self.name} did not end"

    def run(self) -> None:
        at = self.number
        while not self.ended.is_set():
            with grpc.insecure_channel(self._targets[at % len(self._targets)], options=OPTIONS) as channel:
                while not self.ended.is_set() and self.once(channel):
                    pass
            at += 1
            self.ended.wait(0.01)

    @abstractmethod
    def once(self, channel: grpc.Channel) -> bool:
        """Make one operation. Returns whether it succeeded."""


class Sender(Client):
    """Sends one message after the other; bodies have `body_bytes` and begin with the value."""

    def __init__(self, cluster: LocalCluster, topic: str, number: int, nodes: Sequence[str] | None = None, body_bytes: int = 0) -> None:
        super().__init__(cluster, topic, number, nodes)
        self.sends: list[Send] = []
        self._body_bytes = body_bytes

    @property
    def acknowledged(self) -> int:
        return sum(send.offset is not None for send in self.sends)

    def once(self, channel: grpc.Channel) -> bool:
        value = f"{self.number}-{len(self.sends)}"
        body = value.ljust(self._body_bytes, ".").encode()
        request = pb.SendMessageRequest(messages=[Outgoing(self.topic, body).to_proto(new_message_id())])
        invoked = time.monotonic()
        try:
            answer = service.send_message(channel, request, METADATA, SEND_S).result()
        except grpc.RpcError:
            answer = None
        if answer is None or answer.status.code != pb.Code.OK:
            self.sends.append(Send(value, invoked))
            return False
        self.sends.append(Send(value, invoked, time.monotonic(), answer.entries[0].offset))
        return True


class Reader(Client):
    """Reads the queue repeatedly through every node, from the last value it saw. A node that lacks this value, or a value acknowledged
    before the read, is detected as stale."""

    def __init__(self, cluster: LocalCluster, topic: str, number: int, nodes: Sequence[str] | None = None) -> None:
        super().__init__(cluster, topic, number, nodes)
        self.reads: list[Read] = []
        self._first = 0

    def once(self, channel: grpc.Channel) -> bool:
        try:
            read = read_queue(channel, self.topic, self._first)
        except (grpc.RpcError, Refused):
            return False
        self.reads.append(read)
        self._first = max(self._first, read.end - 1)
        self.ended.wait(READ_EVERY_S)
        return True


class Refused(Exception):
    """The node refused to answer."""


def read_queue(channel: grpc.Channel, topic: str, first: int, queue: int = 0) -> Read:
    """Read a queue from `first` until an empty page, which shows its current end. Raises grpc.RpcError, Refused."""
    values: list[str] = []
    while True:
        invoked = time.monotonic()
        page = _page(channel, topic, first + len(values), queue)
        values += page
        if not page:
            return Read(invoked, time.monotonic(), first, tuple(values), first + len(values))


def _page(channel: grpc.Channel, topic: str, first: int, queue: int) -> list[str]:
    request = admin_pb2.PeekRequest(topic=admin_pb2.Name(name=topic), queue=queue, offset=first, max=PAGE)
    answer = admin_pb2_grpc.AdminStub(channel).Peek(request, timeout=READ_S)
    if answer.status.code != 20000:
        raise Refused(answer.status.message)
    offsets = [message.offset for message in answer.messages]
    assert offsets == list(range(first, first + len(offsets))), f"a read from {first} gave the offsets {offsets}"
    return [message.body.decode().rstrip(".") for message in answer.messages]


class History:
    """Senders and readers of one queue during faults, and the checks afterwards."""

    def __init__(self, cluster: LocalCluster, topic: str, *, senders: int = 3, readers: int = 1, body_bytes: int = 0) -> None:
        self._cluster = cluster
        self.topic = topic
        self.senders = [Sender(cluster, topic, number, body_bytes=body_bytes) for number in range(senders)]
        self.readers = [Reader(cluster, topic, number) for number in range(readers)]
        self._all: list[Client] = [*self.senders, *self.readers]

    def __enter__(self) -> History:
        for client in self._all:
            client.start()
        self.progress(20)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._all:
            client.ended.set()
        for client in self._all:
            client.end()

    @property
    def acknowledged(self) -> int:
        return sum(sender.acknowledged for sender in self.senders)

    def progress(self, messages: int = 50, within_s: float = WAIT_S) -> None:
        """Wait until `messages` more messages were acknowledged. Tests use this instead of a time to let a fault take effect."""
        goal = self.acknowledged + messages
        wait_for(lambda: self.acknowledged >= goal, within_s, f"{messages} more acknowledgements")

    def rate(self, seconds: float) -> float:
        """The acknowledgements per second over the next `seconds`."""
        before, began = self.acknowledged, time.monotonic()
        time.sleep(seconds)
        return (self.acknowledged - before) / (time.monotonic() - began)

    def check(self, consumed: Callable[[], Sequence[str]]) -> None:
        """Check the queue against the history: linearizable, complete, and in the order of each producer. The clients must have ended."""
        final = self._final_read()
        sends = [send for sender in self.senders for send in sender.sends]
        reads = [read for reader in self.readers for read in reader.reads]
        assert self.acknowledged and all(reader.reads for reader in self.readers)
        violations: list[Violation] = check_queue(sends, [*reads, final])
        delivered: dict[str, list[str]] = {}
        for value in (body.rstrip(".") for body in consumed()):
            delivered.setdefault(value.partition("-")[0], []).append(value)
        acknowledged = {str(s.number): [send.value for send in s.sends if send.offset is not None] for s in self.senders}
        violations += check_deliveries(acknowledged, [send.value for send in sends], delivered, complete=True)
        assert not violations, "\n".join(f"{violation.rule}: {violation.text}" for violation in violations[:10])

    def _final_read(self) -> Read:
        def read() -> Read | None:
            for node, child in self._cluster.children.items():
                if child.exit_code is None:
                    with grpc.insecure_channel(target(self._cluster, node), options=OPTIONS) as channel:
                        try:
                            return read_queue(channel, self.topic, 0)
                        except (grpc.RpcError, Refused):
                            pass
            return None

        return wait_for(read, WAIT_S, "a read of the whole queue")
