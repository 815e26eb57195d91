"""The manifest of a backup (`backup.json`, format §15): its origin, the backup point of each log,
and every file with its digest.

The manifest is written last and durably: a directory without one is an unfinished backup and cannot
be restored. This module holds the value, its file, and the comparison of files with it; `backup.py`
and `restore.py` know what the files mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from ledgermq.proto.status import ExitCode
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, StorageError, UnknownFormat
from ledgermq.storage.files.ports import Disk

MANIFEST_FILE = "backup.json"
VERSION = 1
READ_BYTES = 4 << 20
Step = Callable[[int], None]
"""Called with the number of bytes of every completed piece of work."""


class BadCopy(StorageError):
    """A copy, or its source, is damaged (exit status 1)."""

    exit_code = ExitCode.FAILED

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy


class Refused(StorageError):
    """Nothing was started: the target is in use, or the source cannot provide what was requested
    (exit status 4)."""

    exit_code = ExitCode.REFUSED

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class BackupPoint:
    """The kept part of one log: entries `begin_index` … `index`. `snapshot_index` is the applied
    index of the snapshot, −1 without one."""

    log_id: str
    replica: str
    begin_index: int
    index: int
    term: int
    end_pos: int
    chain_crc: int
    store_ms: int
    snapshot_index: int


@dataclass(frozen=True, slots=True)
class KeptFile:
    """One file of a backup. Only its first `used` bytes are not zero."""

    bytes: int
    used: int
    sha256: str


Kept = TypeVar("Kept", BackupPoint, KeptFile)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole manifest: `files` by path within the backup, `groups` by name of the broker
    group."""

    program: str
    made_ms: int
    cluster_id: str
    node: str
    groups: Mapping[str, BackupPoint]
    files: Mapping[str, KeptFile]

    @property
    def used_bytes(self) -> int:
        return sum(file.used for file in self.files.values())


def write_manifest(disk: Disk, directory: str, manifest: Manifest) -> None:
    sealed_json.write(disk, f"{directory}/{MANIFEST_FILE}", {"v": VERSION, **asdict(manifest)})


def read_manifest(disk: Disk, directory: str) -> Manifest:
    """Raises Refused if there is no manifest, BadCopy if it is damaged, UnknownFormat, OSError."""
    path = f"{directory}/{MANIFEST_FILE}"
    if not disk.exists(path):
        problem = f"{directory} holds no finished backup (no {MANIFEST_FILE})"
        raise Refused(
            problem,
            "give a directory that `ledgermq backup` completed; repeat an interrupted backup",
        )
    try:
        value = sealed_json.read(disk, path)
    except Damaged as damaged:
        raise BadCopy(str(damaged), "use another backup") from damaged
    if value.pop("v", None) != VERSION:
        raise UnknownFormat(
            f"{path} was written by another version of LedgerMQ: restore with the program that"
            " wrote it"
        )
    try:
        return _manifest(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadCopy(
            f"{path} does not have the content of a manifest ({error})", "use another backup"
        ) from error


def is_backup(disk: Disk, directory: str) -> bool:
    """Whether a directory is a finished backup. It looks like a node's, and must stay as its
    manifest says."""
    return disk.exists(f"{directory}/{MANIFEST_FILE}")


def digest(disk: Disk, path: str, step: Step) -> str:
    """SHA-256 of a whole file. Raises OSError."""
    summed = hashlib.sha256()
    file = disk.open(path)
    try:
        offset = 0
        while piece := file.pread(offset, READ_BYTES):
            summed.update(piece)
            offset += len(piece)
            step(len(piece))
    finally:
        file.close()
    return summed.hexdigest()


def _manifest(value: dict[str, Any]) -> Manifest:
    """Raises KeyError, TypeError or AttributeError if the value has another form, or a path that
    leads out of the directory."""
    groups = {
        _inside(name): _typed(BackupPoint(**point)) for name, point in value.pop("groups").items()
    }
    files = {_inside(path): _typed(KeptFile(**kept)) for path, kept in value.pop("files").items()}
    for path, kept in files.items():
        if not 0 <= kept.used <= kept.bytes:
            raise TypeError(f"{path} has {kept.bytes} bytes, and {kept.used} of them are used")
    return Manifest(groups=groups, files=files, **value)


def _inside(path: str) -> str:
    if not path.isprintable() or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise TypeError(f"the path {path!r}")
    return path


def _typed(made: Kept) -> Kept:
    for one in fields(made):
        if type(getattr(made, one.name)).__name__ != one.type:
            raise TypeError(f"{one.name} is {getattr(made, one.name)!r}")
    return made
