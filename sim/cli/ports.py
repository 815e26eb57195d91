"""What the pages of a run read of it: its events, each with a time, a node and a text."""

from __future__ import annotations

from typing import Protocol


class Happened(Protocol):
    """One event of a run; `node` is empty for events of the whole world."""

    @property
    def at_ns(self) -> int: ...

    @property
    def node(self) -> str: ...

    @property
    def text(self) -> str: ...
