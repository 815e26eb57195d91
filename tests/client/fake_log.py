"""A broker group that stores native frames in memory as proto/log.proto specifies, and nodes in
this process that serve it with faults.

`FakeBrokerGroup` decides without waiting; tests without streams use it alone. Its log may have an
uncommitted end, and `cut` applies what a leader change may do to that end. `FakeLogNode` implements
`Locate` and `Produce` over gRPC, with one `Trouble` for each future frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import grpc
import grpc.aio
import numpy as np

from ledgermq.client.native.producers.producer_session import STALE_EPOCH, UNKNOWN_PRODUCER
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc
from ledgermq.proto.entries.compression import decompress
from ledgermq.proto.entries.layout import BODY_AT, HEADER_BYTES, prefixes, split_record
from ledgermq.proto.entries.properties import parse
from ledgermq.proto.frames import BadFrame, read_frame
from ledgermq.proto.status import Code

LOG_TAG = 0xABCD1234
FRAMES_KEPT = 5


@dataclass(frozen=True)
class StoredMessage:
    """One message of the log. `body` is the body that its producer sent."""

    queue: int
    offset: int
    body: bytes
    sysflag: int
    properties: dict[str, str]
    producer: tuple[int, int]
    sequence: int


@dataclass
class KnownProducer:
    name: str
    epoch: int = 0
    next_sequence: int = 0
    frames: list[tuple[int, int, int]] = field(default_factory=list)
    """First sequence, count and first index of the last frames."""


class FakeBrokerGroup:
    """One log and its producers."""

    def __init__(
        self,
        name: str = "g1",
        queues: int = 4,
        *,
        window_frames: int = 5,
        max_frame_bytes: int = 1 << 20,
    ) -> None:
        self.name = name
        self.queues = queues
        self.topic = "t"
        self.window_frames, self.window_bytes, self.max_frame_bytes = (
            window_frames,
            8 << 20,
            max_frame_bytes,
        )
        self.log: list[StoredMessage] = []
        self.producers: dict[int, KnownProducer] = {}
        self.opened = 0
        self.term = 1

    # Producers

    def open(self, hello: pb.OpenProducer) -> pb.ProduceResponse:
        """The response to the first message of a stream."""
        if hello.producer_id:
            known = self.producers.get(hello.producer_id)
            if known is None:
                return pb.ProduceResponse(
                    problem=pb.Problem(code=UNKNOWN_PRODUCER, message="the producer is not known")
                )
            if known.epoch != hello.epoch:
                return pb.ProduceResponse(
                    problem=pb.Problem(code=STALE_EPOCH, message="it was opened again")
                )
            return self._opened(hello.producer_id)
        named = [
            number
            for number, known in self.producers.items()
            if hello.name and known.name == hello.name
        ]
        if named:
            self.producers[named[0]].epoch += 1
            return self._opened(named[0])
        self.opened += 1
        self.producers[self.opened] = KnownProducer(hello.name)
        return self._opened(self.opened)

    def _opened(self, producer_id: int) -> pb.ProduceResponse:
        known = self.producers[producer_id]
        return pb.ProduceResponse(
            opened=pb.ProducerOpened(
                producer_id=producer_id,
                epoch=known.epoch,
                next_sequence=known.next_sequence,
                max_frame_bytes=self.max_frame_bytes,
                window_bytes=self.window_bytes,
                window_frames=self.window_frames,
                cluster_id="c",
                log_tag=LOG_TAG,
            )
        )

    # Frames

    def produce(self, producer: tuple[int, int], frame: pb.Frame) -> tuple[pb.ProduceResponse, int]:
        """Append or reject a frame. Returns the response and the length of the log that must be
        committed before it may be sent."""
        count, first = len(frame.sizes) // 4, frame.first_sequence
        known = self.producers.get(producer[0])
        if known is None:
            return self.reject(frame, 0, UNKNOWN_PRODUCER, "the producer is not known"), 0
        if known.epoch != producer[1]:
            return self.reject(frame, known.next_sequence, STALE_EPOCH, "it was opened again"), 0
        if first + count <= known.next_sequence:
            return self._duplicate(known, producer, frame, count)
        if first < known.next_sequence:
            return self.reject(
                frame,
                known.next_sequence,
                Code.PRECONDITION_FAILED,
                "a part of the frame is stored",
                retryable=True,
            ), 0
        if first > known.next_sequence:
            return self.reject(
                frame,
                known.next_sequence,
                Code.PRECONDITION_FAILED,
                "a message is missing before it",
                retryable=True,
            ), 0
        try:
            self._append(producer, frame)
        except BadFrame as bad:
            return self.reject(
                frame, known.next_sequence, bad.code, str(bad), position=bad.position
            ), 0
        begin = len(self.log) - count
        known.frames.append((first, count, begin))
        del known.frames[:-FRAMES_KEPT]
        known.next_sequence += count
        ack = pb.FrameAck(
            first_sequence=first, count=count, receipt=self._receipt(producer, first, begin, count)
        )
        return pb.ProduceResponse(ack=ack), len(self.log)

    def reject(
        self,
        frame: pb.Frame,
        next_sequence: int,
        code: int,
        message: str,
        *,
        retryable: bool = False,
        position: int = -1,
    ) -> pb.ProduceResponse:
        rejected = pb.FrameRejected(
            first_sequence=frame.first_sequence, count=len(frame.sizes) // 4, position=position
        )
        rejected.next_sequence = next_sequence
        rejected.problem.code, rejected.problem.message, rejected.problem.retryable = (
            code,
            message,
            retryable,
        )
        return pb.ProduceResponse(rejected=rejected)

    def refuse(
        self, producer: tuple[int, int], frame: pb.Frame, *, retryable: bool, position: int = -1
    ) -> tuple[pb.ProduceResponse, int]:
        """Reject a frame for a reason unrelated to the stored messages; other responses are sent
        first."""
        known = self.producers.get(producer[0])
        if (
            known is None
            or known.epoch != producer[1]
            or known.next_sequence != frame.first_sequence
        ):
            return self.produce(producer, frame)
        code = Code.TOO_MANY_REQUESTS if retryable else Code.FORBIDDEN
        return self.reject(
            frame,
            known.next_sequence,
            code,
            "scripted error",
            retryable=retryable,
            position=position,
        ), 0

    def _duplicate(
        self, known: KnownProducer, producer: tuple[int, int], frame: pb.Frame, count: int
    ) -> tuple[pb.ProduceResponse, int]:
        ack = pb.FrameAck(first_sequence=frame.first_sequence, count=count, duplicate=True)
        indexes = [
            index for index, found in enumerate(self.log) if found.producer[0] == producer[0]
        ]
        last = (
            indexes[frame.first_sequence + count - 1 - self.log[indexes[0]].sequence]
            if indexes
            else -1
        )
        for first, held, begin in known.frames:
            if (first, held) == (frame.first_sequence, count):
                ack.receipt.CopyFrom(self._receipt(producer, first, begin, held))
        return pb.ProduceResponse(ack=ack), last + 1

    def _append(self, producer: tuple[int, int], frame: pb.Frame) -> None:
        limits = {"queues": self.queues, "max_body_bytes": 1 << 20, "max_entry_bytes": 2 << 20}
        batch = read_frame(
            self.topic,
            LOG_TAG,
            *producer,
            frame.first_sequence,
            frame.sizes,
            frame.entries,
            **limits,
        ).batch
        data = memoryview(batch.data)
        ends: dict[int, int] = {}
        for message in self.log:
            ends[message.queue] = message.offset + 1
        heads = prefixes(data, batch.starts)
        assert (heads["flag"] == np.arange(1, len(heads) + 1)).all()
        for row, (start, size) in enumerate(
            zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True)
        ):
            record = data[start + HEADER_BYTES : start + size]
            body_end, _, _, properties_at = split_record(record)
            body = record[BODY_AT - HEADER_BYTES : body_end]
            sysflag, queue = int(heads["sysflag"][row]), int(heads["queue"][row])
            properties = parse(record[properties_at:])
            offset = ends.get(queue, 0)
            ends[queue] = offset + 1
            stored = decompress(bytes(body), sysflag)
            self.log.append(
                StoredMessage(
                    queue, offset, stored, sysflag, properties, producer, frame.first_sequence + row
                )
            )

    def _receipt(self, producer: tuple[int, int], first: int, begin: int, count: int) -> pb.Receipt:
        receipt = pb.Receipt(
            cluster_id="c",
            broker_group=self.name,
            log_id="l",
            topic=self.topic,
            first_sequence=first,
            count=count,
        )
        receipt.producer_id, receipt.epoch = producer
        receipt.first_index, receipt.term, receipt.durability = begin, self.term, pb.DURABLE
        receipt.key_id, receipt.mac = "k1", bytes(32)
        receipt.replicas.add(node="n1", durable_index=begin + count)
        stored = self.log[begin : begin + count]
        for queue in sorted({message.queue for message in stored}):
            offsets = [message.offset for message in stored if message.queue == queue]
            receipt.ranges.add(queue=queue, first_offset=offsets[0], count=len(offsets))
        return receipt

    # Leader changes

    def cut(self, keep: int) -> None:
        """A new leader has only this much of the log; the producers' state follows from the log."""
        del self.log[keep:]
        self.term += 1
        for number, known in self.producers.items():
            own = [message.sequence for message in self.log if message.producer[0] == number]
            known.next_sequence = own[-1] + 1 if own else 0
            kept = [
                (first, min(count, keep - begin), begin)
                for first, count, begin in known.frames
                if begin < keep
            ]
            known.frames = kept

    def bodies(self, queue: int) -> list[bytes]:
        return [message.body for message in self.log if message.queue == queue]


