"""One replica written by the product's code, with all features that views show: native frames,
compressed bodies, unusual keys, control records, waiting messages, several log and key index files.
`messages` is the expected view of messages, in log order."""

from __future__ import annotations

import gzip
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ledgermq.proto.entries.compression import Compression, compress
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.layout import java_hash, record_columns
from ledgermq.proto.entries.native_ids import native_id
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.state import identity
from tests.audit.log_writer import sealed

CLUSTER = "2b1b9a6e-6f0e-4b8e-9a43-0d0f5f3f5a10"
INCARNATION = "7c4d1c1e-9a53-4a0c-8f4f-5b1a0c9f7d21"
CREATED_MS = 1_700_000_000_000
HOST = bytes([127, 0, 0, 1, 0, 0, 0x1F, 0x91])
DATA_BYTES, INDEX_BYTES, QUEUE_BYTES = 4096, 32 * 16, 20 * 10
SLOTS, UNITS = 11, 40
TAG = 0x0A0B0C0D


def packed(numbers: Sequence[int], kind: str) -> str:
    """A column packed as in docs/format.md §11."""
    return b64encode(
        zlib.compress(
            np.diff(np.array(numbers, kind), prepend=np.zeros(1, kind)).astype(kind).tobytes()
        )
    ).decode()


SNAPSHOT: dict[str, Any] = {
    "v": 6,
    "applied_index": 100,
    "queues": {"flights": {"0": 17, "1": 4}},
    "offsets": {},
    "delivery": {
        "workers": {
            "flights": {
                "0": [9, {
                    "o": packed([3, 5], "<i8"), "l": packed([90, 80], "<i8"), "a": packed([1, 2], "<i4"), "k": packed([0, 1], "<i4"),
                    "terms": [["c1", 1000], ["c2", None]],
                }],
                "1": [4, []],
            }
        }
    },
    "lapsed": {
        "since": 12, "queues": [["workers", "flights", 1], ["workers", "flights", 0]],
        "k": packed([1, 0], "<i4"), "o": packed([3, 2], "<i8"), "l": packed([70, 75], "<i8"),
    },
    "transactions": {
        "halves": {
            "o": packed([7], "<i8"), "i": packed([70], "<i8"), "s": packed([1234], "<i8"), "r": packed([-1], "<i8"),
            "c": packed([2], "<i8"), "t": packed([0], "<i8"), "topics": ["flights"],
        },
        "ended": {"o": packed([6, 5], "<i8"), "h": packed([0, 1], "<i8")},
    },
}  # fmt: skip
STATE = {
    "applied_index": 100,
    "delivery/workers/flights/0/cursor": 9,
    "delivery/workers/flights/0/rows/3": {
        "lease": 90,
        "attempt": 1,
        "client": "c1",
        "duration_ms": 1000,
    },
    "delivery/workers/flights/0/rows/5": {
        "lease": 80,
        "attempt": 2,
        "client": "c2",
        "duration_ms": None,
    },
    "delivery/workers/flights/1/cursor": 4,
    "lapsed/since": 12,
    "lapsed/workers/flights/0/3": 70,
    "lapsed/workers/flights/1/2": 75,
    "offsets": {},
    "queues/flights/0": 17,
    "queues/flights/1": 4,
    "transactions/ended/5": "rollback",
    "transactions/ended/6": "commit",
    "transactions/halves/7": {
        "index": 70,
        "store_ms": 1234,
        "immunity_ms": None,
        "checks": 2,
        "topic": "flights",
    },
    "v": 6,
}
"""The expected view of that snapshot."""


@dataclass
class Said:
    """A message as its producer sent it."""

    topic: str
    body: bytes = b"body"
    queue: int = 0
    message_id: str = ""
    tag: str | None = None
    keys: Sequence[str] = ()
    user: Mapping[str, str] = field(default_factory=dict)
    more: bytes = b""
    """Further properties in stored form."""
    packing: str | None = None
    flag: int = 0
    producer: tuple[int, int, int] | None = None
    """Producer, epoch and sequence number of a native message."""


