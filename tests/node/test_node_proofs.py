"""Proofs of a broker group whose replica another node has: the caller cannot choose which worker of a node answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.frontend.proofs.checkpoints import CONTINUE_METHOD, METHODS, PROVE_METHOD, Checkpoints, _Tree
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.log_tree import check_consistency, leaf_hash, tree_root
from ledgermq.proto.status import Code, LedgerError

LEAVES = [leaf_hash(b"%d" % number) for number in range(7)]


class Engine:
    """Hosts these broker groups; each has the tree of `LEAVES`."""

    def __init__(self, *groups: str) -> None:
        self.groups = groups

    async def run(self, group: str, look: Callable[[Any], Any]) -> _Tree:
        assert group in self.groups
        return _Tree("log", list(LEAVES))


class Forwarder:
    """Leads to the node that has the group."""

    def __init__(self, leader: Checkpoints) -> None:
        self.leader = leader
        self.asked: list[str] = []
        self.answer: bytes | Refused | None = None

    async def submit(
        self, group: str, method: str, metadata: object, request: bytes, deadline: float, *, repeatable: bool
    ) -> Sequence[bytes]:
        assert group == "g1" and not metadata and repeatable
        self.asked.append(method)
        if isinstance(self.answer, Refused):
            raise CallRefused(self.answer)
        return [await self.leader.execute(method, request) if self.answer is None else self.answer]


class Controller:
    """Knows the group `g1`, which is on another node."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(broker_groups={"g1": ("n1",)})

    async def barrier(self) -> None:
        return


def nodes() -> tuple[Checkpoints, Forwarder]:
    """The proofs of a node without the group, and its way to the leader."""
    leader = Checkpoints("n1", "c", Engine("g1"), None, None, {}, None)  # type: ignore[arg-type]
    forwarder = Forwarder(leader)
    return Checkpoints("n2", "c", Engine(), forwarder, Controller(), {}, None), forwarder  # type: ignore[arg-type]


def test_the_leader_of_the_group_proves() -> None:
    other, forwarder = nodes()
    found = asyncio.run(other.prove_consistency(pb.ProveConsistencyRequest(broker_group="g1", old_size=3, new_size=7)))
    check_consistency(3, tree_root(LEAVES[:3]), 7, tree_root(LEAVES), list(found.path))
    assert forwarder.asked == [CONTINUE_METHOD] and set(METHODS) > {CONTINUE_METHOD, PROVE_METHOD}


def test_a_node_that_has_the_group_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leader or not: every replica proves what is sealed."""
    here = Checkpoints("n1", "c", Engine("g1"), None, None, {}, None)  # type: ignore[arg-type]
    proven = pb.ProveEntryResponse(file_number=3)

    async def prove_here(request: pb.ProveEntryRequest) -> pb.ProveEntryResponse:
        return proven

    monkeypatch.setattr(here, "_prove_here", prove_here)
    assert asyncio.run(here.prove(pb.ProveEntryRequest(broker_group="g1", index=1))) is proven
    found = asyncio.run(here.prove_consistency(pb.ProveConsistencyRequest(broker_group="g1", old_size=3, new_size=7)))
    check_consistency(3, tree_root(LEAVES[:3]), 7, tree_root(LEAVES), list(found.path))


def test_what_the_leader_refuses_is_told() -> None:
    other, _ = nodes()
    with pytest.raises(LedgerError, match="a tree of 7 files does not continue one of 8") as told:
        asyncio.run(other.prove_consistency(pb.ProveConsistencyRequest(broker_group="g1", old_size=8, new_size=7)))
    assert told.value.code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("answer", "code", "what"),
    [
        (Refused("not-leader", detail="g1 had no leader"), Code.HA_NOT_AVAILABLE, "no leader"),
        (b"\xff", Code.PRECONDITION_FAILED, "older version"),
    ],
    ids=["no leader", "older"],
)
def test_without_an_answer_the_reason_is_told(answer: bytes | Refused, code: Code, what: str) -> None:
    other, forwarder = nodes()
    forwarder.answer = answer
    with pytest.raises(LedgerError, match=what) as told:
        asyncio.run(other.prove(pb.ProveEntryRequest(broker_group="g1", index=1)))
    assert told.value.code == code and forwarder.asked == [PROVE_METHOD]


def test_a_group_that_does_not_exist_is_nowhere() -> None:
    other, forwarder = nodes()
    with pytest.raises(LedgerError, match="'g9' does not exist"):
        asyncio.run(other.prove(pb.ProveEntryRequest(broker_group="g9", index=1)))
    assert not forwarder.asked
