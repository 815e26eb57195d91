"""The ports of the entries' room: consecutive entries as their readers see them, a `Range` without
its history."""

from __future__ import annotations

from typing import Protocol

from ledgermq.proto.types import I32, I64


class Sealed(Protocol):
    """Consecutive entries: a `Range` without its history."""

    @property
    def data(self) -> memoryview: ...
    @property
    def starts(self) -> I64: ...
    @property
    def sizes(self) -> I32: ...


class Entries(Protocol):
    """Consecutive sealed entries: a `Range` without its history."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def data(self) -> memoryview: ...
    @property
    def starts(self) -> I64: ...
    @property
    def sizes(self) -> I32: ...
