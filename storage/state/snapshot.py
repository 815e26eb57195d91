"""The snapshot files (format §11): derived state at one applied index, as a checksummed JSON
object, in two generations.

The store sees a snapshot as a dictionary; the applier knows the keys, except for the two tables of
the consume queues. A snapshot counts only if the caller finds that its index, term and chain CRC
agree with the log. The caller syncs the consume queues before writing one. For a trimmed log, only
a snapshot holds the state of the removed entries: so there are always two generations, and a
damaged one never becomes the older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.queues.consume_queue import Minimum

SNAPSHOT_FILE = "snapshot"
PREVIOUS_FILE = "snapshot.previous"
GENERATIONS = (SNAPSHOT_FILE, PREVIOUS_FILE)


def write_snapshot(
    disk: Disk, state_directory: str, value: Mapping[str, Any], *, rotate: bool | None = None
) -> None:
    """Replace the snapshot atomically and durably; with `rotate` (default: if it is intact) the
    former one becomes the previous generation. A crash between the two renames leaves only the
    former one; a failure before them leaves both."""
    path, data = f"{state_directory}/{SNAPSHOT_FILE}", sealed_json.encode(value)
    if disk.exists(f"{path}.tmp"):
        disk.unlink(f"{path}.tmp")
    file = disk.create(f"{path}.tmp", len(data), allocate=False)
    try:
        file.pwrite(0, data)
        file.sync()
    finally:
        file.close()
    wanted = (
        read_generation(disk, state_directory, SNAPSHOT_FILE) is not None
        if rotate is None
        else rotate
    )
    # An attempt that failed between the two renames has already done the first.
    if wanted and disk.exists(path):
        disk.rename(path, f"{state_directory}/{PREVIOUS_FILE}")
    disk.rename(f"{path}.tmp", path)
    disk.sync_dir(state_directory)


def read_snapshot(disk: Disk, state_directory: str) -> dict[str, Any] | None:
    """The newest intact snapshot, if any."""
    return next((value for _, value in read_snapshots(disk, state_directory)), None)


def read_snapshots(disk: Disk, state_directory: str) -> list[tuple[str, dict[str, Any]]]:
    """File name and value of every intact generation, newest first."""
    generations = [(name, read_generation(disk, state_directory, name)) for name in GENERATIONS]
    return [(name, value) for name, value in generations if value is not None]


def read_generation(disk: Disk, state_directory: str, name: str) -> dict[str, Any] | None:
    """One generation; None if it does not exist or is damaged. Another process may rename it at any
    moment, between the two renames of `write_snapshot` no file has the newest generation's name."""
    try:
        return sealed_json.read(disk, f"{state_directory}/{name}")
    except (FileNotFoundError, Damaged):
        return None


def discard_snapshot(disk: Disk, state_directory: str) -> None:
    """Remove all generations durably: the derived state is then rebuilt from the begin of the
    log."""
    paths = [
        f"{state_directory}/{name}"
        for name in GENERATIONS
        if disk.exists(f"{state_directory}/{name}")
    ]
    for path in paths:
        disk.unlink(path)
    if paths:
        disk.sync_dir(state_directory)


def export_minimums(table: Mapping[str, Mapping[int, Minimum]]) -> dict[str, dict[str, list[Any]]]:
    """{stored topic: {queue: [minimum, unit before it or null]}} as JSON values."""
    return {
        topic: {
            str(queue): [offset, None if last is None else list(last)]
            for queue, (offset, last) in queues.items()
        }
        for topic, queues in table.items()
    }


def next_offsets(value: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """The next offsets of a snapshot, in the form that the consume queues take."""
    return {
        topic: {int(queue): end for queue, end in ends.items()}
        for topic, ends in value["queues"].items()
    }


def minimums(value: Mapping[str, Any]) -> dict[str, dict[int, Minimum]]:
    """The minimums of a snapshot, in the form that the consume queues take."""
    return {
        topic: {
            int(queue): (low, None if last is None else (last[0], last[1], last[2]))
            for queue, (low, last) in queues.items()
        }
        for topic, queues in value.get("minimums", {}).items()
    }
