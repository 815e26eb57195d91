"""Backups (docs/format.md §15) as evidence: their files are compared with the manifest, and their
log is read like any other.

A backup is a copy of one replica at one point. It counts for no majority, has no consume queues,
and is named after its replica with the suffix `:backup`.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from ledgermq.audit.reading.decode import read_sealed_json
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.node_paths import is_remote
from ledgermq.audit.reading.walk import LogFile
from ledgermq.audit.rules import Flaw

MANIFEST = "backup.json"
SUFFIX = ":backup"
READ_BYTES = 4 << 20


def manifest_of(directory: str) -> dict[str, Any] | None:
    """The manifest of a backup; None if there is no backup, or its manifest is not as
    docs/format.md §15 says. Raises OSError."""
    value = None if is_remote(directory) else read_sealed_json(f"{directory}/{MANIFEST}")
    return value if value is not None and _is_manifest(value) else None


def _is_manifest(value: dict[str, Any]) -> bool:
    files, groups = value.get("files"), value.get("groups")
    if value.get("v") != 1 or not isinstance(groups, dict) or not isinstance(files, dict):
        return False
    return all(
        path.isprintable() and isinstance(facts, dict) and _are_facts(facts)
        for path, facts in files.items()
    )


def _are_facts(facts: dict[str, Any]) -> bool:
    size = facts.get("bytes")
    return type(size) is int and size >= 0 and isinstance(facts.get("sha256"), str)


def _files(task: LogFile) -> list[tuple[str, dict[str, Any]]]:
    """Paths and facts of the files that belong to the task's broker group or to the node, in
    order."""
    directory, group = os.path.split(task.root)
    manifest = manifest_of(directory) or {"files": {}, "groups": {}}
    others = manifest["groups"].keys() - {group}
    return sorted(
        (path, facts)
        for path, facts in manifest["files"].items()
        if path.partition("/")[0] not in others
    )


def backup_looks(task: LogFile) -> list[str]:
    """The looks to run: indexes of the files in the manifest."""
    return [f"{place:020d}" for place in range(len(_files(task)))]


def check_backup(task: LogFile) -> list[Flaw]:
    """Run one of `backup_looks`, named by the task: compare a file's size and digest with the
    manifest."""
    path, facts = _files(task)[task.base]
    size = facts["bytes"]
    try:
        with open_file(f"{os.path.dirname(task.root)}/{path}") as file:
            if file.size != size:
                proof = f"{file.size} bytes instead of {size}"
                return [
                    Flaw(
                        "backup.file",
                        path,
                        index=None,
                        byte_from=min(file.size, size),
                        byte_to=max(file.size, size),
                        proof=proof,
                    )
                ]
            whole = hashlib.sha256()
            for offset in range(0, size, READ_BYTES):
                whole.update(file.pread(min(READ_BYTES, size - offset), offset))
            if whole.hexdigest() != facts["sha256"]:
                proof = (
                    f"SHA-256 {whole.hexdigest()[:16]}…, the manifest says {facts['sha256'][:16]}…"
                )
                return [
                    Flaw("backup.file", path, index=None, byte_from=0, byte_to=size, proof=proof)
                ]
    except FileNotFoundError:
        return [
            Flaw(
                "backup.missing",
                path,
                index=None,
                byte_from=0,
                byte_to=size,
                proof="the manifest names it",
            )
        ]
    except OSError as error:
        return [
            Flaw(
                "file.read", path, index=None, byte_from=0, byte_to=size, proof=f"{error.strerror}"
            )
        ]
    return []
