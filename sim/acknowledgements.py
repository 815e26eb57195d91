"""What the simulated leaders told their clients, and whether it was true: an acknowledgement called durable is never lost (design §4).

Here lives the knowledge of an outsider who saw every copy come and go. A batch is followed from proposal to acknowledgement, which is given
by the rule of its class: `durable` at the commit index, `memory` at the replicated index. What was acknowledged from memory may be lost;
how much of it was is counted. Nothing here acts on a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ledgermq.node.core.flush import Durability
from ledgermq.proto.types import Role
from ledgermq.sim.checkers import Violation
from ledgermq.sim.node import Life
from ledgermq.storage.errors import StorageError

Entry = tuple[int, int]
"""(index, chain CRC): by chaining it stands for the whole log up to there."""


@dataclass
class Pending:
    """A batch that nobody was told about yet."""

    node: str
    life: Life
    term: int
    last: Entry
    durability: Durability
    holders: set[str] = field(default_factory=set)
    """Nodes that were seen with it, alive, at any time."""


@dataclass
class Acknowledgements:
    """Memory of one run. `look` is called after every step."""

    voters: int
    durable: list[Entry] = field(default_factory=list)
    memory: list[Entry] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    led: set[tuple[str, int]] = field(default_factory=set)

    def proposed(self, node: str, life: Life, durability: Durability) -> None:
        """A leader appended a batch; it ends with its log."""
        index, term, chain = life.tip
        self.pending.append(Pending(node, life, term, (index, chain), durability))

    def look(self, living: Mapping[str, Life]) -> None:
        for node, life in living.items():
            self._new_leader_has_all(node, life)
        for node, life in living.items():
            self._seen(node, life)
        self.pending = [batch for batch in self.pending if living.get(batch.node) is batch.life and not self._settled(batch)]

    def dies(self, node: str, life: Life) -> None:
        """Within one step a node may take a batch, say so, and end: nobody would see that it had it."""
        with suppress(StorageError):  # its log was being cut
            self._seen(node, life)

    def _seen(self, node: str, life: Life) -> None:
        for batch in self.pending:
            if node not in batch.holders and _holds(life, batch.last):
                batch.holders.add(node)

    def _settled(self, batch: Pending) -> bool:
        """Acknowledged now, or never any more."""
        replica = batch.life.replica
        if replica.role is not Role.LEADER or replica.term != batch.term:
            return True
        index = batch.last[0]
        if batch.durability is Durability.DURABLE and replica.commit_index >= index:
            self.durable.append(batch.last)
            return True
        if batch.durability is Durability.MEMORY and replica.replicated_index >= index:
            if len(batch.holders) <= self.voters // 2:
                raise Violation("ack", f"entry {index} is acknowledged from memory, but only {sorted(batch.holders)} ever had it")
            self.memory.append(batch.last)
            return True
        return False

    def _new_leader_has_all(self, node: str, life: Life) -> None:
        """I3 for clients: what was called durable is in the log of every later leader."""
        if life.role is Role.LEADER and (node, life.term) not in self.led:
            self.led.add((node, life.term))
            self.check(node, life)

    def check(self, node: str, life: Life) -> None:
        """Every acknowledgement called durable still holds on this node."""
        for entry in lost(life, self.durable):
            raise Violation("ack", f"entry {entry[0]} was acknowledged as durable, and {node} lost it")


def lost(life: Life, entries: Iterable[Entry]) -> list[Entry]:
    """Those that a node does not have."""
    return [entry for entry in entries if not _holds(life, entry)]


def _holds(life: Life, entry: Entry) -> bool:
    index, chain = entry
    if index < life.begin_index:
        # Trimmed: a record says so, and the checkers see to it that it was committed.
        return True
    return life.end_index >= index and life.chain_at(index) == chain
