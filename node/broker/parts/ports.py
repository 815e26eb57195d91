"""The ports of the capabilities: what one needs of another, so that neither has to know how the
other works."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from ledgermq.node.broker.plan import Plan, Poll
from ledgermq.node.broker.queues import Pair, QueueKey, Touched
from ledgermq.proto.types import Draft


class Positions(Protocol):
    """Where consumer groups are in their queues (`delivery.py`), as other capabilities read and
    change it when they apply entries."""

    @property
    def queues(self) -> Mapping[QueueKey, object]: ...
    def apply_dead_letter(self, key: QueueKey, offset: int, lease: int) -> Touched:
        """A copy of the message, made under this lease, is in the dead-letter topic."""
        ...

    def apply_resent(self, index: int, key: QueueKey, offset: int) -> Touched:
        """The dead letter of this message was resent."""
        ...

    def apply_reset(self, group: str, topic: str, queues: Iterable[tuple[int, int]]) -> Touched:
        """(queue, new cursor) each."""
        ...

    def meet(self, key: QueueKey, cursor: int) -> None:
        """A group starts to read a queue at `cursor`, unless it has already started."""
        ...

    def leave(self, key: QueueKey) -> None:
        """Forget a group's cursor in a queue, unless the group has messages in flight there."""
        ...

    def forget(self, keys: list[QueueKey]) -> Touched:
        """Forget groups' cursors and rows in these queues."""
        ...


class WaitingReceives(Protocol):
    """The Receives that wait (`polls.py`)."""

    def waiting(self, pair: Pair) -> Collection[Poll]:
        """Those of this pair, longest waiting first."""
        ...

    def wake(self, pair: Pair) -> None:
        """Messages became visible for this pair."""
        ...


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
