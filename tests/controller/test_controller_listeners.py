"""A node that follows the controller quorum without a vote: it receives all changes, may send any
command, and does not count for the quorum."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.node.controller.beginning_anew import begin_alone, votes_of
from ledgermq.node.controller.controller import Controller
from ledgermq.proto.status import LedgerError
from ledgermq.storage.files.real_disk import RealDisk
from tests.controller.controller_cluster import Cluster, running_cluster


async def listener(cluster: Cluster, name: str) -> Controller:
    """A node that joined without a vote; the others do not know its address."""
    if name not in cluster.addresses:
        cluster.add_node(name)
        there = next(iter(cluster.running.values()))
        await there.set_node(name, {"peer": cluster.addresses[name]}, state="joining", timeout=20)
    await cluster.start([name])
    cluster.running[name].listen(True)
    await cluster.until(lambda: cluster.running[name].health.ready)
    return cluster.running[name]


@pytest.mark.parametrize("name", ["a0", "n4"])
async def test_listener_gets_the_state_and_may_issue_commands(tmp_path: Path, name: str) -> None:
    """Whatever its name: among voters the order of names decides which node dials; a listener dials
    all voters."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.running["n1"].create_topic("", "before", timeout=20)
        fourth = await listener(cluster, name)
        await fourth.barrier(timeout=20)
        assert ("", "before") in fourth.state.topics
        # Its own journal began with an entry without voters.
        await cluster.running["n1"].name_voters(timeout=20)
        await cluster.until(lambda: fourth.health.voters == ("n1", "n2", "n3"))
        await fourth.create_topic("", "asked", timeout=20)
        await cluster.running["n2"].barrier(timeout=20)
        assert ("", "asked") in cluster.running["n2"].state.topics
        # With another leader it goes on, and after a restart of its own.
        await cluster.stop([await cluster.leader()])
        await fourth.create_topic("", "under-another-leader", timeout=20)
        await cluster.stop([name])
        again = await listener(cluster, name)
        await again.barrier(timeout=20)
        assert ("", "under-another-leader") in again.state.topics


async def test_listener_does_not_count_for_a_quorum(tmp_path: Path) -> None:
    """One voter of three and two listeners decide nothing, and a listener never leads."""
    async with running_cluster(tmp_path) as cluster:
        listening = [await listener(cluster, name) for name in ("n4", "n5")]
        await cluster.stop(["n1", "n2"])
        await cluster.until(lambda: not cluster.running["n3"].health.has_quorum)
        with pytest.raises(LedgerError):
            await listening[0].create_topic("", "never", timeout=2)
        assert all(
            controller.health.leader not in ("n4", "n5") for controller in cluster.running.values()
        )


async def test_a_listener_becomes_a_voter(tmp_path: Path) -> None:
    """It greets anew by its name once it has a vote, and counts from then on."""
    async with running_cluster(tmp_path) as cluster:
        fourth = await listener(cluster, "n4")
        for controller in cluster.running.values():
            controller.move(cluster.places)
        assert "n4" in await cluster.running["n1"].set_voter("n4", present=True, timeout=20)
        await cluster.until(lambda: fourth.health.voters == ("n1", "n2", "n3", "n4"))
        await cluster.stop(["n1"])
        await fourth.create_topic("", "with-its-vote", timeout=20)


async def test_a_listener_decides_alone_after_the_voters_were_lost(tmp_path: Path) -> None:
    """Its journal continues with itself as the only voter: its state is kept, it can decide, and it
    refuses the lost voters."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.running["n1"].create_topic("", "before", timeout=20)
        fourth = await listener(cluster, "n4")
        await cluster.until(lambda: ("", "before") in fourth.state.topics)
        await cluster.stop()
        disk, directory = RealDisk(), str(tmp_path / "n4" / "controller")
        for _ in range(2):
            # Repeated, it changes nothing.
            begin_alone(disk, directory, "n4")
        assert votes_of(disk, directory) == ("n4",)
        await cluster.start(["n4"])
        alone = cluster.running["n4"]
        alone.listen(True)
        await cluster.until(lambda: alone.health.ready)
        assert ("", "before") in alone.state.topics and alone.health.voters == ("n4",)
        await alone.create_topic("", "after", timeout=20)
        await cluster.start(["n1", "n2"])
        await cluster.until(lambda: cluster.running["n1"].health.ready)
        await cluster.running["n1"].create_topic("", "elsewhere", timeout=20)
        await alone.barrier(timeout=20)
        assert ("", "elsewhere") not in alone.state.topics and ("", "after") not in cluster.running[
            "n1"
        ].state.topics
