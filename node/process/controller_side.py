"""This node's part in the controller quorum, and what follows from it alone: the placement of
replicas, the way to their leaders, appointments of HA groups."""

from __future__ import annotations

import asyncio
import contextlib
import time

from ledgermq.node.controller.broker_groups import spec_settings
from ledgermq.node.controller.controller import Controller
from ledgermq.node.controller.ha_control import HaControl
from ledgermq.node.controller.placement import Placement
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.process.addresses import addresses_of, controller_config
from ledgermq.node.process.replica_side import ReplicaSide
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.status import LedgerError

ANNOUNCE_RETRY_S = 1.0

log = logs.get_logger()


class ControllerSide:
    """The controller quorum as one node uses it."""

    def __init__(self, config: NodeConfig, secret: bytes, replicas: ReplicaSide) -> None:
        self._config = config
        self._replicas = replicas
        engine = replicas.engine
        self.controller = Controller(controller_config(config, secret, replicas.roster))
        self.placement = Placement(
            {group.name: group.replicas for group in config.cluster.groups},
            lambda: self.controller.state.broker_groups,
            engine.views,
        )
        self.forwarder = Forwarder(
            config.node, self.placement, engine, replicas.links, time.monotonic_ns
        )
        self.ha_control = HaControl(engine, self.controller, replicas.groups)

    def unknown_groups(self) -> list[str]:
        """The broker groups hosted here that the quorum does not know yet."""
        known = self.controller.state.broker_groups
        return [group for group in self._replicas.hosted if group not in known]

    async def catch_up(self) -> None:
        """Catch up with everything agreed so far, if the quorum answers."""
        with contextlib.suppress(LedgerError):
            await self.controller.barrier()

    async def announce(self) -> None:
        """Announce this node to the controller quorum; this may wait until a majority of the nodes
        has started."""
        config, roster = self._config, self._replicas.roster
        nodes = addresses_of(config)
        groups = {group.name: group.replicas for group in config.cluster.groups}
        specs = {group.name: spec_settings(group) for group in config.cluster.groups}
        while True:
            try:
                if (own := roster.moved) is not None:
                    await self.controller.set_node(config.node, own)
                    roster.has_moved()
                    await self._replicas.save_roster()
                # The configuration of a joining node may be incomplete or outdated for the rest of
                # the cluster.
                if not config.join:
                    await self._begin_at_newest_level()
                    await self.controller.announce(nodes, groups, specs)
                return
            except LedgerError as error:
                log.warning("not announced to the controller yet", reason=str(error))
                await asyncio.sleep(ANNOUNCE_RETRY_S)

    async def _begin_at_newest_level(self) -> None:
        """Give a cluster that is being formed the newest feature level: there is no former release
        to go back to. A node whose program reads less cannot take part in it. Raises
        LedgerError."""
        if self._replicas.forms_cluster:
            await self.controller.barrier()
            while (
                not self.controller.state.broker_groups and self.controller.state.level < LEVEL_MAX
            ):
                await self.controller.raise_level(self.controller.state.level + 1)
                await self.controller.barrier()
