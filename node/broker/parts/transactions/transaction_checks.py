"""The clock of transaction checks: decides which undecided halves are due for a check. Derived on
the leader only; never replicated.

A half is due one immunity period after it was applied here or after this node started to lead,
whichever is later, on the monotonic clock; and again one interval after each counted check. A due
half is handed out and postponed for a while. If it cannot be checked, because no producer of its
topic is connected, it is handed out again later and nothing is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from ledgermq.node.broker.parts.transactions.transactions import Transactions

MS = 1_000_000
CHECK_RETRY_NS = 5_000 * MS
_SLACK_OF_HEAP = 1024


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """How long transactions may stay undecided, and how many at once. Local to each leader: nothing
    replicated depends on these rules."""

    check_ns: int = 6_000 * MS
    """Immunity of a half message that does not set its own."""
    interval_ns: int = 30_000 * MS
    checks_max: int = 15
    retry_ns: int = CHECK_RETRY_NS
    """After how long a half is handed out again if no check of it was counted."""
    age_max_ms: int = 72 * 3_600_000
    """A half is dropped at this age if no producer could be asked about it."""
    undecided_max: int = 100_000


class CheckClock:
    """Deadlines of all halves of a `Transactions`, on the leader. `lead` starts it, `touched`
    follows applied entries."""

    def __init__(self, transactions: Transactions, rules: TransactionRules) -> None:
        self._transactions = transactions
        self._rules = rules
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def lead(self, now_ns: int) -> None:
        """Start over: the immunity of all existing halves starts at `now_ns`."""
        self.resign()
        for offset in self._transactions.halves:
            self.touched(now_ns, offset)

    def resign(self) -> None:
        """Forget everything; a follower asks no producers."""
        self._due.clear()
        self._heap.clear()

    def touched(self, now_ns: int, offset: int) -> None:
        """An entry about this half was applied: the half is new, a check was counted, or it
        ended."""
        half = self._transactions.halves.get(offset)
        if half is None:
            self._due.pop(offset, None)
        elif half.checks:
            self._set(offset, now_ns + self._rules.interval_ns)
        else:
            immunity = self._rules.check_ns if half.recovery_ms is None else half.recovery_ms * MS
            self._set(offset, now_ns + immunity)

    def due(self, now_ns: int, limit: int) -> list[int]:
        """Due halves, longest overdue first; each is postponed by `retry_ns`."""
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns and len(found) < limit:
            at_ns, offset = heappop(self._heap)
            if self._due.get(offset) == at_ns:
                found.append(offset)
                self._set(offset, now_ns + self._rules.retry_ns)
        return found

    def _set(self, offset: int, at_ns: int) -> None:
        self._due[offset] = at_ns
        heappush(self._heap, (at_ns, offset))
        if len(self._heap) > 2 * len(self._due) + _SLACK_OF_HEAP:
            # Most items belong to halves that were decided early. The heap must not grow with their
            # number.
            self._heap = [(at, half) for half, at in self._due.items()]
            heapify(self._heap)
