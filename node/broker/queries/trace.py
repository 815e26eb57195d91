"""The history of one message according to the log: its events, found by scanning the entries behind
it.

Pure functions of bytes. A message may be in several entries: a half or delayed message waits under
another name before the visible copy. Each record about one of these entries is an event. There is
no second store, so events in trimmed files are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ledgermq.node.broker.calls.consumer_calls import client_of
from ledgermq.node.broker.parts.dead_letters.dead_letters import is_own
from ledgermq.node.broker.parts.timers.timers import slot_of
from ledgermq.node.broker.parts.transactions.transactions import HALF_QUEUE
from ledgermq.proto import units
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.entries.message_record import Record, decode_record
from ledgermq.proto.entries.properties import MESSAGE_ID, ORIGIN, parse
from ledgermq.proto.names import DELIVERY_TOPIC, DLQ_PREFIX, HALF_TOPIC, TIMER_TOPIC
from ledgermq.proto.records import control
from ledgermq.proto.types import Range

_HEADER = 48
NAMELESS = "(calls are not signed)"
"""The operator's name if there is none."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, recorded by the entry at `index`."""

    index: int
    store_ms: int
    kind: str
    detail: str = ""
    group: str | None = None
    attempt: int | None = None
    client: str | None = None
    duration_ms: int | None = None


@dataclass(slots=True)
class Subject:
    """The traced message. `places`: (stored topic, queue, offset) → entry index; grows during the
    scan."""

    topic: str
    message_id: str
    places: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def offsets(self, topic: str, queue: int) -> set[int]:
        return {offset for of, at, offset in self.places if (of, at) == (topic, queue)}


def events_of(entries: Range, subject: Subject) -> Iterator[Event]:
    """The events in a range of entries, in order."""
    columns = record_columns(entries)
    dead_letters = [
        topic for topic in columns.topics if topic.rpartition("@")[2].startswith(DLQ_PREFIX)
    ]
    names = {subject.topic, TIMER_TOPIC, HALF_TOPIC, DELIVERY_TOPIC, *dead_letters}
    numbers = [number for number, topic in enumerate(columns.topics) if topic in names]
    message_id = subject.message_id.encode()
    for at in np.flatnonzero(np.isin(columns.topic_of, numbers)).tolist():
        begin = int(entries.starts[at])
        data = entries.data[begin + _HEADER : begin + int(entries.sizes[at])]
        index = entries.first_index + at
        if columns.topics[int(columns.topic_of[at])] == DELIVERY_TOPIC:
            yield from _of_record(index, decode_record(data), subject)
        elif message_id in bytes(data):
            yield from _of_message(index, decode_record(data), subject)


def _of_message(index: int, record: Record, subject: Subject) -> Iterator[Event]:
    """A copy of the message: as it was sent, as it waits, or as it was delivered or
    dead-lettered."""
    properties = parse(record.properties)
    if properties.get(MESSAGE_ID) != subject.message_id:
        return
    kind, *fields = properties.get(ORIGIN, "").split(":")
    where = f"queue {record.queue}, offset {record.queue_offset}"
    if kind == "dlq":
        group, topic, queue, offset, _ = fields
        if (topic, int(queue), int(offset)) in subject.places:
            detail = f"after its last attempt, to {record.topic}, {where}"
            yield Event(index, record.store_ms, "dead-lettered", detail, group=group)
        return
    if record.topic not in (subject.topic, TIMER_TOPIC, HALF_TOPIC):
        return
    if record.topic in (TIMER_TOPIC, HALF_TOPIC) and properties.get("REAL_TOPIC") != subject.topic:
        return
    subject.places[record.topic, record.queue, record.queue_offset] = index
    if record.topic == HALF_TOPIC:
        yield Event(
            index,
            record.store_ms,
            "half",
            f"transaction {record.queue_offset} of this broker group, undecided",
        )
    elif record.topic == TIMER_TOPIC:
        yield Event(
            index,
            record.store_ms,
            "delayed",
            "waits for its delivery time" if not kind else "waits for its delivery time again",
        )
    elif kind == "tx":
        yield Event(index, record.store_ms, "committed", where)
    elif kind == "timer":
        yield Event(index, record.store_ms, "delivered-by-timer", where)
    else:
        yield Event(index, record.store_ms, "stored", where)


def _of_record(index: int, record: Record, subject: Subject) -> Iterator[Event]:
    """A control record about delivery, transactions or timers."""
    if not subject.places:
        return
    kind = parse(record.properties).get("TAGS", "")
    if (
        kind in ("lease", "ack", "change", "reset", "letters")
        and subject.topic.encode() not in record.body
    ):
        return
    found = control.decode(kind, record.body)
    yield from _said(index, record.store_ms, found, subject)


