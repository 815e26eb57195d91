"""Propagates a gRPC caller's deadline to the waits nested in its call, so that the answer gives the
reason before the caller gives up.

Without it, a node that waits for a quorum or a leader for its own full time-out answers when the
caller has already gone. `bounded` wraps a method of a service; `within` limits one wait to the time
that the caller has left.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

MARGIN_PART = 0.2
MARGIN_S_MAX = 0.5
"""The share of the caller's time, and the most seconds, reserved for sending the answer."""

Serve = Callable[[Any, Any], Awaitable[Any]]
"""Takes the request and the context of the call."""


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


def bounded(serve: Serve) -> Serve:
    """A method of a service, whose waits observe the deadline of its caller. The context of a call
    without a caller is None."""

    async def in_time(request: Any, context: Any) -> Any:
        remaining = None if context is None else context.time_remaining()
        if remaining is None:
            return await serve(request, context)
        deadline = _Deadline(
            asyncio.get_running_loop().time()
            + remaining
            - min(MARGIN_S_MAX, remaining * MARGIN_PART)
        )
        token = _CALL.set(deadline)
        try:
            return await serve(request, context)
        finally:
            deadline.until = math.inf
            _CALL.reset(token)

    return in_time
