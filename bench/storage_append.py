"""What an append to the entry log costs on one core without waiting for the disk, and what a group commit of 1,000 messages takes.

`append_*` are µs a message through the public append, both CRCs, chain and index included: `from_inputs` begins with (body, tag, key)
columns, `from_encoded` with an unsealed batch, `follower` with a verified range, `follower_verify` with received bytes; `dispatch` takes a
verified range to its consume queue.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from ledgermq.proto import layout
from ledgermq.proto.types import Identity, UnsealedBatch
from ledgermq.storage import identity
from ledgermq.storage.consume_queue import ConsumeQueues
from ledgermq.storage.entry_log import EntryLog
from ledgermq.storage.real_disk import RealDisk

NAME, RUNS, DURABLE = "storage_append", 3, True
MESSAGES = 1000
BODY_BYTES = 100
RANGES = 200
FILE_MIB = 64
CLUSTER = "00000000-0000-4000-8000-000000000001"
CARRIERS = ["UA", "AA", "B6", "DL", "EV", "MQ", "US", "WN", "VX", "FL", "AS", "9E", "F9", "HA", "YV", "OO"]
BORN_MS = 1_700_000_000_000
HOST = layout.host_bytes("127.0.0.1", 8081)


def new_identity(file_mib: int) -> Identity:
    return identity.mint(CLUSTER, "bench", "n1", CLUSTER, BORN_MS, data_file_bytes=file_mib << 20)


def new_log(directory: Path, who: Identity) -> EntryLog:
    """An empty log whose first file exists, so that its making is not measured."""
    disk = RealDisk()
    disk.mkdirs(str(directory))
    EntryLog.create(disk, str(directory), who)
    return EntryLog.open(disk, str(directory), who, clean=True)


class Inputs:
    """The columns every batch is made of."""

    def __init__(self, messages: int, body_bytes: int) -> None:
        self.count = messages
        self.bodies = [(i % 251).to_bytes(1, "big") * body_bytes for i in range(messages)]
        self.tags = [CARRIERS[i % len(CARRIERS)] for i in range(messages)]
        self.keys = [f"key-{i}" for i in range(messages)]
        self.offsets = np.arange(messages, dtype=np.int64)

    def encode(self) -> UnsealedBatch:
        return layout.encode_messages("flights", 0, self.bodies, born_ms=BORN_MS, tags=self.tags, keys=self.keys)


def median(times_ns: list[int], messages: int) -> float:
    """Median in µs a message, without the first tenth."""
    return round(statistics.median(times_ns[len(times_ns) // 10 :]) / 1000 / messages, 3)


def appends(directory: Path, batches: int, inputs: Inputs, file_mib: int) -> dict[str, float]:
    leader = new_log(directory / "leader", new_identity(file_mib))
    follower = new_log(directory / "follower", new_identity(file_mib))
    names = ("append_from_inputs", "append_from_encoded", "seal_alone", "follower", "follower_verify")
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
        layout.seal(
            batch, first_index=0, term=1, pos=0, queue_offsets=inputs.offsets, store_ms=BORN_MS, store_host=HOST, prev_chain=0
        )
        times["seal_alone"].append(time.perf_counter_ns() - begin)
        copies = [(entries, bytes(leader.read(entries.first_index, 1 << 30).data)) for entries in ranges]
        for entries, received in copies:
            begin = time.perf_counter_ns()
            verified = layout.verify_range(received[: len(entries.data)], entries.first_index, 1, entries.pos, entries.prev_chain)
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


def dispatches(directory: Path, batches: int, inputs: Inputs, file_mib: int) -> dict[str, float]:
    """Verified ranges to four consume queues; the messages have ids, as those of clients always do."""
    queues = ConsumeQueues(RealDisk(), f"{directory}/consumequeue", new_identity(file_mib).consume_queue_file_bytes)
    log = new_log(directory / "dispatch", new_identity(file_mib))
    ids = [f"01{i:032X}" for i in range(inputs.count)]
    order = np.arange(inputs.count, dtype=np.int32)
    times: dict[str, list[int]] = {"dispatch": [], "dispatch_columns_alone": []}
    for number in range(batches):
        batch = layout.encode_messages(
            "flights", order % 4, inputs.bodies, born_ms=BORN_MS, tags=inputs.tags, keys=inputs.keys, message_ids=ids
        )
        for entries in log.append_leader(1, batch, (number * inputs.count + inputs.offsets) // 4, BORN_MS, HOST):
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
    """A thousand messages and one sync, again and again."""
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


def run(directory: Path) -> dict[str, Any]:
    inputs = Inputs(MESSAGES, BODY_BYTES)
    return {
        "messages_a_range": MESSAGES,
        "body_bytes": BODY_BYTES,
        "ranges": RANGES,
        "file_mib": FILE_MIB,
        **appends(directory, RANGES, inputs, FILE_MIB),
        **dispatches(directory, RANGES, inputs, FILE_MIB),
        **commits(directory, RANGES, inputs, FILE_MIB),
    }
