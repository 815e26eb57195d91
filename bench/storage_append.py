"""The cost of an append to the entry log on one core without waiting for the disk, and the duration
of a group commit of 1,000 messages.

The `append_*` figures are microseconds per message through the public append, including both CRCs,
the chain and the index. `from_inputs` starts with messages that have their properties,
`from_encoded` with an unsealed batch, `follower` with a verified range, and `follower_verify` with
received bytes.
`dispatch` adds a verified range to its consume queue.

`modes` compares the three ways of appending, in microseconds per message without waiting for the
disk. `bandwidth` measures a leader that appends encoded batches while group commits run one after
another, with everything durable at the end. Its `ratio` compares that with plain `pwrite` calls of
1 MiB into a preallocated file with one fdatasync every 64 MiB, measured immediately before on the
same disk. `single` measures appending and syncing one message repeatedly, alternating with a bare
fdatasync of a page that was just written.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.tools.drafts import drafts
from ledgermq.proto.entries import layout
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries, host_bytes
from ledgermq.proto.entries.entry_sealing import seal
from ledgermq.proto.types import Identity, UnsealedBatch
from ledgermq.storage.files.mapped_files import run_now
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.durability import SyncJob
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.log_writer import MODES, AtOnceIfSlow, make_writer
from ledgermq.storage.queues.queue_buffer import BufferedQueues
from ledgermq.storage.state import identity

NAME, RUNS, DURABLE = "storage_append", 3, True
MESSAGES = 1000
BODY_BYTES = 100
RANGES = 200
FILE_MIB = 64
CLUSTER = "00000000-0000-4000-8000-000000000001"
CARRIERS = [
    "UA",
    "AA",
    "B6",
    "DL",
    "EV",
    "MQ",
    "US",
    "WN",
    "VX",
    "FL",
    "AS",
    "9E",
    "F9",
    "HA",
    "YV",
    "OO",
]
BORN_MS = 1_700_000_000_000
HOST = host_bytes("127.0.0.1", 8081)
BANDWIDTH_MIB = 128
BANDWIDTH_BODIES = (1024, 4096, 16384)
BATCH_BYTES = 1 << 20
PLAIN_SYNC_EVERY = 64 << 20
UNSYNCED_MAX = PLAIN_SYNC_EVERY
"""The maximum number of bytes a leader has in progress: no more than the reference measurement
writes between two syncs."""
SINGLES = 200


def new_identity(file_mib: int) -> Identity:
    return identity.mint(CLUSTER, "bench", "n1", CLUSTER, BORN_MS, data_file_bytes=file_mib << 20)


def new_log(directory: Path, who: Identity, mode: str = "pwrite") -> EntryLog:
    """An empty log whose first file already exists, so that creating the file is not measured."""
    disk = RealDisk()
    disk.mkdirs(str(directory))
    EntryLog.create(disk, str(directory), who)
    return EntryLog.open(disk, str(directory), who, clean=True, writer=make_writer(mode))


class Inputs:
    """The messages of which every batch is made; in queues in turn and with identifiers, as
    messages from clients have them, if there are `queues`."""

    def __init__(self, messages: int, body_bytes: int, queues: int = 0) -> None:
        self.count = messages
        self.offsets = np.arange(messages, dtype=np.int64)
        self._drafts = drafts(
            "flights",
            [(i % 251).to_bytes(1, "big") * body_bytes for i in range(messages)],
            born_ms=BORN_MS,
            queues=[i % queues for i in range(messages)] if queues else None,
            tags=[CARRIERS[i % len(CARRIERS)] for i in range(messages)],
            keys=[f"key-{i}" for i in range(messages)],
            message_ids=[f"01{i:032X}" for i in range(messages)] if queues else None,
        )

    def encode(self) -> UnsealedBatch:
        return encode_entries(self._drafts)


def median(times_ns: list[int], messages: int) -> float:
    """The median in microseconds per message, without the first tenth of the measurements."""
    return round(statistics.median(times_ns[len(times_ns) // 10 :]) / 1000 / messages, 3)


def appends(directory: Path, batches: int, inputs: Inputs, file_mib: int) -> dict[str, float]:
    leader = new_log(directory / "leader", new_identity(file_mib))
    follower = new_log(directory / "follower", new_identity(file_mib))
    names = (
        "append_from_inputs",
        "append_from_encoded",
        "seal_alone",
        "follower",
        "follower_verify",
    )
    times: dict[str, list[int]] = {name: [] for name in names}
    for number in range(batches):
        begin = time.perf_counter_ns()
        offsets = inputs.offsets + 2 * number * inputs.count
        ranges = leader.append_leader(1, inputs.encode(), offsets, BORN_MS, HOST)
        times["append_from_inputs"].append(time.perf_counter_ns() - begin)
        batch = inputs.encode()
        begin = time.perf_counter_ns()
        ranges += leader.append_leader(1, batch, offsets + inputs.count, BORN_MS, HOST)
        times["append_from_encoded"].append(time.perf_counter_ns() - begin)
        begin = time.perf_counter_ns()
        seal(
            batch,
            first_index=0,
            term=1,
            pos=0,
            queue_offsets=inputs.offsets,
            store_ms=BORN_MS,
            store_host=HOST,
            prev_chain=0,
        )
        times["seal_alone"].append(time.perf_counter_ns() - begin)
        copies = [
            (entries, bytes(leader.read(entries.first_index, 1 << 30).data)) for entries in ranges
        ]
        for entries, received in copies:
            begin = time.perf_counter_ns()
            verified = verify_range(
                received[: len(entries.data)],
                entries.first_index,
                1,
                entries.pos,
                entries.prev_chain,
            )
            middle = time.perf_counter_ns()
            follower.append_range(verified)
            end = time.perf_counter_ns()
            if len(entries) == inputs.count:
                times["follower"].append(end - middle)
                times["follower_verify"].append(end - begin)
        if number % 20 == 19:
            leader.flush_mark()
            follower.flush_mark()
    leader.close()
    follower.close()
    return {f"{name}_us": median(values, inputs.count) for name, values in times.items()}


def dispatches(directory: Path, batches: int, file_mib: int) -> dict[str, float]:
    """Dispatch verified ranges to four consume queues."""
    inputs = Inputs(MESSAGES, BODY_BYTES, 4)
    queues = BufferedQueues(
        RealDisk(), f"{directory}/consumequeue", new_identity(file_mib).consume_queue_file_bytes
    )
    log = new_log(directory / "dispatch", new_identity(file_mib))
    times: dict[str, list[int]] = {"dispatch": [], "dispatch_columns_alone": []}
    for number in range(batches):
        offsets = (number * inputs.count + inputs.offsets) // 4
        for entries in log.append_leader(1, inputs.encode(), offsets, BORN_MS, HOST):
            begin = time.perf_counter_ns()
            columns = layout.record_columns(entries)
            middle = time.perf_counter_ns()
            queues.append(columns)
            end = time.perf_counter_ns()
            if len(entries) == inputs.count:
                times["dispatch"].append(end - begin)
                times["dispatch_columns_alone"].append(middle - begin)
    log.close()
    queues.close()
    return {f"{name}_us": median(values, inputs.count) for name, values in times.items()}


def commits(directory: Path, batches: int, inputs: Inputs, file_mib: int) -> dict[str, float]:
    """Repeat: a thousand messages and one sync."""
    log = new_log(directory / "commits", new_identity(file_mib))
    times = []
    for _ in range(batches):
        log.append_leader(1, inputs.encode(), inputs.offsets, BORN_MS, HOST)
        job = log.begin_sync()
        assert job is not None
        begin = time.perf_counter_ns()
        job.run()
        times.append(time.perf_counter_ns() - begin)
        log.finish_sync(job, None)
    log.close()
    ordered = sorted(times)
    return {
        "group_commit_p50_ms": round(ordered[len(ordered) // 2] / 1e6, 3),
        "group_commit_p99_ms": round(ordered[len(ordered) * 99 // 100] / 1e6, 3),
    }


@contextmanager
def threaded_log(directory: Path, mode: str, file_bytes: int) -> Iterator[EntryLog]:
    """A log with the threads that a node gives it. Its first file exists, and no further file is
    created during the measurement."""
    disk, who = (
        RealDisk(),
        identity.mint(CLUSTER, "bench", "n1", CLUSTER, BORN_MS, data_file_bytes=file_bytes),
    )
    disk.mkdirs(str(directory))
    EntryLog.create(disk, str(directory), who)
    EntryLog.open(disk, str(directory), who, clean=True, submit=run_now).close()
    with ThreadPoolExecutor(1) as commits:

        def submit(work: Callable[[], object]) -> None:
            commits.submit(work)

        writer = make_writer(mode, submit=submit, together=AtOnceIfSlow(2, "bench"))
        log = EntryLog.open(
            disk, str(directory), who, clean=True, submit=lambda work: None, writer=writer
        )
        log._data.extend()
        log._data.at(0).warm(stores=mode == "map")
        yield log
        log.close()


def modes_alone(directory: Path, batches: int, inputs: Inputs, file_mib: int) -> dict[str, float]:
    """Microseconds per message from an encoded batch to the end of the append, without a sync in
    between; the modes alternate."""
    logs = {
        mode: new_log(directory / f"alone-{mode}", new_identity(file_mib), mode) for mode in MODES
    }
    times: dict[str, list[int]] = {mode: [] for mode in MODES}
    for number in range(batches):
        for mode, log in logs.items():
            batch = inputs.encode()
            begin = time.perf_counter_ns()
            log.append_leader(1, batch, inputs.offsets + number * inputs.count, BORN_MS, HOST)
            times[mode].append(time.perf_counter_ns() - begin)
            if number % 20 == 19:
                log.flush_mark()
    for log in logs.values():
        log.close()
    return {f"{mode}_us": median(values, inputs.count) for mode, values in times.items()}


class Plain:
    """The reference measurement: a preallocated file, written in pieces of 1 MiB."""

    def __init__(self, path: Path, mib: int) -> None:
        self._size = mib << 20
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._piece = os.urandom(1 << 20)
        for offset in range(0, self._size, 1 << 20):
            os.pwrite(self._fd, bytes(1 << 20), offset)
        os.fsync(self._fd)

    def mib_per_s(self) -> float:
        begin = time.perf_counter()
        for offset in range(0, self._size, 1 << 20):
            os.pwrite(self._fd, self._piece, offset)
            if (offset + (1 << 20)) % PLAIN_SYNC_EVERY == 0:
                os.fdatasync(self._fd)
        os.fdatasync(self._fd)
        return (self._size >> 20) / (time.perf_counter() - begin)

    def sync_ns(self, page: int) -> int:
        os.pwrite(self._fd, self._piece[:300], page * 300)
        begin = time.perf_counter_ns()
        os.fdatasync(self._fd)
        return time.perf_counter_ns() - begin

    def close(self) -> None:
        os.close(self._fd)


def durable_mib_per_s(log: EntryLog, body_bytes: int, mib: int) -> float:
    """Append from one thread and sync from another; each commit's batch contains what arrived
    during the previous commit."""
    count = max(1, BATCH_BYTES // body_bytes)
    batch = Inputs(count, body_bytes).encode()
    offsets = np.arange(count, dtype=np.int64)
    job: SyncJob | None = None
    running: Future[None] | None = None
    synced_pos, target = 0, mib << 20
    with ThreadPoolExecutor(1) as syncs:
        begin = time.perf_counter()
        while log.durable_index < log.end_index or log.end_pos < target:
            more = log.end_pos < target and log.end_pos - synced_pos < UNSYNCED_MAX
            if more:
                log.append_leader(1, batch, offsets, BORN_MS, HOST)
            if running is None and (job := log.begin_sync()) is not None:
                job_pos, running = log.end_pos, syncs.submit(job.run)
            if running is not None and (running.done() or not more):
                running.result()
                assert job is not None
                log.finish_sync(job, None)
                synced_pos, running = job_pos, None
        took = time.perf_counter() - begin
    return (log.end_pos / (1 << 20)) / took


def bandwidth(directory: Path, plain: Plain, mib: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for body_bytes in BANDWIDTH_BODIES:
        for mode in MODES:
            yardstick = plain.mib_per_s()
            with threaded_log(
                directory / f"bandwidth-{mode}-{body_bytes}", mode, (mib + 32) << 20
            ) as log:
                found = durable_mib_per_s(log, body_bytes, mib)
            results.setdefault(f"body_{body_bytes}", {})[mode] = {
                "mib_per_s": round(found, 1),
                "plain_mib_per_s": round(yardstick, 1),
                "ratio": round(found / yardstick, 3),
            }
    return results


def singles(directory: Path, plain: Plain, count: int) -> dict[str, Any]:
    """The median duration of an append that waits for its own sync, and how much longer it is than
    a bare fdatasync."""
    results = {}
    for mode in MODES:
        append_ns, sync_ns = [], []
        with threaded_log(directory / f"single-{mode}", mode, 16 << 20) as log:
            for number in range(count):
                batch = Inputs(1, BODY_BYTES).encode()
                begin = time.perf_counter_ns()
                log.append_leader(1, batch, np.array([number]), BORN_MS, HOST)
                job = log.begin_sync()
                assert job is not None
                job.run()
                log.finish_sync(job, None)
                append_ns.append(time.perf_counter_ns() - begin)
                sync_ns.append(plain.sync_ns(number))
        append_us, sync_us = statistics.median(append_ns) / 1000, statistics.median(sync_ns) / 1000
        results[mode] = {
            "append_p50_us": round(append_us, 1),
            "fdatasync_p50_us": round(sync_us, 1),
            "above_fdatasync_us": round(append_us - sync_us, 1),
        }
    return results


def modes(directory: Path, inputs: Inputs) -> dict[str, Any]:
    plain = Plain(directory / "plain", BANDWIDTH_MIB)
    try:
        return {
            "append_from_encoded": modes_alone(directory, RANGES, inputs, FILE_MIB),
            "bandwidth_mib": BANDWIDTH_MIB,
            "bandwidth": bandwidth(directory, plain, BANDWIDTH_MIB),
            "single": singles(directory, plain, SINGLES),
        }
    finally:
        plain.close()


def run(directory: Path) -> dict[str, Any]:
    inputs = Inputs(MESSAGES, BODY_BYTES)
    return {
        "messages_a_range": MESSAGES,
        "body_bytes": BODY_BYTES,
        "ranges": RANGES,
        "file_mib": FILE_MIB,
        **appends(directory, RANGES, inputs, FILE_MIB),
        **dispatches(directory, RANGES, FILE_MIB),
        **commits(directory, RANGES, inputs, FILE_MIB),
        "modes": modes(directory, inputs),
    }
