"""The cost of a load for the nodes, according to the kernel: processor time per message, bytes
written per payload byte, anonymous memory.

A gauge is read before and after a load; memory is sampled during it. This module starts and ends no
process.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.tools import cluster as cl
from ledgermq.node.process.local import LocalCluster

SAMPLE_S = 0.25


def written_bytes(pid: int) -> int:
    """Bytes that a process has submitted to a disk so far (proc(5), write_bytes), including writes
    that were cancelled later."""
    fields = dict(re.findall(r"^(\w+): (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.M))
    return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])


def anonymous_mib(pid: int) -> float:
    return cl.status_kib(pid, "RssAnon") / 1024


class Gauges:
    """The gauges of the nodes that run now."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._pids = cl.pids(cluster)
        self._leader = cl.leader(cluster)
        self._cpu = {node: cl.cpu_s(pid) for node, pid in self._pids.items()}
        self._written = {node: written_bytes(pid) for node, pid in self._pids.items()}
        self._most = {node: anonymous_mib(pid) for node, pid in self._pids.items()}
        self._end = threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True)
        self._sampling.start()

    def _sample(self) -> None:
        while not self._end.wait(SAMPLE_S):
            for node, pid in self._pids.items():
                try:
                    self._most[node] = max(self._most[node], anonymous_mib(pid))
                except OSError:
                    continue  # the node was killed, as some loads intend

    def close(self) -> None:
        self._end.set()
        self._sampling.join()

    def read(self, messages: int, body_bytes: int) -> dict[str, Any]:
        """The figures per message, for the messages since this was created."""
        followers = [node for node in self._pids if node != self._leader]
        used = {
            node: (cl.cpu_s(pid) - self._cpu[node]) / max(messages, 1) * 1e6
            for node, pid in self._pids.items()
        }
        payload = max(messages, 1) * body_bytes
        written = {
            node: (written_bytes(pid) - self._written[node]) / payload
            for node, pid in self._pids.items()
        }
        found: dict[str, Any] = {
            "leader_cpu_us_a_message": round(used[self._leader], 3),
            "leader_written_per_payload_byte": round(written[self._leader], 2),
            "rss_anon_max_mib": round(max(self._most.values()), 1),
        }
        if followers:
            found["follower_cpu_us_a_message"] = round(
                sum(used[node] for node in followers) / len(followers), 3
            )
            found["follower_written_per_payload_byte"] = round(
                sum(written[node] for node in followers) / len(followers), 2
            )
        return found


@contextmanager
def gauged(cluster: LocalCluster) -> Iterator[Gauges]:
    gauges = Gauges(cluster)
    try:
        yield gauges
    finally:
        gauges.close()
