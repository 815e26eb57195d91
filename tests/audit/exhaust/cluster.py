"""The small clusters that are damaged byte by byte: three replicas of a Raft group and of an HA
group, some sixty entries of all kinds.

The leader and the machine of the product make the entries (`World`); the storage of the product
writes them, and all that is derived from them, once for every replica. Files are as small as the
product makes them. Nothing is damaged here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import lz4.frame
import numpy as np

from bench.audit_scan import CREATED_MS, NODES, StoredReplica
from bench.tools.drafts import drafts
from ledgermq.node.broker.calls.send_calls import Produce, ProduceFrame
from ledgermq.node.replica.consensus.replica_boot import record_of
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import make_range, seal
from ledgermq.proto.entries.layout import java_hash
from ledgermq.proto.entries.native_ids import native_id
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.levels import FIRST_LEVEL, TREE_LEVEL
from ledgermq.proto.proofs.entries_tree import EntriesTree
from ledgermq.proto.records import control
from ledgermq.proto.records.control import (
    AuditRecord,
    ControlRecord,
    LevelRecord,
    SealRecord,
    TrimRecord,
)
from ledgermq.proto.types import Draft, Frame, HardState, UnsealedBatch
from ledgermq.raft.config import Members, Rule
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.file_digest import file_digest
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.state import identity
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from tests.node_core.core_fakes import EPOCH_MS, MemoryLog
from tests.node_core.core_frames import LOG_TAG
from tests.node_core.core_world import World

DATA_BYTES, INDEX_BYTES, QUEUE_BYTES = 4096, 32 * 20, 20 * 6
KEY_SLOTS, KEY_UNITS = 5, 16
UNSYNCED = 20
"""So many of the last entries are in the key index of a killed node, and not yet counted by its
position."""
SEALED = (0, DATA_BYTES)
"""Log files of which a record tells the digest."""
STEPS: Sequence[tuple[str, int, int]] = (
    ("send", 1, 2),
    ("send", 0, 1),
    ("delay", 1, 0),
    ("delay", 0, 1),
    ("recall", 1, 0),
    ("send_lite", 0, 1),
    ("sync_lite", 3, 1),
    ("open", 2, 0),
    ("frames", 0, 1),
    ("prepare", 1, 1),
    ("prepare", 1, 2),
    ("resolve", 0, 0),
    ("line_up", 0, 0),
    ("receive", 0, 3),
    ("ack", 0, 1),
    ("change", 1, 1),
    ("forward", 2, 0),
    ("receive", 2, 1),
    ("change", 0, 1),
    ("resolve", 1, 1),
    ("commit", 1, 0),
    ("reset", 3, 0),
    ("time", 1, 0),
    ("fail_over", 1, 0),
    ("send", 1, 2),
    ("receive_lite", 0, 1),
    ("topic", 0, 2),
)
LZ4 = 0x101
TIMER_TOPIC = "rmq_sys_ledgermq_timer"


@dataclass(frozen=True, slots=True)
class Shape:
    """A broker group: its rule, whether a part of its log is trimmed, and its feature level."""

    group: str
    rule: Rule
    trimmed: bool
    level: int = FIRST_LEVEL


SHAPES = {
    "raft": Shape("raft", Rule.MAJORITY, False),
    "ha": Shape("ha", Rule.IN_SYNC, True),
    "raft-trimmed": Shape("raft", Rule.MAJORITY, True, TREE_LEVEL),
    "ha-whole": Shape("ha", Rule.IN_SYNC, False, TREE_LEVEL),
}
CLUSTERS = {"one": ("raft", "ha"), "other": ("raft-trimmed", "ha-whole")}
"""Two clusters: each has both kinds of groups, and a trimmed one and a whole one. In the second one
seals have roots, and groups have log trees."""


class Small(StoredReplica):
    """One replica in the making."""

    def __init__(self, node_directory: Path, shape: Shape) -> None:
        super().__init__(
            node_directory, DATA_BYTES, INDEX_BYTES, QUEUE_BYTES, group=shape.group, rule=shape.rule
        )
        self.shape = shape
        self.voted = 0
        self.term, self.now_ms = 0, CREATED_MS
        self.apply()

    def put(
        self, batch: UnsealedBatch, store_ms: int | None = None, term: int | None = None
    ) -> None:
        """One range of the log; queue offsets go on where the machine is."""
        self.now_ms = self.now_ms + 1 if store_ms is None else store_ms
        self.term = self.term if term is None else term
        if self.term > self.voted:
            self.store.hard_state.save(HardState(self.term, "n1"))
            self.voted = self.term
        offsets = np.zeros(len(batch), np.int64)
        ends: dict[tuple[str, int], int] = {}
        for at, (number, queue) in enumerate(
            zip(batch.topic_of.tolist(), batch.queues.tolist(), strict=True)
        ):
            key = batch.topics[number], queue
            offsets[at] = ends.get(key, self.machine.end(*key))
            ends[key] = int(offsets[at]) + 1
        self.store.log.append_leader(
            self.term, batch, offsets, self.now_ms, bytes([127, 0, 0, 1, 0, 0, 0x1F, 0x91])
        )
        self.apply()
        self.sync()

    def record(self, record: ControlRecord) -> None:
        self.put(encode_entries([control.draft(record, CREATED_MS, level=self.machine.level)]))

    def snapshot(self) -> None:
        self.store.queues.sync()
        self.store.write_snapshot(self.machine.export(self.store.identity.log_id))

    def complete_files(self) -> list[int]:
        log = self.store.log
        return list(range(log.begin_pos, log.end_pos - log.end_pos % DATA_BYTES, DATA_BYTES))

    def digest(self, base: int) -> str:
        return file_digest(
            self.store.disk, f"{self.store.log_directory}/data/{base:020d}", lambda count: None
        )

    def root(self, base: int) -> str:
        """The root of the tree over the entries of a complete file."""
        tree = EntriesTree()
        first, last, end = self.edges(base)
        tree.add(
            self.store.disk.read_file(f"{self.store.log_directory}/data/{base:020d}")[: end - base]
        )
        assert tree.count == last - first + 1
        return tree.root().hex()

    def edges(self, base: int) -> tuple[int, int, int]:
        """The first and the last entry of a complete file, and the position behind it."""
        log = self.store.log
        inside = [
            index
            for index in range(log.begin_index, log.end_index + 1)
            if base <= log.pos_of(index) < base + DATA_BYTES
        ]
        entry = log.read(inside[-1], 1)
        return inside[0], inside[-1], log.pos_of(inside[-1]) + int(entry.sizes[0])

    def seal(self, base: int) -> None:
        """The record of a complete file."""
        root = self.root(base) if self.shape.level >= TREE_LEVEL else ""
        self.record(
            SealRecord(base, *self.edges(base), self.digest(base), ("n1", "n2", "n3"), root)
        )

    def trim(self, base: int) -> None:
        """Everything before that file goes."""
        log = self.store.log
        begin = next(
            index
            for index in range(log.begin_index, log.end_index + 1)
            if log.pos_of(index) >= base
        )
        before = log.term_at(begin - 1), log.chain_at(begin - 1)
        self.record(
            TrimRecord(
                begin,
                log.pos_of(begin),
                *before,
                self.machine.begin_index,
                ((0, self.digest(0)),),
                "time",
            )
        )
        self.snapshot()
        self.record(AuditRecord("audit-before"))
        self.snapshot()
        log.trim(self.machine.begin_index)
        self.store.queues.trim(self.machine.begin_pos)

    def stop(self, *, clean: bool = True) -> None:
        """As a node stops, with every file that a running one would have written by and by. In the
        key index of a killed one lies more than its position tells."""
        store, machine, log = self.store, self.machine, self.store.log
        index = KeyIndex(
            store.disk, store.root, store.identity.log_id, slots=KEY_SLOTS, units=KEY_UNITS
        )
        index.start(log.begin_index, log.end_index, log.chain_at)
        index.load(itertools.repeat(None))
        synced = machine.applied_index - (0 if clean else UNSYNCED)
        for last in (synced, machine.applied_index):
            while index.next_index <= last:
                entries = log.read(index.next_index, 1 << 20)
                index.append(entries if entries.last_index <= last else cut(entries, last))
            while last == synced and index.tend(itertools.repeat(None)):
                pass
            if last == synced:
                index.sync()
        log.flush_mark()
        self.snapshot()
        stamps = StoreCheckpoint(machine.store_ms, machine.store_ms, index.durable_store_ms)
        store.write_checkpoints(machine.applied_index, stamps)
        self.write_notes()
        index.close()
        if clean:
            store.close()
        else:
            store.abandon()

    def write_notes(self) -> None:
        """The small files that a node keeps beside its log."""
        disk, state, log_id = (
            self.store.disk,
            self.store.state_directory,
            self.store.identity.log_id,
        )
        met = {
            name: f"00000000-0000-4000-8000-00000000000{name[-1]}"
            for name in NODES
            if name != self.store.identity.replica
        }
        identity.write_peers(
            disk,
            state,
            met,
            met,
            {name: (mine, 1, "boot") for name, mine in met.items()},
            vouched=True,
        )
        identity.note_boot(disk, state, f"{self.store.identity.replica}-000000000001")
        complete = self.complete_files()
        roots = (
            {"roots": {str(base): self.root(base) for base in complete}}
            if self.shape.level >= TREE_LEVEL
            else {}
        )
        notes = {
            "digests": {"digests": {str(base): self.digest(base) for base in complete}, **roots},
            "scrub": {"files": [[base, CREATED_MS] for base in complete]},
            "leadership": {"events": [[CREATED_MS, 1, None, "n1", 1, "", 0]]},
        }
        for name, value in notes.items():
            sealed_json.write(disk, f"{state}/{name}", {"v": 1, "log_id": log_id, **value})
        disk.replace_file(f"{state}/reserve", bytes(64))


@cache
def story() -> list[tuple[int, int, bytes]]:
    """(term, store time, bytes) of every entry that the leaders of two terms appended."""
    log = MemoryLog()
    first = encode_entries([control.draft(record_of(Members(NODES), ""), CREATED_MS)])
    place = {"first_index": 0, "term": 0, "pos": 0, "prev_chain": log.chain}
    seal(
        first,
        queue_offsets=np.zeros(1, np.int64),
        store_ms=CREATED_MS,
        store_host=bytes(8),
        **place,
    )
    log.append(make_range(first, 0, 1, **place))
    world = World(log)
    everything = Fields(
        "id-everything",
        "T",
        ["one", "key", "two words"],
        trace_context="00-ab",
        born_host="höst",
        user={"a": "b", "TAGS": "u"},
    )
    world.turn(
        Produce(
            world.token, [Draft("n", 1, b"all of it", encode(everything), EPOCH_MS, java_hash("T"))]
        )
    )
    urgent = Fields("id-urgent", priority=7, gzip=True)
    world.turn(Produce(world.token, [Draft("m", 0, b"", encode(urgent), EPOCH_MS)]))
    for name, a, b in STEPS:
        getattr(world, name)(a, b)
    ((producer, number),) = world.next.items()
    world.turn(ProduceFrame(world.token, "n", packed(producer, world.producers[producer], number)))
    world.heal()
    rows = [
        (entries, at, int(size))
        for entries in log.ranges
        for at, size in zip(entries.starts.tolist(), entries.sizes, strict=True)
    ]
    entries = [
        (entries.term, bytes(entries.data[at : at + size])) for entries, at, size in rows[1:]
    ]
    return [(term, int.from_bytes(entry[104:112], "big"), entry) for term, entry in entries]


def packed(producer: int, epoch: int, number: int) -> Frame:
    """A frame of one message whose body is compressed."""
    body = lz4.frame.compress(b"ledger " * 9)
    ids = [native_id(LOG_TAG, producer, epoch, number)]
    batch = encode_entries(drafts("n", [body], born_ms=EPOCH_MS, message_ids=ids))
    batch.data[64:68] = (1).to_bytes(4, "big")
    batch.data[84:88] = LZ4.to_bytes(4, "big")
    return Frame(producer, epoch, number, batch)


def unsealed(entry: bytes) -> UnsealedBatch:
    """One entry of a log as it was before it had a place."""
    data = bytearray(entry)
    for start, stop in ((0, 32), (36, 48), (68, 84), (104, 120)):
        data[start:stop] = bytes(stop - start)
    topic_at = 136 + int.from_bytes(data[132:136], "big")
    topic = bytes(data[topic_at + 1 : topic_at + 1 + data[topic_at]]).decode()
    return UnsealedBatch.of_few(data, [0, len(data)], [(topic, int.from_bytes(data[60:64], "big"))])


Step = Callable[[Small], None]


def steps(shape: Shape) -> list[Step]:
    """What happens to every replica of the group, one after the other."""
    found: list[Step] = [_entry(*entry) for entry in story()]
    found.insert(len(found) // 2, Small.snapshot)
    joined = replace(
        Members(NODES, frozenset({"n4"}), {"n4": "00000000-0000-4000-8000-000000000004"}),
        rule=shape.rule,
    )
    found += [
        _record(record_of(joined, "n4 joins")),
        _record(record_of(Members(NODES, rule=shape.rule), "n4 leaves")),
    ]
    found += [_record(LevelRecord(level)) for level in range(FIRST_LEVEL + 1, shape.level + 1)]
    found += [_seal(base) for base in SEALED]
    if shape.trimmed:
        found.append(lambda one: one.trim(DATA_BYTES))
    late = Fields("id-late", "T", ["one"])
    found.append(
        lambda one: one.put(
            encode_entries([Draft("n", 0, b"late", encode(late), EPOCH_MS, java_hash("T"))])
        )
    )
    return [*found, _record(AuditRecord("audit-last"))]


def _entry(term: int, store_ms: int, entry: bytes) -> Step:
    return lambda one: one.put(unsealed(entry), store_ms, term)


def _seal(base: int) -> Step:
    return lambda one: one.seal(base)


def _record(record: ControlRecord) -> Step:
    return lambda one: one.record(record)


def build(
    base: Path, cluster: str = "one", *, lives: int | None = None, clean: Collection[str] = NODES
) -> list[str]:
    """The cluster on disk; its node directories. `lives`: only the first steps of each group.
    `clean`: replicas stopped in good order."""
    for name in NODES:
        for shape in (SHAPES[which] for which in CLUSTERS[cluster]):
            one = Small(base / name, shape)
            for step in steps(shape)[:lives]:
                step(one)
            one.stop(clean=name in clean)
    return [str(base / name) for name in NODES]
