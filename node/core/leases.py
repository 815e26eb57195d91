"""The clock of leases: which messages in flight are visible again. Leader-local and derived, never replicated, never stored.

A lease runs from max(its record was applied here, this node began to lead) on the monotonic clock. A lease with a duration ends
that much later. A lease without one (auto-renewal) ends when its client has shown no sign of life for the liveness limit, counted from
the same moment at the earliest (that is its grace after a change of leaders), one second after the client said goodbye, and in any case
at the cap. An ended lease only becomes *ready*: nothing is written, and it stays ready whatever its client does later, until a
record about it is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from ledgermq.node.core.calls import client_of
from ledgermq.node.core.delivery import Delivery, QueueKey, Row

MS = 1_000_000
SECOND = 1_000_000_000
_SLACK_OF_HEAP = 1024


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The periods of delivery, in nanoseconds of the monotonic clock.

    `handover_ns` is added to every lease: what a committed lease needs at most to reach its consumer, so that the invisible time
    which the consumer sees is never shorter than what it asked for.
    """

    liveness_ns: int = 65 * SECOND
    cap_ns: int = 3 * 3600 * SECOND
    gone_ns: int = SECOND
    handover_ns: int = 20 * MS


@dataclass(slots=True)
class _Timer:
    lease: int
    base_ns: int
    client: str
    end_ns: int | None
    """None while the lease renews itself."""


@dataclass(slots=True)
class _Client:
    seen_ns: int = 0
    rows: dict[tuple[QueueKey, int], None] = field(default_factory=dict)
    """Its auto-renewed leases; a client without one is forgotten."""


class LeaseClock:
    """Deadlines of all rows of a `Delivery`, on the leader. `lead` starts it, `touched` follows what is applied."""

    def __init__(self, delivery: Delivery, times: LeaseTimes) -> None:
        self._delivery = delivery
        self._times = times
        self._timers: dict[tuple[QueueKey, int], _Timer] = {}
        self._clients: dict[str, _Client] = {}
        self._heap: list[tuple[int, QueueKey, int, int]] = []
        self._ready: dict[QueueKey, dict[int, None]] = {}
        self.ready_count = 0
        """How many messages in flight are visible again."""

    def lead(self, now_ns: int) -> None:
        """Start over: every row known counts from `now_ns`."""
        self.resign()
        for key, queue in self._delivery.queues.items():
            for offset, row in queue.rows.items():
                self._start(now_ns, key, offset, row)

    def resign(self) -> None:
        """Forget everything; a follower has no clock of leases."""
        self._timers.clear()
        self._clients.clear()
        self._heap.clear()
        self._ready.clear()
        self.ready_count = 0

    def touched(self, now_ns: int, key: QueueKey, offset: int) -> None:
        """A record about this offset was applied: its lease is new, or gone."""
        row = self._delivery.row(key, offset)
        timer = self._timers.get((key, offset))
        if timer is not None:
            if row is not None and row.lease == timer.lease:
                return
            self._stop(key, offset, timer)
        if row is not None:
            self._start(now_ns, key, offset, row)

    def _start(self, now_ns: int, key: QueueKey, offset: int, row: Row) -> None:
        base = now_ns + self._times.handover_ns
        end = None if row.duration_ms is None else (now_ns if row.duration_ms == 0 else base + row.duration_ms * MS)
        timer = self._timers[key, offset] = _Timer(row.lease, base, row.client, end)
        if end is None:
            self._clients.setdefault(row.client, _Client()).rows[key, offset] = None
        self._push(self._deadline(timer), key, offset, row.lease)

    def _stop(self, key: QueueKey, offset: int, timer: _Timer) -> None:
        del self._timers[key, offset]
        self._detach(key, offset, timer)
        ready = self._ready.get(key)
        if ready is not None and offset in ready:
            del ready[offset]
            self.ready_count -= 1
            if not ready:
                del self._ready[key]

    def _detach(self, key: QueueKey, offset: int, timer: _Timer) -> None:
        client = self._clients.get(timer.client)
        if client is not None:
            client.rows.pop((key, offset), None)
            if not client.rows:
                del self._clients[timer.client]

    def _deadline(self, timer: _Timer) -> int:
        if timer.end_ns is not None:
            return timer.end_ns
        client = self._clients.get(timer.client)
        seen = 0 if client is None else client.seen_ns
        return min(timer.base_ns + self._times.cap_ns, max(timer.base_ns, seen) + self._times.liveness_ns)

    def _push(self, deadline_ns: int, key: QueueKey, offset: int, lease: int) -> None:
        heappush(self._heap, (deadline_ns, key, offset, lease))
        if len(self._heap) > 2 * len(self._timers) + _SLACK_OF_HEAP:
            # Most items belong to leases that ended early: the heap must not grow with the messages acknowledged.
            self._heap = [
                (self._deadline(timer), key, offset, timer.lease)
                for (key, offset), timer in self._timers.items()
                if offset not in self._ready.get(key, ())
            ]
            heapify(self._heap)

    def alive(self, clients: Iterable[str], at_ns: int) -> None:
        """Signs of life of these clients."""
        for name in clients:
            client = self._clients.get(name)
            if client is not None:
                client.seen_ns = max(client.seen_ns, at_ns)

    def gone(self, client_id: str, at_ns: int) -> None:
        """The client said goodbye: its auto-renewed leases end one second later, even if the same name comes back."""
        for session, client in list(self._clients.items()):
            if client_of(session) == client_id:
                for key, offset in list(client.rows):
                    self.end(key, offset, at_ns + self._times.gone_ns)

    def end(self, key: QueueKey, offset: int, at_ns: int) -> None:
        """End an auto-renewed lease at `at_ns` at the latest."""
        timer = self._timers.get((key, offset))
        if timer is not None and timer.end_ns is None:
            timer.end_ns = min(self._deadline(timer), at_ns)
            self._detach(key, offset, timer)
            self._push(timer.end_ns, key, offset, timer.lease)

    def expire(self, now_ns: int) -> dict[tuple[str, str], None]:
        """Make every lease whose time is over ready; the (group, topic) pairs that got something."""
        found: dict[tuple[str, str], None] = {}
        while self._heap and self._heap[0][0] <= now_ns:
            _, key, offset, lease = heappop(self._heap)
            timer = self._timers.get((key, offset))
            if timer is None or timer.lease != lease:
                continue
            deadline = self._deadline(timer)
            if deadline > now_ns:
                heappush(self._heap, (deadline, key, offset, lease))
                continue
            timer.end_ns = deadline
            self._detach(key, offset, timer)
            self._ready.setdefault(key, {})[offset] = None
            self.ready_count += 1
            found[key[0], key[1]] = None
        return found

    def expired(self, now_ns: int, key: QueueKey, offset: int) -> bool:
        """Is the lease of this row over by this leader's clock?"""
        timer = self._timers.get((key, offset))
        return timer is None or self._deadline(timer) <= now_ns

    def ready(self, key: QueueKey) -> Iterator[int]:
        """Offsets visible again, the longest ready first. Do not apply records while iterating."""
        return iter(self._ready.get(key, ()))

    def wake_at_ns(self) -> int | None:
        """When the next lease may end."""
        return self._heap[0][0] if self._heap else None
