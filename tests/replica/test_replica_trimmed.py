"""Replicas on real files whose logs begin at different entries: restart, elect, replicate, and name
peers that no log can help."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.proto.types import Role
from ledgermq.storage.files.real_disk import RealDisk
from tests.replica.replica_cluster import NAMES, Trio, messages


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(lambda name: (RealDisk(), str(tmp_path / name)))


def fill(trio: Trio, leader: str, batches: int = 12) -> None:
    for number in range(batches):
        trio.propose(trio[leader], messages(7, mark=f"{leader}{number}-"))
        trio.settle()


def begin_of(trio: Trio, name: str, file: int) -> int:
    log = trio[name].log
    return next(
        index
        for index in range(log.begin_index, log.end_index + 1)
        if log.pos_of(index) >= file * 4096
    )


@pytest.mark.parametrize("first", NAMES)
def test_restarted_replicas_elect_and_replicate_from_any_begin(trio: Trio, first: str) -> None:
    """Each log begins at another entry, one at entry 0; whichever replica leads first, all agree on
    all later entries."""
    trio.elect("n1")
    fill(trio, "n1")
    for name, file in (("n2", 1), ("n3", 3)):
        trio[name].log.trim(begin_of(trio, name, file))
    fill(trio, "n1", 1)
    before = {name: trio[name].log.begin_index for name in NAMES}
    assert len(set(before.values())) == 3
    for name in NAMES:
        trio.crash(name)
    for name in NAMES:
        trio.restart(name)
    assert {name: trio[name].log.begin_index for name in NAMES} == before
    assert all(trio[name].replica.commit_index >= before[name] - 1 for name in NAMES)
    leader = trio.elect(first)
    fill(trio, first)
    end = leader.replica.end_index
    assert (
        trio.agree(end) and [node.replica.commit_index for node in trio.nodes.values()] == [end] * 3
    )
    assert not [key for key in leader.replica.status().extra if key.startswith("needs-snapshot")]


def test_leader_names_a_follower_below_its_begin_and_serves_the_others(trio: Trio) -> None:
    """A replica that stopped before the trimmed entries of the others gets heartbeats and no bytes;
    all others continue."""
    leader = trio.elect("n1")
    trio.crash("n3")
    fill(trio, "n1")
    for name in ("n1", "n2"):
        trio[name].log.trim(begin_of(trio, name, 2))
    trio.restart("n3")
    trio.advance(500)
    lagging = trio["n3"].log.end_index
    fill(trio, "n1", 2)
    trio.advance(500)
    assert (
        leader.replica.role is Role.LEADER
        and leader.replica.status().extra["needs-snapshot:n3"] == 1
    )
    assert (
        leader.replica.commit_index == trio["n2"].replica.commit_index == leader.replica.end_index
    )
    assert trio["n3"].log.end_index == lagging and trio["n3"].replica.leader == "n1"
    assert trio["n3"].replica.fenced is None
