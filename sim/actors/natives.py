"""Simulated producers of native frames: several frames in flight, repeated when unanswered, and
after every failover.

Unlike other clients they send an unanswered frame again, to the leader: sequence numbers prevent
duplicates. One with a name also restarts, like a restarted program, and continues in the next
epoch. `histories.py` checks what was told of the messages; this module checks that each is stored
once, in order and without gaps, and that receipts are true.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from ledgermq.node.broker.calls.outcome import Call, Refused
from ledgermq.node.broker.calls.send_calls import (
    FrameKnown,
    FrameProduced,
    OpenProducer,
    ProduceFrame,
    ProducerOpened,
    ResumeProducer,
)
from ledgermq.node.broker.parts.producers.producers import UNNAMED_MS
from ledgermq.proto.entries.layout import BODY_AT, prefixes, record_columns
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import TAG, parse
from ledgermq.proto.entries.ranges import record_of
from ledgermq.proto.frames import FrameBuilder, native_runs
from ledgermq.proto.records.control import ProducerRecord, decode
from ledgermq.proto.records.time_epochs import TimeEpochs
from ledgermq.proto.types import Frame, Range, UnsealedBatch
from ledgermq.sim.actors.clients import CLIENT_TIMEOUT_NS, NORMAL, QUEUES, VALUES_A_PRODUCER
from ledgermq.sim.actors.ports import Answer, Cluster
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.histories import Sent
from ledgermq.sim.checks.truth import VALUE_BYTES, Truth
from ledgermq.sim.machine.network import MS


@dataclass(frozen=True, slots=True)
class Ways:
    """How active a native producer is."""

    round_ns: tuple[int, int] = (60 * MS, 240 * MS)
    messages_a_frame: tuple[int, int] = (1, 30)
    under_way: int = 5
    repeats: float = 0.15
    """Share of the frames in flight that are repeated in a round, some of them to another node."""
    restarts: float = 0.5
    """Share of lost connections after which a named producer restarts."""
    memory: float = 0.3


@dataclass(slots=True)
class _Part:
    """A frame without an answer."""

    first: int
    messages: list[Sent]
    queue_of: list[int]
    tokens: dict[int, int] = field(default_factory=dict)
    """Calls that carry it: token → time of the call."""


class NativeProducer:
    """One producer of native frames."""

    def __init__(
        self,
        cluster: Cluster,
        truth: Truth,
        number: int,
        chance: random.Random,
        ways: Ways,
        *,
        name: str,
        log_tag: int,
    ) -> None:
        self._cluster, self._truth = cluster, truth
        self._number = number
        self._chance = chance
        self._ways = ways
        self._name = name
        self._log_tag = log_tag
        self._node = cluster.names[number % len(cluster.names)]
        self._next_value = number * VALUES_A_PRODUCER
        self._known: ProducerOpened | None = None
        self._in_touch = False
        self._opening: tuple[int, int] | None = None
        self._next = 0
        self._parts: list[_Part] = []
        self._on = True
        self.receipts: list[tuple[int, int, FrameProduced]] = []
        """(producer id, first sequence number, answer) of durable frames."""
        self.known_values: set[int] = set()
        """Messages that were reported as stored, without a place."""
        self.dropped: list[int] = []
        """Its producer ids that were refused as unknown."""
        self.duplicates = 0

    def start(self) -> None:
        """Start; the first round follows within a period."""
        self._cluster.after(self._chance.randrange(self._ways.round_ns[1]), self._round)

    def wind_down(self) -> None:
        """Send nothing new; unanswered frames are repeated until they are answered."""
        self._on = False

    @property
    def waits(self) -> bool:
        return bool(self._parts)

    def _round(self) -> None:
        cluster, chance = self._cluster, self._chance
        late = cluster.now - CLIENT_TIMEOUT_NS
        asked = [
            *(since for part in self._parts for since in part.tokens.values()),
            *([self._opening[1]] if self._opening else []),
        ]
        if any(since < late for since in asked):
            self._lose_touch(None)
        if not self._in_touch:
            if self._opening is None and (self._on or self._parts):
                self._open()
        else:
            while self._on and len(self._parts) < self._ways.under_way:
                self._parts.append(self._new_part())
            for part in self._parts:
                if not part.tokens:
                    self._send(part)
                if chance.random() < self._ways.repeats:
                    self._send(part)
        cluster.after(chance.randrange(*self._ways.round_ns), self._round)

    # Opening

    def _open(self) -> None:
        known, anew = (
            self._known,
            self._known is None
            or (bool(self._name) and self._chance.random() < self._ways.restarts),
        )

        def make(token: int) -> Call:
            if anew or known is None:
                return OpenProducer(token, self._name)
            return ResumeProducer(token, known.producer_id, known.epoch)

        def answered(outcome: Answer) -> None:
            self._opening = None
            if isinstance(outcome, ProducerOpened):
                self._opened(outcome)
                return
            refused = outcome.reason if isinstance(outcome, Refused) and not self._name else ""
            if refused == "stale-epoch":
                raise Violation(
                    "producer",
                    f"producer {self._known} is refused although nobody else has it: {outcome}",
                )
            self._lose_touch(outcome)
            if refused == "unknown-producer" and known is not None:
                self._forgotten(known.producer_id)

        token = self._cluster.ask(self._node, make, answered)
        self._opening = token, self._cluster.now

    def _opened(self, opened: ProducerOpened) -> None:
        """Messages below the next sequence number are stored, and their frames are repeated for
        their answers; the others follow without a gap, because acknowledgements from memory may
        have been lost."""
        if self._known is not None and (opened.producer_id, opened.epoch) < (
            self._known.producer_id,
            self._known.epoch,
        ):
            raise Violation("producer", f"producer {self._known} was opened as {opened}")
        self._known, self._in_touch = opened, True
        parts, self._parts, self._next = self._parts, [], opened.next_sequence
        for part in parts:
            stored = min(max(0, opened.next_sequence - part.first), len(part.messages))
            if stored:
                self._parts.append(
                    _Part(part.first, part.messages[:stored], part.queue_of[:stored])
                )
            if stored < len(part.messages):
                self._parts.append(
                    _Part(self._next, part.messages[stored:], part.queue_of[stored:])
                )
                self._next += len(part.messages) - stored

    def _forgotten(self, producer_id: int) -> None:
        """The log dropped this producer. What it has in flight has no outcome, and another one is
        opened."""
        self.dropped.append(producer_id)
        self._known, self._next = None, 0
        self._parts.clear()

    def _lose_touch(self, outcome: Answer) -> None:
        """Go to the reported leader, or the next node, and open there."""
        for part in self._parts:
            for token in part.tokens:
                self._cluster.give_up(token)
            part.tokens.clear()
        if self._opening is not None:
            self._cluster.give_up(self._opening[0])
            self._opening = None
        self._in_touch = False
        hint = outcome.leader if isinstance(outcome, Refused) else None
        names = self._cluster.names
        self._node = hint or names[(names.index(self._node) + 1) % len(names)]

    # Frames

    def _new_part(self) -> _Part:
        count, turn = (
            self._chance.randrange(*self._ways.messages_a_frame),
            self._chance.randrange(30),
        )
        queue_of = [int(place >= turn) % QUEUES[NORMAL] for place in range(count)]
        messages = []
        for queue in queue_of:
            messages.append(
                self._cluster.histories.sent(
                    self._number, (NORMAL, queue), self._next_value, 1, self._cluster.now
                )
            )
            self._next_value += 1
        part = _Part(self._next, messages, queue_of)
        self._next += count
        return part

    def _send(self, part: _Part) -> None:
        assert self._known is not None, "frames follow an opening"
        opened, names = self._known, self._cluster.names
        memory = self._chance.random() < self._ways.memory
        node = (
            names[self._chance.randrange(len(names))]
            if part.tokens and self._chance.random() < 0.3
            else self._node
        )

        def answered(outcome: Answer) -> None:
            part.tokens.pop(token, None)
            if part in self._parts:
                self._told(part, opened, outcome, asked=node)

        frame = _frame(self._log_tag, opened, part, self._cluster.now // MS)
        token = self._cluster.ask(
            node, lambda number: ProduceFrame(number, NORMAL, frame, memory), answered
        )
        part.tokens[token] = self._cluster.now

    def _told(self, part: _Part, opened: ProducerOpened, outcome: Answer, *, asked: str) -> None:
        if isinstance(outcome, FrameProduced):
            self._stored(part, opened.producer_id, outcome)
        elif isinstance(outcome, FrameKnown):
            self.known_values.update(message.value for message in part.messages)
        else:
            # Unlike the frames of one stream, calls may overtake each other here; the frame is then
            # repeated in the next round.
            overtook = isinstance(outcome, Refused) and outcome.reason == "sequence-gap"
            if asked == self._node and not overtook:
                self._lose_touch(outcome)
            return
        for token in part.tokens:
            self._cluster.give_up(token)
        self._parts.remove(part)

    def _stored(self, part: _Part, producer_id: int, answer: FrameProduced) -> None:
        self.duplicates += answer.duplicate
        next_of = {queue: offset for queue, offset, _ in answer.ranges}
        if (
            answer.count != len(part.messages)
            or sum(count for _, _, count in answer.ranges) != answer.count
        ):
            raise Violation(
                "receipt", f"a frame of {len(part.messages)} messages is answered with {answer}"
            )
        for message, queue in zip(part.messages, part.queue_of, strict=True):
            self._cluster.histories.placed(
                message, next_of[queue], answer.durability, self._cluster.now
            )
            next_of[queue] += 1
        if answer.durability == "durable":
            self.receipts.append((producer_id, part.first, answer))
            truth, last = self._truth, answer.last_index
            if last >= len(truth) or (truth.terms[last], truth.chains[last]) != (
                answer.term,
                answer.chain_crc,
            ):
                raise Violation("receipt", f"entry {last} is not what a receipt says: {answer}")


def _frame(log_tag: int, opened: ProducerOpened, part: _Part, born_ms: int) -> Frame:
    """The frame as the server passes it on. Created anew for every call, because the log takes
    ownership of it."""
    bodies = [message.value.to_bytes(VALUE_BYTES, "big") for message in part.messages]
    queues = np.array(part.queue_of, np.int32)
    builder = FrameBuilder(NORMAL, log_tag, opened.producer_id, opened.epoch)
    made = builder.encode(part.first, queues, bodies, born_ms=born_ms)
    sizes = np.frombuffer(made.sizes, "<u4").astype(np.int32)
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    none = np.zeros(len(sizes), np.int32)
    batch = UnsealedBatch(
        data=bytearray(made.entries),
        starts=starts,
        sizes=sizes,
        topics=(NORMAL,),
        topic_of=none,
        queues=queues,
    )
    return Frame(opened.producer_id, opened.epoch, part.first, batch)


def judge(
    producers: Iterable[NativeProducer], pieces: Sequence[Range], time_epochs: TimeEpochs
) -> None:
    """At the end of a run, over the whole log: each producer's messages are stored once, in order
    and without gaps, epochs only increase, each message in a receipt is the one with its number,
    and only a producer that was silent for long is dropped and refused as unknown."""
    dropped = _dropped(pieces, time_epochs)
    ends: dict[int, int] = {}
    epochs: dict[int, int] = {}
    values: set[int] = set()
    places: dict[tuple[int, int], int] = {}
    for entries in pieces:
        for run in native_runs(entries):
            if run.first_sequence != ends.get(run.producer_id, 0) or run.epoch < epochs.get(
                run.producer_id, 0
            ):
                raise Violation(
                    "producer",
                    f"{run} of entry {entries.first_index + run.at} follows message"
                    f" {ends.get(run.producer_id)}",
                )
            ends[run.producer_id], epochs[run.producer_id] = (
                run.first_sequence + run.count,
                run.epoch,
            )
            for row in range(run.count):
                at = int(entries.starts[run.at + row]) + BODY_AT
                values.add(int.from_bytes(entries.data[at : at + VALUE_BYTES], "big"))
                places[run.producer_id, run.first_sequence + row] = (
                    entries.first_index + run.at + row
                )
    for producer in producers:
        if refused := set(producer.dropped) - dropped:
            raise Violation(
                "producer",
                f"producer {min(refused)} is refused as unknown, and no record dropped it",
            )
        lost = producer.known_values - values
        if lost:
            raise Violation(
                "producer", f"message {min(lost)} was reported as stored and is not in the log"
            )
        for number, first, receipt in producer.receipts:
            stand = [places.get((number, first + at)) for at in range(receipt.count)]
            if stand != list(range(receipt.first_index, receipt.last_index + 1)):
                raise Violation(
                    "receipt",
                    f"messages {first} ff. of producer {number} are not where a receipt says:"
                    f" {receipt}",
                )


def _dropped(pieces: Iterable[Range], time_epochs: TimeEpochs) -> set[int]:
    """The producers that records dropped. A run has fewer than a leader keeps, so each must have
    been silent for a day in counted time."""
    heard: dict[int, tuple[int, int]] = {}
    """By producer: store time and position of its last entry."""
    gone: set[int] = set()
    for entries in pieces:
        times, positions = (
            prefixes(entries.data, entries.starts)["store_ms"],
            entries.starts + entries.pos,
        )
        happened: list[tuple[int, ProducerRecord | int]] = [
            (run.at, run.producer_id) for run in native_runs(entries)
        ]
        columns = record_columns(entries)
        for at, number in enumerate(columns.topic_of.tolist()):
            if columns.topics[number] == ProducerRecord.TOPIC:
                message = decode_record(record_of(entries, at))
                record = decode(parse(message.properties)[TAG], message.body)
                happened += [(at, record)] if isinstance(record, ProducerRecord) else []
        for at, what in sorted(happened, key=itemgetter(0)):
            place = int(times[at]), int(positions[at])
            if isinstance(what, ProducerRecord):
                for number in what.dropped:
                    silent_ms = place[0] - time_epochs.counted(*heard[number])
                    if silent_ms < UNNAMED_MS:
                        raise Violation(
                            "producer",
                            f"producer {number} is dropped after a silence of {silent_ms} ms",
                        )
                    gone.add(number)
                what = what.producer_id
            heard[what] = place
    return gone
