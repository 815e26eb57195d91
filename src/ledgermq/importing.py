"""Import of a RocketMQ store root as a cluster: combines the reading and writing of `storage` with
the state that `node` derives.

Everything is written to directories whose names end in `.importing`, and renamed when it is
complete and audited. A crash at any moment leaves either nothing, or directories that the same
command removes before it starts again.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ledgermq.audit.run.jobs import INCOMPLETE, PASS, Audit, audit
from ledgermq.node.broker.imported import first_snapshot
from ledgermq.node.broker.rederiving import make_again
from ledgermq.node.controller.seeding import commands_for, state_after, write_journal
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.config_cluster import BrokerGroup
from ledgermq.proto.types import Identity
from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.backups.trees import require_empty, require_room, sync_tree, walk
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.real_disk import HeldFile, RealDisk
from ledgermq.storage.importing.checking import differences
from ledgermq.storage.importing.settings import Settings
from ledgermq.storage.importing.survey import Survey
from ledgermq.storage.importing.writing import (
    Written,
    create,
    origin_of,
    queue_begins,
    raft_queue,
    write,
)
from ledgermq.storage.queues.consume_queue import Minimum
from ledgermq.storage.state.identity import NodeIdentity, mint, write_identity, write_node
from ledgermq.storage.state.snapshot import PREVIOUS_FILE, SNAPSHOT_FILE

ASIDE = ".importing"
MARKER = "importing"
ENTRY_SPARE_BYTES = 160
"""Upper bound of the space that an entry needs beyond its message, including its units in derived
files."""


@dataclass(frozen=True, slots=True)
class Place:
    """One node directory to create: `aside` until it is complete, then `final`."""

    node: str
    aside: str
    final: str


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to create. `config`: of any of its nodes; `renames`: (aside, final) of the
    directories to rename at the end."""

    config: NodeConfig
    group: str
    places: tuple[Place, ...]
    renames: tuple[tuple[str, str], ...]

    @property
    def broker_group(self) -> BrokerGroup:
        """The broker group's configuration."""
        return next(group for group in self.config.cluster.groups if group.name == self.group)


@dataclass(frozen=True, slots=True)
class Imported:
    """The result."""

    written: Written
    differences: tuple[str, ...]
    audit: Audit

    partial: bool
    """Whether an audit has too little to compare, because not every replica was created here, or
    there is only one."""

    @property
    def good(self) -> bool:
        """Whether the log holds what was read, and the audit found nothing."""
        alone = self.partial and self.audit.verdict == INCOMPLETE and not self.audit.findings
        return not self.differences and (self.audit.verdict == PASS or alone)


def begin_aside(final: str) -> str:
    """Create an empty directory beside `final`, which must be missing or empty; removes the files
    of an interrupted import. Raises Refused, OSError."""
    disk = RealDisk()
    require_empty(disk, final)
    aside = f"{final.rstrip('/')}{ASIDE}"
    if disk.exists(aside):
        if not disk.exists(f"{aside}/{MARKER}"):
            raise Refused(
                f"{aside} exists, but not from an interrupted import",
                "move it away, or choose another --data",
            )
        shutil.rmtree(aside)
    disk.mkdirs(aside)
    disk.replace_file(f"{aside}/{MARKER}", b"unfinished: the same command begins again\n")
    return aside


def require_space(target: Target, found: Survey) -> None:
    """Raises Refused if the file systems have too little free space."""
    group = target.broker_group
    log = found.kept_bytes + found.kept * ENTRY_SPARE_BYTES + 2 * group.data_file_bytes
    by_device: dict[int, int] = {}
    for place in target.places:
        parent = os.path.dirname(os.path.abspath(place.aside))
        device = os.stat(parent).st_dev
        by_device[device] = by_device.get(device, 0) + log
        require_room(RealDisk(), parent, by_device[device])


