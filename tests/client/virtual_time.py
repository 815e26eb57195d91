"""An event loop on virtual time: when nothing is ready its clock jumps to the next timer, so hours of waiting cost nothing and runs repeat.

Only for code that waits on the loop's own clock and never on a descriptor.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

PATIENCE_S = 3600.0


class _Selector(selectors.PollSelector):
    """Not `select`: that one cannot see descriptors above 1,023, which a long test process has."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen any more"
        found = super().select(0)
        if not found:
            self.now += max(0.0, timeout)
            assert self.now < PATIENCE_S, "what is waited for does not happen"
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at time 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now
