"""The Fetch stream of one broker group: opened at its leader (or at a replica that is near, where that is wanted), read, opened again
where it broke off or where something else is wanted.

What is accepted decides `positions.py`; here are streams, credit and the watch over silence. The server may send so many bytes as the
window has room: what the application has not taken yet and what was granted and not used never exceed it together, but for the one response
that a message larger than the rest of the credit needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from ledgermq.client.connection import Address
from ledgermq.client.errors import Unreachable
from ledgermq.client.native.connection import LogConnection, Search, broken
from ledgermq.client.native.positions import Entries, Gap, Place, Positions, Run
from ledgermq.client.native.wire import fetch_response
from ledgermq.client.service import LOG
from ledgermq.proto import log_pb2 as pb


class Window:
    """Bytes that one stream may have on their way or waiting. `size` ≥ `waiting` + `granted`, but for one response."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting = 0
        """Accepted, and not taken by the application."""
        self.granted = 0
        """What the server may still send on this stream."""

    def opened(self) -> int:
        """A new stream begins: credit of the old one is gone. Returns the credit to begin with."""
        self.granted = max(0, self.size - self.waiting)
        return self.granted

    def came(self, size: int) -> None:
        self.granted -= size

    def kept(self, size: int) -> None:
        self.waiting += size

    def taken(self, size: int) -> None:
        self.waiting -= size

    def due(self) -> int:
        """Credit that is worth a message: a quarter of the window, or all there is when nothing waits."""
        room = self.size - self.waiting - self.granted
        return room if room >= self.size // 4 or (room > 0 and self.granted <= 0) else 0

    def grant(self, size: int) -> None:
        self.granted += size


