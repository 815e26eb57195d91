"""Creating a node directory from an object store, after all replicas of a cluster were lost: files
are compared with their digests, the log is verified entry by entry, and what is lost is everything
behind the last file that is there.

The result is a successor, like a directory that was restored from a backup
(`storage/backups/restore.py`): a new incarnation, no vote, and no entry known as committed beyond
its snapshot. The identity is written last: until then no node can start here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ledgermq.storage.backups.backup import CONTROLLER, Mint
from ledgermq.storage.backups.backup_manifest import (
    BackupPoint,
    BadCopy,
    KeptFile,
    Manifest,
    Refused,
    Step,
)
from ledgermq.storage.backups.copied_log import CopiedLog, prove_and_index, write_small_files
from ledgermq.storage.backups.trees import Meter, Progress, require_empty, require_room, sync_tree
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.file_digest import FileDigest
from ledgermq.storage.files.mapped_files import file_name
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.state import identity
from ledgermq.storage.state.identity import NodeIdentity
from ledgermq.storage.state.recovered import RECOVERY_FILE
from ledgermq.storage.tiered import index_part, manifests
from ledgermq.storage.tiered.begins import covering_snapshot, covers, stored_begin
from ledgermq.storage.tiered.controller_files import ControllerFiles, unpack
from ledgermq.storage.tiered.manifests import FileManifest, StoredLog
from ledgermq.storage.tiered.ports import ObjectMissing, ObjectStore
from ledgermq.storage.tiered.transfer import WrongObject, pieces, verify

PASSES = 2
"""Every byte is fetched and verified."""
ROWS_AT_ONCE = 128 * index_part.BLOCK_BYTES
"""What one request fetches of an index part: 6 MiB."""
REMAKE = (
    "no message is lost: remove the index part's two objects (.index, .rows), and the next reader"
    " makes them from the log file"
)
REMEDY = "remove the target; look at the object in the store, or restore a backup"


@dataclass(frozen=True, slots=True)
class HeldLog:
    """What the store holds of one log: its files, in order and without a gap, and the snapshot of
    what was before the first one."""

    stored: StoredLog
    files: tuple[FileManifest, ...]
    snapshot: dict[str, Any] | None
    behind_gap: tuple[str, ...]
    """Keys of manifests that do not continue the files before them; they are not restored."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def restore_from_store(
    disk: RealDisk,
    store: ObjectStore,
    target: str,
    *,
    node: str,
    groups: Sequence[str],
    mint: Mint,
    program: str,
    progress: Progress,
) -> tuple[Manifest, list[HeldLog]]:
    """Create the node directory `target`, which must be empty or missing, as `node`, with these
    broker groups (none: all in the store). Returns what was restored, described like a backup.
    Raises Refused before anything was written; BadCopy for what is missing or damaged in the store,
    other StorageErrors, OSError. Files written before an error stay, but no node starts from
    them."""
    require_empty(disk, target)
    if not node or "/" in node or node.startswith("."):
        raise Refused(f"{node!r} is not a node id", "give a node of the cluster's configuration")
    held, cluster_id = _held_logs(store, groups)
    controller = _controller(store, cluster_id)
    total = sum(log.size for log in held)
    require_room(disk, target, total)
    meter = Meter(total * PASSES, progress)
    disk.mkdirs(target)
    points = {
        log.stored.group: _fetch_log(
            disk, store, log, root=f"{target}/{log.stored.group}", node=node, step=meter
        )
        for log in held
    }
    disk.mkdirs(f"{target}/{CONTROLLER}")
    for name, data in controller.files.items():
        disk.replace_file(f"{target}/{CONTROLLER}/{os.path.basename(name)}", data)
    sync_tree(disk, target)
    for log in held:
        identity.write_identity(
            disk, f"{target}/{log.stored.group}", log.stored.identity(node, mint())
        )
    identity.write_node(
        disk, target, NodeIdentity(cluster_id, node, min(log.stored.created_ms for log in held))
    )
    files = {
        f"{log.stored.group}/{file_name(file.base)}": KeptFile(file.size, file.size, file.sha256)
        for log in held
        for file in log.files
    }
    return Manifest(
        program=program,
        made_ms=controller.made_ms,
        cluster_id=cluster_id,
        node=node,
        groups=points,
        files=files,
    ), held


def check_store(store: ObjectStore, groups: Sequence[str], progress: Progress) -> list[HeldLog]:
    """Read every object of these broker groups (none: all in the store), and compare it with its
    digest: what `restore_from_store` reads, and what readers of the log need. Raises Refused,
    BadCopy (also for files behind a gap), other StorageErrors."""
    held, cluster_id = _held_logs(store, groups)
    _controller(store, cluster_id, all_intact=True)
    meter = Meter(sum(log.size for log in held), progress)
    for log in held:
        where = manifests.folder(log.stored.group, log.stored.log_id)
        for file in log.files:
            try:
                verify(
                    store,
                    manifests.object_key(where, file.base, file.sha256),
                    file.size,
                    file.sha256,
                    meter,
                )
            except WrongObject as wrong:
                raise BadCopy(
                    str(wrong), "look for it in the store's own versions or backups"
                ) from wrong
            _check_index_part(store, where, file)
        if log.behind_gap:
            content = (
                f"{len(log.behind_gap)} files that do not continue the log, the first is"
                f" {log.behind_gap[0]}"
            )
            raise BadCopy(
                f"{store.place} holds {content}",
                "look for the files before it in the store's own versions or backups",
            )
    return held


