"""Recognising a directory: a store root with a plain commit log, with DLedger's, or with one behind
the other; others are refused.

Only names, sizes and the lock of a running broker are checked here; `reading.py` reads the files.
"""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from itertools import pairwise

from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.files.mapped_files import parse_name

PLAIN, DLEDGER = "commitlog", "dledger"
FILE_BYTES_MIN = 1024
_FLOCK = struct.Struct("hhlli")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log. `base`: the offset in its name; `kind`: its internal format."""

    path: str
    base: int
    bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class StoreRoot:
    """A recognised store root. `layout`: a description; `dledger`: the directory of DLedger's
    files, if there is one."""

    path: str
    layout: str
    files: tuple[LogFile, ...]
    dledger: str | None = None

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def recognise(path: str, self_id: str | None = None) -> StoreRoot:
    """The store root at `path`. `self_id` chooses one of several DLedger directories. Raises
    Refused, OSError."""
    if not os.path.isdir(path):
        raise Refused(
            f"{path} is not a directory", "give the storePathRootDir of the stopped RocketMQ broker"
        )
    if os.path.exists(f"{path}/identity.json") or os.path.exists(f"{path}/node.json"):
        raise Refused(
            f"{path} belongs to LedgerMQ already",
            "start it with `ledgermq serve` or `up`, or copy it with `ledgermq backup`",
        )
    _require_stopped(path)
    plain = _files(f"{path}/commitlog", PLAIN)
    chosen = _dledger_directory(path, self_id)
    later = [] if chosen is None else _files(f"{chosen}/data", DLEDGER)
    if not plain and not later:
        seen = ", ".join(sorted(os.listdir(path))[:5]) or "nothing"
        problem = (
            f"{path} is not a store root of RocketMQ: it has neither commitlog/ nor dledger-*/data/"
            f" with log files (there is {seen})"
        )
        raise Refused(
            problem, "give the storePathRootDir of the broker, the directory above commitlog/"
        )
    if plain and later and later[0].base != plain[-1].base + plain[-1].bytes:
        problem = (
            f"the files of {chosen}/data begin at {later[0].base}, those of {path}/commitlog end at"
            f" {plain[-1].base + plain[-1].bytes}"
        )
        raise Refused(problem, "move away the directory that is not in use, and import the other")
    layout = (
        "plain commit log"
        if not later
        else "DLedger"
        if not plain
        else "plain commit log, then DLedger"
    )
    return StoreRoot(path, layout, (*plain, *later), chosen)


def _dledger_directory(path: str, self_id: str | None) -> str | None:
    names = sorted(
        name
        for name in os.listdir(path)
        if name.startswith("dledger-") and os.path.isdir(f"{path}/{name}/data")
    )
    if self_id is not None:
        if f"dledger-{self_id}" not in names:
            present = ", ".join(names) or "none"
            raise Refused(
                f"{path} has no directory dledger-{self_id} with data (there is {present})",
                "choose an existing one",
            )
        return f"{path}/dledger-{self_id}"
    if len(names) > 1:
        raise Refused(
            f"{path} has several DLedger directories: {', '.join(names)}",
            "choose one with --dledger-self, such as n0",
        )
    return f"{path}/{names[0]}" if names else None


def _files(directory: str, kind: str) -> list[LogFile]:
    """The log files of a directory, without gaps. A last file of size zero was being created, and
    is ignored."""
    if not os.path.isdir(directory):
        return []
    names = sorted(name for name in os.listdir(directory) if os.path.isfile(f"{directory}/{name}"))
    sizes = {name: os.stat(f"{directory}/{name}").st_size for name in names}
    if names and not sizes[names[-1]]:
        names.pop()
    for name in names:
        if parse_name(name) is None:
            raise Refused(
                f"{directory}/{name} does not have the name of a log file",
                "move it away, and import again",
            )
    files = [LogFile(f"{directory}/{name}", int(name), sizes[name], kind) for name in names]
    for file in files:
        if file.bytes != files[0].bytes or file.bytes < FILE_BYTES_MIN:
            problem = (
                f"{file.path} has {file.bytes} bytes, {files[0].path} has {files[0].bytes}: the"
                " files of one log have one length"
            )
            raise Refused(problem, "copy the store root again, whole, and import the copy")
    for before, after in pairwise(files):
        if after.base != before.base + before.bytes:
            problem = (
                f"{directory} has no file {before.base + before.bytes:020d}, but"
                f" {os.path.basename(after.path)}"
            )
            raise Refused(problem, "copy the store root again, whole, and import the copy")
    return files


def _require_stopped(path: str) -> None:
    """A running broker holds a lock on the file `lock`; testing the lock changes nothing. Raises
    Refused."""
    try:
        fd = os.open(f"{path}/lock", os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        asked = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(fd)
    kind, _, _, _, process = _FLOCK.unpack(asked)
    if kind != fcntl.F_UNLCK:
        raise Refused(
            f"process {process} uses {path}",
            "stop the broker first: a store root is imported at rest",
        )
