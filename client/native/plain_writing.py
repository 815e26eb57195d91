"""Writing under a name: messages 0, 1, 2, … of a named producer, each of them stored once, whatever happens to who writes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import grpc
import numpy as np

from ledgermq.client.connection import Address
from ledgermq.client.errors import Refused
from ledgermq.client.native.connection import broken, problem_of
from ledgermq.client.native.plain import PATIENCE_S, Outgoing, PlainConnection, Way, aside
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.frames import Compression, FrameBuilder
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code

WINDOW_FRAMES = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages for one frame, one row each; a column that is None is not sent."""

    bodies: Sequence[bytes]
    queues: Sequence[int]
    born_ms: Sequence[int]
    tags: Sequence[str | None] | None = None
    keys: Sequence[str | Sequence[str] | None] | None = None
    properties: Sequence[Mapping[str, str]] | None = None

    def __len__(self) -> int:
        return len(self.bodies)

    def piece(self, begin: int, end: int) -> Chunk:
        """Rows `begin` … `end`−1."""
        columns = {name: getattr(self, name) for name in self.__slots__}
        return replace(self, **{name: column[begin:end] for name, column in columns.items() if column is not None})

    def behind(self, count: int) -> Chunk:
        """Without the first so many."""
        return self.piece(count, len(self))


class PlainProducer:
    """A named producer of one broker group: what it wrote under its name before counts as written.

    Whoever opens a name takes it over: another process that still writes under it is refused from then on.
    """

    def __init__(
        self,
        connection: PlainConnection,
        broker_group: str,
        topic: str,
        namespace: str,
        name: str,
        *,
        compression: Compression = Compression.NONE,
    ) -> None:
        """Opens the producer. Raises Refused or Unreachable."""
        self._connection = connection
        self._group = broker_group
        self._topic, self._namespace = topic, namespace
        self._compression = compression
        self._way = Way(connection, broker_group, PATIENCE_S)
        self._pending: deque[tuple[int, Chunk]] = deque()
        self._outgoing: Outgoing | None = None
        self._call: Any = None
        self.duplicates = 0
        """Messages that were stored under this name before, and were not stored again."""
        self._opened = self._open(pb.OpenProducer(broker_group=broker_group, name=name, client_id=connection.client_id))
        self._builder = FrameBuilder(
            stored_name(namespace, topic), self._opened.log_tag, self._opened.producer_id, self._opened.epoch
        )
        self.next_sequence = self._opened.next_sequence
        """Of the first message that is not stored."""

    @property
    def max_frame_bytes(self) -> int:
        return self._opened.max_frame_bytes

    def write(self, chunks: Iterable[Chunk]) -> int:
        """Store messages 0, 1, 2, … of this name, those that are stored already being skipped, and wait until they are durable on a
        majority. Returns how many there are. Raises Refused, also when somebody else opened the name since."""
        sequence = 0
        begin = self.next_sequence
        for chunk in chunks:
            first, sequence = sequence, sequence + len(chunk)
            known = min(max(0, begin - first), len(chunk))
            self.duplicates += known
            if known == len(chunk):
                continue
            while len(self._pending) >= WINDOW_FRAMES:
                self._hear()
            self._pending.append((first + known, chunk.behind(known) if known else chunk))
            self._send(*self._pending[-1])
        if sequence < begin:
            what = f"{begin} messages are stored under this name, and {sequence} are to be written: they are not the same messages"
            raise Refused(Code.PRECONDITION_FAILED, what, "write again what was written before, or under another name")
        while self._pending:
            self._hear()
        return sequence

    def close(self) -> None:
        """End the stream; what was not acknowledged has an unknown outcome."""
        if self._outgoing is not None:
            self._outgoing.close()
            self._call.cancel()
            self._outgoing = self._call = None

    def __enter__(self) -> PlainProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, opening: pb.OpenProducer) -> pb.ProducerOpened:
        while True:
            self.close()
            address = self._way.next_address()
            self._outgoing = Outgoing(pb.ProduceRequest(open=opening))
            self._call = self._connection.stream("Produce", address, self._outgoing, pb.ProduceResponse)
            response = self._next(address)
            if response is not None and response.HasField("opened"):
                self._way.reached()
                return response.opened

    def _next(self, address: object) -> pb.ProduceResponse | None:
        """The next response; None if the stream ended, whatever that means having been noted."""
        try:
            response = next(self._call, None)
        except grpc.RpcError as error:
            self._way.failed(broken(cast(Address, address), error))
            return None
        if response is None:
            self._way.failed(f"{address} ended the stream")
        elif response.HasField("redirect") or response.HasField("problem"):
            aside(self._way, response)
            return None
        return cast("pb.ProduceResponse | None", response)

    def _send(self, first: int, chunk: Chunk) -> None:
        frame = self._builder.encode(
            first,
            np.array(chunk.queues, np.int32),
            chunk.bodies,
            born_ms=np.array(chunk.born_ms, np.int64),
            tags=chunk.tags,
            keys=chunk.keys,
            properties=chunk.properties,
            compression=self._compression,
        )
        message = pb.Frame(namespace=self._namespace, topic=self._topic, first_sequence=first, sizes=frame.sizes, entries=frame.entries)
        assert self._outgoing is not None, "a producer is open until it is closed"
        self._outgoing.put(pb.ProduceRequest(frame=message))

    def _hear(self) -> None:
        """One answer; after a broken stream everything that is not stored is sent again, on a new one, in the same epoch."""
        response = self._next(self._way.address)
        if response is not None and response.HasField("ack"):
            first, chunk = self._pending.popleft()
            self._way.worked()
            self.next_sequence = first + len(chunk)
            return
        if response is not None:
            rejected = response.rejected
            # Messages that were stored behind our back, by a stream that broke, are news and no failure.
            if rejected.next_sequence <= self._pending[0][0] and not rejected.problem.retryable:
                raise problem_of(rejected.problem)
            self._way.failed(rejected.problem.message, rejected.problem.retry_after_ms)
        self._resume()

    def _resume(self) -> None:
        again = pb.OpenProducer(
            broker_group=self._group, producer_id=self._opened.producer_id, epoch=self._opened.epoch, client_id=self._connection.client_id
        )
        stored = self.next_sequence = self._open(again).next_sequence
        waiting = [(first, chunk) for first, chunk in self._pending if first + len(chunk) > stored]
        self._pending.clear()
        for first, chunk in waiting:
            known = max(0, stored - first)
            self._pending.append((first + known, chunk.behind(known) if known else chunk))
            self._send(*self._pending[-1])
