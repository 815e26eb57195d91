"""Message ids of topics with a deduplication window: such a topic stores a message once, however
often its producer sends it.

This is replicated state: the recently stored ids, a pure function of the log (invariant I8).
`deduplication.py` decides what a leader does with a repeated message. An id is remembered under its
topic from the entry that stored the message on: for a delayed or half message under its real topic,
for a message of a lite topic under the parent topic. The visible copy of a waiting message does not
count as a second message. Only digests are kept; in practice two messages never share one.

From feature level 3 on the digest also covers what the message says and who sent it, because ids of
different senders collide in practice: official clients make them from the MAC address, the process
id, the second and a counter. It never covers the time of birth, which a repetition may set anew.
Digests of an id alone are of messages from before that level.

Memory is bounded (I11): a topic keeps ids for its window, in store time, and at most `TOPIC_MAX`;
all topics together keep at most `ALL_MAX`. Beyond that the oldest ids are forgotten early, first in
the topic with the most. A message with a forgotten id is no longer recognised as a duplicate. Both
limits are part of the format, so that every replica forgets the same ids.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from ledgermq.node.broker.part import Effects, StatePart
from ledgermq.node.broker.plan import Known
from ledgermq.proto.entries.layout import Buffer, Columns, split_record
from ledgermq.proto.entries.properties import (
    BORN_HOST,
    EXACT_KEYS,
    FIRE_MS,
    KEYS,
    MESSAGE_ID,
    REAL_TOPIC,
    parse,
)
from ledgermq.proto.entries.ranges import record_of
from ledgermq.proto.levels import CONTENT_LEVEL
from ledgermq.proto.names import TIMER_TOPIC, WAITING_TOPICS, parent_of
from ledgermq.proto.types import Range, TopicConfig

TOPIC_MAX = 131_072
ALL_MAX = 262_144
DIGEST_BYTES = 16
BODY_AT = 88
"""Where the body begins in a record (format §4)."""
_STORE_MS = slice(56, 64)
_QUEUE_BITS = 16
_MS_BITS = 48
_PACKED_BYTES = 24


class Ids(StatePart):
    """The ids of one broker group."""

    KEY = "ids"

    def __init__(self) -> None:
        self._of_topic: dict[str, OrderedDict[bytes, int]] = {}
        """Stored topic → digest → packed place, in log order."""
        self.count = 0
        self.forgotten_early = 0
        """How many ids this process forgot before their window ended. Not part of the state: it
        starts at 0 in every process."""

    def find(self, topic: str, key: bytes, message_id: str, since_ms: int) -> Known | None:
        """The place of the message with this key, or of one with this id from before
        `CONTENT_LEVEL`, if it was stored at `since_ms` or later."""
        known = self._of_topic.get(topic)
        if known is None:
            return None
        packed = known.get(key, known.get(digest(message_id)))
        if packed is None:
            return None
        place = _unpacked(packed)
        return place if place.store_ms >= since_ms else None

    def apply(self, topic: str, key: bytes, place: Known, window_ms: int) -> None:
        """Apply a message with this key."""
        known = self._of_topic.setdefault(topic, OrderedDict())
        while known and _unpacked(next(iter(known.values()))).store_ms < place.store_ms - window_ms:
            self._forget(known)
        if key in known:
            # The log has this message twice: it was stored before the topic had a window, or not by
            # a leader of this program.
            return
        known[key] = _packed(place)
        self.count += 1
        if len(known) > TOPIC_MAX:
            self._forget(known)
            self.forgotten_early += 1
        elif self.count > ALL_MAX:
            # Ties are broken by name, because the order of a dictionary depends on where a replica
            # started.
            self._forget(max(self._of_topic.items(), key=lambda item: (len(item[1]), item[0]))[1])
            self.forgotten_early += 1

    def _forget(self, known: OrderedDict[bytes, int]) -> None:
        known.popitem(last=False)
        self.count -= 1

    def apply_range(
        self,
        entries: Range,
        columns: Columns,
        windows: Collection[str],
        topics: Mapping[str, TopicConfig],
        level: int,
    ) -> None:
        """Apply the messages of a range; `windows` are the topics that have one, `level` is the
        group's."""
        for found in new_ids(entries, columns, windows, level):
            self.apply(found.topic, found.key, found.place, topics[found.topic].dedup_ms)

    def topic_ended(self, topic: str, effects: Effects) -> None:
        self.forget_topic(topic)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted, began a new incarnation, or has no window any more."""
        self.count -= len(self._of_topic.pop(topic, ()))

    def time_epoch_began(self, ms: int) -> None:
        """What was stored later than this counts as stored now, so that its window ends after its
        length."""
        mask = (1 << _MS_BITS) - 1
        for known in self._of_topic.values():
            for key, packed in known.items():
                if packed & mask > ms:
                    known[key] = packed & ~mask | ms

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11). The engine waits for it, so nothing is
        unpacked."""
        out = {}
        for topic, known in sorted(self._of_topic.items()):
            # No entry is ever moved to the end, so the plain dictionary has the same order;
            # iterating it takes a third of the time.
            places = b"".join(
                [packed.to_bytes(_PACKED_BYTES, "little") for packed in dict.values(known)]
            )
            digests: Iterable[bytes] = dict.keys(known)
            out[topic] = [b64encode(b"".join(digests)).decode(), b64encode(places).decode()]
        return out

    def restore(self, exported: Mapping[str, Any]) -> None:
        """Replace the state by what `export` returned."""
        self._of_topic = {}
        for topic, (digests, places) in exported.items():
            keys, packed = (
                _cut(b64decode(digests), DIGEST_BYTES),
                _cut(b64decode(places), _PACKED_BYTES),
            )
            rows = [
                (key, int.from_bytes(place, "little"))
                for key, place in zip(keys, packed, strict=True)
            ]
            self._of_topic[topic] = OrderedDict(rows)
        self.count = sum(map(len, self._of_topic.values()))


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def digest(message_id: str) -> bytes:
    """The digest of an id alone, `DIGEST_BYTES` long."""
    return blake2b(message_id.encode(), digest_size=DIGEST_BYTES).digest()


