"""Messages of topics with a deduplication window: which of them a broker group still knows.

A message is recorded only if its topic has a window and it has an id, as a digest and a place.
Below feature level 3 the digest is that of the id. The number of known ids is limited, and the
format defines which are forgotten first, so that every replica forgets the same ones.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from ledgermq.audit.reading.columns import fire_time
from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.reader import (
    TIMER_TOPIC,
    WAITING_TOPICS,
    BadRecord,
    Entry,
    Messages,
    parent_of,
)
from ledgermq.audit.state.records import CONTENT_LEVEL, Level
from ledgermq.audit.state.topics import Topics

OF_TOPIC_MAX = 131_072
OF_ALL_MAX = 262_144
DIGEST_BYTES = 16
PLACE_BYTES = 24

Place = tuple[int, int, int, int]
"""Store time, fire time or 0, queue, offset."""


class Ids(Part):
    """The key `ids`. In canonical form: {stored topic: [[digest in hexadecimal, store time, fire
    time, queue, offset], …]}."""

    keys = ("ids",)

    def __init__(self, topics: Topics, level: Level) -> None:
        self._topics = topics
        self._level = level
        self._ids: dict[str, dict[bytes, Place]] = {}
        """Stored topic → digest → place, in log order."""
        self._count = 0
        self._touched: dict[str, int] = {}

    def messages(self, messages: Messages) -> None:
        windows = self._topics.windows
        if not windows:
            return
        numbers = [
            at
            for at, topic in enumerate(messages.topics)
            if topic in WAITING_TOPICS or parent_of(topic) in windows
        ]
        rows = np.flatnonzero(
            np.isin(messages.topic_of, numbers) & (messages.origin == 0) & (messages.flag == 0)
        )
        for row in rows.tolist():
            topic = messages.topics[int(messages.topic_of[row])]
            properties = messages.properties(row)
            fire_ms = fire_time(messages.raw_properties(row)) if topic == TIMER_TOPIC else 0
            if fire_ms < 0:
                raise BadRecord(
                    *messages.place(row), "is on the timer topic but has no delivery time"
                )
            real = properties.get("REAL_TOPIC", "") if topic in WAITING_TOPICS else topic
            of = parent_of(real)
            message_id = properties.get("UNIQ_KEY")
            if of not in windows or message_id is None:
                continue
            if self._level.now < CONTENT_LEVEL:
                digest = blake2b(message_id.encode(), digest_size=DIGEST_BYTES).digest()
            else:
                digest = content_digest(real, properties, messages.body(row))
            place = (
                int(messages.store_ms[row]),
                fire_ms,
                int(messages.queue[row]),
                int(messages.queue_offset[row]),
            )
            self._store(of, digest, place, int(messages.index[row]))

    def _store(self, topic: str, digest: bytes, place: Place, index: int) -> None:
        known = self._ids.setdefault(topic, {})
        begin_ms = place[0] - self._topics.window_ms(topic)
        while known and known[next(iter(known))][0] < begin_ms:
            self._forget_oldest(known)
        if digest in known:
            return
        known[digest] = place
        self._count += 1
        self._touched[topic] = index
        if len(known) > OF_TOPIC_MAX:
            self._forget_oldest(known)
        elif self._count > OF_ALL_MAX:
            self._forget_oldest(max(self._ids.items(), key=lambda item: (len(item[1]), item[0]))[1])

    def _forget_oldest(self, known: dict[bytes, Place]) -> None:
        del known[next(iter(known))]
        self._count -= 1

    def apply(self, entry: Entry) -> None:
        if entry.kind == "time-epoch":
            for known in self._ids.values():
                known.update(
                    {
                        digest: (entry.store_ms, *place[1:])
                        for digest, place in known.items()
                        if place[0] > entry.store_ms
                    }
                )
        elif entry.kind == "topic" and not entry.fields.get("dedup_ms"):
            self._forget(self._topics.stored_of(entry))

    def topic_ended(self, topic: str, entry: Entry) -> None:
        self._forget(topic)

    def _forget(self, topic: str) -> None:
        self._count -= len(self._ids.pop(topic, ()))

    def values(self) -> dict[str, Any]:
        return {
            "ids": {
                topic: [[digest.hex(), *place] for digest, place in known.items()]
                for topic, known in self._ids.items()
            }
        }

    def canonical(self, key: str, stored: Any) -> Any:
        return {
            topic: [[digest.hex(), *place] for digest, place in _unpack(*columns)]
            for topic, columns in (stored or {}).items()
        }

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._ids = {
            topic: dict(_unpack(*columns)) for topic, columns in (snapshot.get("ids") or {}).items()
        }
        self._count = sum(map(len, self._ids.values()))

    def touched(self, path: Path) -> int | None:
        return self._touched.get(path[1]) if len(path) > 1 else None


def content_digest(topic: str, properties: Mapping[str, str], body: bytes) -> bytes:
    """docs/format.md §11, `ids`: the digest from level 3 on."""
    values = [
        topic,
        *(properties.get(name, "") for name in ("UNIQ_KEY", "KEYS", "__LMQ.KEYS", "__BORNHOST")),
    ]
    parts = [len(value.encode()).to_bytes(4, "big") + value.encode() for value in values]
    return blake2b(
        b"".join(parts) + body, digest_size=DIGEST_BYTES, person=b"LedgerMQ content"
    ).digest()


def _unpack(digests: str, places: str) -> list[tuple[bytes, Place]]:
    """The rows of one topic. Raises ValueError if the columns do not fit each other."""
    keys, rows = b64decode(digests, validate=True), b64decode(places, validate=True)
    count = len(keys) // DIGEST_BYTES
    if len(keys) != count * DIGEST_BYTES or len(rows) != count * PLACE_BYTES:
        raise ValueError(f"{len(keys)} bytes of digests do not match {len(rows)} bytes of places")
    pairs = zip(_cut(keys, DIGEST_BYTES), _cut(rows, PLACE_BYTES), strict=True)
    return [(digest, _place(row)) for digest, row in pairs]


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _place(row: bytes) -> Place:
    number = int.from_bytes
    return (
        number(row[:6], "little"),
        number(row[6:12], "little"),
        number(row[12:14], "little"),
        number(row[14:], "little"),
    )
