"""Settled dead letters, derived again: which were resent to their consumer group, and which purged
(docs/format.md §11, Dead letters).

`delivery` is told of each message whose dead letter is resent: its group gets it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

from ledgermq.audit.state.delivery import Delivery
from ledgermq.audit.state.packed import ROWS_MAX
from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.ports import Begins
from ledgermq.audit.state.reader import Entry

SETTLEMENTS = ("resent", "purged")
QUEUE = 0
"""The queue of a dead-letter topic."""


class Letters(Part):
    """The key `letters`."""

    keys: ClassVar[tuple[str, ...]] = ("letters",)

    def __init__(self, begins: Begins, delivery: Delivery) -> None:
        self._begins = begins
        self._delivery = delivery
        self._settled: dict[str, dict[int, str]] = {}
        """Stored dead-letter topic → offset → how."""
        self._touched: dict[str, int] = {}

    def apply(self, entry: Entry) -> None:
        if entry.kind != "letters":
            return
        topic, how, offsets = entry.fields["t"], entry.fields["h"], entry.fields["o"]
        places = entry.fields.get("p", [])
        if how not in SETTLEMENTS or len(places) != (len(offsets) if how == "resent" else 0):
            raise ValueError(
                f"settles {len(offsets)} dead letters as {how!r} with {len(places)} places"
            )
        begin = self._begins.begin(topic, QUEUE)
        for at, offset in enumerate(offsets):
            known = self._settled.setdefault(topic, {})
            if offset < begin or offset in known:
                continue
            known[offset] = how
            self._touched[topic] = entry.index
            if places:
                group, of, queue, original = places[at]
                self._delivery.resent((group, of, queue), original, entry.index)

    def topic_ended(self, topic: str, entry: Entry) -> None:
        self._settled.pop(topic, None)

    def trimmed(self, entry: Entry) -> None:
        for topic, known in self._settled.items():
            begin = self._begins.begin(topic, QUEUE)
            for offset in [offset for offset in known if offset < begin]:
                del known[offset]

    def values(self) -> dict[str, Any]:
        return {
            "letters": {topic: _ranges(known) for topic, known in self._settled.items() if known}
        }

    def canonical(self, key: str, stored: Any) -> Any:
        return stored or {}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        for topic, ranges in (snapshot.get("letters") or {}).items():
            if sum(end - first for first, end, _ in ranges) > ROWS_MAX:
                raise ValueError(f"{topic} claims more settled dead letters than any log holds")
            self._settled[topic] = {
                offset: how for first, end, how in ranges for offset in range(first, end)
            }

    def touched(self, path: Path) -> int | None:
        return self._touched.get(path[1]) if len(path) > 1 else None


def _ranges(known: Mapping[int, str]) -> list[list[Any]]:
    """Maximal ranges of neighbours with the same settlement: [first, end, how], ascending."""
    offsets = sorted(known)
    if not offsets:
        return []
    cuts = [
        0,
        *(
            at
            for at, (one, other) in enumerate(pairwise(offsets), 1)
            if other != one + 1 or known[other] != known[one]
        ),
    ]
    ends = [*cuts[1:], len(offsets)]
    return [
        [offsets[low], offsets[high - 1] + 1, known[offsets[low]]]
        for low, high in zip(cuts, ends, strict=True)
    ]
