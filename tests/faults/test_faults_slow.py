"""A follower that is slow, by its link or by its process: the others commit as if it were not
there, and the leader's memory is bounded."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import leader
from tests.faults.faulty import TOPIC, faulty, gauge, judge, terms
from tests.faults.histories import History

pytestmark = pytest.mark.slow

LIMIT_BYTES = 2 << 20
BODY_BYTES = 20_000
SLOW_BYTES_PER_S = 100_000
GROWTH_MAX_BYTES = 96 << 20
LAG_LEAST = 100


def test_a_slow_follower_costs_neither_commits_nor_memory(tmp_path: Path) -> None:
    """The link of one follower is limited to 100 kB/s, then its process is paused repeatedly; it
    lags far behind, and catches up afterwards."""
    extra = {
        "limits": {"drain_ms": 500, "peer_queue_bytes": LIMIT_BYTES},
        "raft": {"window_bytes": 1 << 20, "push_bytes": 256 << 10},
    }
    with faulty(tmp_path, extra=extra, log_file_bytes=32 << 20) as cluster:
        with History(cluster, TOPIC, body_bytes=BODY_BYTES) as history:
            leads = leader(cluster)
            slow = cluster.others(leads)[0]
            before, memory = max(terms(cluster).values()), anonymous_bytes(cluster, leads)
            cluster.network.shape([(leads, slow), (slow, leads)], bytes_per_s=SLOW_BYTES_PER_S)
            history.progress(LAG_LEAST * 3)
            assert lag(cluster, leads, slow) >= LAG_LEAST, "the link is not slow"
            assert gauge(
                cluster, leads, f'ledgermq_peer_queue_bytes{{peer="{slow}"}}'
            ) <= LIMIT_BYTES + (1 << 20)
            cluster.network.heal()
            for _ in range(5):
                cluster.children[slow].signal(signal.SIGSTOP)
                time.sleep(0.8)
                cluster.children[slow].signal(signal.SIGCONT)
                history.progress(20)
            grown = anonymous_bytes(cluster, leads) - memory
            print(
                f"the leader's memory grew by {grown >> 20} MiB over {history.acknowledged}"
                f" messages of {BODY_BYTES} bytes"
            )
            assert grown < GROWTH_MAX_BYTES
            assert max(terms(cluster).values()) == before, "a slow follower cost an election"
        judge(cluster, history)


def lag(cluster: LocalCluster, leads: str, node: str) -> float:
    """Entries that the leader's log has and the node's has not."""
    return gauge(cluster, leads, "ledgermq_end_index") - gauge(cluster, node, "ledgermq_end_index")


def anonymous_bytes(cluster: LocalCluster, node: str) -> int:
    text = Path(f"/proc/{cluster.children[node].process.pid}/status").read_text()
    return int(re.findall(r"^RssAnon:\s+(\d+)", text, re.M)[0]) << 10
