"""Frames of a stream between two nodes. This layer works before the sender is authenticated: no
I/O, no clock, no interpretation.

A frame is eight bytes (two big-endian lengths), followed by the head and the payload
(docs/format.md §19). The head is a `PeerMessage`, or it belongs to a replication packet, whose
range is the payload: a zero byte, which no `PeerMessage` begins with, the broker group's name after
its length in one byte, and the packet's header. A frame with both lengths 0 is a heartbeat. Lengths
are checked before a byte behind them is stored, so a reader's memory is bounded by its buffer and
its limit, whatever arrives.

A small frame is cut out of the one buffer that all bytes are received into. A large frame gets its
own memory, and the rest of its bytes are received directly into it: a range is copied at most once
between the socket and its user.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Buffer = bytes | memoryview
PREFIX = struct.Struct(">II")
SIGN_OF_LIFE = PREFIX.pack(0, 0)
BUFFER_BYTES = 128 << 10
# Larger frames get their own memory. A buffer always has room for the rest of a smaller one.
GATHERED_BYTES = 32 << 10
# A payload up to this size is joined with its head: passing one buffer to the kernel instead of two
# costs less than the copy.
JOINED_BYTES = 16 << 10


class BadFrame(Exception):
    """The lengths of a frame exceed the limit, or its head cannot be decoded."""


def packet_head(group: str, header: bytes) -> bytes:
    """The head of a replication packet of a broker group, whose name has at most 255 bytes."""
    name = group.encode()
    return bytes((0, len(name))) + name + header


def packet_in(head: bytes) -> tuple[str, bytes] | None:
    """The broker group and the header of a replication packet; None if the head is a `PeerMessage`.
    Raises BadFrame."""
    if head[:1] != b"\0":
        return None
    end = 2 + int.from_bytes(head[1:2])
    if end > len(head):
        raise BadFrame("a packet without the name of its broker group")
    try:
        return head[2:end].decode(), head[end:]
    except UnicodeDecodeError as error:
        raise BadFrame(f"the name of a broker group: {error}") from error


def encode(head: bytes, payload: Buffer = b"") -> tuple[Buffer, ...]:
    """Encode a frame as one or more buffers. A large payload is not copied if it can no longer
    change: `bytes`, or a read-only view of a buffer in memory, such as sealed entries. Any other
    view, such as one of a mapped file, may change before it is sent, so it is copied."""
    prefix = PREFIX.pack(len(head), len(payload))
    if len(payload) <= JOINED_BYTES:
        return (b"".join((prefix, head, payload)),)
    if isinstance(payload, memoryview) and not _stays(payload):
        payload = bytes(payload)
    return prefix + head, payload


def _stays(view: memoryview) -> bool:
    return isinstance(view.obj, bytes) or (view.readonly and isinstance(view.obj, bytearray))


class FrameReader:
    """Takes received bytes and returns frames as (head, payload). `limit_bytes` of a frame may be
    raised after the greeting."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._view = memoryview(bytearray(BUFFER_BYTES))
        self._begin = self._end = 0
        self._large: memoryview | None = None
        self._large_head = self._filled = 0

    def room(self) -> memoryview:
        """The memory for the next bytes. Empty only while complete frames have not been taken."""
        if self._large is not None:
            return self._large[self._filled :]
        if self._begin and len(self._view) - self._end < GATHERED_BYTES:
            left = bytes(self._view[self._begin : self._end])
            self._view[: len(left)] = left
            self._begin, self._end = 0, len(left)
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Note that `count` bytes were received into `room`."""
        if self._large is not None:
            self._filled += count
        else:
            self._end += count

    def frames(self) -> Iterator[tuple[bytes, Buffer]]:
        """Yield the complete frames in order. Raises BadFrame at the first that is too long."""
        while (found := self.next()) is not None:
            yield found

    def next(self) -> tuple[bytes, Buffer] | None:
        """The next complete frame, or None. Raises BadFrame, also on every later call."""
        if self._large is not None:
            return self._next_large(self._large)
        at = self._begin + PREFIX.size
        if at > self._end:
            return None
        head_bytes, payload_bytes = PREFIX.unpack_from(self._view, self._begin)
        size = head_bytes + payload_bytes
        if size > self.limit_bytes:
            raise BadFrame(f"a frame of {size} bytes exceeds the limit of {self.limit_bytes}")
        if size > GATHERED_BYTES - PREFIX.size:
            return self._begin_large(at, head_bytes, size)
        if at + size > self._end:
            return None
        head, payload = (
            bytes(self._view[at : at + head_bytes]),
            bytes(self._view[at + head_bytes : at + size]),
        )
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
        # The memory is not written any more, so the caller gets a read-only view.
        return bytes(large[: self._large_head]), large[self._large_head :].toreadonly()
