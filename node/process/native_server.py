"""The gRPC server of a node on `ledgermq_native.front`, the transport of the optional package:
HTTP/2 and TLS on threads of its own.

The threads of the front never call Python. The event loop takes their events in batches, begins a
task for each call, and gives all answers of one pass of the loop at once. One port accepts
plaintext and TLS, and the front enforces the limits of connections itself, so `security/front.py`
is not needed here.

Back-pressure: of a request stream, the front delivers one message for each credit, and at most one
message waits here for its reader. A response stream that is full holds its writer until the client
has read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ledgermq_native import front as native

from ledgermq.node.frontend.ports import (
    CallAborted,
    CallGone,
    CallMetadata,
    Diversion,
    Listening,
    Method,
    ServerStreamMethod,
    StatusCode,
    StreamMethod,
    UnaryMethod,
)
from ledgermq.node.frontend.rocketmq.messaging import REQUEST_BYTES
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.answer_budget import CONNECTION, SMALL_BYTES, connection_of
from ledgermq.node.runtime.certificates import LOOK_EVERY_S, CertificateFiles, Pems
from ledgermq.node.runtime.logs import get_logger

CONNECTION_CALLS_MAX = 20_000
"""Calls open at a time on a connection, as many as a node keeps open by default
(`limits.max_calls`). Further ones wait in the client, long polls and sends alike: so the node's own
limits, which are answered, should be met first. An open call costs some 4 KiB here."""
EVENTS_MAX = 256
"""The most events of one pass of the loop. The rest waits for the next pass, so that other work of
the loop has its turn."""
UNGIVEN_BYTES = 256 << 10
"""More bytes of answers are given to the front before the pass ends: only then does it say whether
a stream is full."""
CLOSE_S = 10.0
"""How long the front may take to end its connections after the grace time of a stop."""
_REFUSED_CALLS = frozenset({"buffers", "too-large", "unread"})
"""Reasons in the front's counts that refuse a call and not a connection."""

log = get_logger()


