"""An event loop in a thread of its own, for callers that have none: what `Consumer` is `AsyncConsumer` on.

The caller's thread waits; whatever belongs to the loop runs in the loop's thread alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Whatever interrupts the caller, such as Ctrl-C, cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def run(self, work: Callable[[], T]) -> T:
        """The result of a function that runs between two steps of the loop."""

        async def step() -> T:
            return work()

        return self.wait(step())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
