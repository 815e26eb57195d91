"""Reading ranges of queues, each offset once and in order, independent of the leader; and looking
up the offset of a place such as a time.

For readers without state of their own and without a consumer group, such as a task of a data
engine. `fetching.py` handles streams and credit, `positions.py` decides which message may come
next; this module ends the range, and handles messages that retention removed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from ledgermq.client.errors import Refused
from ledgermq.client.native.consumers.fetching import Flow
from ledgermq.client.native.consumers.positions import EntryName, Place, Positions, Run, Start
from ledgermq.client.native.consumers.received import BATCH_BYTES, Batch
from ledgermq.client.native.log_connection import Located, LogConnection
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.compression import EXPANSION, Expansion
from ledgermq.proto.frames import BadEntries
from ledgermq.proto.status import Code

CREDIT_BYTES = 16 << 20
DISTRUST_MAX = 3
"""After this many damaged reads in a row, a message counts as damaged in the log."""


class MessagesGone(Refused):
    """Retention removed messages of a range before they were read."""


class _Stream:
    """A stream that reads queues of one broker group from the given starts."""

    def __init__(
        self,
        connection: LogConnection,
        opening: pb.OpenFetch,
        starts: Mapping[Place, Start],
        window_bytes: int,
    ) -> None:
        self.positions = Positions()
        for place, start in starts.items():
            self.positions.add(place, start)
        self.runs: deque[Run] = deque()
        self._news = asyncio.Event()
        self.flow = Flow(
            connection,
            opening.broker_group,
            self.positions,
            window_bytes,
            opening,
            ready=self._came,
        )
        self._task = asyncio.ensure_future(self.flow.run())
        self._task.add_done_callback(lambda _task: self._news.set())

    def _came(self, run: Run | None) -> None:
        if run is not None:
            self.runs.append(run)
        self._news.set()

    async def news(self) -> None:
        """Wait until something arrives. Raises the error that ended the stream: Unreachable or
        Refused."""
        await self._news.wait()
        self._news.clear()
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def find_offsets(
    connection: LogConnection,
    located: Located,
    topic: str,
    namespace: str,
    start: Start,
    group: str = "",
) -> tuple[dict[Place, int], dict[Place, int]]:
    """For each queue of a topic, the offset of `start` and the end. Raises Unreachable or
    Refused."""
    begins: dict[Place, int] = {}
    ends: dict[Place, int] = {}
    for one in located.broker_groups:
        places = [Place(one.name, queue) for queue in one.queues]
        if not places:
            continue
        opening = pb.OpenFetch(
            broker_group=one.name, namespace=namespace, topic=topic, consumer_group=group
        )
        stream = _Stream(connection, opening, dict.fromkeys(places, start), 0)
        try:
            while any(
                stream.positions[place].next is None or stream.positions[place].end is None
                for place in places
            ):
                await stream.news()
        finally:
            await stream.close()
        for place in places:
            position = stream.positions[place]
            assert position.next is not None and position.end is not None, "the loop waits for both"
            begins[place], ends[place] = position.next, position.end
    return begins, ends


async def name_before(
    connection: LogConnection, topic: str, namespace: str, place: Place, end: int, group: str = ""
) -> EntryName:
    """The name of the message in front of an offset above 0; one message is sent for it. Raises
    MessagesGone, Unreachable, Refused."""
    reader = RangeReader(
        connection, topic, namespace, place, first=end - 1, end=end, group=group, window_bytes=1
    )
    try:
        batch = await reader.next_batch()
    finally:
        await reader.close()
    assert batch is not None, "a range of one message has one"
    return batch.last


class RangeReader:
    """Reads the messages `first` … `end`−1 of one queue, which must be committed. For one event
    loop; `close` it."""

    def __init__(
        self,
        connection: LogConnection,
        topic: str,
        namespace: str,
        place: Place,
        first: int,
        end: int,
        group: str = "",
        fail_on_loss: bool = True,
        window_bytes: int = CREDIT_BYTES,
        expansion: Expansion = EXPANSION,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        opening = pb.OpenFetch(
            broker_group=place.broker_group, namespace=namespace, topic=topic, consumer_group=group
        )
        self._stream = _Stream(connection, opening, {place: Start(offset=first)}, window_bytes)
        self._place, self._at, self._end = place, first, end
        self._fail_on_loss = fail_on_loss
        self._batch_bytes, self._expansion = batch_bytes, expansion
        self._distrusted = 0

    async def next_batch(self) -> Batch | None:
        """The next messages; None after the last. Raises MessagesGone if retention removed messages
        and that counts as a failure; Unreachable; Refused."""
        while self._at < self._end:
            if self._stream.runs:
                run = self._stream.runs.popleft()
                batch = (
                    self._read(run)
                    if self._stream.positions.current(run.place, run.generation)
                    else None
                )
                if not self._stream.runs or self._stream.runs[0].entries is not run.entries:
                    self._stream.flow.taken(len(run.entries))
                if batch is not None:
                    return batch
                continue
            position = self._stream.positions[self._place]
            if position.missed_ahead and position.next is not None and position.next > self._at:
                self._lost(position.next)
                self._at = position.next
                continue
            await self._stream.news()
        return None

    def _read(self, run: Run) -> Batch | None:
        if run.missed:
            self._lost(run.offset)
        self._at = max(self._at, run.offset)
        if self._at >= self._end:
            return None
        try:
            batch = Batch.read(run, run.place.queue, True, self._batch_bytes, self._expansion)
        except BadEntries as error:
            self._distrusted += 1
            problem = (
                f"queue {run.place.queue} of broker group {run.place.broker_group} is damaged from"
                f" offset {run.offset} on: {error}"
            )
            if self._distrusted >= DISTRUST_MAX:
                raise Refused(Code.INTERNAL_SERVER_ERROR, problem, "see ledgermq audit") from error
            self._stream.positions.again(run)
            self._stream.flow.restart(problem)
            return None
        self._distrusted = 0
        self._at = batch.next_offset
        if (rest := batch.rest(run)) is not None:
            self._stream.runs.appendleft(rest)
        return batch if self._at <= self._end else batch.before(self._end)

    def _lost(self, first: int) -> None:
        gone = min(first, self._end) - 1
        if self._fail_on_loss and gone >= self._at:
            place = f"queue {self._place.queue} of broker group {self._place.broker_group}"
            problem = f"messages {self._at} to {gone} of {place} are gone: retention took them"
            raise MessagesGone(
                Code.MESSAGE_NOT_FOUND, problem, "read from a later offset, or accept the loss"
            )

    async def close(self) -> None:
        """End the stream."""
        await self._stream.close()
