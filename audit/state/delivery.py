"""Delivery, derived again: the progress of every consumer group in every queue, and its leases
(docs/format.md §11, Delivery).

There is one cursor per (stored group, stored topic, queue), and one row for each offset below it
that is not done; besides these, the leases that ended other than by their acknowledgement
(`lapsed`). A table in the format defines what each record does to an offset; nothing is decided
here, and nothing expires. `lite` holds the lite topics that a client reads, and tells this part
where groups begin in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from ledgermq.audit.state.lapsed import Lapsed
from ledgermq.audit.state.packed import table, unpack_all
from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.ports import Places
from ledgermq.audit.state.reader import CONFIG_TOPIC, Entry, parent_of, stored_name

Key = tuple[str, str, int]
"""(stored group, stored topic, queue)"""
Row = list[Any]
"""Lease number, attempt, client, duration in ms or None, and the attempt id if there is one. Shared
by all equal rows: never changed, only replaced."""

WAITING: Row = [0, 0, "", 0]
"""The state of a message that an earlier one of its message group blocks."""
RESENT: Row = [0, "", 0]
"""A row behind its lease number, of a message whose dead letter was resent."""
_LETTERS = {"o": "q", "l": "q", "a": "i", "k": "i"}


@dataclass(slots=True)
class _Queue:
    cursor: int
    rows: dict[int, Row] = field(default_factory=dict)


class Delivery(Part):
    """Cursors and rows of all consumer groups."""

    keys: ClassVar[tuple[str, ...]] = ("delivery", "lapsed")

    def __init__(self, places: Places) -> None:
        self._places = places
        self._queues: dict[Key, _Queue] = {}
        self._lapsed = Lapsed()
        self._touched: dict[Key, int] = {}
        """Index of the last entry about a queue, also for a queue that is forgotten."""

    def __len__(self) -> int:
        return len(self._queues)

    # What entries do

    def apply(self, entry: Entry) -> None:
        fields = entry.fields
        if entry.kind == "lease":
            self._lease(entry.index, fields)
        elif entry.kind == "ack":
            for group, topic, queue, offsets, leases in fields["a"]:
                for offset, lease in zip(offsets, leases, strict=True):
                    self._done((group, topic, queue), offset, lease, entry.index, lapses=False)
        elif entry.kind == "change":
            for group, topic, queue, offset, lease, duration_ms, client in fields["a"]:
                key = (group, topic, queue)
                self._note(key, entry.index)
                row = self._row(key, offset)
                if row is not None and row[0] == lease:
                    self._lapse(key, offset, row, entry.index)
                    self._queues[key].rows[offset] = [entry.index, row[1], client, duration_ms]
        elif entry.kind == "reset":
            for queue, offset in fields["q"]:
                self.reset((fields["g"], fields["t"], queue), offset, entry.index)
        elif entry.kind == "group" and entry.topic == CONFIG_TOPIC and fields["deleted"]:
            group = stored_name(fields["ns"], fields["name"])
            self._forget(
                [key for key in self._queues if group in (key[0], parent_of(key[0]))], entry.index
            )
        elif entry.origin and entry.origin_text[0] == "dlq":
            _, group, topic, *numbers = entry.origin_text
            queue, offset, lease = map(int, numbers)
            self._done((group, topic, queue), offset, lease, entry.index, lapses=True)

    def _lease(self, index: int, fields: Mapping[str, Any]) -> None:
        group, topic = fields["g"], fields["t"]
        attempt_id = fields.get("i", "")
        terms = [fields["c"], fields["d"], *([attempt_id] if attempt_id else [])]
        cursors: dict[Key, int] = {}
        alike: dict[int, Row] = {}

        def passed(queue: int, offset: int) -> None:
            key = (group, topic, queue)
            cursors[key] = max(cursors.get(key, 0), offset + 1)

        for queue, offsets, attempts in fields["q"]:
            held = self._meet((group, topic, queue), index)
            for offset, attempt in zip(offsets, attempts, strict=True):
                if offset >= held.cursor:
                    passed(queue, offset)
                elif offset not in held.rows:
                    continue
                self._lapse((group, topic, queue), offset, held.rows.get(offset), index)
                held.rows[offset] = alike.setdefault(attempt, [index, attempt, *terms])
        for queue, offsets in fields.get("w", ()):
            held = self._meet((group, topic, queue), index)
            for offset in offsets:
                if offset >= held.cursor:
                    passed(queue, offset)
                    self._lapse((group, topic, queue), offset, held.rows.get(offset), index)
                    held.rows[offset] = WAITING
        for queue, _, to in fields["s"]:
            passed(queue, to - 1)
        for queue, offsets in fields["x"]:
            held = self._meet((group, topic, queue), index)
            for offset in offsets:
                self._lapse((group, topic, queue), offset, held.rows.pop(offset, None), index)
        for key, cursor in cursors.items():
            held = self._meet(key, index)
            held.cursor = max(held.cursor, cursor)

    def _done(self, key: Key, offset: int, lease: int, index: int, *, lapses: bool) -> None:
        """An acknowledgement, or a dead letter, by which the lease lapses: it counts if the lease
        is the row's current one."""
        self._note(key, index)
        row = self._row(key, offset)
        if row is not None and row[0] == lease:
            if lapses:
                self._lapse(key, offset, row, index)
            del self._queues[key].rows[offset]

    def _lapse(self, key: Key, offset: int, row: Row | None, index: int) -> None:
        # A waiting message has no lease.
        if row is not None and row[0]:
            self._lapsed.add(key, offset, row[0], index)

    def _lapse_all(self, key: Key, queue: _Queue, index: int) -> None:
        for offset in sorted(queue.rows):
            self._lapse(key, offset, queue.rows[offset], index)

    def reset(self, key: Key, offset: int, index: int) -> None:
        """The group continues at this offset, or at the lowest place if that is higher; all its
        leases there end."""
        queue = self._meet(key, index)
        self._lapse_all(key, queue, index)
        queue.rows.clear()
        queue.cursor = max(offset, self._places.first_place(key[1], key[2]))

    def resent(self, key: Key, offset: int, index: int) -> None:
        """The dead letter of this message was resent: if the message is done for the group, and the
        group may have a place there, it is leased to no one."""
        self._note(key, index)
        queue = self._queues.get(key)
        if (
            queue is not None
            and self._places.first_place(key[1], key[2]) <= offset < queue.cursor
            and offset not in queue.rows
        ):
            queue.rows[offset] = [index, *RESENT]

    def begin_at(self, key: Key, offset: int, index: int) -> None:
        """A group without a place in this queue gets one."""
        if key not in self._queues:
            self._queues[key] = _Queue(offset)
            self._note(key, index)

    def leave(self, key: Key, index: int) -> None:
        """Forget the place of a group that holds no lease in the queue."""
        if key in self._queues and not self._queues[key].rows:
            self._forget([key], index)

    def drop(self, topics: Iterable[str], kept: Iterable[tuple[str, str]], index: int) -> None:
        """Forget places in queues that no longer exist, except those of `kept` (stored group,
        stored topic)."""
        gone, stay = set(topics), set(kept)
        self._forget([key for key in self._queues if key[1] in gone and key[:2] not in stay], index)

    def topic_ended(self, topic: str, entry: Entry) -> None:
        self._forget([key for key in self._queues if parent_of(key[1]) == topic], entry.index)

    def trimmed(self, entry: Entry) -> None:
        for key, queue in sorted(self._queues.items(), key=lambda item: item[0]):
            begin = self._places.first_place(key[1], key[2])
            below = sorted(offset for offset in queue.rows if offset < begin)
            for offset in below:
                self._lapse(key, offset, queue.rows.pop(offset), entry.index)
            if below or queue.cursor < begin:
                queue.cursor = max(queue.cursor, begin)
                self._note(key, entry.index)

    def _meet(self, key: Key, index: int) -> _Queue:
        """The state of a queue that a record of its group names; a group without a place there
        begins where the queue does."""
        self._note(key, index)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(self._places.first_place(key[1], key[2]))
        return queue

    def _row(self, key: Key, offset: int) -> Row | None:
        queue = self._queues.get(key)
        return None if queue is None else queue.rows.get(offset)

    def _forget(self, keys: list[Key], index: int) -> None:
        for key in sorted(keys):
            self._lapse_all(key, self._queues.pop(key), index)
            self._note(key, index)

    def _note(self, key: Key, index: int) -> None:
        self._touched[key] = index

    # The snapshot

    def values(self) -> dict[str, Any]:
        return {"delivery": _as_tree(self._queues), "lapsed": self._lapsed.value()}

    def canonical(self, key: str, stored: Any) -> Any:
        if key == "lapsed":
            return self._lapsed.canonical(stored)
        rows = {} if stored is None else table(stored)
        return _as_tree(dict(_read_queues(rows)), _read_terms(rows))

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._queues = dict(_read_queues(table(snapshot["delivery"])))
        self._lapsed.load(snapshot)

    def touched(self, path: Path) -> int | None:
        if path[0] == "lapsed":
            return (
                self._lapsed.touched(int(path[2])) if len(path) > 2 and path[1] == "rows" else None
            )
        if len(path) < 4:
            return None
        key = (path[1], path[2], int(path[3]))
        row = self._row(key, int(path[5])) if len(path) > 5 and path[4] == "rows" else None
        # The lease number of a row is the index of the entry that made it; no later entry touched
        # it.
        return row[0] if row is not None and row[0] else self._touched.get(key)


