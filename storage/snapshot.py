"""The snapshot file (format §11): derived state at one applied index, as a checksummed JSON object.

The store knows it only as a dictionary; what the keys mean belongs to the applier. A snapshot counts only if the caller finds that its
index, term and chain CRC agree with the log. The caller syncs the consume queues before it writes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.storage import sealed_json
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import Damaged

SNAPSHOT_FILE = "snapshot"


def write_snapshot(disk: Disk, state_directory: str, value: Mapping[str, Any]) -> None:
    """Replace the snapshot atomically and durably."""
    sealed_json.write(disk, f"{state_directory}/{SNAPSHOT_FILE}", value)


def read_snapshot(disk: Disk, state_directory: str) -> dict[str, Any] | None:
    """The last snapshot; None when there is none or it is damaged: it is derived, the log still has everything."""
    path = f"{state_directory}/{SNAPSHOT_FILE}"
    if not disk.exists(path):
        return None
    try:
        return sealed_json.read(disk, path)
    except Damaged:
        return None


def discard_snapshot(disk: Disk, state_directory: str) -> None:
    """Remove the snapshot durably: from now on the derived state is rebuilt from the log's beginning."""
    path = f"{state_directory}/{SNAPSHOT_FILE}"
    if disk.exists(path):
        disk.unlink(path)
        disk.sync_dir(state_directory)
