"""How fast committed messages reach their consume queues, and what a thousand queues cost an
append; one core, batches of 1,000.

`dispatch_*` turn sealed ranges into columns and units (`million_s`: million messages per second).
`append_and_dispatch_*` start with messages that have their properties and first encode, seal and
append a batch, as a leader does. Batches for one queue and for a thousand alternate, so that both run under
the same conditions; `thousand_queues_loss` is the loss of the second against the first. Writing
waiting units is included. `keys_us` is the cost of the same messages in the key index, which is
built in parallel.
"""

from __future__ import annotations

import time
from itertools import repeat
from pathlib import Path
from typing import Any

from bench.storage_append import (
    BODY_BYTES,
    BORN_MS,
    HOST,
    MESSAGES,
    Inputs,
    median,
    new_identity,
    new_log,
)
from ledgermq.proto.entries import layout
from ledgermq.proto.types import Range
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.keys.key_index import KeyIndex
from ledgermq.storage.queues.queue_buffer import BufferedQueues

NAME, RUNS, DURABLE = "dispatch", 3, True
BATCHES = 400
WARM_BATCHES = 100
"""Messages stored first: they create the files of the queues."""
FILE_MIB = 64
QUEUES = (1, 4, 1000)


class DispatchRun:
    """A log and its queues, for batches over a number of queues."""

    def __init__(self, directory: Path, queues: int) -> None:
        who = new_identity(FILE_MIB)
        self.log = new_log(directory / "dledger-n1", who)
        self.queues = BufferedQueues(
            RealDisk(), str(directory / "consumequeue"), who.consume_queue_file_bytes
        )
        self.appending: list[int] = []
        self.dispatching: list[int] = []
        self._inputs = Inputs(MESSAGES, BODY_BYTES, queues)
        self._count = queues
        self._number = 0

    def step(self) -> list[Range]:
        """One batch, appended and dispatched."""
        offsets = (self._number * MESSAGES + self._inputs.offsets) // self._count
        self._number += 1
        began = time.perf_counter_ns()
        ranges = self.log.append_leader(1, self._inputs.encode(), offsets, BORN_MS, HOST)
        appended = time.perf_counter_ns()
        for entries in ranges:
            self.queues.append(layout.record_columns(entries))
        dispatched = time.perf_counter_ns()
        self.appending.append(appended - began)
        self.dispatching.append(dispatched - appended)
        return ranges

    def finish(self) -> None:
        began = time.perf_counter_ns()
        self.queues.write_waiting()
        self.dispatching[-1] += time.perf_counter_ns() - began

    def close(self) -> None:
        self.queues.close()
        self.log.close()

    @property
    def both_us(self) -> float:
        """The mean, so that writing waiting units counts in full."""
        return (sum(self.appending) + sum(self.dispatching)) / len(self.appending) / MESSAGES / 1000


def key_times(directory: Path, ranges: list[Range]) -> float:
    index = KeyIndex(RealDisk(), str(directory / "keys"), "bench")
    index.start(0, -1, lambda index: 0)
    index.load(repeat(None))
    index.skip_to(ranges[0].first_index)
    times = []
    for entries in ranges:
        began = time.perf_counter_ns()
        index.append(entries)
        times.append(time.perf_counter_ns() - began)
    index.close()
    return median(times, MESSAGES)


def run(directory: Path) -> dict[str, Any]:
    cases = {queues: DispatchRun(directory / str(queues), queues) for queues in QUEUES}
    for case in cases.values():
        for _ in range(WARM_BATCHES):
            case.step()
        case.queues.write_waiting()
        case.appending.clear()
        case.dispatching.clear()
    ranges: list[Range] = []
    for number in range(BATCHES):
        for queues, case in cases.items():
            made = case.step()
            if queues == 1 and number < 50:
                ranges += made
            if number % 50 == 49:
                case.log.flush_mark()
    for case in cases.values():
        case.finish()
    results: dict[str, Any] = {
        "messages_a_batch": MESSAGES,
        "body_bytes": BODY_BYTES,
        "batches": BATCHES,
    }
    for queues, case in cases.items():
        mean_us = sum(case.dispatching) / len(case.dispatching) / MESSAGES / 1000
        results[f"dispatch_{queues}_queues_us"] = round(mean_us, 3)
        results[f"dispatch_{queues}_queues_million_s"] = round(1 / mean_us, 2)
        results[f"append_and_dispatch_{queues}_queues_us"] = round(case.both_us, 3)
    results["thousand_queues_loss"] = round(1 - cases[1].both_us / cases[1000].both_us, 3)
    results["keys_us"] = key_times(directory, ranges)
    for case in cases.values():
        case.close()
    return results