def _as_tree(
    queues: Mapping[Key, _Queue], terms: Mapping[Key, list[Any]] | None = None
) -> dict[str, Any]:
    """Group → topic → queue → cursor, rows by offset, and terms in the order of ascending rows."""
    tree: dict[str, Any] = {}
    for key in sorted(queues):
        queue = queues[key]
        rows = {offset: queue.rows[offset] for offset in sorted(queue.rows)}
        met = terms[key] if terms is not None and key in terms else _terms_of(rows.values())
        value = {
            "cursor": queue.cursor,
            "rows": {str(offset): row for offset, row in rows.items()},
            "terms": met,
        }
        tree.setdefault(key[0], {}).setdefault(key[1], {})[str(key[2])] = value
    return tree


def _terms_of(rows: Iterable[Row]) -> list[Any]:
    met: dict[tuple[Any, ...], None] = {}
    for row in rows:
        met[tuple(row[2:])] = None
    return [list(terms) for terms in met]


def _tables(stored: Mapping[str, Any]) -> Iterable[tuple[Key, int, Any]]:
    """(place, cursor, rows) of every queue in a snapshot."""
    for group, topics in stored.items():
        for topic, queues in table(topics).items():
            for queue, (cursor, rows) in table(queues).items():
                if str(int(queue)) != queue:
                    raise ValueError(f"a queue is called {queue!r}")
                yield (group, topic, int(queue)), cursor, rows


