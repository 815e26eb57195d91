"""What a trim needs from the host of its replica."""

from __future__ import annotations

from typing import Protocol


class TrimmedIndex(Protocol):
    """The part of the key index that a trim uses; the index works on a thread of its own."""

    def trim(self, begin_pos: int) -> None: ...
