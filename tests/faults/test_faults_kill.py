"""SIGKILL of one node, of a majority and of all, and repeatedly of a node during its start."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import leader, wait_for
from tests.faults.faulty import TOPIC, FaultyCluster, events, faulty, judge
from tests.faults.histories import History

pytestmark = pytest.mark.slow

STARTS = 4
RECOVERY_MAX_S = 5.0


def test_kills_of_leader_follower_majority_and_all(tmp_path: Path) -> None:
    """One history over all kills: a new leader while one node is missing, no leader while two are,
    and full service after all were killed."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            first = leader(cluster)
            cluster.kill(first)
            history.progress()
            assert leader(cluster) != first
            back(cluster, first)
            follower = cluster.others(leader(cluster))[0]
            cluster.kill(follower)
            history.progress()
            back(cluster, follower)
            left = kill_majority(cluster)
            wait_for(lambda: not cluster.ready(left), 30, "a node that knows no leader any more")
            stands_still(history)
            for node in cluster.others(left):
                cluster.start(node)
            history.progress()
            for node in cluster.nodes:
                cluster.kill(node)
            began = time.monotonic()
            cluster.start_all()
            cluster.wait_ready()
            print(f"ready {time.monotonic() - began:.1f} s after the start of all nodes")
            history.progress()
        judge(cluster, history)


def test_a_node_killed_again_and_again_while_it_starts(tmp_path: Path) -> None:
    """Recovery begins from the same durable state each time, and takes no longer; the others do not
    care."""
    chance = random.Random(4)
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            victim = leader(cluster)
            cluster.kill(victim)
            for _ in range(STARTS):
                cluster.start(victim)
                opened = len(opened_groups(cluster, victim))
                moment = chance.choice(("before", "open", "serving"))
                if moment == "open":
                    wait_for(
                        lambda opened=opened: len(opened_groups(cluster, victim)) > opened,
                        30,
                        "an opened group",
                    )  # type: ignore[misc]
                elif moment == "serving":
                    wait_for(lambda: cluster.ready(victim), 30, "a ready node")
                else:
                    time.sleep(chance.uniform(0.1, 1.0))
                cluster.kill(victim)
                history.progress(10)
            back(cluster, victim)
            history.progress()
        seconds = [event["seconds"] for event in opened_groups(cluster, victim)]
        assert seconds and max(seconds) < RECOVERY_MAX_S, seconds
        judge(cluster, history)


def back(cluster: LocalCluster, node: str) -> None:
    cluster.start(node)
    cluster.wait_ready(nodes=[node])


def kill_majority(cluster: FaultyCluster) -> str:
    """Kill the leader and one more; the node that is left."""
    first = leader(cluster)
    left, second = cluster.others(first)
    cluster.kill(first)
    cluster.kill(second)
    return left


def stands_still(history: History, for_s: float = 1.0) -> None:
    """Nothing is acknowledged: what a majority must agree to does not happen."""
    before = history.acknowledged
    time.sleep(for_s)
    assert history.acknowledged == before, "something was acknowledged without a majority"


def opened_groups(cluster: LocalCluster, node: str) -> list[dict[str, Any]]:
    """The node's own reports of recovered groups, one for each start that came so far."""
    return [event for event in events(cluster, node) if event["event"] == "broker group opened"]
