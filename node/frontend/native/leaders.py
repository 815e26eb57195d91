"""The leader of a broker group and its client endpoint, as a redirect reports them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.node.frontend.ports import Engine
from ledgermq.proto import log_pb2

WAIT_S = 1.0
"""How long a redirect waits for a leader to be known: without one the client would only ask
again."""


class Leaders:
    """Belongs to the loop's thread. `believed`: a group's leader as far as this node knows;
    `endpoint`: a node's address for clients."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        believed: Callable[[str], str | None],
        endpoint: Callable[[str], str | None],
    ) -> None:
        self._node = node
        self._engine = engine
        self._believed = believed
        self._endpoint = endpoint
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Wake waiting redirects: the leader of some group may have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def serves(self, broker_group: str) -> bool:
        """Whether this node leads the group and has applied the first record of its term."""
        view = self._engine.views.get(broker_group)
        return view is not None and view.serving

    def redirect(self, broker_group: str) -> log_pb2.Redirect:
        """The redirect, from what is known now."""
        view = self._engine.views.get(broker_group)
        leader = self._believed(broker_group)
        if leader == self._node and (view is None or not view.serving):
            # If its own view names this node, it was just elected and serves soon; otherwise the
            # hint is outdated.
            leader = self._node if view is not None and view.leader == self._node else None
        answer = log_pb2.Redirect(broker_group=broker_group, term=0 if view is None else view.term)
        if leader is not None:
            answer.leader, answer.endpoint = leader, self._endpoint(leader) or ""
        return answer

    async def settled(self, broker_group: str, within_s: float = WAIT_S) -> log_pb2.Redirect:
        """The redirect, as soon as a leader is known; without one after `within_s`."""
        until = asyncio.get_running_loop().time() + within_s
        while not (redirect := self.redirect(broker_group)).leader:
            changed, left = self._changed, until - asyncio.get_running_loop().time()
            if left <= 0:
                return redirect
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                # No leader was elected in time; the client asks again.
                return self.redirect(broker_group)
        return redirect
