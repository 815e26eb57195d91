"""What every test run needs, whatever started it. Only what holds for the whole tree belongs here."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from ledgermq.node import local

WORKERS_MAX = 8


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and processes inherit that: what the tests interrupt would not hear it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def ports_of_this_worker() -> Iterator[None]:
    """Tests that run at the same time in several processes have ports of their own: what a node left free while it is down stays free."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    every = local.port_range()
    share = len(every) // WORKERS_MAX
    own = every[int(worker) % WORKERS_MAX * share :][:share]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "port_range", lambda: own)
        yield
