"""`heard` in a replica's `state/`: what an observer last heard of its leader, and when. For the day on which nobody else can be asked.

Written about once a second while the leader is heard (`node/replica/hosting/running.py`), read by `new_cluster.py` when the observer
is to go on alone:
what the leader had by then and this log lacks is lost for certain; what came later is not known to anybody here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ledgermq.storage import sealed_json
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import Damaged

HEARD_FILE = "heard"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LastHeard:
    """Of the leader of `term`: its log's last entry and its commit index, as of `heard_ms` on this node's clock."""

    leader: str
    term: int
    end_index: int
    commit_index: int
    heard_ms: int


def heard_value(log_id: str, heard: LastHeard) -> Mapping[str, Any]:
    """As it stands in the file."""
    return {"v": VERSION, "log_id": log_id, **asdict(heard)}


def read_heard(disk: Disk, root: str, log_id: str) -> LastHeard | None:
    """None when nothing was noted of this log, or the note is damaged: then nothing is known. Raises OSError."""
    path = f"{root}/state/{HEARD_FILE}"
    if not disk.exists(path):
        return None
    try:
        value = sealed_json.read(disk, path)
    except Damaged:
        return None
    if value.pop("v", None) != VERSION or value.pop("log_id", None) != log_id or value.keys() != LastHeard.__dataclass_fields__.keys():
        return None
    return LastHeard(**value)
