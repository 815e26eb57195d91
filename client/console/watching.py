"""What the pages of one user show: answers of the cluster, kept and asked again while a page is
open.

Law: a page never waits long for the cluster. It gets the last answer with its age, and the reason
why there is no newer one. An answer that is not too old is shown at once and asked for again behind
the page; one from before a change of this user never is. Each answer is asked for once, whatever
the number of open pages: one task asks again what pages used lately, with at most `AT_ONCE` answers
at a time and never a second call for an answer that is still awaited. Without an open page nothing
is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

from ledgermq.client.api.admin import AsyncAdmin
from ledgermq.client.api.connection import AsyncConnection
from ledgermq.client.api.reading import read
from ledgermq.client.api.service import ADMIN
from ledgermq.client.console.auditing import Audits
from ledgermq.client.console.history import History
from ledgermq.client.errors import ClusterError, Refused
from ledgermq.client.plans.health import Finding, of_cluster
from ledgermq.client.results import ClusterStatus, ConsumerGroup, TopicLag
from ledgermq.proto import admin_pb2 as pb

EVERY_S = 2.0
USED_S = 10.0
"""An answer that no page used for so long is not asked for again."""
WAIT_S = 1.5
"""How long a page waits for an answer that it does not have."""
OLDEST_S = 30.0
"""A page that updates itself shows an older answer only if the cluster gives no newer one within
WAIT_S."""
AT_ONCE = 4
KEPT = 128
LISTENERS_MAX = 32
LAGS_AT_ONCE = 8
"""Consumer groups whose lag is asked for in one round, all at once; the next round asks for the
next ones."""
DISK_FREE_BYTES = (5 << 30, 1 << 30)
"""Less free space of a node's disk is worth a warning, or is critical, as for `ledgermq check`."""

Fetch = Callable[[AsyncAdmin], Awaitable[Any]]