def _held_logs(store: ObjectStore, groups: Sequence[str]) -> tuple[list[HeldLog], str]:
    """What the store holds of the wanted logs, and the cluster whose they are. Raises as `_held`
    does."""
    held = [_held(store, folder) for folder in _folders(store, groups)]
    clusters = {log.stored.cluster_id for log in held}
    if len(clusters) != 1:
        raise Refused(
            f"{store.place} holds logs of the clusters {', '.join(sorted(clusters))}",
            "name the groups of one with --group",
        )
    return held, clusters.pop()


def _check_index_part(store: ObjectStore, where: str, file: FileManifest) -> None:
    """Compare an index part with its digests. A file that was stored before there were index parts
    has none. Raises BadCopy."""
    key = index_part.head_key(where, file)
    try:
        head = index_part.decode_head(store.get(key), key, file)
    except ObjectMissing:
        return
    except Damaged as damage:
        raise BadCopy(f"{store.place}: {damage}", REMAKE) from damage
    key, total = index_part.rows_key(where, file), (head.rows + head.keys) * index_part.ROW_BYTES
    try:
        for start in range(0, total, ROWS_AT_ONCE):
            piece = store.read(key, start, min(ROWS_AT_ONCE, total - start))
            for at in range(0, len(piece), index_part.BLOCK_BYTES):
                number = (start + at) // index_part.BLOCK_BYTES
                if hashlib.sha256(piece[at : at + index_part.BLOCK_BYTES]).digest() != head.block(
                    number
                ):
                    raise BadCopy(
                        f"{store.place}/{key} does not have its digest in block {number}", REMAKE
                    )
    except ObjectMissing as missing:
        raise BadCopy(str(missing), REMAKE) from missing


def _folders(store: ObjectStore, groups: Sequence[str]) -> list[str]:
    """The folder of the log of each wanted group. Raises Refused."""
    folders_of: dict[str, list[str]] = {}
    for key in store.list(""):
        group, _, rest = key.partition("/")
        if rest.endswith(f"/{manifests.LOG_FILE}") and rest.count("/") == 1:
            folders_of.setdefault(group, []).append(key.removesuffix(f"/{manifests.LOG_FILE}"))
    if missing := sorted(set(groups) - folders_of.keys()):
        raise Refused(
            f"{store.place} holds no log of {', '.join(missing)}",
            f"known: {', '.join(sorted(folders_of)) or 'none'}",
        )
    if not folders_of:
        raise Refused(
            f"{store.place} holds no log",
            "give the address that the nodes have as tiered.url, with its prefix",
        )
    chosen = {group: folders_of[group] for group in groups or sorted(folders_of)}
    for group, folders in chosen.items():
        if len(folders) > 1:
            problem = f"{store.place} holds several logs of {group}: {', '.join(folders)}"
            raise Refused(
                problem, "all but one are from before a recovery: move those to another prefix"
            )
    return [folders[0] for folders in chosen.values()]


def _held(store: ObjectStore, folder: str) -> HeldLog:
    """Read and link the manifests of one log. Raises Refused, BadCopy, UnknownFormat,
    StoreFailure."""
    key = f"{folder}/{manifests.LOG_FILE}"
    try:
        stored = manifests.decode_log(store.get(key), key)
        stored = replace(stored, begin=stored_begin(store, folder, stored.begin))
        keyed = ((manifests.base_of_manifest(folder, key), key) for key in store.list(folder))
        # What total retention has not removed yet does not count any more.
        keys = sorted(
            (base, key) for base, key in keyed if base is not None and base >= stored.begin.pos
        )
        described = [(key, manifests.decode_manifest(store.get(key), key)) for _, key in keys]
        if not described:
            raise Refused(
                f"{store.place}/{folder} holds no complete log file yet",
                "there is nothing to restore",
            )
        first = described[0][1]
        if first.base > stored.begin.pos:
            gone = manifests.manifest_key(folder, stored.begin.pos)
            raise BadCopy(
                f"{store.place}/{gone}, the manifest of the first file, is missing", REMEDY
            )
    except Damaged as damage:
        raise BadCopy(f"{store.place}: {damage}", REMEDY) from damage
    files: list[FileManifest] = []
    begin = Begin(first.first, first.base, first.term, first.chain)
    for _, file in described:
        if not file.follows(begin) or file.log_id != stored.log_id:
            break
        files.append(file)
        begin = file.behind
    snapshot = _snapshot(store, folder, first.first, files[-1].last) if first.first > 0 else None
    if (
        snapshot is not None
        and not first.first - 1 <= int(snapshot["applied_index"]) <= files[-1].last
    ):
        problem = (
            f"the files of {store.place}/{folder} end with entry {files[-1].last}, before the"
            f" snapshot at {snapshot['applied_index']}"
        )
        raise Refused(problem, "what is there cannot be restored; use a backup")
    return HeldLog(stored, tuple(files), snapshot, tuple(key for key, _ in described[len(files) :]))


