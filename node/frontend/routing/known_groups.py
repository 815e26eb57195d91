"""The broker groups of the cluster, as far as a node may tell a client.

A node that has just started knows none until it has heard from the controller quorum. So a group
counts as unknown, and none as all of them, only after a barrier read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.node.frontend.ports import Engine, Metadata, OperatorCall
from ledgermq.proto.status import Code, fail


async def broker_groups(metadata: Metadata, *wanted: str) -> Mapping[str, tuple[str, ...]]:
    """Broker group → nodes. Asks the quorum if this node knows no group, or not all that are
    wanted; raises LedgerError if it does not answer then."""
    known = metadata.state.broker_groups
    if not known or not known.keys() >= set(wanted):
        await metadata.barrier()
    return metadata.state.broker_groups


def of_broker_group(engine: Engine, metadata: Metadata, serve: OperatorCall) -> OperatorCall:
    """`serve` for requests that name a broker group, which must exist."""

    async def call(request: Any) -> Any:
        group = request.broker_group
        if group not in engine.groups:
            known = await broker_groups(metadata, group)
            if group not in known:
                raise fail(
                    Code.BAD_REQUEST,
                    f"broker group {group!r} does not exist; known: {', '.join(sorted(known))}",
                )
        return await serve(request)

    return call


def require_hosted(engine: Engine, group: str) -> None:
    """Raises LedgerError if this node has no replica of the group."""
    if group not in engine.groups:
        raise fail(
            Code.BAD_REQUEST,
            f"this node has no replica of broker group {group!r}; ask a node that has one",
        )


def of_hosted_group(engine: Engine, serve: OperatorCall) -> OperatorCall:
    """`serve` for requests that name a broker group, of which this node must have a replica."""

    async def call(request: Any) -> Any:
        require_hosted(engine, request.broker_group)
        return await serve(request)

    return call
