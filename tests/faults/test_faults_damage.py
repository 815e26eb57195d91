"""A bit that flips on the disk of a node that is down: the damage is found, fetched from the other
replicas, and the files are equal again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import leader, wait_for
from tests.faults.faulty import TOPIC, FaultyCluster, faulty, judge
from tests.faults.histories import History

pytestmark = pytest.mark.slow

MESSAGES = 400
BODY_BYTES = 1000
REPAIRED_S = 60.0


@pytest.mark.verify
def test_a_flipped_bit_of_a_stopped_node_is_repaired_from_its_peers(tmp_path: Path) -> None:
    """The damage is far below the synced mark: no acknowledged message is lost, and other nodes are
    not affected."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC, body_bytes=BODY_BYTES) as history:
            history.progress(MESSAGES)
            victim = cluster.others(leader(cluster))[0]
            cluster.kill(victim)
            place = flip(cluster, victim, random.Random(18))
            assert not equal(cluster, place)
            cluster.start(victim)
            history.progress()
            wait_for(lambda: equal(cluster, place), REPAIRED_S, "repaired bytes")
        judge(cluster, history)


def flip(cluster: FaultyCluster, node: str, chance: random.Random) -> int:
    """Change one bit in the first third of what the node's first log file holds; its place in the
    file."""
    path = first_log_file(cluster, node)
    place = chance.randrange(MESSAGES * BODY_BYTES // 3)
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return place


def equal(cluster: LocalCluster, place: int) -> bool:
    """Whether the bytes around this place are the same on all nodes."""
    return len({around(cluster, node, place) for node in cluster.nodes}) == 1


def around(cluster: LocalCluster, node: str, place: int) -> bytes:
    with first_log_file(cluster, node).open("rb") as file:
        file.seek(max(0, place - 64))
        return file.read(128)


def first_log_file(cluster: LocalCluster, node: str) -> Path:
    return cluster.data(node) / "g1" / f"dledger-{node}" / "data" / f"{0:020d}"
