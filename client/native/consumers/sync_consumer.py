"""`AsyncConsumer` for threads: the same options and methods, each of which blocks the caller's
thread.

Streams, credit and heartbeats run in a background thread while the application processes a batch.
Callbacks have a thread of their own, in which they can wait for that one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ledgermq.client.api.lifecycle import ThreadLife
from ledgermq.client.native.background import Background
from ledgermq.client.native.consumers.arrow import schema
from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.consumers.settings import ConsumerOptions, ConsumerSettings
from ledgermq.client.native.consumers.statistics import ConsumerStatistics

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
CALLBACKS = ("on_assigned", "on_revoked", "on_progress")


class Consumer:
    """Reads one topic in batches. A context manager; for one thread at a time, besides callbacks,
    which run in a thread of their own.

        with Consumer("127.0.0.1:8081", "orders", start="latest") as consumer:
            for batch in consumer.batches():
                work(batch.bodies())

    See `AsyncConsumer` for the guarantees. Methods raise ClusterError.
    """

    def __init__(self, endpoints: str, topic: str, **options: Unpack[ConsumerOptions]) -> None:
        """The arguments of `AsyncConsumer`."""
        given: dict[str, Any] = dict(options)
        aside = {name: _aside(given[name]) for name in CALLBACKS if callable(given.get(name))}
        self._consumer = AsyncConsumer(endpoints, topic, **(given | aside))
        self._background: Background | None = None
        self._life = ThreadLife("consumer", "use it within its `with` block")

    @property
    def settings(self) -> ConsumerSettings:
        return self._consumer.settings

    def __enter__(self) -> Consumer:
        with self._life.opening():
            self._background = Background("ledgermq-consumer")
            try:
                self._background.wait(self._consumer.__aenter__())
            except BaseException:  # Ctrl-C too must not leave the thread running
                self._life.end(self._background.close)
                raise
        return self

    def __exit__(self, *raised: object) -> None:
        if self._background is not None:
            self._background.check_may_wait()
            self._consumer.check_may_wait()
        self._life.end(partial(self._close, *raised))

    def _close(self, *raised: object) -> None:
        if self._background is not None:
            try:
                self._background.wait(self._consumer.__aexit__(*raised))
            finally:
                self._background.close()

    @property
    def _loop(self) -> Background:
        self._life.check(closing=True)
        assert self._background is not None, "it was opened"
        return self._background

    def batches(self) -> Iterator[Batch]:
        """See `AsyncConsumer.batches`."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def arrow_batches(
        self, columns: Collection[str] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """See `AsyncConsumer.arrow_batches`."""
        while (converted := self._next(lambda batch: batch.to_arrow(columns))) is not None:
            yield converted

    def arrow(self, columns: Collection[str] | None = None) -> pyarrow.RecordBatchReader:
        """All further batches as one Arrow stream (`__arrow_c_stream__`), which DuckDB, Polars and
        pandas read; needs pyarrow. It ends where `batches` ends. Raises BadArgument for an unknown
        column."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(schema(columns), self.arrow_batches(columns))

    def next_batch(self, wait_s: float | None = None) -> Batch | None:
        """See `AsyncConsumer.next_batch`."""
        return self._next(lambda batch: batch, wait_s)

    def _next(self, convert: Callable[[Batch], T], wait_s: float | None = None) -> T | None:
        """The next batch, converted. After an exception, also one that interrupts the wait, the
        same batch comes again."""
        batch = self._loop.wait(self._consumer.offer(wait_s))
        converted = None if batch is None else convert(batch)
        self._consumer.seen()
        return converted

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """See `AsyncConsumer.commit`."""
        self._loop.wait(self._consumer.commit(offsets))

    def seek(self, queue: int, to: int | str | datetime) -> None:
        """See `AsyncConsumer.seek`."""
        self._loop.run(lambda: self._consumer.seek(queue, to))

    def seek_time(self, moment: datetime | int, queue: int | None = None) -> None:
        """See `AsyncConsumer.seek_time`."""
        self._loop.run(lambda: self._consumer.seek_time(moment, queue))

    def assigned(self) -> tuple[int, ...]:
        """See `AsyncConsumer.assigned`."""
        return self._loop.run(self._consumer.assigned)

    def caught_up(self) -> bool:
        """See `AsyncConsumer.caught_up`."""
        return self._loop.run(self._consumer.caught_up)

    def statistics(self) -> ConsumerStatistics:
        """See `AsyncConsumer.statistics`."""
        return self._loop.run(self._consumer.statistics)


def _aside(callback: Callable[[T], Awaitable[None] | None]) -> Callable[[T], Awaitable[None]]:
    """The callback for the event loop: called in another thread, while the loop goes on. A
    coroutine function begins there, and its coroutine runs in the loop."""

    def called(argument: T) -> Awaitable[None] | None:
        try:
            return callback(argument)
        except StopIteration as error:  # the only exception that a future refuses
            raise RuntimeError("the callback raised StopIteration") from error

    async def call(argument: T) -> None:
        answer = await asyncio.to_thread(called, argument)
        if inspect.isawaitable(answer):
            await answer

    return call
