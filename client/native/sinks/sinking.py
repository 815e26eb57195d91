"""`ledgermq sink`: reads all queues of a topic on native streams into a sink, without a consumer
group.

The position is that of the sink's files or table. If the topic gets more queues, whose numbers
change then, reading begins again there.

Law: messages of a queue are written only if the log still has the last one that was written, at its
offset and with its name (`positions.py`). A cluster that was restored from an older state has none
or another one there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ledgermq.client.api.connection import Connection
from ledgermq.client.errors import BadArgument, ClusterError, Refused
from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.client.native.consumers.positions import EntryName, Start
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.consumers.statistics import ConsumerStatistics
from ledgermq.client.native.log_connection import Located, LogConnection
from ledgermq.client.native.sinks.consuming import KINDS
from ledgermq.client.native.sinks.ports import Queue, Sink
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code

LOOK_S = 0.5
"""How often the age of files and the number of queues are looked at while no message arrives."""


RESTORED = "write the topic to another place (docs/backup.md, Positions outside of the cluster)"

"""Broker group, and queue in it: unlike the number in the topic, it stays when the topic gets more
queues."""


def continues(expected: int | None, batch: Batch) -> bool:
    """Whether a batch is what follows in its queue; retention may have removed messages in front of
    it."""
    first = int(batch.offsets[0])
    return expected is None or first == expected or (first > expected and batch.skipped > 0)


def names_tree(last: Mapping[Queue, EntryName]) -> list[list[Any]]:
    """The last messages written, as they are kept."""
    return [[*queue, *name] for queue, name in sorted(last.items())]


def names_of(tree: Mapping[str, Any]) -> dict[Queue, EntryName]:
    """The inverse, for kept positions; sinks of former versions kept none. Raises ValueError,
    TypeError."""
    return {
        (str(group), int(queue)): EntryName(int(index), int(term), int(chain_crc))
        for group, queue, index, term, chain_crc in tree.get("last", ())
    }


def completes(ended: type[BaseException] | None) -> bool:
    """Whether a sink that is left like this makes durable what it wrote. The first Ctrl-C cancels
    between two batches, and an error of the cluster comes between them too. A second Ctrl-C, a
    failing disk and a defect may come in the middle of a batch or of a file: then only the
    positions that are durable count."""
    return ended is None or issubclass(ended, (asyncio.CancelledError, ClusterError))


class Sinking:
    """One run. `show` receives the number of messages written so far and how many more are
    known."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        namespace: str,
        show: Callable[[int, int | None], None],
        expansion_max: int | None = None,
    ) -> None:
        self._options: dict[str, Any] = {"expansion_max": expansion_max}
        self._wire: dict[str, Any] = {"timeout_s": connection.timeout_s, **connection.options}
        self._topic, self._namespace, self._show = topic, namespace, show
        self.rows = self.done = self.skipped = self.unproven = self.undecoded = 0

    async def run(self, opened: Callable[[str, str], Sink], until_empty_s: float | None) -> None:
        """Run until no message arrived for this long, or until cancelled, which is a normal end:
        both leave the sink. `opened` opens it for a cluster and a topic. Raises ClusterError,
        OSError."""
        located = await self._locate()
        if located.kind not in KINDS:
            raise BadArgument(
                f"topic {self._topic} is of the kind {located.kind}, which native streams do not"
                " read",
                "consume it",
            )
        sink = opened(located.cluster_id, stored_name(self._namespace, self._topic))
        try:
            with sink:
                while not await self._continued(sink, located, until_empty_s):
                    former, located = located, await self._locate()
                    if located.queues == former.queues:
                        problem = (
                            f"a node sent messages of topic {self._topic} that do not continue"
                            f" those in {sink.where}"
                        )
                        raise Refused(Code.INTERNAL_SERVER_ERROR, problem, "see ledgermq audit")
        finally:
            self.rows, self.done = sink.rows, sink.done

    async def _locate(self) -> Located:
        async with LogConnection(**self._wire) as log:
            return await log.locate(self._topic, self._namespace)

    async def _continued(self, sink: Sink, located: Located, until_empty_s: float | None) -> bool:
        """As `_read`. Raises BadArgument if the log does not have the positions of the sink."""
        try:
            return await self._read(sink, located, until_empty_s)
        except Refused as error:
            if error.code != Code.ILLEGAL_OFFSET:
                raise
            raise BadArgument(
                f"{sink.where} has messages that the cluster does not have: {error.what}", RESTORED
            ) from error

    async def _read(self, sink: Sink, located: Located, until_empty_s: float | None) -> bool:
        """Read from the positions of the sink. Returns False if the topic has other queues by
        now."""
        start = {
            number: Start(offset=sink.positions[queue], after=sink.last.get(queue))
            for number, queue in enumerate(located.queues)
            if queue in sink.positions
        }
        loop = asyncio.get_running_loop()
        async with AsyncConsumer(
            topic=self._topic, namespace=self._namespace, start=start, **self._options, **self._wire
        ) as consumer:
            empty_at, look_at = loop.time(), loop.time()
            while True:
                batch = await consumer.next_batch(LOOK_S)
                now = loop.time()
                if batch is not None:
                    self._check_log(sink, batch.broker_group, consumer.log_id(batch.broker_group))
                    if (
                        batch.broker_group,
                        batch.group_queue,
                    ) not in located.queues or not sink.write(batch):
                        return False
                    self.skipped += batch.skipped
                    self.undecoded += len(batch.columns.undecoded)
                    empty_at = now
                if batch is None or now >= look_at:
                    look_at = now + LOOK_S
                    sink.roll_due()
                    statistics = consumer.statistics()
                    if len(statistics.queues) != len(located.queues):
                        return False
                    self._report(sink, statistics)
                self.unproven = consumer.unproven()
                if (
                    batch is None
                    and until_empty_s is not None
                    and now - empty_at >= until_empty_s
                    and consumer.caught_up()
                ):
                    return True

    def _check_log(self, sink: Sink, broker_group: str, log_id: str) -> None:
        """An offset names one message for ever, unless a recovery lost messages; the log has
        another id after it."""
        if log_id != sink.logs.setdefault(broker_group, log_id):
            problem = (
                f"broker group {broker_group} was recovered since, and {sink.where} may have"
                " messages that were lost there"
            )
            raise BadArgument(problem, "write the topic to another place")

    def _report(self, sink: Sink, statistics: ConsumerStatistics) -> None:
        self._show(sink.rows, statistics.lag)
