"""Ranges and numbered writes for sequential programs, such as a task of a data engine: the
asynchronous parts run on an event loop in the background while a connection is open.

`ranges.py` and `numbered.py` decide what is read and written. The caller's own thread iterates over
the rows to be written, because it may be the only one that can.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from ledgermq.client.api.lifecycle import ThreadLife
from ledgermq.client.errors import ClusterError
from ledgermq.client.native.background import Background
from ledgermq.client.native.consumers.positions import EntryName, Place, Start
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.log_connection import Located, LogConnection
from ledgermq.client.native.once.numbered import Chunk, NumberedWriter
from ledgermq.client.native.once.ranges import RangeReader, find_offsets, name_before
from ledgermq.proto.entries.compression import EXPANSION, Compression, Expansion

TIMEOUT_S = 60.0
"""How long to retry without progress."""

T = TypeVar("T")


class TaskConnection:
    """Channels to the nodes of one cluster, for one thread at a time. A context manager."""

    def __init__(self, endpoints: str, **options: Any) -> None:
        """The arguments of `LogConnection`."""
        self._connection = LogConnection(endpoints, **{"timeout_s": TIMEOUT_S, **options})
        self._background: Background | None = None
        self._life = ThreadLife("connection", "use it within its `with` block")

    def __enter__(self) -> TaskConnection:
        with self._life.opening():
            self._background = Background("ledgermq-task")
        return self

    def __exit__(self, *_: object) -> None:
        self._life.end(self._close)

    def _close(self) -> None:
        if self._background is not None:
            try:
                self._background.wait(self._connection.close())
            finally:
                self._background.close()

    def guard_secret(self) -> None:
        """As `Connection.guard_secret`."""
        self._connection.guard_secret()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result."""
        try:
            self._life.check()
        except ClusterError:
            work.close()
            raise
        assert self._background is not None, "it was opened"
        return self._background.wait(work)

    def locate(self, topic: str, namespace: str = "") -> Located:
        """The location of a topic. Raises Unreachable or Refused."""
        return self.do(self._connection.locate(topic, namespace))

    def find_offsets(
        self, located: Located, topic: str, namespace: str, start: Start, group: str = ""
    ) -> tuple[dict[Place, int], dict[Place, int]]:
        """As `ranges.find_offsets`."""
        return self.do(
            find_offsets(self._connection, located, topic, namespace, start, group=group)
        )

    def name_before(
        self, topic: str, namespace: str, place: Place, end: int, group: str = ""
    ) -> EntryName:
        """As `ranges.name_before`."""
        return self.do(name_before(self._connection, topic, namespace, place, end, group=group))

    def read_range(
        self,
        topic: str,
        namespace: str,
        place: Place,
        first: int,
        end: int,
        group: str = "",
        fail_on_loss: bool = True,
        expansion: Expansion = EXPANSION,
    ) -> Iterator[Batch]:
        """The messages of a range: see `RangeReader`."""
        if first >= end:
            return

        async def opened() -> RangeReader:
            return RangeReader(
                self._connection,
                topic,
                namespace,
                place,
                first,
                end=end,
                group=group,
                fail_on_loss=fail_on_loss,
                expansion=expansion,
            )

        reader = self.do(opened())
        try:
            while (batch := self.do(reader.next_batch())) is not None:
                yield batch
        finally:
            self.do(reader.close())

    def writer(
        self,
        broker_group: str,
        topic: str,
        namespace: str,
        name: str,
        compression: Compression = Compression.NONE,
    ) -> TaskWriter:
        """Open a name for writing: see `NumberedWriter`. Raises Refused or Unreachable."""

        async def opened() -> NumberedWriter:
            writer = NumberedWriter(
                self._connection, broker_group, topic, namespace, name, compression=compression
            )
            await writer.open()
            return writer

        return TaskWriter(self, self.do(opened()))


class TaskWriter:
    """A `NumberedWriter` for a thread. A context manager."""

    def __init__(self, connection: TaskConnection, writer: NumberedWriter) -> None:
        self._connection, self._writer = connection, writer

    def __enter__(self) -> TaskWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def next_sequence(self) -> int:
        """The number of the first message that is not stored."""
        return self._writer.next_sequence

    @property
    def max_frame_bytes(self) -> int:
        return self._writer.max_frame_bytes

    @property
    def duplicates(self) -> int:
        """Messages that were already stored under this name, and were not stored again."""
        return self._writer.duplicates

    def write(self, chunks: Iterable[Chunk]) -> int:
        """Store messages 0, 1, 2, … of this name, skipping those already stored, and wait until
        they are durable on a majority. Returns their number. Raises Refused, also when another
        process has opened the name since."""
        for chunk in chunks:
            self._connection.do(self._writer.add(chunk))
        return self._connection.do(self._writer.finish())

    def close(self) -> None:
        """End the stream. Unacknowledged messages have an unknown outcome."""
        self._connection.do(self._writer.close())
