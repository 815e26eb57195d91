"""Trims in a simulated cluster: a leader records that the log begins later, and every replica carries that out in its own time.

Here lives the part of retention that safety hangs on: only what every voter has on stable storage goes, the record is committed like any
entry, and files go only after this replica has the record on stable storage itself. Why files go is no affair of the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ledgermq.proto import control, layout
from ledgermq.proto.types import I64, Role, UnsealedBatch
from ledgermq.sim.node import Life

Entry = tuple[int, int]
"""(index, chain CRC)"""


@dataclass
class Trims:
    """What was recorded in one run: the place of every trim record, and the begin it decides."""

    recorded: dict[Entry, int] = field(default_factory=dict)
    carried_out: int = 0

    def decide(self, life: Life, most: int) -> control.TrimRecord | None:
        """A trim by at most so many files, to the first entry of a file that every voter confirmed as durable."""
        replica, log = life.replica, life.replica.log
        confirmed = [peer.durable_index for peer in replica.status().peers]
        if replica.role is not Role.LEADER or None in confirmed:
            return None
        last = min(index for index in (*confirmed, replica.commit_index, replica.durable_index) if index is not None)
        begin = log.begin_index
        for index in range(log.begin_index + 1, last + 1):
            pos = log.pos_of(index)
            if pos % life.file_bytes == 0 and pos <= log.begin_pos + most * life.file_bytes:
                begin = index
        if begin == log.begin_index:
            return None
        pos = log.pos_of(begin)
        bases = range(log.begin_pos, pos, life.file_bytes)
        words = log.term_at(begin - 1), log.chain_at(begin - 1)
        return control.TrimRecord(begin, pos, *words, log.begin_index, tuple((base, None) for base in bases), "operator")

    @staticmethod
    def batch(record: control.TrimRecord, offset: int, now_ms: int) -> tuple[UnsealedBatch, I64]:
        return layout.encode_entries([control.draft(record, now_ms)]), np.array([offset], np.int64)

    def proposed(self, life: Life, record: control.TrimRecord) -> None:
        """The record is the last entry of the leader's log."""
        index, _, chain = life.tip
        self.recorded[index, chain] = record.begin_index

    def carry_out(self, life: Life) -> None:
        """Remove what committed records let this replica remove. Raises NoSpace, LogFenced."""
        replica, log = life.replica, life.replica.log
        settled = min(replica.commit_index, replica.durable_index)
        for (index, chain), begin in self.recorded.items():
            if log.begin_index < begin and log.begin_index <= index <= settled and log.chain_at(index) == chain:
                log.trim(begin)
                self.carried_out += 1
