"""The stream of a producer to the leader of one broker group: opens it, writes frames while the
window allows it, passes the answers to the `ProducerSession`, and reopens the stream when the
leader changes.

Tasks, calls and timeouts live here. `producer_session.py` decides what a frame is, and what an
answer means for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from ledgermq.client.api.connection import Address
from ledgermq.client.api.service import LOG
from ledgermq.client.errors import ProducerFenced, Refused
from ledgermq.client.native.log_connection import LogConnection, Search
from ledgermq.client.native.producers.outcomes import Statistics
from ledgermq.client.native.producers.producer_session import (
    UNKNOWN_PRODUCER,
    BadAnswer,
    ProducerSession,
    is_stale,
)
from ledgermq.proto import log_pb2 as pb

ANSWER_TIMEOUT_S = 10.0
"""After this time without an answer the stream to a node ends; its frames are sent again on another
stream."""
FINAL_ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class Caller:
    """A producer's identity in every frame and stream. `memory`: acknowledge when a majority has
    the message in memory."""

    namespace: str
    topic: str
    client_id: str = ""
    memory: bool = False


class ProducerStream:
    """For one event loop. `answered` is called after every answer."""

    def __init__(
        self,
        connection: LogConnection,
        session: ProducerSession,
        caller: Caller,
        statistics: Statistics,
        answered: Callable[[], None] = lambda: None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.session = session
        self._connection = connection
        self._caller = caller
        self._statistics = statistics
        self._answered = answered
        self._answer_timeout_s = answer_timeout_s
        self._clock = asyncio.get_running_loop().time
        self._awake = asyncio.Event()
        self._open_asked = False
        self._closing = False
        self.refused: Refused | None = None
        """Why the last stream was not opened, if a retry cannot help."""

    def wake(self) -> None:
        """Wake the stream: there is something to send, or messages to expire."""
        self._awake.set()

    def open(self) -> None:
        """Open the producer even if there is nothing to send."""
        self._open_asked, self.refused = True, None
        self._awake.set()

    def close(self) -> None:
        """End when the session is idle."""
        self._closing = True
        self._awake.set()

    async def run(self) -> None:
        """Run until closed or fenced. When a stream ends, for any reason, the session continues on
        the next one."""
        search = self._connection.search(self.session.broker_group)
        while await self._wanted():
            address = await search.next_address()
            self.session.obstacle = self.session.obstacle or f"{address} has not answered yet"
            try:
                await self._run_stream(address, search)
            except ProducerFenced:
                return
            except Refused as error:
                self._give_up(error)
            except grpc.RpcError as error:
                self._failed(search, address, error)
            except TimeoutError:
                search.failed(f"{address} answers nothing")
            except BadAnswer as error:
                search.failed(f"{address}: {error}")
            finally:
                self._statistics.disconnects += 1
                self.session.obstacle = search.last
                self.session.broken()
                self._answered()

    async def _wanted(self) -> bool:
        """Wait for something to do. False: there will be nothing more."""
        while self.session.idle and not self._open_asked:
            if self._closing:
                return False
            self._awake.clear()
            await self._awake.wait()
        return not (self._closing and self.session.idle)

    def _failed(self, search: Search, address: Address, error: grpc.RpcError) -> None:
        try:
            search.broke(address, error)
        except Refused as refused:
            self._give_up(refused)

    def _give_up(self, error: Refused) -> None:
        self._open_asked, self.refused = False, error
        self.session.give_up(error)

    async def _run_stream(self, address: Address, search: Search) -> None:
        """Run one stream from its opening to its end."""
        call = self._connection.stream(
            LOG + "Produce", address, pb.ProduceRequest, pb.ProduceResponse
        )
        try:
            hello = self.session.hello()
            hello.client_id, hello.memory = self._caller.client_id, self._caller.memory
            async with asyncio.timeout(self._answer_timeout_s):
                await call.write(pb.ProduceRequest(open=hello))
                first = await call.read()
            if self._opened(first, search):
                self._statistics.streams += 1
                await self._both_ways(call, search)
        except asyncio.InvalidStateError:
            # The call ended during a write; its status tells why.
            self._failed(search, address, await _status(call))
        finally:
            call.cancel()

    def _opened(self, answer: Any, search: Search) -> bool:
        if answer is grpc.aio.EOF:
            search.failed("the node ended the stream")
            return False
        kind = answer.WhichOneof("response")
        if kind == "redirect":
            self._redirected(answer.redirect, search)
        elif kind == "problem" and is_stale(answer.problem):
            raise self.session.fence()
        elif kind == "problem" and answer.problem.code == UNKNOWN_PRODUCER:
            self.session.unknown_producer()
        elif kind == "problem":
            search.problem(answer.problem)
        elif kind == "opened":
            self.session.opened(answer.opened)
            self.session.obstacle = ""
            search.worked()
            self._open_asked = False
            self._answered()
            return True
        else:
            raise BadAnswer(f"the node begins the stream with {kind}")
        return False

    async def _both_ways(self, call: Any, search: Search) -> None:
        reader = asyncio.create_task(self._read(call, search))
        writer = asyncio.create_task(self._write(call))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if not reader.done() and writer.exception() is not None:
                # The reader may still receive the reason: a redirect, or the status.
                await asyncio.wait({reader}, timeout=FINAL_ANSWER_S)
            await (reader if reader.done() else writer)
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _write(self, call: Any) -> None:
        """Write frames until the stream must end."""
        session, names = self.session, self._caller
        while True:
            self._awake.clear()
            while (batch := session.next_frame(self._clock())) is not None:
                frame = batch.frame
                assert frame is not None
                request = pb.ProduceRequest(
                    frame=pb.Frame(
                        namespace=names.namespace,
                        topic=names.topic,
                        first_sequence=frame.first_sequence,
                        sizes=frame.sizes,
                        entries=frame.entries,
                    )
                )
                # If a node does not read, the transport cannot take the frame, and this write
                # blocks.
                async with asyncio.timeout(self._answer_timeout_s):
                    await call.write(request)
            if session.reopen_due or (self._closing and session.idle):
                return
            await self._pause()

    async def _pause(self) -> None:
        """Wait until something may have changed. Raises TimeoutError when an answer is overdue."""
        now = self._clock()
        oldest = self.session.oldest_on_wire_s
        overdue = None if oldest is None else oldest + self._answer_timeout_s
        wake = self.session.wake_at(now)
        if overdue is not None and overdue <= now:
            raise TimeoutError
        at = min((moment for moment in (wake, overdue) if moment is not None), default=None)
        try:
            async with asyncio.timeout_at(at):
                await self._awake.wait()
        except TimeoutError:
            # Woken by time alone; the next round of the loop acts on it.
            return

    async def _read(self, call: Any, search: Search) -> None:
        """Read answers until the stream ends or the node redirects."""
        while (answer := await call.read()) is not grpc.aio.EOF:
            kind = answer.WhichOneof("response")
            if kind == "ack":
                self.session.acknowledged(answer.ack, self._clock())
            elif kind == "rejected":
                self.session.rejected(answer.rejected, self._clock())
            elif kind == "redirect":
                return self._redirected(answer.redirect, search)
            elif kind == "problem" and is_stale(answer.problem):
                raise self.session.fence()
            elif kind == "problem":
                return search.problem(answer.problem)
            else:
                raise BadAnswer(f"the node answers {kind}")
            self._awake.set()
            self._answered()
        search.failed("the node ended the stream")

    def _redirected(self, redirect: pb.Redirect, search: Search) -> None:
        self._statistics.redirects += 1
        search.redirected(redirect)


async def _status(call: Any) -> grpc.aio.AioRpcError:
    """The end of a call, as the error it would have raised."""
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata()
    )
