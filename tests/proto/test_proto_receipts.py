"""Receipts: what the MAC covers, byte by byte, and rows of files."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.proofs.receipts import (
    COLUMNS,
    mac,
    proven,
    receipt_of,
    row_of,
    sign,
    signed_bytes,
)

KEY = bytes(range(32))
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
RANGES = st.lists(st.builds(pb.QueueRange, queue=I32, first_offset=I64, count=U32), max_size=4)
REPLICAS = st.lists(
    st.builds(pb.ReplicaDurable, node=st.text(max_size=8), durable_index=I64), max_size=3
)
RECEIPTS = st.builds(
    pb.Receipt,
    **dict.fromkeys(
        ("cluster_id", "broker_group", "log_id", "topic", "key_id"), st.text(max_size=8)
    ),
    **dict.fromkeys(("producer_id", "epoch", "count", "chain_crc"), U32),
    **dict.fromkeys(("term", "first_index", "store_ms"), I64),
    first_sequence=U64,
    ranges=RANGES,
    replicas=REPLICAS,
    durability=st.sampled_from([0, 1, 2]),
    mac=st.binary(max_size=40),
)


def receipt() -> pb.Receipt:
    return pb.Receipt(
        cluster_id="c",
        broker_group="g1",
        log_id="l",
        topic="ns@T",
        producer_id=0x01020304,
        epoch=5,
        first_sequence=6,
        count=7,
        term=8,
        first_index=9,
        ranges=[pb.QueueRange(queue=1, first_offset=2, count=7)],
        chain_crc=0xDEADBEEF,
        store_ms=10,
        durability=pb.DURABLE,
        replicas=[pb.ReplicaDurable(node="n1", durable_index=15)],
        key_id="k",
    )


def test_the_signed_bytes_are_those_of_the_table() -> None:
    """docs/format.md §4.6, put together by hand."""
    digests = b"".join(
        hashlib.sha256(text.encode()).digest() for text in ("c", "g1", "l", "ns@T", "k")
    )
    numbers = "01020304 00000005 0000000000000006 00000007 deadbeef"
    numbers += " 0000000000000008 0000000000000009 000000000000000a 00000001 00000001 00000001"
    queue = "00000001 0000000000000002 00000007"
    replica = hashlib.sha256(b"n1").digest() + bytes.fromhex("000000000000000f")
    assert (
        signed_bytes(receipt())
        == b"LMQRCPT1" + digests + bytes.fromhex(numbers) + bytes.fromhex(queue) + replica
    )


def test_a_mac_holds_for_one_receipt_and_one_key() -> None:
    """A known answer, so that no release changes it unnoticed."""
    made = receipt()
    sign("k", KEY, made)
    assert made.mac == mac(KEY, receipt())
    assert proven(KEY, made)
    assert not proven(KEY[::-1], made)
    assert made.mac.hex() == "7644a2f66895c1dc7908fba93ff214e0485742719124eda307f5336e2962462a"


@given(RECEIPTS, RECEIPTS)
def test_receipts_that_differ_have_different_bytes(one: pb.Receipt, other: pb.Receipt) -> None:
    """Every field but the MAC counts."""
    one.mac = other.mac = b""
    assert (signed_bytes(one) == signed_bytes(other)) == (one == other)


@given(RECEIPTS, st.data())
def test_every_changed_field_breaks_the_mac(made: pb.Receipt, data: st.DataObject) -> None:
    """What is signed cannot be altered."""
    sign(made.key_id, KEY, made)
    other = pb.Receipt.FromString(made.SerializeToString())
    name = data.draw(
        st.sampled_from([name for name in COLUMNS if name not in ("mac", "ranges", "replicas")])
    )
    value = getattr(made, name)
    setattr(other, name, value + "x" if isinstance(value, str) else value ^ 1)
    assert proven(KEY, made) and not proven(KEY, other)
    del other.ranges[:]
    assert not proven(KEY, other)


@given(RECEIPTS)
def test_rows_round_trip_through_json(made: pb.Receipt) -> None:
    """As columns of Parquet, and as JSON lines with the MAC in hexadecimal."""
    row = row_of(made)
    assert tuple(row) == COLUMNS
    assert receipt_of(row) == made
    assert receipt_of(json.loads(json.dumps({**row, "mac": made.mac.hex(), "more": 1}))) == made


@pytest.mark.parametrize(
    "change",
    [
        {"mac": None},
        {"mac": "xyz"},
        {"count": -1},
        {"count": "7"},
        {"durability": "solid"},
        {"ranges": 3},
        {"ranges": [[1, 2, 3]]},
        {"ranges": [{"queue": 1}]},
        {"first_index": 2**63},
        {"topic": 5},
    ],
)
def test_rows_that_are_no_receipts_are_refused(change: dict[str, object]) -> None:
    """Files come from anywhere."""
    with pytest.raises(ValueError, match="receipt"):
        receipt_of({**row_of(receipt()), **change})
