"""The port of the doctor: the scratch file by which it measures a medium."""

from __future__ import annotations

from typing import Protocol


class Probe(Protocol):
    """A scratch file without a name on the medium."""

    def write(self, offset: int, data: bytes) -> None: ...
    def sync(self) -> None:
        """fdatasync."""
        ...
