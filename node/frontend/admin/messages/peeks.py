"""Peek: reads committed messages of a topic without a consumer group and without a lease, from any
node.

The leader of each queue's broker group answers, so the answer misses nothing that was acknowledged
before the question; while a group has no leader, its queues cannot be read. The answer is bounded
in messages and bytes.
"""

from __future__ import annotations

from typing import Any

from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.frontend.admin.cluster.overview import queues_of
from ledgermq.node.frontend.admin.messages.group_reads import ReadThrough, confirm, message_of
from ledgermq.node.frontend.ports import AdminCalls, Engine, Metadata
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.known_topics import of_topic
from ledgermq.node.frontend.routing.leader_calls import answering, ask_leader, with_status
from ledgermq.proto import admin_pb2
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code, fail

PEEK_METHOD = "ledgermq.v1.Admin/Peek"
PEEK_MAX = 1000
PEEK_BYTES = 16 << 20
LOOK_BYTES = 16 << 20
"""The most bytes of one queue that one read takes."""
CALL_TIMEOUT_S = 5.0


class Peeks:
    """Executes Peek. Topics are those of the controller's state."""

    def __init__(
        self, engine: Engine, forwarder: Forwarder, controller: Metadata, through: ReadThrough
    ) -> None:
        self._engine = engine
        self._controller = controller
        self._through = through
        self._forwarder = forwarder

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {"Peek": of_topic(self._controller, self.peek)},
            {PEEK_METHOD: answering(admin_pb2.PeekRequest, self._answer)},
        )

    async def _answer(self, _: str, request: admin_pb2.PeekRequest) -> Any:
        """The leader's part of a Peek. The status carries a refusal that no other node would
        change; raises CallRefused otherwise."""
        here = of_topic(self._controller, self.peek_here)
        return await with_status(admin_pb2.PeekResponse, here(request))

    async def peek(self, topic: Any, request: admin_pb2.PeekRequest) -> admin_pb2.PeekResponse:
        """Messages queue by queue; with `latest`, the newest ones of the whole topic over all
        queues."""
        wanted = max(1, min(request.max or 10, PEEK_MAX))
        queues = _asked_for(topic, request)
        found: list[admin_pb2.PeekedMessage] = []
        latest = request.WhichOneof("from") == "latest"
        for number, (group, _) in queues:
            if not latest and (len(found) >= wanted or _bytes(found) >= PEEK_BYTES):
                break
            found += await self._at_leader(
                request, number, group, wanted if latest else wanted - len(found)
            )
            if latest:
                found = _newest(found, wanted)
        return admin_pb2.PeekResponse(messages=found)

    async def _at_leader(
        self, request: admin_pb2.PeekRequest, number: int, group: str, count: int
    ) -> list[admin_pb2.PeekedMessage]:
        """The answer of the leader of the queue's broker group, on this node or another, for this
        queue alone."""
        one = admin_pb2.PeekRequest()
        one.CopyFrom(request)
        one.queue, one.max = number, count
        answer = await ask_leader(
            self._forwarder,
            group,
            method=PEEK_METHOD,
            request=one,
            response=admin_pb2.PeekResponse,
            within_s=CALL_TIMEOUT_S,
            repeatable=True,
        )
        return list(answer.messages)

    async def peek_here(self, topic: Any, request: admin_pb2.PeekRequest) -> admin_pb2.PeekResponse:
        """Peek one queue of a broker group that this node leads. Raises CallRefused if it does not
        lead, LedgerError."""
        [(number, (group, queue))] = _asked_for(topic, request)
        count = max(1, min(request.max or 10, PEEK_MAX))
        stored = stored_name(topic.namespace, topic.name)
        which = request.WhichOneof("from")
        if which == "latest":
            end = (await self._look(group, stored, queue, 0, 0)).end_offset
            first = max(0, end - count)
        elif which == "store_ms":
            await confirm(self._engine, group)
            first = await self._through.offset_at(group, stored, queue, request.store_ms)
        else:
            first = request.offset if which == "offset" else 0
        messages: list[admin_pb2.PeekedMessage] = []
        size = 0
        stop = first + count
        while True:
            found = await self._look(group, stored, queue, first, stop - first)
            begin = found.next_offset - len(found.records)
            for offset, record in enumerate(found.records, begin):
                messages.append(
                    message_of(
                        record,
                        topic.namespace,
                        topic=topic.name,
                        number=number,
                        group=group,
                        queue=queue,
                        offset=offset,
                        time_epochs=found.time_epochs,
                    )
                )
                size += len(messages[-1].body)
                if size >= PEEK_BYTES:
                    # Decompressed bodies are longer than the bytes read.
                    if which != "latest":
                        return admin_pb2.PeekResponse(messages=messages)
                    messages = _newest(messages, count)
                    size = _bytes(messages)
            first = found.next_offset
            if not found.records or first >= stop:
                return admin_pb2.PeekResponse(messages=messages)
            if which == "latest":
                # The messages are long: the newest ones are still to come and replace older ones.
                messages = _newest(messages, count)

    async def _look(self, group: str, stored: str, queue: int, first: int, count: int) -> Peeked:
        return await self._through.peek(
            group,
            Peek(
                token=self._engine.new_token(),
                topic=stored,
                queue=queue,
                offset=first,
                max_messages=count,
                max_bytes=LOOK_BYTES,
            ),
        )


def _asked_for(topic: Any, request: admin_pb2.PeekRequest) -> list[tuple[int, tuple[str, int]]]:
    """The requested queues: number over all broker groups, then broker group and queue id there."""
    queues = list(enumerate(queues_of(topic)))
    if not request.HasField("queue"):
        return queues
    if not 0 <= request.queue < len(queues):
        raise fail(
            Code.BAD_REQUEST, f"topic {request.topic.name} has the queues 0 to {len(queues) - 1}"
        )
    return [queues[request.queue]]


def _bytes(messages: list[admin_pb2.PeekedMessage]) -> int:
    return sum(len(message.body) for message in messages)


def _newest(messages: list[admin_pb2.PeekedMessage], count: int) -> list[admin_pb2.PeekedMessage]:
    """The newest `count` messages by store time, at most `PEEK_BYTES` plus one message, ordered by
    queue."""
    kept: list[admin_pb2.PeekedMessage] = []
    size = 0
    for message in sorted(messages, key=lambda m: (m.store_ms, m.queue, m.offset), reverse=True)[
        :count
    ]:
        if size >= PEEK_BYTES:
            break
        kept.append(message)
        size += len(message.body)
    return sorted(kept, key=lambda m: (m.queue, m.offset))
