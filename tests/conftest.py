"""Configuration of every test run. Only hooks and fixtures for the whole test tree belong here."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from ledgermq.node.process import local
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from tests import forked
from tests.example_counts import GATE

WORKERS_MAX = 8
COLLECTING_THRESHOLD = 20_000
USUAL_THRESHOLDS = gc.get_threshold()
"""Collecting tests creates thousands of lasting objects, and garbage collection at every 700 new
objects takes an eighth of the time; hence a higher threshold. While tests run, the usual thresholds
apply, because stores are reference cycles that hold open files."""
BEGIN_FIRST = (
    "audit/test_repair_trials.py",
    "containers/test_container_faults.py",
    "examples/test_flights_demo.py",
    "audit/spark/test_audit_spark.py",
    "containers/test_compose.py",
    "contract/test_official_client.py",
    "e2e/audit/test_e2e_repair.py",
    "faults/test_faults_ha.py",
    "e2e/test_e2e_workers.py",
    "node/test_node_cluster.py",
    "audit/spark/test_audit_spark_cluster.py",
    "e2e/audit/test_e2e_audit_running.py",
    "e2e/native/test_e2e_native_consumer.py",
    "e2e/test_e2e_groups.py",
    "e2e/test_e2e_members.py",
    "e2e/test_e2e_workers_features.py",
    "contract/test_foreign_clients.py",
    "e2e/audit/test_e2e_audit_ha.py",
)
"""Files that take minutes. They start first, so that parallel workers end at about the same time.
The two container tests cannot run at the same time: three places apart, they run on the same of
three workers."""


CASES: Counter[tuple[pytest.Collector | None, str]] = Counter()
"""The number of collected cases of each test marked `one_in` or `in_turn`."""


settings.register_profile("gate", deadline=None, max_examples=GATE)
settings.register_profile("verify", deadline=None, max_examples=6 * GATE)
settings.load_profile("gate")
"""No deadline: the speed of an example depends on the load of the machine. `make verify` chooses
its profile by --hypothesis-profile."""


def pytest_configure() -> None:
    """Restore SIGINT: a shell ignores it for background jobs, and the processes that tests
    interrupt would inherit that."""
    gc.set_threshold(COLLECTING_THRESHOLD)
    RaftReplica.check_every_ns = 0
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def turn() -> int:
    """A number that the commit chooses; 0 outside of a clone."""
    told = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, cwd=Path(__file__).parent
    )
    return int(told.stdout, 16) if told.returncode == 0 else 0


def pytest_itemcollected(item: pytest.Item) -> None:
    """`one_in(n)` marks all but every n-th case of a test for `make verify`, `in_turn(n)` for `make
    verify-weekly`. Items are collected in the order of their parameters."""
    for name, first, later in (("one_in", 0, "verify"), ("in_turn", turn(), "weekly")):
        sampled = item.get_closest_marker(name)
        if sampled is not None:
            test = (item.parent, item.name.partition("[")[0])
            if (CASES[test] - first) % sampled.args[0]:
                item.add_marker(getattr(pytest.mark, later))
            CASES[test] += 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files of `BEGIN_FIRST` first; the order of all other files and within a file is
    random."""
    tests = Path(__file__).parent
    first = {tests / name: at for at, name in enumerate(BEGIN_FIRST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own, or by its fixture `run`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs.get("run", asyncio.run)(pyfuncitem.obj(**given))
    return True


@pytest.fixture(scope="session", autouse=True)
def ports_of_this_worker() -> Iterator[None]:
    """Each parallel test process uses its own ports, so that no other process takes the ports of a
    stopped node.

    The last three digits of a port determine its worker, because `up --base-port` uses four ranges
    of neighbouring ports, 1,000 apart.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = [
        port
        for port in local.port_range()
        if port % 1000 * WORKERS_MAX // 1000 == worker % WORKERS_MAX
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "port_range", lambda: own)
        yield


@pytest.fixture(scope="session", autouse=True)
def nodes_are_forked() -> Iterator[None]:
    """Start nodes by fork, without a new interpreter and its imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "launch", forked.launch)
        yield


@pytest.fixture(autouse=True)
def ctrl_c_still_interrupts() -> Iterator[None]:
    """Fail a test that leaves another handler of SIGINT: every later test of the process that
    presses Ctrl-C would fail in its place."""
    yield
    left = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert left is signal.default_int_handler