@dataclass(slots=True)
class Cell:
    """One answer. `value` None: there is none yet. `error`: why the last attempt failed; empty: it
    succeeded. `outdated`: it was asked for before a change of this user."""

    what: str
    fetch: Fetch
    value: Any = None
    at: float | None = None
    error: str = ""
    code: int = 0
    outdated: bool = False
    used: float = float("-inf")
    task: asyncio.Task[None] | None = None
    keep: Callable[[Any, float], None] | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The state of the cluster, and what needs attention."""

    status: ClusterStatus
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Lag:
    """What a consumer group has still to consume, and when that was asked. `topics` None: the
    cluster refused, or did not know."""

    topics: tuple[TopicLag, ...] | None
    at: float

    @property
    def messages(self) -> int | None:
        if self.topics is None or any(topic.lag is None for topic in self.topics):
            return None
        return sum(topic.lag or 0 for topic in self.topics)

    @property
    def oldest_age_ms(self) -> int | None:
        return max((topic.oldest_age_ms or 0 for topic in self.topics or ()), default=None)


@dataclass(frozen=True, slots=True)
class Receivers:
    """All consumer groups, and the lag of those that were asked for so far."""

    groups: tuple[ConsumerGroup, ...]
    lags: dict[str, Lag]


class Watch:
    """The answers that one user sees, over a connection of its own. `audits`: those of all users of
    the console."""

    def __init__(
        self,
        connection: AsyncConnection,
        audits: Audits,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connection = connection
        self.audits = audits
        self.admin = AsyncAdmin(connection)
        self.history = History()
        self._every_s = every_s
        self._clock = clock
        self._cells: OrderedDict[Hashable, Cell] = OrderedDict()
        self._listeners: set[asyncio.Event] = set()
        self._poller: asyncio.Task[None] | None = None
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._lags: dict[str, Lag] = {}
        self._changes = 0

    def age_s(self, cell: Cell) -> float | None:
        return None if cell.at is None else self._clock() - cell.at

    async def status(self) -> Cell:
        """The state of the cluster, which most pages use."""
        return await self.get(
            "status", "the state of the cluster", self._judged, keep=self._keep_status
        )

    async def receivers(self) -> Cell:
        """The consumer groups, with their lag as far as it is known."""
        return await self.get("receivers", "the consumer groups", self._receivers)

    async def get(
        self,
        key: Hashable,
        what: str,
        fetch: Fetch,
        *,
        keep: Callable[[Any, float], None] | None = None,
        oldest_s: float = OLDEST_S,
    ) -> Cell:
        """The answer of this key, as new as a page can have it without waiting for long. `keep`
        receives each new answer and its time. `oldest_s`: an older answer is waited for; a younger
        one is returned at once, and listeners learn when there is a newer one."""
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell(what, fetch, keep=keep)
            while len(self._cells) > KEPT:
                _, dropped = self._cells.popitem(last=False)
                if dropped.task is not None:
                    dropped.task.cancel()
        self._cells.move_to_end(key)
        # The task that asks again keeps this answer as new as it can be.
        polled = self._poller is not None and self._clock() - cell.used <= USED_S
        cell.used = self._clock()
        age = None if cell.outdated else self.age_s(cell)
        if polled and (cell.error or age is not None):
            return cell
        if age is None or age >= self._every_s:
            task = self._asked(cell)
            task.add_done_callback(self._tell)
            if age is None or age >= oldest_s:
                await asyncio.wait([task], timeout=WAIT_S)
        return cell

    def aged_s(self, cell: Cell) -> float | None:
        """The age in seconds of an answer that is older than one of an open page that updates
        itself; None of any other."""
        age = self.age_s(cell)
        return age if age is not None and age >= self._every_s else None

    def forget(self, group: str = "") -> None:
        """After a change, pages wait for answers that were asked for after it. `group`: the
        consumer group that it concerns, if any."""
        self._changes += 1
        self._lags.pop(group, None)
        for cell in self._cells.values():
            cell.outdated = True

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever newer answers may be there. While there is a listener,
        answers are asked for again."""
        if len(self._listeners) >= LISTENERS_MAX:
            raise OverflowError("too many open pages of one user")
        event = asyncio.Event()
        self._listeners.add(event)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        try:
            yield event
        finally:
            self._listeners.discard(event)

    async def refresh(self) -> None:
        """Ask again for what pages used lately; what is not answered within the interval stays
        under way."""
        now = self._clock()
        tasks = [self._asked(cell) for cell in self._cells.values() if now - cell.used <= USED_S]
        if tasks:
            await asyncio.wait(tasks, timeout=self._every_s)
        self._tell()

    async def close(self) -> None:
        tasks = [cell.task for cell in self._cells.values() if cell.task is not None]
        tasks += [self._poller] if self._poller is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tell()
        await self.connection.close()

    def _tell(self, _: asyncio.Task[None] | None = None) -> None:
        for event in self._listeners:
            event.set()

    async def _judged(self, _: AsyncAdmin) -> Judged:
        request = pb.ClusterStatusRequest()
        answer = await self.connection.carry_out(
            self.connection.asking(ADMIN + "ClusterStatus", request, pb.ClusterStatusResponse)
        )
        return Judged(read(ClusterStatus, answer), of_cluster(answer, *DISK_FREE_BYTES))

    def _keep_status(self, judged: Judged, at: float) -> None:
        self.history.add_status(judged.status, at)

    async def _receivers(self, admin: AsyncAdmin) -> Receivers:
        changes = self._changes
        groups = await admin.groups()
        names = [group.name for group in groups]
        # Those that were never asked for come first, then those that were asked for longest ago.
        turn = nsmallest(
            LAGS_AT_ONCE,
            names,
            key=lambda name: self._lags[name].at if name in self._lags else float("-inf"),
        )
        lags = await asyncio.gather(*map(self._lag, turn))
        if changes == self._changes:
            self._lags.update(zip(turn, lags, strict=True))
        self._lags = {name: self._lags[name] for name in names if name in self._lags}
        known = [lag.messages for lag in self._lags.values()]
        self.history.add(
            "lag",
            None if None in known or len(known) < len(names) else sum(lag or 0 for lag in known),
        )
        return Receivers(groups, self._lags)

    async def lag_of(self, group: str) -> Lag:
        """The lag of one consumer group, kept over time for the picture on its page. Raises
        Unreachable."""
        lag = await self._lag(group)
        self.history.add(("lag", group), lag.messages)
        return lag

    async def _lag(self, group: str) -> Lag:
        try:
            return Lag(await self.admin.lag(group), self._clock())
        except Refused:
            return Lag(None, self._clock())

    async def _poll(self) -> None:
        try:
            while self._listeners:
                await asyncio.sleep(self._every_s)
                await self.refresh()
        finally:
            self._poller = None

    def _asked(self, cell: Cell) -> asyncio.Task[None]:
        if cell.task is None or cell.task.done():
            cell.task = asyncio.create_task(self._ask(cell))
        return cell.task

    async def _ask(self, cell: Cell) -> None:
        changes = -1
        async with self._gate:
            # An answer that was under way while the user changed something may be older than the
            # change.
            while changes != self._changes:
                changes = self._changes
                try:
                    value = await cell.fetch(self.admin)
                except ClusterError as error:
                    cell.error, cell.code = (
                        str(error),
                        error.code if isinstance(error, Refused) else 0,
                    )
                    return
        cell.value, cell.at, cell.error, cell.code, cell.outdated = (
            value,
            self._clock(),
            "",
            0,
            False,
        )
        if cell.keep is not None:
            cell.keep(cell.value, cell.at)
