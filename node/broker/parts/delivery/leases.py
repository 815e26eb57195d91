"""The clock of leases: decides which messages in flight are visible again. Derived on the leader
only; never replicated, never stored.

A lease starts when its record is applied here or when this node starts to lead, whichever is later,
on the monotonic clock. A lease with a duration ends that much later. A lease without one
(auto-renewal) ends when its client has shown no sign of life for the liveness limit, counted from
the start of the lease at the earliest, which gives clients time after a change of leaders; one
second after the client has terminated; and at the cap in any case. The end of a lease only makes
its message *ready*: nothing is written, and the message stays ready, whatever its client does,
until a record about it is applied.

Time is kept per *batch*: leases that started in the same turn and end together, because they have
the same duration or the same client. A message in flight costs the clock a place in a batch, not a
deadline of its own.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from ledgermq.node.broker.calls.consumer_calls import client_of
from ledgermq.node.broker.parts.delivery.delivery import LEASE, TERMS, Delivery, QueueRows, Terms
from ledgermq.node.broker.parts.delivery.offset_table import Chunk, OffsetTable
from ledgermq.node.broker.queues import QueueKey, Touched

MS = 1_000_000
SECOND = 1_000_000_000
_SLACK_OF_HEAP = 1024
_ROWS_MAX = 4096
"""A batch with this many rows accepts no more, because removing a row from the middle moves all
rows behind it."""
_NO_ROWS = OffsetTable("")
_BATCH = 2
"""The column with the number of a row's batch. The first column is its lease number."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The periods of delivery, in nanoseconds of the monotonic clock.

    `handover_ns` is added to every lease: it bounds the time that a committed lease needs to reach
    its consumer, so that the invisible time which the consumer sees is never shorter than it
    requested. Leases start on a grid of half of this time, so that more of them share a batch.
    """

    liveness_ns: int = 65 * SECOND
    cap_ns: int = 3 * 3600 * SECOND
    gone_ns: int = SECOND
    handover_ns: int = 20 * MS


@dataclass(slots=True)
class _Batch:
    number: int
    base_ns: int
    client: str
    """Of auto-renewed leases."""
    end_ns: int | None
    """None while the leases are auto-renewed."""
    rows: dict[QueueKey, array[int]] = field(default_factory=dict)
    """Offsets, ascending."""
    count: int = 0
    ready: bool = False


@dataclass(slots=True)
class _Client:
    seen_ns: int = 0
    batches: dict[int, _Batch] = field(default_factory=dict)
    """The batches of its auto-renewed leases. A client without any is forgotten."""


class LeaseClock:
    """Deadlines of all rows of a `Delivery`, on the leader. `lead` starts it, `touched` follows
    applied records."""

    def __init__(self, delivery: Delivery, times: LeaseTimes) -> None:
        self._delivery = delivery
        self._times = times
        self._rows: dict[QueueKey, OffsetTable] = {}
        self._batches: dict[int, _Batch] = {}
        self._begun = 0
        self._clients: dict[str, _Client] = {}
        self.ends: list[tuple[int, int]] = []
        """(deadline when last computed, batch)"""
        self._ready: dict[QueueKey, dict[int, _Batch]] = {}
        self._open: dict[int | str, _Batch] = {}
        """Batches that leases starting at `_open_ns` may join: by duration, or by the client that
        renews them."""
        self._open_ns = -1
        self.ready_count = 0
        """How many messages in flight are visible again."""

    def lead(self, now_ns: int) -> None:
        """Start over: all existing leases start at `now_ns`."""
        self.resign()
        for key, queue in self._delivery.queues.items():
            if len(queue.rows):
                self._lead_queue(now_ns, key, queue)

    def _lead_queue(self, now_ns: int, key: QueueKey, queue: QueueRows) -> None:
        columns = queue.rows.columns()
        offsets, leases, terms = columns[0], columns[LEASE], columns[TERMS]
        batches = np.empty(len(offsets), np.int64)
        for number in np.unique(terms).tolist():
            places = np.flatnonzero(terms == number)
            for part in (places[i : i + _ROWS_MAX] for i in range(0, len(places), _ROWS_MAX)):
                batch = self._begin(now_ns, self._delivery.terms[number])
                batch.rows[key] = array("q", offsets[part].tobytes())
                batch.count = len(part)
                batches[part] = batch.number
        table = self._rows[key] = OffsetTable("qq")
        table.load(offsets, leases, batches)

    def resign(self) -> None:
        """Forget everything; a follower keeps no lease clock."""
        for part in (self._rows, self._batches, self._clients, self.ends, self._ready, self._open):
            part.clear()
        self.ready_count = 0

    def touched(self, now_ns: int, touched: Touched) -> None:
        """Records about these offsets were applied: their leases are new, or have ended."""
        for key, offsets in touched:
            queue = self._delivery.queues.get(key)
            rows = _NO_ROWS if queue is None else queue.rows
            if not (offsets and self._started_together(now_ns, key, rows, offsets)):
                for offset in offsets:
                    self._touched(now_ns, key, offset, rows.find(offset))

    def _started_together(
        self, now_ns: int, key: QueueKey, rows: OffsetTable, offsets: Sequence[int]
    ) -> bool:
        """Start the lease that one record gave to several new messages, nearly every lease. Returns
        False, without effect, for any other offsets; `_touched` with each of them would have the
        same effect."""
        table = self._rows.get(key)
        if not (_NO_ROWS if table is None else table).takes_behind(offsets):
            return False
        found = rows.find_run(offsets)
        if found is None:
            return False
        chunk, at = found
        lease, number, end = chunk[LEASE][at], chunk[TERMS][at], at + len(offsets)
        if chunk[LEASE][at:end].count(lease) < len(offsets) or chunk[TERMS][at:end].count(
            number
        ) < len(offsets):
            return False
        self._start(now_ns, key, offsets, lease, self._delivery.terms[number])
        return True

    def _touched(
        self, now_ns: int, key: QueueKey, offset: int, row: tuple[Chunk, int] | None
    ) -> None:
        table = self._rows.get(key)
        found = None if table is None else table.find(offset)
        if table is not None and found is not None:
            chunk, at = found
            _, leases, batches = chunk
            if row is not None and row[0][LEASE][row[1]] == leases[at]:
                return
            self._leave(key, offset, self._batches[batches[at]])
            table.remove(offset, chunk, at)
            if not len(table):
                del self._rows[key]
        if row is not None:
            chunk, at = row
            self._start(
                now_ns, key, (offset,), chunk[LEASE][at], self._delivery.terms[chunk[TERMS][at]]
            )

    def _start(
        self, now_ns: int, key: QueueKey, offsets: Sequence[int], lease: int, terms: Terms
    ) -> None:
        """Start one lease of messages that have none here; the offsets ascend."""
        base = self._base(now_ns)
        if self._open_ns != base:
            self._open.clear()
            self._open_ns = base
        share = terms.client if terms.duration_ms is None else terms.duration_ms
        batch = self._open.get(share)
        if batch is None or batch.count >= _ROWS_MAX or batch.number not in self._batches:
            batch = self._open[share] = self._begin(now_ns, terms)
        mine = batch.rows.get(key)
        if mine is None:
            batch.rows[key] = array("q", offsets)
        elif mine[-1] < offsets[0]:
            mine.extend(offsets)
        else:
            for offset in offsets:
                insort(mine, offset)
        batch.count += len(offsets)
        table = self._rows.get(key)
        if table is None:
            table = self._rows[key] = OffsetTable("qq")
        if table.takes_behind(offsets):
            table.extend(offsets, [lease] * len(offsets), [batch.number] * len(offsets))
        else:
            for offset in offsets:
                table.put(offset, lease, batch.number)

    def _base(self, now_ns: int) -> int:
        """The start, on the grid, of a lease that begins now."""
        grid = max(1, self._times.handover_ns // 2)
        return -(-(now_ns + self._times.handover_ns) // grid) * grid

    def _begin(self, now_ns: int, terms: Terms) -> _Batch:
        base, duration_ms = self._base(now_ns), terms.duration_ms
        end = (
            None
            if duration_ms is None
            else (now_ns if duration_ms == 0 else base + duration_ms * MS)
        )
        self._begun += 1
        batch = self._batches[self._begun] = _Batch(self._begun, base, terms.client, end)
        if end is None:
            self._clients.setdefault(terms.client, _Client()).batches[batch.number] = batch
        self._push(self._deadline(batch), batch.number)
        return batch

    def _leave(self, key: QueueKey, offset: int, batch: _Batch) -> None:
        """Remove a row from its batch."""
        offsets = batch.rows[key]
        del offsets[bisect_left(offsets, offset)]
        batch.count -= 1
        self.ready_count -= int(batch.ready)
        if not offsets:
            del batch.rows[key]
            if batch.ready:
                ready = self._ready[key]
                del ready[batch.number]
                if not ready:
                    del self._ready[key]
        if not batch.count:
            del self._batches[batch.number]
            self._detach(batch)

    def _detach(self, batch: _Batch) -> None:
        client = self._clients.get(batch.client)
        if client is not None:
            client.batches.pop(batch.number, None)
            if not client.batches:
                del self._clients[batch.client]

    def _deadline(self, batch: _Batch) -> int:
        if batch.end_ns is not None:
            return batch.end_ns
        client = self._clients.get(batch.client)
        seen = 0 if client is None else client.seen_ns
        return min(
            batch.base_ns + self._times.cap_ns, max(batch.base_ns, seen) + self._times.liveness_ns
        )

    def _push(self, deadline_ns: int, number: int) -> None:
        heappush(self.ends, (deadline_ns, number))
        if len(self.ends) > 2 * len(self._batches) + _SLACK_OF_HEAP:
            # Most items belong to leases that ended early. The heap must not grow with the number
            # of acknowledged messages.
            self.ends = [
                (self._deadline(batch), batch.number)
                for batch in self._batches.values()
                if not batch.ready
            ]
            heapify(self.ends)

    def alive(self, clients: Iterable[str], at_ns: int) -> None:
        """Record signs of life of these clients."""
        for name in clients:
            client = self._clients.get(name)
            if client is not None:
                client.seen_ns = max(client.seen_ns, at_ns)

    def gone(self, client_id: str, at_ns: int) -> None:
        """The client has terminated: its auto-renewed leases end one second later, even if a client
        with the same name comes back."""
        self._open.clear()
        for session, client in list(self._clients.items()):
            if client_of(session) == client_id:
                for batch in list(client.batches.values()):
                    batch.end_ns = min(self._deadline(batch), at_ns + self._times.gone_ns)
                    self._detach(batch)
                    self._push(batch.end_ns, batch.number)

    def expire(self, now_ns: int) -> dict[tuple[str, str], None]:
        """Make the messages of ended leases ready. Returns the (group, topic) pairs that have newly
        visible messages."""
        found: dict[tuple[str, str], None] = {}
        while self.ends and self.ends[0][0] <= now_ns:
            _, number = heappop(self.ends)
            batch = self._batches.get(number)
            if batch is None or batch.ready:
                continue
            deadline = self._deadline(batch)
            if deadline > now_ns:
                heappush(self.ends, (deadline, number))
                continue
            batch.end_ns, batch.ready = deadline, True
            self._detach(batch)
            self._open.clear()
            self.ready_count += batch.count
            for key in batch.rows:
                self._ready.setdefault(key, {})[number] = batch
                found[key[0], key[1]] = None
        return found

    def expired(self, now_ns: int, key: QueueKey, offset: int) -> bool:
        """Whether the lease of this row has ended by this leader's clock."""
        table = self._rows.get(key)
        found = None if table is None else table.find(offset)
        return found is None or self._deadline(self._batches[found[0][_BATCH][found[1]]]) <= now_ns

    def visible(self, key: QueueKey) -> tuple[int, int | None]:
        """How many messages of a queue are visible again, and the lowest offset of them."""
        batches = self._ready.get(key, {}).values()
        return sum([len(batch.rows[key]) for batch in batches]), min(
            [batch.rows[key][0] for batch in batches], default=None
        )

    def ready(self, key: QueueKey) -> Iterator[int]:
        """Offsets that are visible again, longest ready first. Records must not be applied during
        the iteration."""
        for batch in self._ready.get(key, {}).values():
            yield from batch.rows[key]
