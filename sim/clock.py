"""A node's monotonic clock that may run fast or slow. This module has the conversion between its time and that of the world; faults
(`faults_process.py`) set its rate. A clock that was never set shows the world's time."""

from __future__ import annotations

from dataclasses import dataclass

MILLION = 1_000_000


@dataclass(slots=True)
class Clock:
    """`ppm`: how many extra nanoseconds it counts per million of the world's. It never goes back and never jumps."""

    ppm: int = 0
    _world_ns: int = 0
    _own_ns: int = 0
    """Both times when the rate was last set."""

    def at(self, world_ns: int) -> int:
        """The time it shows at a moment of the world."""
        return self._own_ns + (world_ns - self._world_ns) * (MILLION + self.ppm) // MILLION

    def when(self, own_ns: int) -> int:
        """The first moment of the world at which it shows this time, at its current rate."""
        return self._world_ns - (own_ns - self._own_ns) * -MILLION // (MILLION + self.ppm)

    def set_rate(self, world_ns: int, ppm: int) -> None:
        self._own_ns, self._world_ns = self.at(world_ns), world_ns
        self.ppm = ppm
