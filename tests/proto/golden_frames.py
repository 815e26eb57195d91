"""The golden frame of tests/golden/frames.json: its contents, written with struct only.

`python -m tests.proto.golden_frames` from the root rewrites the file; a difference is a format
change.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from tests.proto.golden_entries import LONG_TOPIC
from tests.proto.plain_entry import PlainMessage, plain_record

PATH = Path(__file__).resolve().parent.parent / "golden" / "frames.json"
LOG_TAG, PRODUCER, EPOCH, FIRST_SEQUENCE = 0x6F961986, 0x00010203, 0x0405, 0x0000FFFFFE
BORN_MS = 1_700_000_000_123
# (what it shows, queue, SYSFLAG, body, properties behind the message id)
MESSAGES: list[tuple[str, int, int, bytes, bytes]] = [
    ("a body alone", 0, 0, b"N14228", b""),
    ("tag, key, trace context and two user properties", 3, 0, "EWR → IAH".encode(),
     b"TAGS\x01UA\x02KEYS\x01EWR IAH\x02TRACE_CONTEXT\x0100-1\x02__LMQ.U.PRIORITY\x017\x02dest\x01IAH\x02"),
    ("keys that have to be written twice", 0, 0, b"\0", b'KEYS\x01New York \x02__LMQ.KEYS\x01["New York",""]\x02'),
    ("a body compressed with ZSTD: one raw block", 7, 0x201, bytes.fromhex("28b52ffd2006310000") + b"N14228", b""),
]  # fmt: skip


def frame(topic: str) -> dict[str, Any]:
    """The frame for one topic."""
    entries = []
    for position, (_, queue, sysflag, body, rest) in enumerate(MESSAGES):
        sequence = FIRST_SEQUENCE + position
        message_id = (
            struct.pack(">BIIH", 0x4C, LOG_TAG, PRODUCER, EPOCH) + struct.pack(">Q", sequence)[2:]
        )
        properties = b"UNIQ_KEY\x01" + message_id.hex().upper().encode() + b"\x02" + rest
        message = PlainMessage(
            topic, queue, body, properties, BORN_MS, 0, 0, flag=position + 1, sysflag=sysflag
        )
        record = plain_record(message, 0)
        assert record[8:12] == struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF)
        entries.append(bytes(48) + record)
    return {
        "topic": topic,
        "log_tag": LOG_TAG,
        "producer_id": PRODUCER,
        "epoch": EPOCH,
        "first_sequence": FIRST_SEQUENCE,
        "sizes_hex": struct.pack(f"<{len(entries)}I", *map(len, entries)).hex(),
        "messages": [
            {
                "shows": shows,
                "queue": queue,
                "sysflag": sysflag,
                "body_hex": body.hex(),
                "entry_hex": entry.hex(),
            }
            for (shows, queue, sysflag, body, _), entry in zip(MESSAGES, entries, strict=True)
        ],
    }


def content() -> str:
    return json.dumps([frame("airport@flights"), frame(LONG_TOPIC)], indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(content())
