"""One piece of the soak: a fresh cluster, its load, faults drawn from a seed, exact counts, and
audits. The result is one record."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.streams.native_gauges import anonymous_mib
from ledgermq import __version__
from ledgermq.audit.cli.report import as_text
from ledgermq.node.process import local
from ledgermq.node.process.local import LocalCluster, port_range
from tests import forked
from tests.builds import ROOT, Build, next_release
from tests.cluster import end_all, prepare
from tests.faults.faulty import audited, one_leader_a_term, passes_while_it_runs, whole
from tests.faults.test_faults_disk import built
from tests.soak.faults import WAIT_S, SoakedCluster, kinds, library_in
from tests.soak.load import Load
from tests.soak.memory import medians_by_quarter

SAMPLE_S = 5.0
REST_S = (2.0, 8.0)
"""Between two faults."""
PROGRESS = 7
"""Acknowledgements of each producer after every fault."""
LANES = 50
"""Pieces with so many consecutive seeds use different ports."""


class Samples(threading.Thread):
    """Anonymous memory of every running node, and the load of the machine."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(daemon=True)
        self.memory_mib: dict[str, list[float]] = {node: [] for node in cluster.nodes}
        self.load: list[float] = []
        self.ended = threading.Event()
        self._cluster = cluster

    def run(self) -> None:
        while not self.ended.wait(SAMPLE_S):
            self.load.append(os.getloadavg()[0])
            for node, child in list(self._cluster.children.items()):
                try:
                    if child.exit_code is None:
                        self.memory_mib[node].append(anonymous_mib(child.process.pid))
                except (OSError, IndexError):
                    continue  # a fault ended it meanwhile


@dataclass
class Done:
    """What was done to the cluster so far."""

    faults: Counter[str] = field(default_factory=Counter)
    gaps_s: dict[str, float] = field(default_factory=dict)
    """Kind of fault → the longest time without an acknowledgement around one."""


def commit() -> str:
    told = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"


def start_nodes_by_fork(place: Path) -> None:
    """From now on nodes of this build are forks of a process that has done the imports, which cost
    about two seconds of processor time. The fork server must have the library of failing disks, so
    it is in the environment from here on.

    Nodes of the other build are new interpreters. They may write bytecode, so that only the first
    one compiles."""
    library = built(place)
    assert library is not None, "there is no C compiler: disks cannot be made to fail"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["LD_PRELOAD"] = str(library)
    local.launch = forked.launch


def ports_of(seed: int) -> list[int]:
    """The ports of a piece. No piece that runs at the same time has them, so none takes the ports
    of a node that is down."""
    return [port for port in port_range() if port % LANES == seed % LANES]


def run(seed: int, seconds: float, directory: Path) -> dict[str, Any]:
    """A piece of so many seconds under load, after `start_nodes_by_fork`. Raises AssertionError or
    ClusterError with what went wrong."""
    local.port_range = lambda: ports_of(seed)
    builds = (Build(__version__), next_release(directory / "next"))
    cluster = prepare(directory, kind=library_in(Path(os.environ["LD_PRELOAD"])))
    assert isinstance(cluster, SoakedCluster)
    began_ms = time.time_ns() // 1_000_000
    try:
        cluster.start_all()
        cluster.wait_ready(WAIT_S)
        record = _under_load(cluster, seed, seconds, directory, builds)
        codes = cluster.stop()
        assert set(codes.values()) <= {0}, f"exit statuses {codes}"
        outcome = audited(cluster)
        assert outcome.verdict == "PASS", as_text(outcome)
    finally:
        end_all(cluster)
        cluster.network.close()
        for node in cluster.nodes:
            cluster.unmount(node)
    return {
        "v": 1,
        "seed": seed,
        "began_ms": began_ms,
        "commit": commit(),
        **record,
        "audit": outcome.verdict,
    }


def _under_load(
    cluster: SoakedCluster, seed: int, seconds: float, directory: Path, builds: tuple[Build, Build]
) -> dict[str, Any]:
    chance, done, samples = random.Random(seed), Done(), Samples(cluster)
    faults = kinds(builds)
    began = time.monotonic()
    with Load(cluster, directory) as load:
        load.progress(PROGRESS, WAIT_S)
        samples.start()
        waiting: list[str] = []
        while time.monotonic() - began < seconds:
            # Every kind once, in an order of its own, and again.
            waiting = waiting or chance.sample([*faults, "kill sink"], len(faults) + 1)
            _disturb(waiting.pop(), cluster, load, chance, done, faults)
        elapsed_s = time.monotonic() - began
        samples.ended.set()
        counts = load.counts()
        passes_while_it_runs(cluster)
    one_leader_a_term(cluster)
    assert not any(way["lost"] for way in counts.values()), counts
    assert not counts["native"]["duplicates"] and not counts["sink"]["duplicates"], counts
    return {
        "seconds": round(elapsed_s),
        "load": round(statistics.mean(samples.load), 1),
        "faults": dict(done.faults),
        "longest_gap_s": done.gaps_s,
        "messages": counts,
        "memory_mib": {
            node: [round(median) for median in medians_by_quarter(found)]
            for node, found in samples.memory_mib.items()
        },
    }


def _disturb(
    kind: str,
    cluster: SoakedCluster,
    load: Load,
    chance: random.Random,
    done: Done,
    faults: dict[str, Any],
) -> None:
    """One fault; then the cluster is whole, and both producers go on."""
    load.producer.take_gap_s()
    print(f"{time.strftime('%H:%M:%S')} {kind}", flush=True)
    if kind == "kill sink":
        load.sink.restart()
    else:
        faults[kind](cluster, chance)
    whole(cluster, WAIT_S)
    load.progress(PROGRESS, WAIT_S)
    done.faults[kind] += 1
    done.gaps_s[kind] = max(done.gaps_s.get(kind, 0.0), load.producer.take_gap_s())
    time.sleep(chance.uniform(*REST_S))
