"""What both ends of a stream between two nodes share: frames, limits, the queue of what waits, and what a node does with what it hears.

A stream carries, in the direction of the node that opened it, replication packets, calls and signs of life; in the other direction the
results of those calls. Who opens streams is `links.py`, who accepts them `peer_server.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq.node import metrics
from ledgermq.node.core.ports import PeerPacket
from ledgermq.proto import peer_pb2

METHOD = "/ledgermq.v1.Peer/Link"
SERVICE = "ledgermq.v1.Peer"
GREETING_BYTES = 64 << 10
GREETING_TIMEOUT_S = 3.0
# A frame takes whatever is queued up to this size; one message is always taken.
FRAME_BYTES = 4 << 20
RECEIVE_BYTES = 32 << 20
# Fields of proto/peer.proto with their wire type, length-delimited: PeerFrame.messages, PeerMessage.replication, and Replication's own.
MESSAGE_TAG, REPLICATION_TAG = b"\x0a", b"\x22"
GROUP_TAG, HEADER_TAG, PAYLOAD_TAG = b"\x0a", b"\x12", b"\x1a"

Buffer = bytes | memoryview


class PeerHandler(Protocol):
    """What a node does with what its peers say. Senders are authenticated node names."""

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None: ...
    async def execute(self, sender: str, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult: ...
    async def status(self) -> peer_pb2.NodeStatusReply: ...
    def signs(self, client_ids: Sequence[str]) -> None: ...
    def gone(self, client_id: str) -> None: ...
    def link_changed(self, peer: str, up: bool) -> None: ...


class Outbox:
    """Messages waiting for the next frame of one stream; bounded in bytes, replication gives way first."""

    def __init__(self, peer: str, limit_bytes: int) -> None:
        self._urgent: deque[tuple[peer_pb2.PeerMessage, int]] = deque()
        self._packets: deque[tuple[Sequence[Buffer], int]] = deque()
        self._limit_bytes = limit_bytes
        self._dropped = metrics.PEER_PACKETS_DROPPED.labels(peer)
        self._wake = asyncio.Event()
        self.bytes = 0

    def put(self, message: peer_pb2.PeerMessage, size: int) -> None:
        """Queue a message that must not be dropped."""
        self._urgent.append((message, size))
        self.bytes += size
        self._wake.set()

    def put_packet(self, group: str, packet: PeerPacket) -> None:
        """Queue a replication packet; the oldest ones give way."""
        parts = packet_parts(group, packet)
        size = sum(map(len, parts))
        self._packets.append((parts, size))
        self.bytes += size
        while self.bytes > self._limit_bytes and len(self._packets) > 1:
            self.bytes -= self._packets.popleft()[1]
            self._dropped.inc()
        self._wake.set()

    @property
    def full(self) -> bool:
        return self.bytes > self._limit_bytes

    def __len__(self) -> int:
        return len(self._urgent) + len(self._packets)

    def withdraw(self, message: peer_pb2.PeerMessage) -> bool:
        """Take back a message that no frame has taken yet."""
        for item in self._urgent:
            if item[0] is message:
                self._urgent.remove(item)
                self.bytes -= item[1]
                return True
        return False

    async def frame(self) -> bytes:
        """Everything queued, up to the size of a frame; waits until there is something. Packets first: heartbeats must not wait."""
        while not self:
            self._wake.clear()
            await self._wake.wait()
        parts: list[Buffer] = []
        size = 0
        while self._packets and (not size or size + self._packets[0][1] <= FRAME_BYTES):
            encoded, length = self._packets.popleft()
            parts += encoded
            size += length
        messages: list[peer_pb2.PeerMessage] = []
        while self._urgent and (not size or size + self._urgent[0][1] <= FRAME_BYTES):
            message, length = self._urgent.popleft()
            messages.append(message)
            size += length
        self.bytes -= size
        # A repeated field may come in pieces, each a frame of its own.
        return b"".join([*parts, frame(messages)])


async def both(first: Awaitable[None], second: Awaitable[None]) -> None:
    """Run both until one ends or fails; the other is cancelled and its failure does not hide the first one's."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def packet_parts(group: str, packet: PeerPacket) -> tuple[Buffer, ...]:
    """A frame with this one packet, as the library would encode it, in pieces: so that the payload, a mebibyte of the log, is copied once
    into the frame that is sent and not once for every message it lies in. A view of a mapped file is copied at once: it may change."""
    payload = packet.payload
    if isinstance(payload, memoryview) and not isinstance(payload.obj, bytes):
        payload = bytes(payload)
    name = group.encode()
    head = GROUP_TAG + _varint(len(name)) + name if name else b""
    head += HEADER_TAG + _varint(len(packet.header)) + packet.header if packet.header else b""
    head += PAYLOAD_TAG + _varint(len(payload)) if len(payload) else b""
    replication = REPLICATION_TAG + _varint(len(head) + len(payload)) + head
    return MESSAGE_TAG + _varint(len(replication) + len(payload)) + replication, payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def frame(messages: Sequence[peer_pb2.PeerMessage]) -> bytes:
    return peer_pb2.PeerFrame(messages=messages).SerializeToString()


async def read(stream: Any, limit_bytes: int = RECEIVE_BYTES) -> peer_pb2.PeerFrame:
    """The next frame. Raises EOFError at the end of the stream, DecodeError for anything that is no frame."""
    raw = await stream.read()
    if raw is grpc.aio.EOF:
        raise EOFError
    if len(raw) > limit_bytes:
        raise DecodeError("frame too long")
    return peer_pb2.PeerFrame.FromString(raw)


def only(frame: peer_pb2.PeerFrame, kind: str) -> Any:
    """The single message of a greeting frame, which must be of this kind."""
    if len(frame.messages) != 1 or frame.messages[0].WhichOneof("content") != kind:
        raise DecodeError(f"expected a {kind}")
    return getattr(frame.messages[0], kind)
