"""Clients that record their history for the checkers of `ledgermq.audit.history` and for Porcupine:
senders, readers, committers of a consumer group's offset, and the final check.

Every call is made once, with a deadline; the outcome of a failed one is unknown. No call is
repeated, because that could hide errors.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from ledgermq.audit.history import NEVER, Read, Send, Violation, check_queue
from ledgermq.client.api import service
from ledgermq.client.messages.sending import Outgoing, new_message_id
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2, admin_pb2_grpc
from ledgermq.proto import messaging_pb2 as pb
from tests.cluster import target, wait_for
from tests.faults import linearizability
from tests.faults.deliveries import check_deliveries
from tests.faults.linearizability import Commit, Committed

METADATA = (("x-mq-client-id", "faults"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 32 << 20),
)
SEND_S = 2.0
READ_S = 2.0
READ_EVERY_S = 0.1
PAGE = 1000
WAIT_S = 60.0
R = TypeVar("R", bound=Message)


class Client(threading.Thread, ABC):
    """Repeats an operation until it is asked to end; after a failure it uses the next node."""

    def __init__(
        self, cluster: LocalCluster, topic: str, number: int, nodes: Sequence[str] | None = None
    ) -> None:
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
            with grpc.insecure_channel(
                self._targets[at % len(self._targets)], options=OPTIONS
            ) as channel:
                while not self.ended.is_set() and self.once(channel):
                    pass
            at += 1
            self.ended.wait(0.01)

    @abstractmethod
    def once(self, channel: grpc.Channel) -> bool:
        """Make one operation. Returns whether it succeeded."""


class Sender(Client):
    """Sends one message after the other; bodies have `body_bytes` and begin with the value."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        number: int,
        nodes: Sequence[str] | None = None,
        body_bytes: int = 0,
    ) -> None:
        super().__init__(cluster, topic, number, nodes)
        self.sends: list[Send] = []
        self._body_bytes = body_bytes

    @property
    def acknowledged(self) -> int:
        return sum(send.offset is not None for send in self.sends)

    def once(self, channel: grpc.Channel) -> bool:
        value = f"{self.number}-{len(self.sends)}"
        body = value.ljust(self._body_bytes, ".").encode()
        request = pb.SendMessageRequest(
            messages=[Outgoing(self.topic, body).to_proto(new_message_id())]
        )
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
    """Reads the queue repeatedly through every node, from the last value it saw. A node that lacks
    this value, or a value acknowledged before the read, is detected as stale."""

    def __init__(
        self, cluster: LocalCluster, topic: str, number: int, nodes: Sequence[str] | None = None
    ) -> None:
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


