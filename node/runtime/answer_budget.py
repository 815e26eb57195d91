"""How many bytes of answers this process holds for its clients: the budget of the node, and of one
connection.

What is counted, from when to when: the messages of an answer, twice (as they were read, and the
copy on its way to the client), from the moment when they are read until the task that serves the
call ends. With the compiled server that task ends when the socket has taken the answer, with
grpc.aio when its library reports it sent. Where the size is not known before the messages are read,
the largest answer is counted until they are. So, however many calls come and however slowly their
clients read:

    held bytes  <  limit + one answer,  and of one connection  <  limit of a connection + one answer

and one answer more while bodies are decompressed into it (`grow`).

Beyond a limit no messages are read: Receives, pulls and reads wait, and nothing is leased for them.
Answers without messages, such as those of sends, are not counted here; the front of the compiled
server counts them.

The broker groups ask `admits` and tell `take` in their turns (`node/broker/ports.py:ReadBudget`);
calls outside of turns `reserve`. Everything belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from ledgermq.node.runtime import metrics
from ledgermq.proto.status import Code, LedgerError, fail

CONNECTION: ContextVar[str] = ContextVar("connection", default="")
"""The connection of the call that the current task serves. Empty: only the limit of the node
applies, because the connection carries the calls of many clients."""
SIBLING = "unix:"
"""gRPC's name for a peer that came over a Unix socket without a name: another worker of this node,
with the calls of many clients. A peer that came through the front of grpc.aio has a name."""
COPIES = 2
"""How often the messages of an answer are in memory while it is on its way."""
BULKY_BYTES = 48 << 20
"""What a read is counted with until its size is known: three times the largest answer, because it
is built in steps."""
WAITERS_MAX = 4096
"""How many calls may wait in `reserve`. Further ones are refused."""
SMALL_BYTES = 64 << 10
"""An answer of another node up to this size is always passed on: it may be an outcome that the
caller must learn."""


def connection_of(peer: str) -> str:
    """The value of `CONNECTION` for calls of this peer, as gRPC names it."""
    return "" if peer == SIBLING else peer


@dataclass(slots=True)
class Entered:
    """A call in a broker group: its connection, and what was read for it."""

    token: int
    connection: str
    size: int = 0


class AnswerBudget:
    """The held bytes of one process."""

    def __init__(self, limit_bytes: int = 256 << 20, connection_bytes: int = 64 << 20) -> None:
        self.limit_bytes = limit_bytes
        self.connection_bytes = connection_bytes
        self.held_bytes = 0
        self.open = True
        """Whether messages may be read for any call."""
        self.crowded = False
        """Whether a connection is at its limit."""
        self.version = 0
        """Rises when calls that were not admitted may be admitted now."""
        self._of: dict[str, int] = {}
        """Connection → held bytes."""
        self._full: set[str] = set()
        """The connections at their limit."""
        self._entered: dict[int, Entered] = {}
        """By token."""
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        self._listeners: list[Callable[[], None]] = []
        self._beyond = asyncio.Lock()
        """Held by the call that has exceeded the limits in `grow`."""

    def set_limits(self, limit_bytes: int, connection_bytes: int) -> None:
        """Before there are calls."""
        self.limit_bytes, self.connection_bytes = limit_bytes, connection_bytes

    def on_room(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the groups that were told to wait should ask again."""
        self._listeners.append(listener)

    # Calls in broker groups

    def enter(self, token: int) -> Entered:
        """A call with this token goes to a broker group. The task that waits for it calls `leave`
        in any case."""
        entered = self._entered[token] = Entered(token, CONNECTION.get())
        return entered

    def leave(self, entered: Entered) -> None:
        """The current task has the outcome, or waits no longer for it. What was read for it is held
        until the task ends."""
        del self._entered[entered.token]
        if entered.size:
            _until_the_task_ends(Share(self, entered.connection, entered.size))

    def admits(self, token: int) -> bool:
        """Whether messages may be read for this call."""
        if not (self.open and self.crowded):
            return self.open
        entered = self._entered.get(token)
        return entered is None or entered.connection not in self._full

    def take(self, token: int, size: int) -> None:
        """Messages of this size were read for a call. If its caller is gone, they are dropped at
        once, and not counted."""
        entered = self._entered.get(token)
        if entered is not None:
            entered.size += size * COPIES
            self._change(entered.connection, size * COPIES)

    # Other calls

    async def reserve(self, size: int) -> Share:
        """Wait until this many bytes fit. Raises TOO_MANY_REQUESTS if too many calls wait
        already."""
        connection = CONNECTION.get()
        if self._fits(connection, size):
            self._change(connection, size)
        else:
            await self._turn(connection, size)
        return Share(self, connection, size)

    async def _turn(self, connection: str, size: int) -> None:
        if len(self._waiting) >= WAITERS_MAX:
            raise self.refusal()
        metrics.ANSWER_WAITS.inc()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = connection, size, turn
        self._waiting.append(item)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._change(connection, -size)
            elif item in self._waiting:
                self._waiting.remove(item)
            raise

    async def room(self, until: float) -> None:
        """Wait until there is room for anything, before a call whose answer comes from another
        node. `until`: in the loop's time. Raises TOO_MANY_REQUESTS if there is none by then."""
        if self._fits(CONNECTION.get(), 1):
            return
        try:
            async with asyncio.timeout_at(until):
                (await self.reserve(1)).settle(0)
        except TimeoutError:
            raise self.refusal() from None

    async def reserve_for_task(self, size: int) -> Share:
        """As `reserve`; what is not given back before is given back when the current task ends."""
        share = await self.reserve(size)
        _until_the_task_ends(share)
        return share

    async def grow(self, size: int, until: float) -> None:
        """Hold more bytes until the current task ends, for an answer that becomes longer than what
        was read for it. Such calls hold bytes already and must not wait for each other's, so one of
        them at a time may exceed the limits. `until`: in the loop's time. Raises TOO_MANY_REQUESTS
        if it is not this one's turn by then."""
        connection = CONNECTION.get()
        if not self._fits(connection, size):
            metrics.ANSWER_WAITS.inc()
            try:
                async with asyncio.timeout_at(until):
                    await self._beyond.acquire()
            except TimeoutError:
                raise self.refusal() from None
            _when_the_task_ends(self._beyond.release)
        self._change(connection, size)
        _until_the_task_ends(Share(self, connection, size))

    def charge(self, size: int) -> bool:
        """Hold an answer that came from another node until the current task ends; False if it must
        be dropped. How many come at a time is not known when their calls are forwarded, so there is
        a reserve for them beyond the limit."""
        if size > SMALL_BYTES:
            if self.held_bytes + size * COPIES > self.limit_bytes + BULKY_BYTES:
                metrics.CALLS_REFUSED.labels("answers").inc()
                return False
            share = Share(self, CONNECTION.get(), 0)
            share.settle(size * COPIES)
            _until_the_task_ends(share)
        return True

    def refusal(self) -> LedgerError:
        """Why a call is refused."""
        metrics.CALLS_REFUSED.labels("answers").inc()
        what = (
            f"the answers that clients of this node have not taken hold {self.held_bytes >> 20} MiB"
            " of it, and other calls wait"
        )
        return fail(Code.TOO_MANY_REQUESTS, f"{what} (limits.buffered_bytes); try again later")

    # Counting

    def _fits(self, connection: str, size: int) -> bool:
        """Whether these bytes fit. The first ones always do."""
        if self.held_bytes and self.held_bytes + size > self.limit_bytes:
            return False
        held = self._of.get(connection, 0)
        return not held or held + size <= self.connection_bytes

    def _change(self, connection: str, by: int) -> None:
        self.held_bytes += by
        assert self.held_bytes >= 0, "bytes are given back once"
        was_open, self.open = self.open, self.held_bytes < self.limit_bytes
        has_room = self.open and not was_open
        if connection:
            held = self._of.pop(connection, 0) + by
            if held:
                self._of[connection] = held
            if held >= self.connection_bytes:
                self._full.add(connection)
            elif connection in self._full:
                self._full.remove(connection)
                has_room = self.open
            self.crowded = bool(self._full)
        if by < 0 and self._waiting:
            self._let_in()
        if has_room and self.open:
            self.version += 1
            for listener in self._listeners:
                listener()

    def _let_in(self) -> None:
        """Something was given back: let calls that wait go on, the longest waiting first."""
        waiting, self._waiting = self._waiting, deque()
        for connection, size, turn in waiting:
            if turn.done():
                continue
            if self._fits(connection, size):
                self._change(connection, size)
                turn.set_result(None)
            else:
                self._waiting.append((connection, size, turn))


class Share:
    """A part of the held bytes."""

    __slots__ = ("_budget", "_connection", "_size")

    def __init__(self, budget: AnswerBudget, connection: str, size: int) -> None:
        self._budget = budget
        self._connection = connection
        self._size = size

    def settle(self, size: int) -> None:
        """From now on it is this many bytes."""
        by, self._size = size - self._size, size
        if by:
            self._budget._change(self._connection, by)

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *_: object) -> None:
        self.settle(0)


def _until_the_task_ends(share: Share) -> None:
    _when_the_task_ends(lambda: share.settle(0))


def _when_the_task_ends(do: Callable[[], None]) -> None:
    task = asyncio.current_task()
    assert task is not None, "a task serves each call"
    task.add_done_callback(lambda _: do())


ANSWERS = AnswerBudget()
"""The budget of this process."""