class Trouble(Enum):
    """How a node treats one frame."""

    NONE = auto()
    DROP_BEFORE = auto()
    """The stream breaks, and the frame is lost."""
    DROP_AFTER = auto()
    """The frame is stored, and the stream breaks."""
    PART = auto()
    """A part of the frame survives a change of leader; the stream breaks."""
    REDIRECT = auto()
    RETRY = auto()
    """The frame is rejected and may be sent again."""
    REFUSE = auto()
    """The frame's first message is rejected permanently."""
    SILENT = auto()
    """The frame is stored and never answered."""


class FakeLogNode(log_pb2_grpc.LogServicer):
    """A node on a free loopback port. All nodes of a test share the broker groups; `leads` names
    the groups that this node leads."""

    def __init__(self, groups: list[FakeBrokerGroup], leads: set[str]) -> None:
        self.groups = {group.name: group for group in groups}
        self.leads = leads
        self.others: list[FakeLogNode] = []
        self.kind = "normal"
        self.troubles: list[Trouble] = []
        self.hold = asyncio.Event()
        """Responses wait while it is not set."""
        self.hold.set()
        self.frames: list[pb.Frame] = []
        self.hellos: list[pb.OpenProducer] = []
        self.metadata: dict[str, str] = {}
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        log_pb2_grpc.add_LogServicer_to_server(self, self._server)
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def Locate(self, request: pb.LocateRequest, context: Any) -> pb.LocateResponse:
        self.metadata = {str(key): str(value) for key, value in context.invocation_metadata()}
        answer = pb.LocateResponse(cluster_id="c", kind=self.kind)
        if request.topic not in {group.topic for group in self.groups.values()}:
            answer.problem.code, answer.problem.message = (
                Code.TOPIC_NOT_FOUND,
                f"the topic {request.topic!r} does not exist",
            )
            return answer
        for group in self.groups.values():
            answer.broker_groups.add(
                name=group.name,
                queues=range(group.queues),
                log_id="l",
                leader=self._redirect(group.name),
            )
        return answer

    def _redirect(self, group: str) -> pb.Redirect:
        leader = next((node for node in (self, *self.others) if group in node.leads), None)
        return pb.Redirect(broker_group=group, endpoint="" if leader is None else leader.endpoint)

    async def Produce(
        self, requests: AsyncIterator[pb.ProduceRequest], context: Any
    ) -> AsyncIterator[pb.ProduceResponse]:
        hello = (await anext(aiter(requests))).open
        self.hellos.append(hello)
        if hello.broker_group not in self.leads:
            yield pb.ProduceResponse(redirect=self._redirect(hello.broker_group))
            return
        group = self.groups[hello.broker_group]
        opened = group.open(hello)
        yield opened
        if not opened.HasField("opened"):
            return
        producer = (opened.opened.producer_id, opened.opened.epoch)
        async for request in requests:
            trouble = self.troubles.pop(0) if self.troubles else Trouble.NONE
            self.frames.append(request.frame)
            await self.hold.wait()
            for answer in self._answers(group, producer, request.frame, trouble):
                yield answer
                if answer.HasField("redirect"):
                    return
            if trouble in (Trouble.DROP_BEFORE, Trouble.DROP_AFTER, Trouble.PART):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "scripted error")

    def _answers(
        self, group: FakeBrokerGroup, producer: tuple[int, int], frame: pb.Frame, trouble: Trouble
    ) -> list[pb.ProduceResponse]:
        if trouble is Trouble.DROP_BEFORE:
            return []
        if trouble is Trouble.REDIRECT:
            if self.others:
                self.leads.discard(group.name)
                self.others[0].leads.add(group.name)
            return [pb.ProduceResponse(redirect=self._redirect(group.name))]
        if trouble in (Trouble.RETRY, Trouble.REFUSE):
            retry = trouble is Trouble.RETRY
            return [group.refuse(producer, frame, retryable=retry, position=-1 if retry else 0)[0]]
        before = len(group.log)
        answer, _ = group.produce(producer, frame)
        if trouble is Trouble.PART:
            group.cut((before + len(group.log)) // 2)
        return [answer] if trouble is Trouble.NONE else []


@asynccontextmanager
async def fake_log(
    nodes: int = 1, groups: list[FakeBrokerGroup] | None = None
) -> AsyncIterator[tuple[list[FakeLogNode], list[FakeBrokerGroup]]]:
    """Nodes, the first of which leads every group."""
    found = groups or [FakeBrokerGroup()]
    started = [
        FakeLogNode(found, {group.name for group in found} if number == 0 else set())
        for number in range(nodes)
    ]
    for node in started:
        node.others = [other for other in started if other is not node]
        await node.start()
    try:
        yield started, found
    finally:
        for node in started:
            await node.stop()


def endpoints(nodes: list[FakeLogNode]) -> str:
    return ";".join(node.endpoint for node in nodes)
