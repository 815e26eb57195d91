"""Protects the admin service: which permission each method needs, and the wrapper that asks the authority for it.

A method that is not in the table needs an administrator of the whole cluster, so a new method is closed by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from ledgermq.node.controller.grants import USERS, Action, Kind, Need
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.proto import admin_pb2
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import LedgerError

Handlers = Mapping[str, Any]


def _topic(request: Any) -> Need:
    return Need(Action.ADMIN, Kind.TOPIC, stored_name(request.topic.namespace, request.topic.name))


def _group(request: Any) -> Need:
    return Need(Action.ADMIN, Kind.GROUP, stored_name(request.group.namespace, request.group.name))


def _users(_: Any) -> Need:
    return Need(Action.ADMIN, Kind.CLUSTER, USERS)


def _cluster(_: Any) -> Need:
    return Need(Action.ADMIN, Kind.CLUSTER)


NEEDS: dict[str, Callable[[Any], Need]] = {
    **dict.fromkeys(("CreateTopic", "UpdateTopic", "DescribeTopic", "DeleteTopic", "Peek", "Query", "MessageDetail"), _topic),
    "TraceMessage": _topic,
    "WhyNotDelivered": _group,
    **dict.fromkeys(("CreateGroup", "UpdateGroup", "DescribeGroup", "DeleteGroup", "GroupLag", "ResetGroup"), _group),
    **dict.fromkeys(("CreateUser", "ChangeUser", "DeleteUser", "ListUsers"), _users),
}


def needs_of(method: str, request: Any) -> tuple[Need, ...]:
    """The permissions that a request needs; the user must have all of them."""
    need = NEEDS.get(method, _cluster)(request)
    topic = _topic_beside(method, request) if need.kind is Kind.GROUP else None
    return (need,) if topic is None else (need, Need(Action.SUBSCRIBE, Kind.TOPIC, topic))


def _topic_beside(method: str, request: Any) -> str | None:
    """The stored name of the topic that a request about a group also concerns: the answer reveals that topic's messages, or the call moves
    the group in it. Without a topic, WhyNotDelivered searches the whole namespace, so it needs a permission for all topics there."""
    fields = request.DESCRIPTOR.fields_by_name
    if "topic" in fields and request.HasField("topic"):
        return stored_name(request.topic.namespace, request.topic.name)
    if "lite_topic" in fields and request.lite_topic:
        return stored_name(request.group.namespace, request.lite_topic)
    return stored_name(request.group.namespace, "*") if method == "WhyNotDelivered" else None


def guarded(handlers: Handlers, authority: Authority, common_name_of: Callable[[Any], str]) -> dict[str, Any]:
    """The same methods, each asking the authority first. All of them are unary, and every response has a status."""
    return {method: _guarded(method, handler, authority, common_name_of) for method, handler in handlers.items()}


def _guarded(method: str, handler: Any, authority: Authority, common_name_of: Callable[[Any], str]) -> Any:
    serve, response = handler.unary_unary, getattr(admin_pb2, f"{method}Response")

    async def ask(request: Any, context: Any) -> Any:
        try:
            name = common_name_of(context) if authority.wants_certificates else ""
            user = await authority.authenticate(dict(context.invocation_metadata()), name, context.peer)
            for need in needs_of(method, request):
                authority.authorize(user, (need,))
        except LedgerError as error:
            return response(status=admin_pb2.Status(code=int(error.code), message=error.message))
        return await serve(request, context)

    return grpc.unary_unary_rpc_method_handler(ask, handler.request_deserializer, handler.response_serializer)
