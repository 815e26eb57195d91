"""The permissions that each method of the client contract needs (contract §3.2), as one table.
Pure.

A method that is not in the table is forbidden to every user. Every row gives a list of needs, all
of which must be met; a need is a tuple of alternatives. Names are checked here first, with the same
texts as in the methods themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledgermq.node.controller.grants import Action, Kind, Need
from ledgermq.node.frontend.rocketmq.wire.validation import Caller, group_of, topic_of
from ledgermq.proto import messaging_pb2 as pb

Needs = list[tuple[Need, ...]]


def _publish(topic: pb.Resource, caller: Caller) -> tuple[Need, ...]:
    return (Need(Action.PUBLISH, Kind.TOPIC, topic_of(topic, caller)),)


def _read(topic: pb.Resource, caller: Caller) -> tuple[Need, ...]:
    return (Need(Action.SUBSCRIBE, Kind.TOPIC, topic_of(topic, caller)),)


def _as_group(group: pb.Resource, caller: Caller) -> tuple[Need, ...]:
    return (Need(Action.SUBSCRIBE, Kind.GROUP, group_of(group, caller)),)


def _use_topic(request: Any, caller: Caller) -> Needs:
    return [_publish(request.topic, caller) + _read(request.topic, caller)]


def _send(request: Any, caller: Caller) -> Needs:
    topics = {
        (message.topic.resource_namespace, message.topic.name): message.topic
        for message in request.messages
    }
    return [_publish(topic, caller) for topic in topics.values()]


def _write(request: Any, caller: Caller) -> Needs:
    return [_publish(request.topic, caller)]


def _consume(request: Any, caller: Caller) -> Needs:
    return [_read(request.topic, caller), _as_group(request.group, caller)]


def _consume_queue(request: Any, caller: Caller) -> Needs:
    return [_read(request.message_queue.topic, caller), _as_group(request.group, caller)]


def _look_at_queue(request: Any, caller: Caller) -> Needs:
    return [_read(request.message_queue.topic, caller)]


def _own_group(request: Any, caller: Caller) -> Needs:
    return [_as_group(request.group, caller)]


def _own_group_if_any(request: Any, caller: Caller) -> Needs:
    return [_as_group(request.group, caller)] if request.group.name else []


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: the request's type, and the permissions it needs."""

    request: Any
    needs: Callable[[Any, Caller], Needs]


RULES: dict[str, Rule] = {
    "QueryRoute": Rule(pb.QueryRouteRequest, _use_topic),
    "QueryAssignment": Rule(pb.QueryAssignmentRequest, _consume),
    "Heartbeat": Rule(pb.HeartbeatRequest, _own_group_if_any),
    "NotifyClientTermination": Rule(pb.NotifyClientTerminationRequest, _own_group_if_any),
    "SendMessage": Rule(pb.SendMessageRequest, _send),
    "RecallMessage": Rule(pb.RecallMessageRequest, _write),
    "EndTransaction": Rule(pb.EndTransactionRequest, _write),
    "ReceiveMessage": Rule(pb.ReceiveMessageRequest, _consume_queue),
    "AckMessage": Rule(pb.AckMessageRequest, _consume),
    "ForwardMessageToDeadLetterQueue": Rule(pb.ForwardMessageToDeadLetterQueueRequest, _consume),
    "SyncLiteSubscription": Rule(pb.SyncLiteSubscriptionRequest, _consume),
    "ChangeInvisibleDuration": Rule(pb.ChangeInvisibleDurationRequest, _own_group),
    "PullMessage": Rule(pb.PullMessageRequest, _consume_queue),
    "UpdateOffset": Rule(pb.UpdateOffsetRequest, _consume_queue),
    "GetOffset": Rule(pb.GetOffsetRequest, _consume_queue),
    "QueryOffset": Rule(pb.QueryOffsetRequest, _look_at_queue),
}


def needs_of_settings(settings: pb.Settings, caller: Caller) -> Needs:
    """The permissions that the Telemetry stream of a client with these Settings needs."""
    if settings.WhichOneof("pub_sub") == "publishing":
        return [_publish(topic, caller) for topic in settings.publishing.topics]
    entries = settings.subscription.subscriptions
    return [
        _as_group(settings.subscription.group, caller),
        *(_read(entry.topic, caller) for entry in entries),
    ]
