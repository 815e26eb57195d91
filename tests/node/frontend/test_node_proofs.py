"""Proofs of a broker group whose replica another node has: the caller cannot choose which worker of
a node answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.node.broker.calls.operator_calls import EndFile, Kept
from ledgermq.node.broker.calls.outcome import CallRefused, Refused
from ledgermq.node.frontend.proofs.checkpoints import (
    CONTINUE_METHOD,
    PROVE_METHOD,
    Checkpoints,
    _Tree,
)
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.peer_pb2 import GroupSeal
from ledgermq.proto.proofs.log_tree import check_consistency, leaf_hash, tree_root
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
        self,
        group: str,
        method: str,
        metadata: object,
        request: bytes,
        deadline: float,
        *,
        repeatable: bool,
    ) -> Sequence[bytes]:
        assert group == "g1" and not metadata and repeatable
        self.asked.append(method)
        if isinstance(self.answer, Refused):
            raise CallRefused(self.answer)
        answer = self.leader.calls().peers[method]
        return [await answer(group, request) if self.answer is None else self.answer]


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
    found = asyncio.run(
        other.prove_consistency(
            pb.ProveConsistencyRequest(broker_group="g1", old_size=3, new_size=7)
        )
    )
    check_consistency(3, tree_root(LEAVES[:3]), 7, tree_root(LEAVES), list(found.path))
    assert forwarder.asked == [CONTINUE_METHOD]


def test_replica_of_the_group_proves_without_forwarding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leader or not: every replica proves what is sealed."""
    here = Checkpoints("n1", "c", Engine("g1"), None, None, {}, None)  # type: ignore[arg-type]
    proven = pb.ProveEntryResponse(file_number=3)

    async def prove_here(request: pb.ProveEntryRequest) -> pb.ProveEntryResponse:
        return proven

    monkeypatch.setattr(here, "_prove_here", prove_here)
    assert asyncio.run(here.prove(pb.ProveEntryRequest(broker_group="g1", index=1))) is proven
    found = asyncio.run(
        here.prove_consistency(
            pb.ProveConsistencyRequest(broker_group="g1", old_size=3, new_size=7)
        )
    )
    check_consistency(3, tree_root(LEAVES[:3]), 7, tree_root(LEAVES), list(found.path))


def test_refused_proof_is_returned_to_the_caller() -> None:
    other, _ = nodes()
    with pytest.raises(LedgerError, match="a tree of 7 files does not continue one of 8") as told:
        asyncio.run(
            other.prove_consistency(
                pb.ProveConsistencyRequest(broker_group="g1", old_size=8, new_size=7)
            )
        )
    assert told.value.code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("answer", "code", "what"),
    [
        (Refused("not-leader", detail="g1 had no leader"), Code.HA_NOT_AVAILABLE, "no leader"),
        (b"\xff", Code.PRECONDITION_FAILED, "older version"),
    ],
    ids=["no leader", "older"],
)
def test_without_an_answer_the_reason_is_told(
    answer: bytes | Refused, code: Code, what: str
) -> None:
    other, forwarder = nodes()
    forwarder.answer = answer
    with pytest.raises(LedgerError, match=what) as told:
        asyncio.run(other.prove(pb.ProveEntryRequest(broker_group="g1", index=1)))
    assert told.value.code == code and forwarder.asked == [PROVE_METHOD]


def test_proof_of_an_unknown_group_is_refused_locally() -> None:
    other, forwarder = nodes()
    with pytest.raises(LedgerError, match="'g9' does not exist"):
        asyncio.run(other.prove(pb.ProveEntryRequest(broker_group="g9", index=1)))
    assert not forwarder.asked


class Leader:
    """The engine of the leader: what the group's log has is told by the test."""

    def __init__(self) -> None:
        self.groups = ("g1",)
        self.looked: list[Any] = []
        self.asked: list[EndFile] = []
        self.refusal: Refused | None = None
        self.tree = (7, 70)

    def new_token(self) -> int:
        return 1

    async def call(self, group: str, call: EndFile) -> Kept | Refused:
        self.asked.append(call)
        return self.refusal or Kept()

    async def run(self, group: str, look: Callable[[Any], Any]) -> Any:
        size, next_index = self.tree
        tree = SimpleNamespace(hashes=LEAVES[:size], next_index=next_index)
        members = SimpleNamespace(voters=("n1", "n2", "n3"))
        machine = SimpleNamespace(members=members, retained=SimpleNamespace(tree=tree))
        files = SimpleNamespace(sealable=lambda: 69)
        return look(SimpleNamespace(machine=machine, files=files))


def leading(sizes: dict[str, int]) -> tuple[Checkpoints, Leader]:
    """The leader of g1, of whose voters each signs a tree of so many files; another one does not
    answer."""
    engine = Leader()
    found = Checkpoints("n1", "c", engine, None, Controller(), {}, None)  # type: ignore[arg-type]

    async def size_of(group: str, node: str) -> int:
        return sizes.get(node, 0)

    found._size_of = size_of  # type: ignore[method-assign]
    return found, engine


def test_a_log_is_sealed_when_a_majority_signs_it() -> None:
    """Of the tree with the last entry that was there at first, however often the caller asks."""
    sizes = {"n1": 7, "n2": 6}
    leader, engine = leading(sizes)
    first = asyncio.run(leader.seal_here("g1", GroupSeal(user="me")))
    assert (first.through, first.done, first.size, first.next_index) == (69, False, 7, 70)
    assert first.waits_for == "2 of 3 replicas to sign a tree of 7 files; 1 do"
    sizes["n3"] = 8
    assert asyncio.run(leader.seal_here("g1", GroupSeal(through=69))).done
    later = asyncio.run(leader.seal_here("g1", GroupSeal(through=70)))
    assert (
        not later.done
        and "a majority of the replicas to report the digest of the file with entry 70"
        in later.waits_for
    )
    assert [(call.index, call.user) for call in engine.asked] == [(69, "me"), (69, ""), (70, "")]


def test_a_file_that_does_not_end_is_told_or_asked_again() -> None:
    """The group's refusal, that the next file is being made, and what another node may do
    better."""
    leader, engine = leading({})
    engine.refusal = Refused("seal-refused", detail="level 2")
    found = asyncio.run(leader.seal_here("g1", GroupSeal()))
    assert (found.status.code, found.status.message) == (Code.PRECONDITION_FAILED, "level 2")
    engine.refusal = Refused("seal-not-yet", detail="the next log file is being made")
    found = asyncio.run(leader.seal_here("g1", GroupSeal()))
    assert (found.status.code, found.through, found.done) == (
        Code.OK,
        69,
        False,
    ) and "is being made" in found.waits_for
    engine.refusal = Refused("not-leader")
    with pytest.raises(CallRefused):
        asyncio.run(leader.seal_here("g1", GroupSeal()))
