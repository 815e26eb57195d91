"""Propagates a gRPC caller's deadline to the waits nested in its call, so that the answer gives the
reason before the caller gives up.

Without it, a node that waits for a quorum or a leader for its own full time-out answers when the
caller has already gone. `bounded` decorates a servicer class; `within` limits one wait to the time
that the caller has left.
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
"""The share of the caller's time, and the most seconds, reserved for sending the answer."""

S = TypeVar("S", bound=type[Any])


@dataclass(slots=True)
class _Deadline:
    """The deadline of one call, in seconds of the event loop's clock. Once the call is answered,
    tasks that it started and that live on are no longer bounded."""

    until: float = math.inf


_CALL: ContextVar[_Deadline] = ContextVar("deadline")


def within(seconds: float) -> float:
    """`seconds`, or the time that the current caller will still wait, whichever is shorter."""
    deadline = _CALL.get(None)
    if deadline is None or deadline.until == math.inf:
        return seconds
    return max(0.0, min(seconds, deadline.until - asyncio.get_running_loop().time()))


def bounded(service: S) -> S:
    """Makes the methods of a servicer class observe their callers' deadlines. They are recognised
    by their capital names, as gRPC has them."""
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
        deadline = _Deadline(
            asyncio.get_running_loop().time()
            + remaining
            - min(MARGIN_S_MAX, remaining * MARGIN_PART)
        )
        token = _CALL.set(deadline)
        try:
            return await method(self, request, context)
        finally:
            deadline.until = math.inf
            _CALL.reset(token)

    return in_time
