"""The leader's rules for native producers and their frames, against the state as of the log's end.

That state is the applied one (`producers.py`) plus what this leader has appended since, which is
kept here. Opening and resuming add drafts to the turn's plan and are undone with it. A frame is
judged only when everything before it is in the log, and is then appended at once or not at all:
nothing about a frame is undone here except by losing leadership.

No answer may become false later. Answers about committed and applied frames are final. An answer
that depends on an unapplied entry waits for that entry. An answer that depends on something
*missing* (no such producer, a missing message) is valid only if this replica still leads, because
another leader may have it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import Done, Refused
from ledgermq.node.broker.calls.send_calls import (
    FrameKnown,
    FrameProduced,
    OpenProducer,
    ProduceFrame,
    ProducerOpened,
    ResumeProducer,
)
from ledgermq.node.broker.part import LeaderPart, Takers
from ledgermq.node.broker.parts.producers.producers import Producer, Producers, Stored
from ledgermq.node.broker.plan import NEVER_NS, Plan
from ledgermq.node.broker.queues import Places
from ledgermq.node.broker.uncommitted import UncommittedState, put_back, topic_name
from ledgermq.proto.levels import DIGEST_LEVEL, FIRST_LEVEL
from ledgermq.proto.records import control
from ledgermq.proto.types import Frame, TopicKind

PRODUCERS_MAX = 10_000
"""Limit of a broker group. Beyond it, each newly opened producer replaces the one that has been
silent for longest."""
DROPPED_MAX = 100
"""How many expired producers one record drops at most."""
NAME_MAX = 1024
EPOCH_MAX = (1 << 16) - 1
ID_MAX = (1 << 32) - 1
_RECORD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Append:
    """The frame is next in its producer's sequence and is to be appended."""


@dataclass(frozen=True, slots=True)
class InLog:
    """The frame is applied; the answer is read from the log."""

    frame: Stored


@dataclass(frozen=True, slots=True)
class Later:
    """The answer that is valid once the entry at `index` is applied."""

    index: int
    outcome: FrameProduced | FrameKnown | Refused


@dataclass(frozen=True, slots=True)
class IfLeading:
    """The answer that is valid if this replica still leads."""

    outcome: Refused


@dataclass(frozen=True, slots=True)
class Now:
    """A final answer."""

    outcome: FrameKnown | Refused


Told = InLog | Later | IfLeading | Now
Verdict = Append | Told


@dataclass(frozen=True, slots=True)
class _Standing:
    """A producer as of the log's end. `index`: the last entry about it, which is not applied
    yet."""

    name: str
    epoch: int
    next_sequence: int
    index: int
    frames: deque[tuple[int, FrameProduced]]
    """Its unapplied frames: (first sequence number, answer)."""
    owner: str


