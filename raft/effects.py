"""The output of a core for its driver, and the one order in which the driver carries it out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ledgermq.proto.types import HardState
from ledgermq.raft.ha_control import HaRequest
from ledgermq.raft.messages import Message


@dataclass(slots=True)
class Writes:
    """What must reach the disk first.

    1. `hard_state`: on stable storage before anything else of the same or a later `Effects`
       happens.
    2. `truncate_from`: the log loses every entry from this index on; their bytes are erased.
    3. `append`: (first, last) of the range that came with the `Append` just stepped; entries before
       `first` are already there. Its outcome goes to `Core.append_written` or `Core.append_refused`
       before anything else is asked of the core.

    `truncate_from` and `append` are written, not necessarily synced, when the driver goes on.
    """

    hard_state: HardState | None = None
    truncate_from: int | None = None
    append: tuple[int, int] | None = None


NO_WRITES = Writes()


@dataclass(slots=True)
class Push:
    """Room in a peer's window: read up to `ranges` ranges from `first_index` on, each of at least
    one entry, while `size` bytes last. Report each with `Core.pushed`, which returns the message
    that carries it."""

    to: str
    first_index: int
    size: int
    ranges: int


@dataclass(slots=True)
class Effects:
    """Everything decided since the last `take`. Carry it out in exactly this order:

    1. `fence`: if set, stop for good; nothing below may happen.
    2. `writes`: hard state durable, then truncate, then append. An error here fences, except for a
       full disk.
    3. `messages` and `pushes`: they may leave only now. A vote or a reply promises what step 2 made
       true. That log entries are written never promises their durability: replies name the durable
       index that `Core.synced` reported.
    4. `commit_index`: entries up to here may be applied and acknowledged. It never falls.
    5. `reads`: (token, index) of every decided `Core.read`: the entry that must be applied before
       the read is answered, or None if leadership was lost first.

    `left_behind`: (leader, its begin index) if the leader said that its log cannot help this
    replica; the core does nothing about it. `requests`: requests to the controller (rule IN_SYNC).
    Its answer goes to `Core.appointed`; without an answer the core asks again. After step 2 the
    driver owes a sync of the log, and its outcome to `Core.synced`; for safety neither is urgent.
    """

    fence: str | None
    writes: Writes
    messages: tuple[Message, ...]
    pushes: tuple[Push, ...]
    commit_index: int
    role_changed: bool
    reads: tuple[tuple[int, int | None], ...] = ()
    left_behind: tuple[str, int] | None = None
    requests: tuple[HaRequest, ...] = ()
    wake_at_ns: int = field(default=0, compare=False)
    """The latest time for the next `tick` and `take`."""


@dataclass(slots=True)
class Outbox:
    """What the parts of a core have decided and `Core.take` has not returned yet, and counters for
    the operator.

    fence        why this replica must stop for good; it is never cleared
    messages     for other replicas
    requests     for the controller
    left_behind  (leader, its begin index), see `Effects`
    refused      messages that were not processed, by reason
    restarts     how often the leader compared logs from the beginning with a peer that made no progress
    """

    fence: str | None = None
    messages: list[Message] = field(default_factory=list)
    requests: list[HaRequest] = field(default_factory=list)
    left_behind: tuple[str, int] | None = None
    refused: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)

    def stop(self, reason: str) -> None:
        """Fence this replica: it decides nothing any more, and the driver must stop."""
        self.fence = self.fence or reason

    def leave_behind(self, leader: str, begin_index: int) -> None:
        self.left_behind = leader, begin_index

    def take_messages(self) -> tuple[Message, ...]:
        """The messages; none from a fenced replica."""
        messages, self.messages = (() if self.fence is not None else tuple(self.messages)), []
        return messages

    def take_requests(self) -> tuple[HaRequest, ...]:
        requests, self.requests = (() if self.fence is not None else tuple(self.requests)), []
        return requests

    def take_left_behind(self) -> tuple[str, int] | None:
        left_behind, self.left_behind = self.left_behind, None
        return left_behind
