"""Looks up topics and broker groups in the controller's agreed state; one counts as unknown only
after a barrier read.

Also defines the order of a topic's queues over all broker groups, on which every node must agree:
it determines the queue of a message group.
"""

from __future__ import annotations

import hashlib

from ledgermq.node.controller.state import Topic
from ledgermq.node.frontend.ports import Metadata
from ledgermq.node.frontend.routing.known_groups import broker_groups
from ledgermq.proto.names import member_group, parse_stored
from ledgermq.proto.status import Code, fail
from ledgermq.proto.types import GroupConfig

Slot = tuple[str, int]
"""(broker group, queue)"""


class Topics:
    """Reads the controller's state. `metadata.state` is immutable and replaced as a whole."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._slots: dict[str, tuple[Topic, tuple[Slot, ...]]] = {}

    def known(self, stored: str) -> Topic | None:
        """The topic, if this node knows it now."""
        return self._metadata.state.topics.get(parse_stored(stored))

    async def find(self, stored: str) -> Topic:
        """The topic. Raises TOPIC_NOT_FOUND, but only after this node has caught up with everything
        agreed so far."""
        topic = self.known(stored)
        if topic is None:
            await self._metadata.barrier()
            topic = self.known(stored)
        if topic is None:
            self._slots.pop(stored, None)
            raise fail(Code.TOPIC_NOT_FOUND, f"topic {stored} does not exist; create it first")
        return topic

    async def caught_up(self) -> None:
        """Returns once this node knows everything agreed before the call."""
        await self._metadata.barrier()

    def group(self, stored: str) -> GroupConfig | None:
        """The configuration of a consumer group; None if it has the defaults."""
        return self._metadata.state.groups.get(parse_stored(stored))

    def reading(self, stored: str, client: str) -> str:
        """The name under which a client's progress is kept: the consumer group; in a broadcasting
        group, the client's member of it."""
        config = self.group(stored)
        return stored if config is None or not config.broadcast else member_group(stored, client)

    async def has_broker_group(self, name: str) -> bool:
        """Whether there is a broker group. It counts as unknown only after a barrier read."""
        return name in await broker_groups(self._metadata, name)

    def slots(self, stored: str, topic: Topic) -> tuple[Slot, ...]:
        """All queues of a topic in the order on which all nodes agree."""
        cached = self._slots.get(stored)
        if cached is None or cached[0] is not topic:
            slots = tuple(
                (group, queue)
                for group, count in sorted(topic.placement.items())
                for queue in range(count)
            )
            cached = self._slots[stored] = (topic, slots)
        return cached[1]


def slot_of(message_group: str, count: int) -> int:
    """The slot of a message group among `count` queues; the same on every node and in every
    release."""
    return int.from_bytes(hashlib.sha256(message_group.encode()).digest()[:8], "big") % count


def lite_group(topic: Topic, lite: str) -> str:
    """The broker group that holds a lite topic; the same on every node and in every release."""
    groups = sorted(topic.placement)
    return groups[slot_of(lite, len(groups))]
