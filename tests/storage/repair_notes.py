"""Reads the repair log of a group directory as docs/format.md §18 specifies it, without the
product's reader."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import Disk


def read_notes(disk: Disk, root: str) -> list[dict[str, Any]]:
    """All complete lines, oldest first."""
    found = []
    for line in disk.read_file(f"{root}/state/repairs").splitlines():
        with suppress(Damaged):
            found.append(sealed_json.decode(line, "a line of the repair log"))
    return found
