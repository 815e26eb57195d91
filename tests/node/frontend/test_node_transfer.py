"""Leadership that moves between real processes while messages are sent: by request, by a planned
stop, to a preferred leader, by a kill."""

from __future__ import annotations

import statistics
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from tests import cluster as real
from tests.cluster import bodies, send

pytestmark = [pytest.mark.slow, pytest.mark.quiet, pytest.mark.timeout(180)]
TRANSFERS = 6


class Load:
    """One client after another message through one node: what was acknowledged, and when."""

    def __init__(self, cluster: LocalCluster, node: str) -> None:
        self.acknowledged: list[tuple[str, float]] = []
        self.failed: list[int] = []
        self._cluster, self._node = cluster, node
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _work(self) -> None:
        number = 0
        while not self._over.is_set():
            code = send(self._cluster, self._node, "t", f"m{number:06d}")
            if code == 20000:
                self.acknowledged.append((f"m{number:06d}", time.monotonic()))
            else:
                self.failed.append(code)
            number += 1

    def more(self, count: int = 20) -> None:
        """Wait until `count` more messages were acknowledged."""
        goal = len(self.acknowledged) + count
        real.wait_for(lambda: len(self.acknowledged) >= goal, 30, "acknowledgements")

    def gap_ms(self, since: int) -> float:
        times = [at for _, at in self.acknowledged[max(0, since - 1) :]]
        return max(b - a for a, b in pairwise(times)) * 1000


def transfer(cluster: LocalCluster, to: str) -> admin_pb2.TransferLeadershipResponse:
    """Ask until it is done or refused, as the command does."""
    while True:
        answer = real.admin(
            cluster,
            to,
            "TransferLeadership",
            admin_pb2.TransferLeadershipRequest(broker_group="g1", to=to),
        )
        if answer.done or answer.status.code != 20000:
            return answer  # type: ignore[no-any-return]


def history(cluster: LocalCluster, node: str) -> admin_pb2.LeadershipHistoryResponse:
    return real.admin(
        cluster, node, "LeadershipHistory", admin_pb2.LeadershipHistoryRequest(broker_group="g1")
    )  # type: ignore[no-any-return]


def told_with(cluster: LocalCluster, node: str, reason: str) -> admin_pb2.LeadershipHistoryResponse:
    """Wait until a node tells the reason of the last change. While the leader does not answer the
    node in time, its reason is not known."""

    def told() -> admin_pb2.LeadershipHistoryResponse | None:
        answer = history(cluster, node)
        return answer if answer.reason == reason else None

    return real.wait_for(told, 30, f"the reason {reason}")


def everything_is_there(cluster: LocalCluster, load: Load) -> None:
    """Each acknowledged message once on every replica that runs, and nothing that failed."""
    wanted = sorted(name for name, _ in load.acknowledged)
    assert not load.failed
    for node, child in cluster.children.items():
        if child.exit_code is None:
            real.wait_for(
                lambda node=node: sorted(bodies(cluster, node, "t")) == wanted,
                60,
                f"all messages at {node}",
            )  # type: ignore[misc]


def test_sends_succeed_across_transfers_under_load(tmp_path: Path) -> None:
    """Leadership goes round by request; every send succeeds, and the gaps between acknowledgements
    are reported."""
    gaps = []
    with real.running(tmp_path) as cluster:
        real.create_topic(cluster, "t")
        with Load(cluster, "n1") as load:
            load.more()
            for number in range(TRANSFERS):
                since = len(load.acknowledged)
                to = [node for node in cluster.nodes if node != real.leader(cluster)][number % 2]
                answer = transfer(cluster, to)
                assert answer.done, answer.status.message
                load.more()
                assert real.leader(cluster) == to
                gaps.append(load.gap_ms(since))
        everything_is_there(cluster, load)
        assert len(told_with(cluster, "n1", "operator").evidence) >= TRANSFERS
        stranger = real.admin(
            cluster,
            "n1",
            "TransferLeadership",
            admin_pb2.TransferLeadershipRequest(broker_group="g1", to="n9"),
        )
        assert stranger.status.code == 42800 and "n9 is no voter" in stranger.status.message
    print(
        f"gap of a transfer: median {statistics.median(gaps):.1f} ms, worst {max(gaps):.1f} ms of"
        f" {len(gaps)}"
    )


def test_a_planned_stop_hands_over_and_a_kill_is_named_by_its_silence(tmp_path: Path) -> None:
    """SIGTERM of the leader under load fails no send; after SIGKILL the history reports how long
    the dead leader was silent."""
    with real.running(tmp_path) as cluster:
        real.create_topic(cluster, "t")
        first = real.leader(cluster)
        others = [node for node in cluster.nodes if node != first]
        with Load(cluster, others[0]) as load:
            load.more()
            assert cluster.terminate(first) == 0
            load.more()
            told = told_with(cluster, others[0], "planned-stop")
            assert f"planned stop of {first}" in told.answer
            assert told.evidence[-1] == f"{first} did not answer: what only it recorded is missing"
        cluster.start(first)
        cluster.wait_ready(nodes=[first])
        everything_is_there(cluster, load)
        second = real.leader(cluster)
        cluster.kill(second)
        alive = [node for node in cluster.nodes if node != second]
        real.wait_for(
            lambda: send(cluster, alive[0], "t", "after") == 20000, 60, "a leader after the kill"
        )
        told = told_with(cluster, alive[0], "election-timeout")
        assert f"election timeout: not heard from {second} for " in told.answer
        cluster.start(second)
        cluster.wait_ready(nodes=[second])
        real.wait_for(
            lambda: history(cluster, second).answer == told.answer,
            30,
            "the same answer from the node that was killed",
        )


def test_the_preferred_leader_leads_in_the_end(tmp_path: Path) -> None:
    """The winner of the first election hands over once the preferred leader has kept up for a
    while."""
    cluster = real.prepare(tmp_path)
    tree = yaml.safe_load(cluster.config_file.read_text())
    tree["cluster"]["groups"][0]["preferred_leader"] = "n3"
    cluster.config_file.write_text(yaml.safe_dump(tree))
    cluster.start_all()
    try:
        cluster.wait_ready()
        real.wait_for(lambda: real.leader(cluster) == "n3", 30, "the preferred leader")
        assert history(cluster, "n1").reason in ("preferred", "started")
        assert set(cluster.stop().values()) == {0}
    finally:
        real.end_all(cluster)
