"""Writing messages 0, 1, 2, … under the name of a producer; each is stored once, even if the
writing process fails and is restarted.

Not an `AsyncProducer`, because that one numbers messages when it sends them, chooses broker groups,
and starts a forgotten name anew. Here the numbers come from the caller, for one broker group. A
restarted writer learns how many messages are stored, and a digest of what they contain
(docs/format.md, producers). It continues behind them if the caller's messages up to there are the
same; other messages would be skipped as if they were stored, so they end the writing. A name that
another process took over, or that the cluster has forgotten, ends it too. `log_connection.py` finds
the leader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio
import numpy as np

from ledgermq.client.api.service import LOG
from ledgermq.client.errors import Refused
from ledgermq.client.native.log_connection import LogConnection, problem_of
from ledgermq.client.native.producers.stream import ANSWER_TIMEOUT_S
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.native_ids import content_digest
from ledgermq.proto.frames import Compression, EncodedFrame, EntryColumns, FrameBuilder
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
        return replace(
            self,
            **{name: column[begin:end] for name, column in columns.items() if column is not None},
        )

    def behind(self, count: int) -> Chunk:
        """The chunk without its first `count` rows."""
        return self.piece(count, len(self))


class NumberedWriter:
    """A named producer of one broker group; messages stored under its name by earlier processes
    count. For one event loop, one task at a time.

    Opening a name takes it over: another process that still writes under it is refused from then
    on.
    """

    def __init__(
        self,
        connection: LogConnection,
        broker_group: str,
        topic: str,
        namespace: str,
        name: str,
        compression: Compression = Compression.NONE,
    ) -> None:
        self._connection = connection
        self._group, self._topic, self._namespace, self._name = broker_group, topic, namespace, name
        self._compression = compression
        self._search = connection.search(broker_group)
        self._good_at = _now()
        self._pending: deque[tuple[int, Chunk]] = deque()
        self._call: Any = None
        self.duplicates = 0
        """Messages that were already stored under this name, and were not stored again."""
        self.next_sequence = 0
        """The number of the first message that is not stored."""
        self.max_frame_bytes = 0
        self._sequence = self._begin = 0
        self._digest = 0
        """Of the messages added so far, up to the first one that is not stored."""
        self._stored_digest: int | None = None
        self._producer = (0, 0)

    async def open(self) -> None:
        """Take the name over. Raises Refused or Unreachable."""
        client_id = self._connection.client_id
        opened = await self._open(
            pb.OpenProducer(
                broker_group=self._group, name=self._name, client_id=client_id, digest=True
            )
        )
        self._producer = opened.producer_id, opened.epoch
        self._builder = FrameBuilder(
            stored_name(self._namespace, self._topic), opened.log_tag, *self._producer
        )
        self._begin, self.max_frame_bytes = opened.next_sequence, opened.max_frame_bytes
        # A node below feature level 3 keeps no digest, and messages stored there have none
        # afterwards.
        self._stored_digest = opened.digest if opened.HasField("digest") else None

    async def add(self, chunk: Chunk) -> None:
        """Write the next messages; those already stored are skipped. Waits for room. Raises
        Refused, also when the stored messages are others, or Unreachable."""
        first, self._sequence = self._sequence, self._sequence + len(chunk)
        known = min(max(0, self._begin - first), len(chunk))
        if known and self._stored_digest is not None:
            self._compare(first, chunk if known == len(chunk) else chunk.piece(0, known))
        self.duplicates += known
        if known == len(chunk):
            return
        while len(self._pending) >= WINDOW_FRAMES:
            await self._read_answer()
        self._pending.append((first + known, chunk.behind(known) if known else chunk))
        if not await self._send(*self._pending[-1]):
            await self._resume()

    async def finish(self) -> int:
        """Wait until everything is durable on a majority. Returns the number of messages. Raises as
        `add`, and Refused if more messages are stored under this name than were added."""
        if self._sequence < self._begin:
            raise self._others(
                f"{self._begin} messages are stored under this name, and {self._sequence} are to be"
                " written"
            )
        while self._pending:
            await self._read_answer()
        return self._sequence

    def _compare(self, first: int, chunk: Chunk) -> None:
        """Take in messages that are stored already. At the last one, all of them must be the stored
        ones."""
        frame = self._frame(first, chunk)
        sizes = np.frombuffer(frame.sizes, "<u4").astype(np.int64)
        entries = EntryColumns(
            memoryview(frame.entries), np.cumsum(sizes) - sizes, sizes.astype(np.int32)
        )
        self._digest = content_digest(entries, 0, len(chunk), self._digest)
        if first + len(chunk) == self._begin and self._digest != self._stored_digest:
            raise self._others(
                f"the {self._begin} messages that are stored under this name are not the first"
                f" {self._begin} to be written"
            )

    def _others(self, problem: str) -> Refused:
        remedy = "write the same messages in the same order as before, or use another name"
        return Refused(
            Code.PRECONDITION_FAILED, f"{problem}: they are not the same messages", remedy
        )

    async def close(self) -> None:
        """End the stream. Unacknowledged messages have an unknown outcome."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    async def _open(self, opening: pb.OpenProducer) -> pb.ProducerOpened:
        while True:
            await self.close()
            self._address = await self._next_address()
            self._call = self._connection.stream(
                LOG + "Produce", self._address, pb.ProduceRequest, pb.ProduceResponse
            )
            if not await self._write(pb.ProduceRequest(open=opening)):
                continue
            response = await self._next()
            if response is not None and response.HasField("opened"):
                self._search.worked()
                opened: pb.ProducerOpened = response.opened
                self.next_sequence = opened.next_sequence
                return opened

    async def _next_address(self) -> Any:
        left = self._good_at + self._connection.timeout_s - _now()
        if left <= 0:
            raise self._search.unreachable(self._connection.timeout_s)
        return await self._search.next_address(left)

    async def _write(self, request: pb.ProduceRequest) -> bool:
        """False: the stream has ended; its status is recorded."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._call.write(request)
            return True
        except TimeoutError:
            self._search.failed(f"{self._address} takes nothing")
        except (grpc.RpcError, asyncio.InvalidStateError):
            await self._next()
        return False

    async def _next(self) -> Any:
        """The next answer; None if the stream ended or was redirected, which is recorded. Raises
        Refused."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._call.read()
        except TimeoutError:
            self._search.failed(f"{self._address} answers nothing")
            return None
        except grpc.RpcError as error:
            self._search.broke(self._address, error)
            return None
        if response is grpc.aio.EOF:
            self._search.failed(f"{self._address} ended the stream")
        elif response.HasField("redirect"):
            self._search.redirected(response.redirect)
        elif response.HasField("problem"):
            self._search.problem(response.problem)
        else:
            return response
        return None

    async def _send(self, first: int, chunk: Chunk) -> bool:
        frame = self._frame(first, chunk)
        message = pb.Frame(
            namespace=self._namespace,
            topic=self._topic,
            first_sequence=first,
            sizes=frame.sizes,
            entries=frame.entries,
        )
        return await self._write(pb.ProduceRequest(frame=message))

    def _frame(self, first: int, chunk: Chunk) -> EncodedFrame:
        return self._builder.encode(
            first,
            np.array(chunk.queues, np.int32),
            chunk.bodies,
            born_ms=np.array(chunk.born_ms, np.int64),
            tags=chunk.tags,
            keys=chunk.keys,
            properties=chunk.properties,
            compression=self._compression,
        )

    async def _read_answer(self) -> None:
        """Read one answer. After a broken stream, everything that is not stored is sent again on a
        new stream in the same epoch."""
        response = await self._next()
        if response is not None and response.HasField("ack"):
            first, chunk = self._pending.popleft()
            self._good_at = _now()
            self._search.worked()
            self.next_sequence = first + len(chunk)
            return
        if response is not None:
            rejected = response.rejected
            # If the broken stream did store these messages, the rejection only reports that; it is
            # not a failure.
            if rejected.next_sequence <= self._pending[0][0] and not rejected.problem.retryable:
                raise problem_of(rejected.problem)
            self._search.failed(
                rejected.problem.message, retry_after_ms=rejected.problem.retry_after_ms
            )
        await self._resume()

    async def _resume(self) -> None:
        number, epoch = self._producer
        again = pb.OpenProducer(
            broker_group=self._group,
            producer_id=number,
            epoch=epoch,
            client_id=self._connection.client_id,
        )
        sent = False
        while not sent:
            stored = (await self._open(again)).next_sequence
            waiting = [
                (first, chunk) for first, chunk in self._pending if first + len(chunk) > stored
            ]
            self._pending = deque(
                (max(first, stored), chunk.behind(max(0, stored - first)))
                for first, chunk in waiting
            )
            sent = True
            for first, chunk in self._pending:
                sent = sent and await self._send(first, chunk)


def _now() -> float:
    return asyncio.get_running_loop().time()
