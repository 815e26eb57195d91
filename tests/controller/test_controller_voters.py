"""The voters of the controller quorum: they change one at a time, are kept in journal and snapshot,
and a change never loses the quorum."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.controller import snapshot, voters
from ledgermq.node.controller.controller import Controller
from ledgermq.node.controller.journal import Entry, Journal
from ledgermq.node.controller.quorum import Place, Quorum
from ledgermq.node.controller.state import State, export
from ledgermq.proto.status import Conflict, LedgerError
from ledgermq.storage.files.real_disk import RealDisk
from tests.controller.controller_cluster import FAST, SECRET, Cluster, free_ports, running_cluster

NAMES = ("n1", "n2", "n3", "n4", "n5")
groups_of = st.sets(st.sampled_from(NAMES), min_size=1)


async def changed(
    cluster: Cluster, node: str, *, present: bool, by: str | None = None
) -> tuple[str, ...]:
    asked = by or next(name for name in cluster.running if name != node)
    return await cluster.running[asked].set_voter(node, present=present, timeout=20)


async def joined(cluster: Cluster, name: str) -> Controller:
    """Start an unknown node and admit it; every node learns its address, as with `member add`."""
    cluster.add_node(name)
    await cluster.start([name])
    for controller in cluster.running.values():
        controller.move(cluster.places)
    assert name in await changed(cluster, name, present=True)
    await cluster.until(lambda: cluster.running[name].health.ready)
    return cluster.running[name]


# -- the rules


@given(groups_of, groups_of, groups_of, st.booleans())
def test_two_changes_in_a_row_always_share_a_majority(
    current: set[str], wanted: set[str], reached: set[str], settled: bool
) -> None:
    """Whatever may be appended: every majority of before meets every majority of after, and a
    majority of after is there."""
    leader = min(current)
    if voters.objection(leader, current, wanted, reached | {leader}, settled=settled) is not None:
        return
    assert settled and leader in wanted
    for before in majorities(current):
        assert all(before & after for after in majorities(wanted))
    assert any(after <= reached | {leader} | (wanted - current) for after in majorities(wanted))


def majorities(nodes: set[str]) -> list[set[str]]:
    sizes = range(len(nodes) // 2 + 1, len(nodes) + 1)
    return [set(chosen) for size in sizes for chosen in itertools.combinations(sorted(nodes), size)]


@given(st.lists(st.one_of(st.none(), groups_of), max_size=8), st.integers(0, 8))
def test_newest_voters_entry_counts_and_a_cut_restores_the_former(
    named: list[set[str] | None], kept: int
) -> None:
    """The voters are a function of the journal's entries and of nothing else."""
    entries: list[Entry] = [
        (b"J{}" if n is None else voters.encode(sorted(n)), index, 1)
        for index, n in enumerate(named, 1)
    ]
    expected = [
        (index, tuple(sorted(n))) for index, n in enumerate(named[:kept], 1) if n is not None
    ]
    assert voters.newest(entries[:kept]) == (expected[-1] if expected else None)


def test_an_entry_about_members_that_this_version_does_not_know_is_no_entry_to_skip() -> None:
    """Skipping would give two nodes different quorums."""
    with pytest.raises(ValueError, match="about its members"):
        voters.decode(b'\x02["add","n4"]')
    assert voters.decode(b"\x01") is None and voters.decode(b"J{}") is None


# -- real quorums


