"""The begin of an entry log (format §9, the file `begin`): the first kept entry, its position, and
the link to the entry before it.

The file is durable before the first file of the log is removed, so a log that does not begin at
entry 0 always has one. Without the file the log is complete. `entry_log.py` decides what is
removed, and when.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ledgermq.proto.entries.entry_sealing import chain_seed
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, LogDamaged, UnknownFormat, Unusable
from ledgermq.storage.files.ports import Disk

BEGIN_FILE = "begin"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Begin:
    """The log begins with entry `index`, the first of the file at `pos`; `term` and `chain` are
    those of the entry before it."""

    index: int
    pos: int
    term: int
    chain: int


def whole(log_id: str) -> Begin:
    """The begin of a log that was never trimmed."""
    return Begin(0, 0, -1, chain_seed(log_id))


def read_begin(disk: Disk, directory: str, log_id: str) -> Begin:
    """Raises LogDamaged, UnknownFormat, Unusable (another log's), OSError."""
    path = f"{directory}/{BEGIN_FILE}"
    if not disk.exists(path):
        return whole(log_id)
    try:
        value = sealed_json.read(disk, path)
    except Damaged as damage:
        raise LogDamaged(
            f"{damage}; without it the begin of this log is unknown: restore this replica from its"
            " peers"
        ) from damage
    version, owner = value.pop("v", None), value.pop("log_id", None)
    if version != VERSION:
        raise UnknownFormat(
            f"{path} has version {version}, this program knows {VERSION}: start the program that"
            " wrote it"
        )
    if owner != log_id:
        raise Unusable(
            f"{path} belongs to log {owner}, not to {log_id}: point the node at its own data"
            " directory"
        )
    return Begin(**value)


def write_begin(disk: Disk, directory: str, log_id: str, begin: Begin) -> None:
    """Atomic and durable when this returns. Raises OSError."""
    sealed_json.write(
        disk, f"{directory}/{BEGIN_FILE}", {"v": VERSION, "log_id": log_id, **asdict(begin)}
    )
