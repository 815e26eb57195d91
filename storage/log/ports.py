"""The port of a log's readers: committed entries within limits, wherever they are."""

from __future__ import annotations

from typing import Protocol

from ledgermq.storage.log.log_reader import Limits, Piece


class Entries(Protocol):
    """Committed entries within limits, on the local disk or in an object store
    (`tiered/tier_reader.py`). Any thread may read."""

    @property
    def limits(self) -> Limits: ...

    def read(self, first_index: int, max_bytes: int) -> Piece | None:
        """Entries from `first_index` on: at least one, then up to `max_bytes`, of one log file.
        None if the file is gone."""
        ...

    def record_bytes(self, pos: int, length: int) -> bytes | None:
        """Bytes at a position, as far as they may be read and lie in one file; None if the file is
        gone."""
        ...