async def test_a_node_is_added_to_a_running_quorum_and_counts(tmp_path: Path) -> None:
    """The fourth node gets the whole state and votes; with it and two of the old ones the quorum
    continues; restarts keep this."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.running["n1"].create_topic("", "before", timeout=20)
        fourth = await joined(cluster, "n4")
        await fourth.barrier(timeout=20)
        assert ("", "before") in fourth.state.topics
        await cluster.stop(["n1"])
        await fourth.create_topic("", "after", timeout=20)
        await cluster.stop(["n2"])
        await cluster.until(lambda: not fourth.health.has_quorum)
        await cluster.stop()
        # All nodes restart with a configuration without the fourth voter.
        await cluster.start()
        await cluster.leader()
        for controller in cluster.running.values():
            await controller.barrier(timeout=20)
            assert (
                controller.health.voters == ("n1", "n2", "n3", "n4")
                and ("", "after") in controller.state.topics
            )


async def test_a_joining_node_alone_never_makes_a_quorum_of_its_own(tmp_path: Path) -> None:
    """It does not know the voters: it never becomes a candidate, and the others ignore it."""
    async with running_cluster(tmp_path) as cluster:
        cluster.add_node("n4")
        await cluster.start(["n4"])
        # Time for elections that must not be held: nothing could announce their absence.
        await asyncio.sleep(6 * cluster.timing.election_max_s)
        health = cluster.running["n4"].health
        assert (health.leader, health.term, health.voters) == (None, 0, ())
        assert cluster.running["n1"].health.voters == ("n1", "n2", "n3")


async def test_compaction_keeps_the_voters(tmp_path: Path) -> None:
    """The entries that named them are gone; the snapshot names them, also to a node that gets it
    instead of the log."""
    async with running_cluster(
        tmp_path, timing=replace(FAST, compact_entries=20, compact_again_s=0.1)
    ) as cluster:
        await asyncio.gather(
            *(
                cluster.running["n1"].create_topic("", f"a{index}", timeout=20)
                for index in range(40)
            )
        )
        await joined(cluster, "n4")
        await changed(cluster, "n3", present=False, by="n4")
        await cluster.stop(["n3"])
        await asyncio.gather(
            *(
                cluster.running["n1"].create_topic("", f"b{index}", timeout=20)
                for index in range(60)
            )
        )
        await cluster.until(
            lambda: all(c._quorum and len(c._quorum.journal) < 50 for c in cluster.running.values())
        )
        fifth = await joined(cluster, "n5")
        await fifth.barrier(timeout=20)
        assert len(fifth.state.topics) == 100
        await cluster.stop()
        await cluster.start(["n1", "n2", "n4", "n5"])
        await cluster.leader()
        assert {c.health.voters for c in cluster.running.values()} == {("n1", "n2", "n4", "n5")}


async def test_removed_node_is_ignored_and_a_removed_leader_hands_over(
    tmp_path: Path,
) -> None:
    """Whether a leader or another node is removed: the rest continues, and its elections reach no
    node."""
    async with running_cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        rest = await changed(cluster, leader, present=False)
        assert leader not in rest and len(rest) == 2
        gone = cluster.running[leader]
        others = [cluster.running[name] for name in rest]
        await cluster.until(lambda: all(c.health.ready and c.health.leader in rest for c in others))
        term = max(c.health.term for c in others)
        await cluster.until(lambda: not gone.health.has_quorum)
        # As above.
        await asyncio.sleep(4 * cluster.timing.election_max_s)
        await others[0].create_topic("", "still", timeout=20)
        assert max(c.health.term for c in others) == term, "no election on its account"


async def test_voter_change_that_loses_the_quorum_is_refused(tmp_path: Path) -> None:
    """With one of three down, the other two are both needed; the one that is down may go."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.stop(["n3"])
        await cluster.until(lambda: cluster.running["n1"].health.reached == {"n1", "n2"})
        await cluster.until(lambda: cluster.running["n1"].health.has_quorum)
        with pytest.raises(
            Conflict, match=r"quorum of 3 would become one of 2 of which only 1 .*missing: n3"
        ):
            await changed(cluster, "n2", present=False, by="n1")
        assert await changed(cluster, "n3", present=False) == ("n1", "n2")


async def test_a_change_that_was_not_committed_is_undone_with_its_entry(tmp_path: Path) -> None:
    """A partitioned leader appends a change; the log of a new leader replaces it, and all nodes
    have the old voters."""
    async with running_cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        others = [name for name in cluster.running if name != leader]
        cut = voters.encode(("n1", "n2", "n3", "n9"))
        # As if it had been appended and not sent: the next leader has never heard of it.
        await cluster.stop([leader])
        journal = tmp_path / leader / "controller"
        await asyncio.to_thread(_append, journal, cut)
        await cluster.until(
            lambda: all(cluster.running[name].health.leader in others for name in others)
        )
        await cluster.running[others[0]].create_topic("", "t", timeout=20)
        await cluster.start([leader])
        await cluster.running[leader].barrier(timeout=20)
        assert {c.health.voters for c in cluster.running.values()} == {("n1", "n2", "n3")}


