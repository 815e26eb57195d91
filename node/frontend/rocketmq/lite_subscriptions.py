"""SyncLiteSubscription: the set of lite topics that a client reads (§2.13, §2.15).

A set belongs to the client id, not to the node that was called: the broker groups of the topic keep
it in their logs, each for the lite topics that it holds. A client may therefore talk to any node,
and to another one after a failure. Clients repeat their whole set every half minute; an unchanged
set writes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from ledgermq.node.broker.calls.consumer_calls import LiteAction, LiteStart, SyncLite
from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.service_config import ServiceConfig
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics, lite_group
from ledgermq.node.frontend.rocketmq.wire import statuses
from ledgermq.node.frontend.rocketmq.wire.validation import Caller, group_of, topic_of
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.names import check_lite, stored_name
from ledgermq.proto.status import Code, LedgerError, fail

METHOD = "SyncLiteSubscription"
SLACK = 300
"""How much larger than the announced quota a set may be: clients count on their own, and a little
late."""
ADDS_PER_S = 5000
"""The most requests that add to a set, per second and node."""

_ACTIONS: dict[int, LiteAction] = {
    pb.PARTIAL_ADD: "add",
    pb.PARTIAL_REMOVE: "remove",
    pb.COMPLETE_ADD: "set",
    pb.COMPLETE_REMOVE: "set",
}
_POLICIES: dict[int, LiteStart] = {
    pb.OffsetOption.LAST: "last",
    pb.OffsetOption.MIN: "min",
    pb.OffsetOption.MAX: "max",
}


async def check_lite_group(topics: Topics, group: str, topic: str) -> None:
    """Check that a consumer group reads the lite topics of this topic; it is bound to one. Raises
    ILLEGAL_CONSUMER_GROUP, ILLEGAL_TOPIC."""
    config = topics.group(group)
    if config is None or not config.lite_topic:
        await topics.caught_up()
        config = topics.group(group)
    if config is None or not config.lite_topic:
        remedy = "make it one with: ledgermq group create --lite-topic TOPIC"
        raise fail(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {group} does not read lite topics; {remedy}",
        )
    bound = stored_name(config.namespace, config.lite_topic)
    if bound != topic:
        raise fail(
            Code.ILLEGAL_TOPIC,
            f"consumer group {group} reads the lite topics of {bound}, not of {topic}",
        )


class LiteSubscriptions:
    """SyncLiteSubscription of one node."""

    def __init__(
        self,
        config: ServiceConfig,
        topics: Topics,
        groups: Groups,
        now: Callable[[], float],
    ) -> None:
        self._quota = config.limits.max_lite_subscriptions
        self._topics = topics
        self._groups = groups
        self._now = now
        self._adds: deque[float] = deque(maxlen=ADDS_PER_S)
        """The arrival times of the last requests that add."""

    async def route(self, data: bytes, caller: Caller, deadline: float) -> bytes:
        """Send every broker group of the topic its part of the set."""
        request = pb.SyncLiteSubscriptionRequest.FromString(data)
        topic, call = await self._check(request, caller)
        if call.action == "add":
            self._count_add()
        parts: dict[str, list[str]] = (
            {group: [] for group in topic.placement} if call.action == "set" else {}
        )
        for name in call.names:
            parts.setdefault(lite_group(topic, name), []).append(name)
        await asyncio.gather(
            *(
                self._forward_part(
                    broker_group=group,
                    names=names,
                    request=request,
                    call=call,
                    caller=caller,
                    deadline=deadline,
                )
                for group, names in sorted(parts.items())
            )
        )
        return pb.SyncLiteSubscriptionResponse(status=statuses.OK).SerializeToString()

    async def execute(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> Sequence[bytes]:
        """Execute, on this node as leader, a call that another node received and split by broker
        group."""
        _, call = await self._check(pb.SyncLiteSubscriptionRequest.FromString(data), caller)
        return [await self._here(broker_group, call, deadline)]

    async def _here(self, broker_group: str, call: SyncLite, deadline: float) -> bytes:
        await self._groups.call(broker_group, call, call.topic, deadline)
        return pb.SyncLiteSubscriptionResponse(status=statuses.OK).SerializeToString()

    async def _forward_part(
        self,
        broker_group: str,
        names: list[str],
        request: pb.SyncLiteSubscriptionRequest,
        call: SyncLite,
        caller: Caller,
        deadline: float,
    ) -> None:
        part = pb.SyncLiteSubscriptionRequest()
        part.CopyFrom(request)
        del part.lite_topic_set[:]
        part.lite_topic_set.extend(names)
        own = replace(call, token=self._groups.engine.new_token(), names=tuple(names))
        response = await self._groups.at_leader(
            broker_group,
            lambda: self._here(broker_group, own, deadline),
            method=METHOD,
            caller=caller,
            data=part.SerializeToString(),
            deadline=deadline,
        )
        status = pb.SyncLiteSubscriptionResponse.FromString(response).status
        if status.code != pb.OK:
            raise fail(status.code, status.message)

    async def _check(
        self, request: pb.SyncLiteSubscriptionRequest, caller: Caller
    ) -> tuple[Topic, SyncLite]:
        stored, group = topic_of(request.topic, caller), group_of(request.group, caller)
        await check_lite_group(self._topics, group, stored)
        topic = self._topics.known(stored) or await self._topics.find(stored)
        if request.action not in _ACTIONS:
            raise fail(Code.BAD_REQUEST, f"the action {request.action} is not known")
        most = self._quota + SLACK
        # Checked before any work for each name: a request may hold millions.
        if len(request.lite_topic_set) > most and request.action != pb.COMPLETE_REMOVE:
            raise too_many(len(request.lite_topic_set), most)
        names = (
            ()
            if request.action == pb.COMPLETE_REMOVE
            else tuple(dict.fromkeys(request.lite_topic_set))
        )
        for name in names:
            check_lite(name)
        start, at = _start(request)
        token = self._groups.engine.new_token()
        action = _ACTIONS[request.action]
        call = SyncLite(
            token=token,
            group=group,
            topic=stored,
            client_id=caller.client_id,
            action=action,
            names=names,
            version=max(request.version, 0),
            start=start,
            start_at=at,
            limit=most,
        )
        return topic, call

    def _count_add(self) -> None:
        now = self._now()
        if len(self._adds) == ADDS_PER_S and now - self._adds[0] < 1:
            raise fail(
                Code.TOO_MANY_REQUESTS,
                f"more than {ADDS_PER_S} subscriptions to lite topics in a second; try again",
            )
        self._adds.append(now)


def too_many(count: int, most: int) -> LedgerError:
    return fail(
        Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
        f"{count} lite topics in the set of one client; the limit is {most}",
    )


def _start(request: pb.SyncLiteSubscriptionRequest) -> tuple[LiteStart, int]:
    which = (
        request.offset_option.WhichOneof("offset_type")
        if request.HasField("offset_option")
        else None
    )
    if which is None:
        return "last", 0
    if which == "policy":
        if request.offset_option.policy not in _POLICIES:
            raise fail(
                Code.BAD_REQUEST,
                f"the offset policy {request.offset_option.policy} is not known; use LAST, MIN"
                " or MAX",
            )
        return _POLICIES[request.offset_option.policy], 0
    starts: dict[str, LiteStart] = {"offset": "offset", "tail_n": "tail", "timestamp": "time"}
    at = getattr(request.offset_option, which)
    if at < 0:
        raise fail(Code.ILLEGAL_OFFSET, f"{which} is {at}; it must not be negative")
    return starts[which], at
