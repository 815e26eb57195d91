"""The uncommitted state: entries that this leader has appended but not applied yet, as far as later
decisions depend on them.

The leader decides against the state as of the log's end, which is the applied state plus this one.
Planning a turn sets marks; `keep` makes them permanent once the batch is in the log, and `rollback`
undoes a plan that the log refused. A mark is removed when its entry is applied; all marks are
removed when leadership is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ledgermq.node.broker.queues import QueueKey
from ledgermq.proto.names import parent_of

RowKey = tuple[QueueKey, int]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Marks:
    """The marks of one log entry."""

    rows: list[RowKey] = field(default_factory=list)
    cursors: list[QueueKey] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


class UncommittedState:
    """Pending rows, cursors and configuration. Rows have at most one pending record; cursors and
    names keep the newest."""

    def __init__(self) -> None:
        self._rows: dict[RowKey, int] = {}
        self._acked: set[RowKey] = set()
        """Those of the rows whose entry acknowledges the current lease."""
        self._cursors: dict[QueueKey, tuple[int, int]] = {}
        self.names: dict[str, int] = {}
        """What configuration entries that are not applied yet are about; see `topic_name`,
        `group_name`."""
        self.by_index: deque[tuple[int, _Marks]] = deque()
        self._open: dict[int, _Marks] = {}
        self.undo: list[Callable[[], None]] = []
        """How to take back what the current plan has marked; empty if it has marked nothing."""

    def clear(self) -> None:
        """Leadership is lost: nothing is pending any more."""
        self._rows.clear()
        self._acked.clear()
        self._cursors.clear()
        self.names.clear()
        self.by_index.clear()
        self._open.clear()
        self.undo.clear()

    def __len__(self) -> int:
        return len(self._rows) + len(self._cursors) + len(self.names)

    def pending(self, key: QueueKey, offset: int) -> int | None:
        """Index of the unapplied entry about this row; None if there is none."""
        return self._rows.get((key, offset))

    def acking(self, key: QueueKey, offset: int) -> int | None:
        """Index of the unapplied entry that acknowledges the lease of this row; None if there is
        none."""
        return self._rows[key, offset] if (key, offset) in self._acked else None

    def cursor(self, key: QueueKey) -> int | None:
        """The cursor as of the log's end, if it differs from the applied one."""
        found = self._cursors.get(key)
        return None if found is None else found[0]

    def configuring(self, name: str) -> int | None:
        """Index of the unapplied configuration entry about this name (see `topic_name`,
        `group_name`); None if there is none."""
        return self.names.get(name)

    def _mark(self, index: int) -> _Marks:
        marks = self._open.get(index)
        if marks is None:
            marks = self._open[index] = _Marks()
        return marks

    def mark_row(self, index: int, key: QueueKey, offset: int) -> None:
        row = (key, offset)
        assert row not in self._rows, f"two pending records about {row}"
        self._rows[row] = index
        self._mark(index).rows.append(row)
        self.undo.append(lambda: put_back(self._rows, row, None))

    def mark_acked(self, index: int, key: QueueKey, offset: int) -> None:
        """The entry at `index` acknowledges the lease of this row."""
        row = (key, offset)
        assert row not in self._rows, f"two pending records about {row}"
        self._rows[row] = index
        self._acked.add(row)
        self._mark(index).rows.append(row)
        self.undo.append(lambda: self._forget_acked(row))

    def _forget_acked(self, row: RowKey) -> None:
        del self._rows[row]
        self._acked.discard(row)

    def mark_cursor(self, index: int, key: QueueKey, cursor: int) -> None:
        before = self._cursors.get(key)
        self._cursors[key] = (cursor, index)
        self._mark(index).cursors.append(key)
        self.undo.append(lambda: put_back(self._cursors, key, before))

    def mark_name(self, index: int, name: str) -> None:
        before = self.names.get(name)
        self.names[name] = index
        self._mark(index).names.append(name)
        self.undo.append(lambda: put_back(self.names, name, before))

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Register an undo step of other state that follows the plan."""
        self.undo.append(undo)

    def keep(self) -> None:
        """The planned entries are in the log."""
        self.by_index.extend(sorted(self._open.items(), key=lambda item: item[0]))
        self._open.clear()
        self.undo.clear()

    def rollback(self) -> None:
        """The log refused the plan."""
        while self.undo:
            self.undo.pop()()
        self._open.clear()

    def applied(self, index: int) -> None:
        """Every entry up to `index` is applied."""
        while self.by_index and self.by_index[0][0] <= index:
            at, marks = self.by_index.popleft()
            for row in marks.rows:
                del self._rows[row]
                self._acked.discard(row)
            for key in marks.cursors:
                if self._cursors.get(key, (0, -1))[1] == at:
                    del self._cursors[key]
            for name in marks.names:
                if self.names.get(name) == at:
                    del self.names[name]


RETAINED = "retained"
"""The name that marks a pending seal or trim; they are decided one at a time."""


def topic_name(stored: str) -> str:
    """The name that marks a topic's pending configuration. A lite topic has that of its parent
    topic."""
    return "topic:" + parent_of(stored)


def group_name(stored: str) -> str:
    """The name that marks a consumer group's pending configuration."""
    return "group:" + stored


def reset_name(key: QueueKey) -> str:
    """The name that marks a pending reset of one queue."""
    return f"reset-queue:{key[0]}:{key[1]}:{key[2]}"


def reset_pair_name(group: str, topic: str) -> str:
    """The name that marks a pending reset of any queue of a topic."""
    return f"reset:{group}:{topic}"


def letters_name(topic: str) -> str:
    """The name that marks a pending settlement of dead letters of a dead-letter topic."""
    return "letters:" + topic


def put_back(into: dict[K, V], key: K, before: V | None) -> None:
    """Give a key its former value back; None removes it."""
    if before is None:
        into.pop(key, None)
    else:
        into[key] = before
