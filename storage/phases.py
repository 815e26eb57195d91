"""Where the time of a start goes: one duration for every phase of recovery.

Here live the names of the phases and the adding up. The clock is the caller's: nothing in this package asks what time it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

PHASES = ("identity", "log_files", "below_mark", "above_mark", "index", "snapshot", "queues", "replay")
"""In the order of a start: whose directory it is, with hard state and abort file; finding the files; checking the log at and below the
synced mark; verifying, rewriting, cutting and syncing what lies above it; index units; the snapshot; the consume queues; applying what
the log has behind the snapshot."""


def no_clock() -> int:
    """The clock of a caller that does not want to know."""
    return 0


class Phases:
    """Durations in nanoseconds by phase. A phase that is entered twice adds up; one within another counts for itself alone."""

    def __init__(self, clock_ns: Callable[[], int] = no_clock) -> None:
        self.spent_ns = dict.fromkeys(PHASES, 0)
        self._clock_ns = clock_ns
        self._inner_ns = 0
        """What phases inside the present one took."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer_ns, self._inner_ns = self._inner_ns, 0
        began = self._clock_ns()
        try:
            yield
        finally:
            took = self._clock_ns() - began
            self.spent_ns[name] += took - self._inner_ns
            self._inner_ns = outer_ns + took

    @property
    def seconds(self) -> dict[str, float]:
        """For a log line: rounded, and without the phases that took no time worth a word."""
        return {name: round(ns / 1e9, 4) for name, ns in self.spent_ns.items() if ns >= 50_000}
