"""Tells the groups that this node leads which leader they prefer: this node's configuration takes
precedence over the cluster's, and wrong clocks over both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ledgermq.node.broker.calls.member_calls import Prefer
from ledgermq.node.frontend.ports import Engine, Metadata
from ledgermq.node.process.node_clock import NodeClock
from ledgermq.node.replica.peers.links import Link
from ledgermq.node.runtime.config import NodeConfig

CLOCK_EVERY_S = 1.0


class PreferredLeaders:
    """`hurry` has the disks checked at once: a new leader must know whose disks are full before it
    hands over."""

    def __init__(
        self,
        config: NodeConfig,
        clock: NodeClock,
        engine: Engine,
        metadata: Metadata,
        hurry: Callable[[], None],
    ) -> None:
        self._node = config.node
        self._configured = {own.name: own.preferred_leader for own in config.cluster.groups}
        self._clock = clock
        self._engine = engine
        self._metadata = metadata
        self._hurry = hurry
        self._told: dict[str, tuple[int, str | None]] = {}
        """Group led here → the term, and the preferred leader that it was last told."""

    def tell(self, group: str) -> None:
        """Tell a group its preferred leader, if this node leads it and it does not know."""
        spec, view = self._metadata.state.specs.get(group), self._engine.views.get(group)
        preferred = self._configured.get(group) or (None if spec is None else spec.leader_wanted)
        if view is None or view.leader != self._node:
            return
        voters = () if view.members is None else view.members.voters
        wanted = (view.term, self._clock.leader_instead(preferred, voters))
        if self._told.get(group) != wanted:
            self._told[group] = wanted
            self._hurry()
            self._engine.notify(group, Prefer(wanted[1]))

    def tell_all(self) -> None:
        """Tell every group here."""
        for group in self._engine.views:
            self.tell(group)

    async def keep_clock(self, links: Mapping[str, Link]) -> None:
        """Exchange clocks with the peers until cancelled. If a clock is off now, or right again,
        another leader may be preferred."""
        while True:
            self._clock.ask(links.values())
            self._clock.look()
            self.tell_all()
            await asyncio.sleep(CLOCK_EVERY_S)