class NativeServer:
    """One server. Belongs to the loop's thread."""

    def __init__(self, divert: Diversion | None = None) -> None:
        self._divert = divert
        self._methods: dict[str, Method] = {}
        self._front: native.Front | None = None
        self._tls: CertificateFiles | None = None
        self._served: Pems | None = None
        self._listener: native.Listener | None = None
        self._calls: dict[int, _NativeCall] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        """Handlers that still run although their calls have ended."""
        self._answers: list[native.Answer] = []
        self._answer_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refused: dict[str, int] = {}
        """Refused connections and calls by reason, as last counted."""
        self._drained: asyncio.Event = asyncio.Event()

    def add_service(self, name: str, methods: Mapping[str, Method]) -> None:
        """Before `listen`."""
        self._methods.update({f"/{name}/{method}": how for method, how in methods.items()})

    async def listen(self, where: Listening) -> int:
        """Open the port, and return it. Raises OSError if it is taken."""
        self._loop = asyncio.get_running_loop()
        front = native.Front(
            max_message_bytes=REQUEST_BYTES,
            max_streams_per_connection=CONNECTION_CALLS_MAX,
            # Every ping is answered, as on grpc.aio: Java clients ping every five minutes, others
            # every minute, and some far more often.
            max_ping_strikes=0,
            max_connections=where.limits.connections,
            max_connections_per_address=where.limits.connections_per_address,
            new_connections_per_s=where.limits.new_connections_per_s,
            # The other half is for answers with messages before they come here
            # (`answer_budget.py`).
            max_buffered_bytes=where.memory.buffered_bytes // 2,
            max_unsent_bytes=where.memory.connection_bytes,
            unread_answer_s=where.memory.unread_ms / 1000,
        )
        try:
            for path, method in self._methods.items():
                streaming = isinstance(method, StreamMethod)
                front.register(
                    path,
                    request_streaming=streaming,
                    response_streaming=not isinstance(method, UnaryMethod),
                )
            self._tls, tls = where.tls, None
            if self._tls is not None:
                self._served = self._tls.current()
                tls = _tls_of(self._served)
            if where.unix is not None:
                # A worker that was killed leaves its socket.
                Path(where.unix).unlink(missing_ok=True)
                front.listen(f"unix:{where.unix}")
            self._listener = front.listen(
                where.host, where.port, reuse_port=where.shared, plain=where.plain, tls=tls
            )
        except BaseException:
            front.close()
            raise
        self._front = front
        self._loop.add_reader(front.fileno(), self._take)
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)
        return self._listener.port

    def address_of(self, peer: str) -> str:
        """The client's address, which is the peer itself."""
        return peer

    def connections(self) -> int | None:
        return None if self._front is None else int(self._front.stats()["connections"])

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections and no more calls; cancel what has not ended within the grace
        time."""
        front = self._front
        if front is None:
            return
        self._give()
        front.drain(grace_s)
        try:
            async with asyncio.timeout(grace_s + CLOSE_S):
                await self._drained.wait()
        except TimeoutError:
            log.error("connections not drained in time", seconds=grace_s + CLOSE_S)
        if self._cancelled:
            # They may still give something back.
            await asyncio.wait(self._cancelled, timeout=CLOSE_S)
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(front.fileno())
        self._front = None
        front.close()

    def _look(self) -> None:
        """Use renewed certificates, and count the front's connections."""
        front, listener = self._front, self._listener
        if front is None or listener is None:
            return
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)
        if self._tls is not None and (current := self._tls.current()) is not self._served:
            self._served = current
            try:
                listener.reload_tls(_tls_of(current))
            except ValueError as error:
                log.error(
                    "certificate not replaced, the one before stays in force", reason=str(error)
                )
        self._count(front.stats())

    def _count(self, stats: Mapping[str, Any]) -> None:
        metrics.FRONT_CONNECTIONS.set(stats["connections"])
        metrics.FRONT_BUFFERED_BYTES.set(stats["buffered_bytes"])
        metrics.FRONT_UNSENT_BYTES.set(stats["unsent_bytes"])
        for reason, count in stats["refused"].items():
            refused = (
                metrics.CALLS_REFUSED if reason in _REFUSED_CALLS else metrics.CONNECTIONS_REFUSED
            )
            refused.labels(reason).inc(count - self._refused.get(reason, 0))
            self._refused[reason] = count

    # -- events

    def _take(self) -> None:
        front = self._front
        assert front is not None, "the reader is removed before the front is closed"
        for event in front.take(EVENTS_MAX):
            kind = event[0]
            if kind == native.CALL:
                self._begin(*event[1:])
            elif kind == native.REFUSED:
                log.warning("connection refused", caller=event[2], reason=event[3])
                self._count(front.stats())
            elif kind == native.DRAINED:
                self._drained.set()
            elif (call := self._calls.get(event[1])) is not None:
                # Otherwise the call has ended here, and the event crossed its answer.
                if kind == native.MESSAGE:
                    call.arrived(event[2])
                elif kind == native.HALF_CLOSED:
                    call.half_closed()
                elif kind == native.WRITABLE:
                    call.writable()
                elif kind == native.CANCELLED:
                    self._cancel(call, event[2])
                elif kind == native.SENT:
                    self._sent(call)

    def _begin(
        self,
        number: int,
        path: str,
        metadata: CallMetadata,
        seconds_left: float | None,
        peer: str,
        auth: Mapping[str, list[bytes]],
        message: bytes | None,
    ) -> None:
        deadline = None if seconds_left is None else self._loop.time() + seconds_left
        call = _NativeCall(
            server=self, number=number, metadata=metadata, deadline=deadline, peer=peer, auth=auth
        )
        self._calls[number] = call
        method = self._methods[path]
        diverted = None if self._divert is None else self._divert(path, metadata)
        if diverted is not None:
            call.offer(message, collects=isinstance(method, UnaryMethod))
            method = diverted
        call.task = self._loop.create_task(self._serve(method, call, message))

    async def _serve(self, method: Method, call: _NativeCall, message: bytes | None) -> None:
        """Run a handler, and end the call with what it returns or raises."""
        CONNECTION.set(connection_of(call.peer()))
        answer: bytes | None = None
        code, details = StatusCode.OK, ""
        try:
            if isinstance(method, StreamMethod):
                await method.serve(call)
                answer = call.collected
                if answer is None and call.collects:
                    code, details = (
                        StatusCode.INTERNAL,
                        "the method has an answer, and there was none",
                    )
            elif isinstance(method, ServerStreamMethod):
                assert message is not None, "the method takes one request"
                await method.serve(message, call)
            else:
                assert message is not None, "the method takes one request"
                answer = await method.serve(message, call)
                if isinstance(answer, bytes) and len(answer) > SMALL_BYTES:
                    # The task ends when the socket has taken the answer, because until then the
                    # memory is held (`answer_budget.py`).
                    message, whole, answer = None, answer, None
                    await call.write(whole)
                    del whole
                    return await call.finish()
        except CallAborted as error:
            code, details = error.code, error.details
            if error.trailing_metadata:
                call.set_trailing_metadata(error.trailing_metadata)
        except CallGone:
            metrics.CALLS_LEFT.inc()
            code = StatusCode.CANCELLED
        except asyncio.CancelledError:
            # The handler's own cancellation, if the call has not ended: there is nobody to report
            # it to but the client.
            self._finish(call, StatusCode.CANCELLED, "the handler was cancelled", None)
            raise
        except Exception as error:  # a handler's bug ends its call, and nothing else
            log.exception("handler failed", peer=call.peer())
            code, details = StatusCode.UNKNOWN, f"unexpected {type(error).__name__}"
        self._finish(call, code, details, answer)

    def _cancel(self, call: _NativeCall, reason: str) -> None:
        """The call has ended without its answer: cancel its handler, with the reason as the
        message."""
        del self._calls[call.number]
        call.over = True
        # Its exception will reference the handler's frames, and so the call: without a reference
        # back there is no cycle.
        task, call.task = call.task, None
        assert task is not None, "set in the pass that began the call"
        task.cancel(reason)
        self._cancelled.add(task)
        task.add_done_callback(self._cancelled.discard)

    def _sent(self, call: _NativeCall) -> None:
        """The call has ended with its answer."""
        del self._calls[call.number]
        call.over = True
        call.sent()

    # -- answers

    def _finish(
        self, call: _NativeCall, code: StatusCode, details: str, answer: bytes | None
    ) -> None:
        if self._calls.pop(call.number, None) is not None:
            call.over = True
            size = len(answer) if isinstance(answer, bytes) else 0
            self.answer(
                (native.FINISH, call.number, int(code), details, call.trailing, answer), size
            )

    def answer(self, answer: native.Answer, size: int) -> None:
        """Give this to the front at the end of the loop's pass, with everything else."""
        if not self._answers:
            self._loop.call_soon(self._give)
        self._answers.append(answer)
        self._answer_bytes += size
        if self._answer_bytes > UNGIVEN_BYTES:
            self._give()

    def _give(self) -> None:
        if self._answers and self._front is not None:
            answers, self._answers, self._answer_bytes = self._answers, [], 0
            try:
                full = self._front.give(answers)
            except (TypeError, ValueError, OverflowError):
                # One of them is no answer, and so none was given.
                full = [
                    number for answer in answers for number in self._give_one(self._front, answer)
                ]
            for number in full:
                if (call := self._calls.get(number)) is not None:
                    call.full()

    def _give_one(self, front: native.Front, answer: native.Answer) -> list[int]:
        """Give an answer. What a handler returned and the front does not take ends the handler's
        call."""
        try:
            return front.give((answer,))
        except (TypeError, ValueError, OverflowError) as error:
            log.error("a handler gave no valid answer", reason=str(error))
            if (call := self._calls.get(answer[1])) is not None:
                self._cancel(call, "protocol")
            return front.give(
                ((native.FINISH, answer[1], int(StatusCode.INTERNAL), "no valid answer", (), None),)
            )


