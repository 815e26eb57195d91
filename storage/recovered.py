"""`recovery.json` (format §17): that a broker group was begun anew from one survivor, which log ids led here, and what is known to be lost.

Reading it, and what it means for an open: here. Writing it, and everything else a recovery does: `new_cluster.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ledgermq.proto.types import Identity
from ledgermq.storage import sealed_json
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import UnknownFormat, Unusable

RECOVERY_FILE = "recovery.json"
VERSION = 1


def read_recovery(disk: Disk, root: str) -> dict[str, Any] | None:
    """The record of the last recovery of a group directory; None when there was none. Raises Damaged, UnknownFormat, OSError."""
    path = f"{root}/{RECOVERY_FILE}"
    if not disk.exists(path):
        return None
    value = sealed_json.read(disk, path)
    if value.get("v") != VERSION:
        raise UnknownFormat(f"{path} has version {value.get('v')}, this program knows {VERSION}: start the program that wrote it")
    return value


def as_recovered(disk: Disk, root: str, wanted: Identity) -> Identity:
    """Whose a directory must be: `wanted`, under the log id that a recovery gave its log. Raises Unusable when a recovery was interrupted,
    and what `read_recovery` raises."""
    value = read_recovery(disk, root)
    if value is None:
        return wanted
    if value["state"] != "done":
        raise Unusable(f"a recovery of {root} was interrupted: run the same command (`ledgermq recover` or `promote-observer`) again first")
    return replace(wanted, log_id=value["log_id"]) if wanted.log_id in value["former"] else wanted
