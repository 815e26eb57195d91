"""Where a log begins in the object store: as its description says, or behind what total retention
has removed since, and the snapshots that cover what was before (format §21).

Each begin and each snapshot has a key of its own. Of the begins the highest one counts, and of the
snapshots the lowest one that covers it: one that includes the trim record by which the log begins
there. An older one may reach as far, but a replica cannot be opened with it: it says of each queue
where that began before the trim, and the messages in between are gone. So leaders that overlap, and
writes that arrive late, never move the begin back, and never replace the snapshot that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged, UnknownFormat
from ledgermq.storage.files.mapped_files import file_name, parse_name
from ledgermq.storage.log.begin import Begin
from ledgermq.storage.tiered.ports import ObjectStore

VERSION = 1
FOLDER = "begins"
SNAPSHOTS = "snapshots"


def begin_key(where: str, pos: int) -> str:
    return f"{where}/{FOLDER}/{file_name(pos)}"


def stored_begin(store: ObjectStore, where: str, described: Begin) -> Begin:
    """Where the log begins in the store; `described`: where it began when its description was
    written. Raises StoreFailure, Damaged, UnknownFormat."""
    positions = _numbers(store, f"{where}/{FOLDER}")
    if not positions or positions[-1] <= described.pos:
        return described
    key = begin_key(where, positions[-1])
    value = sealed_json.decode(store.get(key), key)
    if value.pop("v", None) != VERSION:
        raise UnknownFormat(
            f"{key} was written by another version of LedgerMQ: use the program that wrote it"
        )
    try:
        return Begin(**value)
    except TypeError as error:
        raise Damaged(f"{key} lacks fields, or has unknown ones ({error})") from error


def snapshot_key(where: str, applied_index: int) -> str:
    return f"{where}/{SNAPSHOTS}/{file_name(applied_index)}"


def stored_snapshots(store: ObjectStore, where: str) -> list[int]:
    """The entries up to which the snapshots in the store reach, ascending. Raises StoreFailure."""
    return _numbers(store, f"{where}/{SNAPSHOTS}")


def _numbers(store: ObjectStore, folder: str) -> list[int]:
    """The numbers that name objects directly in a folder, ascending."""
    return sorted(
        at
        for key in store.list(folder)
        if (at := parse_name(key.removeprefix(f"{folder}/"))) is not None
    )


def covers(snapshot: Mapping[str, Any], first: int) -> bool:
    """Whether a replica whose log begins with entry `first` can be opened with this snapshot."""
    return int(snapshot["retained"]["begin_index"]) >= first


def covering_snapshot(
    store: ObjectStore, where: str, first: int, last: int | None = None
) -> dict[str, Any] | None:
    """The stored snapshot that counts for a log from entry `first` to `last` (None: wherever it
    ends), if there is one. Raises StoreFailure, Damaged."""
    for at in stored_snapshots(store, where):
        if at >= first - 1 and (last is None or at <= last):
            key = snapshot_key(where, at)
            snapshot = sealed_json.decode(store.get(key), key)
            if covers(snapshot, first):
                return snapshot
    return None


def encode(begin: Begin) -> bytes:
    return sealed_json.encode({"v": VERSION, **asdict(begin)})
