"""Golden vectors: RocketMQ's and DLedger's own layouts, and our log with real CRCs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgermq.proto.entries import layout
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries, host_bytes
from ledgermq.proto.entries.entry_sealing import chain_seed, seal
from ledgermq.proto.entries.layout import HEADER, INDEX_UNIT, PREFIX, QUEUE_UNIT, java_hash
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import decode, encode
from ledgermq.proto.types import Draft
from tests.proto import golden_entries

pytestmark = pytest.mark.usefixtures("way")
GOLDEN = Path(__file__).resolve().parent.parent / "golden"
REFERENCE: dict[str, Any] = json.loads((GOLDEN / "reference.json").read_text())
OURS: dict[str, Any] = json.loads((GOLDEN / "entries.json").read_text())
ENTRIES: list[dict[str, Any]] = OURS["entries"]


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def item(dtype: np.dtype[Any], **fields: int) -> bytes:
    row = np.zeros(1, dtype)
    for name, value in fields.items():
        row[name] = value
    return row.tobytes()


@pytest.mark.parametrize(("text", "value"), REFERENCE["java_hash"].items())
def test_hashes(text: str, value: int) -> None:
    """Tags codes are Java's string hashes."""
    assert java_hash(text) == value


@pytest.mark.parametrize("vector", REFERENCE["dledger_entries"], ids=lambda v: v["body"])
def test_dledger_entry_headers(vector: dict[str, Any]) -> None:
    """Our header is DLedger's but for the two CRC words (bytes 36-43), and our index unit is
    DLedger's."""
    expected = raw(vector["hex"])
    fields = vector["fields"]
    ours = (
        item(HEADER, chain_crc=0x12345678, body_crc=0x9ABCDEF0, **fields) + vector["body"].encode()
    )
    assert (
        ours[:36] == expected[:36] and ours[44:] == expected[44:] and ours[36:44] != expected[36:44]
    )
    unit = item(
        INDEX_UNIT,
        magic=1,
        pos=fields["pos"],
        size=fields["size"],
        index=fields["index"],
        term=fields["term"],
    )
    assert unit == raw(vector["index_unit_hex"])


def test_rocketmq_message() -> None:
    """A record of ours is RocketMQ's V1 message, but for the born host that we leave zero, and so
    is its consume queue unit."""
    v = REFERENCE["message_v1"]
    expected = bytearray(raw(v["hex"]))
    draft = Draft(
        v["topic"],
        v["queue"],
        v["body"].encode(),
        raw(v["properties_hex"]),
        v["born_ms"],
        java_hash("TagA"),
    )
    batch = encode_entries([draft])
    host, port = v["store_host"].split(":")
    place = {"first_index": 0, "term": 1, "pos": v["physical_offset"] - 48, "prev_chain": 0}
    offsets = np.array([v["queue_offset"]])
    seal(
        batch,
        queue_offsets=offsets,
        store_ms=v["store_ms"],
        store_host=host_bytes(host, int(port)),
        **place,
    )
    assert expected[48:56] == host_bytes("127.0.0.1", 50000)
    expected[48:56] = bytes(8)
    assert batch.data[48:] == expected
    assert int.from_bytes(batch.data[56:60], "big") == REFERENCE["body_crc"]["Hello"]
    unit = item(
        QUEUE_UNIT,
        physical_offset=v["physical_offset"],
        size=len(expected),
        tags_code=draft.tags_code,
    )
    assert unit == raw(v["queue_unit_hex"])


@pytest.mark.parametrize(
    "text", [REFERENCE["message_v1"]["hex"], REFERENCE["message_v2_hex"]], ids=["v1", "v2"]
)
def test_rocketmq_messages_are_read(text: str) -> None:
    """Both record versions decode to the same message."""
    v = REFERENCE["message_v1"]
    record = decode_record(raw(text))
    assert (record.topic, record.queue, record.queue_offset, record.physical_offset) == (
        "TopicTest",
        3,
        7,
        4096,
    )
    assert (record.body, record.born_ms, record.store_ms, record.store_host) == (
        b"Hello",
        v["born_ms"],
        v["store_ms"],
        v["store_host"],
    )
    assert decode(record.properties).tag == "TagA"


