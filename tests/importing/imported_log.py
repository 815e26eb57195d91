"""Reads the contents of an imported log with the standard library, for comparison with the source
store root."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Found:
    """A message of the new log."""

    topic: str
    queue: int
    offset: int
    sysflag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    body: bytes
    properties: dict[str, str]
    names: tuple[str, ...]


def messages(node: Path) -> list[Found]:
    """All messages of the broker group's log in order, without control records."""
    found = []
    name = node.name
    for path in sorted((node / "g1" / f"dledger-{name}" / "data").glob("0*")):
        raw, at = path.read_bytes(), 0
        while at + 8 <= len(raw) and int.from_bytes(raw[at : at + 4], "big") == 1:
            size = int.from_bytes(raw[at + 4 : at + 8], "big")
            found.append(_message(raw[at + 48 : at + size]))
            at += size
    return [
        one
        for one in found
        if not one.topic.startswith("rmq_sys_ledgermq") or one.topic.endswith("_timer")
    ]


def _message(raw: bytes) -> Found:
    queue, _, offset, _, sysflag, born_ms = struct.unpack_from(">iiqqiq", raw, 12)
    store_ms = struct.unpack_from(">q", raw, 56)[0]
    reconsume, _, length = struct.unpack_from(">iqi", raw, 72)
    at = 88 + length
    wide = raw[4:8] == b"\xda\xa3\x20\xab"
    topic_bytes = int.from_bytes(raw[at : at + 1 + wide], "big")
    at += 1 + wide
    topic = raw[at : at + topic_bytes].decode()
    pairs = [
        piece.split("\x01") for piece in raw[at + topic_bytes + 2 :].decode().split("\x02")[:-1]
    ]
    assert all(len(pair) == 2 for pair in pairs), pairs
    properties = {name: value for name, value in pairs}
    body = raw[88 : 88 + length]
    return Found(
        topic, queue, offset, sysflag, born_ms, raw[48:56], store_ms, raw[64:72], reconsume, body, properties, tuple(n for n, _ in pairs)
    )  # fmt: skip


def snapshot(node: Path) -> dict[str, Any]:
    """The derived state at the end of the log."""
    value: dict[str, Any] = json.loads((node / "g1/state/snapshot").read_bytes())
    return value
