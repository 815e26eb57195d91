"""The repair log of a group directory (format §18): what was repaired, when, from which source and
with which proof. Append-only.

For people, and for the next audit of this directory; no decision depends on it. A damaged line
stays as it is, like all others.
"""

from __future__ import annotations

from typing import Any

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import needing_room
from ledgermq.storage.files.ports import Disk

REPAIR_LOG_FILE = "repairs"
VERSION = 1


def note(disk: Disk, root: str, repair: str, when_ms: int, step: str, **facts: Any) -> None:
    """Append one step of the repair `repair`; durable on return. Raises NoSpace, OSError."""
    path = f"{root}/state/{REPAIR_LOG_FILE}"
    former = disk.read_file(path) if disk.exists(path) else b""
    line = sealed_json.encode(
        {"v": VERSION, "repair": repair, "when_ms": when_ms, "step": step, **facts}
    )
    with needing_room(path):
        disk.replace_file(path, former + line + b"\n")
