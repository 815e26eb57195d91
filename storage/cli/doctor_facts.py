"""The sources of the doctor's facts: kernel tables, the limits of this process, a scratch file
without a name, and a node's small files.

Everything is only read, except the scratch file. It appears in no directory, and disappears with
the process.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgermq.storage.cli.doctor import Facts
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, StorageError
from ledgermq.storage.files.mapped_files import parse_name
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.synced_mark import read_mark
from ledgermq.storage.state import checkpoints, identity
from ledgermq.storage.state.recovered import read_recovery

MOUNTS = "/proc/self/mounts"
MAP_COUNT = "/proc/sys/vm/max_map_count"
BLOCK_DEVICES = "/sys/dev/block"
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
WITHOUT_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
"""The error codes with which file systems report that they cannot create a file without a name."""
BLOCK_BYTES = 512
"""The unit of a file's allocated size."""


class ScratchFile:
    """A probe (see `doctor.Probe`) in a directory that does not list it."""

    def __init__(self, directory: str) -> None:
        try:
            self._fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError as error:
            if error.errno not in WITHOUT_NAMELESS:
                raise
            self._fd, path = tempfile.mkstemp(
                prefix=".ledgermq-doctor-", suffix=".tmp", dir=directory
            )
            os.unlink(path)

    def write(self, offset: int, data: bytes) -> None:
        done = os.pwrite(self._fd, data, offset)
        if done != len(data):
            raise OSError(errno.ENOSPC, "the disk accepts no more bytes")

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class GroupFound:
    """One broker group of a node directory. An index of −1 means none; `clean`: its last process
    stopped cleanly."""

    group: str
    replica: str
    log_id: str
    clean: bool
    log_files: int
    log_bytes: int
    """Allocated bytes of the log files."""
    synced_index: int
    committed_index: int | None
    sealed_files: int = 0
    """Log files whose digest was recorded by a majority, according to the snapshot."""
    differing_files: tuple[int, ...] = ()
    """The positions of those files for which this node computed another digest."""
    verified_ms: int | None = None
    """When the log file with the oldest verification was last read or written; None if not
    recorded."""
    recovery: str | None = None
    """A description of the recovery from a lost majority, if there was one."""


@dataclass(frozen=True, slots=True)
class NodeFound:
    """The owner and the content of a node directory; `problem` is why the rest could not be
    read."""

    cluster_id: str
    node: str
    used_bytes: int
    groups: tuple[GroupFound, ...]
    problem: str | None = None


def read_facts(directory: str) -> Facts:
    """Raises OSError when the directory cannot be looked at."""
    kind = file_system(directory)
    space = os.statvfs(directory)
    return Facts(
        file_system=kind,
        in_memory=kind in MEMORY_FILE_SYSTEMS,
        rotational=rotational(os.stat(directory).st_dev),
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=(space.f_blocks - space.f_bfree + space.f_bavail) * space.f_frsize,
        max_map_count=_number(MAP_COUNT),
        memory_lock_bytes=_limit(resource.RLIMIT_MEMLOCK),
        open_files=_limit(resource.RLIMIT_NOFILE),
    )


