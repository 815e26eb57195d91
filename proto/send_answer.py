"""The answer of a send between nodes: what the leader of a broker group returns to the node that the
client called.

It travels as the `responses` of a `ForwardResult` (peer.proto), in this order: the response for the
client; the durability class of the acknowledgement, as text; the number of the queue, in decimal
digits. Older nodes end it behind the class, and the queue is missing too if there is not one
queue to state. So a message may get more parts at its end, and every release reads those it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAnswer:
    """`response`: a serialised `SendMessageResponse`. `durability`: the class of its
    acknowledgement; empty for a send that failed. `queue`: that of the only message, in its broker
    group; None for several messages, for one that has no place in its topic yet, and from nodes
    that do not state it."""

    response: bytes
    durability: str = ""
    queue: int | None = None

    def encode(self) -> list[bytes]:
        """The parts of a successful send, in their order on the wire."""
        parts = [self.response, self.durability.encode()]
        return parts if self.queue is None else [*parts, str(self.queue).encode()]

    @classmethod
    def decode(cls, parts: Sequence[bytes]) -> SendAnswer:
        """The answer of a node of any release. Raises ValueError."""
        return cls(
            response=parts[0],
            durability=bytes(parts[1]).decode() if len(parts) > 1 else "",
            queue=int(bytes(parts[2])) if len(parts) > 2 else None,
        )
