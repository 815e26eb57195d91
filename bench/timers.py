"""Delayed messages of one replica without peers on one core: the memory for pending messages, and
their delay at 10,000 due per second.

`pending` messages are pending, spread over an hour, and the same number again is due in a single
second. `rss_growth_mib` is the memory they add to the process; it should not grow with their
number. `rss_growth_mib_half` is the same value after half of them had arrived. Then another 100,000
become due within ten seconds, and the group's turns run with the real clock on real files without
syncs. `late_ms_most` is an upper bound on the delay: from the due time of the previous fired
message to the end of the turn. The environment variable `LEDGERMQ_BENCH_TIMERS` sets another number
of pending messages.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.storage_append import BORN_MS, HOST, new_identity, new_log
from ledgermq.node.broker.calls.operator_calls import Configure
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.broker.group import Group
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import (
    I64,
    Draft,
    Permission,
    Range,
    TopicConfig,
    TopicKind,
    UnsealedBatch,
)
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.queues.queue_buffer import BufferedQueues
from tests.node_core.core_fakes import FakeReplicator

NAME, RUNS, DURABLE = "timers", 1, False
PENDING = int(os.environ.get("LEDGERMQ_BENCH_TIMERS", 1_000_000))
DUE_A_SECOND, SECONDS = 10_000, 10
FILE_MIB = 64
CALL = 1000
BODY = bytes(100)
HOUR_MS = 3_600_000


class OnFiles(FakeReplicator):
    """Writes to a real log and commits immediately."""

    def propose(
        self,
        now_ns: int,
        batch: UnsealedBatch,
        queue_offsets: I64,
        store_ms: int,
        *,
        control: bool = False,
        urgent: bool = True,
        early: bool = False,
    ) -> Sequence[Range]:
        ranges: Sequence[Range] = self.log.append_leader(
            self.term, batch, queue_offsets, store_ms, HOST
        )
        return ranges

    def read(self, first_index: int, max_bytes: int) -> Range:
        found: Range = self.log.read(first_index, max_bytes)
        return found


class FileGroup:
    """One broker group on real files."""

    def __init__(self, directory: Path) -> None:
        who = new_identity(FILE_MIB)
        log: Any = new_log(directory / "dledger-n1", who)
        queues = BufferedQueues(
            RealDisk(), str(directory / "consumequeue"), who.consume_queue_file_bytes
        )
        self.machine = Machine(
            queues, lambda offset, size: bytes(log.whole_record_at(offset, size)), log.index_at
        )
        replicator = OnFiles(log)
        self.group = Group("g1", "n1", replicator, self.machine, LeaderSettings())
        self._token = 0
        replicator.lead(1)
        self.turn()
        self.call(
            lambda token: Configure(
                token,
                (
                    TopicConfig(
                        namespace="",
                        name="t",
                        kind=TopicKind.DELAY,
                        queues=4,
                        permission=Permission.READ_WRITE,
                        incarnation=1,
                    ),
                ),
            )
        )

    def turn(self, *calls: Any) -> int:
        now_ns = time.monotonic_ns()
        return self.group.turn(now_ns, time.time_ns() // 1_000_000, calls).wake_at_ns

    def call(self, make: Any) -> None:
        self._token += 1
        self.turn(make(self._token))

    def send(self, times: Sequence[int]) -> None:
        drafts = []
        for number, deliver_ms in enumerate(times):
            properties = encode(
                Fields(message_id=f"01{number:032X}", tag="a", deliver_ms=deliver_ms)
            )
            drafts.append(
                Draft(
                    stored_topic="t",
                    queue=number % 4,
                    body=BODY,
                    properties=properties,
                    born_ms=BORN_MS,
                    tags_code=97,
                    deliver_ms=deliver_ms,
                )
            )
        self.call(lambda token: Produce(token, drafts))


def run(directory: Path) -> dict[str, Any]:
    group = FileGroup(directory)
    now_ms = time.time_ns() // 1_000_000
    group.send([now_ms + 10 * HOUR_MS])
    before, began = resident_mib(), time.perf_counter()
    half = 0.0
    for first in range(0, PENDING, CALL):
        # Five hours ahead: none of these fire while the others are measured.
        spread = [now_ms + 5 * HOUR_MS + (first + i) * HOUR_MS // PENDING for i in range(CALL // 2)]
        group.send(spread + [now_ms + 8 * HOUR_MS + i for i in range(CALL // 2)])
        if first == PENDING // 2:
            half = resident_mib() - before
    stored_s = time.perf_counter() - began
    growth = resident_mib() - before
    return {
        "pending": group.machine.timers.pending,
        "stored_per_s": round(PENDING / stored_s),
        "rss_growth_mib": round(growth, 1),
        "rss_growth_mib_half": round(half, 1),
        **fired(group),
    }


def fired(group: FileGroup) -> dict[str, Any]:
    """Let a fixed number of messages become due per second, for several seconds."""
    count = DUE_A_SECOND * SECONDS
    start_ms = time.time_ns() // 1_000_000 + 15_000
    for first in range(0, count, CALL):
        group.send([start_ms + (first + i) * 1000 // DUE_A_SECOND for i in range(CALL)])
    late, cpu = [], time.process_time()
    timers = group.machine.timers
    done, goal = timers.counts["fired"], timers.counts["fired"] + count
    before_ms = start_ms
    while timers.counts["fired"] < goal:
        wake_at_ns = group.turn()
        if timers.counts["fired"] > done:
            done = timers.counts["fired"]
            late.append(time.time_ns() // 1_000_000 - before_ms)
            before_ms = timers.watermark.fire_ms
        time.sleep(max(0, min(wake_at_ns - time.monotonic_ns(), 10_000_000)) / 1e9)
    cpu = time.process_time() - cpu
    late.sort()
    return {
        "fired": count,
        "due_per_s": DUE_A_SECOND,
        "late_ms_median": late[len(late) // 2],
        "late_ms_most": late[-1],
        "cpu_us_per_fired": round(cpu / count * 1e6, 1),
    }


def resident_mib() -> float:
    """The anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no RssAnon")
