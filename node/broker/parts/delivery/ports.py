"""The ports of delivery: what serving a Receive needs of other capabilities, which themselves know how to lease."""

from __future__ import annotations

from typing import Protocol

from ledgermq.node.broker.plan import Plan
from ledgermq.node.broker.queues import Pair, QueueKey
from ledgermq.proto.types import Draft


class LettersOfReceives(Protocol):
    """What becomes of a message that used up its attempts."""

    def max_attempts(self, group: str) -> int:
        """How often a message is delivered to the group at most."""
        ...

    def is_own(self, group: str, topic: str) -> bool:
        """Whether the group's dead letters are in this topic."""
        ...

    def letter(self, key: QueueKey, offset: int, lease: int) -> Draft | None:
        """The dead letter of a message in flight under this lease; None if it fits no log file."""
        ...

    def bury(self, plan: Plan, key: QueueKey, offset: int, letter: Draft) -> None:
        """Append the dead letter of a message in flight."""
        ...


class LiteReceives(Protocol):
    """Receives from the lite topics of a client."""

    def serve(self, plan: Plan, pair: Pair) -> None:
        """Serve the Receives of one client."""
        ...

    def unlocked(self, group: str, topic: str) -> None:
        """A message in flight of a consumer group is visible again."""
        ...
