"""Waits until what the controller quorum agreed on is in force on this node: creating, changing and
deleting return then, so that the next call of the same client finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.node.runtime.deadlines import within
from ledgermq.proto.status import Code, fail

IN_FORCE_WITHIN_S = 5.0
LOOK_AGAIN_S = 0.01


async def in_force(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds. Raises LedgerError after IN_FORCE_WITHIN_S."""
    limit = asyncio.get_running_loop().time() + within(IN_FORCE_WITHIN_S)
    while not condition():
        if asyncio.get_running_loop().time() > limit:
            text = (
                "the quorum agreed, but the change is not in force in every broker group yet;"
                " check `ledgermq status`, then retry"
            )
            raise fail(Code.PROXY_TIMEOUT, text)
        await asyncio.sleep(LOOK_AGAIN_S)
