"""ForwardMessageToDeadLetterQueue: a consumer gives up a message (§2.9).

The handle names the message and its broker group, so any node forwards the call to the group of the
lease. It is answered when the dead letter is committed, and with OK for every message that is
already done for its group, because clients repeat the call until they get that. The lease may have
expired; the handle is refused only if another lease replaced it.
"""

from __future__ import annotations

from ledgermq.node.broker.calls.consumer_calls import Forward, Forwarded, Handle
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.handles import Handles
from ledgermq.node.frontend.rocketmq.wire.validation import Caller, group_of, topic_of
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, fail

METHOD = "ForwardMessageToDeadLetterQueue"


class DeadLetterForwarder:
    """ForwardMessageToDeadLetterQueue of one node."""

    def __init__(self, groups: Groups, handles: Handles) -> None:
        self._groups = groups
        self._handles = handles

    async def route(self, data: bytes, caller: Caller, deadline: float) -> bytes:
        """Give up the message in the broker group of its lease."""
        broker_group, handle = self._check(data, caller)
        return await self._groups.at_leader(
            broker_group,
            lambda: self._here(broker_group, handle, deadline),
            method=METHOD,
            caller=caller,
            data=data,
            deadline=deadline,
        )

    async def execute(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> list[bytes]:
        """Execute, on this node as leader, a call that another node received."""
        named, handle = self._check(data, caller)
        if named != broker_group:
            raise fail(
                Code.INVALID_RECEIPT_HANDLE, "the receipt handle belongs to another broker group"
            )
        return [await self._here(broker_group, handle, deadline)]

    def _check(self, data: bytes, caller: Caller) -> tuple[str, Handle]:
        request = pb.ForwardMessageToDeadLetterQueueRequest.FromString(data)
        stored, group = topic_of(request.topic, caller), group_of(request.group, caller)
        return self._handles.read_for(request.receipt_handle, group, stored)

    async def _here(self, broker_group: str, handle: Handle, deadline: float) -> bytes:
        forwarded: Forwarded = await self._groups.call(
            broker_group, Forward(self._groups.engine.new_token(), handle), handle.topic, deadline
        )
        if not forwarded.ok:
            raise fail(
                Code.INVALID_RECEIPT_HANDLE,
                "the lease of this receipt handle was replaced: another consumer has the message",
            )
        return pb.ForwardMessageToDeadLetterQueueResponse(status=statuses.OK).SerializeToString()
