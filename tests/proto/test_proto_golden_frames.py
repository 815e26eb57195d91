"""The golden frame: bytes written by hand, which the builder makes and the reader takes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ledgermq.proto.entries.compression import decompress
from ledgermq.proto.entries.properties import decode
from ledgermq.proto.frames import FrameBuilder, native_id, read_frame, read_native_id
from tests.proto import golden_frames

FRAMES: list[dict[str, Any]] = json.loads(golden_frames.PATH.read_text())
LIMITS = {"queues": 8, "max_body_bytes": 4096, "max_entry_bytes": 8192}


def test_golden_frames_equal_the_plain_encoder() -> None:
    """Manual edits and format changes are detected."""
    assert golden_frames.PATH.read_text() == golden_frames.content()


@pytest.mark.parametrize("golden", FRAMES, ids=lambda golden: golden["topic"][:16])
def test_golden_frames(golden: dict[str, Any]) -> None:
    """The reader takes the whole frame; the builder makes its bytes from what it says, but for how
    a body is compressed."""
    entries = [bytes.fromhex(message["entry_hex"]) for message in golden["messages"]]
    producer = golden["log_tag"], golden["producer_id"], golden["epoch"]
    first, sizes = golden["first_sequence"], bytes.fromhex(golden["sizes_hex"])
    frame = read_frame(golden["topic"], *producer, first, sizes, b"".join(entries), **LIMITS)
    assert frame.batch.queues.tolist() == [message["queue"] for message in golden["messages"]]
    fields = [decode(entry[entry.index(b"UNIQ_KEY") :]) for entry in entries]
    for row, one in enumerate(fields):
        assert one.message_id == native_id(*producer, first + row)
        assert read_native_id(one.message_id) == (*producer, first + row)
    assert decompress(bytes.fromhex(golden["messages"][3]["body_hex"]), 0x201) == b"N14228"
    made = FrameBuilder(golden["topic"], *producer).encode(
        first,
        np.array([message["queue"] for message in golden["messages"]], np.int32),
        [bytes.fromhex(message["body_hex"]) for message in golden["messages"]],
        born_ms=golden_frames.BORN_MS,
        tags=[one.tag for one in fields],
        keys=[one.keys for one in fields],
        properties=[one.user for one in fields],
    )
    wanted = b"".join(entries)
    # The builder has no way to say a trace context, and calls a body compressed only if it did
    # that.
    trace = b"TRACE_CONTEXT\x0100-1\x02"
    plain = bytearray(wanted)
    at = sum(map(len, entries[:3])) + 84
    plain[at : at + 4] = bytes(4)
    assert made.entries[: len(entries[0])] == entries[0]
    assert made.entries.endswith(plain[len(entries[0]) + len(entries[1]) :])
    assert len(made.entries) == len(wanted) - len(trace)
