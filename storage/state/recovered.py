"""`recovery.json` (format §17): records that a broker group was restarted from one survivor, the
former log ids, and the known loss.

This module reads the file and applies it when a directory is opened; `new_cluster.py` writes it and
carries out the recovery.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ledgermq.proto.types import Identity
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import UnknownFormat, Unusable
from ledgermq.storage.files.ports import Disk

RECOVERY_FILE = "recovery.json"
VERSION = 1


def read_recovery(disk: Disk, root: str) -> dict[str, Any] | None:
    """The record of the last recovery of a group directory; None if there was none. Raises Damaged,
    UnknownFormat, OSError."""
    path = f"{root}/{RECOVERY_FILE}"
    if not disk.exists(path):
        return None
    value = sealed_json.read(disk, path)
    if value.get("v") != VERSION:
        raise UnknownFormat(
            f"{path} has version {value.get('v')}, this program knows {VERSION}: start the program"
            " that wrote it"
        )
    return value


def as_recovered(disk: Disk, root: str, wanted: Identity) -> Identity:
    """The expected identity of a directory: `wanted`, with the log id that a recovery gave its log.
    Raises Unusable if a recovery was interrupted, and the errors of `read_recovery`."""
    value = read_recovery(disk, root)
    if value is None:
        return wanted
    if value["state"] != "done":
        raise Unusable(
            f"a recovery of {root} was interrupted: run the same command (`ledgermq recover` or"
            " `promote-observer`) again first"
        )
    return replace(wanted, log_id=value["log_id"]) if wanted.log_id in value["former"] else wanted
