"""Opens a node's broker groups from its real directories, one at a time or all of them when the
node starts."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ledgermq.node.replica.hosting.directory_opener import DirectoryOpener
from ledgermq.node.replica.hosting.hosting import ReplicaHost
from ledgermq.node.replica.hosting.opening import open_group, root_of, wanted_identity
from ledgermq.node.replica.hosting.replica_assignments import (
    AgreedGroups,
    Assignment,
    assignments_of,
    effective,
)
from ledgermq.node.replica.hosting.shipping_jobs import ShippingJobs
from ledgermq.node.replica.shipping.shipping import Shipper
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_cluster import BrokerGroup
from ledgermq.proto.types import Identity
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.state import identity as identity_files
from ledgermq.storage.tiered.ports import ObjectStore

SESSION_BITS = 62


@dataclass(frozen=True, slots=True)
class Hosted:
    """One broker group of this node, with the facts about it that the node needs besides its
    turns."""

    group: ReplicaHost
    identity: Identity
    state_directory: str
    others: frozenset[str] | None
    """The other founders of the group according to the configuration; None if this node joins the
    group."""
    members: tuple[str, ...] = ()
    """All nodes that the log named when it was opened; empty if it could not be opened."""


def open_groups(
    config: NodeConfig, disk: Disk, store: ObjectStore | None = None
) -> Mapping[str, Hosted]:
    """Open every broker group that the configuration assigns to this node. A group that was never
    here is created; one that peers can mend starts in the state `repairing`. Raises FatalError,
    StorageError."""
    return open_assigned(config, assignments_of(config, AgreedGroups())[0], disk, store)


def open_assigned(
    config: NodeConfig,
    assigned: Mapping[str, Assignment],
    disk: Disk,
    store: ObjectStore | None = None,
) -> Mapping[str, Hosted]:
    """Like `open_groups`, for the given assignments, which include those of the controller
    quorum."""
    config = effective(config, assigned)
    return {
        name: open_one(config, assignment.group, disk, store)
        for name, assignment in assigned.items()
    }


def open_one(
    config: NodeConfig, group: BrokerGroup, disk: Disk, store: ObjectStore | None = None
) -> Hosted:
    """Open one broker group; a failure leaves nothing open. Raises as `open_groups`."""
    root = root_of(config, group.name)
    opener = DirectoryOpener(
        config.node,
        group.replicas,
        disk,
        root,
        lambda: open_group(config, group, disk),
        wanted=lambda: wanted_identity(config, group),
        session=_session,
        clock_ns=time.monotonic_ns,
        now_ms=lambda: time.time_ns() // 1_000_000,
        store=store,
    )
    serving = ShippingJobs(
        group.name,
        lambda: Shipper(group.name, config.node, disk, root),
        executor=ThreadPoolExecutor(1, thread_name_prefix=f"ship-{group.name}"),
        clock_ns=time.monotonic_ns,
    )
    executor = ThreadPoolExecutor(1, thread_name_prefix=f"life-{group.name}")
    hosted = ReplicaHost(group.name, config.node, opener, serving, executor)
    try:
        hosted.open_first(time.monotonic_ns())
    except BaseException:
        # The group's threads must not outlive a failed attempt.
        hosted.close()
        raise
    identity = identity_files.read_identity(disk, root)
    assert identity is not None, "a directory that was opened or is being repaired has an identity"
    others = None if config.joins(group.name) else frozenset(group.replicas) - {config.node}
    return Hosted(hosted, identity, f"{root}/state", others, opener.members)


def _session() -> int:
    """A random number for one rebuild, so that answers to an earlier one are recognised."""
    return random.SystemRandom().getrandbits(SESSION_BITS)