class _NativeCall:
    """A call of the front as a `ServerCall`."""

    __slots__ = (
        *(
            "_auth",
            "_credit",
            "_deadline",
            "_finished",
            "_half_closed",
            "_messages",
            "_metadata",
            "_peer",
            "_reader",
            "_room",
        ),
        *("_server", "collected", "collects", "number", "over", "task", "trailing"),
    )

    def __init__(
        self,
        server: NativeServer,
        number: int,
        metadata: CallMetadata,
        deadline: float | None,
        peer: str,
        auth: Mapping[str, list[bytes]],
    ) -> None:
        self._server = server
        self.number = number
        self._metadata = metadata
        self._deadline = deadline
        self._peer = peer
        self._auth = auth
        self.trailing: CallMetadata = ()
        self.task: asyncio.Task[None] | None = None
        self.over = False
        """The call has ended: nothing more is read or written."""
        self._messages: deque[bytes] | None = None
        self._credit = False
        """The front may deliver one more message."""
        self._half_closed = False
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Set while the stream is full."""
        self._finished: asyncio.Future[None] | None = None
        """Set when the handler ends the call: the front will report SENT or CANCELLED."""
        self.collects = False
        """The method has one answer, but its handler writes: the answer goes with the end of the
        call."""
        self.collected: bytes | None = None

    # What a handler uses

    def invocation_metadata(self) -> CallMetadata:
        return self._metadata

    def time_remaining(self) -> float | None:
        return (
            None
            if self._deadline is None
            else max(0.0, self._deadline - asyncio.get_running_loop().time())
        )

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._auth

    def set_trailing_metadata(self, metadata: CallMetadata) -> None:
        self.trailing = metadata

    async def send_initial_metadata(self, metadata: CallMetadata) -> None:
        self._require_open()
        self._server.answer((native.INITIAL, self.number, metadata), 0)

    async def read(self) -> bytes | None:
        if self._messages is None:
            self._messages = deque()
        while not self._messages and not self._half_closed:
            self._require_open()
            self._ask()
            assert self._reader is None, "one caller at a time reads"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if not self._messages:
            return None
        message = self._messages.popleft()
        if not self._half_closed and not self.over:
            self._ask()
        return message

    async def write(self, message: bytes) -> None:
        self._require_open()
        if self.collects:
            self.collected = message
            return
        while self._room is not None:
            # A cancelled writer must not cancel the wait of the next one.
            await asyncio.shield(self._room)
            self._require_open()
        self._server.answer((native.SEND, self.number, message), len(message))

    async def finish(self, *, taken: bool = False) -> None:
        self._require_open()
        if self.collects:
            return
        assert self._finished is None, "a handler ends its call once"
        self._finished = asyncio.get_running_loop().create_future()
        self._server.answer(
            (native.END_TAKEN if taken else native.END, self.number, self.trailing), 0
        )
        # A client that leaves before its answer cancels the handler, as at any other time.
        await self._finished

    def _require_open(self) -> None:
        if self.over:
            raise CallGone("the call has ended")

    def _ask(self) -> None:
        """Let one more message come, if none is on its way."""
        if not self._credit:
            self._credit = True
            self._server.answer((native.READ, self.number, 1), 0)

    # What the server reports

    def offer(self, message: bytes | None, *, collects: bool) -> None:
        """Prepare a call for a handler that reads and writes, whatever the method is. `message`:
        the one request of a method without a request stream. `collects`: the method has one
        answer."""
        if message is not None:
            self._messages, self._half_closed = deque((message,)), True
        self.collects = collects

    def arrived(self, message: bytes) -> None:
        assert self._messages is not None, "a message comes only after it was asked for"
        self._credit = False
        self._messages.append(message)
        self._wake()

    def half_closed(self) -> None:
        self._half_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def sent(self) -> None:
        assert self._finished is not None, "the front tells it only of calls that ended by `finish`"
        if not self._finished.done():
            self._finished.set_result(None)

    def full(self) -> None:
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()

    def writable(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)


def _tls_of(pems: Pems) -> native.TlsConfig:
    return native.TlsConfig(
        pems.certificate,
        pems.key,
        client_ca=pems.authority,
        require_client=pems.authority is not None,
    )