class Flow:
    """One broker group's stream. `opening` is its first message without places and credit; `ready` gets what was accepted, and None when
    something else became known."""

    def __init__(
        self,
        connection: LogConnection,
        broker_group: str,
        positions: Positions,
        window_bytes: int,
        opening: pb.OpenFetch,
        ready: Callable[[Run | None], None],
        *,
        near: bool = False,
    ) -> None:
        self.broker_group = broker_group
        self.near = near
        """Any replica may serve it, the endpoints that were given before the leader."""
        self.replica = ""
        """Who serves it, by its own word."""
        self.age_ms: int | None = None
        """How old what that one knew was at most when it last said so; None: it leads, or does not say."""
        self.window = Window(window_bytes)
        self.opened = 0
        """How often a stream was opened."""
        self.quiet_since = 0.0
        """When the server last said something."""
        self.address: Address | None = None
        self.at_home = False
        """The stream is where a reader that is `near` wants to be."""
        self.live = False
        """A stream is open, and its leader has spoken."""
        self._good_at = 0.0
        """When messages last came, or the word that there are no more."""
        self._opened_at = 0.0
        self._connection = connection
        self._positions = positions
        self._opening = opening
        self._ready = ready
        self._call: Any = None
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._complaint = ""

    def restart(self, complaint: str = "") -> None:
        """What is wanted has changed, or the leader: begin again where every queue is. With a complaint the try counts as a failed one."""
        self._complaint = complaint
        self._changed.set()
        if self._call is not None:
            self._call.cancel()

    def silent_s(self) -> float:
        """For how long nothing has come of what is wanted."""
        return _now() - self.quiet_since if self._positions.wanted(self.broker_group) else 0.0

    def away_s(self) -> float:
        """For how long the stream has been open, at the leader, of a reader that wants to be elsewhere."""
        return 0.0 if self.at_home else _now() - self._opened_at

    def taken(self, size: int) -> None:
        """The application took so many bytes."""
        self.window.taken(size)
        if self.window.due():
            self._wake.set()

    async def run(self) -> None:
        """Read until cancelled. Raises Unreachable after the connection's time-out without any good answer, Refused when told so."""
        search = self._connection.search(self.broker_group, near=self.near)
        self.quiet_since = self._good_at = _now()
        while True:
            self._changed.clear()
            if not self._positions.wanted(self.broker_group):
                await self._changed.wait()
                self._good_at = _now()
                continue
            self.address = address = await search.next_address()
            self.at_home, self._opened_at = search.at_home, _now()
            try:
                await self._read_at(address, search)
            except grpc.RpcError as error:
                search.failed(broken(address, error))
            except (Gap, ValueError) as error:
                search.failed(f"{address} sends what it should not: {error}")
            if self._complaint:
                search.failed(self._complaint)
                self._complaint = ""
                if self.at_home:
                    search.leave_home()
            if _now() - self._good_at > self._connection.timeout_s:
                raise Unreachable(f"broker group {self.broker_group} cannot be read ({search.last})", "check ledgermq status")

    async def _read_at(self, address: Address, search: Search) -> None:
        """One stream, to its end. Returns when it is to be opened again, here or elsewhere."""
        wanted = self._positions.wanted(self.broker_group)
        generations = {queue: generation for queue, (generation, _) in wanted.items()}
        opening = pb.OpenFetch(credit_bytes=self.window.opened())
        opening.MergeFrom(self._opening)
        for queue, (_, start) in wanted.items():
            # `from` is a word of Python's.
            start.fill(getattr(opening, "from").add(queue=queue))
        self._call = call = self._connection.stream(LOG + "Fetch", address)
        self.opened += 1
        writer = asyncio.ensure_future(self._write(call, opening))
        try:
            while True:
                data = await call.read()
                if data is grpc.aio.EOF:
                    return search.failed(f"{address} ends the stream")
                self.quiet_since = _now()
                self.live = True
                response = fetch_response(data)
                if isinstance(response, Entries):
                    self._accept(response, generations)
                elif not self._told(response, generations, search):
                    return
                elif response.HasField("opened"):
                    # Whether more comes of it than a first word is still to be seen.
                    continue
                self._good_at = self.quiet_since
                search.worked()
        except asyncio.CancelledError:
            # Both the end of this task and the end of a stream by `restart` come as a cancellation.
            if not self._changed.is_set() or _cancelling():
                raise
        finally:
            self._call = None
            self.live = False
            writer.cancel()
            call.cancel()
            await asyncio.wait([writer])

    async def _write(self, call: Any, opening: pb.OpenFetch) -> None:
        """The first message, then credit whenever it is due. A stream that is over is noticed by its reader."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            await call.write(pb.FetchRequest(open=opening).SerializeToString())
            while True:
                due = self.window.due()
                if not due:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                self.window.grant(due)
                await call.write(pb.FetchRequest(credit_bytes=due).SerializeToString())

    def _accept(self, entries: Entries, generations: dict[int, int]) -> None:
        size = len(entries.entries)
        self.window.came(size)
        if entries.queue not in generations:
            raise Gap(f"queue {entries.queue} was not asked for")
        run = self._positions.accept(Place(self.broker_group, entries.queue), generations[entries.queue], entries)
        if run is not None:
            self.window.kept(size)
            self._ready(run)
        elif self.window.due():
            self._wake.set()

    def _told(self, response: pb.FetchResponse, generations: dict[int, int], search: Search) -> bool:
        """What is not messages. False: the stream ends here. Raises Refused."""
        kind = response.WhichOneof("response")
        if kind == "redirect":
            search.redirected(response.redirect)
            return False
        if kind == "problem":
            search.problem(response.problem)
            return False
        if kind == "opened":
            self.replica = response.opened.replica
            self.age_ms = response.opened.age_ms if response.opened.HasField("age_ms") else None
            ends = {one.queue: one.first_offset for one in response.opened.ends}
            begins = {one.queue: one.first_offset for one in response.opened.begins}
            for queue, generation in generations.items():
                self._positions.opened(Place(self.broker_group, queue), generation, begins.get(queue), ends.get(queue))
        elif kind == "caught_up":
            self.age_ms = response.caught_up.age_ms if response.caught_up.HasField("age_ms") else None
            for one in response.caught_up.ends:
                self._positions.reached(Place(self.broker_group, one.queue), one.first_offset)
        self._ready(None)
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
