"""The ports between parts of the derived state: what one part asks another about queues and
groups."""

from __future__ import annotations

from typing import Protocol


class Places(Protocol):
    """Where groups begin, and queues end, at the current entry."""

    def first_place(self, topic: str, queue: int) -> int:
        """The lowest place of a group in a queue; for a lite topic without a queue, where it will
        begin."""
        ...

    def end(self, topic: str, queue: int) -> int:
        """One past the last offset; for a lite topic without a queue, where it will begin."""
        ...


class Begins(Protocol):
    """Where queues begin at the current entry."""

    def begin(self, topic: str, queue: int) -> int: ...
