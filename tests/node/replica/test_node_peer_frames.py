"""Frames between nodes: whatever arrives, however it is cut, is whole frames in order or the end of
the stream, in bounded memory."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledgermq.node.replica.peers import peer_frames
from ledgermq.node.replica.peers.peer_frames import (
    PREFIX,
    SIGN_OF_LIFE,
    BadFrame,
    FrameReader,
    encode,
)

LIMIT = 200_000
NEAR_GATHERED = st.integers(peer_frames.GATHERED_BYTES - 20, peer_frames.GATHERED_BYTES + 20)
SIZES = st.one_of(st.integers(0, 300), NEAR_GATHERED, st.integers(0, 150_000))


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> list[tuple[bytes, bytes]]:
    """What a socket does: as many bytes as there is room for, or fewer, and then a look for whole
    frames."""
    found: list[tuple[bytes, bytes]] = []
    at = turn = 0
    while at < len(data):
        room = reader.room()
        assert len(room), "there is always room once the frames are taken"
        count = min(len(room), len(data) - at, cuts[turn % len(cuts)] if cuts else len(data))
        room[:count] = data[at : at + count]
        reader.received(count)
        at, turn = at + count, turn + 1
        found += [(head, bytes(payload)) for head, payload in reader.frames()]
    return found


@given(
    frames=st.lists(st.tuples(SIZES, SIZES), max_size=6),
    cuts=st.lists(st.integers(1, 70_000), max_size=4),
)
@example(frames=[(0, 0), (8, 0), (0, peer_frames.GATHERED_BYTES)], cuts=[1])
@example(frames=[(5, 140_000), (3, 3)], cuts=[])
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    frames: list[tuple[int, int]], cuts: list[int]
) -> None:
    """Also where a frame begins in the buffer of others and ends in memory of its own."""
    said = [
        (bytes([k + 1]) * head, bytes([k + 101]) * payload)
        for k, (head, payload) in enumerate(frames)
    ]
    data = b"".join(b"".join(encode(head, payload)) for head, payload in said)
    assert (
        feed(
            FrameReader(400_000),
            data,
            [max(cut, 1000) for cut in cuts] if len(data) > 5_000 else cuts,
        )
        == said
    )


def held_bytes(reader: FrameReader) -> int:
    """Memory of a reader that a sender can make it take."""
    return len(reader._view) + (0 if reader._large is None else len(reader._large))


@given(
    data=st.binary(max_size=2000),
    cuts=st.lists(st.integers(1, 500), max_size=5),
    lengths=st.lists(st.tuples(SIZES, SIZES), max_size=3),
)
@example(data=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", cuts=[], lengths=[])
def test_arbitrary_bytes_raise_bad_frame_within_the_memory_limit(
    data: bytes, cuts: list[int], lengths: list[tuple[int, int]]
) -> None:
    """Lengths that promise much, too: a reader holds its buffer and one frame within its limit."""
    reader = FrameReader(LIMIT)
    for piece in [*(PREFIX.pack(*pair) + data[:40] for pair in lengths), data]:
        try:
            feed(reader, piece, cuts)
        except BadFrame:
            with pytest.raises(BadFrame):
                reader.next()
            break
        finally:
            assert held_bytes(reader) <= peer_frames.BUFFER_BYTES + LIMIT


def test_a_frame_beyond_the_limit_is_refused_before_it_is_kept() -> None:
    """The lengths alone decide; with the limit raised the same frame is taken."""
    reader = FrameReader(1000)
    with pytest.raises(BadFrame, match="1001 bytes"):
        feed(reader, PREFIX.pack(1, 1000), [])
    assert held_bytes(reader) == peer_frames.BUFFER_BYTES
    raised = FrameReader(1000)
    raised.limit_bytes = 1001
    assert feed(raised, PREFIX.pack(1, 1000) + bytes(1001), []) == [(b"\0", bytes(1000))]


def test_frames_that_are_not_taken_fill_the_buffer_and_no_more() -> None:
    """Before the greeting is done, frames are not processed: a peer that continues to send is not
    read any further."""
    reader = FrameReader(1000)
    while len(room := reader.room()):
        room[:] = (SIGN_OF_LIFE * len(room))[: len(room)]
        reader.received(len(room))
    assert held_bytes(reader) == peer_frames.BUFFER_BYTES
    assert sum(1 for _ in reader.frames()) == peer_frames.BUFFER_BYTES // len(SIGN_OF_LIFE)


def test_a_large_payload_is_not_copied_and_cannot_change() -> None:
    """A payload is read from the socket into the memory that is passed on and never written again;
    when sending, the range itself is passed on."""
    payload = bytes(1 << 20)
    (prefix, sent) = encode(b"head", payload)
    assert sent is payload and prefix == PREFIX.pack(4, len(payload)) + b"head"
    reader = FrameReader(2 << 20)
    ((_, got),) = feed_views(reader, prefix + payload)
    assert (
        isinstance(got, memoryview)
        and got.readonly
        and isinstance(got.obj, bytearray)
        and len(got.obj) == len(payload) + 4
    )
    assert got.obj is not reader.room().obj


def feed_views(reader: FrameReader, data: bytes) -> list[tuple[bytes, bytes | memoryview]]:
    at = 0
    found: list[tuple[bytes, bytes | memoryview]] = []
    while at < len(data):
        room = reader.room()
        count = min(len(room), len(data) - at)
        room[:count] = data[at : at + count]
        reader.received(count)
        at += count
        found += reader.frames()
    return found


@pytest.mark.parametrize("size", [6, peer_frames.JOINED_BYTES, peer_frames.JOINED_BYTES + 1])
def test_a_view_that_may_change_is_copied_when_it_is_encoded(size: int) -> None:
    """The hot tail of the log is a view of a mapped file: what was pushed is what leaves, whatever
    becomes of the file."""
    pages = bytearray(b"p" * size)
    parts = encode(b"h", memoryview(pages))
    pages[:] = b"c" * size
    assert b"".join(parts) == PREFIX.pack(1, size) + b"h" + b"p" * size


def test_a_read_only_view_of_memory_leaves_without_a_copy() -> None:
    """Sealed entries do not change any more. A read-only view of a map may still change with its
    file."""
    entries = bytearray(peer_frames.JOINED_BYTES + 1)
    view = memoryview(entries)[1:].toreadonly()
    assert len(view) == peer_frames.JOINED_BYTES and len(encode(b"h", view)) == 1
    view = memoryview(entries).toreadonly()
    assert encode(b"h", view)[1] is view
    pages = mmap.mmap(-1, len(entries))
    sent = encode(b"h", memoryview(pages).toreadonly())[1]
    assert isinstance(sent, bytes) and sent == bytes(entries)
