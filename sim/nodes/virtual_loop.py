"""An event loop of asyncio on virtual time, which runs the coroutines of a node's maintenance.

Only what these coroutines use is there: futures, tasks, timers, and jobs of an executor. Callbacks
that are ready run one behind the other in one event of the world, in which no time passes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from functools import partial
from typing import Any


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process. A broken invariant, and the end of the process, leave it through the
    event in which they came up; any other failure belongs to the task that awaits the work."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        at: Callable[[int, Callable[[], None]], None],
        threads: Executor,
    ) -> None:
        """`at(time, action)` has an action run as code of the process, at a time of the clock
        `now_ns`; `threads` runs what a coroutine hands to a thread."""
        self._now_ns = now_ns
        self._at = at
        self._threads = threads
        self._ready: deque[asyncio.Handle] = deque()
        self._ordered = False
        """Whether an event will run what is ready, or does now."""
        self._failure: BaseException | None = None

    def enter(self, action: Callable[[], None]) -> None:
        """Run an action, and what becomes ready by it."""
        self._ready.append(asyncio.Handle(action, (), self))
        self._run()

    def _run(self) -> None:
        self._ordered = True
        outside = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while self._ready and self._failure is None:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(outside)
            self._ordered = False
        if self._failure is not None:
            raise self._failure

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            self._ready.append(timer)
            self._run()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            self._failed(task.exception())

    def _failed(self, error: BaseException | None) -> None:
        if error is not None and (
            isinstance(error, AssertionError) or not isinstance(error, Exception)
        ):
            self._failure = error

    # What asyncio calls

    def time(self) -> float:
        return self._now_ns() / 1e9

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, **options)
        task.add_done_callback(self._ended)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._ordered:
            self._ordered = True
            self._at(self._now_ns(), self._run)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._at(round(when * 1e9), partial(self._fire, timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return asyncio.wrap_future((executor or self._threads).submit(func, *args), loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a callback raised. Tasks that ended with their process are no failure."""
        if "handle" in context:
            self._failed(context.get("exception"))
