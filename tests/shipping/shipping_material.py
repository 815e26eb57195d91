"""Material for tests of shipping: replicas of one group on forgetful disks, and a network in
virtual time that loses and reorders packets.

The module creates equal logs, runs shippers against rebuilds, and reads the results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.ports import Rebuild, RebuildOutput
from ledgermq.node.replica.shipping.repair import Repair, repair_needed
from ledgermq.node.replica.shipping.shipping import Shipper
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.types import Identity, Range
from ledgermq.sim.machine.disk import ForgetfulDisk
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import snapshot
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from tests.storage.log_material import FILE_BYTES, HOST, make_batch, make_identity

ROOT = "/data/g1"
NODES = ("n1", "n2", "n3")
MS = 1_000_000


def identity_of(node: str) -> Identity:
    return replace(
        make_identity(),
        replica=node,
        incarnation=f"7c4d1c1e-9a53-4a0c-8f4f-5b1a0c9f7d2{NODES.index(node)}",
    )


def log_of(node: str) -> str:
    return f"{ROOT}/dledger-{node}"


@dataclass
class Replica:
    """One replica's disk, and the components that use it."""

    node: str
    disk: ForgetfulDisk = field(default_factory=ForgetfulDisk)

    def create(self) -> GroupStore:
        self.disk.mkdirs("/data")
        GroupStore.create(self.disk, ROOT, identity_of(self.node))
        return self.open()

    def open(self, disk: Disk | None = None) -> GroupStore:
        store = GroupStore.open(disk or self.disk, ROOT, identity_of(self.node))
        if store.log.fenced is not None:
            store.abandon()
            raise store.log.fenced
        return store

    def shipper(self) -> Shipper:
        return Shipper("g1", self.node, self.disk, ROOT)

    def repair(
        self, *, disk: Disk | None = None, session: int = 1, found: Exception | None = None
    ) -> Repair:
        """Open the log, find the damage (or use `found`), and start the repair."""
        try:
            self.open(disk).abandon()
            if found is not None:
                raise found
        except (StorageError, OSError) as failure:
            repair = repair_needed(
                disk or self.disk,
                ROOT,
                identity_of(self.node),
                failure,
                others=NODES,
                session=session,
                now_ns=0,
            )
            assert repair is not None, f"{failure!r} cannot be repaired"
            return repair
        raise AssertionError("the log opens without damage")

    def log_files(self) -> dict[str, bytes]:
        directory = f"{log_of(self.node)}/data"
        return {
            name: self.disk.read_file(f"{directory}/{name}")
            for name in self.disk.listdir(directory)
        }


def append(
    store: GroupStore, count: int, *, term: int = 1, body_bytes: int = 100, new_file: bool = False
) -> list[Range]:
    first = store.log.end_index + 1
    batch = make_batch(count, body_bytes, first=first)
    return store.log.append_leader(
        term, batch, np.arange(first, first + count), 1_700_000_000_500, HOST, new_file=new_file
    )


def copy_to(store: GroupStore, ranges: Iterable[Range]) -> None:
    for piece in ranges:
        data = bytes(piece.data)
        store.log.append_range(
            verify_range(data, piece.first_index, piece.term, piece.pos, piece.prev_chain)
        )


def synced(store: GroupStore) -> None:
    job = store.log.begin_sync(idle=True)
    if job is not None:
        job.run()
        store.log.finish_sync(job, None)


Batches = Iterable[tuple[int, int, int]]
"""(count, term, body bytes) of consecutive appended batches."""
STANDARD: Batches = ((10, 1, 100), (8, 2, 300), (3, 2, 1500), (12, 3, 50), (20, 5, 200))


def write_snapshot(store: GroupStore, applied: int) -> None:
    """Write a snapshot as a node does: dispatch up to `applied`, then sync the queues first."""
    index = store.log.begin_index
    while index <= applied:
        entries = store.log.read(index, 4096)
        store.queues.append(record_columns(entries))
        index = entries.last_index + 1
    store.queues.sync()
    value = {
        "log_id": store.identity.log_id,
        "applied_index": index - 1,
        "applied_term": store.log.term_at(index - 1),
        "chain_crc": store.log.chain_at(index - 1),
        "queues": {
            topic: {str(queue): end for queue, end in ends.items()}
            for topic, ends in store.queues.next_offsets().items()
        },
        "minimums": snapshot.export_minimums(store.queues.minimums()),
    }
    store.write_snapshot(value)
    store.write_snapshot(value)