class ProducerSequencing(LeaderPart):
    """Producers and frames that this leader has appended and not applied yet. Empty on a
    follower."""

    def __init__(
        self,
        places: Places,
        producers: Producers,
        uncommitted: UncommittedState,
        entry_bytes_max: int,
        producers_max: int = PRODUCERS_MAX,
    ) -> None:
        self._places = places
        self._producers = producers
        self._entry_bytes_max = entry_bytes_max
        self._uncommitted = uncommitted
        self._producers_max = producers_max
        self._standing: dict[int, _Standing] = {}
        self._ids: dict[str, int] = {}
        """Ids by name, for producers with an unapplied record."""
        self._dropped: dict[int, int] = {}
        """Producer → index of the record that drops it."""
        self._next_id = 1
        self._by_index: deque[tuple[int, int]] = deque()
        """(last index, producer) of each record and frame, in log order."""

    def __len__(self) -> int:
        return len(self._by_index)

    def resign(self) -> None:
        self._standing.clear()
        self._ids.clear()
        self._dropped.clear()
        self._by_index.clear()
        self._next_id = 1
        self.unapplied_index = NEVER_NS

    def applied(self, index: int) -> None:
        while self._by_index and self._by_index[0][0] <= index:
            number = self._by_index.popleft()[1]
            standing = self._standing.get(number)
            if standing is None:
                continue
            while standing.frames and standing.frames[0][1].last_index <= index:
                standing.frames.popleft()
            if standing.index <= index:
                del self._standing[number]
                if self._ids.get(standing.name) == number:
                    del self._ids[standing.name]
        if self._dropped:
            self._dropped = {number: at for number, at in self._dropped.items() if at > index}
        self.unapplied_index = self._by_index[0][0] if self._by_index else NEVER_NS

    def _at_end(self, number: int) -> _Standing | Producer | None:
        """The producer as of the log's end; None if there is none."""
        return (
            None
            if number in self._dropped
            else self._standing.get(number) or self._producers.get(number)
        )

    # Opening

    def open(self, plan: Plan, call: OpenProducer) -> None:
        """Plan a new producer, or the next epoch of a named one."""
        digest = call.digest and self._places.level >= DIGEST_LEVEL
        if plan.full:
            plan.refuse(call.token, "disk-full")
            return
        if len(call.name) > NAME_MAX:
            plan.refuse(
                call.token,
                "too-large",
                f"the name of a producer has more than {NAME_MAX} characters",
            )
            return
        known = (
            (self._ids.get(call.name) or self._producers.named(call.name)) if call.name else None
        )
        before = None if known is None else self._at_end(known)
        if known is not None and before is not None and before.epoch < EPOCH_MAX:
            plan.count("producers_opened")
            record = control.ProducerRecord(
                known, before.epoch + 1, call.name, owner=call.owner, digest=digest
            )
            self._record(plan, call.token, record, before.next_sequence)
            return
        number = max(self._next_id, self._producers.next_id)
        if number > ID_MAX:
            plan.refuse(
                call.token, "too-many-producers", "this broker group has used up all producer ids"
            )
            return
        # A name that has used up its epochs continues under another id.
        sequence, spent = (
            (0, ()) if known is None or before is None else (before.next_sequence, (known,))
        )
        dropped = (*spent, *self._drop(plan, set(spent)))
        plan.count("producers_opened")
        record = control.ProducerRecord(
            producer_id=number,
            epoch=0,
            name=call.name,
            sequence=sequence,
            dropped=dropped,
            owner=call.owner,
            digest=digest,
        )
        self._record(plan, call.token, record, sequence)

    def resume(self, plan: Plan, call: ResumeProducer) -> None:
        """Plan the continuation of an epoch. The record changes nothing, but its commit proves that
        this leader's log is complete."""
        wrong = self._mistaken(call.producer_id, call.epoch)
        if plan.full:
            plan.refuse(call.token, "disk-full")
        elif isinstance(wrong, Later):
            plan.awaited.append((wrong.index, call.token, wrong.outcome))
        elif isinstance(wrong, Now):
            plan.done.append(Done(call.token, wrong.outcome))
        elif wrong is not None:
            plan.assured.append(Done(call.token, wrong.outcome))
        else:
            known = self._at_end(call.producer_id)
            assert known is not None, "it is not mistaken"
            if known.owner != call.owner:
                # Producer ids are small numbers and easily guessed, so only the user who opened a
                # producer may use it.
                plan.assured.append(Done(call.token, _unknown(call.producer_id)))
                return
            plan.count("producers_resumed")
            record = control.ProducerRecord(
                call.producer_id, call.epoch, known.name, owner=known.owner
            )
            self._record(plan, call.token, record, known.next_sequence)

    def _drop(self, plan: Plan, spent: set[int]) -> list[int]:
        """The producers to drop so that one more fits: never one with an entry in flight, in the
        log or in this plan."""
        held = {
            *self._standing,
            *self._dropped,
            *spent,
            *plan.held,
            *(call.frame.producer_id for call in plan.frames),
        }
        dropped = list(
            islice((n for n in self._producers.expired(plan.now_ms) if n not in held), DROPPED_MAX)
        )
        new = sum(self._producers.get(number) is None for number in self._standing)
        over = (
            len(self._producers)
            + new
            - len(self._dropped)
            - len(spent)
            - len(dropped)
            + 1
            - self._producers_max
        )
        if over > 0:
            held.update(dropped)
            dropped += islice((n for n in self._producers.by_silence() if n not in held), over)
        return dropped

    def _record(
        self, plan: Plan, token: Token, record: control.ProducerRecord, sequence: int
    ) -> None:
        number, index = record.producer_id, plan.next_index
        before, known, next_id = (
            self._standing.get(number),
            self._ids.get(record.name),
            self._next_id,
        )
        plan.drafts.append(
            control.draft(record, plan.now_ms, DIGEST_LEVEL if record.digest else FIRST_LEVEL)
        )
        plan.size += _RECORD_BYTES
        plan.awaited.append((index, token, ProducerOpened(number, record.epoch, sequence)))
        plan.count("producers_dropped", len(record.dropped))
        self._standing[number] = _Standing(
            name=record.name,
            epoch=record.epoch,
            next_sequence=sequence,
            index=index,
            frames=before.frames if before else deque(),
            owner=record.owner,
        )
        if record.name:
            self._ids[record.name] = number
        self._next_id = max(self._next_id, number + 1)
        self._dropped.update(dict.fromkeys(record.dropped, index))
        self._by_index.append((index, number))
        self.unapplied_index = min(self.unapplied_index, index)

        def undo() -> None:
            self._by_index.pop()
            self._next_id = next_id
            for gone in record.dropped:
                del self._dropped[gone]
            put_back(self._standing, number, before)
            if record.name:
                put_back(self._ids, record.name, known)

        self._uncommitted.on_rollback(undo)

    # Frames

    def accept(self, plan: Plan, call: ProduceFrame) -> None:
        """Makes the checks that do not depend on the producer. `judge` makes the others once this
        plan's drafts are in the log."""
        frame, config = call.frame, self._places.topics.get(call.topic)
        if plan.full:
            plan.refuse(call.token, "disk-full")
        elif (
            frame.producer_id in plan.held
            or self._uncommitted.configuring(topic_name(call.topic)) is not None
        ):
            plan.held.add(frame.producer_id)
            plan.deferred.append(call)
        elif (
            config is None
            or not len(frame)
            or not 0
            <= int(frame.batch.queues.min())
            <= int(frame.batch.queues.max())
            < config.queues
        ):
            plan.refuse(call.token, "unknown-topic", f"a queue of topic {call.topic}")
        elif config.kind not in (TopicKind.NORMAL, TopicKind.MIXED):
            plan.refuse(
                call.token,
                "wrong-kind",
                f"topic {call.topic} is of kind {config.kind.value}: send to it message by message",
            )
        elif int(frame.batch.sizes.max()) > self._entry_bytes_max:
            plan.refuse(
                call.token, "too-large", f"an entry of {int(frame.batch.sizes.max())} bytes"
            )
        else:
            plan.frames.append(call)
            plan.size += len(frame.batch.data)

    CALLS: ClassVar[Takers] = {OpenProducer: open, ResumeProducer: resume, ProduceFrame: accept}

    def judge(self, frame: Frame) -> Verdict:
        """The verdict on a frame that would be appended at the log's end."""
        number, standing = frame.producer_id, self._standing.get(frame.producer_id)
        wrong = self._mistaken(number, frame.epoch)
        if wrong is not None:
            return wrong
        known = self._at_end(number)
        assert known is not None, "it is not mistaken"
        end = known.next_sequence
        if frame.first_sequence == end:
            return Append()
        if frame.next_sequence > end:
            reason = "sequence-gap" if frame.first_sequence > end else "partial-frame"
            detail = (
                f"messages {frame.first_sequence} to {frame.next_sequence - 1} of producer"
                f" {number}, whose next one is {end}"
            )
            refused = Refused(reason, detail=detail, next_sequence=end)
            return IfLeading(refused) if standing is None else Later(standing.index, refused)
        return self._known(frame, standing)

    def _known(self, frame: Frame, standing: _Standing | None) -> Verdict:
        """The verdict on a frame whose messages are all in the log."""
        applied = self._producers.get(frame.producer_id)
        for first_sequence, answer in standing.frames if standing is not None else ():
            if (first_sequence, answer.count) == (frame.first_sequence, len(frame)):
                return Later(
                    answer.last_index, replace(answer, durability="durable", duplicate=True)
                )
        for stored in applied.frames if applied is not None else ():
            if (stored.first_sequence, stored.count) == (frame.first_sequence, len(frame)):
                return InLog(stored)
        if applied is not None and frame.next_sequence <= applied.next_sequence:
            return Now(FrameKnown(applied.next_sequence))
        assert standing is not None, "what is in the log is applied, or stands here"
        return Later(standing.index, FrameKnown(standing.next_sequence))

    def _mistaken(self, number: int, epoch: int) -> Later | IfLeading | Now | None:
        """Why this producer cannot continue in this epoch; None if it can."""
        if number in self._dropped:
            return Later(self._dropped[number], _unknown(number))
        known, applied = self._at_end(number), self._producers.get(number)
        if known is None or epoch > known.epoch:
            return IfLeading(_unknown(number))
        if epoch == known.epoch:
            return None
        stale = Refused(
            "stale-epoch",
            detail=f"producer {number} was opened again: its epoch is {known.epoch}, not {epoch}",
        )
        if applied is not None and epoch < applied.epoch:
            return Now(stale)
        return Later(self._standing[number].index, stale)

    def appended(self, frame: Frame, answer: FrameProduced) -> None:
        """The frame is in the log."""
        number = frame.producer_id
        before, known = self._standing.get(number), self._at_end(number)
        assert known is not None and known.next_sequence == frame.first_sequence, (
            frame.producer_id,
            frame.first_sequence,
            known,
        )
        frames = before.frames if before is not None else deque()
        frames.append((frame.first_sequence, answer))
        self._standing[number] = _Standing(
            name=known.name,
            epoch=known.epoch,
            next_sequence=frame.next_sequence,
            index=answer.last_index,
            frames=frames,
            owner=known.owner,
        )
        self._by_index.append((answer.last_index, number))
        self.unapplied_index = min(self.unapplied_index, answer.last_index)


def _unknown(number: int) -> Refused:
    return Refused(
        "unknown-producer",
        detail=f"producer {number} is not known here, or was silent for too long; open another one",
    )
