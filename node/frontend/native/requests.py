"""Decodes the requests of a Produce stream without copying: a frame's entries, up to a mebibyte,
stay views of the request's bytes.

`read` decodes by hand what every encoder writes for a frame: each field once and complete. Any
other encoding goes through the protobuf library, which decides what it means. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ledgermq.proto import log_pb2
from ledgermq.proto.entries.layout import Buffer

_FRAME = 0x12
"""Tag of field 2 of ProduceRequest, length-delimited. The tags of Frame's fields follow; field 3 is
a varint."""
_NAMESPACE, _TOPIC, _FIRST_SEQUENCE, _SIZES, _ENTRIES = 0x0A, 0x12, 0x18, 0x22, 0x2A
_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class FrameRequest:
    """A received frame; `sizes` and `entries` are views of the request's bytes."""

    namespace: str
    topic: str
    first_sequence: int
    sizes: Buffer
    entries: Buffer

    @property
    def count(self) -> int:
        """The number of messages, if the column of sizes is complete."""
        return len(self.sizes) // 4


def read(data: bytes) -> FrameRequest | log_pb2.OpenProducer:
    """Decode a request. Raises DecodeError for invalid bytes, and for a request that is neither
    kind."""
    framed = _frame(data) if data[:1] == bytes((_FRAME,)) else None
    if framed is not None:
        return framed
    request = log_pb2.ProduceRequest.FromString(data)
    kind = request.WhichOneof("request")
    if kind == "open":
        return request.open
    if kind != "frame":
        raise DecodeError("a request must open a producer or hold a frame")
    frame = request.frame
    return FrameRequest(
        frame.namespace, frame.topic, frame.first_sequence, frame.sizes, frame.entries
    )


def _frame(data: bytes) -> FrameRequest | None:
    """Decode a frame by hand; None if its encoding is not the expected one."""
    view = memoryview(data)
    try:
        length, at = _varint(data, 1)
        if at + length != len(data):
            return None
        texts = {_NAMESPACE: "", _TOPIC: ""}
        columns: dict[int, Buffer] = {_SIZES: b"", _ENTRIES: b""}
        first_sequence = 0
        while at < len(data):
            tag = data[at]
            value, at = _varint(data, at + 1)
            if tag == _FIRST_SEQUENCE:
                first_sequence = value
                continue
            part = view[at : at + value]
            at += value
            if tag in columns:
                columns[tag] = part
            elif tag in texts:
                texts[tag] = str(part, "utf-8")
            else:
                return None
    except (IndexError, UnicodeDecodeError):
        return None
    if at != len(data) or first_sequence >= 1 << 64:
        return None
    return FrameRequest(
        texts[_NAMESPACE], texts[_TOPIC], first_sequence, columns[_SIZES], columns[_ENTRIES]
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, end position) of a varint. Raises IndexError if it does not end."""
    value = shift = 0
    for byte in data[at : at + _VARINT_BYTES]:
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError
