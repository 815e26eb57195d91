"""The port of a file whose bytes a repair reads, on any replica."""

from __future__ import annotations

from typing import Protocol


class Readable(Protocol):
    def pread(self, size: int, offset: int) -> bytes: ...
