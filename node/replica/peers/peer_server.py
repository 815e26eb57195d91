"""The accepting side of the peer port: greets, then passes peers' messages to the handler, except
packets that a broker group must not get.

`greeting.py` decides which nodes may speak, `forwarder.py` what a call means.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.consensus.replica_wire import is_of_leader
from ledgermq.node.replica.peers.greeting import NONCE_BYTES, Greeter, Refused
from ledgermq.node.replica.peers.peer_frames import BadFrame, packet_in
from ledgermq.node.replica.peers.peer_stream import GREETING_TIMEOUT_S, Frame, PeerStream
from ledgermq.node.replica.peers.peer_wire import PeerWire, TlsFailure, tls_failure
from ledgermq.node.replica.ports import PeerHandler
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import peer_pb2
from ledgermq.proto.host_port import joined
from ledgermq.proto.workers import node_of

# Maximum number of concurrent greetings. A caller without the secret can hold no more connections
# than these, each until the timeout.
GREETINGS_AT_ONCE = 64
# A node that sent something within this time is alive. Another process with its name is then a
# copy, not a restarted node.
ALIVE_WITHIN_S = 1.5
ACCEPT_AGAIN_S = 0.1
TELL_TLS_EVERY_S = 60.0

log = get_logger()


@dataclass(frozen=True, slots=True)
class _Speaker:
    """The process that holds the accepted stream of a node."""

    boot_id: str
    stream: PeerStream


class PeerServer:
    """The accepting side: greets callers, then passes their messages to the handler."""

    def __init__(
        self, greeter: Greeter, handler: PeerHandler, limit_bytes: int, wire: PeerWire
    ) -> None:
        self._greeter = greeter
        self._handler = handler
        self._limit_bytes = limit_bytes
        self._wire = wire
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._greetings = 0
        self._speakers: dict[str, _Speaker] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._tell_again_s: dict[str, float] = {}
        """Reason of a failure of TLS → when it may be logged again."""

    async def listen(self, address: str) -> int:
        """Open the port; returns the bound port number. Raises OSError if the address cannot be
        used."""
        self._listener = await self._wire.listen(address)
        self._accepting = asyncio.create_task(self._accept(self._listener), name="peer-port")
        port: int = self._listener.getsockname()[1]
        return port

    async def stop(self) -> None:
        """Close the port and end all streams."""
        tasks = [*self._serving, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def end(self, peer: str) -> None:
        """End the stream of a node that is no longer a peer."""
        speaker = self._speakers.get(peer)
        if speaker is not None:
            speaker.stream.end()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # The caller is gone already, or no descriptor is free; waiting callers are still
                # there after the pause.
                log.warning("peer connection not accepted", reason=str(error))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if self._greetings >= GREETINGS_AT_ONCE:
                metrics.PEER_REFUSALS.labels("crowd").inc()
                connection.close()
                continue
            self._greetings += 1
            task = asyncio.create_task(self._serve(connection), name="peer-stream")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: socket.socket) -> None:
        """Serve one accepted connection from its greeting to its end."""
        stream: PeerStream | None = None
        try:
            try:
                stream = await self._accepted(connection)
                hello = None if stream is None else await self._greeted(stream)
            finally:
                self._greetings -= 1
            # A caller that is gone by now must not displace a stream that it has opened since.
            if stream is not None and hello is not None and not stream.ended.done():
                await self._session(hello, stream)
        finally:
            if stream is not None:
                stream.end()

    async def _accepted(self, connection: socket.socket) -> PeerStream | None:
        """The stream after the TLS handshake; None if the handshake failed."""
        connection_from = _name_of(connection)
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                return await self._wire.accept(connection, PeerStream)
        except OSError as error:
            # No TLS, another authority, no certificate, or a timeout.
            metrics.PEER_REFUSALS.labels("garbage").inc()
            if (failure := tls_failure(error)) is not None:
                self._tell(failure, connection_from)
            return None

    def _tell(self, failure: TlsFailure, caller: str) -> None:
        """A caller that failed by TLS has proven nothing: one line for each reason in a while,
        whoever calls."""
        metrics.PEER_TLS_FAILURES.labels("", failure.reason).inc()
        now = asyncio.get_running_loop().time()
        if now >= self._tell_again_s.get(failure.reason, now):
            self._tell_again_s[failure.reason] = now + TELL_TLS_EVERY_S
            log.warning(
                "peer connection failed by TLS",
                caller=caller,
                cause=failure.reason,
                reason=failure.words,
            )

    async def _greeted(self, stream: PeerStream) -> peer_pb2.Hello | None:
        """The caller's greeting; None if it was refused or is not one of this protocol."""
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                return await self._greet(stream)
        except Refused as refusal:
            metrics.PEER_REFUSALS.labels(refusal.reason).inc()
            log.warning("peer greeting refused", caller=stream.caller, reason=str(refusal))
            stream.say(
                peer_pb2.PeerMessage(
                    hello_reply=peer_pb2.HelloReply(
                        refusal=str(refusal), refusal_reason=refusal.reason
                    )
                )
            )
            await stream.close(GREETING_TIMEOUT_S)
        except EOFError:
            # A port check that connects and closes is not an error.
            pass
        except (BadFrame, DecodeError, TimeoutError):
            metrics.PEER_REFUSALS.labels("garbage").inc()
        return None

    async def _greet(self, stream: PeerStream) -> peer_pb2.Hello:
        nonce = secrets.token_bytes(NONCE_BYTES)
        stream.say(peer_pb2.PeerMessage(challenge=peer_pb2.Challenge(nonce=nonce)))
        hello: peer_pb2.Hello = await stream.hear("hello")
        names = self._wire.names(stream.transport)
        if names is not None and node_of(hello.node) not in names:
            what = (
                f"the certificate of the caller that says it is node {hello.node} names"
                f" {', '.join(sorted(names)) or 'no node'}"
            )
            raise Refused("certificate", f"{what}; give each node its own certificate (peer_tls)")
        await asyncio.to_thread(self._greeter.check_hello, nonce, hello, self._alive(hello.node))
        stream.say(peer_pb2.PeerMessage(hello_reply=self._greeter.reply(hello)))
        return hello

    def _alive(self, node: str) -> str | None:
        """The boot id of the process that speaks as this node; None if none did lately."""
        speaker = self._speakers.get(node)
        if (
            speaker is None
            or asyncio.get_running_loop().time() > speaker.stream.heard_s + ALIVE_WITHIN_S
        ):
            return None
        return speaker.boot_id

    async def _session(self, hello: peer_pb2.Hello, stream: PeerStream) -> None:
        """Serve one authenticated stream; a newer stream of the same peer ends it."""
        peer = hello.node
        former = self._speakers.get(peer)
        if former is not None:
            former.stream.end()
        speaker = self._speakers[peer] = _Speaker(hello.boot_id, stream)
        session = _Session(hello, stream, self._greeter, self._handler, self._limit_bytes)
        try:
            reason = await stream.ended
            if reason is not None:
                log.warning("peer stream ended", peer=peer, reason=str(reason))
        finally:
            session.stop()
            if self._speakers.get(peer) is speaker:
                del self._speakers[peer]