def test_golden_log_equals_the_plain_encoder() -> None:
    """The committed file is what the plain encoder writes: its bytes change only with the
    format."""
    assert golden_entries.PATH.read_text() == golden_entries.text()


@pytest.mark.parametrize("vector", ENTRIES, ids=lambda v: str(v["index"]))
def test_golden_entries_are_encoded(vector: dict[str, Any]) -> None:
    """The encoder writes every golden entry byte for byte, CRCs included."""
    draft = Draft(
        vector["topic"],
        vector["queue"],
        raw(vector["body_hex"]),
        raw(vector["properties_hex"]),
        vector["born_ms"],
        vector["tags_code"],
        vector["channel"],
    )
    batch = encode_entries([draft])
    host, port = vector["store_host"].split(":")
    index = vector["index"]
    before = ENTRIES[index - 1]["chain_crc"] if index else chain_seed(OURS["log_id"])
    last = seal(
        batch,
        first_index=index,
        term=vector["term"],
        pos=vector["pos"],
        queue_offsets=np.array([vector["queue_offset"]]),
        store_ms=vector["store_ms"],
        store_host=host_bytes(host, int(port)),
        prev_chain=before,
    )
    assert batch.data.hex() == vector["entry_hex"] and last == vector["chain_crc"]
    head = np.frombuffer(batch.data, PREFIX, 1)
    assert (
        int(head["body_crc"][0]) == vector["body_crc"]
        and int(head["chain_crc"][0]) == vector["chain_crc"]
    )


@pytest.mark.parametrize("vector", ENTRIES, ids=lambda v: str(v["index"]))
def test_golden_entries_are_verified_and_dispatched(vector: dict[str, Any]) -> None:
    """Every golden entry is verified, and gives its golden index and consume queue units."""
    index = vector["index"]
    before = ENTRIES[index - 1]["chain_crc"] if index else OURS["chain_seed"]
    entries = verify_range(raw(vector["entry_hex"]), index, vector["term"], vector["pos"], before)
    columns = layout.record_columns(entries)
    assert (columns.topics, columns.queues[0], columns.queue_offsets[0]) == (
        (vector["topic"],),
        vector["queue"],
        vector["queue_offset"],
    )
    place = {
        "physical_offset": int(columns.physical_offsets[0]),
        "size": int(columns.sizes[0]),
        "tags_code": int(columns.tags_codes[0]),
    }
    assert item(QUEUE_UNIT, **place).hex() == vector["queue_unit_hex"]
    unit = item(
        INDEX_UNIT,
        magic=1,
        pos=entries.pos,
        size=int(entries.sizes[0]),
        index=index,
        term=entries.term,
    )
    assert unit.hex() == vector["index_unit_hex"]


@pytest.mark.parametrize("vector", ENTRIES, ids=lambda v: str(v["index"]))
def test_golden_properties(vector: dict[str, Any]) -> None:
    """Every golden property string is what its fields encode to."""
    data = raw(vector["properties_hex"])
    assert encode(decode(data)) == data and layout.tags_code(data) == vector["tags_code"]


def test_golden_files_hold_the_golden_entries() -> None:
    """Entries lie in the files at their positions; the blank names the remainder and everything not
    written is zero."""
    size = OURS["data_file_bytes"]
    for number, file in enumerate(OURS["files"]):
        data = bytearray(raw(file["hex"]))
        assert len(data) == size and file["name"] == f"{number * size:020d}"
        end = 0
        for vector in ENTRIES:
            if vector["pos"] // size == number:
                at, entry = vector["pos"] % size, raw(vector["entry_hex"])
                assert data[at : at + len(entry)] == entry and at == end
                end = at + len(entry)
        if number == 0:
            assert data[end : end + 8] == b"\xff\xff\xff\xff" + (size - end).to_bytes(4, "big")
            end += 8
        assert not any(data[end:])
