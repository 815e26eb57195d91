"""The interface of a part of the derived state for its driver (`derive`): it receives the log in
order and returns its values.

A part owns some keys of the snapshot. It receives the log through `messages` and `apply`, and
results of other parts through the hooks below. Parts do no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from ledgermq.audit.state.reader import Entry, Messages

Path = tuple[str, ...]
"""The place of a value inside the snapshot: keys, and indexes of lists as decimal text."""


class Part(Protocol):
    """One part of the state. A part inherits from this and overrides what it needs: the hooks do
    nothing by default."""

    keys: ClassVar[tuple[str, ...]]
    """The keys of the snapshot whose values it derives."""

    def messages(self, messages: Messages) -> None:
        """All entries of a stretch, in columns. Called before `apply` for the entries of interest
        among them; for a turning entry, which is a stretch by itself, after it."""
        return

    def apply(self, entry: Entry) -> None:
        """One entry of interest, in log order. A record that names something that does not exist
        changes nothing. A record with missing fields or wrong types may raise KeyError, TypeError
        or ValueError, which the driver reports."""
        return

    def topic_ended(self, topic: str, entry: Entry) -> None:
        """This `topic` record deletes the topic or starts another incarnation. Called before any
        part applies the record itself."""
        return

    def vanished(self, topics: Mapping[str, None], entry: Entry) -> None:
        """By this `trim` record these lite topics (stored names) lost their last message and
        vanish. Called after all parts applied it."""
        return

    def trimmed(self, entry: Entry) -> None:
        """This `trim` record raised the minimums of the queues. Called after `vanished`."""
        return

    def values(self) -> dict[str, Any]:
        """The values that the snapshot must have now under each of `keys`, in the form of
        `canonical`."""
        ...

    def canonical(self, key: str, stored: Any) -> Any:
        """A snapshot's value under one of `keys` (None: it has none) in a comparable form: dicts,
        lists and plain values, with packed columns unpacked. May raise KeyError, TypeError or
        ValueError for invalid data."""
        return stored

    def load(self, snapshot: Mapping[str, Any]) -> None:
        """Start from the state of an older snapshot instead of an empty one. Errors as for
        `canonical`."""
        ...

    def touched(self, path: Path) -> int | None:
        """Index of the last entry that touched the value at `path` (its first item is one of
        `keys`), if known."""
        return None
