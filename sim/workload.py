"""What a simulated cluster is asked to store: a term-start record from every new leader, then small messages at random moments.

Here lives only the making of batches. Whether they are committed is the world's affair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ledgermq.node.core.flush import DURABLE_PRIORITY, Durability, FlushPolicy, durability_of
from ledgermq.proto import control, layout
from ledgermq.proto.types import I64, Draft, TopicDurability, UnsealedBatch
from ledgermq.sim.network import MS, Chance

TOPIC = "sim"
PAUSE_NS = (5 * MS, 60 * MS)
BATCH_MAX = 5
BODY_MAX = 400


@dataclass(frozen=True, slots=True)
class Batch:
    entries: UnsealedBatch
    queue_offsets: I64
    control: bool
    durability: Durability = Durability.DURABLE


class Workload:
    """One source of proposals for all leaders; who leads a term speaks first with its term-start record."""

    def __init__(self, chance: Chance, policy: FlushPolicy = FlushPolicy.DURABLE) -> None:
        self._chance = chance
        self._policy = policy
        self._started: set[tuple[str, int]] = set()
        self._next_at = 0
        self._offset = 0

    def next_batch(self, node: str, term: int, now_ns: int) -> Batch | None:
        """What this leader proposes now, if anything."""
        if (node, term) not in self._started:
            return self._batch([control.draft(control.TermStart(term=term, leader=node), now_ns // MS)], control=True)
        if now_ns < self._next_at:
            return None
        self._next_at = now_ns + int(self._chance.uniform(*PAUSE_NS))
        count = self._chance.randrange(1, BATCH_MAX + 1)
        drafts = [Draft(TOPIC, 0, self._body(), b"UNIQ_KEY\x01x\x02", now_ns // MS) for _ in range(count)]
        return self._batch(drafts, self._durability(), control=False)

    def led(self, node: str, term: int) -> bool:
        """Whether this node has opened this term as its leader."""
        return (node, term) in self._started

    def proposed(self, node: str, term: int) -> None:
        self._started.add((node, term))

    def _durability(self) -> Durability:
        """Of all messages of a batch. Only `hybrid` draws for it, so that the histories of other seeds stay what they were."""
        hybrid = self._policy is FlushPolicy.HYBRID
        priority = self._chance.randrange(2 * DURABLE_PRIORITY) if hybrid else -1
        return durability_of(self._policy, TopicDurability.GROUP, priority)

    def _body(self) -> bytes:
        return bytes(self._chance.randrange(256) for _ in range(8)) * self._chance.randrange(1, BODY_MAX // 8)

    def _batch(self, drafts: list[Draft], durability: Durability = Durability.DURABLE, *, control: bool) -> Batch:
        offsets = np.arange(self._offset, self._offset + len(drafts), dtype=np.int64)
        self._offset += len(drafts)
        return Batch(layout.encode_entries(drafts), offsets, control, durability)
