"""The port of the conversion to Arrow: a batch as it needs it."""

from __future__ import annotations

from typing import Protocol

from ledgermq.proto.frames import EntryColumns
from ledgermq.proto.types import I64


class Convertible(Protocol):
    """What can be converted: see `received.py`."""

    @property
    def columns(self) -> EntryColumns: ...
    @property
    def queue(self) -> int: ...
    def __len__(self) -> int: ...
    def keys(self) -> list[tuple[str, ...]]: ...
    def joined_bodies(self) -> tuple[bytes, I64]: ...