def replicas(
    batches: Batches = STANDARD,
    nodes: Iterable[str] = NODES,
    *,
    committed: int | None = None,
    early: bool = False,
) -> dict[str, Replica]:
    """Replicas with equal logs, stopped cleanly. `committed` is recorded as committed (default: all
    entries). `early`: each batch begins a file."""
    made = {node: Replica(node) for node in nodes}
    stores = {node: replica.create() for node, replica in made.items()}
    first, *rest = stores.values()
    for count, term, body_bytes in batches:
        ranges = append(first, count, term=term, body_bytes=body_bytes, new_file=early)
        for store in rest:
            copy_to(store, ranges)
    for store in stores.values():
        synced(store)
        store.write_checkpoints(
            store.log.end_index if committed is None else committed, StoreCheckpoint()
        )
        store.close()
    return made


class Wire:
    """Delivers packets between nodes in virtual time: each is lost, or arrives after a random
    delay."""

    def __init__(
        self, seed: int = 0, *, loss: float = 0.0, delay_ms: tuple[int, int] = (1, 3)
    ) -> None:
        self.now_ns = 0
        self.chance = random.Random(seed)
        self.loss = loss
        self.delay_ms = delay_ms
        self.cut: set[str] = set()
        """Partitioned nodes."""
        self.packets = 0
        self._flying: list[tuple[int, int, str, str, PeerPacket]] = []

    def send(self, sender: str, packets: Iterable[tuple[str, PeerPacket]]) -> None:
        for to, packet in packets:
            self.packets += 1
            if self.chance.random() >= self.loss and not self.cut & {sender, to}:
                delay = self.chance.randint(*self.delay_ms) * MS
                kept = PeerPacket(packet.header, bytes(packet.payload))
                self._flying.append((self.now_ns + delay, self.packets, sender, to, kept))

    def due(self) -> dict[str, list[tuple[str, PeerPacket]]]:
        arrived: dict[str, list[tuple[str, PeerPacket]]] = {}
        for flight in sorted(flight for flight in self._flying if flight[0] <= self.now_ns):
            arrived.setdefault(flight[3], []).append((flight[2], flight[4]))
        self._flying = [flight for flight in self._flying if flight[0] > self.now_ns]
        return arrived

    def next_ns(self) -> int:
        return min((flight[0] for flight in self._flying), default=1 << 62)


def run(
    wire: Wire,
    shippers: Mapping[str, Shipper],
    rebuilds: Mapping[str, Rebuild],
    *,
    limit_ns: int = 120_000 * MS,
    until: Callable[[dict[str, RebuildOutput]], bool] | None = None,
) -> dict[str, RebuildOutput]:
    """Run shippers and rebuilds until every rebuild is finished or `until` holds. Returns the last
    output of each rebuild."""
    last: dict[str, RebuildOutput] = {}
    wakes = dict.fromkeys([*shippers, *rebuilds], wire.now_ns)
    deadline = wire.now_ns + limit_ns
    while wire.now_ns < deadline:
        arrived = wire.due()
        for node in sorted({*shippers, *rebuilds}):
            inbox = arrived.get(node, [])
            if not inbox and wire.now_ns < wakes.get(node, 1 << 62):
                continue
            wakes[node] = 1 << 62
            if node in shippers:
                served = shippers[node].turn(wire.now_ns, inbox)
                wire.send(node, served.packets)
                if served.wake_at_ns >= 0:
                    wakes[node] = served.wake_at_ns
            if node in rebuilds and not (node in last and last[node].finished):
                last[node] = rebuilds[node].turn(wire.now_ns, inbox)
                wire.send(node, last[node].packets)
                wakes[node] = min(wakes[node], last[node].wake_at_ns)
        if len(last) == len(rebuilds) and (
            until(last) if until else all(output.finished for output in last.values())
        ):
            return last
        later = min([wire.next_ns(), *wakes.values()])
        assert later < 1 << 62, f"all nodes wait without a timer: {last}"
        wire.now_ns = max(wire.now_ns + MS // 10, later)
    raise AssertionError(f"not finished after {limit_ns / 1e9} virtual seconds: {last}")


__all__ = [
    "FILE_BYTES",
    "NODES",
    "ROOT",
    "Replica",
    "Wire",
    "append",
    "copy_to",
    "identity_of",
    "log_of",
    "replicas",
    "run",
    "synced",
]
