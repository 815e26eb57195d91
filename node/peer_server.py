"""The accepting side of the peer port: greets, then carries what peers send to the handler, without what a broker group must not hear.

Who may speak is decided in `greeting.py`, what a call means in `forward.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq.node import metrics
from ledgermq.node.core.ports import PeerPacket
from ledgermq.node.core.replica_wire import is_of_leader
from ledgermq.node.greeting import NONCE_BYTES, Greeter, Refused
from ledgermq.node.logs import get_logger
from ledgermq.node.peer_stream import (
    GREETING_BYTES,
    GREETING_TIMEOUT_S,
    RECEIVE_BYTES,
    SERVICE,
    Outbox,
    PeerHandler,
    both,
    frame,
    only,
    read,
)
from ledgermq.node.security.certificates import PeerWire
from ledgermq.proto import peer_pb2

# Greetings under way at once; whoever does not know the secret can hold no more than these, each for the time-out.
GREETINGS_AT_ONCE = 64
# A node that spoke this lately is alive: another process that uses its name is a copy, not its next life.
ALIVE_WITHIN_S = 1.5
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
)

log = get_logger()


@dataclass(slots=True)
class _Speaker:
    """Who holds the accepted stream of a node."""

    boot_id: str
    heard_s: float
    task: asyncio.Task[None] = field(init=False)


class PeerServer:
    """The accepting side: greets, then carries what peers send to the handler."""

    def __init__(self, greeter: Greeter, handler: PeerHandler, limit_bytes: int, wire: PeerWire | None = None) -> None:
        self._greeter = greeter
        self._handler = handler
        self._limit_bytes = limit_bytes
        self._wire = wire or PeerWire()
        self._greetings = 0
        self._speakers: dict[str, _Speaker] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """To be registered with a server; messages stay raw bytes until the greeting is done."""
        return grpc.method_handlers_generic_handler(SERVICE, {"Link": grpc.stream_stream_rpc_method_handler(self._link)})

    def end(self, peer: str) -> None:
        """End the stream of a node that is no peer any more."""
        speaker = self._speakers.get(peer)
        if speaker is not None:
            speaker.task.cancel()

    async def _link(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._greetings >= GREETINGS_AT_ONCE:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many greetings at once")
        self._greetings += 1
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                hello = await self._greet(context)
        except Refused as refusal:
            await self._refuse(context, refusal)
            return
        except (EOFError, DecodeError, TimeoutError):
            metrics.PEER_REFUSALS.labels("garbage").inc()
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no valid greeting")
        finally:
            self._greetings -= 1
        await self._session(hello, context)

    async def _greet(self, context: Any) -> peer_pb2.Hello:
        nonce = secrets.token_bytes(NONCE_BYTES)
        await context.write(frame([peer_pb2.PeerMessage(challenge=peer_pb2.Challenge(nonce=nonce))]))
        hello: peer_pb2.Hello = only(await read(context, GREETING_BYTES), "hello")
        names = self._wire.names(context)
        if names is not None and hello.node not in names:
            what = f"the certificate of the caller that says it is node {hello.node} names {', '.join(sorted(names)) or 'nobody'}"
            raise Refused("certificate", f"{what}; give each node its own certificate (peer_tls)")
        await asyncio.to_thread(self._greeter.check_hello, nonce, hello, self._alive(hello.node))
        await context.write(frame([peer_pb2.PeerMessage(hello_reply=self._greeter.reply(hello))]))
        return hello

    def _alive(self, node: str) -> str | None:
        """The boot id of the process that speaks as this node; None: nobody did lately."""
        speaker = self._speakers.get(node)
        return None if speaker is None or time.monotonic() > speaker.heard_s + ALIVE_WITHIN_S else speaker.boot_id

    async def _refuse(self, context: Any, refusal: Refused) -> None:
        metrics.PEER_REFUSALS.labels(refusal.reason).inc()
        log.warning("peer greeting refused", caller=context.peer(), reason=str(refusal))
        reply = peer_pb2.HelloReply(refusal=str(refusal), refusal_reason=refusal.reason)
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the other side may be gone already
            await context.write(frame([peer_pb2.PeerMessage(hello_reply=reply)]))

    async def _session(self, hello: peer_pb2.Hello, context: Any) -> None:
        """Serve one authenticated stream; a newer one of the same peer ends it."""
        peer = hello.node
        former = self._speakers.get(peer)
        if former is not None:
            former.task.cancel()
        speaker = _Speaker(hello.boot_id, time.monotonic())
        session = _Session(hello, speaker, context, self._greeter, self._handler, self._limit_bytes)
        speaker.task = asyncio.create_task(session.serve(), name=f"session-{peer}")
        self._speakers[peer] = speaker
        try:
            await asyncio.wait([speaker.task])
        finally:
            speaker.task.cancel()
            await asyncio.gather(speaker.task, return_exceptions=True)
            if self._speakers.get(peer) is speaker:
                del self._speakers[peer]
        if speaker.task.cancelled():
            await context.abort(grpc.StatusCode.CANCELLED, "this stream is not wanted any more")
        try:
            speaker.task.result()
        except EOFError:
            # The peer closed its stream.
            pass
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a frame is not a valid PeerFrame")


class _Session:
    """One incoming stream after its greeting."""

    def __init__(
        self, hello: peer_pb2.Hello, speaker: _Speaker, context: Any, greeter: Greeter, handler: PeerHandler, limit_bytes: int
    ) -> None:
        self._peer = peer = hello.node
        self._directories = {group.group: group.incarnation for group in hello.groups}
        self._speaker = speaker
        self._context = context
        self._greeter = greeter
        self._handler = handler
        self._outbox = Outbox(peer, limit_bytes)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        try:
            await both(self._read(), self._write())
        finally:
            for task in [*self._running.values(), *self._others]:
                task.cancel()

    async def _write(self) -> None:
        while True:
            await self._context.write(await self._outbox.frame())

    async def _read(self) -> None:
        while True:
            received = await read(self._context)
            self._speaker.heard_s = time.monotonic()
            packets: list[tuple[str, str, PeerPacket]] = []
            for message in received.messages:
                if message.HasField("replication"):
                    item = message.replication
                    packet = PeerPacket(item.header, item.payload)
                    counts = self._greeter.book.hears(item.group, self._peer, self._directories.get(item.group))
                    if counts or is_of_leader(packet):
                        packets.append((item.group, self._peer, packet))
                    else:
                        metrics.PEER_PACKETS_BARRED.labels(self._peer, item.group).inc()
                else:
                    self._take(message)
            if packets:
                self._handler.packets(packets)

    def _take(self, message: peer_pb2.PeerMessage) -> None:
        kind = message.WhichOneof("content")
        if kind == "forward_call":
            call = message.forward_call
            self._running[call.sequence] = asyncio.create_task(self._execute(call))
        elif kind == "forward_cancel":
            task = self._running.get(message.forward_cancel.sequence)
            if task is not None:
                task.cancel()
        elif kind == "client_signs":
            self._handler.signs(message.client_signs.client_id)
        elif kind == "client_gone":
            self._handler.gone(message.client_gone.client_id)
        elif kind == "node_status_request":
            task = asyncio.create_task(self._status(message.node_status_request.sequence))
            self._others.add(task)
            task.add_done_callback(self._others.discard)

    async def _execute(self, call: peer_pb2.ForwardCall) -> None:
        try:
            result = await self._handler.execute(self._peer, call)
            result.sequence = call.sequence
            self._outbox.put(peer_pb2.PeerMessage(forward_result=result), sum(map(len, result.responses)) + 256)
        finally:
            self._running.pop(call.sequence, None)

    async def _status(self, sequence: int) -> None:
        try:
            reply = await self._handler.status()
        except TimeoutError:
            # The asking node counts silence as not up, which is what a stalled engine is.
            return
        reply.sequence = sequence
        self._outbox.put(peer_pb2.PeerMessage(node_status_reply=reply), reply.ByteSize())
