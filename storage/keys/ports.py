"""The port of the key index, as finding messages needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Index(Protocol):
    """Proposes the positions of messages that may have a key (`key_index.py`)."""

    def find(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]: ...
