"""Calls that store messages: sends, native producers and their frames, and the recall of delayed
messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Call, Result
from ledgermq.proto.types import Draft, Frame


@dataclass(frozen=True, slots=True)
class Produce(Call):
    """Append these messages, all to queues of this group. The caller has chosen each draft's queue.
    Answer: `Produced`."""

    token: Token
    drafts: Sequence[Draft]


@dataclass(frozen=True, slots=True)
class Produced(Result):
    """Stored with the class `durability`: `durable` is committed, on stable storage on a majority.
    `memory` is held in memory by a majority of processes and committed later, unless they all fail
    before. `master` is on the stable storage of an HA group's master and committed later, unless
    another master takes over before. Columns are in the order of the drafts."""

    first_index: int
    term: int
    queue_offsets: tuple[int, ...]
    store_ms: int
    durability: str = "durable"
    fire_ms: tuple[int, ...] = ()
    """For a delayed draft, when its timer slot is due (its queue offset is then one of that slot);
    0 for others. Empty if no draft is delayed."""
    queues: tuple[int, ...] = ()
    """The queues, if every draft was known by its id and nothing was appended. Empty: those that
    the caller chose, but for known drafts."""


@dataclass(frozen=True, slots=True)
class OpenProducer(Call):
    """Open a producer of native frames: a new one, or the next epoch of the one with this name.
    Answer: `ProducerOpened` once it is committed; frames of an older epoch are refused from then
    on. `owner`: the user who opens it, "" if calls are not signed. `digest`: keep a digest of the
    producer's messages, from its first one on; without effect below `DIGEST_LEVEL`."""

    token: Token
    name: str = ""
    owner: str = ""
    digest: bool = False


@dataclass(frozen=True, slots=True)
class ResumeProducer(Call):
    """Continue a producer in the same epoch. Answer: `ProducerOpened`, which accounts for
    everything in the log; refused with `unknown-producer`, also if another user opened it, or with
    `stale-epoch`."""

    token: Token
    producer_id: int
    epoch: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ProducerOpened(Result):
    """`next_sequence`: the sequence number of the next new message. It continues across the epochs
    of a name. `digest`: of the messages before it, None if the producer has none."""

    producer_id: int
    epoch: int
    next_sequence: int
    digest: int | None = None


@dataclass(frozen=True, slots=True)
class ProduceFrame(Call):
    """Append a frame of one topic: all of it or nothing, and only once. The log owns the frame's
    bytes from now on and patches them in place, so a repeated frame must be another object. Answer:
    `FrameProduced`; `FrameKnown` if it was stored before the producer's last five frames; refused
    with `unknown-producer`, `stale-epoch`, `sequence-gap`, `partial-frame`, `wrong-kind`, or as
    `Produce` is.

    `memory`: a majority in memory is enough, if the topic allows it."""

    token: Token
    topic: str
    frame: Frame
    memory: bool = False


@dataclass(frozen=True, slots=True)
class FrameProduced(Result):
    """The frame is stored, by this call or (`duplicate`) before it. For `durability` see
    `Produced`.

    `topic`: where its messages are; for a duplicate, the topic of the first attempt. `ranges`:
    (queue, first queue offset, count) of each queue in the frame, by queue; its messages have
    consecutive offsets in their order in the frame. `chain_crc`: of the entry of the last message.
    `durable`: (node, durable index) of the replicas known to have the whole frame on stable storage
    when this answer was made; empty for `memory`, at least the master for `master`."""

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
class FrameKnown(Result):
    """Every message of the frame is stored and committed, but the details of the answer are no
    longer kept."""

    next_sequence: int


@dataclass(frozen=True, slots=True)
class Recall(Call):
    """Take a delayed message back, identified by its delivery time and the place where it was first
    stored (`timers.py`). Answer: `Recalled`."""

    token: Token
    deliver_ms: int
    fire_ms: int
    offset: int
    user: str | None = None
    """The operator who cancels the message; None: its producer does."""


@dataclass(frozen=True, slots=True)
class Recalled(Result):
    """`ok` is False if the message is due, or was already delivered or recalled."""

    ok: bool
