"""Requests of `ledgermq.v1.Admin`, which any node answers: the client's one way to this service.

`admin.py` makes plain values of the answers; commands, which show more of them, take the answers as
they are. Only calls live here: requests are built by those who ask. Every request is safe to
repeat, and is, within the connection's timeout: creating an object that exists with the same
settings succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.message import Message

from ledgermq.client.api.connection import Connection, Endpoints
from ledgermq.client.api.service import ADMIN
from ledgermq.client.api.talks import Talk
from ledgermq.proto import admin_pb2 as pb

M = TypeVar("M", bound=Message)
Listing = TypeVar(
    "Listing",
    pb.QueryResponse,
    pb.TraceMessageResponse,
    pb.ListDeadLettersResponse,
    pb.ListWaitingResponse,
)
PAGE = 1000
"""The largest number of messages in one answer."""
BATCH = 100
"""The most dead letters, or waiting messages, of one call that settles or cancels them."""


def asking(connection: Endpoints[Any], request: Message, response: type[M]) -> Talk[M]:
    """The answer to an `XRequest`, by the method `X`. Raises Unreachable or Refused."""
    method = request.DESCRIPTOR.name.removesuffix("Request")
    return connection.asking(ADMIN + method, request, response)


def ask(connection: Connection, request: Message, response: type[M]) -> M:
    """The same, for threads."""
    return connection.carry_out(asking(connection, request, response))


def pages(
    connection: Connection,
    request: pb.QueryRequest
    | pb.TraceMessageRequest
    | pb.ListDeadLettersRequest
    | pb.ListWaitingRequest,
    response: type[Listing],
) -> Iterator[Listing]:
    """Yield answer after answer until no page follows. Changes the request, and so may the caller
    between two pages."""
    while True:
        page = ask(connection, request, response)
        yield page
        if not page.next:
            return
        request.after = page.next
