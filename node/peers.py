"""The streams between the nodes of a cluster: one outgoing gRPC stream to every peer, on a port of its own.

What travels on a stream: in the direction of the node that opened it, replication packets, calls and signs of life; in the other direction
the results of those calls. So a stream that ends takes the outcome of its open calls with it, and nothing else. Here live the greeting's
exchange, queues, batching and reconnecting; who may speak is decided in `greeting.py`, what a call means in `forward.py`.

Loss: replication packets may be dropped, oldest first, when a peer does not take them fast enough (raft repeats them). A call is never
dropped silently: it either stays in the queue until a frame takes it, or fails with `NotSent`; once a frame took it, an end of the stream
means `Lost`: its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq.node import metrics
from ledgermq.node.core.ports import PeerPacket
from ledgermq.node.greeting import NONCE_BYTES, Greeter, Refused
from ledgermq.node.logs import get_logger
from ledgermq.proto import peer_pb2

METHOD = "/ledgermq.v1.Peer/Link"
SERVICE = "ledgermq.v1.Peer"
GREETING_BYTES = 64 << 10
GREETING_TIMEOUT_S = 3.0
# A frame takes whatever is queued up to this size; one message is always taken.
FRAME_BYTES = 4 << 20
RECEIVE_BYTES = 32 << 20
RECONNECT_S = (0.02, 0.05, 0.1, 0.2)
REFUSED_RETRY_S = 2.0
# Greetings under way at once; whoever does not know the secret can hold no more than these, each for the time-out.
GREETINGS_AT_ONCE = 64

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
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


class NotSent(Exception):
    """The call did not leave this node."""


class Lost(Exception):
    """The stream ended after the call had been sent and before its result came."""


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
        self._packets: deque[tuple[peer_pb2.PeerMessage, int]] = deque()
        self._limit_bytes = limit_bytes
        self._dropped = metrics.PEER_PACKETS_DROPPED.labels(peer)
        self._wake = asyncio.Event()
        self.bytes = 0

    def put(self, message: peer_pb2.PeerMessage, size: int) -> None:
        """Queue a message that must not be dropped."""
        self._urgent.append((message, size))
        self.bytes += size
        self._wake.set()

    def put_packet(self, message: peer_pb2.PeerMessage, size: int) -> None:
        """Queue a replication packet; the oldest ones give way."""
        self._packets.append((message, size))
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

    async def frame(self) -> list[peer_pb2.PeerMessage]:
        """Everything queued, up to the size of a frame; waits until there is something. Packets first: heartbeats must not wait."""
        while not self:
            self._wake.clear()
            await self._wake.wait()
        taken: list[peer_pb2.PeerMessage] = []
        size = 0
        for waiting in (self._packets, self._urgent):
            while waiting and (not taken or size + waiting[0][1] <= FRAME_BYTES):
                message, length = waiting.popleft()
                taken.append(message)
                size += length
        self.bytes -= size
        return taken


class Link:
    """The outgoing stream to one peer, kept open for as long as the node runs."""

    def __init__(self, peer: str, address: str, greeter: Greeter, handler: PeerHandler, limit_bytes: int) -> None:
        self.peer = peer
        self.up = False
        self.refusal: str | None = None
        self._address = address
        self._greeter = greeter
        self._handler = handler
        self._limit_bytes = limit_bytes
        self._outbox: Outbox | None = None
        self._calls: dict[int, tuple[peer_pb2.PeerMessage, asyncio.Future[peer_pb2.ForwardResult]]] = {}
        self._statuses: dict[int, asyncio.Future[peer_pb2.NodeStatusReply]] = {}
        self._sequence = 0
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_open(), name=f"link-{self.peer}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def queued_bytes(self) -> int:
        return 0 if self._outbox is None else self._outbox.bytes

    def send_packet(self, group: str, packet: PeerPacket) -> None:
        """Queue a replication packet; dropped when the peer is not connected."""
        if self._outbox is not None:
            replication = peer_pb2.Replication(group=group, header=packet.header, payload=bytes(packet.payload))
            self._outbox.put_packet(peer_pb2.PeerMessage(replication=replication), len(packet.header) + len(packet.payload) + 64)

    def post(self, message: peer_pb2.PeerMessage) -> None:
        """Queue a small message without an answer; dropped when the peer is not connected."""
        if self._outbox is not None:
            self._outbox.put(message, message.ByteSize() + 8)

    async def call(self, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        """Send a call (its sequence is set here) and wait for the result. Raises NotSent or Lost; cancelling it cancels the call there."""
        outbox = self._outbox
        if outbox is None or outbox.full:
            raise NotSent(f"no connection to node {self.peer}" if outbox is None else f"the queue to node {self.peer} is full")
        self._sequence += 1
        sequence = call.sequence = self._sequence
        message = peer_pb2.PeerMessage(forward_call=call)
        future: asyncio.Future[peer_pb2.ForwardResult] = asyncio.get_running_loop().create_future()
        self._calls[sequence] = (message, future)
        outbox.put(message, len(call.request) + 256)
        try:
            return await future
        except asyncio.CancelledError:
            if not outbox.withdraw(message) and self._outbox is outbox:
                cancel = peer_pb2.ForwardCancel(sequence=sequence)
                outbox.put(peer_pb2.PeerMessage(forward_cancel=cancel), 64)
            raise
        finally:
            self._calls.pop(sequence, None)

    async def status(self) -> peer_pb2.NodeStatusReply:
        """The peer's own view of itself. Raises NotSent or Lost."""
        if self._outbox is None:
            raise NotSent(f"no connection to node {self.peer}")
        self._sequence += 1
        sequence = self._sequence
        future: asyncio.Future[peer_pb2.NodeStatusReply] = asyncio.get_running_loop().create_future()
        self._statuses[sequence] = future
        self.post(peer_pb2.PeerMessage(node_status_request=peer_pb2.NodeStatusRequest(sequence=sequence)))
        try:
            return await future
        finally:
            self._statuses.pop(sequence, None)

    async def _keep_open(self) -> None:
        while True:
            pause = RECONNECT_S[min(self._failures, len(RECONNECT_S) - 1)]
            self._failures += 1
            try:
                await self._connect_once()
            except Refused as refusal:
                if str(refusal) != self.refusal:
                    log.error("peer refused", peer=self.peer, address=self._address, reason=str(refusal))
                self.refusal = str(refusal)
                pause = REFUSED_RETRY_S
            except (grpc.RpcError, OSError, TimeoutError, DecodeError, EOFError):
                # Not reachable, or the stream broke: the loop tries again; the state is visible as `up` and in readiness.
                pass
            except asyncio.InvalidStateError:
                # The library reports a write on a call that ended in the same moment this way.
                pass
            await asyncio.sleep(pause)

    async def _connect_once(self) -> None:
        """One life of the stream."""
        async with grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS) as channel:
            stream: Any = channel.stream_stream(METHOD)(wait_for_ready=False)
            try:
                async with asyncio.timeout(GREETING_TIMEOUT_S):
                    await self._greet(stream)
                self._set_up()
                try:
                    await self._exchange(stream)
                finally:
                    self._set_down()
            finally:
                stream.cancel()

    async def _greet(self, stream: Any) -> None:
        challenge = _only(await _read(stream), "challenge")
        nonce = secrets.token_bytes(NONCE_BYTES)
        hello = self._greeter.hello(challenge.nonce, nonce)
        await stream.write(_frame([peer_pb2.PeerMessage(hello=hello)]))
        reply = _only(await _read(stream), "hello_reply")
        if reply.HasField("refusal"):
            raise Refused("refused", f"node {self.peer} refuses this node: {reply.refusal[:500]}")
        await asyncio.to_thread(self._greeter.check_reply, nonce, reply, self.peer)

    async def _exchange(self, stream: Any) -> None:
        outbox = self._outbox
        assert outbox is not None

        async def write() -> None:
            while True:
                await stream.write(_frame(await outbox.frame()))

        async def read() -> None:
            while True:
                for message in (await _read(stream)).messages:
                    self._take(message)

        await _both(read(), write())

    def _take(self, message: peer_pb2.PeerMessage) -> None:
        kind = message.WhichOneof("content")
        if kind == "forward_result":
            _, future = self._calls.get(message.forward_result.sequence, (None, None))
            if future is not None and not future.done():
                future.set_result(message.forward_result)
        elif kind == "node_status_reply":
            waiting = self._statuses.get(message.node_status_reply.sequence)
            if waiting is not None and not waiting.done():
                waiting.set_result(message.node_status_reply)

    def _set_up(self) -> None:
        self._outbox = Outbox(self.peer, self._limit_bytes)
        self.up = True
        self.refusal = None
        self._failures = 0
        metrics.PEER_CONNECTS.labels(self.peer).inc()
        log.info("peer connected", peer=self.peer, address=self._address)
        self._handler.link_changed(self.peer, True)

    def _set_down(self) -> None:
        outbox, self._outbox = self._outbox, None
        self.up = False
        assert outbox is not None
        for message, future in self._calls.values():
            if not future.done():
                unsent = outbox.withdraw(message)
                failure = f"the connection to node {self.peer} ended"
                future.set_exception(NotSent(failure) if unsent else Lost(failure))
        for waiting in self._statuses.values():
            if not waiting.done():
                waiting.set_exception(Lost(f"the connection to node {self.peer} ended"))
        log.warning("peer disconnected", peer=self.peer, address=self._address)
        self._handler.link_changed(self.peer, False)


