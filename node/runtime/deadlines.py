"""How long whoever asked will wait, known to all that is done for his answer, so that he is told the reason and not only that time ran out.

A caller's deadline is his own: a node that waits as long for the quorum or for a leader answers in the moment in which nobody listens any
more. Here lives how a service's methods are bounded (`bounded`), and how whoever waits asks for how long (`within`); nothing else.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

MARGIN_PART = 0.2
MARGIN_S_MAX = 0.5
"""So much of a caller's time is kept for the way of the answer."""

S = TypeVar("S", bound=type[Any])


@dataclass(slots=True)
class _Deadline:
    """Of one call. Tasks that were begun for it and live on are bounded no more once it is answered."""

    until: float = math.inf


_CALL: ContextVar[_Deadline] = ContextVar("deadline")


def within(seconds: float) -> float:
    """So long at most, and not longer than whoever asked will wait."""
    deadline = _CALL.get(None)
    if deadline is None or deadline.until == math.inf:
        return seconds
    return max(0.0, min(seconds, deadline.until - asyncio.get_running_loop().time()))


def bounded(service: S) -> S:
    """A servicer class all of whose calls know their callers' deadlines: the methods with capital names, as gRPC has them."""
    for name, method in list(vars(service).items()):
        if name[0].isupper() and asyncio.iscoroutinefunction(method):
            setattr(service, name, _bounded(method))
    return service


def _bounded(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def in_time(self: Any, request: Any, context: Any) -> Any:
        remaining = None if context is None else context.time_remaining()
        if remaining is None:
            return await method(self, request, context)
        deadline = _Deadline(asyncio.get_running_loop().time() + remaining - min(MARGIN_S_MAX, remaining * MARGIN_PART))
        token = _CALL.set(deadline)
        try:
            return await method(self, request, context)
        finally:
            deadline.until = math.inf
            _CALL.reset(token)

    return in_time
