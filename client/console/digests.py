"""The map of a replicated log: which files are sealed and equal on which replica, which are
damaged, and which were never compared.

Each node answers for its own disk, so each is asked itself, and may fail alone. The nodes compute
the digests; nothing is computed here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import grpc

from ledgermq.client.api.connection import OK, parse_endpoints
from ledgermq.client.api.transport import cause_of, failure_of, transport_code
from ledgermq.client.console.watching import Watch
from ledgermq.client.errors import ClusterError, Unreachable, refusal
from ledgermq.proto import audit_pb2

DESCRIBE = "/ledgermq.v1.Replicas/Describe"
TIMEOUT_S = 5.0
FILES_SHOWN = 200
"""The newest files on the map. Damage in older ones is in the list below it."""
WIDTH = 1000
EQUAL, DIFFERS, MISSING, PENDING, NEVER, REMOVED = (
    "equal",
    "differs",
    "missing",
    "pending",
    "never",
    "removed",
)
WORDS = {
    EQUAL: "equal to what a majority sealed",
    DIFFERS: "DAMAGED: differs from what a majority sealed",
    MISSING: "MISSING on this replica",
    PENDING: "sealed; this replica's digest is not known yet",
    NEVER: "never compared",
    REMOVED: "removed by retention",
}
BAD = (DIFFERS, MISSING)


@dataclass(frozen=True, slots=True)
class Described:
    """What one node says about its replica, or why it says nothing."""

    node: str
    answer: audit_pb2.DescribeReplicaResponse | None
    error: str = ""


async def of_group(watch: Watch, group: str, nodes: list[str]) -> list[Described]:
    """Ask each of these nodes for the digests of its replica. Raises ClusterError if their
    addresses are unknown, or if all refuse."""
    addresses = {member.node: member.addresses.client for member in await watch.admin.members()}
    outcomes = await asyncio.gather(
        *(_asked(watch, node, addresses.get(node, ""), group) for node in nodes)
    )
    errors = [outcome for outcome in outcomes if isinstance(outcome, ClusterError)]
    if errors and len(errors) == len(outcomes):
        raise errors[0]
    return [
        Described(node, None, str(one)) if isinstance(one, ClusterError) else Described(node, one)
        for node, one in zip(nodes, outcomes, strict=True)
    ]


async def _asked(
    watch: Watch, node: str, endpoint: str, group: str
) -> audit_pb2.DescribeReplicaResponse | ClusterError:
    if not endpoint:
        return Unreachable(f"the address of {node} is unknown", "see: ledgermq member list")
    (address,) = parse_endpoints(f"{node}@{endpoint}")
    request = audit_pb2.DescribeReplicaRequest(
        broker_group=group, within_ms=round(TIMEOUT_S * 1000)
    )
    call: Any = watch.connection.channel_to(address).unary_unary(
        DESCRIBE,
        audit_pb2.DescribeReplicaRequest.SerializeToString,
        audit_pb2.DescribeReplicaResponse.FromString,
    )
    try:
        answer: audit_pb2.DescribeReplicaResponse = await call(
            request, metadata=watch.connection.metadata_to(address), timeout=TIMEOUT_S
        )
    except grpc.RpcError as error:
        known = transport_code(error) in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.CANCELLED,
        )
        return Unreachable(*cause_of(address, error)) if known else failure_of(address, error)
    return (
        answer if answer.status.code == OK else refusal(answer.status.code, answer.status.message)
    )


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of one replica's log on the map."""

    base: int
    end: int
    state: str
    sha256: str = ""

    @property
    def words(self) -> str:
        return WORDS[self.state]


class Map:
    """The blocks of all replicas, on one scale."""

    def __init__(self, group: str, described: list[Described], at: datetime | None = None) -> None:
        """`at`: when the nodes answered."""
        self.group = group
        self.at = at
        self.silent = [
            one for one in described if one.answer is None or one.answer.state != "running"
        ]
        answers = [
            one.answer
            for one in described
            if one.answer is not None and one.answer.state == "running"
        ]
        self.sealed = sorted(
            {file.base: file.end_pos for answer in answers for file in answer.sealed}.items()
        )
        self.rows = [(answer.node, self._blocks(answer)) for answer in answers]
        self.bad = [
            (node, block) for node, blocks in self.rows for block in blocks if block.state in BAD
        ]
        self.files = self.sealed[-FILES_SHOWN:]
        self._from = (
            self.files[0][0]
            if self.files
            else min((answer.begin.end_pos for answer in answers), default=0)
        )
        self._to = max((answer.end.end_pos for answer in answers), default=self._from)

    def _blocks(self, answer: audit_pb2.DescribeReplicaResponse) -> list[Block]:
        own = {file.base: file for file in answer.sealed}
        blocks = []
        for base, end in self.sealed:
            file = own.get(base)
            if file is not None:
                blocks.append(Block(base, end, _state(file), file.sha256))
            elif end <= answer.begin.end_pos:
                blocks.append(Block(base, end, REMOVED))
            elif end <= answer.end.end_pos:
                blocks.append(Block(base, end, MISSING))
        tail = max((file.end_pos for file in answer.sealed), default=answer.begin.end_pos)
        if answer.end.end_pos > tail:
            blocks.append(Block(tail, answer.end.end_pos, NEVER))
        return blocks

    def shown(self, blocks: list[Block]) -> list[tuple[float, float, Block]]:
        """Place and width of each block on the picture, with a gap between blocks. The unused end
        of a file belongs to its block."""
        span = max(1, self._to - self._from)
        rectangles = []
        ends = [*(block.base for block in blocks[1:]), *(block.end for block in blocks[-1:])]
        for block, end in zip(blocks, ends, strict=True):
            left, right = (
                WIDTH * (max(self._from, place) - self._from) / span for place in (block.base, end)
            )
            if right > left:
                rectangles.append((round(left, 1), round(max(1.0, right - left - 1), 1), block))
        return rectangles

    @property
    def equal_to(self) -> int | None:
        """The running replicas are equal up to this position, as their nodes computed it; None: not
        even in the first file."""
        reached = None
        for base, end in self.sealed:
            states = {
                block.state for _, blocks in self.rows for block in blocks if block.base == base
            }
            if not states <= {EQUAL, REMOVED} or EQUAL not in states:
                break
            reached = end
        return reached

    @property
    def never(self) -> list[tuple[str, list[Block]]]:
        """What was never compared, by node."""
        return [
            (node, [block for block in blocks if block.state == NEVER])
            for node, blocks in self.rows
        ]

    @property
    def never_bytes(self) -> int:
        """The longest stretch of a replica that was never compared."""
        return max(
            (sum(block.end - block.base for block in blocks) for _, blocks in self.never), default=0
        )


def _state(file: audit_pb2.SealedFile) -> str:
    if not file.HasField("sealed_sha256"):
        return NEVER
    if not file.HasField("sha256"):
        return PENDING
    return EQUAL if file.sha256 == file.sealed_sha256 else DIFFERS
