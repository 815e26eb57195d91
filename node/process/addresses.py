"""The addresses of nodes as the controller quorum gets them: kind → host:port. Nothing here
connects."""

from __future__ import annotations

from ledgermq.node.controller.controller import ControllerConfig
from ledgermq.node.controller.roster import Roster
from ledgermq.node.replica.hosting.opening import controller_directory
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.proto.host_port import joined


def addresses_of(config: NodeConfig) -> dict[str, dict[str, str]]:
    """The addresses of the nodes in the configuration, for the controller quorum: node → kind →
    host:port. Nodes reach each other at `host`; the address for clients is the advertised one."""
    return {
        name: {
            "client": joined(*at.advertised),
            "peer": joined(at.host, at.peer_port),
            "controller": joined(at.host, at.controller_port),
            "http": joined(at.host, at.http_port),
        }
        for name, at in config.members.items()
    }


def controller_config(config: NodeConfig, secret: bytes, roster: Roster) -> ControllerConfig:
    """The configuration of this node's part in the controller quorum."""
    return ControllerConfig(
        node=config.node,
        addresses=roster.controllers(),
        first_voters=tuple(config.nodes),
        joining=bool(config.join),
        listen=joined(config.listen_host, config.address.controller_port),
        directory=controller_directory(config),
        cluster_id=config.cluster_id,
        secret=secret,
    )
