"""A backup of one node directory at a consistent point, taken while the node runs or after it
stopped (format §15).

The backup point of each broker group's log is the last entry that this replica noted as committed
and has durable: no later leader can replace that entry. Files are held open before any byte is
copied, so a concurrent trim cannot take them away. Bytes up to the synced mark are copied inside
the kernel; bytes below the mark never change except by a truncation, which stops above the commit
index. The copy is then read from the medium, all its CRCs up to the point are checked, and it is
cut there. The source is only read.

Derived files are not copied: index files are written while the entries are verified; consume queues
and the key index are rebuilt when a restored node starts. A trimmed log needs a snapshot, because
the state of its removed entries can no longer be derived. The backup gets an incarnation of its
own: it is another directory than the one whose promises the peers know.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ledgermq.proto.types import Identity, SyncedMark
from ledgermq.storage.backups.backup_manifest import (
    BackupPoint,
    BadCopy,
    KeptFile,
    Manifest,
    Refused,
    Step,
    digest,
    write_manifest,
)
from ledgermq.storage.backups.copied_log import CopiedLog, prove_and_index, write_small_files
from ledgermq.storage.backups.trees import (
    Meter,
    Progress,
    ignore,
    require_empty,
    require_room,
    sync_tree,
    walk,
)
from ledgermq.storage.files.mapped_files import file_name, parse_name
from ledgermq.storage.files.real_disk import HeldFile, RealDisk, cut_file
from ledgermq.storage.log.begin import Begin, read_begin
from ledgermq.storage.log.index_files import UNIT_BYTES
from ledgermq.storage.log.synced_mark import read_mark
from ledgermq.storage.state import checkpoints, identity
from ledgermq.storage.state.recovered import RECOVERY_FILE
from ledgermq.storage.state.snapshot import read_snapshots
from ledgermq.storage.tiered.controller_files import read_files

CONTROLLER = "controller"
TRIES = 20
"""How often a listing, or a set of small files, is read again when it changed during the
reading."""
PASSES = 3
"""Every byte is copied, verified and digested."""
Mint = Callable[[], str]
"""Returns a new random UUID at every call."""


@dataclass(frozen=True, slots=True)
class _Log:
    """One broker group of the source: its files held open, and what of them the backup keeps."""

    name: str
    root: str
    identity: Identity
    files: dict[int, HeldFile]
    begin: Begin
    mark: SyncedMark
    index: int
    snapshot: dict[str, Any] | None

    def lengths(self) -> Iterator[tuple[int, int]]:
        """The base of every file to copy, and the number of its bytes to copy."""
        size = self.identity.data_file_bytes
        for base in range(self.begin.pos - self.begin.pos % size, self.mark.end_pos, size):
            yield base, min(size, self.mark.end_pos - base)


def backup(
    disk: RealDisk,
    source: str,
    target: str,
    *,
    program: str,
    made_ms: int,
    mint: Mint,
    progress: Progress,
) -> Manifest:
    """Copy the node directory `source` into `target`, which must be empty or missing, and verify
    the copy.

    Raises Refused before anything was written. Raises BadCopy when the source or the copy is
    damaged, other StorageErrors and OSError; the unfinished target then stays, without a
    manifest."""
    node = identity.read_node(disk, source)
    if node is None:
        raise Refused(
            f"{source} is not a node directory (no {identity.NODE_FILE})",
            "give a node directory, such as ledgermq-data/n1",
        )
    require_empty(disk, target)
    if os.path.commonpath([os.path.realpath(source), os.path.realpath(target)]) == os.path.realpath(
        source
    ):
        raise Refused(f"{target} lies inside {source}", "choose a directory outside the node's own")
    with ExitStack() as held:
        logs = [
            _hold(disk, source, name, held)
            for name in disk.listdir(source)
            if disk.exists(f"{source}/{name}/{identity.IDENTITY_FILE}")
        ]
        total = sum(length for log in logs for _, length in log.lengths())
        require_room(disk, target, total)
        meter = Meter(total * PASSES, progress)
        disk.mkdirs(target)
        points = {
            log.name: _copy_log(disk, log, f"{target}/{log.name}", mint, meter) for log in logs
        }
    _copy_controller(disk, source, target)
    disk.replace_file(
        f"{target}/{identity.NODE_FILE}", disk.read_file(f"{source}/{identity.NODE_FILE}")
    )
    sync_tree(disk, target)
    files = {path: _kept(disk, target, path, points, meter) for path in walk(disk, target)}
    manifest = Manifest(
        program=program,
        made_ms=made_ms,
        cluster_id=node.cluster_id,
        node=node.node,
        groups=points,
        files=files,
    )
    write_manifest(disk, target, manifest)
    return manifest


# Holding


def _hold(disk: RealDisk, source: str, name: str, held: ExitStack) -> _Log:
    """Read and hold open everything of one group that the copy needs. Raises Refused, Damaged,
    OSError."""
    root = f"{source}/{name}"
    own_identity = identity.read_identity(disk, root)
    assert own_identity is not None, f"{root} lost its identity"
    log_directory = f"{root}/dledger-{own_identity.replica}"
    for attempt in range(TRIES):
        mark = read_mark(disk, f"{log_directory}/syncedmark", own_identity.log_id)
        files = _open_all(disk, f"{log_directory}/data", held)
        if files is None:
            continue
        # Read after the files are open: if a file above this beginning existed, it is held now.
        begin = read_begin(disk, log_directory, own_identity.log_id)
        if begin.index > mark.index + 1:
            # Trimmed between the two readings; the trim moved the mark first.
            continue
        snapshots = [
            value
            for _, value in read_snapshots(disk, f"{root}/state")
            if value.get("log_id") == own_identity.log_id
        ]
        noted = checkpoints.read_log_checkpoint(disk, log_directory)
        known = [
            -1 if noted is None else noted.committed_index,
            *(int(value["applied_index"]) for value in snapshots),
        ]
        index = min(max(known), mark.index)
        if index < begin.index:
            problem = f"{root} has nothing noted as committed and durable yet"
            raise Refused(
                problem,
                "try again in a few seconds while the node runs; is it the right directory?",
            )
        fits = [
            value for value in snapshots if begin.index - 1 <= int(value["applied_index"]) <= index
        ]
        if begin.index > 0 and not fits:
            if attempt + 1 < TRIES and any(
                int(value["applied_index"]) > mark.index for value in snapshots
            ):
                # Perhaps written after the mark was read.
                continue
            problem = (
                f"{root} was trimmed up to entry {begin.index} and has no snapshot between there"
                f" and entry {index}"
            )
            raise Refused(
                problem, "let the node run for two minutes, which writes one, then try again"
            )
        log = _Log(
            name=name,
            root=root,
            identity=own_identity,
            files=files,
            begin=begin,
            mark=mark,
            index=index,
            snapshot=fits[0] if begin.index > 0 else None,
        )
        missing = [base for base, _ in log.lengths() if base not in files]
        if missing:
            raise BadCopy(
                f"{log_directory}/data/{file_name(missing[0])} is missing",
                "back up another replica, and audit this one",
            )
        return log
    raise Refused(f"the files of {root} change faster than they can be listed", "try again")


def _open_all(disk: RealDisk, directory: str, held: ExitStack) -> dict[int, HeldFile] | None:
    """Every log file, held open until `held` ends; None if one vanished between listing and
    opening."""
    files = {}
    for name in disk.listdir(directory):
        base = parse_name(name)
        if base is None:
            continue
        try:
            files[base] = HeldFile(f"{directory}/{name}")
        except FileNotFoundError:
            return None
        held.callback(files[base].close)
    return files


# Copying


def _copy_log(disk: RealDisk, log: _Log, root: str, mint: Mint, step: Step) -> BackupPoint:
    """Copy one group, verify the copy, cut it at its point, and make it a directory that a node can
    start from."""
    directory = f"{root}/dledger-{log.identity.replica}"
    for folder in (
        f"{directory}/data",
        f"{directory}/index",
        f"{root}/state",
        f"{root}/consumequeue",
    ):
        disk.mkdirs(folder)
    for base, length in log.lengths():
        path = f"{directory}/data/{file_name(base)}"
        log.files[base].copy_to(
            path, length, log.identity.data_file_bytes, allocate=False, step=step
        )
    remedy = (
        f"look at the source with `ledgermq audit`, and back up another replica; {directory} is not"
        " a backup"
    )
    copied = CopiedLog(
        root=root,
        identity=log.identity,
        begin=log.begin,
        index=log.index,
        end_pos=log.mark.end_pos,
        snapshot=log.snapshot,
    )
    proved = prove_and_index(disk, copied, step, remedy, allocate=False)
    _cut(disk, f"{directory}/data", log.identity.data_file_bytes, proved.point.pos)
    point = write_small_files(disk, copied, proved, log.index)
    if disk.exists(f"{log.root}/{RECOVERY_FILE}"):
        disk.replace_file(f"{root}/{RECOVERY_FILE}", disk.read_file(f"{log.root}/{RECOVERY_FILE}"))
    identity.write_identity(disk, root, replace(log.identity, incarnation=mint()))
    return point


def _cut(disk: RealDisk, directory: str, size: int, end: int) -> None:
    """Remove everything behind the position `end`, which lies inside a file."""
    last = end - end % size
    for name in disk.listdir(directory):
        if int(name) > last:
            disk.unlink(f"{directory}/{name}")
    cut_file(f"{directory}/{file_name(last)}", end - last, size)


def _copy_controller(disk: RealDisk, source: str, target: str) -> None:
    """Copy the controller's small files as of one moment: read them until two readings agree. They
    hold settings (topics, groups), no messages."""
    before: dict[str, bytes] | None = None
    for _ in range(TRIES):
        files = read_files(disk, f"{source}/{CONTROLLER}")
        if files is not None and files == before:
            disk.mkdirs(f"{target}/{CONTROLLER}")
            for name, data in files.items():
                disk.replace_file(f"{target}/{CONTROLLER}/{name}", data)
            return
        before = files
    raise Refused(
        f"the files of {source}/{CONTROLLER} change faster than they can be read", "try again"
    )


def _kept(
    disk: RealDisk, target: str, path: str, points: dict[str, BackupPoint], step: Step
) -> KeptFile:
    size = disk.file_size(f"{target}/{path}")
    used = size
    group, *_, kind, name = path.split("/") if path.count("/") == 3 else ("", "", "")
    if kind in ("data", "index"):
        end = points[group].end_pos if kind == "data" else (points[group].index + 1) * UNIT_BYTES
        used = min(size, end - int(name))
    return KeptFile(
        size, used, digest(disk, f"{target}/{path}", step if kind == "data" else ignore)
    )
