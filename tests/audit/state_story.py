"""A replica built with the product's storage and machine, entry by entry: topics, producers, trims,
snapshots."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.audit_scan import CREATED_MS, StoredReplica, term_start
from ledgermq.audit.reading.walk import LogFile
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.records import control
from ledgermq.proto.records.control import ControlRecord, TrimRecord
from ledgermq.proto.types import Draft, Permission, TopicConfig, TopicKind, UnsealedBatch

FILE_BYTES = 8192
INDEX_BYTES = 32 * 64
QUEUE_BYTES = 20 * 50


def topic(
    name: str, incarnation: int = 1, *, queues: int = 2, kind: str = "normal", dedup_ms: int = 0
) -> TopicConfig:
    return TopicConfig(
        "", name, TopicKind(kind), queues, Permission.READ_WRITE, incarnation, dedup_ms=dedup_ms
    )


def message(
    stored: str, number: int, queue: int = 0, tag: str = "a", body_bytes: int = 300
) -> Draft:
    properties = f"UNIQ_KEY\x01m{number}\x02TAGS\x01{tag}\x02".encode()
    return Draft(
        stored, queue, f"{number:04d}".encode().ljust(body_bytes, b"."), properties, CREATED_MS
    )


class Story(StoredReplica):
    """A replica under construction. Each range advances the time by a millisecond."""

    def __init__(self, node_directory: Path) -> None:
        super().__init__(node_directory, FILE_BYTES, INDEX_BYTES, QUEUE_BYTES)
        self.now_ms = CREATED_MS
        self.apply()
        self.put(term_start(1))

    def put(self, batch: UnsealedBatch) -> None:
        """Append one range; its queue offsets continue those of the machine."""
        self.now_ms += 1
        offsets = np.zeros(len(batch), np.int64)
        ends: dict[tuple[str, int], int] = {}
        for at, (number, queue) in enumerate(
            zip(batch.topic_of.tolist(), batch.queues.tolist(), strict=True)
        ):
            key = batch.topics[number], queue
            offsets[at] = ends.get(key, self.machine.end(*key))
            ends[key] = int(offsets[at]) + 1
        self.store.log.append_leader(1, batch, offsets, self.now_ms, bytes(8))
        self.apply()

    def record(self, *records: ControlRecord) -> None:
        for record in records:
            self.put(encode_entries([control.draft(record, CREATED_MS)]))

    def send(self, *drafts: Draft) -> None:
        self.put(encode_entries(list(drafts)))

    def halve(self, batch: UnsealedBatch) -> None:
        """Append one range and take a snapshot half-way through it."""
        apply, self.apply = self.apply, lambda: None  # type: ignore[method-assign]
        self.put(batch)
        self.apply = apply  # type: ignore[method-assign]
        first = self.machine.applied_index + 1
        self.machine.apply(cut(self.store.log.read(first, 1 << 20), first + len(batch) // 2 - 1))
        self.snapshot()
        self.apply()

    @property
    def file(self) -> int:
        """The number of the current log file."""
        return self.store.log.end_pos // FILE_BYTES

    def fill(self) -> None:
        """Append messages up to the next log file."""
        file = self.file
        while self.file == file:
            self.send(message("t", 8000))

    def trim(self, file: int) -> None:
        """Append the record of a trim to a log file."""
        log = self.store.log
        begin = next(
            index
            for index in range(log.begin_index, log.end_index + 1)
            if log.pos_of(index) >= file * FILE_BYTES
        )
        before = log.term_at(begin - 1), log.chain_at(begin - 1)
        self.record(
            TrimRecord(
                begin, log.pos_of(begin), *before, self.machine.begin_index, ((0, None),), "time"
            )
        )

    def snapshot(self) -> None:
        self.sync()
        self.store.queues.sync()
        self.store.write_snapshot(self.machine.export(self.store.identity.log_id))

    def carry_out(self) -> None:
        """Remove what both snapshots record as trimmed."""
        self.snapshot()
        self.send(message("t", 9000))
        self.snapshot()
        self.store.log.trim(self.machine.begin_index)
        self.store.queues.trim(self.machine.begin_pos)

    def finish(self) -> LogFile:
        """Stop cleanly. Returns the log file with which a replica's works begin."""
        self.sync()
        self.stop()
        identity, root = self.store.identity, Path(self.store.state_directory).parent
        sizes = FILE_BYTES, INDEX_BYTES, QUEUE_BYTES
        return LogFile(
            str(root),
            "g1",
            identity.replica,
            identity.log_id,
            f"dledger-{identity.replica}",
            f"{0:020d}",
            *sizes,
        )
