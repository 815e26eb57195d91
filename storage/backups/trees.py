"""Directory trees on the real disk, as backup and restore need them: walking, checking for
emptiness, syncing, and measuring progress.

This module does not know what a file means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.files.real_disk import RealDisk

SPARE_BYTES = 16 << 20
"""A copy needs this much free space besides the files themselves."""
Progress = Callable[[int, int], None]
"""Called with the number of bytes done, and the total."""


class Meter:
    """Converts completed pieces of work to progress of the whole."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def __call__(self, piece: int) -> None:
        self._done = min(self._total, self._done + piece)
        self._progress(self._done, self._total)


def ignore(piece: int) -> None:
    """A step function for work that is not measured."""


def require_empty(disk: RealDisk, target: str) -> None:
    """Raises Refused unless `target` is missing or an empty directory."""
    try:
        names = disk.listdir(target)
    except NotADirectoryError:
        raise Refused(f"{target} is a file", "give an empty or a new directory") from None
    if names:
        raise Refused(
            f"{target} is not empty ({names[0]} is there)",
            "give an empty or a new directory, or empty this one",
        )


def require_room(disk: RealDisk, target: str, wanted: int) -> None:
    """Raises Refused if the file system of `target` has less than `wanted` bytes free."""
    parent = os.path.abspath(target)
    while not disk.exists(parent):
        parent = os.path.dirname(parent)
    free = disk.free_bytes(parent)
    if free < wanted + SPARE_BYTES:
        raise Refused(
            f"{target} has room for {free} bytes, {wanted + SPARE_BYTES} are needed",
            "free space, or choose another directory",
        )


def walk(disk: RealDisk, directory: str, below: str = "") -> Iterator[str]:
    """The paths of all files under `directory`, relative to it, sorted within each folder."""
    for name in disk.listdir(f"{directory}/{below}"):
        path = f"{below}{name}"
        if os.path.isdir(f"{directory}/{path}"):
            yield from walk(disk, directory, f"{path}/")
        else:
            yield path


def sync_tree(disk: RealDisk, directory: str) -> None:
    """Make the names of all files and folders under `directory` durable, and its own; the content
    of the files must be durable already."""
    for folder, _, _ in os.walk(directory, topdown=False):
        disk.sync_dir(folder)
    disk.sync_dir(os.path.dirname(os.path.abspath(directory)))
