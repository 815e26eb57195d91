"""The speed of the audit: three replicas of a log with messages of several sizes, in one process
and on Spark with one core and two.

Everything in an audit counts: both CRCs of every entry, records, index units, consume queues,
derived state, comparison. One process is the speed of Python and NumPy without Spark. The storage
package itself writes the directories, completely: index, consume queues, snapshot, checkpoints.
Spark's fixed cost (session, first query) is reported separately, measured with an audit of a small
cluster.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.tools.drafts import drafts
from ledgermq.audit.run.jobs import Engine, audit, local_engine
from ledgermq.node.broker.machine import Machine
from ledgermq.node.replica.consensus.replica_boot import bootstrap
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.records import control
from ledgermq.proto.types import HardState, UnsealedBatch
from ledgermq.raft.config import Rule
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.state import identity
from ledgermq.storage.state.checkpoints import StoreCheckpoint
from ledgermq.storage.state.snapshot import write_snapshot

NAME, RUNS, DURABLE = "audit_scan", 3, False
CLUSTER = "6b1d6a3c-6a0e-4f2b-9a59-0d4c6e1f7a10"
NODES = ("n1", "n2", "n3")
CREATED_MS = 1_700_000_000_000
LOG_MIB = 256
BODIES = (100, 512, 1000)
CORES = (1, 2)
FILE_MIB = 64
BATCH = 1000
QUEUES = 8


class StoredReplica:
    """One replica written by storage and the applier, without a network: appends, syncs, applies,
    stops cleanly."""

    def __init__(
        self,
        node_directory: Path,
        data_file_bytes: int,
        index_file_bytes: int = 1 << 25,
        queue_file_bytes: int = 6_000_000,
        *,
        group: str = "g1",
        rule: Rule = Rule.MAJORITY,
    ) -> None:
        disk = RealDisk()
        name = node_directory.name
        disk.mkdirs(str(node_directory))
        identity.write_node(
            disk, str(node_directory), identity.NodeIdentity(CLUSTER, name, CREATED_MS)
        )
        mine = identity.mint(
            CLUSTER,
            group,
            name,
            f"00000000-0000-4000-8000-00000000000{name[-1]}",
            CREATED_MS,
            data_file_bytes=data_file_bytes,
            index_file_bytes=index_file_bytes,
            consume_queue_file_bytes=queue_file_bytes,
        )
        root = str(node_directory / group)
        GroupStore.create(disk, root, mine)
        self.store = GroupStore.open(disk, root, mine)
        bootstrap(self.store.log, NODES, CREATED_MS, rule)
        self.store.queues.start({}, 0)
        self.machine = Machine(
            self.store.queues,
            lambda position, size: bytes(self.store.log.record_at(position, size)),
        )
        self._next: dict[tuple[str, int], int] = {}

    def append(self, term: int, batch: UnsealedBatch, store_ms: int, *, apply: bool = True) -> None:
        offsets = np.zeros(len(batch), np.int64)
        for at, (topic, queue) in enumerate(
            zip(batch.topic_of.tolist(), batch.queues.tolist(), strict=True)
        ):
            key = batch.topics[topic], queue
            first = 1 if key[0] == control.Membership.TOPIC else 0
            offsets[at] = self._next.get(key, first)
            self._next[key] = int(offsets[at]) + 1
        self.store.log.append_leader(
            term, batch, offsets, store_ms, bytes([127, 0, 0, 1, 0, 0, 0x1F, 0x91])
        )
        if apply:
            self.apply()

    def apply(self) -> None:
        while self.machine.applied_index < self.store.log.end_index:
            self.machine.apply(self.store.log.read(self.machine.applied_index + 1, 4 << 20))

    def sync(self) -> None:
        job = self.store.log.begin_sync()
        if job is not None:
            job.run()
            self.store.log.finish_sync(job, None)

    def stop(self, *, clean: bool = True) -> None:
        self.store.hard_state.save(HardState(self.store.log.end_term, "n1"))
        if not clean:
            self.store.abandon()
            return
        self.store.log.flush_mark()
        self.store.queues.sync()
        write_snapshot(
            self.store.disk,
            self.store.state_directory,
            self.machine.export(self.store.identity.log_id),
        )
        stamps = StoreCheckpoint(
            self.machine.store_ms, self.machine.store_ms, self.machine.store_ms
        )
        self.store.write_checkpoints(self.machine.applied_index, stamps)
        self.store.close()


def term_start(term: int) -> UnsealedBatch:
    return encode_entries([control.draft(control.TermStart(term, "n1"), CREATED_MS)])


def batch_of(first: int, count: int, body_bytes: int) -> UnsealedBatch:
    bodies = [f"{first + i:012d}".encode().ljust(body_bytes, b".") for i in range(count)]
    tags = [("UA", "AA", "DL", "")[i % 4] for i in range(count)]
    keys = [f"key-{first + i}" for i in range(count)]
    ids = [f"01{first + i:030X}" for i in range(count)]
    queues = [i % QUEUES for i in range(count)]
    return encode_entries(
        drafts(
            "flights",
            bodies,
            born_ms=CREATED_MS,
            queues=queues,
            tags=tags,
            keys=keys,
            message_ids=ids,
        )
    )


def write_cluster(directory: Path, log_mib: int, body_bytes: int) -> int:
    """Three equal replicas; returns the bytes of all log entries."""
    total = 0
    for name in NODES:
        replica = StoredReplica(directory / name, FILE_MIB << 20)
        replica.append(1, term_start(1), CREATED_MS)
        number = 0
        while replica.store.log.end_pos < log_mib << 20:
            replica.append(1, batch_of(number, BATCH, body_bytes), CREATED_MS + number)
            number += BATCH
        replica.sync()
        total += replica.store.log.end_pos
        replica.stop()
    return total


def measure(directory: Path, engine: Engine, log_bytes: int) -> dict[str, Any]:
    began = time.perf_counter()
    result = audit([str(directory / name) for name in NODES], engine)
    seconds = time.perf_counter() - began
    assert result.verdict == "PASS", result.reasons
    return {"seconds": round(seconds, 3), "mib_per_s": round(log_bytes / (1 << 20) / seconds, 1)}


def run(directory: Path) -> dict[str, Any]:
    sizes = {
        f"bodies_of_{size}_bytes": (size, write_cluster(directory / str(size), LOG_MIB, size))
        for size in BODIES
    }
    tiny = write_cluster(directory / "tiny", 1, 100)
    results: dict[str, Any] = {
        "log_mib_each": LOG_MIB,
        "replicas": len(NODES),
        "file_mib": FILE_MIB,
    }
    results["one_process"] = {
        name: measure(directory / str(size), local_engine, total)
        for name, (size, total) in sizes.items()
    }
    for cores in CORES:
        results[f"spark_on_{cores}"] = on_spark(directory, cores, tiny, sizes)
    one, two = (results[f"spark_on_{cores}"]["audits"] for cores in CORES)
    results["of_one_process"] = {
        name: round(one[name]["mib_per_s"] / results["one_process"][name]["mib_per_s"], 3)
        for name in sizes
    }
    results["two_to_one"] = {
        name: round(two[name]["mib_per_s"] / one[name]["mib_per_s"], 3) for name in sizes
    }
    return results


def on_spark(
    directory: Path, cores: int, tiny: int, sizes: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    """Audits in one Spark with this many cores; its fixed cost before the first audit, and the peak
    memory of the driver's two processes."""
    from ledgermq.audit.spark.engine import SparkEngine
    from ledgermq.audit.spark.java import spark_session

    began = time.perf_counter()
    session = spark_session(f"local[{cores}]")
    try:
        engine = SparkEngine(session)
        measure(directory / "tiny", engine, tiny)
        fixed_s = round(time.perf_counter() - began, 3)
        audits = {
            name: measure(directory / str(size), engine, total)
            for name, (size, total) in sizes.items()
        }
        java = int(session._jvm.java.lang.ProcessHandle.current().pid())
        return {
            "fixed_s": fixed_s,
            "audits": audits,
            "driver_mib": {"java": most_memory(java), "python": most_memory("self")},
        }
    finally:
        session.stop()


def most_memory(process: int | str) -> float:
    """The peak resident memory of a process in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"process {process} reports no VmHWM")
