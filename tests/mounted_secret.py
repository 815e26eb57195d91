"""A Secret as Kubernetes mounts it: every file is a symlink into `..data`, and `..data` is a
symlink that is replaced as a whole.

The modes are those of a volume with `defaultMode` and `fsGroup`: the group may read, and nobody may
write.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path


class MountedSecret:
    """The directory of one volume."""

    def __init__(self, directory: Path, files: Mapping[str, bytes], mode: int = 0o440) -> None:
        self.directory = directory
        self._mode = mode
        self._rounds = 0
        directory.mkdir()
        self.replace(files)
        for name in files:
            (directory / name).symlink_to(Path("..data", name))

    def replace(self, files: Mapping[str, bytes]) -> None:
        """Put other contents in place: all files at the same instant, then the former ones are
        removed."""
        self._rounds += 1
        fresh, draft, data = (
            self.directory / name for name in (f"..{self._rounds}", "..data_tmp", "..data")
        )
        former = data.resolve() if data.exists() else None
        fresh.mkdir(mode=0o755)
        for name, content in files.items():
            (fresh / name).write_bytes(content)
            (fresh / name).chmod(self._mode)
        draft.symlink_to(fresh.name)
        draft.replace(data)
        if former is not None:
            shutil.rmtree(former)
