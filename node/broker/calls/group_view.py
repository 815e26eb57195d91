"""What outsiders may know of a broker group between turns: no answer to a call, but cheap, immutable and always at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.proto.types import GroupConfig, TopicConfig


@dataclass(frozen=True, slots=True)
class HaView:
    """An HA group as one of its replicas sees it. `generation`: the entry that made the rule. `in_sync`: None where nothing is known.
    `short`: on the master, why nothing can be committed while so few are in sync, and what to do."""

    generation: int
    in_sync: tuple[str, ...] | None
    minimum: int
    ack_async: bool
    pull: bool
    short: str = ""
    last_store_ms: int = 0
    """Of the last entry that this replica applied."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """What outsiders may know of a group between turns; rebuilt after each turn that changed it. Cheap, immutable, safe to share."""

    leader: str | None
    term: int
    serving: bool
    """True on a leader that has applied its term-start record."""
    topics: dict[str, TopicConfig]
    groups: dict[str, GroupConfig]
    queue_ends: dict[str, tuple[int, ...]]
    """Stored topic → number of committed messages per queue, client topics only."""
    statistics: dict[str, Any]
    members: GroupMembers | None = None
    """As of the applied index; None before the group's first record is applied."""
    incarnations: Mapping[str, str] = field(default_factory=dict)
    """Node → the directory that the configuration in effect names: that of the log's newest membership record, applied or not. Whoever
    hears packets goes by it: the record that takes a directory in can be committed by the very node it belongs to."""
    in_effect: tuple[str, ...] = ()
    """Everyone whom that record names, voters first."""
    ha: HaView | None = None
    """Of a group that has the rule in-sync."""

    @property
    def short(self) -> str:
        """See `HaView`."""
        return "" if self.ha is None else self.ha.short


@dataclass(frozen=True, slots=True)
class Why:
    """An answer to an operator's question: one sentence, the reason in one word, and the facts that it rests on."""

    answer: str
    reason: str
    evidence: tuple[str, ...]
