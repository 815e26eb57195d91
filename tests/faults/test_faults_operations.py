"""What operators do to a running cluster: rolling restarts, transfers under load, and directories
that are mixed up."""

from __future__ import annotations

import shutil
from itertools import cycle
from pathlib import Path

import pytest

from ledgermq.proto import admin_pb2
from tests.cluster import admin, leader, wait_for
from tests.faults.faulty import GROUP, TOPIC, FaultyCluster, faulty, judge, terms
from tests.faults.histories import History

pytestmark = pytest.mark.slow

TRANSFERS = 9


def test_a_rolling_restart_under_load(tmp_path: Path) -> None:
    """Every node stops cleanly and returns, the leader last; no stop costs more than one leader
    change."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            first, before = leader(cluster), max(terms(cluster).values())
            for node in [*cluster.others(first), first]:
                assert cluster.terminate(node) == 0
                history.progress(20)
                cluster.start(node)
                cluster.wait_ready(nodes=[node])
                history.progress(20)
            after = max(terms(cluster).values())
            print(f"rolling restart: terms {before} -> {after}")
            assert after <= before + len(cluster.nodes)
        judge(cluster, history)


@pytest.mark.verify
@pytest.mark.quiet
def test_transfers_under_load(tmp_path: Path) -> None:
    """Leadership goes around among the nodes; each transfer that was answered moved it, and is one
    term."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            before, moved = max(terms(cluster).values()), 0
            targets = cycle(cluster.nodes)
            while moved < TRANSFERS:
                to = next(targets)
                if to == leader(cluster):
                    continue
                transfer(cluster, to)
                moved += 1
                assert leader(cluster) == to
                history.progress(20)
            after = max(terms(cluster).values())
            assert after == before + TRANSFERS, (
                f"terms {before} -> {after} for {TRANSFERS} transfers"
            )
        judge(cluster, history)


def test_directories_that_are_mixed_up_are_refused(tmp_path: Path) -> None:
    """With another node's directory, or a copy of it, the node reports this and exits; with the
    right directory, nothing is lost."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            pass
        assert set(cluster.stop().values()) == {0}
        first, second, third = cluster.nodes
        cluster.own_data = {first: cluster.directory / second, second: cluster.directory / first}
        for node in (first, second):
            cluster.start(node)
        for node in (first, second):
            refused(cluster, node, f"the directory of {first if node == second else second}")
        cluster.own_data = {third: tmp_path / "copy"}
        shutil.copytree(cluster.directory / second, tmp_path / "copy")
        cluster.start(third)
        refused(cluster, third, "a copied directory")
        cluster.own_data = {}
        cluster.start_all()
        judge(cluster, history)


def refused(cluster: FaultyCluster, node: str, what: str) -> None:
    child = cluster.children[node]
    code = wait_for(lambda: child.exit_code, 30, f"{node} to refuse {what}")
    assert 64 <= code <= 79, f"{node} ended with {code} on {what}"
    assert cluster.last_error(node)


def transfer(cluster: FaultyCluster, to: str) -> None:
    """Hand leadership over and wait for the answer that it is done."""

    def done() -> bool:
        request = admin_pb2.TransferLeadershipRequest(broker_group=GROUP, to=to)
        answer = admin(cluster, to, "TransferLeadership", request)
        return bool(answer.done)

    wait_for(done, 30, f"a transfer to {to}")
