"""Delivery (POP) as a state machine fed by the log: what every replica of a broker group knows about leases.

Here lives the replicated half only: `apply_lease`, `apply_ack`, `apply_change`, `apply_reset` and `raise_cursors` are pure functions of
(state, record, index), the same on leader, follower and after a restart (invariant I8). No clock, no client that waits, no decision: what
is expired, who is next and what is still uncommitted belongs to the leader alone (`leases.py`, `plan.py`).

State per (consumer group, stored topic, queue): a cursor, the next queue offset never leased, and one row for every offset below it
that is not done. Memory is bounded by the messages in flight (I11): a message that is done, or not yet leased, has no row.

Transition table of one (group, topic, queue, offset). `n` is a lease number, `a` an attempt, `i` the index of the record's entry:

    record names the offset     new (>= cursor)        leased (n, a)               done (< cursor, no row)
    --------------------------  ---------------------  --------------------------  -----------------------
    lease `q` with attempt b    leased (i, b)          leased (i, b)               -
    lease `s`, passed over      done                   -                           -
    lease `x`, passed over      -                      done                        -
    ack of lease m              -                      done if m = n, else -       -
    change of lease m           -                      leased (i, a) if m = n      -
    reset to it or below        new                    new                         new
    reset to above it           done                   done                        done
    trim to above it            done                   done                        done

`-` changes nothing. A lease record moves the cursor behind the highest offset it names; offsets it jumps over are done. Expiry is no
row of this table: it is not an event. An expired lease stays leased until a lease record leases it again, an acknowledgement that was
accepted in time ends it, or a filter passes it over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

QueueKey = tuple[str, str, int]
"""(consumer group, stored topic, queue)"""
Touched = list[tuple[QueueKey, int]]
"""Rows a record may have changed, for whoever keeps something beside them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One message in flight. `duration_ms` None: the lease renews itself while its client is alive."""

    lease: int
    attempt: int
    client: str
    duration_ms: int | None


class QueueRows:
    """Delivery state of one (group, topic, queue)."""

    __slots__ = ("cursor", "rows")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.rows: dict[int, Row] = {}

    def __repr__(self) -> str:
        return f"QueueRows(cursor={self.cursor}, in_flight={len(self.rows)})"


class Delivery:
    """The delivery state of one broker group. `begin(topic, queue)` is the first offset of the topic's present incarnation."""

    def __init__(self, begin: Callable[[str, int], int]) -> None:
        self._begin = begin
        self.queues: dict[QueueKey, QueueRows] = {}
        self.in_flight = 0
        """How many messages have a row: leased and not done, expired ones included."""

    def cursor(self, key: QueueKey) -> int:
        """The next queue offset never leased; where a group starts that has not met the queue."""
        queue = self.queues.get(key)
        return self._begin(key[1], key[2]) if queue is None else queue.cursor

    def row(self, key: QueueKey, offset: int) -> Row | None:
        """The row of a message in flight; None if it is new or done."""
        queue = self.queues.get(key)
        return None if queue is None else queue.rows.get(offset)

    def _queue(self, key: QueueKey) -> QueueRows:
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = QueueRows(self._begin(key[1], key[2]))
        return queue

    def apply_lease(
        self,
        index: int,
        group: str,
        topic: str,
        client: str,
        duration_ms: int | None,
        leased: Iterable[tuple[int, Sequence[int], Sequence[int]]],
        passed: Iterable[tuple[int, int, int]],
        passed_again: Iterable[tuple[int, Sequence[int]]],
    ) -> Touched:
        """Apply a `lease` record: `leased`, `passed` and `passed_again` are its fields q, s and x (format §11)."""
        touched: Touched = []
        cursors: dict[QueueKey, int] = {}
        for queue_id, offsets, attempts in leased:
            key = (group, topic, queue_id)
            queue = self._queue(key)
            for offset, attempt in zip(offsets, attempts, strict=True):
                touched.append((key, offset))
                if offset not in queue.rows:
                    if offset < queue.cursor:
                        continue
                    self.in_flight += 1
                queue.rows[offset] = Row(index, attempt, client, duration_ms)
                if offset >= queue.cursor:
                    cursors[key] = max(cursors.get(key, 0), offset + 1)
        for queue_id, _, to in passed:
            key = (group, topic, queue_id)
            cursors[key] = max(cursors.get(key, 0), to)
        for queue_id, offsets in passed_again:
            key = (group, topic, queue_id)
            queue = self._queue(key)
            for offset in offsets:
                touched.append((key, offset))
                self.in_flight -= int(queue.rows.pop(offset, None) is not None)
        for key, cursor in cursors.items():
            queue = self._queue(key)
            queue.cursor = max(queue.cursor, cursor)
        return touched

    def apply_ack(self, acks: Iterable[tuple[str, str, int, Sequence[int], Sequence[int]]]) -> Touched:
        """Apply an `ack` record: (group, topic, queue, offsets, lease numbers) each."""
        touched: Touched = []
        for group, topic, queue_id, offsets, leases in acks:
            key = (group, topic, queue_id)
            queue = self.queues.get(key)
            for offset, lease in zip(offsets, leases, strict=True):
                touched.append((key, offset))
                if queue is None:
                    continue
                row = queue.rows.get(offset)
                if row is not None and row.lease == lease:
                    del queue.rows[offset]
                    self.in_flight -= 1
        return touched

    def apply_change(self, index: int, changes: Iterable[tuple[str, str, int, int, int, int, str]]) -> Touched:
        """Apply a `change` record: (group, topic, queue, offset, old lease, duration in ms, client) each."""
        touched: Touched = []
        for group, topic, queue_id, offset, lease, duration_ms, client in changes:
            key = (group, topic, queue_id)
            touched.append((key, offset))
            row = self.row(key, offset)
            if row is not None and row.lease == lease:
                self.queues[key].rows[offset] = Row(index, row.attempt, client, duration_ms)
        return touched

    def apply_reset(self, group: str, topic: str, queues: Iterable[tuple[int, int]]) -> Touched:
        """Apply a `reset` record: (queue, new cursor) each. Whatever is in flight there is forgotten, below the cursor and above."""
        touched: Touched = []
        for queue_id, cursor in queues:
            key = (group, topic, queue_id)
            queue = self._queue(key)
            touched += [(key, offset) for offset in queue.rows]
            self.in_flight -= len(queue.rows)
            queue.rows.clear()
            # Offsets that were trimmed are done for ever.
            queue.cursor = max(cursor, self._begin(topic, queue_id))
        return touched

    def raise_cursors(self) -> Touched:
        """Queues begin at higher offsets: what lies below is done for every group."""
        touched: Touched = []
        for key, queue in self.queues.items():
            begin = self._begin(key[1], key[2])
            gone = [offset for offset in queue.rows if offset < begin]
            for offset in gone:
                del queue.rows[offset]
                touched.append((key, offset))
            self.in_flight -= len(gone)
            queue.cursor = max(queue.cursor, begin)
        return touched

    def forget_group(self, group: str) -> Touched:
        """A consumer group was deleted: created again, it starts from the beginning."""
        return self._forget([key for key in self.queues if key[0] == group])

    def forget_topic(self, topic: str) -> Touched:
        """A topic was deleted or began a new incarnation: no group has read anything of it."""
        return self._forget([key for key in self.queues if key[1] == topic])

    def _forget(self, keys: list[QueueKey]) -> Touched:
        touched = [(key, offset) for key in keys for offset in self.queues.pop(key).rows]
        self.in_flight -= len(touched)
        return touched

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11): group → topic → queue → [cursor, [[offset, lease, attempt, client, duration], …]]."""
        out: dict[str, Any] = {}
        for key in sorted(self.queues):
            group, topic, queue_id = key
            queue = self.queues[key]
            rows = [[o, r.lease, r.attempt, r.client, r.duration_ms] for o, r in sorted(queue.rows.items())]
            out.setdefault(group, {}).setdefault(topic, {})[str(queue_id)] = [queue.cursor, rows]
        return out

    def restore(self, exported: dict[str, Any]) -> None:
        """Replace the state by what `export` returned."""
        self.queues = {}
        self.in_flight = 0
        for group, topics in exported.items():
            for topic, queues in topics.items():
                for queue_id, (cursor, rows) in queues.items():
                    queue = self.queues[(group, topic, int(queue_id))] = QueueRows(cursor)
                    for offset, lease, attempt, client, duration_ms in rows:
                        queue.rows[offset] = Row(lease, attempt, client, duration_ms)
                    self.in_flight += len(queue.rows)
