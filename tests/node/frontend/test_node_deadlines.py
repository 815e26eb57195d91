"""A node answers before the caller's deadline; background work is not bounded by it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ledgermq.node.runtime.deadlines import bounded, within


class Service:
    """Answers how long it may take."""

    def __init__(self) -> None:
        self.later: asyncio.Task[float] | None = None
        self.answered = asyncio.Event()

    async def ask(self, request: Any, context: Any) -> float:
        self.later = asyncio.create_task(self._afterwards())
        return within(5.0)

    async def _afterwards(self) -> float:
        await self.answered.wait()
        return within(5.0)


def caller(remaining_s: float | None) -> Any:
    return SimpleNamespace(time_remaining=lambda: remaining_s)


def asked(context: Any) -> tuple[float, float]:
    async def run() -> tuple[float, float]:
        service = Service()
        during = await bounded(service.ask)(None, context)
        service.answered.set()
        assert service.later is not None
        return during, await service.later

    return asyncio.run(run())


def test_a_caller_is_answered_before_he_gives_up() -> None:
    """The answer comes early enough for the way back; a longer deadline, or none, changes
    nothing."""
    during, afterwards = asked(caller(2.0))
    assert 1.4 < during <= 1.6 and afterwards == 5.0
    assert asked(caller(60.0)) == asked(caller(None)) == asked(None) == (5.0, 5.0)


def test_deadline_outside_of_calls_is_unbounded() -> None:
    """Nodes ask for themselves as well."""
    assert within(7.0) == 7.0


def test_expired_deadline_leaves_zero_seconds() -> None:
    """Never less."""
    assert asked(caller(0.0))[0] == 0.0