def _read_queues(stored: Mapping[str, Any]) -> Iterable[tuple[Key, _Queue]]:
    """Raises KeyError, TypeError or ValueError for invalid data."""
    for key, cursor, rows in _tables(stored):
        if not isinstance(cursor, int):
            raise ValueError(f"the cursor of {'/'.join(map(str, key))} is no number")
        # Snapshots older than the column format have one list per row: the offset, then the row.
        pairs = (
            [(row[0], list(row[1:])) for row in rows]
            if isinstance(rows, list)
            else list(_read_rows(rows))
        )
        if any(after <= before for (before, _), (after, _) in pairwise(pairs)):
            raise ValueError(f"the rows of {'/'.join(map(str, key))} do not ascend")
        yield key, _Queue(cursor, dict(pairs))


def _read_rows(columns: Any) -> Iterable[tuple[int, Row]]:
    terms = table(columns, *_LETTERS, "terms")["terms"]
    alike: dict[tuple[int, int, int], Row] = {}
    for offset, lease, attempt, place in zip(*unpack_all(columns, _LETTERS), strict=True):
        if not 0 <= place < len(terms):
            raise ValueError(f"offset {offset} has terms that are not there")
        yield offset, alike.setdefault((lease, attempt, place), [lease, attempt, *terms[place]])


def _read_terms(stored: Mapping[str, Any]) -> dict[Key, list[Any]]:
    """The terms stored in the snapshot, for queues that have them beside their rows."""
    return {key: rows["terms"] for key, _, rows in _tables(stored) if isinstance(rows, dict)}
