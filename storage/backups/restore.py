"""Creating a node directory from a backup (format §15): files are copied and compared with the
manifest, logs verified entry by entry.

A restored directory is a *successor*: cluster, node and logs are those of the backup, the
incarnation is new. Its predecessor may have made promises after the backup (acknowledged entries,
votes), so peers that remember the predecessor refuse it; restored replicas accept each other when
all of them have met. For the same reason its commit index is the lowest that its snapshot allows:
entries that it has beyond other restored replicas may be replaced by the leader they elect. The
identity is written last: until then no node can start here.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ledgermq.proto.types import SyncedMark
from ledgermq.storage.backups.backup import PASSES, Mint
from ledgermq.storage.backups.backup_manifest import (
    BackupPoint,
    BadCopy,
    Manifest,
    Refused,
    Step,
    digest,
    read_manifest,
)
from ledgermq.storage.backups.log_proof import prove
from ledgermq.storage.backups.trees import (
    Meter,
    Progress,
    ignore,
    require_empty,
    require_room,
    sync_tree,
)
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.files.mapped_files import MappedFiles
from ledgermq.storage.files.real_disk import HeldFile, RealDisk
from ledgermq.storage.log.begin import read_begin
from ledgermq.storage.log.index_files import UNIT_BYTES, IndexFiles, make_units
from ledgermq.storage.log.log_scan import Piece, Point, first_nonzero
from ledgermq.storage.log.synced_mark import read_mark
from ledgermq.storage.state import checkpoints, identity

REMEDY = "use another backup, and remove the target"


def restore(
    disk: RealDisk, source: str, target: str, *, node: str | None, mint: Mint, progress: Progress
) -> Manifest:
    """Create the node directory `target`, which must be empty or missing, from the backup `source`:
    as the original node, or as `node`, which is possible because the logs of all replicas of a
    group are identical. Raises Refused before anything was written, BadCopy when the backup or the
    copy is damaged, other StorageErrors, OSError. Files written before an error stay, but no node
    starts from them."""
    manifest = read_manifest(disk, source)
    require_empty(disk, target)
    node = manifest.node if node is None else node
    if not node or "/" in node or node.startswith("."):
        raise Refused(f"{node!r} is not a node id", "give a node of the cluster's configuration")
    require_room(disk, target, manifest.used_bytes)
    counted = sum(kept.used for path, kept in manifest.files.items() if _is_log_file(path))
    meter = Meter(counted * PASSES, progress)
    disk.mkdirs(target)
    for path in sorted(manifest.files):
        _copy_file(disk, source, target, path, node, manifest=manifest, step=meter)
    for name, point in manifest.groups.items():
        directory = f"{target}/{name}/dledger-{node}"
        own_identity = identity.read_identity(disk, f"{source}/{name}")
        if own_identity is None or own_identity.log_id != point.log_id:
            raise BadCopy(
                f"{source}/{name}/{identity.IDENTITY_FILE} is missing or of another log", REMEDY
            )
        for folder in ("state", "consumequeue"):
            disk.mkdirs(f"{target}/{name}/{folder}")
        _prove(
            disk,
            directory,
            point,
            own_identity.data_file_bytes,
            own_identity.index_file_bytes,
            step=meter,
        )
        checkpoints.write_log_checkpoint(
            disk, directory, checkpoints.LogCheckpoint(point.index, point.snapshot_index)
        )
    _take_over(disk, source, target, node, manifest, mint=mint)
    return manifest


def _copy_file(
    disk: RealDisk, source: str, target: str, path: str, node: str, manifest: Manifest, step: Step
) -> None:
    """Copy one file of the manifest, and check its digest. Files that name the directory's owner
    are rewritten at the end, but checked here too."""
    kept = manifest.files[path]
    new = f"{target}/{_renamed(path, node, manifest)}"
    counted = step if _is_log_file(path) else ignore
    owner = os.path.basename(path) in (identity.IDENTITY_FILE, identity.NODE_FILE)
    try:
        if owner:
            checksum = digest(disk, f"{source}/{path}", counted)
        else:
            disk.mkdirs(os.path.dirname(new))
            held = HeldFile(f"{source}/{path}")
            try:
                held.copy_to(new, kept.used, kept.bytes, allocate=_is_log_file(path), step=counted)
            finally:
                held.close()
            checksum = digest(disk, new, counted)
    except FileNotFoundError as error:
        raise BadCopy(f"{error.filename} is missing from the backup", REMEDY) from error
    if checksum != kept.sha256:
        raise BadCopy(
            f"{source}/{path} does not match the backup's manifest: the file or its copy is"
            " damaged",
            REMEDY,
        )


def _renamed(path: str, node: str, manifest: Manifest) -> str:
    """The path of a backup file in a directory of `node`."""
    group, _, rest = path.partition("/")
    former = f"dledger-{manifest.groups[group].replica}/" if group in manifest.groups else ""
    return (
        f"{group}/dledger-{node}/{rest.removeprefix(former)}"
        if former and rest.startswith(former)
        else path
    )


def _is_log_file(path: str) -> bool:
    return path.count("/") == 3 and path.split("/")[2] == "data"


def _prove(
    disk: RealDisk,
    directory: str,
    point: BackupPoint,
    data_file_bytes: int,
    index_file_bytes: int,
    step: Step,
) -> None:
    """Verify every entry, the index units, the end, and the zeros behind it."""
    data = MappedFiles(disk, f"{directory}/data", data_file_bytes, allocate=True)
    units = IndexFiles(MappedFiles(disk, f"{directory}/index", index_file_bytes, allocate=False))

    def compare(piece: Piece) -> None:
        described = make_units(piece.first_index, 0, piece.starts + piece.pos, piece.sizes)
        described["term"] = piece.terms
        if units.get(piece.first_index, len(described)).tobytes() != described.tobytes():
            raise BadCopy(
                f"{directory}/index does not describe the entries from {piece.first_index} on",
                REMEDY,
            )
        data.close_idle(lambda file: False)

    try:
        begin = read_begin(disk, directory, point.log_id)
        data.origin, units.files.origin = begin.pos, units.files.base_of(begin.index * UNIT_BYTES)
        data.load()
        units.files.load()
        if begin.index != point.begin_index:
            raise BadCopy(
                f"{directory} begins with entry {begin.index}, the manifest says"
                f" {point.begin_index}",
                REMEDY,
            )
        first = Point(pos=begin.pos, index=begin.index, term=begin.term, chain=begin.chain)
        proved = prove(
            data,
            first,
            point.index,
            point.end_pos,
            watch=-2,
            each=compare,
            step=step,
            remedy=REMEDY,
        )
        end = (proved.point.pos, proved.point.term, proved.point.chain)
        if end != (point.end_pos, point.term, point.chain_crc):
            raise BadCopy(f"{directory} does not end where the manifest says", REMEDY)
        mark = read_mark(disk, f"{directory}/syncedmark", point.log_id)
        if mark != SyncedMark(point.term, point.index, point.end_pos, point.chain_crc):
            raise BadCopy(f"{directory}/syncedmark marks another entry than the manifest", REMEDY)
        if first_nonzero(data, point.end_pos, data.end) is not None:
            raise BadCopy(f"{directory}/data holds bytes behind its last entry", REMEDY)
    except BadCopy:
        raise
    except StorageError as damaged:
        raise BadCopy(str(damaged).replace("; ", ", "), REMEDY) from damaged
    finally:
        data.close()
        units.files.close()


def _take_over(
    disk: RealDisk, source: str, target: str, node: str, manifest: Manifest, mint: Mint
) -> None:
    """Write the identities that make the directory the node's own; the last step, after everything
    else is durable."""
    sync_tree(disk, target)
    for name in manifest.groups:
        own_identity = identity.read_identity(disk, f"{source}/{name}")
        assert own_identity is not None, f"{source}/{name} lost its identity"
        identity.write_identity(
            disk, f"{target}/{name}", replace(own_identity, replica=node, incarnation=mint())
        )
    whose = identity.read_node(disk, source)
    if whose is None:
        raise BadCopy(f"{source}/{identity.NODE_FILE} is missing from the backup", REMEDY)
    identity.write_node(disk, target, replace(whose, node=node))
