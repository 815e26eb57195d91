"""The statements with the official Python client once more, as they are, while the leader is killed
and started again every five seconds.

Beside them a workload of its own knows what was acknowledged. Rounds of a fresh cluster each, for
ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ledgermq.audit.cli.report import as_text
from tests import cluster as real
from tests.contract.killing import under_kills
from tests.faults.faulty import audited
from tests.soak.killed_cluster import COUNTED, LOG_FILE_BYTES, PERIODS, SPARED, VARIABLE
from tests.soak.workload import Workload

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
MODULES = [
    "tests/contract/test_official_client.py",
    "tests/contract/test_conformance_delay_official.py",
    "tests/contract/test_conformance_fifo_official.py",
    "tests/contract/test_conformance_transactions_official.py",
]
FOR_S = float(os.environ.get("SOAK_SECONDS", "600"))
SUITE_S = 1200


def suite(directory: Path, home: Path) -> dict[str, bool]:
    """Test → whether it passed, of one run against the cluster of this directory."""
    home.mkdir()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "tests.soak.killed_cluster",
        "-m",
        "slow and not soak",
    ]
    command += [f"--basetemp={home / 'base'}", f"--junitxml={home / 'found.xml'}", *MODULES]
    with (home / "output").open("w") as output:
        environment = {**os.environ, VARIABLE: str(directory)}
        subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=SUITE_S,
            check=False,
        )
    cases = ET.parse(home / "found.xml").iter("testcase")
    return {
        case.attrib["name"]: all(child.tag not in ("failure", "error") for child in case)
        for case in cases
    }


def test_the_statements_hold_while_leaders_are_killed(tmp_path: Path) -> None:
    """Every test passes in every round, one that counts deliveries in one at least; no message is
    lost, no acknowledgement forgotten."""
    outcomes: dict[str, list[bool]] = {}
    kills, rounds, began = 0, 0, time.monotonic()
    while time.monotonic() - began < FOR_S:
        rounds += 1
        directory = tmp_path / f"round-{rounds}"
        with real.running(directory, log_file_bytes=LOG_FILE_BYTES, extra=PERIODS) as cluster:
            found: dict[str, bool] = {}
            with Workload(cluster, SPARED) as workload:
                home = tmp_path / f"suite-{rounds}"
                killed = under_kills(
                    cluster,
                    lambda _, c=cluster, h=home, f=found: f.update(suite(c.directory, h)),
                    SPARED,
                )  # type: ignore[misc]
                workload.end_producers()
                # What the dead knew is not needed: everything again from the disks.
                cluster.stop()
                cluster.start_all()
                cluster.wait_ready()
                workload.drain()
            counted = workload.check()
            cluster.stop()
            audit = audited(cluster)
            assert audit.verdict == "PASS", as_text(audit)
        assert len(killed) > 5
        kills += len(killed)
        for name, passed in found.items():
            outcomes.setdefault(name, []).append(passed)
        failed = sorted(name for name, passed in found.items() if not passed)
        print(
            f"round {rounds}: {len(killed)} kills, {len(found) - len(failed)} of {len(found)} tests"
            f" passed, not {failed}; {counted}",
            flush=True,
        )
    print(f"{rounds} rounds, {kills} kills, {time.monotonic() - began:.0f} s")
    assert len(outcomes) > 20
    bad = {
        name: passed
        for name, passed in outcomes.items()
        if not (any(passed) if name.partition("[")[0] in COUNTED else all(passed))
    }
    assert not bad, bad
