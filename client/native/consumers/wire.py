"""Decoding of a Fetch stream's messages: entries stay views into the received bytes, and generated
code decodes everything else.

A response with entries is nearly all payload, and generated code would copy it twice. So its few
fields are decoded here by the protobuf encoding (varints and lengths), and `sizes` and `entries`
are views into the bytes received.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ledgermq.client.native.consumers.positions import Entries
from ledgermq.proto import log_pb2 as pb

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ENTRIES_TAG = pb.FetchResponse.ENTRIES_FIELD_NUMBER << 3 | _BYTES
_FIELDS = pb.Entries.DESCRIPTOR.fields_by_name
_NUMBERS = tuple(
    [_FIELDS[name].number for name in ("queue", "first_offset", "end_offset", "skipped")]
)
_VIEWS = tuple([_FIELDS[name].number for name in ("sizes", "entries")])


def fetch_response(data: bytes) -> Entries | pb.FetchResponse:
    """Decode a response to Fetch. Raises ValueError for bytes that are not one."""
    if data[:1] != bytes([_ENTRIES_TAG]):
        response = _generated(data)
        return (
            response if response.WhichOneof("response") != "entries" else _plain(response.entries)
        )
    length, at = _varint(data, 1)
    if at + length != len(data):
        # The field is repeated, or another one follows. Nodes never send this, but it is valid
        # protobuf.
        return _plain(_generated(data).entries)
    return _entries(data, at)


def _generated(data: bytes) -> pb.FetchResponse:
    try:
        response: pb.FetchResponse = pb.FetchResponse.FromString(data)
    except DecodeError as error:
        raise ValueError("not a Fetch response") from error
    return response


def _plain(message: pb.Entries) -> Entries:
    numbers = (message.end_offset, message.skipped)
    return Entries(
        message.queue,
        message.first_offset,
        memoryview(message.sizes),
        memoryview(message.entries),
        *numbers,
    )


def _entries(data: bytes, at: int) -> Entries:
    view = memoryview(data)
    numbers = dict.fromkeys(_NUMBERS, 0)
    views = dict.fromkeys(_VIEWS, view[:0])
    while at < len(data):
        tag, at = _varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            numbers[field] = value - (1 << 64) if value >> 63 else value
        elif kind == _BYTES:
            length, at = _varint(data, at)
            views[field] = view[at : at + length]
            at += length
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"protobuf wire type {kind} in a Fetch response")
    if at != len(data):
        raise ValueError("a Fetch response ends within a field")
    queue, first_offset, end_offset, skipped = map(numbers.__getitem__, _NUMBERS)
    sizes, entries = map(views.__getitem__, _VIEWS)
    return Entries(
        queue=queue,
        first_offset=first_offset,
        sizes=sizes,
        entries=entries,
        end_offset=end_offset,
        skipped=skipped,
    )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and the position behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a Fetch response ends within a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
