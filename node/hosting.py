"""The broker groups of one node, and what the node has to know of each besides its turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq.node.config import NodeConfig
from ledgermq.node.opening import open_group
from ledgermq.node.running import RunningGroup
from ledgermq.proto.types import Identity
from ledgermq.storage.disk import Disk


@dataclass(frozen=True, slots=True)
class Hosted:
    """One broker group of this node."""

    group: RunningGroup
    identity: Identity
    state_directory: str
    others: frozenset[str]
    """The group's other voters: only when each of them has met this directory does the replica take part."""


def open_groups(config: NodeConfig, disk: Disk) -> Mapping[str, Hosted]:
    """Open every broker group this node keeps a replica of; a group that was never here is created. Raises FatalError, StorageError."""
    found = {}
    for group in config.hosted_groups:
        opened = open_group(config, group, disk)
        others = frozenset(group.replicas) - {config.node}
        found[group.name] = Hosted(opened, opened.store.identity, opened.store.state_directory, others)
    return found
