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
    """A running event loop. `close` stops it; nothing may be called afterwards.

    Nothing can wait in the loop's own thread for what only that thread does: there `begin`, `wait`
    and `close` raise BadArgument at once.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._ending = self._stopping = False
        # Reentrant: a signal handler may close the client while its thread begins a call.
        self._gate = threading.RLock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Run the loop until `close`. A callback of the application that raises SystemExit or
        KeyboardInterrupt ends `run_forever`; the coroutines that other threads wait for must go
        on."""
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException as error:
                self._loop.call_exception_handler(
                    {
                        "message": "a callback of the application ended by an exception",
                        "exception": error,
                    }
                )

    @property
    def alive(self) -> bool:
        """Whether the loop's thread runs. A forked process has this object but not its thread."""
        return self._thread.is_alive()

    @property
    def here(self) -> bool:
        """Whether the caller is the loop's own thread."""
        return threading.current_thread() is self._thread

    def check_may_wait(self) -> None:
        """Raises BadArgument in the loop's own thread."""
        if self.here:
            raise BadArgument(
                "a callback cannot wait for the client that calls it",
                "make this call in another thread",
            )

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Start a coroutine behind everything that was started before. Returns a function that
        waits for its result; an interruption of that wait, such as Ctrl-C, cancels the coroutine.
        Raises BadArgument, also behind the beginning of `close`; the function raises Unreachable if
        the coroutine did not end in its time."""
        try:
            self.check_may_wait()
            with self._gate:
                if self._ending or not self.alive:
                    raise BadArgument("the client is closed", "open another one")
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BadArgument:
            work.close()
            raise

        def result() -> T:
            try:
                return future.result()
            except concurrent.futures.CancelledError as error:
                raise Unreachable(
                    "the client was closed before the call had ended", "repeat it with another one"
                ) from error
            # also on Ctrl-C: a caller that stops waiting does not want the result
            except BaseException:
                future.cancel()
                raise

        return result

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. An interruption of the wait, such as Ctrl-C, cancels the
        coroutine. Raises BadArgument."""
        return self.begin(work)()

    def run(self, work: Callable[[], T]) -> T:
        """The result of a function that runs between two steps of the loop; called in such a step,
        it runs at once."""
        if self.here:
            return work()

        async def step() -> T:
            return work()

        return self.wait(step())

    def soon(self, work: Callable[[], object]) -> None:
        """Run a function between two steps of the loop, without waiting for it."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Give coroutines that other threads wait for a short time to finish, then stop the loop.
        Raises BadArgument."""
        if self.alive:
            self.check_may_wait()
            with self._gate:
                # Behind everything that was begun.
                drained = asyncio.run_coroutine_threadsafe(self._drain(), self._loop)
                self._ending = True
            drained.result()
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @staticmethod
    async def _drain() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=DRAIN_S)
            for task in late:
                # Its thread would wait for ever for a loop that has stopped.
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=DRAIN_S)
        # Wait one step: the results of those tasks are being handed to the threads that wait for
        # them.
        await asyncio.sleep(0)
