"""Counts of Python calls, for tests that bound what something costs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions are called while `work` runs; a resumed generator counts as one.
    The collector rests: what it frees may have finalizers of other tests."""
    calls = 0

    def noted(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    gc.disable()
    sys.setprofile(noted)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls
