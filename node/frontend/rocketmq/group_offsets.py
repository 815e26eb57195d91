"""UpdateOffset, GetOffset and QueryOffset: the positions of pull consumer groups in queues (§2.12).

An offset is stored when its record is committed; it is replicated like an acknowledgement and
survives every change of leaders. A read misses nothing that was answered before it. An update sets
the position, also backwards; the last one counts. If its outcome is unknown, the client is told so,
and may repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgermq.node.broker.calls.read_calls import CommitOffset, FindOffset, OffsetRead, ReadOffset
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.pulling import queue_of
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.validation import TIMESTAMP_MAX_MS, Caller, group_of
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, fail

UPDATE = "UpdateOffset"
GET = "GetOffset"
QUERY = "QueryOffset"
METHODS = (UPDATE, GET, QUERY)

Call = CommitOffset | ReadOffset | FindOffset


class OffsetKeeper:
    """UpdateOffset, GetOffset and QueryOffset of one node."""

    def __init__(self, topics: Topics, groups: Groups, tier: TierReads | None = None) -> None:
        self._topics = topics
        self._groups = groups
        self._tier = tier

    async def route(self, method: str, data: bytes, caller: Caller, deadline: float) -> bytes:
        """The response of the queue's leader."""
        broker_group, stored, call = await self._check(method, data, caller)
        return await self._groups.at_leader(
            broker_group,
            lambda: self._here(method, broker_group, stored, call, deadline),
            method=method,
            caller=caller,
            data=data,
            deadline=deadline,
            # Executed again, an update could replace the offset that another client has set and
            # read since.
            repeatable=method != UPDATE,
        )

    async def execute(
        self, method: str, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> Sequence[bytes]:
        """Execute, on this node as leader, a call that another node received."""
        named, stored, call = await self._check(method, data, caller)
        if named != broker_group:
            raise fail(
                Code.BAD_REQUEST, f"topic {stored} has no such queue in broker group {broker_group}"
            )
        return [await self._here(method, broker_group, stored, call, deadline)]

    async def _check(self, method: str, data: bytes, caller: Caller) -> tuple[str, str, Call]:
        token = self._groups.engine.new_token()
        request: Any = _REQUESTS[method].FromString(data)
        group = "" if method == QUERY else group_of(request.group, caller)
        broker_group, stored = await queue_of(request.message_queue, caller, self._topics)
        queue = request.message_queue.id
        if method == UPDATE:
            if request.offset < 0:
                raise fail(
                    Code.ILLEGAL_OFFSET,
                    f"the offset is {request.offset}; the first one of a queue is 0",
                )
            return broker_group, stored, CommitOffset(token, group, stored, queue, request.offset)
        if method == GET:
            return (
                broker_group,
                stored,
                ReadOffset(token, group, stored, queue, tiered=self._tier is not None),
            )
        policy = request.query_offset_policy
        if policy not in (pb.BEGINNING, pb.END, pb.TIMESTAMP):
            raise fail(
                Code.BAD_REQUEST,
                f"the policy {policy} is not known; use BEGINNING, END or TIMESTAMP",
            )
        store_ms = _store_ms(request) if policy == pb.TIMESTAMP else None
        return broker_group, stored, FindOffset(token, stored, queue, policy == pb.END, store_ms)

    async def _here(
        self, method: str, broker_group: str, stored: str, call: Call, deadline: float
    ) -> bytes:
        outcome = await self._groups.call(broker_group, call, stored, deadline)
        if method == UPDATE:
            return pb.UpdateOffsetResponse(status=statuses.OK).SerializeToString()
        assert isinstance(outcome, OffsetRead)
        if method == QUERY:
            assert outcome.offset is not None and isinstance(call, FindOffset), (
                "every queue has a first and an end offset"
            )
            offset = await self._below(broker_group, call, outcome.offset)
            return pb.QueryOffsetResponse(status=statuses.OK, offset=offset).SerializeToString()
        if outcome.offset is None:
            raise fail(
                Code.OFFSET_NOT_FOUND,
                "the consumer group has no offset in this queue; store one with UpdateOffset",
            )
        return pb.GetOffsetResponse(status=statuses.OK, offset=outcome.offset).SerializeToString()

    async def _below(self, broker_group: str, call: FindOffset, local_offset: int) -> int:
        """The offset in a queue that goes on in the object store; `local_offset`: the same on the
        local disks. Raises LedgerError."""
        if self._tier is None or call.end:
            return local_offset
        if call.store_ms is not None:
            return await self._tier.offset_at(
                broker_group, call.topic, call.queue, call.store_ms, local_offset
            )
        return await self._tier.first_offset(broker_group, call.topic, call.queue)


_REQUESTS: dict[str, Any] = {
    UPDATE: pb.UpdateOffsetRequest,
    GET: pb.GetOffsetRequest,
    QUERY: pb.QueryOffsetRequest,
}


def _store_ms(request: pb.QueryOffsetRequest) -> int:
    """The first whole millisecond at or after the given time: store times have no smaller unit."""
    if not request.HasField("timestamp"):
        raise fail(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
    at_ms = request.timestamp.seconds * 1000 + -(-request.timestamp.nanos // 1_000_000)
    return min(max(at_ms, 0), TIMESTAMP_MAX_MS)
