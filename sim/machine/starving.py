"""Nodes with too little processor time: which they are, how long their threads wait for a
processor, and what waits for a thread.

A packet of a real node passes two threads, its event loop and its engine, in each direction; on an
overloaded machine each of them waits. Packets that arrive or leave while a loop waits are handled
in one pass. This module never looks into a packet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ledgermq.sim.machine.ports import Chance

WAITS_EXPONENT = 6
"""The distribution of waits: half of them are below a sixtieth of the longest, six percent above
two thirds of it."""

Direction = Literal["read", "send"]


class Starving:
    """Draws random numbers only for starved nodes: runs without this fault are the same as without
    this module."""

    def __init__(self, chance: Chance, after: Callable[..., None]) -> None:
        """`after(delay_ns, action, *arguments)` schedules an action."""
        self._chance = chance
        self._after = after
        self._longest_ns: dict[str, int] = {}
        self._waiting: dict[tuple[str, Direction], list[Any]] = {}

    def starve(self, name: str, longest_ns: int) -> None:
        """Each time a thread of this node has work, it first waits for a processor, up to
        `longest_ns`; 0: no longer."""
        self._longest_ns[name] = longest_ns

    def heal(self) -> None:
        self._longest_ns.clear()

    def ended(self, name: str) -> None:
        """The process is gone, and what waited in it is lost."""
        self._waiting.pop((name, "read"), None)
        self._waiting.pop((name, "send"), None)

    def wait_ns(self, name: str) -> int:
        """How long a thread with work waits now: mostly almost nothing, rarely very long."""
        longest_ns = self._longest_ns.get(name, 0)
        return int(self._chance.random() ** WAITS_EXPONENT * longest_ns) if longest_ns else 0

    def hand(
        self,
        name: str,
        direction: Direction,
        items: Sequence[Any],
        give: Callable[..., None],
        to: Any,
    ) -> None:
        """Call `give(to, items)`: at once, or with everything else that waits for the node's loop
        when it gets a processor."""
        waiting = self._waiting.get((name, direction))
        if waiting is not None:
            waiting += items
        elif items and self._longest_ns.get(name):
            self._waiting[name, direction] = list(items)
            self._after(self.wait_ns(name), self._serve, (name, direction), give, to)
        else:
            give(to, items)

    def _serve(self, key: tuple[str, Direction], give: Callable[..., None], to: Any) -> None:
        items = self._waiting.pop(key, None)
        if items is not None:
            give(to, items)
