"""Half an hour of native frames as fast as they go, with a reader at the end of the log: anonymous memory stays below a bound, and flat."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from bench import cluster as cl
from bench import report
from bench.native_gauges import anonymous_mib

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
FOR_S = float(os.environ.get("SOAK_SECONDS", "1800"))
EVERY_S = 2.0
MOST_MIB = 300.0
GROWTH_MIB = 20.0
"""Between the second and the last quarter: less than what one more batch in flight takes, and far less than a leak in half an hour."""
TOPIC = "soak"
RETENTION = {"retention": {"max_bytes": 1 << 30}}


def medians_by_quarter(samples: list[float]) -> list[float]:
    """Of the samples, oldest first."""
    quarter = len(samples) // 4
    return [statistics.median(samples[number * quarter : (number + 1) * quarter]) for number in range(4)]


def test_memory_of_every_node_is_bounded_and_flat(tmp_path: Path) -> None:
    with cl.running(tmp_path, RETENTION) as cluster:
        cl.create_topic(cluster, TOPIC)
        target = cl.address(cluster, cl.leader(cluster))
        arguments = ("--target", target, "--topic", TOPIC, "--seconds", str(FOR_S), "--warm-up-s", "5")
        load = subprocess.Popen(cl.program("native_load", "deliver", *arguments), stdout=subprocess.PIPE, text=True, cwd=cl.ROOT)
        samples: dict[str, list[float]] = {node: [] for node in cluster.nodes}
        try:
            while load.poll() is None:
                for node, pid in cl.pids(cluster).items():
                    samples[node].append(anonymous_mib(pid))
                time.sleep(EVERY_S)
        finally:
            load.kill()
            output, _ = load.communicate()
        assert load.returncode == 0, "the load failed"
        result = report.parsed(output)
    report.say(f"{result['produced']['messages_per_s']:,.0f} messages/s for {FOR_S:g} s")
    for node, found in samples.items():
        quarters = medians_by_quarter(found)
        report.say(f"{node}: RssAnon at most {max(found):.0f} MiB, by quarter {', '.join(f'{one:.0f}' for one in quarters)}")
        assert max(found) <= MOST_MIB, f"{node} had {max(found):.0f} MiB"
        assert quarters[3] - quarters[1] <= GROWTH_MIB, f"{node} grew: {quarters}"
