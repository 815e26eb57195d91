"""The cost of one message in a native frame on one core, in memory: building, checking, sealing,
finding runs, reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.encode import BORN_MS, CARRIERS, HOST, SEED, median_us
from ledgermq.proto.entries import entry_sealing
from ledgermq.proto.entries.entry_sealing import make_range
from ledgermq.proto.frames import (
    Column,
    EncodedFrame,
    Frame,
    FrameBuilder,
    native_runs,
    read_entries,
    read_frame,
)

NAME, RUNS, DURABLE = "frames", 3, False
MESSAGES = 1000
ROUNDS = 300
LOG_TAG, PRODUCER, EPOCH = 0x6F961986, 7, 1
LIMITS = {"queues": 8, "max_body_bytes": 4 << 20, "max_entry_bytes": 5 << 20}


def read(frame: EncodedFrame) -> Frame:
    return read_frame(
        "flights",
        log_tag=LOG_TAG,
        producer_id=PRODUCER,
        epoch=EPOCH,
        first_sequence=frame.first_sequence,
        sizes=frame.sizes,
        entries=frame.entries,
        **LIMITS,
    )


def seal(frame: Frame) -> None:
    entry_sealing.seal(
        frame.batch,
        first_index=0,
        term=1,
        pos=0,
        queue_offsets=np.arange(len(frame), dtype=np.int64),
        store_ms=BORN_MS,
        store_host=HOST,
        prev_chain=SEED,
    )


def measure(body_bytes: int, *, even: bool, tagged: bool) -> dict[str, float]:
    """All steps for one frame; bodies of one length or several, with tag and key or without."""
    bodies = [
        (i % 251).to_bytes(1, "big") * (body_bytes if even else body_bytes - 8 + i % 17)
        for i in range(MESSAGES)
    ]
    more: dict[str, Any] = {}
    if tagged:
        more = {
            "tags": [CARRIERS[i % len(CARRIERS)] for i in range(MESSAGES)],
            "keys": [f"key-{i}" for i in range(MESSAGES)],
        }
    builder = FrameBuilder("flights", LOG_TAG, PRODUCER, EPOCH)
    frame = builder.encode(0, 3, bodies, born_ms=BORN_MS, **more)
    joined = Column(b"".join(bodies), np.cumsum([0, *map(len, bodies)]))
    checked = read(frame)
    seal(checked)
    entries = make_range(checked.batch, 0, MESSAGES, first_index=0, term=1, pos=0, prev_chain=SEED)
    steps: dict[str, Callable[[], object]] = {
        "encode": lambda: builder.encode(0, 3, bodies, born_ms=BORN_MS, **more),
        "read_frame": lambda: read(frame),
        "seal": lambda: seal(checked),
        "native_runs": lambda: native_runs(entries),
        "read_entries": lambda: read_entries(frame.sizes, entries.data),
        "read_entries_and_bodies": lambda: read_entries(frame.sizes, entries.data).bodies(),
        "read_entries_unverified_joined_bodies": lambda: read_entries(
            frame.sizes, entries.data, verify=False
        ).joined_bodies(),
        "message_ids": lambda: read_entries(frame.sizes, entries.data, verify=False).message_ids(),
        "tags": lambda: read_entries(frame.sizes, entries.data, verify=False).tags(),
    }
    if not tagged:
        steps["encode_columns"] = lambda: builder.encode_columns(0, 3, joined, born_ms=BORN_MS)
    return {name: median_us(work, MESSAGES, ROUNDS) for name, work in steps.items()}


def run(_: Path) -> dict[str, Any]:
    return {
        "messages_in_a_frame": MESSAGES,
        "rounds": ROUNDS,
        "us_a_message": {
            f"{body_bytes}_bytes": {
                "one_length": measure(body_bytes, even=True, tagged=False),
                "many_lengths": measure(body_bytes, even=False, tagged=False),
                "tag_and_key": measure(body_bytes, even=True, tagged=True),
            }
            for body_bytes in (100, 1024)
        },
    }
