"""What background work runs on: steps, one behind the other, beside the turns. A thread runs them
in a node, the heap of events in the simulator."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Rest:
    """How long work rests before its next step."""

    limit_s: float | None
    """None: until it is woken."""
    wakes: bool = False
    """Whether `wake` ends the rest; it may have been called since the last such rest."""


Steps = Generator[Rest, None, None]


class Worker(Protocol):
    """Runs the steps of one background work, and has its clocks. Call `start` once; `wake` and
    `stop` from any thread."""

    def start(self, steps: Steps) -> None: ...

    def wake(self) -> None: ...

    def stop(self) -> None:
        """End the work where it rests: on return no step runs, and none will."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether a long step should break off."""
        ...

    def now_s(self) -> float:
        """A steady clock."""
        ...

    def spent_s(self) -> float:
        """The processor time of the steps."""
        ...

    def now_ms(self) -> int:
        """The wall clock."""
        ...
