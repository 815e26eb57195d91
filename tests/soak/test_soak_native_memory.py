"""Half an hour of native frames as fast as they go, with a reader at the end of the log: anonymous
memory stays below a bound, and flat."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from bench.streams.native_gauges import anonymous_mib
from bench.tools import cluster as cl
from bench.tools import report
from ledgermq.node.process.local import LocalCluster
from tests.soak.memory import medians_by_quarter

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
FOR_S = float(os.environ.get("SOAK_SECONDS", "1800"))
EVERY_S = 2.0
MOST_MIB = 300.0
GROWTH_MIB = 20.0
"""Between the second and the last quarter: less than what one more batch in flight takes, and far
less than a leak in half an hour."""
PIECE_S = 120.0
"""A load ends where the leader changes, and the next one goes to the new leader."""
CHANGES_MAX = 20
TOPIC = "soak"
RETENTION = {"retention": {"max_bytes": 1 << 30}}


def load_for(
    cluster: LocalCluster, seconds: float, samples: dict[str, list[float]]
) -> float | None:
    """One load, with samples of every node meanwhile: messages a second, or None where it ended
    early. The load follows no leader."""
    target = cl.address(cluster, cl.leader(cluster))
    arguments = (
        "--target",
        target,
        "--topic",
        TOPIC,
        "--seconds",
        str(seconds),
        "--warm-up-s",
        "5",
    )
    command = cl.program("streams.native_load", "deliver", *arguments)
    load = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cl.ROOT
    )
    try:
        while load.poll() is None:
            for node, pid in cl.pids(cluster).items():
                samples[node].append(anonymous_mib(pid))
            time.sleep(EVERY_S)
    finally:
        load.kill()
        output, error = load.communicate()
    assert load.returncode == 0 or "redirect" in error, error
    return None if load.returncode else float(report.parsed(output)["produced"]["messages_per_s"])


def test_memory_of_every_node_is_bounded_and_flat(tmp_path: Path) -> None:
    rates: list[float] = []
    with cl.running(tmp_path, RETENTION) as cluster:
        cl.create_topic(cluster, TOPIC)
        samples: dict[str, list[float]] = {node: [] for node in cluster.nodes}
        changes, end = 0, time.monotonic() + FOR_S
        while (left := end - time.monotonic()) > 10:
            rate = load_for(cluster, min(PIECE_S, left), samples)
            if rate is None:
                changes += 1
                assert changes <= CHANGES_MAX, "leaders change all the time: this is no load"
            else:
                rates.append(rate)
    report.say(
        f"{statistics.median(rates):,.0f} messages/s in {len(rates)} pieces of {FOR_S:g} s; the"
        f" leader changed {changes} times"
    )
    for node, found in samples.items():
        quarters = medians_by_quarter(found)
        report.say(
            f"{node}: RssAnon at most {max(found):.0f} MiB, by quarter"
            f" {', '.join(f'{one:.0f}' for one in quarters)}"
        )
        assert max(found) <= MOST_MIB, f"{node} had {max(found):.0f} MiB"
        assert quarters[3] - quarters[1] <= GROWTH_MIB, f"{node} grew: {quarters}"
