"""Where a client is in its life, and in which process: what all classes of clients share, whether
they wait in threads or in loops.

Laws: a client is opened once and closed once, whoever asks and how often. A close that comes second
returns when the first one has ended. After the close, and before the opening, every call raises
BadArgument.

A process that was forked from one with a client has none: gRPC's poller is a thread, which a fork
does not copy, and the locks that it held at that moment are never released there. The child would
die or hang in its first call, also with a client of its own, and also when the parent's client was
closed before. So whoever opens a channel asks here first.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

from ledgermq.client.errors import BadArgument, ClusterError, Unreachable


class _Process:
    """This process and gRPC. `used`: it has opened a channel. `inherited`: it is a fork of one that
    had."""

    used = False
    inherited = False


def _forked() -> None:
    _Process.inherited = _Process.inherited or _Process.used


os.register_at_fork(after_in_child=_forked)


def is_inherited() -> bool:
    """Whether this process was forked from one that had a client: whatever it got from there is
    left alone."""
    return _Process.inherited


def use_grpc() -> None:
    """Called before anything that starts gRPC. Raises BadArgument in a process that was forked from
    one with a client."""
    if _Process.inherited:
        what = (
            "this process was forked from one that had used a client, and gRPC does not work in it"
        )
        remedy = (
            "start it another way (multiprocessing: 'spawn' or 'forkserver'), or open the first"
            " client after the fork"
        )
        raise BadArgument(what, f"{remedy}: docs/client.md, Processes")
    _Process.used = True


class Stage(IntEnum):
    """The stages of a life, in their order."""

    MADE = 0
    OPENING = 1
    OPEN = 2
    CLOSING = 3
    CLOSED = 4


class Life:
    """One life. `what`: "producer". `opened_by`: what the caller has to do first; empty for what is
    open from the beginning."""

    def __init__(self, what: str, opened_by: str = "") -> None:
        self.stage = Stage.MADE if opened_by else Stage.OPEN
        self._what = what
        self._opened_by = opened_by
        self._failure: ClusterError | None = None
        # Reentrant, as all locks here: a signal handler may close a client while its thread opens
        # or closes it.
        self._changing = threading.RLock()

    @property
    def ended(self) -> bool:
        """Whether somebody has begun to close it."""
        return self.stage >= Stage.CLOSING

    def check(self, *, closing: bool = False) -> None:
        """Raises BadArgument if it is not open. `closing`: a callback of the close may still do
        this."""
        if _Process.inherited:
            use_grpc()
        if self.stage is Stage.OPEN or (closing and self.stage is Stage.CLOSING):
            return self._check_place()
        if self.ended:
            raise BadArgument(f"the {self._what} is closed", "open another one")
        raise BadArgument(f"the {self._what} is not open in this process", self._opened_by)

    def _check_place(self) -> None:
        """Raises BadArgument where it may not be used."""

    def check_goes_on(self) -> None:
        """Raises BadArgument if it was closed while it was being opened."""
        if self.ended:
            self.check()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """The opening, which may be tried again if it fails. Raises BadArgument if it is not the
        first one, and if it was closed meanwhile."""
        use_grpc()
        with self._changing:
            self.check_goes_on()
            self._check_place()
            if self.stage is not Stage.MADE:
                raise BadArgument(
                    f"the {self._what} is open already", "use it, or open another one"
                )
            self.stage = Stage.OPENING
        try:
            yield
        except BaseException:
            with self._changing:
                if self.stage is Stage.OPENING:
                    self.stage = Stage.MADE
            raise
        with self._changing:
            self.check_goes_on()
            self.stage = Stage.OPEN

    def lost(self) -> ClusterError:
        """What a call ends with whose client was closed under it."""
        return Unreachable(
            f"the {self._what} was closed before the answer came", "ask again with another one"
        )

    def _begin_end(self, before: Stage) -> bool:
        """Whether the caller, who came when the life was at this stage, is to close. Raises what
        the close that it waited for raised."""
        with self._changing:
            if not self.ended:
                self.stage = Stage.CLOSING
                return True
        if before is not Stage.CLOSED and self._failure is not None:
            raise self._failure
        return False


class ThreadLife(Life):
    """The life of a client for threads."""

    def __init__(self, what: str, opened_by: str = "") -> None:
        super().__init__(what, opened_by)
        self._closing = threading.RLock()

    def end(self, work: Callable[[], None]) -> None:
        """Close by `work`, if this caller is the first; otherwise return when the first one has."""
        if is_inherited():
            return
        before = self.stage
        with self._closing:
            if self._begin_end(before):
                try:
                    work()
                except ClusterError as error:
                    self._failure = error
                    raise
                finally:
                    self.stage = Stage.CLOSED


class LoopLife(Life):
    """The life of a client for one event loop: the one in which it is first used."""

    def __init__(self, what: str, opened_by: str = "") -> None:
        super().__init__(what, opened_by)
        self._closing = asyncio.Lock()
        self._closer: asyncio.Task[object] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def _check_place(self) -> None:
        loop: asyncio.AbstractEventLoop | None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # A call that does not wait, from between two steps of the loop; or from another thread
            # while the loop runs.
            loop = self.loop if self.loop is None or not self.loop.is_running() else None
        if self.loop is None:
            self.loop = loop
        elif self.loop is not loop:
            raise BadArgument(
                f"the {self._what} belongs to another event loop", "open one in each loop"
            )

    async def end(self, work: Callable[[], Awaitable[None]]) -> None:
        """As `ThreadLife.end`, for tasks."""
        if is_inherited() or self._closer is asyncio.current_task():
            return
        self._check_place()
        before = self.stage
        async with self._closing:
            if self._begin_end(before):
                self._closer = asyncio.current_task()
                try:
                    await work()
                except ClusterError as error:
                    self._failure = error
                    raise
                finally:
                    self.stage, self._closer = Stage.CLOSED, None
