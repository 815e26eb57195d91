"""When the calls of a broker group go to the engine: what makes a batch out of what many callers send.

A batch costs an append, a push to each follower, their answers and a sync on every replica, whatever is in it. So calls wait while one is
on its way, and the next one is everything that came meanwhile. On its way means: the sync of this replica runs, or as many batches as may
be open at once are not committed: one, unless the majority is so far away that waiting for it costs more than small batches do. After
answers left, calls wait until the event loop has nothing at hand any more: in a burst of answers the next calls of the same callers
are already coming.

A replica that could answer calls before a sync (`hold_calls` of its turns) holds none. There is no time in this: what opens the gate is an
event, and a leader whose batches stay open for want of a majority loses its leadership, which is one.

The engine's thread opens and shuts; the loop reads `shut`, and ends the rest after answers with `rested`.
"""

from __future__ import annotations

from ledgermq.node.broker.group.group import TurnOutput

OPEN_BATCHES = 1


class BatchGate:
    """One per broker group. `most`: so many batches may be open while the next one is made."""

    def __init__(self, most: int = OPEN_BATCHES) -> None:
        self._most = most
        self.under_way = 0
        """Syncs begun and not reported."""
        self._hold_calls = True
        self._open_batches = 0
        self._resting = False

    @property
    def shut(self) -> bool:
        """Do calls wait now?"""
        return self._hold_calls and (self.under_way > 0 or self._open_batches >= self._most or self._resting)

    def sync_begins(self) -> None:
        self.under_way += 1

    def sync_ended(self) -> None:
        """Its turn follows at once."""
        self.under_way -= 1

    def turned(self, output: TurnOutput, *, answers: bool) -> None:
        """After a turn. `answers`: it answered calls, and the loop will say when it has `rested`."""
        self._hold_calls = output.hold_calls
        self._open_batches = output.open_batches
        self._resting = self._resting or answers

    def rested(self) -> None:
        """The loop handed the answers out and has nothing at hand."""
        self._resting = False
