"""RecallMessage: a producer recalls a delayed message before its delivery time (§2.16).

The recall handle names the broker group and the place where the message was first stored, so any
node forwards a recall to that group. The answer comes when the recall is committed. A message that
is due, delivered or already recalled is NOT_FOUND.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.node.broker.calls.send_calls import Recall, Recalled
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.opaque import Opaque
from ledgermq.node.frontend.rocketmq.wire.validation import ACCEPTED, Caller, topic_of
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, fail

METHOD = "RecallMessage"


@dataclass(frozen=True, slots=True)
class Delayed:
    """The contents of a recall handle."""

    broker_group: str
    topic: str
    deliver_ms: int
    fire_ms: int
    offset: int
    message_id: str


class RecallHandles:
    """Creates and reads the recall handles of one cluster."""

    def __init__(self, secret: bytes) -> None:
        self._opaque = Opaque(secret, "recall handle", Code.BAD_REQUEST)

    def make(self, delayed: Delayed) -> str:
        """The handle's text for the producer."""
        d = delayed
        return self._opaque.make(
            f"{d.broker_group}\n{d.topic}\n{d.deliver_ms}\n{d.fire_ms}\n{d.offset}\n{d.message_id}"
        )

    def read(self, text: str) -> Delayed:
        """Read a handle. Raises BAD_REQUEST if this cluster did not create it."""
        broker_group, topic, deliver_ms, fire_ms, offset, message_id = self._opaque.read(
            text
        ).split("\n", 5)
        return Delayed(
            broker_group=broker_group,
            topic=topic,
            deliver_ms=int(deliver_ms),
            fire_ms=int(fire_ms),
            offset=int(offset),
            message_id=message_id,
        )


class Recaller:
    """RecallMessage of one node."""

    def __init__(self, topics: Topics, groups: Groups, handles: RecallHandles) -> None:
        self._topics = topics
        self._groups = groups
        self._handles = handles

    async def route(self, data: bytes, caller: Caller, deadline: float) -> bytes:
        """Recall the message in its broker group."""
        delayed = await self._check(data, caller)
        return await self._groups.at_leader(
            delayed.broker_group,
            lambda: self._recall(delayed, deadline),
            method=METHOD,
            caller=caller,
            data=data,
            deadline=deadline,
            repeatable=False,
        )

    async def execute(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> list[bytes]:
        """Execute, on this node as leader, a call that another node received."""
        delayed = await self._check(data, caller)
        if delayed.broker_group != broker_group:
            raise fail(
                Code.BAD_REQUEST,
                f"the message waits in broker group {delayed.broker_group}, not in {broker_group}",
            )
        return [await self._recall(delayed, deadline)]

    async def _check(self, data: bytes, caller: Caller) -> Delayed:
        request = pb.RecallMessageRequest.FromString(data)
        stored = topic_of(request.topic, caller)
        topic = self._topics.known(stored) or await self._topics.find(stored)
        if pb.DELAY not in ACCEPTED[topic.kind]:
            text = (
                f"topic {stored} takes {topic.kind.value} messages; only delayed messages can be"
                " recalled"
            )
            raise fail(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        delayed = self._handles.read(request.recall_handle)
        if delayed.topic != stored or not await self._topics.has_broker_group(delayed.broker_group):
            raise fail(Code.BAD_REQUEST, f"the recall handle is not of topic {stored}")
        return delayed

    async def _recall(self, delayed: Delayed, deadline: float) -> bytes:
        call = Recall(
            self._groups.engine.new_token(), delayed.deliver_ms, delayed.fire_ms, delayed.offset
        )
        recalled: Recalled = await self._groups.call(
            delayed.broker_group, call, delayed.topic, deadline
        )
        if not recalled.ok:
            raise fail(
                Code.NOT_FOUND,
                f"the message {delayed.message_id} is due, delivered or recalled already",
            )
        return pb.RecallMessageResponse(
            status=statuses.OK, message_id=delayed.message_id
        ).SerializeToString()
