"""The outgoing streams: one to every peer, kept open as long as the node is a peer, also when its
address changes.

Loss: replication packets may be dropped, oldest first, if a peer does not take them fast enough
(Raft repeats them). A call is never dropped silently. It stays in the queue until a write takes it,
or fails with `NotSent`. After a write took it, the end of the stream means `Lost`: its outcome is
unknown.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.peers.greeting import ALIVE, NONCE_BYTES, REMOVED, Greeter, Refused
from ledgermq.node.replica.peers.peer_frames import BadFrame
from ledgermq.node.replica.peers.peer_stream import GREETING_TIMEOUT_S, Frame, Outbox, PeerStream
from ledgermq.node.replica.peers.peer_wire import CutOff, PeerWire, TlsFailure, tls_failure
from ledgermq.node.replica.ports import Lost, NotSent, PeerHandler
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import peer_pb2

RECONNECT_S = (0.02, 0.05, 0.1, 0.2)
REFUSED_RETRY_S = 2.0

log = get_logger()


class Link:
    """The outgoing stream to one peer. `addresses`: where the peer may be, the most likely
    first."""

    def __init__(
        self,
        peer: str,
        addresses: Sequence[str],
        greeter: Greeter,
        handler: PeerHandler,
        limit_bytes: int,
        wire: PeerWire,
    ) -> None:
        self.peer = peer
        self.up = False
        self.refusal: str | None = None
        """Why there is no stream, if an operator must change that: the peer refuses this node, or
        TLS fails."""
        self.removed = False
        """The peer said last that the cluster removed this node."""
        self._addresses = tuple(addresses)
        self._address = self._addresses[0]
        """The address of the last attempt, or of the connection."""
        self._greeter = greeter
        self._handler = handler
        self._limit_bytes = limit_bytes
        self._wire = wire
        self._outbox: Outbox | None = None
        self._calls: dict[
            int, tuple[peer_pb2.PeerMessage, asyncio.Future[peer_pb2.ForwardResult]]
        ] = {}
        self._statuses: dict[int, asyncio.Future[peer_pb2.NodeStatusReply]] = {}
        self._sequence = 0
        self._failures = 0
        self._cut_off = False
        """The last attempt ended as `CutOff` says."""
        self._task: asyncio.Task[None] | None = None
        self._attempt: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_open(), name=f"link-{self.peer}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def move(self, addresses: Sequence[str]) -> None:
        """Set the peer's addresses. A stream to another address ends, and its open calls end with
        it."""
        if tuple(addresses) == self._addresses:
            return
        self._addresses = tuple(addresses)
        self._failures = 0
        log.info("peer moved", peer=self.peer, address=self._addresses[0])
        if self._attempt is not None and self._address != self._addresses[0]:
            self._attempt.cancel()

    @property
    def queued_bytes(self) -> int:
        return 0 if self._outbox is None else self._outbox.bytes

    def send_packet(self, group: str, packet: PeerPacket) -> None:
        """Queue a replication packet; it is dropped if the peer is not connected."""
        if self._outbox is not None:
            self._outbox.put_packet(group, packet)

    def post(self, message: peer_pb2.PeerMessage) -> None:
        """Queue a small message without an answer; it is dropped if the peer is not connected."""
        if self._outbox is not None:
            self._outbox.put(message, message.ByteSize() + 8)

    async def call(self, call: peer_pb2.ForwardCall) -> peer_pb2.ForwardResult:
        """Send a call and wait for the result; sets its sequence. Raises NotSent or Lost.
        Cancelling it cancels the call on the peer."""
        outbox = self._outbox
        if outbox is None or outbox.full:
            raise NotSent(
                f"no connection to node {self.peer}"
                if outbox is None
                else f"the queue to node {self.peer} is full"
            )
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

    async def status(self, *, queues: bool) -> peer_pb2.NodeStatusReply:
        """The peer's status of itself, with the end of every queue or with the counts of every
        topic. Raises NotSent or Lost."""
        if self._outbox is None:
            raise NotSent(f"no connection to node {self.peer}")
        self._sequence += 1
        sequence = self._sequence
        future: asyncio.Future[peer_pb2.NodeStatusReply] = (
            asyncio.get_running_loop().create_future()
        )
        self._statuses[sequence] = future
        request = peer_pb2.NodeStatusRequest(sequence=sequence, without_queues=not queues)
        self.post(peer_pb2.PeerMessage(node_status_request=request))
        try:
            return await future
        finally:
            self._statuses.pop(sequence, None)

    def ask_clock(self, now_ns: int) -> None:
        """Ask for the peer's wall clock, which goes to the handler, and for its objections.
        `now_ns`: the steady clock."""
        self.post(peer_pb2.PeerMessage(clock_request=peer_pb2.ClockRequest(asked_ns=now_ns)))

    async def _keep_open(self) -> None:
        while True:
            pause = RECONNECT_S[min(self._failures, len(RECONNECT_S) - 1)]
            self._address = self._addresses[self._failures % len(self._addresses)]
            self._failures += 1
            try:
                await self._attempted()
            except Refused as refusal:
                if str(refusal) != self.refusal:
                    log.error(
                        "peer refused", peer=self.peer, address=self._address, reason=str(refusal)
                    )
                self.refusal, self.removed = str(refusal), refusal.reason == REMOVED
                if refusal.reason != ALIVE:
                    pause = REFUSED_RETRY_S
            except (OSError, DecodeError, BadFrame, EOFError) as error:
                # The peer is not reachable, or the stream broke: try again. `up` and the readiness
                # check show the state. A node that is stopped may end one connection at any moment.
                cut_off_before, self._cut_off = self._cut_off, isinstance(error, CutOff)
                if (failure := tls_failure(error)) is not None and (
                    cut_off_before or not self._cut_off
                ):
                    self._failed_by_tls(failure, ours=self._cut_off)
                    pause = REFUSED_RETRY_S
            await asyncio.sleep(pause)

    def _failed_by_tls(self, failure: TlsFailure, *, ours: bool) -> None:
        """`ours`: the peer refuses this node's certificate."""
        metrics.PEER_TLS_FAILURES.labels(self.peer, failure.reason).inc()
        if failure.reason == "protocol":
            what, remedy = (
                f"TLS with node {self.peer} fails ({failure.words})",
                "set peer_tls alike on all nodes of the cluster",
            )
        elif ours:
            what = f"node {self.peer} refuses the certificate of this node ({failure.words})"
            remedy = "renew the certificate of this node (peer_tls)"
        else:
            what = f"the certificate of node {self.peer} is refused ({failure.words})"
            remedy = f"renew the certificate of {self.peer}, or correct peer_tls.ca_file here"
        refusal = f"{what}; {remedy}"
        if refusal != self.refusal:
            log.error(
                "peer connection failed by TLS",
                peer=self.peer,
                address=self._address,
                reason=refusal,
            )
        self.refusal, self.removed = refusal, False

    async def _attempted(self) -> None:
        """Run one connection of the stream, which `move` may end."""
        attempt = self._attempt = asyncio.create_task(
            self._connect_once(), name=f"stream-{self.peer}"
        )
        try:
            await asyncio.wait([attempt])
        finally:
            self._attempt = None
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
        try:
            if not attempt.cancelled():
                attempt.result()
        finally:
            # The exception refers to this frame and the frame to the attempt: without this a
            # reference cycle would wait for the collector.
            del attempt

    async def _connect_once(self) -> None:
        stream: PeerStream | None = None
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                stream = await self._wire.connect(self._address, self.peer, PeerStream)
                await self._greet(stream)
            self._set_up(stream)
            try:
                reason = await stream.ended
            finally:
                self._set_down()
            if reason is not None:
                try:
                    raise reason
                finally:
                    del reason
        finally:
            if stream is not None:
                stream.end()
                # As above: the stream refers to the exception.
                del stream

    async def _greet(self, stream: PeerStream) -> None:
        try:
            challenge = await stream.hear("challenge")
        except EOFError:
            raise self._wire.cut_off() from None
        nonce, asked_ns = secrets.token_bytes(NONCE_BYTES), time.monotonic_ns()
        stream.say(peer_pb2.PeerMessage(hello=self._greeter.hello(challenge.nonce, nonce)))
        reply = await stream.hear("hello_reply")
        if reply.HasField("refusal"):
            raise Refused(
                reply.refusal_reason or "refused",
                f"node {self.peer} refuses this node: {reply.refusal[:500]}",
            )
        await asyncio.to_thread(self._greeter.check_reply, nonce, reply, self.peer)
        # Before the first packet: a node that is elected knows the clocks of those who voted for
        # it.
        self._handler.heard_clock(
            self.peer, reply.wall_ns if reply.HasField("wall_ns") else None, asked_ns
        )

    def _hear(self, frames: list[Frame]) -> None:
        for head, _ in frames:
            self._take(peer_pb2.PeerMessage.FromString(head))

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
        elif kind == "clock_reply":
            reply = message.clock_reply
            self._handler.heard_clock(self.peer, reply.wall_ns, reply.asked_ns)
            if reply.HasField("objections"):
                self._greeter.peer_identities.note_objections(self.peer, reply.objections.by_group)

    def _set_up(self, stream: PeerStream) -> None:
        self._outbox = stream.open(self.peer, self._limit_bytes, self._hear, dialled=True)
        self.up = True
        self.refusal, self.removed = None, False
        self._failures, self._cut_off = 0, False
        # The proof of the greeting may have waited for a disk, so its answer is not precise.
        self.ask_clock(time.monotonic_ns())
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


class Links(dict[str, Link]):
    """The links of a node, by peer. `peers.py` adds and removes them, and its holders see that."""

    def send_packets(self, group: str, packets: Sequence[tuple[str, PeerPacket]]) -> None:
        """Queue packets, each as (peer, packet); those for nodes that are not peers are dropped."""
        for peer, packet in packets:
            link = self.get(peer)
            if link is not None:
                link.send_packet(group, packet)
