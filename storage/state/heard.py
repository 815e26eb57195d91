"""`heard` in a replica's `state/`: the last report an observer received from its leader, and when;
used when no other replica is left.

`node/replica/hosting/running.py` writes it about once per second while the leader is heard.
`new_cluster.py` reads it when the observer is to continue alone: entries that the leader had by
then and this log lacks are lost; later ones are unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import Disk

HEARD_FILE = "heard"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LastHeard:
    """The report of the leader of `term`: the last entry of its log and its commit index, as of
    `heard_ms` on this node's clock."""

    leader: str
    term: int
    end_index: int
    commit_index: int
    heard_ms: int


def heard_value(log_id: str, heard: LastHeard) -> Mapping[str, Any]:
    """The content of the file."""
    return {"v": VERSION, "log_id": log_id, **asdict(heard)}


def read_heard(disk: Disk, root: str, log_id: str) -> LastHeard | None:
    """None if no report about this log was recorded, or the record is damaged. Raises OSError."""
    path = f"{root}/state/{HEARD_FILE}"
    if not disk.exists(path):
        return None
    try:
        value = sealed_json.read(disk, path)
    except Damaged:
        return None
    if (
        value.pop("v", None) != VERSION
        or value.pop("log_id", None) != log_id
        or value.keys() != LastHeard.__dataclass_fields__.keys()
    ):
        return None
    return LastHeard(**value)