def _snapshot(store: ObjectStore, folder: str, first: int, last: int) -> dict[str, Any]:
    """The snapshot of what was before the entry `first`: of those that total retention stored, or
    that from when tiering began. Raises Refused, BadCopy, StoreFailure."""
    key = f"{folder}/{manifests.SNAPSHOT_FILE}"
    try:
        snapshot = covering_snapshot(store, folder, first, last)
        if snapshot is None:
            snapshot = sealed_json.decode(store.get(key), key)
            if not covers(snapshot, first):
                raise Refused(
                    f"{store.place}/{key} is of an earlier log than what is there",
                    "it cannot be restored; use a backup",
                )
        return snapshot
    except ObjectMissing as missing:
        raise Refused(
            f"{missing}, and the log in {folder} does not begin with entry 0",
            "it cannot be restored; use a backup",
        ) from missing
    except Damaged as damage:
        raise BadCopy(f"{store.place}: {damage}", REMEDY) from damage


def _controller(
    store: ObjectStore, cluster_id: str, *, all_intact: bool = False
) -> ControllerFiles:
    """The newest definitions of the cluster that are intact. Raises BadCopy if there are none, and
    with `all_intact` for every object of a node that is not intact."""
    definitions, wrong = [], ""
    for key in store.list(manifests.CONTROLLER):
        if manifests.is_controller_key(key):
            try:
                definitions.append(unpack(store.get(key), key))
            except (Damaged, ObjectMissing) as error:
                # Another node's may be intact; if none is, that is an error below.
                wrong = wrong or str(error)
    fitting = [files for files in definitions if files.cluster_id == cluster_id]
    if not fitting:
        problem = (
            f"{store.place}/{manifests.CONTROLLER} holds no intact definitions of cluster"
            f" {cluster_id}"
        )
        raise BadCopy(f"{problem} ({wrong})" if wrong else problem, REMEDY)
    if wrong and all_intact:
        raise BadCopy(
            f"{store.place}: {wrong}",
            "another node's definitions are intact; restart the node that stored it: it stores them"
            " anew",
        )
    return max(fitting, key=lambda files: files.made_ms)


def _fetch_log(
    disk: RealDisk, store: ObjectStore, log: HeldLog, root: str, node: str, step: Step
) -> BackupPoint:
    """Fetch the files of one log, verify them, and make them a log that ends with the last entry.
    Raises BadCopy, StoreFailure, OSError."""
    own = log.stored.identity(node, incarnation="")
    first, last = log.files[0], log.files[-1]
    begin = Begin(first.first, first.base, first.term, first.chain)
    copied = CopiedLog(
        root=root,
        identity=own,
        begin=begin,
        index=last.last,
        end_pos=last.end,
        snapshot=log.snapshot,
    )
    for folder in (
        f"{copied.directory}/data",
        f"{copied.directory}/index",
        f"{root}/state",
        f"{root}/consumequeue",
    ):
        disk.mkdirs(folder)
    where = manifests.folder(log.stored.group, log.stored.log_id)
    for file in log.files:
        used = file.end - file.base if file is last else file.size
        _fetch(
            disk,
            store,
            key=manifests.object_key(where, file.base, file.sha256),
            file=file,
            directory=f"{copied.directory}/data",
            used=used,
            step=step,
        )
    proved = prove_and_index(disk, copied, step, REMEDY, allocate=True)
    end = proved.point.pos, proved.point.term, proved.point.chain
    if end != (last.end, last.last_term, last.last_chain):
        raise BadCopy(
            f"{copied.directory} does not end where the manifest of {file_name(last.base)} says",
            REMEDY,
        )
    if log.stored.recovery is not None:
        sealed_json.write(disk, f"{root}/{RECOVERY_FILE}", log.stored.recovery)
    return write_small_files(disk, copied, proved, copied.snapshot_index)


def _fetch(
    disk: RealDisk,
    store: ObjectStore,
    key: str,
    file: FileManifest,
    directory: str,
    used: int,
    step: Step,
) -> None:
    """Fetch one file and compare its digest. Only its first `used` bytes stay: the filler behind
    the last entry of a log is no entry."""
    summed = FileDigest()
    local = disk.create(f"{directory}/{file_name(file.base)}", file.size, allocate=True)
    try:
        offset = 0
        for piece in pieces(store, key, file.size):
            summed.add(piece)
            if offset < used:
                local.pwrite(offset, piece[: used - offset])
            offset += len(piece)
            step(len(piece))
        local.sync()
        local.forget(0, file.size)
    except ObjectMissing as missing:
        raise BadCopy(str(missing), REMEDY) from missing
    finally:
        local.close()
    if summed.hexdigest() != file.sha256:
        raise BadCopy(f"{store.place}/{key} does not have its digest", REMEDY)
