"""Protects the admin service: which permission each method needs, and the wrapper that asks the
authority for it.

A method that is not in the table needs an administrator of the whole cluster, so a new method is
closed by default. Whoever has the cluster secret may also do what nodes that come, stop and go need
(`ledgermq member drain` and `scale`): their machines have that secret and no user's keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from ledgermq.node.controller.grants import USERS, Action, Kind, Need
from ledgermq.node.frontend.ports import ServerCall
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.proto import admin_pb2
from ledgermq.proto.names import DLQ_PREFIX, stored_name
from ledgermq.proto.signature import OPERATOR
from ledgermq.proto.status import LedgerError

Serve = Callable[[Any, ServerCall], Awaitable[Any]]
"""A method of the admin service: takes and returns messages."""
_CALLER: ContextVar[str] = ContextVar("caller", default="")


def caller() -> str:
    """The name of the user whose call is being served; empty if calls are not signed."""
    return _CALLER.get()


def _topic(request: Any) -> Need:
    return Need(Action.ADMIN, Kind.TOPIC, stored_name(request.topic.namespace, request.topic.name))


def _group(request: Any) -> Need:
    return Need(Action.ADMIN, Kind.GROUP, stored_name(request.group.namespace, request.group.name))


def _users(_: Any) -> Need:
    return Need(Action.ADMIN, Kind.CLUSTER, USERS)


def _cluster(_: Any) -> Need:
    return Need(Action.ADMIN, Kind.CLUSTER)


NEEDS: dict[str, Callable[[Any], Need]] = {
    **dict.fromkeys(
        (
            "CreateTopic",
            "UpdateTopic",
            "DescribeTopic",
            "DeleteTopic",
            "Peek",
            "Query",
            "MessageDetail",
        ),
        _topic,
    ),
    **dict.fromkeys(("TraceMessage", "ListWaiting", "CancelWaiting"), _topic),
    "WhyNotDelivered": _group,
    **dict.fromkeys(
        ("CreateGroup", "UpdateGroup", "DescribeGroup", "DeleteGroup", "GroupLag", "ResetGroup"),
        _group,
    ),
    **dict.fromkeys(("ListDeadLetters", "SettleDeadLetters"), _group),
    "CountDeadLetters": lambda request: (
        _group(request) if request.HasField("group") else _cluster(request)
    ),
    **dict.fromkeys(("CreateUser", "ChangeUser", "DeleteUser", "ListUsers"), _users),
}

FOR_NODES = frozenset(
    (
        "ClusterStatus",
        "ListMembers",
        "TransferLeadership",
        "ListBrokerGroups",
        "ChangeMember",
        "MoveReplica",
        "PlanRebalance",
        "PreferLeader",
    )
)
"""The operator may call these, besides those that concern users: the cluster secret makes a node a
member anyway."""


def needs_of(method: str, request: Any) -> tuple[Need, ...]:
    """The permissions that a request needs; the user must have all of them."""
    need = NEEDS.get(method, _cluster)(request)
    topic = _topic_beside(method, request) if need.kind is Kind.GROUP else None
    return (need,) if topic is None else (need, Need(Action.SUBSCRIBE, Kind.TOPIC, topic))


def _topic_beside(method: str, request: Any) -> str | None:
    """The stored name of the topic that a request about a group also concerns: the answer reveals
    that topic's messages, or the call moves the group in it. Without a topic, WhyNotDelivered
    searches the whole namespace, so it needs a permission for all topics there."""
    fields = request.DESCRIPTOR.fields_by_name
    if "topic" in fields and request.HasField("topic"):
        return stored_name(request.topic.namespace, request.topic.name)
    if "lite_topic" in fields and request.lite_topic:
        return stored_name(request.group.namespace, request.lite_topic)
    if method in ("ListDeadLetters", "SettleDeadLetters"):
        return stored_name(request.group.namespace, DLQ_PREFIX + request.group.name)
    return stored_name(request.group.namespace, "*") if method == "WhyNotDelivered" else None


def guarded(
    methods: Mapping[str, Serve], authority: Authority, common_name_of: Callable[[ServerCall], str]
) -> dict[str, Serve]:
    """The same methods, each asking the authority first. All of them are unary, and every response
    has a status."""
    return {
        method: _guarded(method, serve, authority, common_name_of)
        for method, serve in methods.items()
    }


def _guarded(
    method: str, serve: Serve, authority: Authority, common_name_of: Callable[[ServerCall], str]
) -> Serve:
    response = getattr(admin_pb2, f"{method}Response")

    async def ask(request: Any, context: ServerCall) -> Any:
        try:
            name = common_name_of(context) if authority.wants_certificates else ""
            user = await authority.authenticate(
                dict(context.invocation_metadata()), name, context.peer
            )
            for need in (
                () if user == OPERATOR and method in FOR_NODES else needs_of(method, request)
            ):
                authority.authorize(user, (need,))
        except LedgerError as error:
            return response(status=admin_pb2.Status(code=int(error.code), message=error.message))
        _CALLER.set(user)
        return await serve(request, context)

    return ask
