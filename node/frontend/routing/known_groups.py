"""The broker groups of the cluster, as far as a node may tell a client.

A node that has just started knows none until it has heard from the controller quorum. So a group
counts as unknown, and none as all of them, only after a barrier read.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.node.frontend.ports import Metadata


async def broker_groups(metadata: Metadata, *wanted: str) -> Mapping[str, tuple[str, ...]]:
    """Broker group → nodes. Asks the quorum if this node knows no group, or not all that are
    wanted; raises LedgerError if it does not answer then."""
    known = metadata.state.broker_groups
    if not known or not known.keys() >= set(wanted):
        await metadata.barrier()
    return metadata.state.broker_groups