class Committer(Client):
    """Commits offsets of a pulling consumer group and reads the committed one, in turns. No two
    committers of a group commit the same offset, and none commits one that the queue does not have
    yet. A committed offset may move backwards: the last commit counts."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        number: int,
        group: str,
        offsets: Iterable[int] = (),
        end: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(cluster, topic, number)
        self.seen: list[Commit | Committed] = []
        self._group = pb.Resource(name=group)
        self._where = pb.MessageQueue(topic=pb.Resource(name=topic), id=0)
        self._offsets, self._end = iter(offsets), end
        self._next = next(self._offsets, None)

    def once(self, channel: grpc.Channel) -> bool:
        if self._next is not None and self._next < self._end():
            offset, self._next = self._next, next(self._offsets, None)
            if not self.commit(channel, offset):
                return False
        return self.read(channel)

    def commit(self, channel: grpc.Channel, offset: int, timeout_s: float = SEND_S) -> bool:
        update = pb.UpdateOffsetRequest(group=self._group, message_queue=self._where, offset=offset)
        invoked = time.monotonic()
        answer = self._call(channel, "UpdateOffset", update, pb.UpdateOffsetResponse, timeout_s)
        self.seen.append(Commit(offset, invoked, NEVER if answer is None else time.monotonic()))
        return answer is not None

    def read(self, channel: grpc.Channel) -> bool:
        request = pb.GetOffsetRequest(group=self._group, message_queue=self._where)
        invoked = time.monotonic()
        answer = self._call(channel, "GetOffset", request, pb.GetOffsetResponse, READ_S)
        if answer is None:
            return False
        offset = -1 if answer.status.code == pb.Code.OFFSET_NOT_FOUND else answer.offset
        self.seen.append(Committed(offset, invoked, time.monotonic()))
        return True

    def _call(
        self,
        channel: grpc.Channel,
        method: str,
        request: Message,
        response: type[R],
        timeout_s: float,
    ) -> R | None:
        """The answer; None if there is none or if it is an error."""
        try:
            answer: Any = service.unary(
                channel, service.MESSAGING + method, request, response, timeout_s, METADATA
            )
        except grpc.RpcError:
            return None
        return answer if answer.status.code in (pb.Code.OK, pb.Code.OFFSET_NOT_FOUND) else None


class Refused(Exception):
    """The node refused to answer."""


def read_queue(channel: grpc.Channel, topic: str, first: int, queue: int = 0) -> Read:
    """Read a queue from `first` until an empty page, which shows its current end. Raises
    grpc.RpcError, Refused."""
    values: list[str] = []
    while True:
        invoked = time.monotonic()
        page = _page(channel, topic, first + len(values), queue)
        values += page
        if not page:
            return Read(invoked, time.monotonic(), first, tuple(values), first + len(values))


def _page(channel: grpc.Channel, topic: str, first: int, queue: int) -> list[str]:
    request = admin_pb2.PeekRequest(
        topic=admin_pb2.Name(name=topic), queue=queue, offset=first, max=PAGE
    )
    answer = admin_pb2_grpc.AdminStub(channel).Peek(request, timeout=READ_S)
    if answer.status.code != 20000:
        raise Refused(answer.status.message)
    offsets = [message.offset for message in answer.messages]
    assert offsets == list(range(first, first + len(offsets))), (
        f"a read from {first} gave the offsets {offsets}"
    )
    return [message.body.decode().rstrip(".") for message in answer.messages]


class History:
    """Senders, readers and committers of one queue during faults, and the checks afterwards."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        *,
        senders: int = 3,
        readers: int = 1,
        committers: int = 0,
        body_bytes: int = 0,
    ) -> None:
        self._cluster = cluster
        self.topic = topic
        self.senders = [
            Sender(cluster, topic, number, body_bytes=body_bytes) for number in range(senders)
        ]
        self.readers = [Reader(cluster, topic, number) for number in range(readers)]
        group = f"{topic}-committers"
        self.committers = [
            Committer(
                cluster,
                topic,
                number,
                group,
                itertools.count(number, committers),
                lambda: self.acknowledged,
            )
            for number in range(committers)
        ]
        self._all: list[Client] = [*self.senders, *self.readers, *self.committers]

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
        """Wait until `messages` more messages were acknowledged. Tests use this instead of a time
        to let a fault take effect."""
        goal = self.acknowledged + messages
        wait_for(lambda: self.acknowledged >= goal, within_s, f"{messages} more acknowledgements")

    def rate(self, seconds: float) -> float:
        """The acknowledgements per second over the next `seconds`."""
        before, began = self.acknowledged, time.monotonic()
        time.sleep(seconds)
        return (self.acknowledged - before) / (time.monotonic() - began)

    def check(self, consumed: Callable[[], Sequence[str]]) -> None:
        """Check the queue against the history: linearizable (also by Porcupine, where it can be
        had), complete, and in the order of each producer. The clients must have ended."""
        final = self._final_read()
        sends = [send for sender in self.senders for send in sender.sends]
        reads = [read for reader in self.readers for read in reader.reads]
        assert self.acknowledged and all(reader.reads for reader in self.readers)
        violations: list[Violation] = check_queue(sends, [*reads, final])
        delivered: dict[str, list[str]] = {}
        for value in (body.rstrip(".") for body in consumed()):
            delivered.setdefault(value.partition("-")[0], []).append(value)
        acknowledged = {
            str(s.number): [send.value for send in s.sends if send.offset is not None]
            for s in self.senders
        }
        violations += check_deliveries(
            acknowledged, [send.value for send in sends], delivered, complete=True
        )
        assert not violations, "\n".join(
            f"{violation.rule}: {violation.text}" for violation in violations[:10]
        )
        try:
            self._check_with_porcupine(final)
        except linearizability.Unavailable as reason:
            print(f"not checked with Porcupine: {reason}")

    def _check_with_porcupine(self, final: Read) -> None:
        lines = [
            *linearizability.queue_lines(
                "queue",
                [sender.sends for sender in self.senders],
                [*(r.reads for r in self.readers), [final]],
            ),
            *linearizability.offset_lines(
                "committed offset", [committer.seen for committer in self.committers]
            ),
        ]
        verdicts = linearizability.check(lines)
        print(*verdicts, sep="\n")
        assert all(verdict.result == "Ok" for verdict in verdicts), verdicts

    def _final_read(self) -> Read:
        def read() -> Read | None:
            for node, child in self._cluster.children.items():
                if child.exit_code is None:
                    with grpc.insecure_channel(
                        target(self._cluster, node), options=OPTIONS
                    ) as channel:
                        try:
                            return read_queue(channel, self.topic, 0)
                        except (grpc.RpcError, Refused):
                            pass
            return None

        return wait_for(read, WAIT_S, "a read of the whole queue")
