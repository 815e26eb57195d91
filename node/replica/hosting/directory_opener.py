"""Opens, repairs and installs the directory of one broker group, on any disk: the `ReplicaOpener`
of the node and of the simulator.

It makes no decision about bytes: `node/replica/shipping/repair.py` decides whether a repair can
help, and `node/replica/shipping/installation.py` what an installation does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ledgermq.node.broker.ports import Unreadable
from ledgermq.node.replica.background.digests import DIGESTS_FILE
from ledgermq.node.replica.hosting.ports import Broken, State
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.shipping.installation import Install
from ledgermq.node.replica.shipping.range_repair import RangeRepair
from ledgermq.node.replica.shipping.repair import repair_needed
from ledgermq.proto.status import ExitCode
from ledgermq.proto.types import Identity
from ledgermq.storage.files.errors import Damaged, LogFenced
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.tiered.ports import ObjectStore


class DirectoryOpener:
    """The `ReplicaOpener` of a group over its directory. Runs on the group's executor, except for
    the first opening."""

    install_type = Install

    def __init__(
        self,
        node: str,
        replicas: Iterable[str],
        disk: Disk,
        root: str,
        open_group: Callable[[], OpenReplica],
        *,
        wanted: Callable[[], Identity],
        session: Callable[[], int],
        clock_ns: Callable[[], int],
        now_ms: Callable[[], int],
        store: ObjectStore | None = None,
    ) -> None:
        """`replicas`: where the group has replicas according to the configuration; `open_group`
        raises Damaged, Unreadable or LogFenced for damage that peers may mend, and leaves the
        directory closed; `wanted`: the identity that the directory must have; `session`: random
        numbers; `clock_ns`: the clock of the turns; `now_ms`: the wall clock; `store`: the object
        store of tiered storage, if there is one."""
        self._node = node
        self._replicas = frozenset(replicas)
        self._disk = disk
        self._root = root
        self._open_group = open_group
        self._wanted = wanted
        self._session = session
        self._clock_ns = clock_ns
        self._now_ms = now_ms
        self._store = store
        self._last: OpenReplica | None = None
        """The group as it last ran in this process."""

    def open(self) -> OpenReplica | Broken:
        try:
            self._last = self._open_group()
            return self._last
        except (Damaged, Unreadable) as damage:
            return self.repair(damage)
        except LogFenced as fenced:
            if fenced.exit_code != ExitCode.DAMAGED:
                raise
            return self.repair(fenced)

    def repair(self, damage: Exception) -> Broken:
        return self._mend(damage.failure if isinstance(damage, Unreadable) else damage)

    def _mend(self, failure: Exception) -> Broken:
        """The repair of a damaged directory. Raises the failure if no repair can help, or there is
        no peer."""
        others = self._others()
        if not others:
            raise failure
        repair = repair_needed(
            self._disk,
            self._root,
            self._wanted(),
            failure,
            others=others,
            session=self._session(),
            now_ns=self._clock_ns(),
        )
        if repair is None:
            raise failure
        # Digests were computed from the damaged files, so they must be computed again.
        note = f"{self._root}/state/{DIGESTS_FILE}"
        if self._disk.exists(note):
            self._disk.unlink(note)
        return Broken(State.REPAIRING, str(failure), repair, lambda: repair.floor_pos)

    def install(self, source: str | None, floor_pos: int, reason: str) -> Broken:
        install = self.install_type.begin(
            self._disk,
            self._root,
            self._wanted(),
            others=self._others(source),
            source=source,
            floor_pos=floor_pos,
            session=self._session(),
            now_ns=self._clock_ns(),
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
            session=self._session(),
            now_ns=self._clock_ns(),
            now_ms=self._now_ms(),
        )

    def _others(self, source: str | None = None) -> list[str]:
        """The nodes to contact: the members in the configuration, and those that the log named
        last."""
        return sorted({*self._replicas, *self.members, source or self._node} - {self._node})

    @property
    def members(self) -> tuple[str, ...]:
        """All nodes that the log named when it was last open in this process."""
        return self._last.replicator.members.nodes if self._last is not None else ()