def _said(index: int, ms: int, found: control.ControlRecord, subject: Subject) -> Iterator[Event]:
    if isinstance(found, control.LeaseRecord):
        yield from _leased(index, ms, found, subject)
    elif isinstance(found, control.AckRecord):
        for group, topic, queue, offsets, _ in found.acks:
            if topic == subject.topic and subject.offsets(topic, queue) & set(offsets):
                yield Event(index, ms, "acknowledged", group=group)
    elif isinstance(found, control.ChangeRecord):
        for group, topic, queue, offset, _, duration_ms, client in found.changes:
            if topic == subject.topic and offset in subject.offsets(topic, queue):
                detail = (
                    "visible at once"
                    if duration_ms == 0
                    else f"visible again after {units.duration_words(duration_ms)}"
                )
                yield Event(
                    index,
                    ms,
                    "changed",
                    detail,
                    group,
                    client=client_of(client),
                    duration_ms=duration_ms,
                )
    elif isinstance(found, control.ResetRecord):
        for queue, cursor in found.queues:
            for offset in (
                subject.offsets(subject.topic, queue) if found.topic == subject.topic else ()
            ):
                detail = (
                    f"the group continues at offset {cursor}:"
                    f" {'skipped' if offset < cursor else 'to be delivered again'}"
                )
                yield Event(index, ms, "reset", detail, found.group)
    elif isinstance(found, control.LettersRecord):
        for group, topic, queue, offset in found.places:
            if topic == subject.topic and offset in subject.offsets(topic, queue):
                yield Event(
                    index, ms, "resent", f"from {found.topic} by {found.user or NAMELESS}", group
                )
    elif isinstance(found, control.TransactionRecord):
        halves = subject.offsets(HALF_TOPIC, HALF_QUEUE)
        for offset, how in found.ended:
            if offset in halves:
                detail = (
                    _ENDS.get(how, how)
                    if found.user is None
                    else f"by the operator {found.user or NAMELESS}"
                )
                yield Event(index, ms, "rolled-back" if how == "rollback" else "dropped", detail)
        for offset, number in found.checked:
            if offset in halves:
                yield Event(index, ms, "checked", f"check number {number} with a producer")
    elif (
        isinstance(found, control.RecallRecord)
        and (TIMER_TOPIC, slot_of(found.fire_ms), found.offset) in subject.places
    ):
        yield Event(
            index,
            ms,
            "recalled",
            (
                "by its producer"
                if found.user is None
                else f"by the operator {found.user or NAMELESS}"
            ),
        )


_ENDS: Mapping[str, str] = {
    "rollback": "the producer rolled it back",
    "checks": "no decision after the last check",
    "age": "no producer could be asked before the age limit",
    "topic": "its topic was deleted or recreated",
}


def _leased(index: int, ms: int, found: control.LeaseRecord, subject: Subject) -> Iterator[Event]:
    if found.topic != subject.topic:
        return
    for queue, offsets, attempts in found.leased:
        for offset in subject.offsets(found.topic, queue) & set(offsets):
            attempt = attempts[offsets.index(offset)]
            detail = (
                "while its client is alive"
                if found.duration_ms is None
                else f"for {units.duration_words(found.duration_ms)}"
            )
            yield Event(
                index=index,
                store_ms=ms,
                kind="leased",
                detail=detail,
                group=found.group,
                attempt=attempt,
                client=client_of(found.client),
                duration_ms=found.duration_ms,
            )
    for queue, begin, to in found.passed:
        if any(begin <= offset < to for offset in subject.offsets(found.topic, queue)):
            yield Event(
                index,
                ms,
                "passed-over",
                "it did not match the filter of a receive",
                found.group,
                client=client_of(found.client),
            )
    for queue, passed in found.passed_again:
        if subject.offsets(found.topic, queue) & set(passed):
            # A group passes its own dead letters over too when it gives them up.
            own = (
                "its group gave it up in its dead-letter topic, where it stays, or "
                if is_own(found.group, found.topic)
                else ""
            )
            yield Event(
                index,
                ms,
                "passed-over",
                f"{own}it did not match the filter of a later receive",
                found.group,
            )
    for queue, waiting in found.waiting:
        if subject.offsets(found.topic, queue) & set(waiting):
            yield Event(
                index, ms, "waiting", "for an earlier message of its message group", found.group
            )
