"""The cost of one message in the entry layout on one core, in memory: encode, seal, verify,
columns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ledgermq.proto.entries import layout
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries, encode_messages, host_bytes
from ledgermq.proto.entries.entry_sealing import chain_seed, seal
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft, UnsealedBatch

NAME, RUNS, DURABLE = "encode", 3, False
BODY_BYTES = 100
ROUNDS = 300
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
SEED = chain_seed("00000000-0000-0000-0000-000000000000")
HOST = host_bytes("127.0.0.1", 8081)


def median_us(work: Callable[[], object], messages: int, repeat: int) -> float:
    """Median time of `work` in µs per message, after a tenth of the rounds as warm-up."""
    times = []
    for round_number in range(repeat + repeat // 10):
        begin = time.perf_counter_ns()
        work()
        if round_number >= repeat // 10:
            times.append(time.perf_counter_ns() - begin)
    return round(statistics.median(times) / 1000 / messages, 3)


def measure(messages: int, body_bytes: int, repeat: int) -> dict[str, float]:
    """All steps over one batch of `messages` with tag and key, as columns and as single drafts."""
    bodies = [(i % 251).to_bytes(1, "big") * body_bytes for i in range(messages)]
    tags = [CARRIERS[i % len(CARRIERS)] for i in range(messages)]
    keys = [f"key-{i}" for i in range(messages)]
    ids = [f"01{i:032X}" for i in range(messages)]
    offsets = np.arange(messages, dtype=np.int64)

    def columns() -> UnsealedBatch:
        return encode_messages("flights", 0, bodies, born_ms=BORN_MS, tags=tags, keys=keys)

    def columns_with_ids() -> UnsealedBatch:
        return encode_messages(
            "flights", 0, bodies, born_ms=BORN_MS, tags=tags, keys=keys, message_ids=ids
        )

    def sealed(batch: UnsealedBatch) -> UnsealedBatch:
        seal(
            batch,
            first_index=0,
            term=1,
            pos=0,
            queue_offsets=offsets,
            store_ms=BORN_MS,
            store_host=HOST,
            prev_chain=SEED,
        )
        return batch

    properties = [
        encode(Fields(message_id=i, tag=t, keys=(k,)))
        for i, t, k in zip(ids, tags, keys, strict=True)
    ]
    codes = [layout.java_hash(tag) for tag in tags]
    drafts = [
        Draft(stored_topic="flights", queue=0, body=b, properties=p, born_ms=BORN_MS, tags_code=c)
        for b, p, c in zip(bodies, properties, codes, strict=True)
    ]
    ready = sealed(columns_with_ids())
    checked = verify_range(ready.data, 0, 1, 0, SEED)
    steps: dict[str, Callable[[], object]] = {
        "encode_columns": columns,
        "encode_columns_and_seal": lambda: sealed(columns()),
        "encode_columns_with_ids_and_seal": lambda: sealed(columns_with_ids()),
        "encode_drafts_and_seal": lambda: sealed(encode_entries(drafts)),
        "seal": lambda: sealed(ready),
        "verify_range": lambda: verify_range(ready.data, 0, 1, 0, SEED),
        "record_columns": lambda: layout.record_columns(checked),
    }
    return {name: median_us(work, messages, repeat) for name, work in steps.items()}


def run(_: Path) -> dict[str, Any]:
    return {
        "body_bytes": BODY_BYTES,
        "rounds": ROUNDS,
        "us_a_message_of_1000": measure(1000, BODY_BYTES, ROUNDS),
        "us_for_one_message": measure(1, BODY_BYTES, ROUNDS),
    }