def open_to_all(directory: str) -> bool:
    """Whether every user of the machine can open files in a directory. Raises OSError."""
    path = Path(os.path.realpath(directory))
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def file_system(directory: str) -> str:
    """The type of the file system that holds `directory`, found by the longest mount point above
    it."""
    path = f"{os.path.realpath(directory)}/"
    best, kind = "", "unknown"
    try:
        lines = Path(MOUNTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return kind
    for line in lines:
        _, mount, its_kind, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        if path.startswith(f"{mount.rstrip('/')}/") and len(mount) >= len(best):
            best, kind = mount, its_kind
    return kind


def rotational(device: int) -> bool | None:
    """Whether the block device, or the disk of the partition, is rotational according to the
    kernel; None if unknown."""
    place = f"{BLOCK_DEVICES}/{os.major(device)}:{os.minor(device)}"
    for queue in (f"{place}/queue/rotational", f"{place}/../queue/rotational"):
        flag = _number(queue)
        if flag is not None:
            return flag == 1
    return None


def look_at_node(directory: str) -> NodeFound | None:
    """The content of a node directory, read-only; None if it is not a node directory."""
    disk = RealDisk()
    try:
        node = identity.read_node(disk, directory)
    except StorageError as error:
        return NodeFound("", "", _used_bytes(directory), (), str(error))
    if node is None:
        return None
    used = _used_bytes(directory)
    try:
        places = ["", *(f"{worker}/" for worker in identity.workers_in(disk, directory))]
        inside = [
            f"{place}{name}"
            for place in places
            for name in disk.listdir(f"{directory}/{place}".rstrip("/"))
        ]
        roots = [
            name for name in inside if disk.exists(f"{directory}/{name}/{identity.IDENTITY_FILE}")
        ]
        groups = tuple(_look_at_group(disk, f"{directory}/{name}") for name in roots)
    except (StorageError, OSError) as error:
        return NodeFound(node.cluster_id, node.node, used, (), str(error))
    return NodeFound(node.cluster_id, node.node, used, groups)


def _look_at_group(disk: RealDisk, root: str) -> GroupFound:
    own_identity = identity.read_identity(disk, root)
    assert own_identity is not None, f"{root} lost its identity"
    log_directory = f"{root}/dledger-{own_identity.replica}"
    names = [name for name in disk.listdir(f"{log_directory}/data") if parse_name(name) is not None]
    noted = checkpoints.read_log_checkpoint(disk, log_directory)
    return GroupFound(
        own_identity.group,
        own_identity.replica,
        own_identity.log_id,
        checkpoints.is_clean(disk, root),
        len(names),
        sum(os.stat(f"{log_directory}/data/{name}").st_blocks * BLOCK_BYTES for name in names),
        read_mark(disk, f"{log_directory}/syncedmark", own_identity.log_id).index,
        None if noted is None else noted.committed_index,
        *_sealed(disk, root, own_identity.log_id),
        _verified_ms(disk, root, own_identity.log_id),
        _recovery(disk, root),
    )


def _sealed(disk: RealDisk, root: str, log_id: str) -> tuple[int, tuple[int, ...]]:
    """The number of files sealed by a majority, and those for which this node computed another
    digest (format §9, §11)."""
    snapshot, noted = (
        _note(disk, f"{root}/state/snapshot", log_id),
        _note(disk, f"{root}/state/digests", log_id),
    )
    seals = {
        int(seal["base"]): seal["sha256"] for seal in snapshot.get("retained", {}).get("seals", ())
    }
    digests = {int(base): sha256 for base, sha256 in noted.get("digests", {}).items()}
    return len(seals), tuple(
        sorted(base for base, sha256 in seals.items() if digests.get(base, sha256) != sha256)
    )


def _verified_ms(disk: RealDisk, root: str, log_id: str) -> int | None:
    return min(
        (int(ms) for _, ms in _note(disk, f"{root}/state/scrub", log_id).get("files", ())),
        default=None,
    )


def _note(disk: RealDisk, path: str, log_id: str) -> dict[str, Any]:
    """A file of `state/`; empty if it is missing, damaged or of another log: opening the group
    reports such errors."""
    try:
        value = sealed_json.read(disk, path)
    except (FileNotFoundError, Damaged):
        return {}
    return value if value.get("log_id") == log_id else {}


def _recovery(disk: RealDisk, root: str) -> str | None:
    note = read_recovery(disk, root)
    if note is None:
        return None
    loss = note["loss"]
    if note["state"] != "done":
        return "a recovery was interrupted: run the same `ledgermq recover` again"
    gone = ", ".join(loss["given_up"]) or "nobody"
    return (
        f"restarted behind entry {loss['index']} of log {loss['former_log_id']}; abandoned: {gone}"
    )


def _used_bytes(directory: str) -> int:
    """The disk space of all files under a directory. Files that vanish during the walk count as
    zero."""
    used = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                used += os.stat(f"{folder}/{name}", follow_symlinks=False).st_blocks * BLOCK_BYTES
            except FileNotFoundError:
                continue
    return used


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
