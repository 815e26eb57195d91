"""Calls that store messages: sends, producers of native frames and their frames, and taking a delayed message back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.proto.types import Draft, Frame


@dataclass(frozen=True, slots=True)
class Produce:
    """Append these messages (all to this group's queues). Answer: `Produced`. A draft's queue is already chosen by the caller."""

    token: Token
    drafts: Sequence[Draft]


@dataclass(frozen=True, slots=True)
class Produced:
    """Acknowledged for `durability`: `durable` is committed, on stable storage on a majority; `memory` is held by a majority of processes
    and committed later, unless it is lost with them; `master` is on the stable storage of an HA group's master and committed later, unless
    another master follows before. Columns are in the order of the drafts."""

    first_index: int
    term: int
    queue_offsets: tuple[int, ...]
    store_ms: int
    durability: str = "durable"
    fire_ms: tuple[int, ...] = ()
    """Of a draft that waits, when its slot is due (then its offset is one of that slot); 0 for others. Empty if none waits."""


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer of native frames begins: a new one, or under a name the one that has it, with the next epoch. Answer: `ProducerOpened`
    once that is committed; frames of an older epoch are refused from then on. `owner`: the user who opens it, "" where calls are not
    signed."""

    token: Token
    name: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ResumeProducer:
    """Go on with a producer in the same epoch. Answer: `ProducerOpened`, and it misses nothing that the log holds; refused with
    `unknown-producer`, also where another user opened it, or `stale-epoch`."""

    token: Token
    producer_id: int
    epoch: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ProducerOpened:
    """`next_sequence`: of the next new message. It goes on over all epochs of a name."""

    producer_id: int
    epoch: int
    next_sequence: int


@dataclass(frozen=True, slots=True)
class ProduceFrame:
    """Append a frame of one topic, whole or not at all, once. Its bytes are the log's from now on: it is patched in place, and a frame
    that is sent again is another object. Answer: `FrameProduced`; `FrameKnown` when it was stored before the producer's last five frames;
    refused with `unknown-producer`, `stale-epoch`, `sequence-gap`, `partial-frame`, `wrong-kind`, or as `Produce` is.

    `memory`: a majority in memory is enough, where the topic allows it."""

    token: Token
    topic: str
    frame: Frame
    memory: bool = False


@dataclass(frozen=True, slots=True)
class FrameProduced:
    """The frame is stored, by this call or (`duplicate`) before it; for what it is acknowledged see `Produced`.

    `topic`: where its messages are, which of a duplicate need not be what was said this time.
    `ranges`: (queue, first queue offset, count) of each queue in the frame, by queue: its messages have consecutive offsets in their order
    in the frame. `chain_crc`: of the entry of the last message. `durable`: the replicas known to have all of it on stable storage when this
    was said, with their durable index, by node; empty for `memory`, the master at least for `master`."""

    topic: str
    first_index: int
    term: int
    count: int
    ranges: tuple[tuple[int, int, int], ...]
    chain_crc: int
    store_ms: int
    durability: str = "durable"
    duplicate: bool = False
    durable: tuple[tuple[str, int], ...] = ()

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1


@dataclass(frozen=True, slots=True)
class FrameKnown:
    """Every message of the frame is stored and committed, but what there was to say of it is not kept any more."""

    next_sequence: int


@dataclass(frozen=True, slots=True)
class Recall:
    """Take a delayed message back: its delivery time and the place where it was stored first
    (node/broker/state/timers.py). Answer: `Recalled`."""

    token: Token
    deliver_ms: int
    fire_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """`ok` False: it is due, delivered or recalled already."""

    ok: bool
