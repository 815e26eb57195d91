"""An event loop in a thread of its own, for callers that have none: what `Consumer` and `Producer` run their asynchronous halves on.

The caller's thread waits; whatever belongs to the loop runs in the loop's thread alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LAST_WORDS_S = 1.0


class Background:
    """A running loop. `close` ends it; nothing may be called afterwards."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """A forked process has the object and not the thread."""
        return self._thread.is_alive()

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Hand a coroutine over, behind everything that was handed over before. What comes back waits for its result; whatever interrupts
        that, such as Ctrl-C, cancels the coroutine."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)

        def result() -> T:
            try:
                return future.result()
            except BaseException:  # whoever gave up waiting, by Ctrl-C too, wants no result any more
                future.cancel()
                raise

        return result

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Whatever interrupts the caller, such as Ctrl-C, cancels it."""
        return self.begin(work)()

    def run(self, work: Callable[[], T]) -> T:
        """The result of a function that runs between two steps of the loop."""

        async def step() -> T:
            return work()

        return self.wait(step())

    def soon(self, work: Callable[[], object]) -> None:
        """Run a function between two steps of the loop; nobody waits for it."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """What other threads wait for has a little time left to end; then the loop does."""
        if self.alive:
            self.wait(self._last_words())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @staticmethod
    async def _last_words() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=LAST_WORDS_S)
        # The outcomes of those tasks are on their way to the threads that wait for them.
        await asyncio.sleep(0)
