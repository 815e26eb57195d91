"""The directory incarnations that every node knows of its peers: imitates the identities that nodes
exchange when they connect.

`node/replica/peers/peer_identities.py` makes these decisions over real greetings. Nothing here is
durable. The directory in the membership record counts, otherwise the one met first. Packets from
any other directory are rejected, and a node that notices one tells its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Acquaintance:
    """The knowledge of one node. `met` belongs to its directory; the record's content and the last
    greetings belong to its process."""

    met: dict[str, str] = field(default_factory=dict)
    """Node → the incarnation of its directory when it was first met."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Node → the incarnation in the newest membership record."""
    presented: dict[str, str] = field(default_factory=dict)
    """Node → the incarnation of its last greeting."""

    def begin(self) -> None:
        """A process starts."""
        self.named = {}
        self.presented.clear()

    def greeted(self, node: str, incarnation: str) -> None:
        self.met.setdefault(node, incarnation)
        self.presented[node] = incarnation

    def hears(self, node: str, incarnation: str) -> bool:
        """Whether a packet that this node sent from this directory is accepted."""
        return incarnation == (self.named.get(node) or self.met.setdefault(node, incarnation))

    def returned(self) -> list[tuple[str, str]]:
        """(node, incarnation) of nodes that replaced their directory and were not admitted again
        yet."""
        return [
            (node, incarnation)
            for node, incarnation in sorted(self.presented.items())
            if not self.hears(node, incarnation)
        ]
