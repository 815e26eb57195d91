"""Random requests to every public method of a running node: for some seconds with the slow tests,
for half an hour in `make soak`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import cluster as real
from tests.contract.fuzzing import GROWTH_BYTES, PERIODS, fuzz, logged_errors, prepared


def run(directory: Path, seed: int, seconds: float, calls: int | None = None) -> None:
    with real.running(directory, nodes=1, extra=PERIODS) as cluster:
        prepared(cluster)
        report = asyncio.run(fuzz(cluster, seed, seconds, calls))
        assert not report.bugs, "\n".join(report.bugs[:10])
        assert not logged_errors(cluster)
        assert report.grown_bytes < GROWTH_BYTES
        assert len(report.codes) > 5, report.codes


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_random_requests_find_no_bug(tmp_path: Path) -> None:
    """Whatever is sent, the answer is a status of the contract, the log has no error, and ordinary
    clients are served in between."""
    run(tmp_path, seed=1, seconds=120, calls=700)


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_random_requests_for_half_an_hour(tmp_path: Path) -> None:
    """The same for thirty minutes, with another seed."""
    run(tmp_path, seed=2, seconds=1800)
