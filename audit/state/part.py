"""What every part of the derived state looks like to the one who drives them (`derive`): fed with the log in order, asked for its values.

A part owns some keys of the snapshot. It learns of the log by `messages` and `apply`, and of what other parts found out by the hooks below
them. Parts do no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from ledgermq.audit.state.reader import Entry, Messages

Path = tuple[str, ...]
"""The place of a value inside the snapshot: keys, places in lists as decimal text."""


class Part(Protocol):
    """One part of the state. A part inherits from this and overrides what concerns it: a hook does nothing by itself."""

    keys: ClassVar[tuple[str, ...]]
    """The keys of the snapshot whose values it derives."""

    def messages(self, messages: Messages) -> None:
        """All entries of a stretch, in columns. Called before `apply` for the entries of interest among them; of an entry that stands alone
        because it is turning, after it."""
        return

    def apply(self, entry: Entry) -> None:
        """One entry of interest, in log order. Whatever a record names that does not exist changes nothing. A record with fields missing or
        of another type may raise KeyError, TypeError or ValueError: the driver says so."""
        return

    def topic_ended(self, topic: str, entry: Entry) -> None:
        """By this `topic` record the topic is deleted or another incarnation begins: before any part applies the record itself."""
        return

    def vanished(self, topics: Mapping[str, None], entry: Entry) -> None:
        """By this `trim` record these lite topics (stored names) have no message left and are there no more: after all applied it."""
        return

    def trimmed(self, entry: Entry) -> None:
        """By this `trim` record the minimums of the queues were raised: after `vanished`."""
        return

    def values(self) -> dict[str, Any]:
        """What the snapshot must hold now under each of `keys`, in the form of `canonical`."""
        ...

    def canonical(self, key: str, stored: Any) -> Any:
        """The value that a snapshot has under one of `keys` (None: it has none) in a form that can be compared: dicts, lists and plain
        values, packed columns taken apart. May raise KeyError, TypeError or ValueError for what nobody can read."""
        return stored

    def load(self, snapshot: Mapping[str, Any]) -> None:
        """Begin with the state of an older snapshot instead of with nothing. Errors as `canonical`."""
        ...

    def touched(self, path: Path) -> int | None:
        """Index of the last entry that touched the value at `path` (its first item is one of `keys`), where known."""
        return None
