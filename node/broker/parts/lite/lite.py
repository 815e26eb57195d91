"""The lite topics that the clients of a consumer group subscribe to: replicated state, a pure
function of the log (invariant I8).

A client has one set per (consumer group, topic of kind lite). Only `lite` records change it, and a
record is written only for a change, so the clients' periodic repetitions cost the log nothing, and
a new leader knows every set at once. The leader alone knows which clients are alive, which lite
topics have messages and who gets them (`lite_serving.py`).

Memory is bounded by the sets (I11): a client with an empty set is forgotten together with its
version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ledgermq.node.broker.part import Effects, StatePart, Takers
from ledgermq.node.broker.parts.ports import Positions
from ledgermq.node.broker.queues import LiteKey, Places
from ledgermq.proto.names import lite_stored, stored_name
from ledgermq.proto.records.control import LiteRecord
from ledgermq.proto.types import GroupConfig


@dataclass(slots=True)
class _Set:
    version: int = 0
    names: dict[str, None] = field(default_factory=dict)


class LiteSets(StatePart):
    """The sets of one broker group. They hold the names of lite topics without their parent
    topic."""

    KEY = "lite"

    def __init__(self, places: Places, delivery: Positions) -> None:
        self._places = places
        self._delivery = delivery
        self._sets: dict[LiteKey, _Set] = {}
        self._readers: dict[str, dict[tuple[str, str], None]] = {}
        """Stored lite topic → (consumer group, client id) of every client that reads from it."""
        self.count = 0
        """The number of names in all sets."""

    def all(self) -> list[LiteKey]:
        """The keys of all sets; none of them is empty."""
        return list(self._sets)

    def names(self, key: LiteKey) -> Iterable[str]:
        """The names in a client's set, without the parent topic."""
        known = self._sets.get(key)
        return () if known is None else known.names.keys()

    def size(self, key: LiteKey) -> int:
        known = self._sets.get(key)
        return 0 if known is None else len(known.names)

    def version(self, key: LiteKey) -> int:
        known = self._sets.get(key)
        return 0 if known is None else known.version

    def has(self, key: LiteKey, name: str) -> bool:
        known = self._sets.get(key)
        return known is not None and name in known.names

    def readers(self, stored: str) -> Iterable[tuple[str, str]]:
        """(consumer group, client id) of every client that reads from this stored lite topic."""
        return self._readers.get(stored, {}).keys()

    def read_by(self, group: str, stored: str) -> bool:
        """Whether a client of the group reads from this lite topic."""
        return any(reader == group for reader, _ in self.readers(stored))

    def take_record(self, index: int, record: LiteRecord, effects: Effects) -> None:
        """A group that is new to a lite topic begins at its end. A position in a lite topic without
        messages is forgotten once no client of the group reads from it. Idempotent, because a full
        disk may interrupt the range."""
        places, delivery = self._places, self._delivery
        new, gone = self.apply(record)
        positions = dict(record.positions)
        for name in new:
            topic = lite_stored(record.topic, name)
            if name in positions:
                effects.touched += delivery.apply_reset(
                    record.group, topic, ((0, positions[name]),)
                )
                # Other clients of the group may find messages again.
                effects.topics[topic] = None
            else:
                delivery.meet((record.group, topic, 0), places.end(topic, 0))
        for name in gone:
            topic = lite_stored(record.topic, name)
            if places.begin(topic, 0) == places.end(topic, 0) and not self.read_by(
                record.group, topic
            ):
                delivery.leave((record.group, topic, 0))
        effects.lite.append(((record.group, record.topic, record.client), new))

    RECORDS: ClassVar[Takers] = {LiteRecord: take_record}

    def topics_vanished(self, effects: Effects) -> None:
        """The positions in vanished lite topics vanish with them, except those of groups in which a
        client reads from them."""
        gone = set(effects.vanished)
        if gone:
            unread = [
                key
                for key in self._delivery.queues
                if key[1] in gone and not self.read_by(key[0], key[1])
            ]
            effects.touched += self._delivery.forget(unread)

    def apply(self, record: LiteRecord) -> tuple[list[str], list[str]]:
        """Apply a record. Returns the names that the client gained, and those that it lost."""
        key = (record.group, record.topic, record.client)
        known = self._sets.get(key)
        if known is None:
            known = self._sets[key] = _Set()
        wanted = dict.fromkeys(record.added)
        gone = (
            [name for name in known.names if name not in wanted]
            if record.whole
            else [n for n in record.removed if n in known.names]
        )
        new = [name for name in wanted if name not in known.names]
        for name in gone:
            self._leave(key, name)
        for name in new:
            known.names[name] = None
            self._readers.setdefault(lite_stored(record.topic, name), {})[
                record.group, record.client
            ] = None
        self.count += len(new)
        known.version = max(known.version, record.version)
        if not known.names:
            del self._sets[key]
        return new, gone

    def _leave(self, key: LiteKey, name: str) -> None:
        group, topic, client = key
        del self._sets[key].names[name]
        self.count -= 1
        stored = lite_stored(topic, name)
        readers = self._readers[stored]
        del readers[group, client]
        if not readers:
            del self._readers[stored]

    def topic_ended(self, topic: str, effects: Effects) -> None:
        self._forget([key for key in self._sets if key[1] == topic])

    def group_changed(self, group: str, config: GroupConfig | None, effects: Effects) -> None:
        """Only sets of the topic to which the group is bound stay."""
        keep = "" if config is None else stored_name(config.namespace, config.lite_topic)
        self._forget([key for key in self._sets if key[0] == group and key[1] != keep])

    def _forget(self, keys: list[LiteKey]) -> None:
        for key in keys:
            for name in list(self._sets[key].names):
                self._leave(key, name)
            del self._sets[key]

    def of_client(self, client: str) -> Iterator[LiteKey]:
        """The keys of a client's sets."""
        return (key for key in self._sets if key[2] == client)

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11): group → topic → client → [version, names]."""
        out: dict[str, Any] = {}
        for group, topic, client in sorted(self._sets):
            known = self._sets[group, topic, client]
            out.setdefault(group, {}).setdefault(topic, {})[client] = [
                known.version,
                sorted(known.names),
            ]
        return out

    def values(self) -> dict[str, Any]:
        return {**super().values(), "lite_floors": self._places.lite_floors()}

    def restore(self, exported: dict[str, Any]) -> None:
        """Replace the state by what `export` returned."""
        self._sets, self._readers, self.count = {}, {}, 0
        for group, topics in exported.items():
            for topic, clients in topics.items():
                for client, (version, names) in clients.items():
                    self.apply(
                        LiteRecord(
                            group=group,
                            topic=topic,
                            client=client,
                            version=version,
                            whole=True,
                            added=tuple(names),
                        )
                    )
