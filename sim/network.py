"""The simulated network: packets are delayed, reordered, repeated, lost, and cut off by partitions, all from one source of chance.

Here lives only what happens to a packet between two nodes. It never looks inside one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

MS = 1_000_000


class Chance(Protocol):
    """The part of `random.Random` the simulator uses."""

    def random(self) -> float: ...

    def uniform(self, a: float, b: float, /) -> float: ...

    def randrange(self, start: int, stop: int | None = None, /) -> int: ...


@dataclass
class Network:
    """How likely what is, and which directed links are cut. Delays are drawn per packet, so that packets overtake each other."""

    chance: Chance
    loss: float = 0.0
    duplication: float = 0.0
    delay_ns: tuple[int, int] = (MS // 10, 2 * MS)
    slow: float = 0.0
    """Share of packets that take a hundred times as long: they arrive in another term."""
    damage: float = 0.0
    """Share of packets in whose payload one bit flips on the way."""
    cut: set[tuple[str, str]] = field(default_factory=set)

    def deliveries(self, sender: str, to: str) -> list[int]:
        """Delays in nanoseconds after which copies of one packet arrive: none when it is lost."""
        if (sender, to) in self.cut or self.chance.random() < self.loss:
            return []
        copies = 2 if self.chance.random() < self.duplication else 1
        return [self._delay() for _ in range(copies)]

    def _delay(self) -> int:
        delay = int(self.chance.uniform(*self.delay_ns))
        return delay * 100 if self.chance.random() < self.slow else delay

    def damaged(self, payload: bytes) -> bytes:
        """What arrives of a payload: the same bytes, or with one bit flipped."""
        if not payload or self.chance.random() >= self.damage:
            return payload
        changed = bytearray(payload)
        changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed)

    def isolate(self, node: str, others: list[str], *, inbound: bool = True, outbound: bool = True) -> None:
        """Cut a node off, in one direction or both."""
        for other in others:
            if outbound:
                self.cut.add((node, other))
            if inbound:
                self.cut.add((other, node))

    def settle(self) -> None:
        """Back to a good network; cut links stay cut."""
        self.loss = self.duplication = self.slow = self.damage = 0.0

    def heal(self) -> None:
        self.cut.clear()
        self.settle()
