"""A node's monotonic clock that may run fast or slow, and stands still while its machine is
suspended. This module has the conversion between its time and that of the world; faults
(`faults_process.py`) set its rate, and let it stand still. A clock that was never set shows the
world's time."""

from __future__ import annotations

from dataclasses import dataclass

MILLION = 1_000_000


@dataclass(slots=True)
class Clock:
    """`ppm`: how many extra nanoseconds it counts per million of the world's. It never goes back
    and never jumps."""

    ppm: int = 0
    _world_ns: int = 0
    _own_ns: int = 0
    """Both times when the rate was last set, or when it goes on after it stood still."""

    def at(self, world_ns: int) -> int:
        """The time it shows at a moment of the world."""
        return self._own_ns + max(0, world_ns - self._world_ns) * (MILLION + self.ppm) // MILLION

    def when(self, own_ns: int) -> int:
        """The first moment of the world at which it shows this time and does not stand still, at
        its current rate."""
        return self._world_ns - (own_ns - self._own_ns) * -MILLION // (MILLION + self.ppm)

    def set_rate(self, world_ns: int, ppm: int) -> None:
        """Also while it stands still: it goes on later, at this rate."""
        self._own_ns, self._world_ns = self.at(world_ns), max(world_ns, self._world_ns)
        self.ppm = ppm

    def stand_still(self, world_ns: int, for_ns: int) -> None:
        """It shows no time from now on, and goes on then."""
        self._own_ns, self._world_ns = self.at(world_ns), max(world_ns + for_ns, self._world_ns)

    def go_on(self, world_ns: int) -> None:
        """If it stands still, it goes on now."""
        self._own_ns, self._world_ns = self.at(world_ns), world_ns
