"""Checks a receipt against the log: compares the entries, piece by piece, with every field. No I/O,
no waiting.

A receipt names entries by their indexes. The log must have the receipt's term at the first of them
and its chain CRC at the last: the chain covers every byte before it, so equal chain CRCs mean an
equal history. The entries themselves must be intact, of the stated topic and producer, with the
stated sequence numbers and the stated offsets in each queue.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ledgermq.proto import log_pb2
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.layout import HEADER_BYTES, prefixes
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.native_ids import native_runs
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.types import Range

PIECE_BYTES = 1 << 20
"""How much is read from the log between two turns."""

Verdict = log_pb2.Verdict


def true() -> log_pb2.Verdict:
    return Verdict(result=Verdict.TRUE)


def false(reason: str) -> log_pb2.Verdict:
    return Verdict(result=Verdict.FALSE, reason=reason)


def unverifiable(reason: str) -> log_pb2.Verdict:
    return Verdict(result=Verdict.UNVERIFIABLE, reason=reason)


def contradiction(receipt: log_pb2.Receipt) -> str:
    """A contradiction within a receipt that no frame can cause; empty if there is none. The
    receipt's MAC has already been verified."""
    ranges = receipt.ranges
    if not 0 < receipt.count == sum(item.count for item in ranges) or receipt.first_index < 1:
        return (
            f"{receipt.count} messages from index {receipt.first_index} do not match the counts of"
            " its queues"
        )
    if any(one.queue >= other.queue for one, other in pairwise(ranges)) or not all(
        item.count for item in ranges
    ):
        return "its queues are not in order"
    return ""


def at_the_edges(log: Any, applied_index: int, receipt: log_pb2.Receipt) -> log_pb2.Verdict | None:
    """The verdict from term, chain CRC and bounds alone, between two turns; None if the entries
    must be read. `log` is the `EntryLog` of a leader that has applied everything acknowledged
    before the call."""
    first, last = receipt.first_index, receipt.first_index + receipt.count - 1
    weaker = {log_pb2.MEMORY: "from memory", log_pb2.MASTER: "by the master alone"}.get(
        receipt.durability
    )
    if first < log.begin_index:
        return unverifiable(f"trimmed: the log begins with entry {log.begin_index}")
    if last > applied_index:
        if weaker is None:
            return false(f"the log ends with entry {applied_index}")
        lost = (
            "" if last <= log.end_index else f"; acknowledged {weaker} and lost, or not there yet"
        )
        return unverifiable(f"entry {last} is not committed{lost}")
    if (term := log.term_at(first)) != receipt.term or log.chain_at(last) != receipt.chain_crc:
        difference = (
            f"entry {first} has term {term}"
            if term != receipt.term
            else f"entry {last} has another chain CRC"
        )
        return false(
            difference if weaker is None else f"{difference}; acknowledged {weaker} and lost"
        )
    return None


class Proof:
    """Verifies the entries of one receipt. `add` takes them in pieces, in order, on any thread, one
    call at a time."""

    def __init__(self, receipt: log_pb2.Receipt) -> None:
        self._receipt = receipt
        self.next_index = receipt.first_index
        self._left = receipt.count
        self._offsets = {item.queue: item.first_offset for item in receipt.ranges}
        self._ends = {item.queue: item.first_offset + item.count for item in receipt.ranges}

    def add(self, entries: Range) -> log_pb2.Verdict | None:
        """The verdict; None while entries are missing."""
        try:
            verified = verify_range(
                entries.data, entries.first_index, entries.term, entries.pos, entries.prev_chain
            )
        except BadEntry as error:
            return unverifiable(f"this replica's copy is damaged ({error}); run the audit")
        count = min(self._left, len(verified))
        verified = cut(verified, verified.first_index + count - 1)
        wrong = self._producer(verified, count) or self._places(verified)
        if wrong:
            return false(wrong)
        self.next_index += count
        self._left -= count
        if self._left:
            return None
        return true() if self._offsets == self._ends else false("its queues have other offsets")

    def _producer(self, entries: Range, count: int) -> str:
        receipt, sequence = (
            self._receipt,
            self._receipt.first_sequence + self.next_index - self._receipt.first_index,
        )
        runs = native_runs(entries)
        numbered = [
            (run.at, run.producer_id, run.epoch, run.first_sequence - run.at) for run in runs
        ]
        wanted = (receipt.producer_id, receipt.epoch, sequence)
        if (
            not numbered
            or numbered[0][0]
            or sum(run.count for run in runs) != count
            or any(run[1:] != wanted for run in numbered)
        ):
            return (
                f"the entries from {self.next_index} on are not messages {sequence} and after of"
                f" producer {wanted[0]}, epoch {wanted[1]}"
            )
        places = zip(entries.starts.tolist(), entries.sizes.tolist(), strict=True)
        topics = {
            decode_record(entries.data[at + HEADER_BYTES : at + size]).topic for at, size in places
        }
        return (
            ""
            if topics == {receipt.topic}
            else f"the entries from {self.next_index} on are of topic {min(topics)}"
        )

    def _places(self, entries: Range) -> str:
        heads = prefixes(entries.data, entries.starts)
        if (
            int(heads["store_ms"].min()) != self._receipt.store_ms
            or int(heads["store_ms"].max()) != self._receipt.store_ms
        ):
            return f"it was stored at {int(heads['store_ms'][0])}"
        queues, offsets = heads["queue"].astype(np.int64), heads["queue_offset"].astype(np.int64)
        for queue in np.unique(queues).tolist():
            of_queue = offsets[queues == queue]
            first = self._offsets.get(queue)
            if first is None or not np.array_equal(
                of_queue, np.arange(first, first + len(of_queue))
            ):
                return f"its messages in queue {queue} begin with offset {int(of_queue[0])}"
            self._offsets[queue] = first + len(of_queue)
        return ""
