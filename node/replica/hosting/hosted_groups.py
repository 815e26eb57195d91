"""Opens and mends the real directories of a node's broker groups, one at a time or all of them when the node starts.

It makes no decision about bytes: `node/replica/shipping/repair.py` decides whether a repair can help, and
`node/replica/shipping/installation.py` what an installation does. A `DirectoryOpener` runs on its group's life thread (`hosting.py`),
except for the first opening.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ledgermq.node.broker.ports import Unreadable
from ledgermq.node.replica.background.digests import DIGESTS_FILE
from ledgermq.node.replica.hosting.hosting import ReplicaHost
from ledgermq.node.replica.hosting.opening import NeedsRepair, open_group, root_of, wanted_identity
from ledgermq.node.replica.hosting.ports import Broken, State
from ledgermq.node.replica.hosting.replica_assignments import AgreedGroups, Assignment, assignments_of, effective
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.hosting.shipping_thread import ShippingThread
from ledgermq.node.replica.shipping.installation import Install
from ledgermq.node.replica.shipping.range_repair import RangeRepair
from ledgermq.node.replica.shipping.repair import repair_needed
from ledgermq.node.replica.shipping.shipping import Shipper
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_cluster import BrokerGroup
from ledgermq.proto.types import Identity
from ledgermq.storage import identity as identity_files
from ledgermq.storage.disk import Disk
from ledgermq.storage.tiered.object_store import ObjectStore

SESSION_BITS = 62


class DirectoryOpener:
    """The `ReplicaOpener` of a group over its real directory."""

    def __init__(self, config: NodeConfig, group: BrokerGroup, disk: Disk, store: ObjectStore | None = None) -> None:
        """`store`: the object store of tiered storage, if there is one."""
        self._config = config
        self._store = store
        self._group = group
        self._disk = disk
        self._root = root_of(config, group.name)
        self._last: OpenReplica | None = None
        """The group as it last ran in this process."""

    def open(self) -> OpenReplica | Broken:
        try:
            self._last = open_group(self._config, self._group, self._disk)
            return self._last
        except NeedsRepair as needs:
            return self._mend(needs.failure)

    def repair(self, damage: Exception) -> Broken:
        return self._mend(damage.failure if isinstance(damage, Unreadable) else damage)

    def _mend(self, failure: Exception) -> Broken:
        """The repair of a damaged directory. Raises the failure if no repair can help, or there is no peer."""
        others = self._others()
        if not others:
            raise failure
        repair = repair_needed(
            self._disk,
            self._root,
            wanted_identity(self._config, self._group),
            failure,
            others=others,
            session=_session(),
            now_ns=time.monotonic_ns(),
        )
        if repair is None:
            raise failure
        # Digests were computed from the damaged files, so they must be computed again.
        note = f"{self._root}/state/{DIGESTS_FILE}"
        if self._disk.exists(note):
            self._disk.unlink(note)
        return Broken(State.REPAIRING, str(failure), repair, lambda: repair.floor_pos)

    def install(self, source: str | None, floor_pos: int, reason: str) -> Broken:
        install = Install.begin(
            self._disk,
            self._root,
            wanted_identity(self._config, self._group),
            others=self._others(source),
            source=source,
            floor_pos=floor_pos,
            session=_session(),
            now_ns=time.monotonic_ns(),
            store=self._store,
        )
        return Broken(State.INSTALLING, reason, install, lambda: floor_pos)

    def range_repair(self, first_index: int, last_index: int) -> RangeRepair:
        assert self._last is not None, "the group runs"
        replicator = self._last.replicator
        return RangeRepair(
            self._disk,
            self._root,
            self._last.store.identity,
            first_index,
            last_index,
            others=self._others(),
            rule=replicator.members.rule,
            voters=replicator.members.voters,
            master=replicator.leader,
            committed_index=replicator.commit_index,
            session=_session(),
            now_ns=time.monotonic_ns(),
            now_ms=time.time_ns() // 1_000_000,
        )

    def _others(self, source: str | None = None) -> list[str]:
        """The nodes to contact: the members in the configuration, and those that the log named last."""
        known = {*self._group.replicas, *self.members}
        return sorted((known | ({source} if source is not None else set())) - {self._config.node})

    @property
    def members(self) -> tuple[str, ...]:
        """All nodes that the log named when it was last open in this process."""
        return self._last.replicator.members.nodes if self._last is not None else ()

    @property
    def root(self) -> str:
        """The group's directory."""
        return self._root


@dataclass(frozen=True, slots=True)
class Hosted:
    """One broker group of this node, with the facts about it that the node needs besides its turns."""

    group: ReplicaHost
    identity: Identity
    state_directory: str
    others: frozenset[str] | None
    """The other founders of the group according to the configuration; None if this node joins the group."""
    members: tuple[str, ...] = ()
    """All nodes that the log named when it was opened; empty if it could not be opened."""


def open_groups(config: NodeConfig, disk: Disk, store: ObjectStore | None = None) -> Mapping[str, Hosted]:
    """Open every broker group that the configuration assigns to this node. A group that was never here is created; one that peers can mend
    starts in the state `repairing`. Raises FatalError, StorageError."""
    return open_assigned(config, assignments_of(config, AgreedGroups())[0], disk, store)


def open_assigned(
    config: NodeConfig, assigned: Mapping[str, Assignment], disk: Disk, store: ObjectStore | None = None
) -> Mapping[str, Hosted]:
    """Like `open_groups`, for the given assignments, which include those of the controller quorum."""
    config = effective(config, assigned)
    return {name: open_one(config, assignment.group, disk, store) for name, assignment in assigned.items()}


def open_one(config: NodeConfig, group: BrokerGroup, disk: Disk, store: ObjectStore | None = None) -> Hosted:
    """Open one broker group; a failure leaves nothing open. Raises as `open_groups`."""
    opener = DirectoryOpener(config, group, disk, store)
    shipping_handler = ShippingThread(group.name, lambda: Shipper(group.name, config.node, disk, opener.root))
    executor = ThreadPoolExecutor(1, thread_name_prefix=f"life-{group.name}")
    hosted = ReplicaHost(group.name, config.node, opener, shipping_handler, executor)
    try:
        hosted.open_first(time.monotonic_ns())
    except BaseException:
        # The group's threads must not outlive a failed attempt.
        hosted.close()
        raise
    identity = identity_files.read_identity(disk, opener.root)
    assert identity is not None, "a directory that was opened or is being repaired has an identity"
    others = None if config.joins(group.name) else frozenset(group.replicas) - {config.node}
    return Hosted(hosted, identity, f"{opener.root}/state", others, opener.members)


def _session() -> int:
    """A random number for one rebuild, so that answers to an earlier one are recognised."""
    return random.SystemRandom().getrandbits(SESSION_BITS)
