"""Frames as the Log service passes them to a broker group, and checks of the native messages in a
log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.tools.drafts import drafts
from ledgermq.node.broker.parts.producers.producers import Producers
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.native_ids import native_id, native_runs
from ledgermq.proto.types import Frame, Range
from tests.node_core.core_fakes import EPOCH_MS

LOG_TAG = 0x01020304


def frame(
    producer_id: int,
    epoch: int,
    first_sequence: int,
    bodies: Sequence[str],
    topic: str = "t",
    queues: Sequence[int] | None = None,
    tags: Sequence[str] | None = None,
) -> Frame:
    n = len(bodies)
    ids = [native_id(LOG_TAG, producer_id, epoch, first_sequence + at) for at in range(n)]
    batch = encode_entries(
        drafts(
            topic,
            [body.encode() for body in bodies],
            born_ms=EPOCH_MS,
            queues=queues,
            message_ids=ids,
            tags=tags,
        )
    )
    for at, start in enumerate(batch.starts.tolist()):
        batch.data[start + 64 : start + 68] = (at + 1).to_bytes(4, "big")
    return Frame(producer_id, epoch, first_sequence, batch)


def numbered(
    producer_id: int, epoch: int, first: int, count: int, topic: str = "t", queues: int = 1
) -> Frame:
    """A frame whose bodies contain the producer and the sequence number."""
    numbers = range(first, first + count)
    return frame(
        producer_id,
        epoch,
        first,
        [f"{producer_id}:{number}" for number in numbers],
        topic,
        [n % queues for n in numbers],
    )


def sequences(ranges: Sequence[Range]) -> Iterator[tuple[int, int, int, int]]:
    """(index, producer, epoch, sequence number) of every native message of a log, in order."""
    for entries in ranges:
        for run in native_runs(entries):
            for at in range(run.count):
                yield (
                    entries.first_index + run.at + at,
                    run.producer_id,
                    run.epoch,
                    run.first_sequence + at,
                )


def check_sequences(ranges: Sequence[Range], producers: Producers | None = None) -> None:
    """Check that the sequence numbers of each producer are 0, 1, 2 …, that epochs do not decrease,
    and that `producers` agrees."""
    ends: dict[int, int] = {}
    epochs: dict[int, int] = {}
    for index, producer, epoch, sequence in sequences(ranges):
        assert sequence == ends.get(producer, 0), (
            f"entry {index}: message {sequence} of producer {producer} follows {ends.get(producer)}"
        )
        assert epoch >= epochs.get(producer, 0), (
            f"entry {index}: epoch {epoch} of producer {producer} after {epochs[producer]}"
        )
        ends[producer], epochs[producer] = sequence + 1, epoch
    for producer, end in ends.items() if producers is not None else ():
        known = producers.get(producer)  # type: ignore[union-attr]
        assert known is None or known.next_sequence == end, (producer, known, end)
