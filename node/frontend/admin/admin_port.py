"""The admin service as methods of a gRPC server: bytes in and out.

An undecodable request is answered with a status, and callers are checked where the configuration
requires it. `service.py` composes the methods; who may call them is decided in
`security/admin_guard.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from google.protobuf.message import DecodeError

from ledgermq.node.frontend.ports import Method, ServerCall, UnaryMethod
from ledgermq.node.frontend.rocketmq.access_control import common_name_of
from ledgermq.node.frontend.security.admin_guard import Serve, guarded
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.runtime.answer_budget import ANSWERS, BULKY_BYTES, COPIES
from ledgermq.proto import admin_pb2
from ledgermq.proto.status import Code, LedgerError

SERVICE = "ledgermq.v1.Admin"
BULKY = frozenset(
    {
        "Peek",
        "Query",
        "MessageDetail",
        "TraceMessage",
        "WhyNotDelivered",
        "ListDeadLetters",
        "ListWaiting",
        "ListClients",
    }
)
"""The methods whose answers may have many MiB."""


def admin_methods(methods: Mapping[str, Serve], authority: Authority) -> dict[str, Method]:
    """The methods, by name, on bytes."""
    if authority.required:
        methods = guarded(methods, authority, common_name_of)
    return {name: UnaryMethod(_decoded(name, serve)) for name, serve in methods.items()}


def _decoded(method: str, serve: Serve) -> Callable[[bytes, ServerCall], Awaitable[bytes]]:
    request, response = (
        getattr(admin_pb2, f"{method}Request"),
        getattr(admin_pb2, f"{method}Response"),
    )

    async def answer(data: bytes, context: ServerCall) -> bytes:
        try:
            message = request.FromString(data)
        except DecodeError:
            text = f"the request is not a valid {method}Request"
            found = response(status=admin_pb2.Status(code=int(Code.BAD_REQUEST), message=text))
        else:
            found = await serve(message, context)
        out: bytes = found.SerializeToString()
        return out

    async def bulky_answer(data: bytes, context: ServerCall) -> bytes:
        try:
            share = await ANSWERS.reserve_for_task(BULKY_BYTES)
        except LedgerError as error:
            refused: bytes = response(
                status=admin_pb2.Status(code=int(error.code), message=error.message)
            ).SerializeToString()
            return refused
        out = await answer(data, context)
        share.settle(COPIES * len(out))
        return out

    return bulky_answer if method in BULKY else answer
