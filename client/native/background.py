"""An event loop in its own thread: `Consumer` and `Producer` run their asynchronous halves on it.

The caller's thread waits; objects of the loop are used only in the loop's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ledgermq.client.errors import BadArgument, Unreachable

T = TypeVar("T")
DRAIN_S = 1.0
"""How long `close` waits for running coroutines."""


class Background:
    """A running event loop. `close` stops it; nothing may be called afterwards."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._ending = False
        # Reentrant: a signal handler may close the client while its thread begins a call.
        self._gate = threading.RLock()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the loop's thread runs. A forked process has this object but not its thread."""
        return self._thread.is_alive()

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Start a coroutine behind everything that was started before. Returns a function that waits for its result; an interruption of
        that wait, such as Ctrl-C, cancels the coroutine. Raises BadArgument behind the beginning of `close`; the function raises
        Unreachable if the coroutine did not end in its time."""
        with self._gate:
            if self._ending or not self.alive:
                work.close()
                raise BadArgument("the client is closed", "open another one")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)

        def result() -> T:
            try:
                return future.result()
            except concurrent.futures.CancelledError as error:
                raise Unreachable("the client was closed before the call had ended", "repeat it with another one") from error
            except BaseException:  # also on Ctrl-C: a caller that stops waiting does not want the result
                future.cancel()
                raise

        return result

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. An interruption of the wait, such as Ctrl-C, cancels the coroutine."""
        return self.begin(work)()

    def run(self, work: Callable[[], T]) -> T:
        """The result of a function that runs between two steps of the loop."""

        async def step() -> T:
            return work()

        return self.wait(step())

    def soon(self, work: Callable[[], object]) -> None:
        """Run a function between two steps of the loop, without waiting for it."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Give coroutines that other threads wait for a short time to finish, then stop the loop."""
        if self.alive:
            with self._gate:
                # Behind everything that was begun.
                drained = asyncio.run_coroutine_threadsafe(self._drain(), self._loop)
                self._ending = True
            drained.result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @staticmethod
    async def _drain() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=DRAIN_S)
            for task in late:
                task.cancel()
            if late:
                # Otherwise the threads that wait for them would wait for ever.
                await asyncio.wait(late, timeout=DRAIN_S)
        # Wait one step: the results of those tasks are being handed to the threads that wait for them.
        await asyncio.sleep(0)
