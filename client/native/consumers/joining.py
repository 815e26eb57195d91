"""Membership in a consumer group that shares the queues of a topic: which queues this member owns
while its Join stream lives.

The order of a change is essential. First the member releases revoked queues: it stops reading,
commits what is processed, and calls the application. Then it confirms the change. Only then does it
start reading new queues. A member without a stream for as long as the session timeout releases all
queues by itself, because other members may own them by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from ledgermq.client.api.connection import Address
from ledgermq.client.api.service import LOG
from ledgermq.client.errors import Refused, Unreachable
from ledgermq.client.native.log_connection import LogConnection, Search
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.status import Code

BEATS = 3
"""Heartbeats within the session timeout."""
LIVENESS_S = 10.0
"""The session timeout until the first assignment."""

Confirm = Callable[[], Awaitable[None]]
Change = Callable[[frozenset[int], Confirm], Awaitable[None]]
"""Make exactly these queues the member's own: release, confirm, then start reading the new ones."""


class Membership:
    """One member of a consumer group. `who`: the first message of every stream, without the last
    change; `owned` returns the queues that the member reads now."""

    def __init__(
        self,
        connection: LogConnection,
        who: pb.JoinRequest,
        change: Change,
        owned: Callable[[], Collection[int]],
    ) -> None:
        self.generation = 0
        """The last change that this member completed; 0: it reads no queue."""
        self.changing = False
        """A change is under way: a queue whose commit is refused now no longer belongs to this
        member."""
        self.members: tuple[str, ...] = ()
        self.liveness_s = LIVENESS_S
        self._connection = connection
        self._who = who
        self._change = change
        self._owned = owned
        self._lost_at = 0.0
        self._call: Any = None
        self._writing = asyncio.Lock()
        self._restarting = False
        self._leaving = False
        self._answered_at = 0.0
        """When the coordinator last answered a heartbeat."""

    @property
    def broker_group(self) -> str:
        """The broker group whose leader coordinates."""
        return self._who.broker_group

    @property
    def member(self) -> str:
        return self._who.member

    def restart(self) -> None:
        """Another node leads: join there."""
        if self._call is not None:
            self._restarting = True
            self._call.cancel()

    async def leave(self) -> None:
        """Leave the group, so that other members need not wait for the session timeout; `run`
        returns soon afterwards."""
        self._leaving = True
        if self._call is not None:
            with suppress(grpc.RpcError, asyncio.InvalidStateError):
                async with self._writing:
                    await self._call.done_writing()

    async def run(self) -> None:
        """Stay a member until `leave`. Raises Unreachable after the connection's timeout without a
        stream; Refused if the node refuses."""
        searched, search = self.broker_group, self._connection.search(self.broker_group)
        self._lost_at = _now()
        while not self._leaving:
            if searched != self.broker_group:
                searched, search = self.broker_group, self._connection.search(self.broker_group)
            address = await search.next_address()
            try:
                await self._at(address, search)
            except Refused as error:
                if error.code != Code.PRECONDITION_FAILED:
                    raise
                # The coordinator expired this member, which was silent for too long.
                search.failed(error.what)
                await self._let_everything_go()
            except grpc.RpcError as error:
                search.broke(address, error)
            except asyncio.InvalidStateError:
                search.failed(f"{address} ends the membership")
            lost_s = _now() - self._lost_at
            if lost_s > self.liveness_s:
                await self._let_everything_go()
            if lost_s > max(self._connection.timeout_s, self.liveness_s):
                raise Unreachable(
                    f"consumer group {self._who.consumer_group} cannot be joined ({search.last})",
                    "check ledgermq status",
                )

    async def _let_everything_go(self) -> None:
        self.generation = 0
        await self._changed(frozenset(), _no_change)

    async def _changed(self, queues: frozenset[int], confirm: Confirm) -> None:
        self.changing = True
        try:
            await self._change(queues, confirm)
        finally:
            self.changing = False
            self._answered_at = _now()

    async def _at(self, address: Address, search: Search) -> None:
        """Run one stream to its end."""
        self._restarting = False
        self._answered_at = _now()
        self._call = call = self._connection.stream(
            LOG + "Join", address, pb.JoinRequest, pb.JoinResponse
        )
        beats = asyncio.ensure_future(self._beat(call))
        joined = False
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                kind = response.WhichOneof("response")
                if kind == "redirect":
                    search.redirected(response.redirect)
                    if response.redirect.broker_group not in ("", self.broker_group):
                        # The topic grew into a broker group that sorts first: its leader now
                        # coordinates, and its queue numbers differ.
                        self._who.broker_group = response.redirect.broker_group
                        await self._let_everything_go()
                    return
                if kind == "problem":
                    return search.problem(response.problem)
                joined = True
                self._answered_at = _now()
                search.worked()
                await self._assigned(call, response.assignment)
            code = await call.code()
            search.failed(f"{address} ends the membership with {code.name}")
        except asyncio.CancelledError:
            # The end of this task and `restart` both arrive as a cancellation.
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
        if assignment.generation == self.generation:
            # This is the answer to a heartbeat.
            return

        async def confirm() -> None:
            self.generation = assignment.generation
            await self._write(call, pb.JoinRequest(generation=self.generation))

        await self._changed(frozenset(assignment.queues), confirm)

    async def _beat(self, call: Any) -> None:
        """Write the first message, then heartbeats."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            first = pb.JoinRequest(
                generation=self.generation, queues=sorted(self._owned()) if self.generation else ()
            )
            first.MergeFrom(self._who)
            await self._write(call, first)
            while True:
                await asyncio.sleep(self.liveness_s / BEATS)
                if _now() - self._answered_at > self.liveness_s and not self.changing:
                    # Each heartbeat is answered, so the coordinator is gone.
                    self.restart()
                await self._write(call, pb.JoinRequest(generation=self.generation))

    async def _write(self, call: Any, request: pb.JoinRequest) -> None:
        async with self._writing:
            await call.write(request)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _no_change() -> None:
    """Confirm a change without a stream: there is no coordinator to confirm it to."""
