"""Flush policies: how soon a message must be durable, and when bytes that no caller waits for are
synced. See docs/architecture.md, Durability.

Pure values and arithmetic. Under every policy, commit means durable on a majority (in an HA group:
on every member of the in-sync set). A durability class only decides what an acknowledgement waits
for, and so how long a sync may wait. Three classes exist: `durable` (commit), `memory` (held in
memory by a majority, up to the replicated index), and `master`, which in HA groups with `ack:
async` replaces the others for every topic that does not ask for `high` itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ledgermq.proto.types import TopicDurability

DURABLE_PRIORITY = 4
"""Under `hybrid`, messages of this priority and above are durable."""
PAGE_BYTES = 4096
MS = 1_000_000
NEVER_NS = 1 << 62


class Durability(str, Enum):
    """The class of an acknowledgement, as clients read it."""

    DURABLE = "durable"
    """Committed: on stable storage on a majority, or, in an HA group, on every member of the
    in-sync set."""
    MASTER = "master"
    """On stable storage on the master alone. The message is lost if another master takes over
    before a slave has it. It is committed later, like every other message."""
    MEMORY = "memory"
    """Held in memory by a majority of processes. The message may be lost until it is committed, as
    every message is later."""

    @property
    def early(self) -> bool:
        """Whether the acknowledgement comes before the commit."""
        return self is not Durability.DURABLE


class FlushPolicy(str, Enum):
    """What a broker group does with messages of topics that do not set a durability themselves."""

    DURABLE = "durable"
    MEMORY = "memory"
    HYBRID = "hybrid"


_BY_TOPIC = {
    TopicDurability.HIGH: FlushPolicy.DURABLE,
    TopicDurability.MEMORY: FlushPolicy.MEMORY,
    TopicDurability.HYBRID: FlushPolicy.HYBRID,
}


def policy_of(group_policy: FlushPolicy, topic: TopicDurability) -> FlushPolicy:
    """The flush policy of a topic: its own attribute, if set, overrides the policy of its broker
    group."""
    return _BY_TOPIC.get(topic, group_policy)


def durability_of(
    group_policy: FlushPolicy, topic: TopicDurability, priority: int, *, alone: bool = False
) -> Durability:
    """The durability class of one message; `priority` is −1 without one. `alone`: the master of an
    HA group acknowledges alone. It syncs at once, so no class there is weaker than `MASTER`, and
    only messages that ask for more wait for the commit."""
    policy = policy_of(group_policy, topic)
    weaker = Durability.MASTER if alone else Durability.MEMORY
    if policy is FlushPolicy.HYBRID:
        return Durability.DURABLE if priority >= DURABLE_PRIORITY else weaker
    if policy is FlushPolicy.DURABLE:
        return Durability.MASTER if alone and topic is TopicDurability.GROUP else Durability.DURABLE
    return weaker


_BY_STRENGTH = (Durability.MEMORY, Durability.MASTER, Durability.DURABLE)


def strongest(classes: Iterable[Durability]) -> Durability:
    """The class of a call with several messages: all of them get the strongest class that one of
    them needs."""
    return max(classes, key=_BY_STRENGTH.index)


def weakest(classes: Iterable[Durability]) -> Durability:
    """The class that each of several acknowledgements reaches at least."""
    return min(classes, key=_BY_STRENGTH.index)


@dataclass(frozen=True, slots=True)
class LazySync:
    """How long bytes that only `memory` messages brought may stay unsynced.

    They are synced after `interval_ns` if there are at least `least_bytes`, and after `thorough_ns`
    in any case. RocketMQ's asynchronous flush has the same three settings.
    """

    interval_ns: int = 500 * MS
    least_bytes: int = 4 * PAGE_BYTES
    thorough_ns: int = 10_000 * MS


class Unsynced:
    """How much was written since the last sync began, and since when. Knows nothing of files."""

    def __init__(self, lazy: LazySync) -> None:
        self._lazy = lazy
        self._since_ns: int | None = None
        self.entries = 0
        self.size = 0

    def wrote(self, now_ns: int, entries: int, size: int) -> None:
        if self._since_ns is None:
            self._since_ns = now_ns
        self.entries += entries
        self.size += size

    def due_ns(self) -> int:
        """When these bytes must be synced even if no caller waits for them."""
        if self._since_ns is None:
            return NEVER_NS
        enough = self.size >= self._lazy.least_bytes
        return self._since_ns + (self._lazy.interval_ns if enough else self._lazy.thorough_ns)

    def sync_begins(self) -> tuple[int, int]:
        """Starts a new count; returns the (entries, bytes) that the sync covers."""
        taken = self.entries, self.size
        self._since_ns, self.entries, self.size = None, 0, 0
        return taken