class PeerServer:
    """The accepting side: greets, then carries what peers send to the handler."""

    def __init__(self, greeter: Greeter, handler: PeerHandler, limit_bytes: int) -> None:
        self._greeter = greeter
        self._handler = handler
        self._limit_bytes = limit_bytes
        self._greetings = 0
        self._sessions: dict[str, asyncio.Task[Any]] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """To be registered with a server; messages stay raw bytes until the greeting is done."""
        return grpc.method_handlers_generic_handler(SERVICE, {"Link": grpc.stream_stream_rpc_method_handler(self._link)})

    async def _link(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._greetings >= GREETINGS_AT_ONCE:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many greetings at once")
        self._greetings += 1
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                peer = await self._greet(context)
        except Refused as refusal:
            await self._refuse(context, refusal)
            return
        except (EOFError, DecodeError, TimeoutError):
            metrics.PEER_REFUSALS.labels("garbage").inc()
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no valid greeting")
        finally:
            self._greetings -= 1
        await self._session(peer, context)

    async def _greet(self, context: Any) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        await context.write(_frame([peer_pb2.PeerMessage(challenge=peer_pb2.Challenge(nonce=nonce))]))
        hello = _only(await _read(context, GREETING_BYTES), "hello")
        await asyncio.to_thread(self._greeter.check_hello, nonce, hello)
        await context.write(_frame([peer_pb2.PeerMessage(hello_reply=self._greeter.reply(hello.nonce))]))
        return str(hello.node)

    async def _refuse(self, context: Any, refusal: Refused) -> None:
        metrics.PEER_REFUSALS.labels(refusal.reason).inc()
        log.warning("peer greeting refused", caller=context.peer(), reason=str(refusal))
        reply = peer_pb2.HelloReply(refusal=str(refusal))
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the other side may be gone already
            await context.write(_frame([peer_pb2.PeerMessage(hello_reply=reply)]))

    async def _session(self, peer: str, context: Any) -> None:
        """Serve one authenticated stream; a newer one of the same peer ends it."""
        task = asyncio.current_task()
        assert task is not None
        former = self._sessions.get(peer)
        if former is not None:
            former.cancel()
        self._sessions[peer] = task
        session = _Session(peer, context, self._handler, self._limit_bytes)
        try:
            await session.serve()
        except EOFError:
            # The peer closed its stream.
            pass
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a frame is not a valid PeerFrame")
        finally:
            if self._sessions.get(peer) is task:
                del self._sessions[peer]


class _Session:
    """One incoming stream after its greeting."""

    def __init__(self, peer: str, context: Any, handler: PeerHandler, limit_bytes: int) -> None:
        self._peer = peer
        self._context = context
        self._handler = handler
        self._outbox = Outbox(peer, limit_bytes)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        try:
            await _both(self._read(), self._write())
        finally:
            for task in [*self._running.values(), *self._others]:
                task.cancel()

    async def _write(self) -> None:
        while True:
            await self._context.write(_frame(await self._outbox.frame()))

    async def _read(self) -> None:
        while True:
            frame = await _read(self._context)
            packets: list[tuple[str, str, PeerPacket]] = []
            for message in frame.messages:
                if message.HasField("replication"):
                    item = message.replication
                    packets.append((item.group, self._peer, PeerPacket(item.header, item.payload)))
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


async def _both(first: Awaitable[None], second: Awaitable[None]) -> None:
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


def _frame(messages: Sequence[peer_pb2.PeerMessage]) -> bytes:
    return peer_pb2.PeerFrame(messages=messages).SerializeToString()


async def _read(stream: Any, limit_bytes: int = RECEIVE_BYTES) -> peer_pb2.PeerFrame:
    """The next frame. Raises EOFError at the end of the stream, DecodeError for anything that is no frame."""
    raw = await stream.read()
    if raw is grpc.aio.EOF:
        raise EOFError
    if len(raw) > limit_bytes:
        raise DecodeError("frame too long")
    return peer_pb2.PeerFrame.FromString(raw)


def _only(frame: peer_pb2.PeerFrame, kind: str) -> Any:
    """The single message of a greeting frame, which must be of this kind."""
    if len(frame.messages) != 1 or frame.messages[0].WhichOneof("content") != kind:
        raise DecodeError(f"expected a {kind}")
    return getattr(frame.messages[0], kind)


class Peers:
    """All links of a node and its peer server."""

    def __init__(self, addresses: dict[str, str], greeter: Greeter, handler: PeerHandler, limit_bytes: int) -> None:
        self.links = {peer: Link(peer, address, greeter, handler, limit_bytes) for peer, address in addresses.items()}
        self._server = PeerServer(greeter, handler, limit_bytes)
        self._grpc: grpc.aio.Server | None = None

    async def listen(self, address: str) -> int:
        """Open the peer port; the bound port, 0 when it is taken."""
        self._grpc = grpc.aio.server(handlers=[self._server.handlers()], options=SERVER_OPTIONS)
        port = self._grpc.add_insecure_port(address)
        await self._grpc.start()
        return port

    def dial(self) -> None:
        for link in self.links.values():
            link.start()

    async def stop(self) -> None:
        await asyncio.gather(*(link.stop() for link in self.links.values()))
        if self._grpc is not None:
            await self._grpc.stop(0.1)

    def send_packets(self, group: str, packets: Sequence[tuple[str, PeerPacket]]) -> None:
        for peer, packet in packets:
            link = self.links.get(peer)
            if link is not None:
                link.send_packet(group, packet)
