"""The simulated network: packets are delayed, reordered, repeated, lost, and stopped by partitions,
all from one random source.

This module defines what happens to a packet between two nodes; it never looks inside one. Every
disturbance is a condition that begins and ends by itself: conditions overlap, and the end of one
does not repair what another one does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ledgermq.sim.machine.ports import Chance

MS = 1_000_000
Link = tuple[str, str]
"""(sender, receiver): one direction."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The quality of the network: shares from 0 to 1, times in nanoseconds."""

    loss: float = 0.0
    duplication: float = 0.0
    slow: float = 0.0
    """Share of packets that take a hundred times as long, and so arrive in another term."""
    damage: float = 0.0
    """Share of packets with one flipped bit in the payload."""
    delay_ns: int = 0
    """Additional delay of every packet."""
    jitter_ns: int = 0
    """Maximal further delay, drawn for each packet, so that packets overtake each other."""


@dataclass
class Network:
    """The cut links and the current conditions. Delays are drawn per packet."""

    chance: Chance
    delay_ns: tuple[int, int] = (MS // 10, 2 * MS)
    _cuts: dict[int, frozenset[Link]] = field(default_factory=dict)
    _weathers: dict[int, Weather] = field(default_factory=dict)
    _weather: Weather = Weather()
    _cut: frozenset[Link] = frozenset()
    _number: int = 0
    lost: int = 0
    """Packets that never arrived."""

    # -- conditions
    # -----------------------------------------------------------------------------------------------------------------

    def sever(self, links: Iterable[Link]) -> int:
        """Cut these directed links; the returned number ends it."""
        self._number += 1
        self._cuts[self._number] = frozenset(links)
        self._refresh()
        return self._number

    def worsen(self, weather: Weather) -> int:
        """Add these conditions to all others; the returned number ends them."""
        self._number += 1
        self._weathers[self._number] = weather
        self._refresh()
        return self._number

    def end(self, number: int) -> None:
        """End one condition; an unknown or ended number changes nothing."""
        self._cuts.pop(number, None)
        self._weathers.pop(number, None)
        self._refresh()

    def heal(self) -> None:
        """End all conditions."""
        self._cuts.clear()
        self._weathers.clear()
        self._refresh()

    def _refresh(self) -> None:
        self._cut = frozenset().union(*self._cuts.values())
        whole = self._weathers.values()
        self._weather = Weather(
            loss=max((w.loss for w in whole), default=0.0),
            duplication=max((w.duplication for w in whole), default=0.0),
            slow=max((w.slow for w in whole), default=0.0),
            damage=max((w.damage for w in whole), default=0.0),
            delay_ns=sum(w.delay_ns for w in whole),
            jitter_ns=sum(w.jitter_ns for w in whole),
        )

    # -- packets
    # --------------------------------------------------------------------------------------------------------------------

    def reaches(self, sender: str, to: str) -> bool:
        """Whether the link is not cut."""
        return (sender, to) not in self._cut

    def deliveries(self, sender: str, to: str) -> list[int]:
        """Delays in nanoseconds after which copies of one packet arrive: none if it is lost."""
        weather = self._weather
        if (sender, to) in self._cut or (weather.loss and self.chance.random() < weather.loss):
            self.lost += 1
            return []
        copies = 2 if weather.duplication and self.chance.random() < weather.duplication else 1
        return [self._delay(weather) for _ in range(copies)]

    def _delay(self, weather: Weather) -> int:
        delay = int(self.chance.uniform(*self.delay_ns))
        if weather.slow and self.chance.random() < weather.slow:
            delay *= 100
        if weather.jitter_ns:
            delay += self.chance.randrange(weather.jitter_ns)
        return delay + weather.delay_ns

    def damaged(self, payload: bytes) -> bytes:
        """The payload as it arrives: unchanged, or with one bit flipped."""
        damage = self._weather.damage
        if not damage or not payload or self.chance.random() >= damage:
            return payload
        changed = bytearray(payload)
        changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed)


# -- partitions
# -------------------------------------------------------------------------------------------------------------------------


def around(
    node: str, names: Iterable[str], *, inbound: bool = True, outbound: bool = True
) -> set[Link]:
    """The links of one node with all others, in one direction or both."""
    others = [name for name in names if name != node]
    return {(node, other) for other in others if outbound} | {
        (other, node) for other in others if inbound
    }


def between(some: Iterable[str], others: Iterable[str]) -> set[Link]:
    """Every link between two sets of nodes, in both directions."""
    left, right = tuple(some), tuple(others)
    return {link for a in left for b in right if a != b for link in ((a, b), (b, a))}


def ring(names: list[str]) -> set[Link]:
    """All links except those with a node's two neighbours in a ring; with three nodes, which are
    all neighbours, every link in one direction."""
    count = len(names)
    if count <= 3:
        return {(name, names[(at + 1) % count]) for at, name in enumerate(names) if count > 1}
    kept = {
        pair
        for at, name in enumerate(names)
        for pair in ((name, names[(at + 1) % count]), (names[(at + 1) % count], name))
    }
    return {(a, b) for a in names for b in names if a != b and (a, b) not in kept}


def bridge(names: list[str]) -> set[Link]:
    """The links between two halves, except those of the first node, which can talk to both."""
    rest = names[1:]
    return between(rest[: len(rest) // 2], rest[len(rest) // 2 :])
