"""Calls of the administration from one node to another: asking the leader of a broker group, and
answering a call that was asked here.

An answer has a status. A refusal in it is final, because no other node would decide differently. A
node that is not the right one to ask raises CallRefused instead, and the forwarder goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from ledgermq.node.broker.calls.outcome import CallRefused
from ledgermq.node.frontend.ports import PeerCall
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import Code, LedgerError, fail, refused

R = TypeVar("R", bound=Message)


async def ask_leader(
    forwarder: Forwarder,
    group: str,
    method: str,
    request: Message,
    response: type[R],
    within_s: float,
    *,
    repeatable: bool = False,
) -> R:
    """The answer of the leader of a broker group, on this node or another. `repeatable`: it may be
    asked again after an unknown outcome. Raises LedgerError, for a refusal in the answer too."""
    deadline = asyncio.get_running_loop().time() + within_s
    try:
        answers = await forwarder.submit(
            group, method, {}, request.SerializeToString(), deadline, repeatable=repeatable
        )
    except CallRefused as refusal:
        raise refused(refusal.refused.reason, refusal.refused.detail) from refusal
    return accepted(response.FromString(answers[0]))


async def ask_node(
    forwarder: Forwarder,
    node: str,
    method: str,
    request: Message,
    response: type[R],
    within_s: float,
) -> R:
    """The answer of another node. Raises LedgerError, for a refusal in the answer too."""
    deadline = asyncio.get_running_loop().time() + within_s
    try:
        answers = await forwarder.ask(node, method, request.SerializeToString(), deadline)
    except CallRefused as refusal:
        raise refused(refusal.refused.reason, refusal.refused.detail) from refusal
    return accepted(response.FromString(answers[0]))


def accepted(answer: R) -> R:
    """The answer. Raises LedgerError if its status is a refusal."""
    status: admin_pb2.Status = answer.status  # type: ignore[attr-defined]
    if status.code != Code.OK:
        raise fail(status.code, status.message)
    return answer


async def with_status(response: Callable[..., Any], work: Awaitable[Any]) -> Any:
    """The answer that `work` gives, with status OK; instead of a LedgerError an empty one that
    says it."""
    try:
        answer = await work
    except LedgerError as error:
        return response(status=admin_pb2.Status(code=int(error.code), message=error.message))
    answer.status.code = Code.OK
    return answer


def answering(request: type[R], answer: Callable[[str, R], Awaitable[Message]]) -> PeerCall:
    """`answer(broker group, request)` as a call of bytes."""

    async def call(group: str, data: bytes) -> bytes:
        return (await answer(group, request.FromString(data))).SerializeToString()

    return call
