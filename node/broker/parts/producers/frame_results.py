"""Answers about frames in the log: made from the append, or read again from the log for a frame
that was sent twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ledgermq.node.broker.calls.outcome import Done
from ledgermq.node.broker.calls.send_calls import FrameProduced
from ledgermq.node.broker.flush import Durability
from ledgermq.node.broker.parts.producers.producers import Stored
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.types import I32, I64, Range, UnsealedBatch

_STORE_MS = slice(104, 112)
_READ_BYTES = 1 << 20


def answer(
    batch: UnsealedBatch,
    queue_offsets: I64,
    store_ms: int,
    ranges: Sequence[Range],
    durability: Durability,
) -> FrameProduced:
    """The answer for a frame that was just appended."""
    first, last = ranges[0], ranges[-1]
    queues = _queue_ranges(batch.queues, queue_offsets)
    return FrameProduced(
        topic=batch.topics[0],
        first_index=first.first_index,
        term=first.term,
        count=len(batch),
        ranges=queues,
        chain_crc=last.last_chain,
        store_ms=store_ms,
        durability=durability.value,
    )


def answer_in_log(
    read: Callable[[int, int], Range], stored: Stored, *, duplicate: bool = True
) -> FrameProduced:
    """The answer for a frame that was stored before; `read` (first index, bytes) returns its
    entries, none of which may be trimmed."""
    last_index = stored.first_index + stored.count - 1
    parts: list[Range] = []
    index = stored.first_index
    while index <= last_index:
        parts.append(cut(read(index, _READ_BYTES), last_index))
        index = parts[-1].last_index + 1
    columns = [record_columns(part) for part in parts]
    queues = np.concatenate([part.queues for part in columns])
    offsets = np.concatenate([part.queue_offsets for part in columns])
    store_ms = int.from_bytes(parts[0].data[_STORE_MS], "big", signed=True)
    return FrameProduced(
        topic=columns[0].topics[0],
        first_index=stored.first_index,
        term=parts[0].term,
        count=stored.count,
        ranges=_queue_ranges(queues, offsets),
        chain_crc=parts[-1].last_chain,
        store_ms=store_ms,
        duplicate=duplicate,
    )


def _queue_ranges(queues: I32, offsets: I64) -> tuple[tuple[int, int, int], ...]:
    """(queue, first offset, count), by queue. Within a frame, the offsets of a queue are
    consecutive."""
    low, high = int(queues.min()), int(queues.max())
    if low == high:
        return ((low, int(offsets[0]), len(queues)),)
    counts = np.bincount(queues)
    # Of the values for one place, the last one stays.
    last = np.empty(high + 1, np.int64)
    last[queues] = offsets
    distinct = np.flatnonzero(counts)
    counts = counts[distinct]
    return tuple(
        zip(distinct.tolist(), (last[distinct] - counts + 1).tolist(), counts.tolist(), strict=True)
    )


def certified(done: Iterable[Done], durable: Callable[[], Mapping[str, int]]) -> list[Done]:
    """Adds to the answers the replicas that have the frame on stable storage; `durable` returns
    node → durable index."""
    known: list[tuple[str, int]] | None = None
    out = []
    for one in done:
        outcome = one.outcome
        if type(outcome) is FrameProduced and outcome.durability != Durability.MEMORY.value:
            if known is None:
                known = sorted(durable().items())
            last_index = outcome.last_index
            one = Done(
                one.token,
                replace(outcome, durable=tuple([item for item in known if item[1] >= last_index])),
            )
        out.append(one)
    return out
