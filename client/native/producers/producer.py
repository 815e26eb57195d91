"""Producers for event loops: they accept messages one by one or in columns, and return futures of
the acknowledgements.

This module holds the back-pressure, the choice of queues, and what belongs to a whole producer: its
sessions (one per broker group), deadlines, statistics and end. A future is done only with the
message's outcome; no message is dropped silently.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from ledgermq.client.api import arguments
from ledgermq.client.api.connection import DEFAULT_ENDPOINTS
from ledgermq.client.api.lifecycle import LoopLife, Stage
from ledgermq.client.errors import BadArgument, ClusterError, SendFailed, WrongKind
from ledgermq.client.native.log_connection import LogConnection
from ledgermq.client.native.producers.arrow_columns import columns_of
from ledgermq.client.native.producers.batches import (
    OVERHEAD_BYTES,
    Batch,
    Gathering,
    Message,
    Rows,
    RowsOfGroup,
)
from ledgermq.client.native.producers.columns import Columns, Packing, copied, flat
from ledgermq.client.native.producers.outcomes import Acknowledged, BatchAcknowledged, Statistics
from ledgermq.client.native.producers.ports import AnyFuture, OutcomeSink
from ledgermq.client.native.producers.producer_session import ProducerSession, ProducerSettings
from ledgermq.client.native.producers.receipt_log import ReceiptLog
from ledgermq.client.native.producers.routing import Router
from ledgermq.client.native.producers.stream import Caller, ProducerStream
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.compression import Compression
from ledgermq.proto.entries.layout import Buffer
from ledgermq.proto.frames import COMPRESS_OVER_BYTES
from ledgermq.proto.signature import Credentials
from ledgermq.proto.types import I32

CONNECT_TIMEOUT_S = 10.0
ROUTE_S = 30.0
"""How often a producer asks for the queues of its topic; official clients use the same interval."""
KINDS = ("normal", "mixed")
COMPRESSIONS = {None: Compression.NONE, "lz4": Compression.LZ4, "zstd": Compression.ZSTD}
Keys = str | Sequence[str]
R = TypeVar("R")


class AsyncProducer:
    """Sends to one topic, for one event loop. An asynchronous context manager: leaving it flushes,
    unless by an exception.

    Every accepted message is stored once, or its future fails. The messages of one queue are stored
    in the order in which they were accepted. `send` and `send_batch` wait only for room in the
    buffer.
    """

    def __init__(
        self,
        endpoints: str = DEFAULT_ENDPOINTS,
        topic: str = "",
        *,
        namespace: str = "",
        name: str = "",
        linger_ms: float = 0,
        batch_bytes: int = 256 << 10,
        window_bytes: int = 8 << 20,
        buffer_bytes: int = 32 << 20,
        timeout_s: float = 30.0,
        compression: Literal["lz4", "zstd"] | None = None,
        compress_over: int = COMPRESS_OVER_BYTES,
        memory: bool = False,
        on_progress: Callable[[Statistics], None] | None = None,
        receipt_log: ReceiptLog | str | Path | None = None,
        credentials: Credentials | None = None,
        tls: bool = False,
        ca: bytes | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """`name` outlives the process: the next producer that opens it continues its sequence
        numbers, and this producer is fenced. `linger_ms`: how long a frame waits for more messages;
        at 0 it waits only while other frames are in flight. `buffer_bytes`: bytes of unanswered
        messages before `send` waits. `timeout_s`: from the acceptance of a message until it fails.
        Bodies larger than `compress_over` are compressed. `memory`: acknowledge when a majority has
        the message in memory, if the topic allows it. `receipt_log`: a Parquet file for all
        receipts. The other arguments are those of `Connection`. Raises BadArgument."""
        if compression not in COMPRESSIONS:
            raise BadArgument(f"there is no compression {compression!r}", "use 'lz4' or 'zstd'")
        wire: dict[str, Any] = {
            "credentials": credentials,
            "tls": tls,
            "ca": ca,
            "certificate": certificate,
        }
        self._timeout_s = arguments.seconds(timeout_s, "timeout_s")
        self.connection = LogConnection(
            endpoints, timeout_s=min(self._timeout_s, CONNECT_TIMEOUT_S), **wire
        )
        self.statistics = Statistics()
        self._topic, self._namespace = topic, namespace
        packing = Packing(
            COMPRESSIONS[compression], arguments.count(compress_over, "compress_over", 0)
        )
        stored = arguments.stored_topic(namespace, topic)
        linger_s = arguments.seconds(linger_ms, "linger_ms", zero=True) / 1000
        sizes = (
            arguments.count(batch_bytes, "batch_bytes"),
            arguments.count(window_bytes, "window_bytes"),
        )
        self._settings = ProducerSettings(
            stored, arguments.text(name, "the name"), *sizes, linger_s, packing
        )
        self._buffer_bytes = arguments.count(buffer_bytes, "buffer_bytes")
        self._memory = memory
        self._on_progress = arguments.function(on_progress, "on_progress")
        arguments.one_of(receipt_log, "receipt_log", ReceiptLog, str, Path)
        self._own_log = (
            receipt_log if not isinstance(receipt_log, str | Path) else ReceiptLog(receipt_log)
        )
        self._closes_log = isinstance(receipt_log, str | Path)
        self._overhead = OVERHEAD_BYTES + len(stored.encode())
        self._streams: dict[str, ProducerStream] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._watchers: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._run: tuple[ProducerStream, int] | None = None
        self._life = LoopLife(
            "producer", "use it within its `async with` block, or call start() first"
        )
        self._flush_until_s: float | None = None
        """When the callers of `close` stop waiting for outcomes."""
        self._flushing: asyncio.Timeout | None = None
        self._yields = False
        """A frame is full: the next `send` yields to the event loop first."""
        self._failure: ClusterError | None = None
        """The error that ended the producer."""
        self.on_room: Callable[[], None] | None = None
        """Called when messages have an outcome and there is more room."""

    # Begin and end

    async def __aenter__(self) -> AsyncProducer:
        with self._life.opening():
            try:
                await self._start()
            except BaseException:  # a cancelled start must not leave tasks behind either
                await self.close(0)
                raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.close(None if kind is None else 0)
        except ClusterError:
            # The caller is to see the first error.
            if kind is None:
                raise

    async def start(self) -> None:
        """Locate the topic. Raises Unreachable, Refused, or BadArgument for a topic whose messages
        come by the unary path."""
        with self._life.opening():
            await self._start()

    async def _start(self) -> None:
        located = await self.connection.locate(self._topic, self._namespace)
        self._life.check_goes_on()
        if located.kind not in KINDS:
            raise WrongKind(self._topic, located.kind)
        self._loop = asyncio.get_running_loop()
        self._router = Router(located, self.connection.latencies)
        self._open_sessions()
        self._tasks.append(self._loop.create_task(self._refresh_now_and_then()))

    def _open_sessions(self) -> None:
        """Open a session for each broker group of the topic that does not have one."""
        caller = Caller(self._namespace, self._topic, self.connection.client_id, self._memory)
        for group in self._router.groups:
            if group in self._streams:
                continue
            places = (
                self.statistics,
                self._router.numbers,
                self.connection.latencies,
                self._released,
                self._received,
            )
            session = ProducerSession(group, self._settings, Gathering(), *places)
            stream = ProducerStream(
                self.connection, session, caller, self.statistics, self._answered
            )
            self._streams[group] = stream
            self._tasks.append(self._loop.create_task(self._guarded(stream)))

    async def refresh(self) -> None:
        """Ask now for queues that were added to the topic; the producer also asks every 30 seconds.
        Messages accepted before stay in their queues; later ones with an `order_key` may go to
        another queue. Raises Unreachable or Refused."""
        self._life.check()
        located = await self.connection.locate(self._topic, self._namespace)
        self._check_open()
        self._router.learn(located)
        self._open_sessions()

    async def _refresh_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(ROUTE_S * self.connection.chance.uniform(0.9, 1.1))
            # An unreachable cluster is asked again later; if the topic was deleted, the sends fail.
            with suppress(ClusterError):
                await self.refresh()

    async def _guarded(self, stream: ProducerStream) -> None:
        """Run a session's stream. If the stream fails, the session's messages fail with its error;
        otherwise they would wait forever."""
        try:
            await stream.run()
        except Exception as error:  # any error must reach the messages
            failed = SendFailed(
                f"the producer has ended by {type(error).__name__}: {error}",
                "open another one",
                unknown=False,
            )
            self._fail(failed)
            stream.session.give_up(failed)
            self._answered()
            raise

    def _fail(self, error: ClusterError) -> None:
        self._failure = self._failure or error
        self._wake(self._waiters)

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait, at most `timeout_s`, until every message is acknowledged or failed; the remaining
        ones then fail. Nothing is sent afterwards. Of several callers, none waits longer than the
        least patient one wants. Raises the error that ended the producer before, such as receipts
        that could not be written."""
        self.hurry(arguments.patience(timeout_s, "timeout_s"))
        await self._life.end(self._close)

    def hurry(self, patience_s: float | None) -> None:
        """Let the close that follows, or that is under way, wait at most this long for outcomes."""
        if patience_s is None:
            return
        end = asyncio.get_running_loop().time() + patience_s
        self._flush_until_s = end if self._flush_until_s is None else min(end, self._flush_until_s)
        if self._flushing is not None and not self._flushing.expired():
            self._flushing.reschedule(self._flush_until_s)

    async def _close(self) -> None:
        end = self._flush_until_s
        patient = end is None or end > asyncio.get_running_loop().time()
        try:
            if patient and self._tasks:
                async with asyncio.timeout_at(end) as self._flushing:
                    await self._flush()
        except TimeoutError:
            # Remaining messages fail below, each by its own future.
            pass
        finally:
            self._flushing = None
            for task in self._tasks:
                task.cancel()
            outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
            for stream in self._streams.values():
                stream.session.broken()
                stream.session.give_up(
                    SendFailed(
                        "the producer was closed",
                        "flush it before, or give it more time",
                        unknown=False,
                    )
                )
            if self._timer is not None:
                self._timer.cancel()
            self._wake(self._waiters)
            self._wake(self._watchers)
            await self.connection.close()
            if self._closes_log and self._own_log is not None:
                self._close_log(
                    self._own_log, bool(self._streams) and patient and not self.statistics.failed
                )
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
            if self._failure is not None:
                raise self._failure

    def _close_log(self, log: ReceiptLog, succeeded: bool) -> None:
        """Complete the file of receipts. A producer that failed before anything was acknowledged
        leaves none, so that the next attempt does not find it in its way."""
        try:
            if log.count or succeeded:
                log.close()
            else:
                log.abandon()
        except OSError as error:
            self._failure = self._failure or _unwritable(log, error)

    async def flush(self) -> None:
        """Send gathered messages, and wait until every message has an outcome."""
        self._life.check()
        await self._flush()

    async def _flush(self) -> None:
        streams: list[ProducerStream] = []
        try:
            while self.statistics.waiting:
                # A broker group that was added in the meantime is flushed as well.
                for stream in list(self._streams.values())[len(streams) :]:
                    streams.append(stream)
                    stream.session.flushing += 1
                    stream.wake()
                await self._wait(self._watchers)
        finally:
            for stream in streams:
                stream.session.flushing -= 1

    async def next_sequences(self) -> Mapping[str, int]:
        """Open the producer at every broker group. Returns the sequence number of its next message
        there; for a named producer this is the number of messages stored."""
        self._life.check()
        streams = dict(self._streams)
        for stream in streams.values():
            stream.open()
        while any(stream.session.identity is None for stream in streams.values()):
            self._check_open()
            fenced = next(
                (stream.session.fenced for stream in streams.values() if stream.session.fenced),
                None,
            )
            failed = next((stream.refused for stream in streams.values() if stream.refused), None)
            if fenced or failed:
                raise fenced or failed  # type: ignore[misc]
            await self._wait(self._watchers)
        return {group: stream.session.next_sequence for group, stream in streams.items()}

    # Sending

    async def send(
        self,
        body: Buffer,
        *,
        tag: str | None = None,
        keys: Keys = (),
        properties: Mapping[str, str] | None = None,
        order_key: str | None = None,
        queue: int | None = None,
    ) -> asyncio.Future[Acknowledged]:
        """Accept one message when there is room for it. `keys` are for lookups; messages with the
        same `order_key` share a queue; `queue` is a queue's number. The future ends with the
        acknowledgement, or a ClusterError whose `unknown` says whether the message may be stored.
        The arguments are copied, also a bytearray or memoryview. Raises BadArgument; a cancelled
        call has sent nothing."""
        content = Content.of(body, tag, keys, properties)
        size = self.size_of(content)
        if self._yields:
            # A loop of sends that always finds room would never let the event loop send anything.
            # Yield before `accept`, not behind it: a caller cancelled behind it would have sent a
            # message without knowing.
            self._yields = False
            await asyncio.sleep(0)
        while not self.has_room(size):
            await self._wait(self._waiters)
        loop = asyncio.get_running_loop()
        if loop is not self._life.loop:
            self._life.check()
        future: asyncio.Future[Acknowledged] = loop.create_future()
        self._yields = self.accept(future, size, content, order_key, queue)
        return future

    def accept(
        self,
        future: AnyFuture,
        size: int,
        content: Content,
        order_key: str | None,
        queue: int | None,
    ) -> bool:
        """`send` without waiting, for callers that reserve the room (`size` bytes) themselves.
        Returns whether a frame is full."""
        self._check_open()
        if order_key is not None or queue is not None:
            number = self._router.number_of(order_key) if order_key is not None else queue
            assert number is not None
            group, place = self._router.queue(number)
            stream = self._streams[group]
        else:
            stream, place = (
                self._run
                if self._run is not None and self._run[0].session.gathering.messages
                else self._next_run()
            )
        session = stream.session
        if session.fenced is not None:
            raise session.fenced
        now = self._loop.time()
        born_ms = time.time_ns() // 1_000_000
        session.gathering.add(
            Message(*content, place, born_ms, now + self._timeout_s, size, future), now
        )
        full = session.gathering.size >= self._settings.batch_bytes
        if full:
            session.seal()
        self._accepted(stream, 1, size, now)
        return full

    async def send_batch(
        self,
        bodies: Sequence[Buffer],
        *,
        tags: str | Sequence[str | None] | None = None,
        keys: Sequence[Keys | None] | None = None,
        properties: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        order_keys: Sequence[str] | None = None,
        queue: int | None = None,
    ) -> asyncio.Future[BatchAcknowledged]:
        """Accept many messages, frame by frame as there is room. Columns are as long as `bodies`; a
        single tag or mapping applies to all.

        The future is done when every message has an outcome; it fails with BatchFailed, which lists
        acknowledged and failed rows. The sequences are copied, their values are not: a bytearray or
        a mapping must not be changed before the future is done. A row that cannot be sent fails
        alone. If this call is cancelled while it waits for room, the rows accepted before that are
        sent all the same, and nothing tells which.
        """
        rows = flat(bodies)
        count = len(rows)
        for column in (tags, keys, properties, order_keys):
            if (
                column is not None
                and not isinstance(column, str | Mapping)
                and len(column) != count
            ):
                raise BadArgument(
                    f"there are {count} bodies and {len(column)} of another column",
                    "give columns of the same length",
                )
        born_ms = time.time_ns() // 1_000_000
        each_tag = (tags,) * count if isinstance(tags, str) else _rows(tags)
        each = (dict(properties),) * count if isinstance(properties, Mapping) else _rows(properties)
        return await self._send_columns(
            Columns(
                bodies=rows,
                queues=0,
                born_ms=born_ms,
                tags=each_tag,
                keys=_rows(keys),
                properties=each,
            ),
            order_keys,
            queue,
        )

    async def send_arrow(
        self,
        table: Any,
        *,
        body: str = "body",
        tag: str | None = None,
        keys: str | None = None,
        properties: Sequence[str] = (),
        order_key: str | None = None,
        queue: int | None = None,
    ) -> asyncio.Future[BatchAcknowledged]:
        """Accept the rows of a pyarrow Table or RecordBatch. The arguments name its columns;
        columns in `properties` become properties of the same name. Bodies are copied only into
        their frame. Otherwise as `send_batch`."""
        columns, order_keys = columns_of(
            table,
            born_ms=time.time_ns() // 1_000_000,
            body=body,
            tag=tag,
            keys=keys,
            properties=properties,
            order_key=order_key,
        )
        return await self._send_columns(columns, order_keys, queue)

    async def _send_columns(
        self, columns: Columns, order_keys: Sequence[str] | None, queue: int | None
    ) -> asyncio.Future[BatchAcknowledged]:
        self._life.check()
        self._check_open()
        count = len(columns)
        future: asyncio.Future[BatchAcknowledged] = self._loop.create_future()
        rows = Rows(count, future)
        if not count:
            future.set_result(BatchAcknowledged(0, (), ()))
            return future
        if order_keys is None:
            await self._send_rows(
                columns, rows, None if queue is None else self._router.queue(queue)
            )
            return future
        numbers = self._router.numbers_of(order_keys)
        group_of = np.array([self._router.groups.index(group) for group, _ in self._router.queues])[
            numbers
        ]
        ids: I32 = np.array([queue for _, queue in self._router.queues], np.int32)[numbers]
        for place, group in enumerate(self._router.groups):
            own = np.flatnonzero(group_of == place)
            if len(own) == count:
                await self._send_rows(columns.to_queues(ids), rows, (group, -1))
            elif len(own):
                await self._send_rows(
                    columns.take(own.tolist()).to_queues(ids[own]),
                    RowsOfGroup(rows, own.tolist()),
                    (group, -1),
                )
        return future

    async def _send_rows(
        self, columns: Columns, sink: OutcomeSink, to: tuple[str, int] | None
    ) -> None:
        """Send rows in batches. `to`: broker group and queue, −1 if the columns name the queues;
        None: any queue, in runs of frames."""
        ends = np.cumsum(columns.lengths() + self._overhead)
        begin, before = 0, 0
        while begin < len(ends):
            end = max(
                begin + 1, int(np.searchsorted(ends, before + self._settings.batch_bytes, "right"))
            )
            size = int(ends[end - 1]) - before
            try:
                while not self.has_room(size):
                    await self._wait(self._waiters)
                # Also without a wait: a producer that was closed since the last frame has nobody to
                # send this one.
                self._check_open()
            except ClusterError as error:
                return sink.failed(begin, len(ends) - begin, error)
            group, queue = self._router.next_queue() if to is None else to
            part = columns if (begin, end) == (0, len(ends)) else columns.part(begin, end)
            stream, now = self._streams[group], self._loop.time()
            if stream.session.fenced is not None:
                return sink.failed(begin, len(ends) - begin, stream.session.fenced)
            part = part if queue < 0 else part.in_queue(queue)
            stream.session.add(Batch(part, sink, begin, size, now + self._timeout_s))
            self._accepted(stream, end - begin, size, now)
            begin, before = end, int(ends[end - 1])
            await asyncio.sleep(0)

    def _next_run(self) -> tuple[ProducerStream, int]:
        group, queue = self._router.next_queue()
        self._run = (self._streams[group], queue)
        return self._run

    def _accepted(self, stream: ProducerStream, count: int, size: int, now: float) -> None:
        self.statistics.accepted += count
        self.statistics.waiting_bytes += size
        stream.wake()
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._timeout_s, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        next_times = [stream.session.expire(now) for stream in self._streams.values()]
        at = min((moment for moment in next_times if moment is not None), default=None)
        self._timer = None if at is None else self._loop.call_at(at, self._expire)
        self._answered()

    # Waiting

    def _check_open(self) -> None:
        # Once a message: what is more than a comparison is called only where it raises.
        if self._life.stage is not Stage.OPEN:
            self._life.check()
        if self._failure is not None:
            raise self._failure

    def size_of(self, content: Content) -> int:
        """About the bytes of the message's entry."""
        return self._overhead + content.size

    def has_room(self, size: int, handed: int = 0) -> bool:
        """Whether a message of this size may be accepted now, behind those of `handed` bytes that
        are about to be. A message larger than the buffer is accepted alone."""
        waiting = self.statistics.waiting_bytes + handed
        return waiting + size <= self._buffer_bytes or not waiting

    async def _wait(self, waiters: list[asyncio.Future[None]]) -> None:
        self._check_open() if waiters is self._waiters else None
        future = self._loop.create_future()
        waiters.append(future)
        await future

    def _wake(self, waiters: list[asyncio.Future[None]]) -> None:
        woken = waiters[:]
        waiters.clear()
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)

    def _released(self) -> None:
        if self.on_room is not None:
            self.on_room()
        if self._waiters:
            self._wake(self._waiters)

    def _answered(self) -> None:
        if self._watchers:
            self._wake(self._watchers)
        if self._on_progress is not None:
            # Not called from here: an error of the callback must not reach the stream.
            self._loop.call_soon(self._on_progress, self.statistics)

    def _received(self, receipt: pb.Receipt) -> None:
        if self._own_log is not None and self._failure is None:
            try:
                self._own_log.write(receipt)
            except OSError as error:
                self._fail(_unwritable(self._own_log, error))


def _rows(column: Sequence[R] | None) -> tuple[R, ...] | None:
    return None if column is None else tuple(column)


def _unwritable(log: ReceiptLog, error: OSError) -> BadArgument:
    problem = f"receipts cannot be written to {log.path} ({error.strerror or error})"
    return BadArgument(problem, "check which messages are stored, then open another producer")


class Content(NamedTuple):
    """What a caller of `send` gave, as it was then: the caller may change its values afterwards."""

    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str] | None

    @classmethod
    def of(
        cls, body: Buffer, tag: str | None, keys: Keys, properties: Mapping[str, str] | None
    ) -> Content:
        """Raises BadArgument."""
        return cls(
            copied(body),
            tag,
            (keys,) if isinstance(keys, str) else tuple(keys),
            dict(properties) if properties else None,
        )

    @property
    def size(self) -> int:
        """The bytes of the parts, about."""
        size = (
            len(self.body)
            + (len(self.tag) + 6 if self.tag else 0)
            + sum(len(key) + 6 for key in self.keys)
        )
        return (
            size + sum(len(name) + len(value) + 2 for name, value in self.properties.items())
            if self.properties
            else size
        )
