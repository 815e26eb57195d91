"""The golden log of tests/golden/entries.json: its contents, written by the plain encoder.

`python -m tests.proto.golden_entries` from the root rewrites the file; a difference is a format
change.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import crc32c

from tests.proto.plain_entry import PlainMessage, plain_entry

PATH = Path(__file__).resolve().parent.parent / "golden" / "entries.json"
LOG_ID = "8d3f2a10-5c44-5e0b-9f61-0d2b7f3c9a55"
DATA_FILE_BYTES = 1024
CREATED_MS = 1_700_000_000_000
LONG_TOPIC = "long-namespace-" + "n" * 60 + "@" + "long-topic-" + "t" * 60

# (what it shows, term, message, tags code)
MESSAGES: list[tuple[str, int, PlainMessage, int]] = [
    (
        "membership record, written at bootstrap: index 0, term 0, channel 1",
        0,
        PlainMessage(
            "rmq_sys_ledgermq_raft",
            0,
            b'{"v":1,"voters":{"n1":{},"n2":{},"n3":{}},"learners":{}}',
            b"TAGS\x01membership\x02",
            CREATED_MS,
            0,
            CREATED_MS,
            channel=1,
        ),
        -1340241962,
    ),
    (
        "term-start record, first entry of a leader",
        1,
        PlainMessage(
            "rmq_sys_ledgermq_raft",
            0,
            b'{"v":1,"term":1,"leader":"n2"}',
            b"TAGS\x01term-start\x02",
            CREATED_MS + 5,
            1,
            CREATED_MS + 5,
        ),
        1273568193,
    ),
    (
        (
            "client message with every property, in a namespace, stored by a leader with an IPv4"
            " address"
        ),
        1,
        PlainMessage(
            "airport@flights",
            3,
            "N14228: EWR → IAH".encode(),
            b"UNIQ_KEY\x0101AABBCCDDEEFF12340A0B0C0D00000001\x02TAGS\x01UA\x02KEYS\x01EWR New York"
            b" IAH\x02"
            b'__LMQ.KEYS\x01["EWR","New'
            b' York","IAH"]\x02__SHARDINGKEY\x01N14228\x02TRACE_CONTEXT\x0100-aa-bb-01\x02'
            b"__BORNHOST\x01laptop\x02__LMQ.ENC\x01GZIP\x02__LMQ.U.TRACE_CONTEXT\x01mine\x02delay\x01\x02",
            CREATED_MS + 900,
            0,
            CREATED_MS + 1000,
            store_host="192.168.1.10:8081",
        ),
        2700,
    ),
    (
        "empty body, one-letter topic, no properties: the smallest record",
        1,
        PlainMessage("t", 0, b"", b"", 0, 41, CREATED_MS + 1000),
        0,
    ),
    (
        (
            "stored topic of more than 127 bytes: record magic V2; does not fit, so a blank ends"
            " the file before it"
        ),
        2,
        PlainMessage(
            LONG_TOPIC,
            7,
            bytes(range(256)),
            "TAGS\x01标签\x02".encode(),
            1,
            2**40,
            CREATED_MS + 2000,
            store_host="10.0.0.1:65535",
        ),
        857175,
    ),
]


def build() -> dict[str, Any]:
    """The whole golden log as JSON values: every entry with its derived units, and the two files it
    fills."""
    seed = chain = crc32c.crc32c(LOG_ID.encode())
    files = [bytearray(DATA_FILE_BYTES)]
    at, entries = 0, []
    for index, (what, term, message, tags_code) in enumerate(MESSAGES):
        entry, next_chain = plain_entry(message, index, term, at, chain)
        rest = DATA_FILE_BYTES - at % DATA_FILE_BYTES
        if len(entry) + 8 > rest:
            struct.pack_into(">ii", files[-1], at % DATA_FILE_BYTES, -1, rest)
            at += rest
            files.append(bytearray(DATA_FILE_BYTES))
            entry, next_chain = plain_entry(message, index, term, at, chain)
        files[-1][at % DATA_FILE_BYTES : at % DATA_FILE_BYTES + len(entry)] = entry
        chain = next_chain
        entries.append(
            {
                "what": what,
                "index": index,
                "term": term,
                "pos": at,
                "channel": message.channel,
                "topic": message.topic,
                "queue": message.queue,
                "queue_offset": message.queue_offset,
                "born_ms": message.born_ms,
                "store_ms": message.store_ms,
                "store_host": message.store_host,
                "body_hex": message.body.hex(),
                "properties_hex": message.properties.hex(),
                "tags_code": tags_code,
                "chain_crc": chain,
                "body_crc": int.from_bytes(entry[40:44], "big"),
                "entry_hex": entry.hex(),
                "index_unit_hex": struct.pack(">iqiqq", 1, at, len(entry), index, term).hex(),
                "queue_unit_hex": struct.pack(">qiq", at + 48, len(entry) - 48, tags_code).hex(),
            }
        )
        at += len(entry)
    return {
        "log_id": LOG_ID,
        "chain_seed": seed,
        "data_file_bytes": DATA_FILE_BYTES,
        "entries": entries,
        "files": [
            {"name": f"{i * DATA_FILE_BYTES:020d}", "hex": bytes(file).hex()}
            for i, file in enumerate(files)
        ],
    }


def text() -> str:
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
