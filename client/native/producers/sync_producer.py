"""The producer for threads: an AsyncProducer on an event loop in the background. It makes no
decisions about messages.

Callbacks of the application, those of futures and `on_progress`, run in the loop's own thread. What
would wait there for that thread raises BadArgument at once, and an exception of a callback reaches
no other message.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from ledgermq.client.api import arguments
from ledgermq.client.api.connection import DEFAULT_ENDPOINTS
from ledgermq.client.api.lifecycle import ThreadLife, is_inherited
from ledgermq.client.errors import BadArgument, ClusterError, SendFailed
from ledgermq.client.native.background import Background
from ledgermq.client.native.producers.outcomes import Acknowledged, BatchAcknowledged, Statistics
from ledgermq.client.native.producers.producer import AsyncProducer, Content, Keys
from ledgermq.client.native.producers.receipt_log import ReceiptLog
from ledgermq.proto.entries.layout import Buffer
from ledgermq.proto.signature import Credentials

R = TypeVar("R")


class ProducerOptions(TypedDict, total=False):
    """The options of `Producer` besides endpoints and topic: those of `AsyncProducer`, which says
    what they mean."""

    namespace: str
    name: str
    linger_ms: float
    batch_bytes: int
    window_bytes: int
    buffer_bytes: int
    timeout_s: float
    compression: Literal["lz4", "zstd"] | None
    compress_over: int
    memory: bool
    on_progress: Callable[[Statistics], None] | None
    receipt_log: ReceiptLog | str | Path | None
    credentials: Credentials | None
    tls: bool
    ca: bytes | None
    certificate: tuple[bytes, bytes] | None


class Outcome(Future[R]):
    """The future of what a Producer accepted. Its callbacks run in the producer's own thread, which
    every message needs."""

    def __init__(self, background: Background | None) -> None:
        super().__init__()
        self._background = background
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> R:
        """As of every future. Raises BadArgument in a callback, if this future is not done."""
        self._check_may_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of every future. Raises BadArgument in a callback, if this future is not done."""
        self._check_may_wait()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """As of every future; the callback runs in the producer's own thread, unless the future is
        done already."""

        def called(done: Future[R]) -> None:
            try:
                fn(done)
            except BaseException as error:
                if (
                    isinstance(error, Exception)
                    or self._background is None
                    or not self._background.here
                ):
                    raise
                # Such as SystemExit: futures log an Exception, but let this one through, to the
                # messages behind it.
                raise RuntimeError(f"a callback raised {type(error).__name__}") from error

        super().add_done_callback(called)

    def _check_may_wait(self) -> None:
        if self._background is not None and not self.done():
            self._background.check_may_wait()


