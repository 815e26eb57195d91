"""The public view of a broker group between turns: not an answer to a call, but cheap, immutable
and always available."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.proto.levels import FIRST_LEVEL
from ledgermq.proto.types import GroupConfig, TopicConfig


@dataclass(frozen=True, slots=True)
class HaView:
    """The state of an HA group as seen by one of its replicas. `generation`: the index of the entry
    that introduced the rule. `in_sync`: None if unknown. `short`: on the master, why too few
    replicas in sync prevent commits, and what to do; else empty."""

    generation: int
    in_sync: tuple[str, ...] | None
    minimum: int
    ack_async: bool
    pull: bool
    short: str = ""
    last_store_ms: int = 0
    """Store time of the last entry that this replica applied."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The public view of a group; rebuilt after each turn that changed it. Immutable and safe to
    share between threads. Counters and gauges are not part of it: the status of a replica has
    them."""

    leader: str | None
    term: int
    serving: bool
    """True on a leader that has applied its term-start record."""
    topics: dict[str, TopicConfig]
    groups: dict[str, GroupConfig]
    queue_ends: dict[str, tuple[int, ...]]
    """Stored topic → number of committed messages per queue, client topics only."""
    members: GroupMembers | None = None
    """As of the applied index; None before the group's first record is applied."""
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """Node → the directory in the configuration in effect, which is that of the log's newest
    membership record, applied or not. Packets are accepted by this map, because a record that
    admits a directory may need the acknowledgement of that very node to be committed."""
    in_effect: tuple[str, ...] = ()
    """All nodes named by that record, voters first."""
    level: int = FIRST_LEVEL
    """The feature level as of the applied index."""
    ha: HaView | None = None
    """Set for groups under the rule in-sync."""
    store_ms: int = 0
    """Store time of the last applied entry."""
    undecided: int = 0
    """How many transactions are not decided."""

    @property
    def short(self) -> str:
        """See `HaView`."""
        return "" if self.ha is None else self.ha.short


@dataclass(frozen=True, slots=True)
class Why:
    """An answer to an operator's question: one sentence, the reason in one word, and the facts that
    it rests on."""

    answer: str
    reason: str
    evidence: tuple[str, ...]
