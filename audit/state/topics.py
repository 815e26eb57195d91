"""Current topics, and what every other part needs to know about queues: their number, and where
they begin and end in this incarnation.

`queues.py` holds the queues themselves. A topic that is created again begins where its queues
ended. A lite topic does not record an offset for each incarnation, but the position of the topic
record in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.queues import Queues
from ledgermq.audit.state.reader import LITE, Entry, parent_of, stored_name

NAMED = ("ns", "name", "kind", "queues", "perm", "incarnation")


class Topics(Part):
    """The key `topics`."""

    keys = ("topics",)

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._topics: dict[str, dict[str, Any]] = {}
        self._touched: dict[str, int] = {}

    # What other parts ask

    def queues_of(self, topic: str) -> int:
        """The number of queues of a topic here; 0: it does not exist now. A lite topic has one
        queue while its parent topic exists."""
        known = self._topics.get(parent_of(topic))
        if known is None or LITE not in topic:
            return 0 if known is None else int(known["queues"])
        return int(known["kind"] == "lite")

    def begin(self, topic: str, queue: int) -> int:
        """The first queue offset of the topic's current incarnation that was not trimmed. A lite
        topic without a queue begins where its parent topic remembers."""
        if LITE in topic:
            return self._queues.lite_begin(topic)
        return max(self._incarnation(topic, queue), self._queues.minimum(topic, queue))

    def first_place(self, topic: str, queue: int) -> int:
        """Where a group without a place in the queue begins, and below which no group has one:
        where the queue begins or, if the object store has what was trimmed last, where the topic's
        incarnation does."""
        return (
            self._incarnation(topic, queue)
            if self._queues.stored and LITE not in topic
            else self.begin(topic, queue)
        )

    def _incarnation(self, topic: str, queue: int) -> int:
        begins = self._topics[topic]["begins"] if topic in self._topics else []
        return int(begins[queue]) if queue < len(begins) else 0

    def end(self, topic: str, queue: int) -> int:
        """One past the last queue offset; for a lite topic without a queue, where it begins."""
        return self._queues.end(topic, queue)

    def window_ms(self, topic: str) -> int:
        """The deduplication window of a topic; 0: it has none, or does not exist now."""
        known = self._topics.get(topic)
        return 0 if known is None else int(known.get("dedup_ms", 0))

    @property
    def windows(self) -> frozenset[str]:
        """The topics that have a deduplication window."""
        return frozenset(topic for topic, known in self._topics.items() if known.get("dedup_ms"))

    @staticmethod
    def stored_of(entry: Entry) -> str:
        """The stored name of the topic of a `topic` record."""
        return stored_name(entry.fields["ns"], entry.fields["name"])

    def ends(self, entry: Entry) -> str | None:
        """The stored topic whose incarnation this `topic` record ends, by deleting or recreating
        it. None: its incarnation continues."""
        stored = self.stored_of(entry)
        known = self._topics.get(stored)
        same = known is not None and known["incarnation"] == entry.fields["incarnation"]
        return None if same and not entry.fields["deleted"] else stored

    # The part

    def apply(self, entry: Entry) -> None:
        if entry.kind != "topic":
            return
        fields = entry.fields
        stored = self.stored_of(entry)
        ends = self.ends(entry) is not None
        self._touched[stored] = entry.index
        if fields["deleted"]:
            self._topics.pop(stored, None)
            return
        begins: list[int] = []
        begin_pos = 0
        if not ends:
            begins, begin_pos = (
                self._topics[stored]["begins"],
                self._topics[stored].get("begin_pos", 0),
            )
        elif self._queues.lite_topics(stored):
            begin_pos = entry.pos
        # A topic that gets fewer queues keeps the begins of the others; new queues begin at their
        # current end.
        begins += [
            self._queues.end(stored, queue) for queue in range(len(begins), fields["queues"])
        ]
        known = {name: fields[name] for name in NAMED} | {
            "begins": begins,
            "durability": fields.get("durability", ""),
        }
        known |= {"dedup_ms": fields["dedup_ms"]} if fields.get("dedup_ms") else {}
        self._topics[stored] = known | ({"begin_pos": begin_pos} if begin_pos else {})

    def values(self) -> dict[str, Any]:
        return {"topics": self._topics}

    def canonical(self, key: str, stored: Any) -> Any:
        return {topic: {"durability": "", **fields} for topic, fields in (stored or {}).items()}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._topics = {
            topic: {**fields, "begins": list(fields["begins"])}
            for topic, fields in snapshot["topics"].items()
        }

    def touched(self, path: Path) -> int | None:
        return self._touched.get(path[1]) if len(path) > 1 else None
