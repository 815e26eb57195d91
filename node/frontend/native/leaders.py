"""Who leads a broker group and where clients reach it: what a redirect says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.node.frontend.ports import Engine
from ledgermq.proto import log_pb2

WAIT_S = 1.0
"""A redirect without a leader sends its client round in circles: so long it waits for one."""


class Leaders:
    """Belongs to the loop's thread. `believed`: the leader of a group as far as this node knows; `endpoint`: where clients reach a node."""

    def __init__(
        self, node: str, engine: Engine, believed: Callable[[str], str | None], endpoint: Callable[[str], str | None]
    ) -> None:
        self._node = node
        self._engine = engine
        self._believed = believed
        self._endpoint = endpoint
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Somebody else may lead now, or somebody at all."""
        self._changed.set()
        self._changed = asyncio.Event()

    def serves(self, broker_group: str) -> bool:
        """Whether this node leads the group and has applied what its terms began with."""
        view = self._engine.views.get(broker_group)
        return view is not None and view.serving

    def redirect(self, broker_group: str) -> log_pb2.Redirect:
        """Where to go, as of now."""
        view = self._engine.views.get(broker_group)
        leader = self._believed(broker_group)
        if leader == self._node and (view is None or not view.serving):
            # Elected a moment ago: it is the place to come to, in a moment.
            leader = self._node if view is not None and view.leader == self._node else None
        found = log_pb2.Redirect(broker_group=broker_group, term=0 if view is None else view.term)
        if leader is not None:
            found.leader, found.endpoint = leader, self._endpoint(leader) or ""
        return found

    async def settled(self, broker_group: str, within_s: float = WAIT_S) -> log_pb2.Redirect:
        """The redirect once a leader is known, or without one after a while."""
        until = asyncio.get_running_loop().time() + within_s
        while not (found := self.redirect(broker_group)).leader:
            changed, left = self._changed, until - asyncio.get_running_loop().time()
            if left <= 0:
                return found
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                # Nobody was elected in time; the client asks again.
                return self.redirect(broker_group)
        return found
