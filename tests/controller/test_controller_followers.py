"""Workers of a node in the controller quorum: the first votes, the others follow, and no machine
has more votes than one."""

from __future__ import annotations

from pathlib import Path

from tests.controller.controller_cluster import running_cluster


async def test_followers_get_the_state_and_never_vote(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 3, workers=3, described=False) as cluster:
        await cluster.describe()
        for name, controller in cluster.running.items():
            await cluster.until(lambda c=controller: bool(c.state.broker_groups))  # type: ignore[misc]
            assert controller.health.voters == ("n1", "n2", "n3"), name
        await cluster.running["n2.2"].create_topic("", "orders", timeout=20)
        await cluster.running["n3.3"].barrier(20)
        assert ("", "orders") in cluster.running["n3.3"].state.topics


async def test_a_majority_of_first_workers_is_enough_and_any_number_of_followers_is_not(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, 3, workers=2, described=False) as cluster:
        await cluster.stop(["n3", "n3.2"])
        await cluster.describe()
        await cluster.stop(["n2"])
        await cluster.until(lambda: not cluster.running["n1"].health.has_quorum)
        await cluster.until(lambda: not cluster.running["n2.2"].health.has_quorum)
        await cluster.start(["n3"])
        await cluster.until(lambda: cluster.running["n1.2"].health.ready)
        await cluster.running["n2.2"].create_topic("", "orders", timeout=20)


async def test_a_follower_comes_again_with_its_journal_or_without_and_catches_up(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, 1, workers=2, described=False) as cluster:
        await cluster.describe()
        await cluster.stop(["n1.2"])
        for number in range(20):
            await cluster.running["n1"].create_topic("", f"t{number}", timeout=20)
        await cluster.start(["n1.2"])
        await cluster.until(lambda: len(cluster.running["n1.2"].state.topics) == 20)
        await cluster.stop(["n1"])
        await cluster.start(["n1"])
        await cluster.running["n1.2"].create_topic("", "last", timeout=20)
        await cluster.running["n1"].barrier(20)
        assert ("", "last") in cluster.running["n1"].state.topics


async def test_a_follower_meets_a_quorum_that_has_compacted_its_journal(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, workers=1, described=False) as cluster:
        await cluster.describe()
        quorum = cluster.running["n1"]._quorum
        assert quorum is not None
        quorum.forceLogCompaction()
        quorum.wake()
        await cluster.until(lambda: (tmp_path / "n1" / "controller" / "snapshot").exists())
        await cluster.running["n1"].create_topic("", "after", timeout=20)
        cluster.add_node("n1.2")
        await cluster.start(["n1.2"])
        await cluster.until(lambda: ("", "after") in cluster.running["n1.2"].state.topics)
        assert cluster.running["n1.2"].health.voters == ("n1",)
