"""Whole directories on the real disk, as backup and restore need them: walked, found empty, made durable, and the share of a job done.

Nothing here knows what a file means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ledgermq.storage.backup_manifest import Refused
from ledgermq.storage.real_disk import RealDisk

SPARE_BYTES = 16 << 20
"""Besides the files themselves, a copy wants this much free."""
Progress = Callable[[int, int], None]
"""Learns how many bytes of how many are done."""


class Meter:
    """Turns pieces of work into a share of the whole."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def __call__(self, piece: int) -> None:
        self._done = min(self._total, self._done + piece)
        self._progress(self._done, self._total)


def ignore(piece: int) -> None:
    """For work that is not counted."""


def require_empty(disk: RealDisk, target: str) -> None:
    """Raises Refused unless `target` is missing or an empty directory."""
    try:
        found = disk.listdir(target)
    except NotADirectoryError:
        raise Refused(f"{target} is a file", "name an empty or a new directory") from None
    if found:
        raise Refused(f"{target} is not empty ({found[0]} is there)", "name an empty or a new directory, or remove what is in this one")


def require_room(disk: RealDisk, target: str, wanted: int) -> None:
    """Raises Refused when the file system of `target` has less than `wanted` bytes free."""
    parent = os.path.abspath(target)
    while not disk.exists(parent):
        parent = os.path.dirname(parent)
    free = disk.free_bytes(parent)
    if free < wanted + SPARE_BYTES:
        raise Refused(f"{target} has room for {free} bytes, {wanted + SPARE_BYTES} are needed", "free space, or choose another directory")


def walk(disk: RealDisk, directory: str, below: str = "") -> Iterator[str]:
    """The paths of all files under `directory`, relative to it, sorted within each folder."""
    for name in disk.listdir(f"{directory}/{below}"):
        path = f"{below}{name}"
        if os.path.isdir(f"{directory}/{path}"):
            yield from walk(disk, directory, f"{path}/")
        else:
            yield path


def sync_tree(disk: RealDisk, directory: str) -> None:
    """Make the names of every file and folder under `directory`, and its own, durable; what the files hold already is."""
    for folder, _, _ in os.walk(directory, topdown=False):
        disk.sync_dir(folder)
    disk.sync_dir(os.path.dirname(os.path.abspath(directory)))
