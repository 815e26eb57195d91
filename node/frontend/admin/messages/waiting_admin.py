"""Delayed messages and half messages of a topic over all broker groups: lists, and their
cancellation; any node answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ledgermq.node.broker.calls.operator_calls import LETTERS_MAX
from ledgermq.node.frontend.admin.messages.group_reads import ANSWER_BYTES, ANSWER_MAX
from ledgermq.node.frontend.admin.messages.group_waiting import CANCELLED, KINDS
from ledgermq.node.frontend.admin.messages.queries import LEADER_WITHIN_S, Queries
from ledgermq.node.frontend.ports import AdminCalls, Metadata
from ledgermq.node.frontend.routing.known_topics import of_topic
from ledgermq.node.frontend.security.admin_guard import caller
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import admin_pb2, peer_pb2
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code, fail

log = get_logger()


class WaitingMessages:
    """Executes ListWaiting and CancelWaiting. Topics are those of the controller's state."""

    def __init__(self, queries: Queries, controller: Metadata) -> None:
        self._queries = queries
        self._controller = controller

    def calls(self) -> AdminCalls:
        """The methods that it serves."""
        return AdminCalls(
            {
                "ListWaiting": of_topic(self._controller, self.listed),
                "CancelWaiting": of_topic(
                    self._controller,
                    lambda topic, request: self.cancelled(topic, request, caller()),
                ),
            }
        )

    async def listed(
        self, topic: Any, request: admin_pb2.ListWaitingRequest
    ) -> admin_pb2.ListWaitingResponse:
        """One page. Raises LedgerError."""
        _check_kind(request.kind)
        groups = sorted(topic.placement)
        broker, epoch, offset = _decoded(request.after, groups)
        wanted = max(1, min(request.max or 10, ANSWER_MAX))
        response = admin_pb2.ListWaitingResponse()
        size = 0
        for group in [name for name in groups if name >= broker]:
            if len(response.messages) >= wanted or size >= ANSWER_BYTES:
                response.next = json.dumps([group, 0, 0]).encode()
                return response
            question = peer_pb2.GroupWaiting(
                topic=stored_name(topic.namespace, topic.name),
                kind=request.kind,
                message_ids=request.message_ids,
                max=wanted - len(response.messages),
                epoch=epoch,
                offset=offset,
            )
            for name in ("begin_ms", "end_ms"):
                if request.HasField(name):
                    setattr(question, name, getattr(request, name))
            reply = await self._queries.ask(
                group, question, peer_pb2.GroupWaitingReply, LEADER_WITHIN_S
            )
            response.messages.extend(reply.messages)
            size += sum(len(found.message.body) for found in reply.messages)
            if reply.more:
                response.next = json.dumps([group, reply.next_epoch, reply.next_offset]).encode()
                return response
            epoch = offset = 0
        return response

    async def cancelled(
        self, topic: Any, request: admin_pb2.CancelWaitingRequest, user: str
    ) -> admin_pb2.CancelWaitingResponse:
        """Cancel messages, one broker group after the other; if that fails in between, it can be
        repeated. Raises LedgerError."""
        _check_kind(request.kind)
        if len(request.messages) > LETTERS_MAX:
            raise fail(
                Code.BAD_REQUEST,
                f"{len(request.messages)} messages in one call; the limit is {LETTERS_MAX}",
            )
        states: dict[int, str] = {}
        for group in sorted({place.broker_group for place in request.messages}):
            if group not in topic.placement:
                raise fail(
                    Code.BAD_REQUEST, f"topic {topic.name} has no queue in broker group {group!r}"
                )
            rows = [at for at, place in enumerate(request.messages) if place.broker_group == group]
            question = peer_pb2.GroupCancel(
                topic=stored_name(topic.namespace, topic.name), kind=request.kind, user=user
            )
            question.places.extend(request.messages[at] for at in rows)
            reply = await self._queries.ask(
                group, question, peer_pb2.GroupCancelReply, LEADER_WITHIN_S, repeatable=True
            )
            states |= dict(zip(rows, reply.states, strict=True))
            done = sum(state == CANCELLED for state in reply.states)
            log.info(
                "waiting messages cancelled",
                group=group,
                topic=question.topic,
                kind=request.kind,
                user=user,
                messages=done,
            )
        return admin_pb2.CancelWaitingResponse(
            states=[states[at] for at in range(len(request.messages))]
        )


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise fail(Code.BAD_REQUEST, f"waiting messages are {' or '.join(KINDS)}, not {kind!r}")


def _decoded(after: bytes, groups: Sequence[str]) -> tuple[str, int, int]:
    """The page token: the broker group to go on with, and the place there. Raises LedgerError."""
    if not after:
        return "", 0, 0
    try:
        group, epoch, offset = json.loads(after)
        if group not in groups or type(epoch) is not int or type(offset) is not int:
            raise ValueError("a value of another type")
    except (ValueError, TypeError) as error:
        raise fail(
            Code.BAD_REQUEST,
            "the page token is not one of a list of waiting messages; start again without a token",
        ) from error
    return group, epoch, offset
