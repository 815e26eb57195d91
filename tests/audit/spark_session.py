"""A Spark session for tests, which leaves the process as it was: Spark sets variables of the
environment and a handler of SIGINT."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ledgermq.audit.spark import java


@contextmanager
def running_spark() -> Iterator[Any]:
    """A local session of two threads that tries each task three times; local mode would try it
    once."""
    before = dict(os.environ)
    on_interrupt = signal.getsignal(signal.SIGINT)
    spark = java.spark_session("local[2,3]")
    # At once, not at the end: the session outlives the test that asks for it first, and later tests
    # press Ctrl-C.
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield spark
    finally:
        spark.stop()
        os.environ.clear()
        os.environ.update(before)
