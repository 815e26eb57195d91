"""A broker group written by our store as a node would: control records, client messages with keys
and tags, several files, two terms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.layout import java_hash, record_columns
from ledgermq.proto.entries.properties import parse
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.state import identity
from ledgermq.storage.state.checkpoints import StoreCheckpoint

CLUSTER = "2b1b9a6e-6f0e-4b8e-9a43-0d0f5f3f5a10"
INCARNATION = "7c4d1c1e-9a53-4a0c-8f4f-5b1a0c9f7d21"
CREATED_MS = 1_700_000_000_000
HOST = bytes([127, 0, 0, 1, 0, 0, 0x1F, 0x91])
DATA_BYTES, QUEUE_BYTES = 65536, 1000
DLEDGER_INDEX_BYTES = 167_772_160
"""The only length of index files that RocketMQ's full store supports."""
SLOTS, UNITS = 100, 1000
TOPICS = ("orders", "ns@events", "t" * 100)
QUEUES = 4
BATCHES = 120


class Writer:
    """An open group; `bodies` holds the bodies appended to each queue."""

    def __init__(self, root: Path, index_bytes: int = DLEDGER_INDEX_BYTES) -> None:
        disk = RealDisk()
        new = identity.mint(
            CLUSTER, "g1", "n1", INCARNATION, CREATED_MS,
            data_file_bytes=DATA_BYTES, index_file_bytes=index_bytes, consume_queue_file_bytes=QUEUE_BYTES,
        )  # fmt: skip
        GroupStore.create(disk, str(root), new)
        self.store = GroupStore.open(disk, str(root), new, process=1)
        self.store.queues.start({}, 0)
        self.keys = KeyIndex(disk, str(root), new.log_id, slots=SLOTS, units=UNITS)
        self.keys.start(0, -1, self.store.log.chain_at)
        self.bodies: dict[tuple[str, int], list[bytes]] = {}
        self.messages: list[tuple[str, list[str], int]] = []
        """Topic, keys and physical offset of each client message."""
        self.store_ms = CREATED_MS

    def put(self, drafts: Sequence[Draft], term: int, store_ms: int) -> None:
        """Append one batch and dispatch it."""
        offsets = []
        for draft in drafts:
            queue = self.bodies.setdefault((draft.stored_topic, draft.queue), [])
            offsets.append(len(queue))
            queue.append(draft.body)
        self.store_ms = store_ms
        for entries in self.store.log.append_leader(
            term, encode_entries(drafts), np.array(offsets), store_ms, HOST
        ):
            self.store.queues.append(record_columns(entries))
            self.keys.append(entries)
            columns = record_columns(entries)
            for at, draft in enumerate(drafts[: len(entries)]):
                names = [
                    value
                    for name, value in parse(draft.properties).items()
                    if name in ("UNIQ_KEY", "KEYS")
                ]
                self.messages.append(
                    (draft.stored_topic, " ".join(names).split(), int(columns.physical_offsets[at]))
                )
            drafts = drafts[len(entries) :]

    def fill(self) -> None:
        """Write the whole material."""
        self.put([control.draft(control.Membership(("n1", "n2", "n3")), CREATED_MS)], 0, CREATED_MS)
        self.put([control.draft(control.TermStart(1, "n1"), CREATED_MS)], 1, CREATED_MS + 100)
        for batch in range(BATCHES):
            drafts = [_message(batch, number) for number in range(1 + batch % 7)]
            self.put(drafts, 1 if batch < BATCHES // 2 else 3, CREATED_MS + 1000 + 777 * batch)

    def trim(self) -> None:
        """Trim the log to its second file, as a node does."""
        log = self.store.log
        self.flush()
        first = next(index for index in range(log.end_index) if log.pos_of(index) >= DATA_BYTES)
        self.store.queues.trim(DATA_BYTES)
        self.keys.trim(DATA_BYTES)
        assert log.trim(first), "the first file is gone"

    def flush(self) -> None:
        """Make everything durable, and record that."""
        self.store.log.flush_mark()
        self.store.queues.sync()
        self.keys.sync()

    def close(self, *, clean: bool) -> None:
        """Make everything durable and close; without `clean` the abort file stays, as after a
        kill."""
        self.keys.sync()
        self.store.write_checkpoints(
            self.store.log.end_index, StoreCheckpoint(self.store_ms, self.store_ms, self.store_ms)
        )
        if clean:
            self.store.close()
        else:
            self.flush()
            self.store.abandon()
        self.keys.close()


def _message(batch: int, number: int) -> Draft:
    body = f"body {batch} {number} ".encode() * (1 + (batch * 37 + number * 11) % 60)
    tag = f"tag{number}"
    properties = (
        f"UNIQ_KEY\x01U{batch:04d}{number}\x02TAGS\x01{tag}\x02KEYS\x01k{batch}"
        " shared\x02colour\x01blue\x02".encode()
    )
    topic = TOPICS[(batch + number) % len(TOPICS)]
    return Draft(topic, (batch + number) % QUEUES, body, properties, CREATED_MS, java_hash(tag))
