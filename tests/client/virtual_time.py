"""An event loop on virtual time: when no callback is ready, its clock jumps to the next timer, so
waiting is free and runs are repeatable.

Only for code that waits on the loop's clock and never on a file descriptor.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

LIMIT_S = 3600.0


class _Selector(selectors.PollSelector):
    """Uses poll, because `select` does not support descriptors above 1,023, which a long test
    process may have."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "the loop waits without any timer"
        found = super().select(0)
        if not found:
            self.now += max(0.0, timeout)
            assert self.now < LIMIT_S, "the awaited event did not occur in time"
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at time 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now
