"""The durations of the phases of recovery at a node's start.

The names of the phases and the sums are here. The caller supplies the clock: this package never
reads one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

PHASES = (
    "identity",
    "log_files",
    "below_mark",
    "above_mark",
    "index",
    "snapshot",
    "queues",
    "replay",
)
"""In the order of a start: the directory's identity, with hard state and abort file; finding the
files; checking the log at and below the synced mark; verifying, rewriting, cutting and syncing
above it; index units; the snapshot; the consume queues; applying the entries behind the
snapshot."""


def no_clock() -> int:
    """The clock of a caller that does not measure."""
    return 0


class Phases:
    """Durations in nanoseconds by phase. Repeated phases add up; a nested phase is not counted in
    the outer one."""

    def __init__(self, clock_ns: Callable[[], int] = no_clock) -> None:
        self.spent_ns = dict.fromkeys(PHASES, 0)
        self._clock_ns = clock_ns
        self._inner_ns = 0
        """The time spent in phases inside the current one."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer_ns, self._inner_ns = self._inner_ns, 0
        began = self._clock_ns()
        try:
            yield
        finally:
            elapsed_ns = self._clock_ns() - began
            self.spent_ns[name] += elapsed_ns - self._inner_ns
            self._inner_ns = outer_ns + elapsed_ns

    @property
    def seconds(self) -> dict[str, float]:
        """The durations in seconds for a log line: rounded, without phases that took almost no
        time."""
        return {name: round(ns / 1e9, 4) for name, ns in self.spent_ns.items() if ns >= 50_000}
