"""Where a simulated machine takes its chances from: the parts of `random.Random` it draws with."""

from __future__ import annotations

from typing import Protocol


class DiskChance(Protocol):
    """The part of `random.Random` that the disk uses."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...


class Chance(Protocol):
    """The part of `random.Random` that the simulator uses."""

    def random(self) -> float: ...

    def uniform(self, a: float, b: float, /) -> float: ...

    def randrange(self, start: int, stop: int | None = None, /) -> int: ...
