"""Requests of a Produce stream taken apart by hand: the same as protobuf says, for whatever
bytes."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from ledgermq.node.frontend.native.requests import FrameRequest, read
from ledgermq.proto import log_pb2 as pb

FRAMES = st.builds(
    pb.Frame,
    namespace=st.text(max_size=5),
    topic=st.text(max_size=5),
    first_sequence=st.integers(0, 2**64 - 1),
    sizes=st.binary(max_size=300),
    entries=st.binary(max_size=300),
)


def expected(data: bytes) -> tuple[object, ...] | None:
    """By protobuf alone; None: no request."""
    try:
        request = pb.ProduceRequest.FromString(data)
    except DecodeError:
        return None
    match request.WhichOneof("request"):
        case "open":
            return (request.open.SerializeToString(deterministic=True),)
        case "frame":
            f = request.frame
            return (f.namespace, f.topic, f.first_sequence, f.sizes, f.entries)
    return None


def found(data: bytes) -> tuple[object, ...] | None:
    try:
        request = read(data)
    except DecodeError:
        return None
    if isinstance(request, FrameRequest):
        return (
            request.namespace,
            request.topic,
            request.first_sequence,
            bytes(request.sizes),
            bytes(request.entries),
        )
    return (request.SerializeToString(deterministic=True),)


@given(FRAMES)
def test_frames_are_read_where_they_lie(frame: pb.Frame) -> None:
    """Views of the request's bytes, not copies."""
    data = pb.ProduceRequest(frame=frame).SerializeToString()
    request = read(data)
    assert isinstance(request, FrameRequest) and found(data) == expected(data)
    if frame.entries:
        assert isinstance(request.entries, memoryview) and request.entries.obj is data


@given(FRAMES, FRAMES, st.binary(max_size=8))
@example(pb.Frame(), pb.Frame(), b"")
def test_unusual_requests_parse_as_protobuf_does(
    one: pb.Frame, other: pb.Frame, more: bytes
) -> None:
    """Two frames in one request are merged, unknown fields are skipped, an open and a frame are the
    last of them."""
    frame, second = (
        pb.ProduceRequest(frame=one).SerializeToString(),
        pb.ProduceRequest(frame=other).SerializeToString(),
    )
    opened = pb.ProduceRequest(open=pb.OpenProducer(name="n")).SerializeToString()
    merged = one.SerializeToString() + other.SerializeToString() + more
    wrapped = b"\x12" + bytes([len(merged) % 128 | 0x80, len(merged) // 128]) + merged
    for data in (
        frame + second,
        opened + frame,
        frame + opened,
        frame + more,
        wrapped,
        b"\x12\x80\x00",
        b"\x12\x81\x80\x00\x0a",
    ):
        assert found(data) == expected(data)


@given(st.binary(max_size=60), FRAMES, st.data())
def test_any_bytes_parse_or_raise_decode_error(
    noise: bytes, frame: pb.Frame, data: st.DataObject
) -> None:
    """Cut, overwritten and made-up requests: never another exception."""
    whole = bytearray(pb.ProduceRequest(frame=frame).SerializeToString())
    at = data.draw(st.integers(0, len(whole)))
    for candidate in (
        noise,
        b"\x12" + noise,
        bytes(whole[:at]),
        bytes(whole[:at] + noise + whole[at + len(noise) :]),
    ):
        assert found(candidate) == expected(candidate)


def test_request_without_content_is_a_decode_error() -> None:
    """An empty request, too."""
    for data in (b"", b"\xff", b"\x18\x01"):
        with pytest.raises(DecodeError):
            read(data)
