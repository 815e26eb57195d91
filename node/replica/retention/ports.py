"""What a trim needs of the host of its replica. Protocols only."""

from __future__ import annotations

from typing import Protocol


class TrimmedIndex(Protocol):
    """What is needed of the key index, which works on a thread of its own."""

    def trim(self, begin_pos: int) -> None: ...
