"""What every test run needs, whatever started it. Only what holds for the whole tree belongs here."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ledgermq.node.process import local
from tests import forked

WORKERS_MAX = 8
COLLECTING_THRESHOLD = 20_000
USUAL_THRESHOLDS = gc.get_threshold()
"""Thousands of collected tests are no garbage: to look through them at every 700 new objects is an eighth of collecting them. While tests
run, what they leave has to go soon: stores are cycles, and hold open files."""
BEGIN_FIRST = (
    "containers/test_container_faults.py",
    "examples/test_flights_demo.py",
    "audit/test_audit_spark.py",
    "containers/test_compose.py",
    "contract/test_official_client.py",
    "e2e/test_e2e_repair.py",
    "faults/test_faults_ha.py",
    "e2e/test_e2e_workers.py",
    "node/test_node_cluster.py",
    "audit/test_audit_spark_cluster.py",
    "e2e/test_e2e_audit_running.py",
    "e2e/test_e2e_native_consumer.py",
    "e2e/test_e2e_groups.py",
    "e2e/test_e2e_members.py",
    "e2e/test_e2e_workers_features.py",
    "contract/test_foreign_clients.py",
    "e2e/test_e2e_audit_ha.py",
)
"""Files that take minutes: several workers that go through the files end together only if none of these begins last. The two of containers
cannot run at the same time: as first and fourth of three workers' files they are run by the same one."""


CASES: Counter[tuple[pytest.Collector | None, str]] = Counter()
"""Collected cases of each test that is marked `one_in`."""


settings.register_profile("ledgermq", deadline=None)
settings.load_profile("ledgermq")
"""No example is wrong for being slow: that depends on who else uses the machine."""


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and processes inherit that: what the tests interrupt would not hear it."""
    gc.set_threshold(COLLECTING_THRESHOLD)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """`one_in(n)` leaves all cases of a test but each n-th to `make verify`. Items are collected in the order of their parameters."""
    sampled = item.get_closest_marker("one_in")
    if sampled is not None:
        test = (item.parent, item.name.partition("[")[0])
        if CASES[test] % sampled.args[0]:
            item.add_marker(pytest.mark.verify)
        CASES[test] += 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order within a file, and of the others, is by chance."""
    tests = Path(__file__).parent
    first = {tests / name: at for at, name in enumerate(BEGIN_FIRST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(*USUAL_THRESHOLDS)


@pytest.fixture(scope="session", autouse=True)
def ports_of_this_worker() -> Iterator[None]:
    """Tests that run at the same time in several processes have ports of their own: what a node left free while it is down stays free.

    A worker's ports have certain last three digits, because `up --base-port` takes four times neighbours, 1,000 apart.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = [port for port in local.port_range() if port % 1000 * WORKERS_MAX // 1000 == worker % WORKERS_MAX]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "port_range", lambda: own)
        yield


@pytest.fixture(scope="session", autouse=True)
def nodes_are_forked() -> Iterator[None]:
    """Starting a node costs a fork, not an interpreter and all imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "launch", forked.launch)
        yield
