"""The effect of many connections on an existing client: its p99 alone, beside idle connections, and
while all of them reconnect. Also the anonymous memory of an idle connection.

The connections come from `bench.tools.crowd`, one process with bare HTTP/2 connections: each sends
a Heartbeat when it connects, as a client does, and then nothing. They are spread over the nodes; in
the storm all are cut at once and reconnect at once. The client sends at a steady rate to the
leader, so that its latency is not that of its own queue.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from bench.tools import report
from ledgermq.node.process.local import LocalCluster

NAME, RUNS, DURABLE = "connections", 3, True
CONNECTIONS = 10_000
NEW_PER_S = 100.0
"""The rate at which a node accepts connections; 0: unlimited."""
SENDS_PER_S = 200
SECONDS = 10.0
TOPIC = "T"


def run(
    directory: Path,
    connections: int = CONNECTIONS,
    seconds: float = SECONDS,
    nodes: int = 3,
    new_per_s: float = NEW_PER_S,
) -> dict[str, Any]:
    with cl.running(
        directory, extra={"quotas": {"new_connections_per_s": new_per_s}}, nodes=nodes
    ) as cluster:
        cl.create_topic(cluster, TOPIC)
        leads = cl.address(cluster, cl.leader(cluster))
        steady(leads, 2.0)
        alone = steady(leads, seconds)
        without_kib = anonymous_kib(cluster)
        crowd = Crowd([cl.address(cluster, node) for node in cluster.nodes], connections)
        try:
            came_s = crowd.come()
            idle = steady(leads, seconds)
            with_kib = anonymous_kib(cluster)
            storm = Steady(leads, seconds)
            time.sleep(seconds / 10)
            returned_s = crowd.come_again()
            during = storm.result()
            held = crowd.held()
        finally:
            crowd.end()
        return {
            "connections": connections,
            "new_connections_per_s": new_per_s,
            "held": held,
            "sends_per_s": SENDS_PER_S,
            "seconds": seconds,
            "came_s": came_s,
            "returned_s": returned_s,
            "alone": alone,
            "beside_idle": idle,
            "during_return": during,
            "anonymous_kib_a_connection": round((with_kib - without_kib) / connections, 1),
            "p99_ratio_idle": round(idle["p99_ms"] / alone["p99_ms"], 3),
            "p99_ratio_return": round(during["p99_ms"] / alone["p99_ms"], 3),
            "settings": cl.defaults(cluster),
        }


def anonymous_kib(cluster: LocalCluster) -> int:
    """Anonymous memory of all nodes together."""
    return sum(cl.status_kib(pid, "RssAnon") for pid in cl.pids(cluster).values())


class Steady:
    """The existing client, in its own process."""

    def __init__(self, target: str, seconds: float) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.tools.crowd",
            "steady",
            "--target",
            target,
            "--topic",
            TOPIC,
        ]
        command += ["--per-second", str(SENDS_PER_S), "--seconds", str(seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def result(self) -> dict[str, Any]:
        out, _ = self._process.communicate(timeout=120)
        found: dict[str, Any] = json.loads(out)
        return found


def steady(target: str, seconds: float) -> dict[str, Any]:
    return Steady(target, seconds).result()


class Crowd:
    """The process with the connections: takes commands on stdin, answers on stdout."""

    def __init__(self, targets: list[str], connections: int) -> None:
        command = [
            sys.executable,
            "-m",
            "bench.tools.crowd",
            "crowd",
            "--connections",
            str(connections),
            "--targets",
            *targets,
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _do(self, word: str) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def come(self) -> float:
        """Seconds until all were connected and answered."""
        return self._do("come")

    def come_again(self) -> float:
        return self._do("again")

    def held(self) -> int:
        return int(self._do("count"))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """`python -m bench.connections DIR CONNECTIONS SECONDS NODES NEW_PER_S`: one manual run."""
    directory, connections, seconds, nodes, new_per_s = sys.argv[1:]
    found = run(Path(directory), int(connections), float(seconds), int(nodes), float(new_per_s))
    found.pop("settings")
    report.say(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
