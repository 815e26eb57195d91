"""Consume queues whose units never wait."""

from __future__ import annotations

from ledgermq.proto.entries.layout import Columns
from ledgermq.storage.queues.queue_buffer import BufferedQueues


class WrittenQueues(BufferedQueues):
    """Every unit is in its file when `append` returns."""

    def append(self, columns: Columns) -> None:
        """As of `BufferedQueues`."""
        super().append(columns)
        self.write_waiting()
