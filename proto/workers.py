"""The names of a node's workers: `n1` itself, then `n1.2`, `n1.3` … (docs/workers.md).

A node with several worker processes is several members of its cluster. Their names alone tell which
members share a machine, so that no second source can disagree: there is no label, no table, and no
query to the controller. Names of nodes contain no full stop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NODE_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
MEMBER_NAME = rf"{NODE_NAME}(?:\.(?:[2-9]|[1-9][0-9]))?"
"""A node, or a worker of it other than the first."""
WORKERS_MAX = 64
WORKER_PORT_STEP = 10
"""From a worker's peer port, and from its controller port, to the next worker's: nine nodes of
`ledgermq up` fit between."""
MEMBER_METADATA = "x-ledgermq-node"
"""Metadata of a call: the cluster member that is meant, if the workers of a node share an
endpoint."""
WORKER_NAME = re.compile(rf"{NODE_NAME}\.(?:[2-9]|[1-9][0-9])").fullmatch
"""Matches the name of a worker other than the first, which is also the name of its directory inside
the node's."""

PASSED_BY = "x-ledgermq-passed-by"
"""Initial metadata of an answer: the worker that accepted the connection and passed the call on to
the intended one."""


def worker_name(node: str, number: int) -> str:
    """The name of a node's worker; the first one has the node's own."""
    return node if number == 1 else f"{node}.{number}"


def node_of(member: str) -> str:
    """The node of a cluster member: the members of one node share its machine and its public port,
    and fail together."""
    return member.partition(".")[0]


def number_of(member: str) -> int:
    """Which worker of its node a member is, from 1."""
    return int(member.partition(".")[2] or 1)


def is_first(member: str) -> bool:
    """Whether a member is its node's first worker: the one that votes in the controller quorum."""
    return "." not in member


def together(members: Iterable[str]) -> tuple[str, str] | None:
    """Two of these members that share a machine; None if no two do."""
    seen: dict[str, str] = {}
    for member in members:
        other = seen.setdefault(node_of(member), member)
        if other != member:
            return other, member
    return None
