"""Paused and resumed processes (SIGSTOP): a leader for increasing times, and a majority while the
third node dies."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import leader, wait_for
from tests.faults.faulty import GROUP, TOPIC, faulty, judge, status_of, terms
from tests.faults.histories import History

pytestmark = [pytest.mark.slow, pytest.mark.quiet]

PAUSES_S = (0.1, 0.3, 1.0, 3.0)


@pytest.mark.parametrize(
    "pauses",
    [PAUSES_S, pytest.param((5.0, 20.0, 60.0), marks=pytest.mark.soak)],
    ids=["short", "long"],
)
def test_paused_leader_gives_no_stale_acknowledgement(
    tmp_path: Path, pauses: tuple[float, ...]
) -> None:
    """After a pause of any length, its answers are consistent with those of its successor. A pause
    costs at most one election, and the resume none."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            for pause_s in pauses:
                first, before = leader(cluster), max(terms(cluster).values())
                watcher = cluster.others(first)[0]
                cluster.children[first].signal(signal.SIGSTOP)
                try:
                    time.sleep(pause_s)
                    if pause_s >= 1.0:
                        wait_for(
                            lambda first=first, watcher=watcher: follows_another(
                                cluster, watcher, first
                            ),
                            30,
                            "another leader",
                        )  # type: ignore[misc]
                        history.progress()
                    during = max(term for node, term in terms(cluster, without=first).items())
                finally:
                    cluster.children[first].signal(signal.SIGCONT)
                history.progress()
                after = max(terms(cluster).values())
                print(f"{first} stood still for {pause_s} s: terms {before}, {during}, {after}")
                assert after <= during + 1, (before, during, after)
        judge(cluster, history)


@pytest.mark.verify
def test_a_paused_majority_and_a_crash(tmp_path: Path) -> None:
    """Both followers are paused, the leader dies, and they resume: they elect one of them, and no
    acknowledged message is missing."""
    with faulty(tmp_path) as cluster:
        with History(cluster, TOPIC) as history:
            first = leader(cluster)
            for node in cluster.others(first):
                cluster.children[node].signal(signal.SIGSTOP)
            try:
                time.sleep(0.5)
                cluster.kill(first)
            finally:
                for node in cluster.others(first):
                    cluster.children[node].signal(signal.SIGCONT)
            history.progress()
            cluster.start(first)
            cluster.wait_ready(nodes=[first])
            history.progress()
        judge(cluster, history)


def follows_another(cluster: LocalCluster, watcher: str, first: str) -> bool:
    return status_of(cluster, watcher, GROUP).leader not in ("", first)
