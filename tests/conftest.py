"""What every test run needs, whatever started it. Only what holds for the whole tree belongs here."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and processes inherit that: what the tests interrupt would not hear it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
