"""One open Produce stream: frames in, answers out in the same order, with at most a window of
frames under way.

Two tasks: the reader checks each frame and passes it to the broker group, and the writer awaits the
outcomes in order. Between them is a queue whose length the window bounds: while it is full nothing
is read, and the transport applies backpressure to the client.

A stream ends in one of two ways. If the client closes its side, it receives every outstanding
answer. If this node stops, or no longer leads, the client receives the answers that are available
and then a Redirect. Frames without an answer then have an unknown outcome; the client sends them
again to the leader, which knows what is stored. No answer comes out of order, and none follows a
frame whose outcome is unknown.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ledgermq.node.broker.calls.outcome import AGAIN, Refused
from ledgermq.node.broker.calls.send_calls import FrameKnown, FrameProduced, ProduceFrame
from ledgermq.node.frontend.native.frame_answers import FrameAnswers, Sent
from ledgermq.node.frontend.native.frame_checks import FrameChecker, Origin
from ledgermq.node.frontend.native.incoming import Incoming
from ledgermq.node.frontend.native.problems import Moved, as_error, bare
from ledgermq.node.frontend.native.requests import FrameRequest, read
from ledgermq.node.frontend.ports import Engine, FrameSpan, ServerCall, Trace
from ledgermq.node.frontend.security.quotas import Hold
from ledgermq.node.runtime import metrics
from ledgermq.proto import log_pb2
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.frames import BadFrame
from ledgermq.proto.status import Code, LedgerError, code_name, fail

WINDOW_FRAMES = 5
"""The number of frames that a broker group remembers of a producer: each of them may be sent again
and gets its first receipt."""
WINDOW_BYTES = 8 << 20


@dataclass(slots=True)
class _Pending:
    """A frame without an answer."""

    sent: Sent
    size: int
    began: float
    outcome: asyncio.Future[Any] | None = None
    """None: the frame did not reach the broker group; `failure` says why."""
    failure: Exception | None = None
    hold: Hold | None = None
    span: FrameSpan | None = None

    def close(self, code: int = int(Code.OK), message: str = "") -> None:
        """Release the frame's share of the quotas and end its span."""
        if self.hold is not None:
            self.hold.__exit__(None, None, None)
        if self.span is not None:
            self.span.end(code, message)


