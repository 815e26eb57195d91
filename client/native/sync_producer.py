"""The producer for threads: an AsyncProducer on an event loop with a thread of its own. Nothing about messages is decided here."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ledgermq.client.errors import BadArgument, ClusterError, SendFailed
from ledgermq.client.native.outcomes import Acknowledged, BatchAcknowledged, Statistics
from ledgermq.client.native.producer import AsyncProducer, Keys, extra_bytes

R = TypeVar("R")
LAST_WORDS_S = 1.0


class Producer:
    """Sends to one topic, from any thread. A context manager: leaving it flushes, unless by an exception.

    Takes the arguments of AsyncProducer; `on_progress` is called in the producer's own thread. The methods are those of AsyncProducer, too:
    `send` and `send_batch` block while there is no room, and return futures of `concurrent.futures`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._producer = AsyncProducer(*args, **options)
        self._producer.on_room = self._released
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ledgermq-producer", daemon=True)
        self._room = threading.Condition()
        self._handed: deque[tuple[Any, ...]] = deque()
        """Messages on their way to the loop."""
        self._handed_bytes = 0
        self._woken = False
        self._closed = False

    def __enter__(self) -> Producer:
        self._thread.start()
        try:
            self._do(self._producer.start())
        except BaseException:
            self.close(0)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close(None if kind is None else 0)
        except ClusterError:
            # What went wrong first is what the caller is to see.
            if kind is None:
                raise

    @property
    def statistics(self) -> Statistics:
        """As of some moment ago."""
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
        with self._room:
            self._room.wait_for(lambda: self._closed or self._producer.has_room(size + self._handed_bytes))
            self._check_open()
            self._handed.append((future, size, body, tag, keys, properties, order_key, queue))
            self._handed_bytes += size
            if not self._woken:
                self._woken = True
                self._loop.call_soon_threadsafe(self._take)
        return future

    def send_batch(self, bodies: Sequence[Any], **columns: Any) -> Future[BatchAcknowledged]:
        """As AsyncProducer.send_batch."""
        return self._chained(self._producer.send_batch(bodies, **columns))

    def send_arrow(self, table: Any, **columns: Any) -> Future[BatchAcknowledged]:
        """As AsyncProducer.send_arrow."""
        return self._chained(self._producer.send_arrow(table, **columns))

    def flush(self) -> None:
        """Wait until nothing is without an outcome any more."""
        self._do(self._flush())

    def next_sequences(self) -> Mapping[str, int]:
        """As AsyncProducer.next_sequences."""
        return self._do(self._producer.next_sequences())

    def close(self, timeout_s: float | None = None) -> None:
        """As AsyncProducer.close; ends the thread."""
        with self._room:
            if self._closed:
                return
            self._closed = True
            self._room.notify_all()
        try:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(self._close(timeout_s), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
        finally:
            if not self._thread.is_alive():
                self._loop.close()

    async def _flush(self) -> None:
        self._take()
        await self._producer.flush()

    async def _close(self, timeout_s: float | None) -> None:
        self._take()
        try:
            await self._producer.close(timeout_s)
        finally:
            # What other threads began before has an outcome now, and its callers are to hear of it before the loop stops.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=LAST_WORDS_S)
            await asyncio.sleep(0)

    def _check_open(self) -> None:
        """The thread is not there before the `with` block, and not in a process that was forked off within it."""
        if self._closed:
            raise BadArgument("the producer is closed", "open another one")
        if not self._thread.is_alive():
            raise BadArgument("the producer is not open in this process", "use it within its `with` block")

    def _do(self, work: Coroutine[Any, Any, R]) -> R:
        with self._room:
            # Under the lock of `close`: what is handed over here is there before the end.
            try:
                self._check_open()
            except BadArgument:
                work.close()
                raise
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def _chained(self, sending: Coroutine[Any, Any, asyncio.Future[R]]) -> Future[R]:
        """Blocks while the batch is accepted; the future is of its outcome."""
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()

        def done(outcome: asyncio.Future[R]) -> None:
            error = outcome.exception()
            if error is None:
                future.set_result(outcome.result())
            else:
                future.set_exception(error)

        async def ordered() -> None:
            # What was handed over before goes before.
            self._take()
            (await sending).add_done_callback(done)

        try:
            self._do(ordered())
        finally:
            sending.close()
        return future

    def _take(self) -> None:
        """In the loop: what threads have handed over, in their order."""
        with self._room:
            handed, self._handed = self._handed, deque()
            self._handed_bytes, self._woken = 0, False
            for item in handed:
                try:
                    self._producer.accept(*item)
                except ClusterError as error:
                    item[0].set_exception(error if isinstance(error, SendFailed) else SendFailed(error.what, error.remedy, unknown=False))
                except Exception as error:
                    # Of a wrong type, such as a queue that is no number: those behind it are not to suffer.
                    item[0].set_exception(SendFailed(f"the message cannot be sent ({error})", "correct its arguments", unknown=False))

    def _released(self) -> None:
        with self._room:
            self._room.notify_all()
