"""Replicas that come and go under load: directories that are lost, and members that an operator
removes and adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import leader, wait_for, wipe
from tests.e2e.command_line import CommandLine
from tests.faults.faulty import GROUP, TOPIC, FaultyCluster, faulty, judge, status_of, whole
from tests.faults.histories import History

pytestmark = pytest.mark.slow


def test_nodes_that_lost_their_directories_come_back_under_load(tmp_path: Path) -> None:
    """A follower, then the leader: each comes back empty with its old identity, and counts again
    once it holds everything."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC, body_bytes=1000) as history:
            for pick in ("follower", "leader"):
                leads = leader(cluster)
                victim = leads if pick == "leader" else cluster.others(leads)[0]
                cluster.kill(victim)
                wipe(cluster, victim)
                history.progress()
                cluster.start(victim)
                history.progress()
                whole(cluster)
            # What came back counts: without the third node the two of them are the majority.
            cluster.kill(leader(cluster))
            history.progress()
            for node, child in cluster.children.items():
                if child.exit_code is not None:
                    cluster.start(node)
        judge(cluster, history)


@pytest.mark.verify
def test_members_are_removed_and_added_under_load(tmp_path: Path) -> None:
    """A follower, then the leader: out, emptied, in again as a learner and a voter, while streams
    are torn."""
    with faulty(tmp_path) as cluster:
        cli = CommandLine.of(cluster)
        with History(cluster, TOPIC) as history:
            for pick in ("follower", "leader"):
                leads = leader(cluster)
                victim = leads if pick == "leader" else cluster.others(leads)[0]
                cli.ok("member", "remove", victim, "--yes", "--timeout", "30s")
                wait_for(lambda victim=victim: leads_without(cluster, victim), 30, "another leader")  # type: ignore[misc]
                history.progress()
                assert cluster.terminate(victim) == 0
                wipe(cluster, victim)
                cluster.own_settings[victim] = ("join=true",)
                cluster.start(victim)
                cli.ok(
                    "member",
                    "add",
                    victim,
                    "--address",
                    cluster.address(victim),
                    "--timeout",
                    "30s",
                )
                cluster.network.reset()
                history.progress()
                # Refused while it is behind, as the torn streams left it.
                promotion = ("member", "promote", victim, "--timeout", "30s")
                wait_for(
                    lambda command=promotion: cli.run(*command).status == 0, 60, f"{victim} to vote"
                )  # type: ignore[misc]
                history.progress()
                whole(cluster)
        judge(cluster, history)


def leads_without(cluster: FaultyCluster, gone: str) -> bool:
    """The others follow one of them."""
    return {status_of(cluster, node, GROUP).leader for node in cluster.others(gone)} <= set(
        cluster.others(gone)
    )
