"""The controller's snapshot file: the agreed state at one log index, and the last two log entries
that it covers, which the library needs.

The library's hooks for custom serialisation write and read it, so the library's own (pickled) dumps
never exist. The file is checksummed JSON (docs/format.md §12); it is sent unchanged to a node that
is too far behind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ledgermq.node.controller.journal import Entry
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import UnknownFormat
from ledgermq.storage.files.ports import Disk

NAME = "snapshot"
VERSION = 1


def write(
    disk: Disk,
    path: str,
    state: dict[str, Any],
    last: Entry,
    previous: Entry,
    voters: Sequence[str],
) -> None:
    """Write a snapshot; durable under `path` on return. `last` is the newest entry applied to
    `state` and `voters`. Raises OSError."""
    entries = {"last": _listed(last), "previous": _listed(previous)}
    sealed_json.write(disk, path, {"v": VERSION, "state": state, **entries, "voters": list(voters)})


def read(disk: Disk, path: str) -> tuple[dict[str, Any], Entry, Entry, tuple[str, ...] | None]:
    """State, last entry, previous entry, and the voters (None if the file is older than the field).

    Raises FileNotFoundError, Damaged, UnknownFormat."""
    tree = sealed_json.read(disk, path)
    if tree["v"] != VERSION:
        raise UnknownFormat(
            f"{path} has version {tree['v']}, this program reads {VERSION}: start the version that"
            " wrote it"
        )
    voters = tree.get("voters")
    return (
        tree["state"],
        _entry(tree["last"]),
        _entry(tree["previous"]),
        None if voters is None else tuple(voters),
    )


def adopt(disk: Disk, path: str) -> None:
    """Make a file durable that the library received and renamed into place without a sync."""
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()
    disk.sync_dir(os.path.dirname(path))


def _listed(entry: Entry) -> list[Any]:
    command, index, term = entry
    return [command.decode("latin-1"), index, term]


def _entry(fields: list[Any]) -> Entry:
    text, index, term = fields
    return text.encode("latin-1"), index, term
