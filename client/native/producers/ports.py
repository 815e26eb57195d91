"""The ports of the producers' room: who learns the outcome of rows, and futures of both kinds."""

from __future__ import annotations

from typing import Any, Protocol

from ledgermq.client.native.producers.outcomes import FrameAcknowledged


class OutcomeSink(Protocol):
    """Learns the outcome of each row: acknowledged with its frame, or failed. Only the first
    outcome of a row counts."""

    def acknowledged(self, row: int, frame: FrameAcknowledged) -> None:
        """The frame starts with the row `row`."""

    def failed(self, row: int, count: int, error: Exception) -> None: ...


class AnyFuture(Protocol):
    """An asyncio or a concurrent future."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...
