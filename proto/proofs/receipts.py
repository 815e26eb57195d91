"""Receipts of native frames: the bytes that their MAC covers, the MAC, and receipts as rows of a
file (docs/format.md §4.6).

Pure functions. The cluster knows the keys, and whether a receipt is true. The MAC covers
fixed-width fields: texts by their SHA-256, numbers big-endian, so that no two receipts have the
same bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct
from typing import Any

from ledgermq.proto import log_pb2

MAC_BYTES = 32
KEY_BYTES = 32
_MAGIC = b"LMQRCPT1"
# ── cluster, broker group, log, topic, key ── producer, epoch ── first sequence ── count, chain CRC
# ── term, first index, store ms ── durability, number of ranges, number of replicas
_FIXED = Struct(">8s 32s32s32s32s32s II Q II qqq iII")
_RANGE = Struct(">iqI")
_REPLICA = Struct(">32sq")

COLUMNS = tuple(field.name for field in log_pb2.Receipt.DESCRIPTOR.fields)
"""The columns of a receipt file: the fields of a receipt, in the order of their numbers."""
_TEXTS = ("cluster_id", "broker_group", "log_id", "topic", "key_id")
_NUMBERS = (
    "producer_id",
    "epoch",
    "first_sequence",
    "count",
    "term",
    "first_index",
    "chain_crc",
    "store_ms",
)
_CLASSES = {
    log_pb2.DURABLE: "durable",
    log_pb2.MEMORY: "memory",
    log_pb2.MASTER: "master",
    log_pb2.DURABILITY_UNSPECIFIED: "",
}
_DURABILITY = {text: number for number, text in _CLASSES.items()}


@lru_cache(1024)
def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def signed_bytes(receipt: log_pb2.Receipt) -> bytes:
    """The bytes covered by the MAC: every field except `mac`."""
    r = receipt
    head = _FIXED.pack(
        _MAGIC,
        _digest(r.cluster_id),
        _digest(r.broker_group),
        _digest(r.log_id),
        _digest(r.topic),
        _digest(r.key_id),
        r.producer_id,
        r.epoch,
        r.first_sequence,
        r.count,
        r.chain_crc,
        r.term,
        r.first_index,
        r.store_ms,
        r.durability,
        len(r.ranges),
        len(r.replicas),
    )
    ranges = b"".join(_RANGE.pack(item.queue, item.first_offset, item.count) for item in r.ranges)
    return (
        head
        + ranges
        + b"".join(_REPLICA.pack(_digest(item.node), item.durable_index) for item in r.replicas)
    )


def mac(key: bytes, receipt: log_pb2.Receipt) -> bytes:
    """HMAC-SHA256 of the receipt's signed bytes."""
    return hmac.digest(key, signed_bytes(receipt), "sha256")


def sign(key_id: str, key: bytes, receipt: log_pb2.Receipt) -> None:
    """Complete a receipt with key id and MAC."""
    receipt.key_id = key_id
    receipt.mac = mac(key, receipt)


def proven(key: bytes, receipt: log_pb2.Receipt) -> bool:
    """Whether the receipt was signed with this key and has not changed since."""
    return hmac.compare_digest(receipt.mac, mac(key, receipt))


# Rows


def class_of(receipt: log_pb2.Receipt) -> str:
    """The durability class of the acknowledgement: `durable`, `memory` or `master`; for a class of
    a newer version its number."""
    return _CLASSES.get(receipt.durability, str(int(receipt.durability)))


def row_of(receipt: log_pb2.Receipt) -> dict[str, Any]:
    """A receipt as one row, its fields by name: `durability` is that of `class_of`, `ranges` and
    `replicas` are lists of mappings, `mac` is bytes. In a JSON line the MAC is hexadecimal."""
    row: dict[str, Any] = {name: getattr(receipt, name) for name in (*_TEXTS, *_NUMBERS)}
    row["durability"] = class_of(receipt)
    row["ranges"] = [
        {"queue": item.queue, "first_offset": item.first_offset, "count": item.count}
        for item in receipt.ranges
    ]
    row["replicas"] = [
        {"node": item.node, "durable_index": item.durable_index} for item in receipt.replicas
    ]
    row["mac"] = receipt.mac
    return {name: row[name] for name in COLUMNS}


def receipt_of(row: Mapping[str, Any]) -> log_pb2.Receipt:
    """The inverse, for a row from any source; unknown columns are ignored. Raises ValueError with
    the error."""
    missing = [name for name in COLUMNS if row.get(name) is None]
    if missing:
        raise ValueError(f"a receipt has a {missing[0]}")
    try:
        receipt = log_pb2.Receipt(**{name: row[name] for name in (*_TEXTS, *_NUMBERS)})
        receipt.durability = _DURABILITY[row["durability"]]
        for item in _mappings(row["ranges"]):
            receipt.ranges.add(
                queue=item["queue"], first_offset=item["first_offset"], count=item["count"]
            )
        for item in _mappings(row["replicas"]):
            receipt.replicas.add(node=item["node"], durable_index=item["durable_index"])
        given = row["mac"]
        receipt.mac = bytes.fromhex(given) if isinstance(given, str) else bytes(given)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a receipt: {type(error).__name__} {error}") from None
    return receipt


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    if not isinstance(value, Iterable) or not all(isinstance(item, Mapping) for item in value):
        raise ValueError(f"expected a list of ranges or replicas, not {value!r}")
    return value
