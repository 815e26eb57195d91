"""Membership of a consumer group that shares the queues of a topic: which queues are this member's, for as long as its Join stream lives.

The order of a change is the whole of it: what is taken away is let go first (nothing more is read, what is done is committed, the
application is told), then the change is confirmed, and only then what is new begins to be read. A member that has had no stream for as long
as a silent one counts as gone lets everything go by itself: others may have it by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from ledgermq.client.connection import Address
from ledgermq.client.errors import Unreachable
from ledgermq.client.native.connection import LogConnection, Search, broken
from ledgermq.client.service import LOG
from ledgermq.proto import log_pb2 as pb

BEATS = 3
"""Signs of life within the time after which a silent member counts as gone."""
LIVENESS_S = 10.0
"""Until the first assignment says otherwise."""

Confirm = Callable[[], Awaitable[None]]
Change = Callable[[frozenset[int], Confirm], Awaitable[None]]
"""Make exactly these queues this member's own: let go, confirm, then begin with what is new."""


class Membership:
    """One member of a consumer group. `first` is the first message of every stream, without a generation."""

    def __init__(self, connection: LogConnection, first: pb.JoinRequest, change: Change) -> None:
        self.generation = 0
        """The last change that this member finished."""
        self.members: tuple[str, ...] = ()
        self.liveness_s = LIVENESS_S
        self._connection = connection
        self._first = first
        self._change = change
        self._lost_at = 0.0
        self._call: Any = None
        self._writing = asyncio.Lock()
        self._restarting = False

    @property
    def broker_group(self) -> str:
        """Whose leader is asked."""
        return self._first.broker_group

    @property
    def member(self) -> str:
        return self._first.member

    def restart(self) -> None:
        """Another node leads: join there."""
        if self._call is not None:
            self._restarting = True
            self._call.cancel()

    async def run(self) -> None:
        """Stay a member until cancelled. Raises Unreachable after the connection's time-out without a stream, Refused when told so."""
        search = self._connection.search(self.broker_group)
        self._lost_at = _now()
        while True:
            address = await search.next_address()
            try:
                await self._at(address, search)
            except grpc.RpcError as error:
                search.failed(broken(address, error))
            except asyncio.InvalidStateError:
                search.failed(f"{address} ends the membership")
            lost_s = _now() - self._lost_at
            if lost_s > self.liveness_s:
                await self._change(frozenset(), _nobody)
            if lost_s > max(self._connection.timeout_s, self.liveness_s):
                raise Unreachable(f"consumer group {self._first.consumer_group} cannot be joined ({search.last})", "check ledgermq status")

    async def _at(self, address: Address, search: Search) -> None:
        """One stream, to its end."""
        self._restarting = False
        self._call = call = self._connection.stream(LOG + "Join", address, pb.JoinRequest, pb.JoinResponse)
        beats = asyncio.ensure_future(self._beat(call))
        joined = False
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                kind = response.WhichOneof("response")
                if kind == "redirect":
                    return search.redirected(response.redirect)
                if kind == "problem":
                    return search.problem(response.problem)
                joined = True
                search.worked()
                await self._assigned(call, response.assignment)
            code = await call.code()
            search.failed(f"{address} ends the membership with {code.name}")
        except asyncio.CancelledError:
            # Both the end of this task and `restart` come as a cancellation.
            task = asyncio.current_task()
            if not self._restarting or (task is not None and task.cancelling()):
                raise
        finally:
            self._call = None
            if joined:
                self._lost_at = _now()
            beats.cancel()
            call.cancel()
            await asyncio.wait([beats])

    async def _assigned(self, call: Any, assignment: pb.Assignment) -> None:
        self.members = tuple(assignment.members)
        self.liveness_s = assignment.liveness_ms / 1000 or LIVENESS_S

        async def confirm() -> None:
            self.generation = assignment.generation
            await self._write(call, pb.JoinRequest(generation=self.generation))

        await self._change(frozenset(assignment.queues), confirm)

    async def _beat(self, call: Any) -> None:
        """The first message, then signs of life."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._write(call, self._first)
            while True:
                await asyncio.sleep(self.liveness_s / BEATS)
                await self._write(call, pb.JoinRequest(generation=self.generation))

    async def _write(self, call: Any, request: pb.JoinRequest) -> None:
        async with self._writing:
            await call.write(request)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _nobody() -> None:
    """There is no stream to confirm a change on."""
