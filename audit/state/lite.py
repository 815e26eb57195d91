"""Sets of lite topics, derived again: which lite topics the clients of a consumer group read, and
where the group begins in them.

A `lite` record changes one client's set (docs/format.md §11). A lite topic that is new to a client
may need a place of the group; places are rows of `delivery`, which this part calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ledgermq.audit.state.delivery import Delivery
from ledgermq.audit.state.packed import table
from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.ports import Places
from ledgermq.audit.state.reader import LITE, Entry, stored_name

Key = tuple[str, str, str]
"""(stored group, stored topic of kind lite, client id)"""


@dataclass(slots=True)
class _Set:
    version: int = 0
    names: dict[str, None] = field(default_factory=dict)


class Lite(Part):
    """The sets that are not empty."""

    keys: ClassVar[tuple[str, ...]] = ("lite",)

    def __init__(self, places: Places, delivery: Delivery) -> None:
        self._places = places
        self._delivery = delivery
        self._sets: dict[Key, _Set] = {}
        self._readers: dict[tuple[str, str], int] = {}
        """(stored group, stored lite topic) → number of clients of the group that read it."""
        self._touched: dict[Key, int] = {}

    # What entries do

    def apply(self, entry: Entry) -> None:
        fields = entry.fields
        if entry.kind == "lite":
            self._change(entry.index, fields)
        elif entry.kind == "group":
            stored = stored_name(fields["ns"], fields["name"])
            bound = fields.get("lite_topic", "")
            keep = stored_name(fields["ns"], bound) if bound and not fields["deleted"] else ""
            self._forget(
                [key for key in self._sets if key[0] == stored and key[1] != keep], entry.index
            )

    def _change(self, index: int, fields: Mapping[str, Any]) -> None:
        group, topic = fields["g"], fields["t"]
        key = group, topic, fields["c"]
        begins = dict(fields["p"])
        before = self._sets.get(key) or _Set()
        added = dict.fromkeys(fields["a"])
        lost = (
            [name for name in before.names if name not in added]
            if fields["w"]
            else [n for n in fields["r"] if n in before.names]
        )
        new = [name for name in added if name not in before.names]
        names = {name: None for name in (*before.names, *new) if name not in lost}
        self._put(key, _Set(max(before.version, fields["n"]), names), index)
        for name in new:
            stored = f"{topic}{LITE}{name}"
            if name in begins:
                self._delivery.reset((group, stored, 0), begins[name], index)
            else:
                self._delivery.begin_at((group, stored, 0), self._places.end(stored, 0), index)
        for name in lost:
            stored = f"{topic}{LITE}{name}"
            if (group, stored) not in self._readers and self._places.first_place(
                stored, 0
            ) == self._places.end(stored, 0):
                self._delivery.leave((group, stored, 0), index)

    def _put(self, key: Key, wanted: _Set, index: int | None = None) -> None:
        """Set the client's set; an empty one is forgotten."""
        for step, known in ((-1, self._sets.pop(key, _Set())), (1, wanted)):
            for name in known.names:
                reader = key[0], f"{key[1]}{LITE}{name}"
                self._readers[reader] = self._readers.get(reader, 0) + step
                if not self._readers[reader]:
                    del self._readers[reader]
        if wanted.names:
            self._sets[key] = wanted
        if index is not None:
            self._touched[key] = index

    def _forget(self, keys: list[Key], index: int) -> None:
        for key in keys:
            self._put(key, _Set(), index)

    def topic_ended(self, topic: str, entry: Entry) -> None:
        self._forget([key for key in self._sets if key[1] == topic], entry.index)

    def vanished(self, topics: Mapping[str, None], entry: Entry) -> None:
        self._delivery.drop(topics, self._readers, entry.index)

    # The snapshot

    def values(self) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for group, topic, client in sorted(self._sets):
            known = self._sets[group, topic, client]
            tree.setdefault(group, {}).setdefault(topic, {})[client] = [
                known.version,
                sorted(known.names),
            ]
        return {"lite": tree}

    def canonical(self, key: str, stored: Any) -> Any:
        return {} if stored is None else stored

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._sets, self._readers = {}, {}
        for group, topics in table(snapshot.get("lite", {})).items():
            for topic, clients in table(topics).items():
                for client, (version, names) in table(clients).items():
                    self._put((group, topic, client), _Set(version, dict.fromkeys(names)))

    def touched(self, path: Path) -> int | None:
        return self._touched.get((path[1], path[2], path[3])) if len(path) > 3 else None
