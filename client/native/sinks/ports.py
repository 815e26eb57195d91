"""The ports of the sinks: a file that is filled, and where the messages of a topic go, with the
progress that is kept with them."""

from __future__ import annotations

from typing import Any, Protocol, Self

from ledgermq.client.native.consumers.positions import EntryName
from ledgermq.client.native.consumers.received import Batch

Queue = tuple[str, int]


class File(Protocol):
    """The output file: see `data_files.py`."""

    @property
    def whole(self) -> bool: ...
    def write_batch(self, batch: Batch) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class Sink(Protocol):
    """Where the messages go. A context manager: leaving it makes those that were written durable if
    `completes` holds."""

    where: str
    """For error messages."""
    positions: dict[Queue, int]
    """The next offset behind all messages written, by queue."""
    last: dict[Queue, EntryName]
    """The last of those messages. Kept with the positions; sinks of former versions did not keep
    it, so it may be missing."""
    logs: dict[str, str]
    """The id of the log that they were read from, by broker group. Kept with the positions."""
    rows: int
    done: int
    """The number of messages written, and of the complete files or commits that hold them."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: Any) -> None: ...

    def write(self, batch: Batch) -> bool:
        """Write the messages of a batch. Returns False, and writes nothing, if it does not continue
        its queue."""

    def roll_due(self) -> None:
        """Make durable what has reached its size or age."""
