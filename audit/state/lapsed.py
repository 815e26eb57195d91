"""Lapsed leases, derived again: those that ended other than by their acknowledgement
(docs/format.md §11, Lapsed leases).

For each offset the last one counts. The most recently lapsed leases are remembered, and `since` is
the number up to which others are forgotten. `delivery` reports when one lapses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ledgermq.audit.state.packed import table, unpack_all

LAPSED_MAX = 32_768
"""At most this many are remembered."""
_LETTERS = {"k": "i", "o": "q", "l": "q"}
_Place = tuple[str, str, int, int]
"""(stored group, stored topic, queue, offset)"""


class Lapsed:
    """The lapsed leases at the current entry."""

    def __init__(self) -> None:
        self._since = -1
        self._leases: OrderedDict[_Place, int] = OrderedDict()
        self._touched: dict[_Place, int] = {}

    def add(self, key: tuple[str, str, int], offset: int, lease: int, index: int) -> None:
        """The entry at `index` ended this lease without acknowledging it."""
        place = (*key, offset)
        if lease <= self._since:
            return
        self._leases.pop(place, None)
        self._leases[place] = lease
        self._touched[place] = index
        if len(self._leases) > LAPSED_MAX:
            forgotten, number = self._leases.popitem(last=False)
            self._touched.pop(forgotten, None)
            self._since = max(self._since, number)

    def value(self) -> dict[str, Any]:
        """In the form of `canonical`."""
        queues = list(dict.fromkeys(place[:3] for place in self._leases))
        rows = [[*place, lease] for place, lease in self._leases.items()]
        return {"since": self._since, "queues": [list(queue) for queue in queues], "rows": rows}

    @staticmethod
    def canonical(stored: Any) -> dict[str, Any]:
        """Raises KeyError, TypeError or ValueError for invalid data."""
        columns = table(stored, *_LETTERS, "since", "queues")
        if type(columns["since"]) is not int:
            raise ValueError("the lapsed leases have no `since`")
        rows: dict[_Place, int] = {}
        for at, offset, lease in zip(*unpack_all(columns, _LETTERS), strict=True):
            if not 0 <= at < len(columns["queues"]):
                raise ValueError(f"a lease of offset {offset} lapsed in a queue that is not there")
            group, topic, queue = columns["queues"][at]
            if (group, topic, queue, offset) in rows:
                raise ValueError(f"offset {offset} has two lapsed leases")
            rows[group, topic, queue, offset] = lease
        return {
            "since": columns["since"],
            "queues": columns["queues"],
            "rows": [[*place, lease] for place, lease in rows.items()],
        }

    def load(self, snapshot: Mapping[str, Any]) -> None:
        """Start from an older snapshot. Errors as for `canonical`."""
        canonical = self.canonical(snapshot["lapsed"])
        self._since = canonical["since"]
        self._leases = OrderedDict(
            ((group, topic, queue, offset), lease)
            for group, topic, queue, offset, lease in canonical["rows"]
        )

    def touched(self, at: int) -> int | None:
        """Index of the entry by which the lease at this place lapsed, if known."""
        places = list(self._leases)
        return self._touched.get(places[at]) if at < len(places) else None