def _append(directory: Path, command: bytes) -> None:
    journal = Journal(RealDisk(), str(directory), snapshot=None, file_bytes=1 << 16)
    _, index, term = journal[-1]
    journal.add(command, index + 1, term)
    journal.flush()
    journal._destroy()


async def test_a_node_moves_while_the_quorum_runs(tmp_path: Path) -> None:
    """Votes belong to names: with another address it is the same voter, and the others reach it as
    soon as they know the address."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.stop(["n1"])
        cluster.addresses = {**cluster.addresses, "n1": f"127.0.0.1:{free_ports(1)[0]}"}
        await cluster.start(["n1"])
        for controller in cluster.running.values():
            controller.move(cluster.places)
        await cluster.until(lambda: cluster.running["n1"].health.ready)
        await cluster.stop(["n2"])
        await cluster.running["n3"].create_topic("", "moved", timeout=20)
        assert cluster.running["n3"].health.voters == ("n1", "n2", "n3")


async def test_a_quorum_of_one_grows_and_shrinks_again(tmp_path: Path) -> None:
    """The only node waits for the second once it has let it in; the last voter cannot be
    removed."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        await joined(cluster, "n2")
        await cluster.running["n1"].create_topic("", "two", timeout=20)
        assert await changed(cluster, "n2", present=False, by="n1") == ("n1",)
        with pytest.raises(LedgerError):
            await cluster.running["n1"].set_voter("n1", present=False, timeout=2)


def test_after_a_crash_at_any_point_the_voters_are_those_of_the_journal_that_is_left(
    tmp_path: Path,
) -> None:
    """Behind every record, between snapshot and compaction, and behind it; whatever the
    configuration says meanwhile."""
    disk, home = RealDisk(), tmp_path / "home"
    home.mkdir()
    journal = Journal(disk, str(home), snapshot=None, file_bytes=1 << 16)
    three, four, later = ("n1", "n2", "n3"), ("n1", "n2", "n3", "n4"), ("n2", "n3", "n4")
    commands = [
        voters.encode(three),
        b"\x01",
        b"J{}",
        voters.encode(four),
        b"J{}",
        voters.encode(later),
        b"J{}",
    ]
    left: list[tuple[Path, tuple[str, ...]]] = []

    def crash(expected: tuple[str, ...]) -> None:
        left.append((Path(shutil.copytree(home, tmp_path / f"left-{len(left)}")), expected))

    for index, (command, expected) in enumerate(
        zip(commands, [three, three, three, four, four, later, later], strict=True), 1
    ):
        journal.add(command, index, min(index - 1, 1))
        journal.flush()
        crash(expected)
    for last, covered in ((3, three), (5, four), (7, later)):
        newest = journal[last - journal[0][1]]
        snapshot.write(
            disk,
            str(home / snapshot.NAME),
            export(State()),
            newest,
            journal[newest[1] - 1 - journal[0][1]],
            covered,
        )
        crash(later)
        journal.deleteEntriesTo(last - 1 - journal[0][1])
        crash(later)
    journal.deleteEntriesFrom(1)
    journal.flush()
    crash(later)
    journal._destroy()
    for directory, expected in left:
        place = Place("n1", ("n1", "n8", "n9"), f"127.0.0.1:{free_ports(1)[0]}", str(directory))
        quorum = Quorum(place, {}, SECRET, disk, FAST, 1 << 16)
        try:
            assert quorum.voters == expected, directory.name
            # The first tick loads the snapshot, which must not bring back what the journal has
            # replaced.
            quorum.tick()
            assert quorum.voters == expected, directory.name
            assert {node.id for node in quorum.otherNodes} == set(expected) - {"n1"}
        finally:
            quorum.destroy()
