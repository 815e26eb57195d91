"""The controller's stand-in: what the cluster is wanted to be, and the call that brings it about.

Here lives intent only (design §6): topics and consumer groups that somebody asked for, and where the nodes can be reached. Whatever the log
of the group says wins; a leader that lacks something is told again, by any node's reconciler, until it is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.node.core.calls import Configure
from ledgermq.proto.types import GroupConfig, Permission, TopicConfig, TopicKind
from ledgermq.sim.clients import CONSUMER_GROUP, FIFO, NORMAL, QUEUES


def _topic(name: str, kind: TopicKind) -> TopicConfig:
    return TopicConfig("", name, kind, QUEUES[name], Permission.READ_WRITE, 0)


@dataclass
class Controller:
    """Wanted topics by stored name, wanted consumer groups, and the nodes' addresses."""

    topics: dict[str, TopicConfig] = field(
        default_factory=lambda: {NORMAL: _topic(NORMAL, TopicKind.NORMAL), FIFO: _topic(FIFO, TopicKind.FIFO)}
    )
    groups: dict[str, GroupConfig] = field(default_factory=lambda: {CONSUMER_GROUP: GroupConfig("", CONSUMER_GROUP)})
    addresses: dict[str, str] = field(default_factory=dict)

    def missing(self, topics: dict[str, TopicConfig], groups: dict[str, GroupConfig], token: int) -> Configure | None:
        """The call for a leader that has these topics and groups in force; None when nothing is missing."""
        lacking = [topic for name, topic in self.topics.items() if topics.get(name) != topic]
        unknown = [group for name, group in self.groups.items() if groups.get(name) != group]
        return Configure(token, tuple(lacking), tuple(unknown)) if lacking or unknown else None
