"""The end of the log as its leader appends to it: where batches go, and which are not committed
yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import last_store_ms
from ledgermq.node.broker.parts.sends.sequencer import Assignment, Sequencer
from ledgermq.node.broker.ports import LogFull, NotLeader, Replicator
from ledgermq.node.broker.turn import Turn
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.records import control
from ledgermq.proto.types import Range, UnsealedBatch
from ledgermq.raft.membership import MemberChange, NotYet

READ_BYTES = 1 << 20
RESERVE_FOR_DELIVERY = 256 << 10
"""How many bytes of a full disk's reserve leases and acknowledgements may use. Elections and trims
need the rest."""


class LeaderLog:
    """The end of one broker group's log, on its leader."""

    def __init__(self, replicator: Replicator, machine: Machine) -> None:
        self._replicator = replicator
        self._machine = machine
        self.sequencer = Sequencer(machine.end)
        self.batches: deque[int] = deque()
        """The last entry of each batch that this leader appended, until its sends are answered."""
        self.full = 0
        """How often the log of this leader had no room."""
        self.reserve_left = RESERVE_FOR_DELIVERY

    def rebuild(self) -> None:
        """Entries in the log beyond the applied state determine the next queue offsets, whichever
        leader appended them."""
        self.sequencer.reset(self._machine.store_ms)
        index = self._machine.applied_index + 1
        while index <= self._replicator.end_index:
            entries = self._replicator.read(index, READ_BYTES)
            for topic, queue, offset in self._machine.last_of_queues(entries):
                self.sequencer.seen(topic, queue, offset, last_store_ms(entries))
            index = entries.last_index + 1

    def append(self, turn: Turn, records: Sequence[control.ControlRecord]) -> bool:
        """Append control records as one batch, which may use the reserve. Returns False if the log
        is full or another replica leads."""
        drafts = [control.draft(record, turn.now_ms) for record in records]
        return self.append_batch(turn, encode_entries(drafts), control_only=True) is not None

    def append_batch(
        self,
        turn: Turn,
        batch: UnsealedBatch,
        *,
        control_only: bool = False,
        urgent: bool = True,
        early: bool = False,
        time_epoch: bool = False,
        new_file: bool = False,
    ) -> tuple[Assignment, Sequence[Range]] | None:
        """Returns the batch's places and the ranges it became, or None if the log is full or
        another replica leads. The log owns the batch's bytes from now on. `control_only`: the batch
        has no client message and may use the reserve."""
        place = (self.sequencer.assign_time_epoch if time_epoch else self.sequencer.assign)(
            batch, turn.now_ms
        )
        try:
            ranges = self._replicator.propose(
                turn.now_ns,
                batch,
                place.queue_offsets,
                place.store_ms,
                control=control_only,
                urgent=urgent,
                early=early,
                new_file=new_file,
            )
        except LogFull:
            self.full += 1
            turn.full = control_only
            return None
        except NotLeader:
            return None
        if not control_only:
            self.reserve_left = RESERVE_FOR_DELIVERY
        turn.appended = True
        self.sequencer.appended(place)
        self.batches.append(ranges[-1].last_index)
        return place, ranges

    def append_members(self, turn: Turn, change: MemberChange) -> str | None:
        """Append the record of a change. Returns None, or why it is refused."""
        # Only the record's queue matters here; the replicator decides its content.
        place = self.sequencer.assign(
            encode_entries([control.draft(control.Membership(()), turn.now_ms)]), turn.now_ms
        )
        try:
            outcome = self._replicator.propose_members(
                turn.now_ns, change, place.queue_offsets, place.store_ms
            )
        except LogFull:
            self.full += 1
            turn.full = True
            return "the disk of the leader is full"
        except NotLeader:
            return NotYet("leadership is being handed over; ask again")
        if isinstance(outcome, str):
            return outcome
        turn.appended = True
        self.sequencer.appended(place)
        return None