def carry_out(
    target: Target,
    found: Survey,
    settings: Settings,
    *,
    skip_damaged: bool,
    written_bytes: Callable[[int], None],
    say: Callable[[str], None],
) -> Imported:
    """Create every directory under its temporary name. Raises Refused, StorageError, OSError."""
    disk, config = RealDisk(), target.config
    members = target.broker_group.replicas
    commands = commands_for(
        target.group, members, list(config.nodes), settings.topics, settings.groups
    )
    state = state_after(commands)
    numbered = [
        replace(topic, incarnation=state.topics[topic.namespace, topic.name].incarnation)
        for topic in settings.topics
    ]
    settings = replace(settings, topics=numbered)
    first, *others = target.places
    identity = _identity(target, first.node)
    root = f"{first.aside}/{target.group}"
    origin = origin_of(identity, members, config.cluster.created_ms)
    disk.mkdirs(first.aside)
    create(disk, root, identity, origin)
    written = write(
        disk, root, identity, found, settings, skip_damaged=skip_damaged, progress=written_bytes
    )
    say("deriving consume queues and state")
    begins: dict[str, dict[int, Minimum]] = {
        topic: {queue: (offset, None) for queue, offset in queues.items()}
        for topic, queues in queue_begins(found).items()
    }
    raft_topic, minimum = raft_queue(origin)
    begins[raft_topic] = {0: minimum}
    snapshot = first_snapshot(
        log_id=identity.log_id,
        begin=origin.begin,
        end_pos=origin.entry_bytes,
        voters=members,
        created_ms=config.cluster.created_ms,
        minimums=begins,
    )
    sealed_json.write(disk, f"{root}/state/{SNAPSHOT_FILE}", snapshot)
    index = make_again(disk, root, identity)
    assert index == written.end_index, (
        f"the state was derived up to entry {index} of {written.end_index}"
    )
    # The state before the first entry is stored nowhere else. One snapshot generation keeps it, so
    # that an audit can derive the rest.
    sealed_json.write(disk, f"{root}/state/{PREVIOUS_FILE}", snapshot)
    say("reading the log back")
    differ = tuple(differences(disk, root, identity, written))
    for place in others:
        say(f"copying to node {place.node}")
        _copy(disk, root, first.node, target, place)
    for place in target.places:
        write_journal(disk, f"{place.aside}/controller", list(config.nodes), commands)
        write_node(
            disk,
            place.aside,
            NodeIdentity(config.cluster_id, place.node, config.cluster.created_ms),
        )
    say("auditing")
    partial = len(target.places) < max(2, len(members))
    return Imported(written, differ, audit([place.aside for place in target.places]), partial)


def make_visible(target: Target) -> None:
    """Rename the directories to their final names. Raises OSError."""
    disk = RealDisk()
    for aside, final in target.renames:
        disk.unlink(f"{aside}/{MARKER}")
        sync_tree(disk, aside)
        os.rename(aside, final)
        disk.sync_dir(os.path.dirname(os.path.abspath(final)))


def discard(renames: Sequence[tuple[str, str]]) -> None:
    """Remove the temporary directories."""
    for aside, _ in renames:
        shutil.rmtree(aside, ignore_errors=True)


def _identity(target: Target, node: str) -> Identity:
    group = target.broker_group
    return mint(
        target.config.cluster_id,
        group.name,
        node,
        str(uuid.uuid4()),
        target.config.cluster.created_ms,
        data_file_bytes=group.data_file_bytes,
        index_file_bytes=group.index_file_bytes,
        consume_queue_file_bytes=group.consume_queue_file_bytes,
    )


def _copy(disk: RealDisk, source: str, owner: str, target: Target, place: Place) -> None:
    """Create another replica of the group in `source`: the same files except the identity, which is
    written last."""
    root, former = f"{place.aside}/{target.group}", f"dledger-{owner}/"
    for path in walk(disk, source):
        if path == "identity.json":
            continue
        name = (
            f"dledger-{place.node}/{path.removeprefix(former)}" if path.startswith(former) else path
        )
        disk.mkdirs(os.path.dirname(f"{root}/{name}"))
        held = HeldFile(f"{source}/{path}")
        try:
            if path.startswith(f"{former}data/"):
                size = disk.file_size(f"{source}/{path}")
                held.copy_to(f"{root}/{name}", size, size, allocate=True, step=lambda _: None)
            else:
                held.copy_sparse(f"{root}/{name}")
        finally:
            held.close()
    sync_tree(disk, root)
    write_identity(disk, root, _identity(target, place.node))