class ViewLog:
    """Writes the replica `n1` of group `g1` below a directory."""

    def __init__(self, base: Path) -> None:
        disk = RealDisk()
        self.node_dir = base / "n1"
        self.root = self.node_dir / "g1"
        disk.mkdirs(str(self.node_dir))
        identity.write_node(
            disk, str(self.node_dir), identity.NodeIdentity(CLUSTER, "n1", CREATED_MS)
        )
        mine = identity.mint(
            CLUSTER, "g1", "n1", INCARNATION, CREATED_MS,
            data_file_bytes=DATA_BYTES, index_file_bytes=INDEX_BYTES, consume_queue_file_bytes=QUEUE_BYTES,
        )  # fmt: skip
        GroupStore.create(disk, str(self.root), mine)
        self.store = GroupStore.open(disk, str(self.root), mine, process=1)
        self.store.queues.start({}, 0)
        self.keys = KeyIndex(disk, str(self.root), mine.log_id, slots=SLOTS, units=UNITS)
        self.keys.start(0, -1, self.store.log.chain_at)
        self.ends: dict[tuple[str, int], int] = {}
        self.messages: list[dict[str, Any]] = []
        self.records: list[tuple[str, str]] = []

    def control(self, record: Any, term: int, store_ms: int) -> None:
        draft = control.draft(record, store_ms)
        self.records.append((draft.stored_topic, draft.body.decode()))
        self._append([draft], [None], term, store_ms)

    def put(self, said: Sequence[Said], store_ms: int, term: int = 1) -> None:
        """One batch."""
        self._append([_draft(one) for one in said], said, term, store_ms)

    def _append(
        self, drafts: Sequence[Draft], said: Sequence[Said | None], term: int, store_ms: int
    ) -> None:
        offsets = []
        for draft in drafts:
            place = draft.stored_topic, draft.queue
            offsets.append(self.ends.get(place, 0))
            self.ends[place] = offsets[-1] + 1
        batch = encode_entries(drafts)
        for start, one in zip(batch.starts.tolist(), said, strict=True):
            if one is not None:
                batch.data[start + 64 : start + 68] = one.flag.to_bytes(4, "big")
                sysflag = {"lz4": Compression.LZ4, "zstd": Compression.ZSTD}.get(
                    one.packing or "", Compression.NONE
                ).value
                batch.data[start + 84 : start + 88] = sysflag.to_bytes(4, "big")
        at = 0
        for entries in self.store.log.append_leader(term, batch, np.array(offsets), store_ms, HOST):
            columns = record_columns(entries)
            self.store.queues.append(columns)
            self.keys.append(entries)
            for row in range(len(entries)):
                one = said[at]
                if one is not None:
                    self.messages.append(
                        self._shown(
                            one,
                            entries.first_index + row,
                            int(columns.physical_offsets[row]) - 48,
                            offsets[at],
                        )
                    )
                    self.messages[-1] |= {"term": term, "store_ms": store_ms}
                at += 1

    @staticmethod
    def _shown(one: Said, index: int, pos: int, offset: int) -> dict[str, Any]:
        producer, epoch, sequence = one.producer or (None, None, None)
        return {
            "index": index, "pos": pos, "offset": offset, "topic": one.topic, "queue": one.queue, "body": one.body,
            "message_id": one.message_id, "tag": one.tag, "keys": list(one.keys), "properties": dict(one.user), "packing": one.packing,
            "native_producer": producer, "native_epoch": epoch, "native_sequence": sequence, "frame_position": one.flag or None,
        }  # fmt: skip

    def consume(self, said: dict[str, Any], client: str, store_ms: int) -> None:
        """Lease a message to a client and acknowledge it."""
        place = (said["offset"],)
        lease = self.store.log.end_index + 1
        self.control(
            control.LeaseRecord(
                "workers", said["topic"], client, 1000, ((said["queue"], place, (1,)),)
            ),
            2,
            store_ms,
        )
        self.control(
            control.AckRecord((("workers", said["topic"], said["queue"], place, (lease,)),)),
            2,
            store_ms,
        )

    def finish(self, **more: Any) -> None:
        """Write all files as a stopped node leaves them. `more`: of the snapshot."""
        (self.root / "state").mkdir(exist_ok=True)
        (self.root / "state" / "snapshot").write_bytes(
            sealed({**SNAPSHOT, "applied_end_pos": self.store.log.end_pos, **more})
        )
        self.store.log.flush_mark()
        self.store.queues.sync()
        self.keys.sync()
        self.store.close()
        self.keys.close()


def _draft(one: Said) -> Draft:
    fields = Fields(
        message_id=one.message_id, tag=one.tag, keys=tuple(one.keys), user=dict(one.user)
    )
    body = one.body
    if one.packing == "gzip":
        body = gzip.compress(body, mtime=0)
    elif one.packing is not None:
        body = compress(body, Compression[one.packing.upper()])
    code = java_hash(one.tag) if one.tag else 0
    return Draft(one.topic, one.queue, body, encode(fields) + one.more, CREATED_MS, code)


def frame(topic: str, producer: int, first: int, count: int, **more: Any) -> list[Said]:
    """A native frame."""
    return [
        Said(
            topic,
            b"native %d" % at,
            0,
            native_id(TAG, producer, 3, first + at),
            flag=1 + at,
            producer=(producer, 3, first + at),
            **more,
        )
        for at in range(count)
    ]


def write(base: Path, rounds: int = 12) -> ViewLog:
    """Write the whole material."""
    log = ViewLog(base)
    log.control(control.Membership(("n1", "n2", "n3")), 0, CREATED_MS)
    log.control(control.TermStart(1, "n1"), 1, CREATED_MS + 1)
    sequence = 1000
    for number in range(rounds):
        now = CREATED_MS + 100 * number + 10
        term = 1 if number < rounds // 2 else 2
        if number == rounds // 2:
            log.control(control.TermStart(2, "n2"), 2, now)
        log.put(frame("flights", 7, sequence, 9, keys=("native",) if number % 3 else ()), now, term)
        sequence += 9
        log.put(
            [
                Said("flights", b"plain", 1, f"id-{number}", "UA", ("a", "b"), {"dest": "IAH", "TAGS": "odd"}),
                Said("flights", b"spaced", 1, f"id-s{number}", "été", ("one key", ""), {"größe": "ü"}),
                Said("ns@orders", b"packed " * 20, 2, f"id-p{number}", None, (), {}, packing=("lz4", "zstd", "gzip")[number % 3],
                     more=b"__LMQ.ENC\x01GZIP\x02" if number % 3 == 2 else b""),
                Said("t" * 130, b"", 0, f"id-e{number}"),
                Said("rmq_sys_ledgermq_half", b"half", 0, f"id-h{number}", more=b"REAL_TOPIC\x01flights\x02REAL_QID\x010\x02"),
            ],
            now + 1,
            term,
        )  # fmt: skip
    for at in (3, 12):
        log.consume(log.messages[at], f"client-{at}", CREATED_MS + 100 * rounds + at)
    log.finish()
    return log
