"""The producer for threads: an AsyncProducer on an event loop in the background. It makes no decisions about messages."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ledgermq.client import arguments
from ledgermq.client.errors import BadArgument, ClusterError, SendFailed
from ledgermq.client.lifecycle import ThreadLife, is_inherited
from ledgermq.client.native.background import Background
from ledgermq.client.native.outcomes import Acknowledged, BatchAcknowledged, Statistics
from ledgermq.client.native.producer import AsyncProducer, Keys, extra_bytes

R = TypeVar("R")


class Producer:
    """Sends to one topic, from any thread. A context manager: leaving it flushes, unless by an exception.

    Takes the arguments of AsyncProducer; `on_progress` is called in the producer's own thread. The methods are also those of AsyncProducer:
    `send` and `send_batch` block while there is no room, and return futures of `concurrent.futures`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._producer = AsyncProducer(*args, **options)
        self._producer.on_room = self._released
        self._background: Background | None = None
        self._room = threading.Condition()
        self._handed: deque[tuple[Any, ...]] = deque()
        """Messages handed over by threads, for the loop to take."""
        self._handed_bytes = 0
        self._woken = False
        self._life = ThreadLife("producer", "use it within its `with` block")

    def __enter__(self) -> Producer:
        with self._life.opening():
            self._background = Background("ledgermq-producer")
            try:
                self._background.wait(self._producer.start())
            except BaseException:  # Ctrl-C too must not leave the thread running
                self.close(0)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close(None if kind is None else 0)
        except ClusterError:
            # The caller is to see the first error.
            if kind is None:
                raise

    @property
    def statistics(self) -> Statistics:
        """The statistics of a recent moment."""
        return self._producer.statistics

    def send(
        self,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        queue: int | None = None,
    ) -> Future[Acknowledged]:
        """As AsyncProducer.send. Futures cannot be cancelled."""
        future: Future[Acknowledged] = Future()
        future.set_running_or_notify_cancel()
        size = self._producer.size_of(body) + extra_bytes(tag, keys, properties)
        if is_inherited():
            # Before the lock, which the fork may have copied while another thread held it.
            self._life.check()
        with self._room:
            self._room.wait_for(lambda: self._life.ended or self._producer.has_room(size + self._handed_bytes))
            loop = self._check_open()
            self._handed.append((future, size, body, tag, keys, properties, order_key, queue))
            self._handed_bytes += size
            if not self._woken:
                self._woken = True
                loop.soon(self._take)
        return future

    def send_batch(self, bodies: Sequence[Any], **columns: Any) -> Future[BatchAcknowledged]:
        """As AsyncProducer.send_batch."""
        return self._chained(self._producer.send_batch(bodies, **columns))

    def send_arrow(self, table: Any, **columns: Any) -> Future[BatchAcknowledged]:
        """As AsyncProducer.send_arrow."""
        return self._chained(self._producer.send_arrow(table, **columns))

    def flush(self) -> None:
        """Wait until every message has an outcome."""
        self._do(self._flush())

    def next_sequences(self) -> Mapping[str, int]:
        """As AsyncProducer.next_sequences."""
        return self._do(self._producer.next_sequences())

    def refresh(self) -> None:
        """As AsyncProducer.refresh."""
        self._do(self._producer.refresh())

    def close(self, timeout_s: float | None = None) -> None:
        """As AsyncProducer.close; also ends the thread."""
        patience_s = arguments.patience(timeout_s, "timeout_s")
        if self._life.ended and self._background is not None and self._background.alive:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._background.soon(partial(self._producer.hurry, patience_s))
        self._life.end(partial(self._end, patience_s))

    def _end(self, patience_s: float | None) -> None:
        with self._room:
            # Whoever handed over a message, or began a call, has done so; whoever waits for room learns of the end.
            self._room.notify_all()
        if self._background is not None and self._background.alive:
            try:
                self._background.wait(self._close(patience_s))
            finally:
                # Messages that other threads sent before have an outcome now; their callers learn it before the loop ends.
                self._background.close()

    async def _flush(self) -> None:
        self._take()
        await self._producer.flush()

    async def _close(self, timeout_s: float | None) -> None:
        self._take()
        await self._producer.close(timeout_s)

    def _check_open(self) -> Background:
        """The loop's thread. It exists only inside the `with` block, and not in a process forked inside it. Raises BadArgument."""
        self._life.check()
        if self._background is None or not self._background.alive:
            raise BadArgument("the producer's thread has ended", "open another producer")
        return self._background

    def _do(self, work: Coroutine[Any, Any, R]) -> R:
        try:
            self._life.check()
            with self._room:
                # Under the lock of `close`, so work handed over here arrives before the end.
                outcome = self._check_open().begin(work)
        except BadArgument:
            work.close()
            raise
        return outcome()

    def _chained(self, sending: Coroutine[Any, Any, asyncio.Future[R]]) -> Future[R]:
        """Block until the batch is accepted; the future is that of its outcome."""
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()

        def done(outcome: asyncio.Future[R]) -> None:
            error = outcome.exception()
            if error is None:
                future.set_result(outcome.result())
            else:
                future.set_exception(error)

        async def ordered() -> None:
            # Messages handed over earlier are sent first.
            self._take()
            (await sending).add_done_callback(done)

        try:
            self._do(ordered())
        finally:
            sending.close()
        return future

    def _take(self) -> None:
        """Runs in the loop: take what threads handed over, in order."""
        with self._room:
            handed, self._handed = self._handed, deque()
            self._handed_bytes, self._woken = 0, False
            for item in handed:
                try:
                    self._producer.accept(*item)
                except ClusterError as error:
                    item[0].set_exception(error if isinstance(error, SendFailed) else SendFailed(error.what, error.remedy, unknown=False))
                except Exception as error:
                    # An argument of a wrong type, such as a queue that is not a number; the messages behind it must not fail with it.
                    item[0].set_exception(SendFailed(f"the message cannot be sent ({error})", "correct its arguments", unknown=False))

    def _released(self) -> None:
        with self._room:
            self._room.notify_all()
