"""ReceiveMessage: long polls at the leader of one broker group, and their answers as streams
(§2.6).

The answer is a stream of messages in this order: one status, the messages, one delivery time. A
poll lasts as long as the request says, otherwise as the client's Settings say, otherwise the
longest time; it always ends a little before the call's deadline. Leases whose messages could not be
written to the caller are released.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ledgermq.node.broker.calls.consumer_calls import WIRE_MAX, CancelReceive, Receive, Received
from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.ports import Filter
from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.ports import ServerCall
from ledgermq.node.frontend.rocketmq.broker_calls import Groups
from ledgermq.node.frontend.rocketmq.clients import Clients
from ledgermq.node.frontend.rocketmq.lite_subscriptions import check_lite_group
from ledgermq.node.frontend.rocketmq.service_config import DEADLINE_MARGIN_S, ServiceConfig
from ledgermq.node.frontend.rocketmq.topic_lookup import Topics
from ledgermq.node.frontend.rocketmq.wire import delivering, statuses
from ledgermq.node.frontend.rocketmq.wire.bodies import gain
from ledgermq.node.frontend.rocketmq.wire.handles import Handles
from ledgermq.node.frontend.rocketmq.wire.polling import AFTER_POLL_S, polling_s
from ledgermq.node.frontend.rocketmq.wire.validation import (
    Caller,
    attempt_id,
    batch_size,
    duration_ms,
    filter_of,
    group_of,
    invisible_ms,
    topic_of,
)
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.runtime.answer_budget import ANSWERS, COPIES
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import TopicKind

METHOD = "ReceiveMessage"
_SMALL = ("grpc-node-js/", "tonic/", "grpc-dotnet/")
"""gRPC libraries whose official clients keep the default limit of 4 MiB: Node, Rust, C#. Each is
named in the header `user-agent`."""


def failure(status: pb.Status) -> list[bytes]:
    """The stream of a Receive without messages: its status and the time."""
    return [
        pb.ReceiveMessageResponse(status=status).SerializeToString(),
        _time().SerializeToString(),
    ]


def _time() -> pb.ReceiveMessageResponse:
    response = pb.ReceiveMessageResponse()
    response.delivery_timestamp.FromNanoseconds(time.time_ns())
    return response


class Receiver:
    """ReceiveMessage of one node."""

    def __init__(
        self,
        config: ServiceConfig,
        topics: Topics,
        groups: Groups,
        forwarder: Forwarder,
        clients: Clients,
        handles: Handles,
        now_ns: Callable[[], int],
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._forwarder = forwarder
        self._clients = clients
        self._handles = handles
        self._now_ns = now_ns
        self._turn = 0

    async def route(self, data: bytes, caller: Caller, deadline: float | None) -> Sequence[bytes]:
        """The response messages of the stream."""
        self._clients.on_receive(caller.client_id, caller.peer)
        request = pb.ReceiveMessageRequest.FromString(data)
        job = await self._check(request, caller)
        broker_group = self._broker_group(request, job.topic)
        now = asyncio.get_running_loop().time()
        if not request.HasField("long_polling_timeout"):
            request.long_polling_timeout.FromMilliseconds(self._own_polling_ms(caller))
            data = request.SerializeToString()
        job.polling_s = self._polling_s(request, None if deadline is None else deadline - now)
        # Long enough that the leader does not cut the poll short, but the answer must come before
        # the caller's deadline.
        last = now + job.polling_s + AFTER_POLL_S
        last = last if deadline is None else min(last, deadline - DEADLINE_MARGIN_S)
        until = now + job.polling_s
        while True:
            try:
                return await self._at_leader(broker_group, job, data, last)
            except CallRefused as refusal:
                if refusal.refused.reason != "unknown-outcome":
                    raise
            # The leader is gone, maybe with an answer that holds messages. Their leases are no
            # longer renewed: the client gets a new session and waits for other messages at the next
            # leader, for the rest of its poll.
            self._clients.doubt(caller.client_id)
            job.polling_s = until - asyncio.get_running_loop().time()
            if job.polling_s <= 0:
                return failure(
                    statuses.status(
                        Code.MESSAGE_NOT_FOUND,
                        "the leader changed while this call waited; ask again",
                    )
                )
            job.caller = replace(
                job.caller, session=self._clients.on_contact(caller.client_id, caller.peer)
            )

    async def _at_leader(
        self, broker_group: str, job: _Job, data: bytes, last: float
    ) -> Sequence[bytes]:
        if self._groups.leads(broker_group):
            try:
                return await self._lease(broker_group, job, last)
            except CallRefused as refusal:
                if refusal.refused.reason != "not-leader":
                    raise
        await ANSWERS.room(last)
        return await self._forwarder.submit(broker_group, METHOD, job.caller.metadata(), data, last)

    async def execute(
        self, broker_group: str, data: bytes, caller: Caller, deadline: float
    ) -> Sequence[bytes]:
        """Execute, on this node as leader, a call that another node received."""
        request = pb.ReceiveMessageRequest.FromString(data)
        job = await self._check(request, caller)
        job.polling_s = self._polling_s(request, deadline - asyncio.get_running_loop().time())
        return await self._lease(broker_group, job, deadline)

    async def _check(self, request: pb.ReceiveMessageRequest, caller: Caller) -> _Job:
        group = group_of(request.group, caller)
        stored = topic_of(request.message_queue.topic, caller)
        topic = self._topics.known(stored) or await self._topics.find(stored)
        if not topic.permission.readable:
            raise fail(Code.FORBIDDEN, f"topic {stored} has no readable queue")
        job = _Job(group, stored, topic, caller)
        job.filter = filter_of(request.filter_expression)
        if topic.kind is TopicKind.LITE:
            await check_lite_group(self._topics, group, stored)
            if job.filter.cost:
                raise fail(
                    Code.ILLEGAL_FILTER_EXPRESSION,
                    "messages of lite topics are not filtered; use '*'",
                )
        else:
            job.group = self._topics.reading(group, caller.client_id)
        job.max_messages = batch_size(request, self._config.limits)
        job.invisible_ms = invisible_ms(request, self._config.delivery)
        job.attempt_id = attempt_id(request)
        return job

    def _broker_group(self, request: pb.ReceiveMessageRequest, topic: Topic) -> str:
        """The broker group of the broker in the request; the groups in turn if it names none."""
        name = request.message_queue.broker.name
        if name in topic.placement:
            return name
        if name:
            raise fail(
                Code.BAD_REQUEST,
                f"there is no broker {name!r} with queues of topic {topic.name}; take the name from"
                " the route",
            )
        self._turn += 1
        return sorted(topic.placement)[self._turn % len(topic.placement)]

    def _own_polling_ms(self, caller: Caller) -> int:
        """The poll time of the client's Settings in ms (Go's simple consumer sends it only there),
        otherwise the longest poll."""
        settings = self._clients.settings(caller.client_id)
        if settings is not None and settings.subscription.HasField("long_polling_timeout"):
            return max(duration_ms(settings.subscription.long_polling_timeout), 0)
        return self._config.delivery.long_poll_max_ms

    def _polling_s(self, request: pb.ReceiveMessageRequest, remaining: float | None) -> float:
        return polling_s(
            duration_ms(request.long_polling_timeout),
            self._config.delivery.long_poll_max_ms,
            remaining,
        )

    async def _lease(self, broker_group: str, job: _Job, deadline: float) -> list[bytes]:
        """Wait for messages in a broker group led here. Waits for leased ones until `deadline`,
        because an answer without them would cost each an attempt."""
        left_s = deadline - DEADLINE_MARGIN_S - asyncio.get_running_loop().time() - job.polling_s
        call = Receive(
            token=self._groups.engine.new_token(),
            group=job.group,
            topic=job.stored,
            client_id=job.caller.session,
            filter=job.filter,
            max_messages=job.max_messages,
            invisible_ms=job.invisible_ms,
            deadline_ns=self._now_ns() + int(job.polling_s * 1e9),
            patience_ns=int(max(left_s, 0.0) * 1e9),
            lite=job.topic.kind is TopicKind.LITE,
            attempt_id=job.attempt_id,
        )
        received: Received = await self._groups.call(broker_group, call, job.stored, deadline)
        if not received.leases:
            return failure(statuses.status(Code.MESSAGE_NOT_FOUND, "no new message"))
        if gained := gain([lease.record for lease in received.leases]):
            await self._grow(broker_group, call, COPIES * gained, deadline)
        out = [pb.ReceiveMessageResponse(status=statuses.OK).SerializeToString()]
        for lease in received.leases:
            response = pb.ReceiveMessageResponse()
            delivering.leased(
                out=response.message,
                handles=self._handles,
                broker_group=broker_group,
                consumer_group=job.group,
                topic=job.stored,
                lease=lease,
                invisible_ms=job.invisible_ms,
            )
            out.append(response.SerializeToString())
        out.append(_time().SerializeToString())
        return out

    async def _grow(self, broker_group: str, call: Receive, size: int, deadline: float) -> None:
        """Wait for the memory of decompressed bodies. Without it nobody gets the messages, and
        their leases end at once."""
        try:
            await ANSWERS.grow(size, deadline - DEADLINE_MARGIN_S)
        except BaseException:  # a caller that went while it waited, too
            self._groups.notify(broker_group, CancelReceive(call.token))
            raise


class _Job:
    """One checked Receive."""

    __slots__ = (
        "attempt_id",
        "caller",
        "filter",
        "group",
        "invisible_ms",
        "max_messages",
        "polling_s",
        "stored",
        "topic",
    )

    def __init__(self, group: str, stored: str, topic: Topic, caller: Caller) -> None:
        self.group = group
        self.stored = stored
        self.topic = topic
        self.caller = caller
        self.filter: Filter = TagFilter()
        self.max_messages = 1
        self.invisible_ms: int | None = None
        self.polling_s = 0.0
        self.attempt_id = ""


def takes(context: ServerCall, size: int) -> bool:
    """Whether the client of this call accepts a message of this many bytes."""
    if size <= WIRE_MAX:
        return True
    user_agent = dict(context.invocation_metadata()).get("user-agent", "")
    return not any(name in user_agent for name in _SMALL)


def fitting(
    responses: Sequence[bytes], context: ServerCall
) -> tuple[Sequence[bytes], list[pb.Message]]:
    """The stream without the messages that are too large for its caller, and those messages: one of
    them would end the call, and the caller would lose the others too."""
    large = [data for data in responses if not takes(context, len(data))]
    if not large:
        return responses, []
    withheld = undelivered(large)
    rest = [data for data in responses if takes(context, len(data))]
    if not undelivered(rest):
        name, size = withheld[0].system_properties.message_id, len(large[0])
        problem = (
            f"message {name} has {size} bytes on the wire, and the gRPC library of this client"
            f" takes {WIRE_MAX}"
        )
        rest = failure(
            statuses.status(
                Code.MESSAGE_BODY_TOO_LARGE,
                f"{problem}; receive it with a client for Java, Go, Python or C++",
            )
        )
    return rest, withheld


def auto_renewed(data: bytes) -> bool:
    """Whether a Receive, in bytes, asks for leases that the node renews while the client lives."""
    return pb.ReceiveMessageRequest.FromString(data).auto_renew


def undelivered(responses: Sequence[bytes]) -> list[pb.Message]:
    """The messages in a stream, which did not reach its caller."""
    read = (pb.ReceiveMessageResponse.FromString(data) for data in responses)
    return [response.message for response in read if response.WhichOneof("content") == "message"]


def in_doubt(responses: Sequence[bytes]) -> bool:
    """Whether messages may have been leased that are not in this answer: only after a lost leader
    or an unexpected error."""
    code = pb.ReceiveMessageResponse.FromString(responses[0]).status.code if responses else pb.OK
    return code >= pb.INTERNAL_ERROR and code != pb.HA_NOT_AVAILABLE
