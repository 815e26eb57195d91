"""The common part of both ends of a stream between two nodes: the connection, its limits and
heartbeats, the send queue, and the handler.

A stream is one TCP connection, with or without TLS, that carries the frames of `peer_frames.py`.
The side that opened it sends replication packets, calls and heartbeats; the other side sends the
results of the calls. Everything runs on the loop: received bytes are cut into frames and delivered
in one step, and everything queued in one pass of the loop is sent with one system call. `links.py`
opens streams and `peer_server.py` accepts them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from google.protobuf.message import DecodeError

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.peers.peer_frames import (
    SIGN_OF_LIFE,
    BadFrame,
    Buffer,
    FrameReader,
    encode,
    packet_head,
)
from ledgermq.node.runtime import metrics
from ledgermq.proto import peer_pb2

GREETING_BYTES = 64 << 10
GREETING_TIMEOUT_S = 3.0
RECEIVE_BYTES = 32 << 20
# A write takes what is queued up to this size, and at least one message.
WRITE_BYTES = 1 << 20
# Limit for bytes of former writes that the kernel has not taken. Above it messages stay in the
# queue, where old packets are dropped.
UNWRITTEN_BYTES = 512 << 10
# After this silence the dialling side requests a heartbeat, and after as long again it closes the
# stream.
SILENCE_S = 2.0
# The accepting side receives at least one such request in a little more than SILENCE_S.
DEAF_S = 10.0
# A loop that is this late has not processed what arrived meanwhile.
LATE_S = 1.0
# The loop's clock has a resolution of milliseconds; a shorter wait makes no sense.
LEAST_S = 0.01

Frame = tuple[bytes, Buffer]


class Outbox:
    """The send queue of one stream, bounded in bytes; replication packets are dropped first. `wake`
    is called for each message."""

    def __init__(self, peer: str, limit_bytes: int, wake: Callable[[], None]) -> None:
        self._urgent: deque[tuple[peer_pb2.PeerMessage, int]] = deque()
        self._packets: deque[tuple[Sequence[Buffer], int]] = deque()
        self._limit_bytes = limit_bytes
        self._dropped = metrics.PEER_PACKETS_DROPPED.labels(peer)
        self._wake = wake
        self._room: asyncio.Future[None] | None = None
        """Set while a caller waits for `room`."""
        self.bytes = 0

    def put(self, message: peer_pb2.PeerMessage, size: int) -> None:
        """Queue a message that must not be dropped."""
        self._urgent.append((message, size))
        self.bytes += size
        self._wake()

    def put_packet(self, group: str, packet: PeerPacket) -> None:
        """Queue a replication packet; the oldest ones are dropped if the queue is full."""
        parts = encode(packet_head(group, packet.header), packet.payload)
        size = sum(map(len, parts))
        self._packets.append((parts, size))
        self.bytes += size
        while self.bytes > self._limit_bytes and len(self._packets) > 1:
            self.bytes -= self._packets.popleft()[1]
            self._dropped.inc()
        self._wake()

    @property
    def full(self) -> bool:
        return self.bytes > self._limit_bytes

    async def room(self) -> None:
        """Wait while the queue is full. The caller must end when the stream does."""
        while self.full:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            # A cancelled caller must not cancel the wait of the others.
            await asyncio.shield(self._room)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._packets)

    def withdraw(self, message: peer_pb2.PeerMessage) -> bool:
        """Remove a message that no write has taken yet; returns whether it was found."""
        for item in self._urgent:
            if item[0] is message:
                self._urgent.remove(item)
                self.bytes -= item[1]
                return True
        return False

    def take(self) -> list[Buffer]:
        """The frames of everything queued, up to the size of one write. Packets go first:
        heartbeats of Raft must not wait."""
        buffers: list[Buffer] = []
        size = 0
        while self._packets and (not size or size + self._packets[0][1] <= WRITE_BYTES):
            encoded, length = self._packets.popleft()
            buffers += encoded
            size += length
        while self._urgent and (not size or size + self._urgent[0][1] <= WRITE_BYTES):
            message, length = self._urgent.popleft()
            buffers += encode(message.SerializeToString())
            size += length
        self.bytes -= size
        if self._room is not None and not self.full:
            room, self._room = self._room, None
            room.set_result(None)
        return buffers


class PeerStream(asyncio.BufferedProtocol):
    """One connection: exchanges the greeting message by message, then carries frames until it
    ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(GREETING_BYTES)
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._take: Callable[[list[Frame]], None] | None = None
        self._outbox: Outbox | None = None
        self._paused = self._flushing = self._stalled = False
        self._secure = self._dialled = False
        self._timer: asyncio.TimerHandle | None = None
        self._asked_s = 0.0
        """When this side last requested a heartbeat."""
        self._written = self._left = 0
        """Bytes passed to the connection, and how many of them had been sent at the last check."""
        self.heard_s = self._loop.time()
        """The time of the last received bytes, in the loop's time."""
        self.ended: asyncio.Future[Exception | None] = self._loop.create_future()
        """Done when the connection has ended; with the error, if this side ended it because of
        one."""

    # -- greeting

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "used before there is a connection"
        return self._transport

    @property
    def caller(self) -> str:
        """The address of the other side, for the log."""
        name = self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)

    def say(self, message: peer_pb2.PeerMessage) -> None:
        """Send a message of the greeting; ignored if the connection has ended."""
        if not self.ended.done():
            self.transport.write(b"".join(encode(message.SerializeToString())))

    async def hear(self, kind: str) -> Any:
        """The next message of the greeting, which must be of this kind. Raises EOFError at the end
        of the stream, BadFrame or DecodeError for anything else."""
        while (found := self._reader.next()) is None:
            if self.ended.done():
                raise EOFError
            self._go_on_reading()
            self._waiting = self._loop.create_future()
            await self._waiting
        head, payload = found
        message = peer_pb2.PeerMessage.FromString(head)
        if len(payload) or message.WhichOneof("content") != kind:
            raise DecodeError(f"expected a {kind}")
        return getattr(message, kind)

    def open(
        self, peer: str, limit_bytes: int, take: Callable[[list[Frame]], None], *, dialled: bool
    ) -> Outbox:
        """End the greeting: from now on received frames go to `take`, and messages to send go into
        the returned outbox. `take` may raise BadFrame or DecodeError, which ends the stream."""
        outbox = Outbox(peer, limit_bytes, self._wake)
        if not self.ended.done():
            self._reader.limit_bytes = RECEIVE_BYTES
            self._take, self._dialled, self._outbox = take, dialled, outbox
            self.heard_s = self._loop.time()
            self._look_in(SILENCE_S if dialled else DEAF_S)
            self._go_on_reading()
            self._loop.call_soon(self._hand_on)
        return outbox

    def end(self, reason: Exception | None = None) -> None:
        """End the connection at once; unsent messages are discarded."""
        if not self.ended.done():
            self.ended.set_result(reason)
        if self._transport is not None:
            self._transport.abort()

    async def close(self, within_s: float) -> None:
        """End the connection after everything has been sent, or after `within_s` seconds."""
        self.transport.close()
        await asyncio.wait([self.ended], timeout=within_s)
        self.end()

    # -- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        self._secure = transport.get_extra_info("ssl_object") is not None

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        # These refer to this stream: without this a reference cycle, with everything queued, would
        # wait for the collector.
        self._take = self._outbox = None
        self._answer_waiting()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)
        self.heard_s = self._loop.time()
        if self._take is not None:
            self._hand_on()
        else:
            if not len(self._reader.room()):
                self._stalled = True
                self.transport.pause_reading()
            self._answer_waiting()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()

    def _go_on_reading(self) -> None:
        if self._stalled:
            self._stalled = False
            self.transport.resume_reading()

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _hand_on(self) -> None:
        """Deliver all complete frames in one step."""
        if self.ended.done():
            return
        assert self._take is not None
        frames: list[Frame] = []
        try:
            for frame in self._reader.frames():
                if frame[0] or len(frame[1]):
                    frames.append(frame)
                elif not self._dialled and not self._paused:
                    # An empty frame requests a heartbeat from this side; on the dialling side it is
                    # the reply.
                    self.transport.write(SIGN_OF_LIFE)
            if frames:
                self._take(frames)
        except (BadFrame, DecodeError) as error:
            self.end(error)

    # -- writing

    def _wake(self) -> None:
        """Schedule one write for everything that is queued by the time the loop runs it."""
        if not (self._flushing or self._paused or self.ended.done()):
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._outbox and not self._paused and not self.ended.done():
            self._write(self._outbox.take())

    def _write(self, buffers: list[Buffer]) -> None:
        self._written += sum(map(len, buffers))
        if self._secure:
            # Join small buffers into one TLS record; the encryption copies them in any case.
            self.transport.write(b"".join(buffers))
        elif len(buffers) == 1:
            self.transport.write(buffers[0])
        else:
            self.transport.writelines(buffers)

    # -- heartbeats

    def _look_in(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look, self._loop.time() + seconds)

    def _look(self, due_s: float) -> None:
        """Request a heartbeat, or close a silent stream; if this process itself stood still, check
        again later."""
        if self.ended.done():
            return
        now = self._loop.time()
        silence_s = SILENCE_S if self._dialled else DEAF_S
        former, self._left = self._left, self._written - self.transport.get_write_buffer_size()
        if self._dialled and self._paused and self._left > former:
            # A request would wait behind everything queued. As long as queued bytes are sent,
            # however slowly, the peer is alive.
            self.heard_s = now
        silent = now - self.heard_s
        if now - due_s > LATE_S:
            self._look_in(silence_s)
        elif silent < silence_s:
            self._look_in(max(silence_s - silent, LEAST_S))
        elif not self._dialled or self.heard_s < self._asked_s:
            self.end(TimeoutError(f"nothing was heard for {silent:.1f} s"))
        else:
            self._asked_s = now
            if not self._paused:
                self.transport.write(SIGN_OF_LIFE)
            self._look_in(SILENCE_S)
