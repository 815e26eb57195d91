"""The topics of the cluster, as a node may tell a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.ports import Metadata, OperatorCall
from ledgermq.proto import admin_pb2
from ledgermq.proto.names import stored_name
from ledgermq.proto.status import Code, fail


async def known_topic(metadata: Metadata, name: admin_pb2.Name) -> Topic:
    """The topic. A topic counts as unknown only after a barrier read (docs/architecture.md, The
    controller). Raises LedgerError."""
    key = (name.namespace, name.name)
    if key not in metadata.state.topics:
        await metadata.barrier()
    topic = metadata.state.topics.get(key)
    if topic is None:
        raise fail(
            Code.TOPIC_NOT_FOUND,
            f"topic {stored_name(*key)} does not exist; create it with: ledgermq topic create"
            f" {name.name}",
        )
    return topic


def of_topic(metadata: Metadata, serve: Callable[[Any, Any], Awaitable[Any]]) -> OperatorCall:
    """`serve(topic, request)` for requests that name a topic, which must exist."""

    async def call(request: Any) -> Any:
        return await serve(await known_topic(metadata, request.topic), request)

    return call