class ProduceStream:
    """One open stream. `topics`: stored names of the topics it has used so far."""

    def __init__(
        self,
        context: ServerCall,
        incoming: Incoming,
        engine: Engine,
        checker: FrameChecker,
        answers: FrameAnswers,
        origin: Origin,
        *,
        memory: bool,
        node: str,
        trace: Trace | None,
    ) -> None:
        self._context = context
        self._incoming = incoming
        self._engine = engine
        self._checker = checker
        self._answers = answers
        self._origin = origin
        self.topics: set[str] = set()
        self._memory = memory
        self._node = node
        self._trace = trace
        self._pending: deque[_Pending] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._ended: Exception | None = None
        """Why reading has ended; `_Closed` if the client closed its side."""
        self._reader: asyncio.Task[None] | None = None

    def move(self) -> None:
        """Stop reading; redirect the client after the answers that are under way."""
        self._end(Moved(self._origin.broker_group))
        if self._reader is not None:
            self._reader.cancel()

    async def run(self) -> None:
        """Serve until the client has closed its side and every frame is answered. Raises Moved, or
        what else ended the stream."""
        if self._ended is None:
            self._reader = asyncio.create_task(self._read())
        try:
            await self._write()
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)
            for pending in self._pending:
                pending.close(int(Code.PROXY_TIMEOUT), "the stream ended without an answer")
            # Raised or cancelled, these reference the calls of this stream, and so themselves: a
            # reference cycle (`problems.bare`).
            self._ended = self._reader = None

    def _end(self, why: Exception) -> None:
        if self._ended is None:
            self._ended = why
        self._changed.set()

    # -- the reader

    async def _read(self) -> None:
        try:
            while True:
                while len(self._pending) >= WINDOW_FRAMES or self._bytes >= WINDOW_BYTES:
                    await self._wait()
                await self._read_frame(await self._incoming.next())
        # whatever ended the reading ends the stream, after the pending answers
        except Exception as error:
            self._end(error)

    async def _read_frame(self, data: bytes | None) -> None:
        """Read one frame. A function of its own, so that an idle stream keeps nothing of its last
        frame alive."""
        if data is None:
            raise _Closed
        request = read(data)
        if not isinstance(request, FrameRequest):
            raise fail(Code.BAD_REQUEST, "a stream opens only one producer, with its first request")
        pending = await self._taken(request)
        self._pending.append(pending)
        self._bytes += pending.size
        self._changed.set()

    async def _taken(self, request: FrameRequest) -> _Pending:
        """Check a frame and pass it to the broker group. A rejected frame leaves the stream
        open."""
        sent = Sent(request.first_sequence, request.count)
        pending = _Pending(sent, len(request.entries), perf_counter())
        if self._trace is not None:
            topic = pb.Resource(resource_namespace=request.namespace, name=request.topic)
            pending.span = self._trace(
                topic, request.count, request.first_sequence, request.entries
            )
        try:
            with nullcontext() if pending.span is None else pending.span.current():
                checked = await self._checker.check(self._origin, request)
        except (BadFrame, LedgerError) as error:
            pending.failure = bare(error)
            return pending
        pending.hold = checked.hold
        self.topics.add(checked.topic)
        call = ProduceFrame(self._engine.new_token(), checked.topic, checked.frame, self._memory)
        pending.outcome = self._engine.call(self._origin.broker_group, call)
        return pending

    # -- the writer

    async def _write(self) -> None:
        while True:
            while not self._pending:
                if self._ended is not None:
                    if isinstance(self._ended, _Closed):
                        return
                    raise self._ended
                await self._wait()
            await self._report(self._pending[0])

    async def _report(self, pending: _Pending) -> None:
        """Answer one frame. Also a function of its own, because a rejection's exception references
        the frame."""
        outcome = None if pending.outcome is None else await pending.outcome
        response = self._answer(pending, outcome)
        await self._context.write(response.SerializeToString())
        self._pending.popleft()
        self._bytes -= pending.size
        why = response.rejected.problem
        pending.close(why.code or int(Code.OK), why.message)
        self._count(pending, outcome, response)
        self._changed.set()

    def _answer(self, pending: _Pending, outcome: Any) -> log_pb2.ProduceResponse:
        """The answer to a frame. Raises Moved if its outcome is unknown."""
        sent, failure = pending.sent, pending.failure
        if isinstance(failure, BadFrame):
            return self._answers.rejected(sent, fail(failure.code, str(failure)), failure.position)
        if failure is not None:
            return self._answers.rejected(sent, as_error(failure, self._node, "Produce"))
        if isinstance(outcome, FrameProduced):
            return self._answers.stored(sent, outcome)
        if isinstance(outcome, FrameKnown):
            return self._answers.known(sent, outcome)
        assert isinstance(outcome, Refused), "a frame is stored, known or refused"
        if outcome.reason in AGAIN:
            raise Moved(self._origin.broker_group)
        return self._answers.refused(sent, outcome)

    def _count(self, pending: _Pending, outcome: Any, response: log_pb2.ProduceResponse) -> None:
        group = self._origin.broker_group
        meters = _meters(group)
        if response.HasField("rejected"):
            reason = (
                outcome.reason
                if isinstance(outcome, Refused)
                else code_name(response.rejected.problem.code).lower().replace("_", "-")
            )
            metrics.NATIVE_REJECTIONS.labels(group, reason).inc()
        elif response.ack.duplicate:
            meters.duplicates.inc()
        else:
            meters.frames.inc()
            meters.messages.inc(pending.sent.count)
            meters.bytes.inc(pending.size)
        meters.seconds.observe(perf_counter() - pending.began)

    async def _wait(self) -> None:
        """Wait until something has changed."""
        self._changed.clear()
        await self._changed.wait()


class _Meters:
    """The counters of one broker group, cached because looking one up costs more than incrementing
    it."""

    def __init__(self, group: str) -> None:
        self.frames = metrics.NATIVE_FRAMES.labels(group)
        self.messages = metrics.NATIVE_MESSAGES.labels(group)
        self.bytes = metrics.NATIVE_BYTES.labels(group)
        self.duplicates = metrics.NATIVE_DUPLICATES.labels(group)
        self.seconds = metrics.NATIVE_FRAME_SECONDS.labels(group)


_meters = functools.cache(_Meters)


class _Closed(Exception):
    """The client has closed its side."""
