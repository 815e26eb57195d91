"""PullMessage: committed messages of one queue from an offset on, without a lease (§2.12).

The answer is a stream of messages in this order: one status, the messages, the next offset. It ends
with the first batch that matches the filter. Without a match the status is MESSAGE_NOT_FOUND, and
the next offset tells how far the queue was searched. A pulled message has no receipt handle and no
attempt: the consumer keeps its own position, here (`group_offsets.py`) or elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ledgermq.node.broker.calls.outcome import AGAIN, CallRefused
from ledgermq.node.broker.calls.read_calls import Cold, Pull, Pulled
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.service_config import DEADLINE_MARGIN_S, ServiceConfig
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire import delivering, statuses
from ledgermq.node.frontend.rocketmq.wire.bodies import gain
from ledgermq.node.frontend.rocketmq.wire.polling import AFTER_POLL_S, polling_s
from ledgermq.node.frontend.rocketmq.wire.validation import (
    Caller,
    duration_ms,
    filter_of,
    group_of,
    topic_of,
)
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.local_reads import LocalReads
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.runtime.answer_budget import ANSWERS, COPIES
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.compression import DECOMPRESSED_MAX
from ledgermq.proto.entries.layout import split_record
from ledgermq.proto.status import Code, fail

METHOD = "PullMessage"
BATCH_MAX = 1024
BATCH_BYTES = 16 << 20
STORED_READS = 4
"""How many pieces of a queue in the object store one pull searches for a match."""


def failure(status: pb.Status) -> list[bytes]:
    """The stream of a failed pull: only its status."""
    return [pb.PullMessageResponse(status=status).SerializeToString()]


async def queue_of(queue: pb.MessageQueue, caller: Caller, topics: Topics) -> tuple[str, str]:
    """(broker group, stored topic) of the queue in a request. Raises LedgerError if it does not
    exist or may not be read."""
    stored = topic_of(queue.topic, caller)
    topic = topics.known(stored) or await topics.find(stored)
    if not topic.permission.readable:
        raise fail(Code.FORBIDDEN, f"topic {stored} has no readable queue")
    name = queue.broker.name
    if not name and len(topic.placement) == 1:
        (name,) = topic.placement
    if name not in topic.placement:
        raise fail(
            Code.BAD_REQUEST,
            f"there is no broker {name!r} with queues of topic {topic.name}; take the name from the"
            " route",
        )
    if not 0 <= queue.id < topic.placement[name]:
        last = topic.placement[name] - 1
        raise fail(
            Code.BAD_REQUEST,
            f"broker {name} has the queues 0 to {last} of topic {topic.name}, not {queue.id}",
        )
    return name, stored


class Puller:
    """PullMessage of one node."""

    def __init__(
        self,
        config: ServiceConfig,
        topics: Topics,
        groups: Groups,
        forwarder: Forwarder,
        now_ns: Callable[[], int],
        local: LocalReads | None = None,
        tier: TierReads | None = None,
    ) -> None:
        self._local = local
        self._tier = tier
        self._config = config
        self._topics = topics
        self._groups = groups
        self._forwarder = forwarder
        self._now_ns = now_ns

    async def route(self, data: bytes, caller: Caller, deadline: float | None) -> Sequence[bytes]:
        """The response messages, from the queue's leader or a local replica that may serve them."""
        request = pb.PullMessageRequest.FromString(data)
        broker_group, stored = await self._check(request, caller)
        now = asyncio.get_running_loop().time()
        polling = self._polling_s(request, None if deadline is None else deadline - now)
        last = now + polling + AFTER_POLL_S
        last = last if deadline is None else min(last, deadline - DEADLINE_MARGIN_S)
        if self._groups.leads(broker_group):
            try:
                return await self._pull(broker_group, stored, request, polling, last)
            except CallRefused as refusal:
                if refusal.refused.reason not in AGAIN:
                    raise
        elif (cold := self._cold(broker_group)) is not None:
            try:
                return await self._pull(
                    broker_group, stored, request, polling=0, deadline=last, cold=cold
                )
            except CallRefused as refusal:
                if refusal.refused.reason not in AGAIN:
                    raise
        await ANSWERS.room(last)
        return await self._forwarder.submit(
            broker_group, METHOD, caller.metadata(), data, last, repeatable=True
        )

    async def execute(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> Sequence[bytes]:
        """Execute, on this node as leader, a call that another node received."""
        request = pb.PullMessageRequest.FromString(data)
        named, stored = await self._check(request, caller)
        if named != broker_group:
            raise fail(
                Code.BAD_REQUEST, f"topic {stored} has no such queue in broker group {broker_group}"
            )
        polling = self._polling_s(request, deadline - asyncio.get_running_loop().time())
        return await self._pull(broker_group, stored, request, polling, deadline)

    def _cold(self, broker_group: str) -> Cold | None:
        """The bounds within which a replica here that does not lead may answer; None if it may
        not."""
        bound_ms = None if self._local is None else self._local.bound_ms(broker_group)
        if (
            self._local is None
            or bound_ms is None
            or self._local.standing(broker_group, bound_ms) is None
        ):
            return None
        return Cold(bound_ms * 1_000_000, self._local.cold_bytes(broker_group))

    async def _check(self, request: pb.PullMessageRequest, caller: Caller) -> tuple[str, str]:
        group_of(request.group, caller)
        return await queue_of(request.message_queue, caller, self._topics)

    def _polling_s(self, request: pb.PullMessageRequest, remaining: float | None) -> float:
        return polling_s(
            duration_ms(request.long_polling_timeout),
            self._config.delivery.long_poll_max_ms,
            remaining,
        )

    async def _below(self, tier: TierReads, broker_group: str, call: Pull) -> Pulled | None:
        """What a pull gets from the object store; None if its offset is not of a message there.
        Raises LedgerError."""
        offset = call.offset
        for _ in range(STORED_READS):
            stored = await tier.entries(
                broker_group, call.topic, call.queue, offset, call.max_bytes
            )
            if stored is None:
                # The local log goes on here.
                break
            if stored.first != offset:
                problem = (
                    f"offset {offset} is outside of queue {call.queue} of topic {call.topic}, which"
                    f" begins with {stored.first}"
                )
                raise fail(Code.ILLEGAL_OFFSET, f"{problem} in the object store")
            offsets: list[int] = []
            records: list[bytes] = []
            for at, record in enumerate(stored.records(), offset):
                if len(records) == call.max_messages:
                    break
                offset = at + 1
                if call.filter.matches(record[split_record(record)[3] :]):
                    offsets.append(at)
                    records.append(record)
            if records:
                return Pulled(tuple(offsets), tuple(records), offset)
        return None if offset == call.offset else Pulled((), (), offset)

    async def _pull(
        self,
        broker_group: str,
        stored: str,
        request: pb.PullMessageRequest,
        polling: float,
        deadline: float,
        cold: Cold | None = None,
    ) -> Sequence[bytes]:
        """Read, and wait for messages, in a broker group led here; with `cold`, at a replica within
        those bounds, without waiting."""
        queue = request.message_queue.id
        left_s = deadline - DEADLINE_MARGIN_S - asyncio.get_running_loop().time() - polling
        call = Pull(
            token=self._groups.engine.new_token(),
            topic=stored,
            queue=queue,
            offset=request.offset,
            filter=filter_of(request.filter_expression),
            max_messages=min(max(request.batch_size, 1), BATCH_MAX),
            max_bytes=BATCH_BYTES,
            deadline_ns=self._now_ns() + int(polling * 1e9),
            cold=cold,
            patience_ns=int(max(left_s, 0.0) * 1e9),
        )
        try:
            pulled: Pulled = await self._groups.call(broker_group, call, stored, deadline)
        except CallRefused as refusal:
            below = (
                None
                if self._tier is None or refusal.refused.reason != "illegal-offset"
                else await self._below(self._tier, broker_group, call)
            )
            if below is None:
                raise
            pulled = below
        if gained := gain(pulled.records):
            # The answer ends with the body that exceeds its limit.
            await ANSWERS.grow(
                COPIES * min(gained, BATCH_BYTES + DECOMPRESSED_MAX), deadline - DEADLINE_MARGIN_S
            )
        status = (
            statuses.OK
            if pulled.records
            else statuses.status(Code.MESSAGE_NOT_FOUND, "no new message")
        )
        out = [pb.PullMessageResponse(status=status)]
        next_offset, size = pulled.next_offset, 0
        for offset, record in zip(pulled.offsets, pulled.records, strict=True):
            if size >= BATCH_BYTES:
                # Decompressed bodies are longer than the bytes read.
                next_offset = offset
                break
            message = delivering.pulled(stored, queue, offset, record)
            out.append(pb.PullMessageResponse(message=message))
            size += len(message.body)
        out.append(pb.PullMessageResponse(next_offset=next_offset))
        return [response.SerializeToString() for response in out]
