"""Which directory every node goes by at every other one: the imitation of what nodes tell each other when they connect.

Here lives what `node/replica/peers/peer_identities.py` decides over real greetings, and nothing durable: the directory of a node that
the membership record
names counts, else the one that was met first. Packets from any other are not taken, and whoever notices tells its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Acquaintance:
    """One node's. What it has met goes with its own directory, what the record names and who greeted last with its process."""

    met: dict[str, str] = field(default_factory=dict)
    """Node → the incarnation of its directory when it was first met."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Node → the incarnation that the newest membership record names."""
    presented: dict[str, str] = field(default_factory=dict)
    """Node → the incarnation it greeted with last."""

    def begin(self) -> None:
        """A process starts."""
        self.named = {}
        self.presented.clear()

    def greeted(self, node: str, incarnation: str) -> None:
        self.met.setdefault(node, incarnation)
        self.presented[node] = incarnation

    def hears(self, node: str, incarnation: str) -> bool:
        """Whether a packet that this node sent from this directory is taken."""
        return incarnation == (self.named.get(node) or self.met.setdefault(node, incarnation))

    def returned(self) -> list[tuple[str, str]]:
        """(node, incarnation) of those that replaced their directory and were not taken in again."""
        return [(node, incarnation) for node, incarnation in sorted(self.presented.items()) if not self.hears(node, incarnation)]
