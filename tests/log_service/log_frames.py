"""Frames of a producer, and a minimal model of the broker group that stores them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.calls.send_calls import (
    FrameKnown,
    FrameProduced,
    OpenProducer,
    ProduceFrame,
    ProducerOpened,
    ResumeProducer,
)
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.entry_sealing import chain_seed
from ledgermq.proto.frames import FrameBuilder
from tests.log_service.log_stage import LOG_ID

TAG = chain_seed(LOG_ID)
STORE_MS = 1_700_000_000_000


def frame(
    first_sequence: int = 0,
    bodies: list[bytes] | None = None,
    *,
    topic: str = "T",
    queue: Any = 0,
    producer: int = 7,
    epoch: int = 0,
    properties: list[dict[str, str]] | None = None,
) -> pb.Frame:
    """A frame of plain messages."""
    builder = FrameBuilder(topic, TAG, producer, epoch)
    made = builder.encode(
        first_sequence, queue, bodies or [b"a", b"b"], born_ms=STORE_MS, properties=properties
    )
    namespace, _, name = topic.rpartition("@")
    return pb.Frame(
        namespace=namespace,
        topic=name,
        first_sequence=first_sequence,
        sizes=bytes(made.sizes),
        entries=bytes(made.entries),
    )


def opening(**fields: Any) -> bytes:
    return pb.ProduceRequest(
        open=pb.OpenProducer(**{"broker_group": "g1", **fields})
    ).SerializeToString()


def framing(one: pb.Frame) -> bytes:
    return pb.ProduceRequest(frame=one).SerializeToString()


@dataclass
class Group:
    """Producer 7 of one broker group; answers calls as `node/broker` does."""

    next_sequence: int = 0
    epoch: int = 0
    stored: dict[int, FrameProduced] = field(default_factory=dict)
    index: int = 100
    held: bool = False
    """Whether frames wait for their outcome."""

    def answer(self, call: Any) -> Any:
        if isinstance(call, OpenProducer):
            return ProducerOpened(7, self.epoch, self.next_sequence)
        if isinstance(call, ResumeProducer):
            if call.producer_id != 7:
                return Refused("unknown-producer", detail="no such producer")
            return ProducerOpened(7, call.epoch, self.next_sequence)
        assert isinstance(call, ProduceFrame)
        return None if self.held else self.produced(call)

    def produced(self, call: ProduceFrame) -> Any:
        first, count = call.frame.first_sequence, len(call.frame)
        if first in self.stored:
            return replace(self.stored[first], duplicate=True, durable=())
        if first < self.next_sequence:
            return FrameKnown(self.next_sequence)
        if first > self.next_sequence:
            return Refused(
                "sequence-gap",
                detail=f"message {self.next_sequence} is missing",
                next_sequence=self.next_sequence,
            )
        last = self.index + count - 1
        queue = int(call.frame.batch.queues[0])
        done = FrameProduced(
            call.topic, self.index, 3, count, ((queue, 5 + first, count),), 0xC0FFEE + first, STORE_MS,
            "memory" if call.memory else "durable",
            durable=() if call.memory else (("n1", last), ("n2", last + 1)),
        )  # fmt: skip
        self.index += count
        self.next_sequence = first + count
        self.stored[first] = done
        return done
