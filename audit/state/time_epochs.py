"""The key `time_epochs`: where a store time fell because an operator said so (docs/format.md §11,
Time epochs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.audit.state.part import Part, Path
from ledgermq.audit.state.reader import Entry

KEPT = 64


class TimeEpochs(Part):
    """[[index, position, store time], …] of the last records, oldest first; absent without any."""

    keys = ("time_epochs",)

    def __init__(self) -> None:
        self._begins: list[list[int]] = []
        self._touched: int | None = None

    def apply(self, entry: Entry) -> None:
        if entry.kind == "time-epoch":
            int(entry.fields["before"])
            self._begins = [*self._begins, [entry.index, entry.pos, entry.store_ms]][-KEPT:]
            self._touched = entry.index

    def values(self) -> dict[str, Any]:
        return {"time_epochs": self._begins or None}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        self._begins = [
            [int(number) for number in row] for row in snapshot.get("time_epochs") or ()
        ]

    def touched(self, path: Path) -> int | None:
        return self._touched