def _name_of(connection: socket.socket) -> str:
    """The address of a caller, for the log."""
    try:
        host, port = connection.getpeername()[:2]
        return joined(host, port)
    except OSError:
        return "a caller that is gone"


class _Session:
    """One incoming stream after its greeting."""

    def __init__(
        self,
        hello: peer_pb2.Hello,
        stream: PeerStream,
        greeter: Greeter,
        handler: PeerHandler,
        limit_bytes: int,
    ) -> None:
        self._peer = peer = hello.node
        self._directories = {group.group: group.incarnation for group in hello.groups}
        self._greeter = greeter
        self._handler = handler
        self._running: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._outbox = stream.open(peer, limit_bytes, self._hear, dialled=False)

    def stop(self) -> None:
        for task in [*self._running.values(), *self._others]:
            task.cancel()

    def _hear(self, frames: list[Frame]) -> None:
        packets: list[tuple[str, str, PeerPacket]] = []
        for head, payload in frames:
            found = packet_in(head)
            if found is None:
                self._take(peer_pb2.PeerMessage.FromString(head))
                continue
            group, header = found
            packet = PeerPacket(header, payload)
            counts = self._greeter.peer_identities.hears(
                group, self._peer, self._directories.get(group)
            )
            if counts or is_of_leader(packet):
                packets.append((group, self._peer, packet))
            else:
                metrics.PEER_PACKETS_BARRED.labels(self._peer, group).inc()
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
        elif kind == "clock_request":
            reply = peer_pb2.ClockReply(
                asked_ns=message.clock_request.asked_ns, wall_ns=self._handler.wall_ns()
            )
            reply.objections.by_group.update(
                self._greeter.peer_identities.objections_of(self._peer)
            )
            reply.objections.SetInParent()
            self._outbox.put(peer_pb2.PeerMessage(clock_reply=reply), reply.ByteSize())
        elif kind == "node_status_request":
            task = asyncio.create_task(self._status(message.node_status_request))
            self._others.add(task)
            task.add_done_callback(self._others.discard)

    async def _execute(self, call: peer_pb2.ForwardCall) -> None:
        try:
            result = await self._handler.execute(self._peer, call)
            result.sequence = call.sequence
            await self._outbox.room()
            self._outbox.put(
                peer_pb2.PeerMessage(forward_result=result), sum(map(len, result.responses)) + 256
            )
        finally:
            self._running.pop(call.sequence, None)

    async def _status(self, request: peer_pb2.NodeStatusRequest) -> None:
        try:
            reply = await self._handler.status(queues=not request.without_queues)
        except TimeoutError:
            # The asking node treats no answer as "not up", which is correct for a stalled engine.
            return
        reply.sequence = request.sequence
        self._outbox.put(peer_pb2.PeerMessage(node_status_reply=reply), reply.ByteSize())