class Producer:
    """Sends to one topic, from any thread. A context manager: leaving it flushes, unless by an
    exception.

    Takes the arguments of AsyncProducer. The methods are also those of AsyncProducer: `send` and
    `send_batch` block while there is no room, and return futures of `concurrent.futures`. Callbacks
    of futures and `on_progress` run in the producer's own thread: they must not block. There `send`
    works while there is room; everything that would wait raises BadArgument.
    """

    def __init__(
        self,
        endpoints: str = DEFAULT_ENDPOINTS,
        topic: str = "",
        **options: Unpack[ProducerOptions],
    ) -> None:
        """The arguments of `AsyncProducer`."""
        self._producer = AsyncProducer(endpoints, topic, **options)
        self._producer.on_room = self._released
        self._background: Background | None = None
        self._room = threading.Condition()
        self._handed: deque[tuple[Outcome[Acknowledged], int, Content, str | None, int | None]] = (
            deque()
        )
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
        body: Buffer,
        *,
        tag: str | None = None,
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        queue: int | None = None,
    ) -> Future[Acknowledged]:
        """As AsyncProducer.send. Futures cannot be cancelled. Raises BadArgument in a callback when
        there is no room."""
        content = Content.of(body, tag, keys, properties)
        size = self._producer.size_of(content)
        future: Outcome[Acknowledged] = Outcome(self._background)
        if is_inherited():
            # Before the lock, which the fork may have copied while another thread held it.
            self._life.check()
        with self._room:
            if not self._has_room(size):
                self._check_open().check_may_wait()
                self._room.wait_for(lambda: self._life.ended or self._has_room(size))
            loop = self._check_open()
            self._handed.append((future, size, content, order_key, queue))
            self._handed_bytes += size
            if not self._woken:
                self._woken = True
                loop.soon(self._accept_handed)
        return future

    def send_batch(
        self,
        bodies: Sequence[Buffer],
        *,
        tags: str | Sequence[str | None] | None = None,
        keys: Sequence[Keys | None] | None = None,
        properties: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        order_keys: Sequence[str] | None = None,
        queue: int | None = None,
    ) -> Future[BatchAcknowledged]:
        """As AsyncProducer.send_batch. Raises BadArgument in a callback."""
        columns: dict[str, Any] = {
            "tags": tags,
            "keys": keys,
            "properties": properties,
            "order_keys": order_keys,
            "queue": queue,
        }
        return self._chained(self._producer.send_batch(bodies, **columns))

    def send_arrow(
        self,
        table: Any,
        *,
        body: str = "body",
        tag: str | None = None,
        keys: str | None = None,
        properties: Sequence[str] = (),
        order_key: str | None = None,
        queue: int | None = None,
    ) -> Future[BatchAcknowledged]:
        """As AsyncProducer.send_arrow. Raises BadArgument in a callback."""
        columns: dict[str, Any] = {
            "tag": tag,
            "keys": keys,
            "properties": properties,
            "order_key": order_key,
            "queue": queue,
        }
        return self._chained(self._producer.send_arrow(table, body=body, **columns))

    def flush(self) -> None:
        """Wait until every message has an outcome. Raises BadArgument in a callback, as every
        method below."""
        self._do(self._flush())

    def next_sequences(self) -> Mapping[str, int]:
        """As AsyncProducer.next_sequences."""
        return self._do(self._producer.next_sequences())

    def refresh(self) -> None:
        """As AsyncProducer.refresh."""
        self._do(self._producer.refresh())

    def close(self, timeout_s: float | None = None) -> None:
        """As AsyncProducer.close; also ends the thread. Raises BadArgument in a callback."""
        patience_s = arguments.patience(timeout_s, "timeout_s")
        if self._background is not None:
            self._background.check_may_wait()
        if self._life.ended and self._background is not None and self._background.alive:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._background.soon(partial(self._producer.hurry, patience_s))
        self._life.end(partial(self._end, patience_s))

    def _end(self, patience_s: float | None) -> None:
        with self._room:
            # Whoever handed over a message, or began a call, has done so; whoever waits for room
            # learns of the end.
            self._room.notify_all()
        if self._background is not None and self._background.alive:
            try:
                self._background.wait(self._close(patience_s))
            except BaseException:
                # Ctrl-C may have come before the end began, which gives an outcome to what is not
                # answered.
                self._background.wait(self._close(0))
                raise
            finally:
                # Messages that other threads sent before have an outcome now; their callers learn
                # it before the loop ends.
                self._background.close()

    async def _flush(self) -> None:
        self._accept_handed()
        await self._producer.flush()

    async def _close(self, timeout_s: float | None) -> None:
        self._accept_handed()
        await self._producer.close(timeout_s)

    def _check_open(self) -> Background:
        """The loop's thread. It exists only inside the `with` block, and not in a process forked
        inside it. Raises BadArgument."""
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
        future: Outcome[R] = Outcome(self._background)

        def done(outcome: asyncio.Future[R]) -> None:
            error = outcome.exception()
            if error is None:
                future.set_result(outcome.result())
            else:
                future.set_exception(error)

        async def ordered() -> None:
            # Messages handed over earlier are sent first.
            self._accept_handed()
            (await sending).add_done_callback(done)

        try:
            self._do(ordered())
        finally:
            sending.close()
        return future

    def _accept_handed(self) -> None:
        """Runs in the loop: take what threads handed over, in order."""
        wrong: list[tuple[Outcome[Acknowledged], SendFailed]] = []
        with self._room:
            handed, self._handed = self._handed, deque()
            self._handed_bytes, self._woken = 0, False
            for item in handed:
                try:
                    self._producer.accept(*item)
                except ClusterError as error:
                    wrong.append(
                        (
                            item[0],
                            error
                            if isinstance(error, SendFailed)
                            else SendFailed(error.what, error.remedy, unknown=False),
                        )
                    )
                except Exception as error:
                    # An argument of a wrong type, such as a queue that is not a number; the
                    # messages behind it must not fail with it.
                    problem = f"the message cannot be sent ({error})"
                    wrong.append(
                        (item[0], SendFailed(problem, "correct its arguments", unknown=False))
                    )
        for future, failed in wrong:
            # Outside of the lock: a callback may wait for a thread that sends.
            future.set_exception(failed)

    def _has_room(self, size: int) -> bool:
        return self._producer.has_room(size, self._handed_bytes)

    def _released(self) -> None:
        with self._room:
            self._room.notify_all()
