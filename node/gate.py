"""When the calls of a broker group go to the engine: what makes a batch out of what many callers send.

A batch costs an append, a push to each follower, their answers and a sync on every replica, whatever is in it. So calls wait while one is
on its way, and the next one is everything that came meanwhile. On its way means: the sync of this replica, then the commit, but no longer
than once more what the sync took, so that a distant majority costs throughput no more than that. After answers left, calls wait until
the event loop has nothing at hand any more: in a burst of answers the next calls of the same callers are already coming.

A replica that could answer calls before a sync (`hold_calls` of its turns) holds none. No timer belongs to this but the bound above.

The engine's thread opens and shuts; the loop reads `shut`, and ends the rest after answers with `rested`.
"""

from __future__ import annotations

from typing import Protocol


class Turned(Protocol):
    """What the gate looks at after a turn."""

    @property
    def hold_calls(self) -> bool: ...
    @property
    def awaits_commit(self) -> bool: ...


class Gate:
    """One per broker group."""

    def __init__(self) -> None:
        self.under_way = 0
        """Syncs begun and not reported."""
        self._hold_calls = True
        self._awaits_commit = False
        self._until_ns = 0
        self._resting = False

    @property
    def shut(self) -> bool:
        """Do calls wait now?"""
        return self._hold_calls and (self.under_way > 0 or self._awaits_commit or self._resting)

    def sync_begins(self) -> None:
        self.under_way += 1

    def sync_ended(self, now_ns: int, took_ns: int) -> None:
        """Its turn follows at once."""
        self.under_way -= 1
        self._until_ns = now_ns + took_ns

    def turned(self, output: Turned, now_ns: int, *, answers: bool) -> None:
        """After a turn. `answers`: it answered calls, and the loop will say when it has `rested`."""
        self._hold_calls = output.hold_calls
        self._awaits_commit = output.awaits_commit and now_ns < self._until_ns
        self._resting = self._resting or answers

    def rested(self) -> None:
        """The loop handed the answers out and has nothing at hand."""
        self._resting = False

    def look(self, now_ns: int) -> None:
        """Wait for the commit no longer than allowed."""
        if self._awaits_commit and now_ns >= self._until_ns:
            self._awaits_commit = False

    @property
    def wake_at_ns(self) -> int | None:
        """When `look` opens the gate at the latest."""
        return self._until_ns if self._awaits_commit and not self.under_way else None
