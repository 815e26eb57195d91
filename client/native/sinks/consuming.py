"""`ledgermq consume` on native streams: whether they may serve a consumer group, and the loop that
fills a file.

A group's progress in a topic is either leases with acknowledgements, or committed offsets. Streams
do not see leases, so a group that has leased any message of the topic continues with leases.
Messages are durable in the file before their offsets are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from ledgermq.client.errors import Refused
from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.consumers.statistics import ConsumerStatistics
from ledgermq.client.native.log_connection import LogConnection
from ledgermq.client.native.sinks.ports import File
from ledgermq.proto import admin_pb2
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.status import Code

FLUSH_S = 1.0
FLUSH_BYTES = 64 << 20
QUEUELESS_S = 30.0
"""How long a member without a queue waits for one: it may be a spare member, or other members may
not have released theirs yet."""
KINDS = ("normal", "fifo", "delay", "transaction", "mixed")
"""Kinds of topics whose messages are delivered in the order of their queues."""


class Progress(NamedTuple):
    """A consumer group's progress in one queue, read either way, and how many messages it has
    leased there."""

    broker_group: str
    queue: int
    cursor: int
    leased: int


async def by_offsets(
    connection: LogConnection,
    topic: str,
    group: str,
    namespace: str,
    progress: Collection[Progress] | None,
) -> bool:
    """Whether this group reads this topic by committed offsets, or has not started. `progress`: in
    each queue where it has any; None: the caller may not see it. Raises Unreachable or Refused."""
    reached: dict[tuple[str, int], int] = {}
    commits = False
    try:
        located = await connection.locate(topic, namespace)
        if located.kind not in KINDS:
            return False
        for broker_group in located.broker_groups:
            request = pb.OffsetsRequest(
                broker_group=broker_group.name,
                namespace=namespace,
                topic=topic,
                consumer_group=group,
            )
            answer = await connection.ask("Offsets", broker_group.name, request, pb.OffsetsResponse)
            for state in answer.queues:
                reached[broker_group.name, state.queue] = max(state.committed, state.begin)
                commits = commits or state.committed >= 0
    except Refused as error:
        if error.code in (Code.TOPIC_NOT_FOUND, Code.UNAUTHORIZED, Code.FORBIDDEN):
            raise
        # Nodes of an older release do not have these streams.
        return False
    if progress is None:
        return commits
    return not any(
        one.leased or one.cursor > reached.get((one.broker_group, one.queue), 0) for one in progress
    )


def progress_of(
    description: admin_pb2.DescribeGroupResponse, topic: str, namespace: str
) -> list[Progress]:
    """A consumer group's progress in one topic, from its description."""
    rows = [
        row
        for row in description.group.queues
        if (row.topic.namespace, row.topic.name) == (namespace, topic)
    ]
    return [Progress(row.broker_group, row.group_queue, row.cursor, row.leased) for row in rows]


class Filling:
    """One run of `consume` into a file. `show` receives the number of messages, `expect` the total
    as far as it is known."""

    def __init__(
        self,
        file: File,
        limit: int | None,
        commits: bool,
        show: Callable[[int], None],
        expect: Callable[[int | None], None],
    ) -> None:
        self._file = file
        self._limit = limit
        self._commits = commits
        self._show = show
        self._expect = expect
        self.done = 0
        self._ends: dict[int, int] = {}
        """Per queue, the offset behind the messages that are in the file but not committed."""

    async def run(self, consumer: AsyncConsumer, until_empty_s: float | None) -> None:
        """Run until the limit, until no message arrived for this long, or until cancelled, which is
        a normal end. Raises ClusterError, OSError."""
        complete = False
        try:
            await self._fill(consumer, until_empty_s)
            complete = True
        except BaseException as error:
            # Ctrl-C arrives as a cancellation, and is the normal end of following a topic.
            complete = not isinstance(error, Exception)
            raise
        finally:
            if complete:
                self._file.close()
                await self._commit(consumer)
            else:
                self._file.abandon()

    async def _fill(self, consumer: AsyncConsumer, until_empty_s: float | None) -> None:
        waiting_bytes = 0
        flush_at = 0.0
        queueless_until = _now() + QUEUELESS_S
        while self._limit is None or self.done < self._limit:
            batch = await consumer.next_batch(FLUSH_S if until_empty_s is None else until_empty_s)
            now = _now()
            spare = not consumer.assigned() and now > queueless_until
            if batch is None and until_empty_s is not None and (consumer.caught_up() or spare):
                return
            if batch is not None:
                self._write(batch)
                waiting_bytes += batch.entry_bytes
                self._report(consumer.statistics())
            if not self._file.whole and (waiting_bytes >= FLUSH_BYTES or now >= flush_at):
                self._file.flush()
                await self._commit(consumer)
                waiting_bytes, flush_at = 0, now + FLUSH_S

    def _write(self, batch: Batch) -> None:
        room = len(batch) if self._limit is None else self._limit - self.done
        end = batch.next_offset
        if room < len(batch):
            end = int(batch.offsets[room])
            batch = batch.rows(np.arange(room))
        self._file.write_batch(batch)
        self._ends[batch.queue] = end
        self.done += len(batch)

    def _report(self, statistics: ConsumerStatistics) -> None:
        known = None if statistics.lag is None else self.done + statistics.lag
        self._expect(known if self._limit is None or known is None else min(known, self._limit))
        self._show(self.done)

    async def revoked(self, consumer: AsyncConsumer, queues: tuple[int, ...]) -> None:
        """Other members receive these queues: commit now what is durable in the file, because later
        commits are refused."""
        if not self._file.whole:
            self._file.flush()
            await self._commit(consumer)
        for queue in queues:
            self._ends.pop(queue, None)

    async def _commit(self, consumer: AsyncConsumer) -> None:
        ends, self._ends = self._ends, {}
        if self._commits and ends:
            await consumer.commit(ends)


def _now() -> float:
    return asyncio.get_running_loop().time()
