"""The Fetch stream of one broker group: opened at its leader (or at a nearby replica, if wanted),
read, and reopened when it breaks or when other positions are wanted.

`positions.py` decides what is accepted; streams, credit and the detection of silent servers live
here. The server may send as many bytes as the window has room for: bytes waiting for the
application plus unused credit never exceed the window, except for the one response that a message
larger than the remaining credit needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from ledgermq.client.api.connection import Address
from ledgermq.client.api.service import LOG
from ledgermq.client.errors import Unreachable
from ledgermq.client.native.consumers.positions import Entries, Gap, Place, Positions, Run
from ledgermq.client.native.consumers.wire import fetch_response
from ledgermq.client.native.log_connection import LogConnection, Search
from ledgermq.proto import log_pb2 as pb


class Window:
    """The bytes of one stream that may be in transit or waiting. `size` ≥ `waiting` + `granted`,
    except for one response."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting = 0
        """Bytes accepted but not yet taken by the application."""
        self.granted = 0
        """Bytes that the server may still send on this stream."""

    def opened(self) -> int:
        """Start a new stream, without the credit of the old one. Returns the initial credit."""
        self.granted = max(0, self.size - self.waiting)
        return self.granted

    def came(self, size: int) -> None:
        self.granted -= size

    def kept(self, size: int) -> None:
        self.waiting += size

    def taken(self, size: int) -> None:
        self.waiting -= size

    def due(self) -> int:
        """The credit to grant now: at least a quarter of the window, or any amount when no bytes
        are waiting; otherwise 0."""
        room = self.size - self.waiting - self.granted
        return room if room >= self.size // 4 or (room > 0 and self.granted <= 0) else 0

    def grant(self, size: int) -> None:
        self.granted += size


class Flow:
    """The stream of one broker group. `opening` is its first message without places and credit.
    `ready` receives each accepted run, and None when other state changed."""

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
        """Any replica may serve the stream; the given endpoints are tried before the leader."""
        self.replica = ""
        """The node that serves the stream, as it named itself."""
        self.log_id = ""
        """The log that the stream reads, as that node named it; a recovery that may have lost
        messages gives it another id."""
        self.age_ms: int | None = None
        """The maximal age of that replica's state when it last reported; None: it leads, or does
        not report."""
        self.window = Window(window_bytes)
        self.opened = 0
        """How often a stream was opened."""
        self.quiet_since = 0.0
        """When the server last sent a message."""
        self.address: Address | None = None
        self.uses_nearby = False
        """A `near` reader's stream is at one of the given endpoints."""
        self.live = False
        """A stream is open, and its leader has answered."""
        self._good_at = 0.0
        """When messages last arrived, or the report that there are no more."""
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
        """The wanted positions or the leader changed: reopen at the current positions. With a
        complaint the try counts as failed."""
        self._complaint = complaint
        self._changed.set()
        if self._call is not None:
            self._call.cancel()

    def silent_s(self) -> float:
        """How long no wanted messages have arrived, in seconds."""
        return _now() - self.quiet_since if self._positions.wanted(self.broker_group) else 0.0

    def on_leader_s(self) -> float:
        """How long a `near` reader's stream has been open at the leader instead, in seconds."""
        return 0.0 if self.uses_nearby else _now() - self._opened_at

    def taken(self, size: int) -> None:
        """The application took this many bytes."""
        self.window.taken(size)
        if self.window.due():
            self._wake.set()

    async def run(self) -> None:
        """Read until cancelled. Raises Unreachable after the connection's timeout without a good
        answer; Refused if the node refuses."""
        search = self._connection.search(self.broker_group, near=self.near)
        self.quiet_since = self._good_at = _now()
        while True:
            self._changed.clear()
            if not self._positions.wanted(self.broker_group):
                await self._changed.wait()
                self._good_at = _now()
                continue
            self.address = address = await search.next_address()
            self.uses_nearby, self._opened_at = search.uses_nearby, _now()
            try:
                await self._read_at(address, search)
            except grpc.RpcError as error:
                search.broke(address, error)
            except (Gap, ValueError) as error:
                search.failed(f"{address} sends what it should not: {error}")
            if self._complaint:
                search.failed(self._complaint)
                self._complaint = ""
                if self.uses_nearby:
                    search.use_leader()
            if _now() - self._good_at > self._connection.timeout_s:
                raise Unreachable(
                    f"broker group {self.broker_group} cannot be read ({search.last})",
                    "check ledgermq status",
                )

    async def _read_at(self, address: Address, search: Search) -> None:
        """Read one stream to its end. Returns when a stream is to be opened again, here or at
        another node."""
        wanted = self._positions.wanted(self.broker_group)
        generations = {queue: generation for queue, (generation, _) in wanted.items()}
        opening = pb.OpenFetch(credit_bytes=self.window.opened())
        opening.MergeFrom(self._opening)
        for queue, (_, start) in wanted.items():
            # `from` is a Python keyword.
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
                    # A first message alone does not prove that the stream works.
                    continue
                self._good_at = self.quiet_since
                search.worked()
        except asyncio.CancelledError:
            # The end of this task and the end of a stream by `restart` both arrive as a
            # cancellation.
            if not self._changed.is_set() or _cancelling():
                raise
        finally:
            self._call = None
            self.live = False
            writer.cancel()
            call.cancel()
            await asyncio.wait([writer])

    async def _write(self, call: Any, opening: pb.OpenFetch) -> None:
        """Write the first message, then credit whenever it is due. The reader notices the end of
        the stream."""
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
        run = self._positions.accept(
            Place(self.broker_group, entries.queue), generations[entries.queue], entries
        )
        if run is not None:
            self.window.kept(size)
            self._ready(run)
        elif self.window.due():
            self._wake.set()

    def _told(
        self, response: pb.FetchResponse, generations: dict[int, int], search: Search
    ) -> bool:
        """Handle a response without messages. False: the stream ends here. Raises Refused, of which
        Changed is one."""
        kind = response.WhichOneof("response")
        if kind == "redirect":
            search.redirected(response.redirect)
            return False
        if kind == "problem":
            search.problem(response.problem)
            return False
        if kind == "opened":
            self.replica = response.opened.replica
            self.log_id = response.opened.log_id
            self.age_ms = response.opened.age_ms if response.opened.HasField("age_ms") else None
            ends = {one.queue: one.first_offset for one in response.opened.ends}
            begins = {one.queue: one.first_offset for one in response.opened.begins}
            for queue, generation in generations.items():
                place = Place(self.broker_group, queue)
                self._positions.opened(
                    place, generation, begins.get(queue), ends.get(queue), leads=self.age_ms is None
                )
        elif kind == "caught_up":
            self.age_ms = (
                response.caught_up.age_ms if response.caught_up.HasField("age_ms") else None
            )
            for one in response.caught_up.ends:
                self._positions.reached(Place(self.broker_group, one.queue), one.first_offset)
        self._ready(None)
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
