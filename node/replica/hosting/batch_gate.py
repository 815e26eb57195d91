"""Decides when the calls of a broker group go to the engine, so that the calls of many clients form
one batch.

A batch costs an append, a push to each follower, their replies and a sync on every replica,
whatever its size. So calls wait while a batch is in progress, and all calls that arrive meanwhile
form the next one. A batch is in progress while this replica's sync runs, or while the maximum
number of open batches is not committed. That maximum is one, unless the majority is so far away
that waiting for it costs more than small batches do. After the engine has delivered answers, calls
wait until the event loop is idle: after a burst of answers the same clients send their next calls.

A replica that could answer calls before a sync (`hold_calls` of its turns) holds none. The gate
uses no timer; an event opens it. A leader whose batches stay open for lack of a majority loses its
leadership, which is such an event.

The engine opens and closes the gate with the turns, and calls `rested` when the loop is idle after
answers.
"""

from __future__ import annotations

from ledgermq.node.broker.group import TurnOutput

OPEN_BATCHES = 1


class BatchGate:
    """One per broker group. `most`: the maximum number of uncommitted batches while the next one is
    built."""

    def __init__(self, most: int = OPEN_BATCHES) -> None:
        self._most = most
        self.under_way = 0
        """Syncs that began and have not reported their result."""
        self._hold_calls = True
        self._open_batches = 0
        self._resting = False

    @property
    def shut(self) -> bool:
        """Whether calls must wait now."""
        return self._hold_calls and (
            self.under_way > 0 or self._open_batches >= self._most or self._resting
        )

    def sync_begins(self) -> None:
        self.under_way += 1

    def sync_ended(self) -> None:
        """Note the end of a sync; the group's turn follows at once."""
        self.under_way -= 1

    def turned(self, output: TurnOutput, *, answers: bool) -> None:
        """Note the output of a turn. `answers`: it answered calls, and the loop will call
        `rested`."""
        self._hold_calls = output.hold_calls
        self._open_batches = output.open_batches
        self._resting = self._resting or answers

    def rested(self) -> None:
        """Note that the loop delivered the answers and is idle."""
        self._resting = False
