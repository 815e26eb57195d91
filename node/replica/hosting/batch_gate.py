"""Decides when the calls of a broker group go to the engine, so that the calls of many clients form
one batch.

A batch costs an append, a push to each follower, their replies and a sync on every replica,
whatever its size. So calls wait while a batch is in progress, and all calls that arrive meanwhile
form the next one. This is group commit: the batch grows with the load by itself, and a lone call
waits for no other. Three things hold the gate shut, each for its own reason.

  under_way      A sync runs on this replica. It does not cover what is appended from now on: such a
                 call is answered after the next sync anyway, whether it is decided now or then.
  open_batches   As many batches as allowed are appended and not committed. The own sync is often
                 over before those of the followers; a batch that began then would split the calls
                 of clients that are about to be answered together into two, and both are smaller
                 for good, because the same clients call again when they are answered. Measured with
                 64 callers: 16 messages a commit with one open batch, 10 with two, 9 without this
                 rule. One is the default; if the majority is so far away that waiting for it costs
                 more than small batches do, `raft.open_batches` allows more.
  resting        Answers were delivered, and the event loop has not been idle since. The clients
                 that got them send their next calls within the same passes of the loop.

Calls that need not wait for a sync are not held (`hold_calls` of the turns): a send of the class
`memory` would wait for the sync of other sends, and if too few replicas are in sync or the disks
are full, calls must reach the group to be refused.

Invariant: while calls are held, an event is to come that opens the gate. A sync ends, with or
without success. An open batch is committed; or the leader lacks a majority and loses its
leadership, with which its batches are no longer counted. An event loop becomes idle. There is no
timer: one would be a guess, between an append and its commit, of how long a disk takes. Calls that
may themselves be what opens the gate pass it (`Scheduler.put_at_once`). The gate delays calls and
decides nothing: an error here costs time or batch size, never an answer that is wrong.
(docs/decisions/2026-11-21-batches-by-commit.md)

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
