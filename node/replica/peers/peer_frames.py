"""Frames of a stream between two nodes: what bytes become before anybody knows who sent them. No I/O, no clock, nothing of their meaning.

A frame is eight bytes, two big-endian lengths, and then as many bytes of head (a `PeerMessage`) and of payload (the range of a replication
packet, which stays outside of the message so that it is neither encoded nor parsed). A frame without either is a sign of life. Lengths are
checked before a byte behind them is kept: what a reader holds is bounded by its buffer and by its limit, whatever arrives.

A small frame is cut out of the one buffer all bytes are received into, a large one gets memory of its own, which the rest of its bytes
are received into directly: a range is copied once at most between the socket and whoever keeps it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Buffer = bytes | memoryview
PREFIX = struct.Struct(">II")
SIGN_OF_LIFE = PREFIX.pack(0, 0)
BUFFER_BYTES = 128 << 10
# Larger frames get memory of their own. A buffer always has room for the rest of a smaller one.
GATHERED_BYTES = 32 << 10
# A payload up to this size is joined with what stands before it: one buffer for the kernel instead of two costs less than the copy.
JOINED_BYTES = 16 << 10


class BadFrame(Exception):
    """Lengths beyond what may come."""


def encode(head: bytes, payload: Buffer = b"") -> tuple[Buffer, ...]:
    """A frame in pieces. A large payload is not copied if nobody writes to it any more: `bytes`, or a read-only view of a buffer in memory,
    as sealed entries are. Any other view, as that of a mapped file, may change before it has left."""
    prefix = PREFIX.pack(len(head), len(payload))
    if len(payload) <= JOINED_BYTES:
        return (b"".join((prefix, head, payload)),)
    if isinstance(payload, memoryview) and not _stays(payload):
        payload = bytes(payload)
    return prefix + head, payload


def _stays(view: memoryview) -> bool:
    return isinstance(view.obj, bytes) or (view.readonly and isinstance(view.obj, bytearray))


class FrameReader:
    """Bytes in as they come, frames out as (head, payload). `limit_bytes` of a frame may be raised once the other side is known."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._begin = self._end = 0
        self._large: memoryview | None = None
        self._large_head = self._filled = 0

    def room(self) -> memoryview:
        """Where the next bytes go. Empty only while frames that are there are not taken."""
        if self._large is not None:
            return self._large[self._filled :]
        if self._begin and len(self._view) - self._end < GATHERED_BYTES:
            left = bytes(self._view[self._begin : self._end])
            self._view[: len(left)] = left
            self._begin, self._end = 0, len(left)
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """So many bytes were put where `room` said."""
        if self._large is not None:
            self._filled += count
        else:
            self._end += count

    def frames(self) -> Iterator[tuple[bytes, Buffer]]:
        """The whole frames that are there, in order. Raises BadFrame at the first that is too long."""
        while (found := self.next()) is not None:
            yield found

    def next(self) -> tuple[bytes, Buffer] | None:
        """The next whole frame. Raises BadFrame, and again at every later call."""
        if self._large is not None:
            return self._next_large(self._large)
        at = self._begin + PREFIX.size
        if at > self._end:
            return None
        head_bytes, payload_bytes = PREFIX.unpack_from(self._view, self._begin)
        size = head_bytes + payload_bytes
        if size > self.limit_bytes:
            raise BadFrame(f"a frame of {size} bytes, where {self.limit_bytes} may come")
        if size > GATHERED_BYTES - PREFIX.size:
            return self._begin_large(at, head_bytes, size)
        if at + size > self._end:
            return None
        head, payload = bytes(self._view[at : at + head_bytes]), bytes(self._view[at + head_bytes : at + size])
        self._begin = at + size
        if self._begin == self._end:
            self._begin = self._end = 0
        return head, payload

    def _begin_large(self, at: int, head_bytes: int, size: int) -> tuple[bytes, Buffer] | None:
        large = self._large = memoryview(bytearray(size))
        self._large_head = head_bytes
        self._filled = min(self._end - at, size)
        large[: self._filled] = self._view[at : at + self._filled]
        self._begin = at + self._filled
        return self._next_large(large)

    def _next_large(self, large: memoryview) -> tuple[bytes, Buffer] | None:
        if self._filled < len(large):
            return None
        self._large = None
        # Nobody writes into this memory any more.
        return bytes(large[: self._large_head]), large[self._large_head :].toreadonly()