def key_of(level: int, topic: str, properties: Mapping[str, str], body: Buffer) -> bytes:
    """The digest under which a window of a group of this level keeps a message, `DIGEST_BYTES`
    long. `topic`: its real stored topic, of a message of a lite topic that one. `properties`: as
    stored; they contain an id."""
    if level < CONTENT_LEVEL:
        return digest(properties[MESSAGE_ID])
    hashed = blake2b(digest_size=DIGEST_BYTES, person=_CONTENT)
    for text in (topic, *(properties.get(name, "") for name in _COMPARED)):
        value = text.encode()
        hashed.update(len(value).to_bytes(4, "big"))
        hashed.update(value)
    hashed.update(body)
    return hashed.digest()


_COMPARED = (MESSAGE_ID, KEYS, EXACT_KEYS, BORN_HOST)
_CONTENT = b"LedgerMQ content"
"""Keeps these digests apart from those of ids alone."""


def _packed(place: Known) -> int:
    """Packs a place into one integer, which takes a third of a tuple's memory."""
    return (
        (place.offset << _QUEUE_BITS | place.queue) << _MS_BITS | place.fire_ms
    ) << _MS_BITS | place.store_ms


def _unpacked(packed: int) -> Known:
    rest = packed >> 2 * _MS_BITS
    times = packed & (1 << _MS_BITS) - 1, packed >> _MS_BITS & (1 << _MS_BITS) - 1
    return Known(times[0], rest & (1 << _QUEUE_BITS) - 1, rest >> _QUEUE_BITS, times[1])


# -- applying


@dataclass(frozen=True, slots=True)
class NewId:
    """A message that arrived in a topic with a window."""

    topic: str
    key: bytes
    place: Known


def new_ids(
    entries: Range, columns: Columns, windows: Collection[str], level: int
) -> Iterator[NewId]:
    """The messages to remember from a range, in order; `windows` are the topics that have one,
    `level` is the group's. Messages made from other entries are skipped: they were remembered with
    the original."""
    numbers = [
        number
        for number, topic in enumerate(columns.topics)
        if parent_of(topic) in windows or topic in WAITING_TOPICS
    ]
    wanted = np.flatnonzero(
        np.isin(columns.topic_of, numbers) & (columns.origins == 0) & (columns.flags == 0)
    )
    for at in wanted.tolist():
        topic, record = columns.topics[int(columns.topic_of[at])], record_of(entries, at)
        body_end, *_, properties_at = split_record(record)
        properties = parse(record[properties_at:])
        fire_ms = 0
        if topic in WAITING_TOPICS:
            fire_ms = int(properties.get(FIRE_MS, "0")) if topic == TIMER_TOPIC else 0
            topic = properties.get(REAL_TOPIC, "")
        if MESSAGE_ID in properties and parent_of(topic) in windows:
            store_ms = int.from_bytes(record[_STORE_MS], "big", signed=True)
            place = Known(
                store_ms, int(columns.queues[at]), int(columns.queue_offsets[at]), fire_ms
            )
            yield NewId(
                parent_of(topic), key_of(level, topic, properties, record[BODY_AT:body_end]), place
            )
