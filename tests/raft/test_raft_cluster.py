"""Hundreds of random lives of three and five bare cores; the checks are in `memory_cluster.py`."""

from __future__ import annotations

import pytest

from tests.raft.memory_cluster import Cluster

STEPS = 700


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_random_faults_break_no_invariant_and_healing_brings_progress(size: int) -> None:
    """I1 to I5 and log matching hold under loss, repetition, reordering, one-way cuts and power cuts, and a healed cluster commits."""
    committed = 0
    for seed in range(40 if size < 3 else 120):
        cluster = Cluster(size, seed)
        for _ in range(STEPS):
            cluster.step()
        cluster.heal()
        assert not cluster.fences, f"seed {seed}: {cluster.fences}"
        committed += max(cluster.committed)
    assert committed > 0
