"""The time of a lookup by key among ten million messages, and the cost of building their index on
one core; no cluster.

`build_*` turn sealed ranges into units, slots and filter, and make them durable. Every message has
its own id and key. Lookups are sequential: `present` by key and by id, `absent` for keys that were
never sent; the record is read and its key compared. `files_read_absent` is the average number of
index files read for an absent key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from bench.storage_append import BORN_MS, HOST, new_identity, new_log
from bench.tools import report
from bench.tools.drafts import drafts
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.storage.files.ports import DiskFile
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.keys.key_index import SLOTS, UNITS, KeyIndex
from ledgermq.storage.keys.lookup import Found, Lookup
from ledgermq.storage.log.log_reader import Limits, LogReader

NAME, RUNS, DURABLE = "key_lookup", 1, True
MESSAGES = 10_000_000
BATCH = 1000
SEARCHES = 5000
FILE_MIB = 256
TOPIC = "flights"


class CountingDisk(RealDisk):
    """Counts how often a key index file is opened."""

    index_files = 0

    def open(self, path: str) -> DiskFile:
        self.index_files += "/index/" in path and "/dledger-" not in path
        return super().open(path)


def key_of(number: int) -> str:
    return f"order-{number}"


def id_of(number: int) -> str:
    return f"01{number:032X}"


def fill(
    directory: Path, messages: int, disk: RealDisk
) -> tuple[KeyIndex, LogReader, float, float]:
    """Store the messages in a log and index them; also returns the seconds of indexing and of
    syncing."""
    who = new_identity(FILE_MIB)
    root = directory / "g1"
    log = new_log(root / "dledger-n1", who)
    (root / "state").mkdir()
    index = KeyIndex(disk, str(root), who.log_id, slots=SLOTS, units=UNITS)
    index.start(0, -1, log.chain_at)
    index.load(repeat(None))
    bodies = [b""] * BATCH
    indexing = 0.0
    for first in range(0, messages, BATCH):
        numbers = range(first, first + BATCH)
        batch = encode_entries(
            drafts(
                TOPIC,
                bodies,
                born_ms=BORN_MS,
                keys=[key_of(n) for n in numbers],
                message_ids=[id_of(n) for n in numbers],
            )
        )
        for entries in log.append_leader(
            1, batch, np.arange(first, first + BATCH), BORN_MS + first, HOST
        ):
            began = time.perf_counter()
            index.append(entries)
            indexing += time.perf_counter() - began
        if first % 1_000_000 == 0:
            report.say(f"key_lookup: {first} of {messages} messages")
    began = time.perf_counter()
    index.sync()
    syncing = time.perf_counter() - began
    while index.tend(repeat(None)):
        pass
    log.flush_mark()
    reader = LogReader(disk, str(root / "dledger-n1"), who.data_file_bytes, who.index_file_bytes)
    reader.limits = Limits(0, log.end_index + 1, log.end_pos)
    log.close()
    return index, reader, indexing, syncing


def search(names: Iterator[str], ask: Callable[[str], list[Found]], hits: int) -> dict[str, float]:
    """Milliseconds of every lookup; each must find the expected number of messages."""
    times = []
    for name in names:
        began = time.perf_counter()
        found = ask(name)
        times.append((time.perf_counter() - began) * 1000)
        assert len(found) == hits, f"{name}: {found}"
    times.sort()
    return {
        "p50_ms": round(report.percentile(times, 0.5), 4),
        "p99_ms": round(report.percentile(times, 0.99), 4),
    }


def run(directory: Path, messages: int = MESSAGES) -> dict[str, Any]:
    disk = CountingDisk()
    index, reader, indexing, syncing = fill(directory, messages, disk)
    lookup = Lookup(reader, index)
    chance = random.Random(1)
    numbers = [chance.randrange(messages) for _ in range(SEARCHES)]

    def ask(name: str) -> list[Found]:
        return list(lookup.each_by_key(TOPIC, name))

    results: dict[str, Any] = {
        "messages": messages,
        "searches": SEARCHES,
        "build_us_a_message": round(indexing / messages * 1e6, 3),
        "build_sync_s": round(syncing, 2),
        "present_key": search(map(key_of, numbers), ask, 1),
        "present_id": search(map(id_of, numbers), ask, 1),
    }
    disk.index_files = 0
    results["absent"] = search((f"absent-{number}" for number in numbers), ask, 0)
    results["files_read_absent"] = round(disk.index_files / SEARCHES, 4)
    index.close()
    return results
