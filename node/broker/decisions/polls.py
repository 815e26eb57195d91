"""Waiting Receives: the long polls of this leader by (consumer group, topic), each until it gets messages or its deadline passes.

This module only keeps which Receives wait and which must be examined again; `planner.py` decides what they get. Every iteration is in order
of arrival (plain dicts, never sets), so that the same inputs give the same turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import Receive, client_of

END_GRID_NS = 20_000_000
"""A fifth of the time by which a long poll ends before its caller's deadline (`node/frontend/rocketmq/service_config.py`)."""

Pair = tuple[str, str]
"""(consumer group, stored topic), or the result of `lite_pair`"""


def lite_pair(group: str, topic: str, client: str) -> Pair:
    """The pair of a client that reads lite topics. Each client has its own set of lite topics, so it has a pair of its own."""
    return group, f"{topic}\n{client}"


@dataclass(slots=True)
class Poll:
    """One Receive. `leasing`: a lease for it is in the log but not applied yet."""

    call: Receive
    leasing: bool = False

    @property
    def pair(self) -> Pair:
        call = self.call
        return lite_pair(call.group, call.topic, client_of(call.client_id)) if call.lite else (call.group, call.topic)


class Polls:
    """All unanswered Receives."""

    def __init__(self) -> None:
        self._polls: dict[Token, Poll] = {}
        self._waiting: dict[Pair, dict[Token, Poll]] = {}
        self._pairs_of: dict[str, dict[Pair, None]] = {}
        self._dirty: dict[Pair, None] = {}
        self._deadlines: list[tuple[int, Token]] = []

    def __len__(self) -> int:
        return len(self._polls)

    def add(self, call: Receive) -> None:
        """Accept a Receive; this turn examines it."""
        poll = self._polls[call.token] = Poll(call)
        self._waiting.setdefault(poll.pair, {})[call.token] = poll
        self._pairs_of.setdefault(call.topic, {})[poll.pair] = None
        self._dirty[poll.pair] = None
        self._deadline(call.deadline_ns, call.token)

    def get(self, token: Token) -> Poll | None:
        return self._polls.get(token)

    def waiting(self, pair: Pair) -> list[Poll]:
        """The Receives that wait for messages of this pair, longest waiting first."""
        return list(self._waiting.get(pair, {}).values())

    def is_lite(self, pair: Pair) -> bool:
        """Whether the Receives of this pair ask for messages of lite topics."""
        return any(poll.call.lite for poll in self._waiting.get(pair, {}).values())

    def leasing(self, poll: Poll) -> None:
        """A lease for this Receive was appended. It stops waiting, and is answered when the lease is applied."""
        poll.leasing = True
        self._unwait(poll)
        # An empty answer now would discard the lease, cost each message an attempt, and look like an empty topic to the caller.
        self._deadline(_end_ns(poll), poll.call.token)

    def remove(self, token: Token) -> Poll | None:
        """Remove a Receive that is answered, or about to be."""
        poll = self._polls.pop(token, None)
        if poll is not None:
            self._unwait(poll)
        return poll

    def _unwait(self, poll: Poll) -> None:
        waiting = self._waiting.get(poll.pair)
        if waiting is None or waiting.pop(poll.call.token, None) is None or waiting:
            return
        del self._waiting[poll.pair]
        self._dirty.pop(poll.pair, None)
        pairs = self._pairs_of[poll.call.topic]
        del pairs[poll.pair]
        if not pairs:
            del self._pairs_of[poll.call.topic]

    def waits_for(self, topic: str) -> bool:
        """Whether a Receive without a lease waits for messages of this topic."""
        return topic in self._pairs_of

    def wake_topic(self, topic: str) -> None:
        """Messages of this topic were applied."""
        self._dirty.update(self._pairs_of.get(topic, {}))

    def wake(self, pair: Pair) -> None:
        """Messages became visible again for this pair."""
        if pair in self._waiting:
            self._dirty[pair] = None

    def wake_all(self) -> None:
        """This node starts to serve."""
        self._dirty.update(dict.fromkeys(self._waiting))

    def dirty(self) -> list[Pair]:
        """The pairs to examine, in the order in which they were woken."""
        return list(self._dirty)

    def later(self, pair: Pair) -> None:
        """Move this pair behind the others that are to be examined."""
        if pair in self._dirty:
            del self._dirty[pair]
            self._dirty[pair] = None

    def settled(self, pair: Pair) -> None:
        """This pair has no work left until it is woken again."""
        self._dirty.pop(pair, None)

    def all(self) -> list[Poll]:
        """Every Receive, oldest first."""
        return list(self._polls.values())

    def of_client(self, client_id: str) -> list[Poll]:
        return [poll for poll in self._polls.values() if client_of(poll.call.client_id) == client_id]

    def clear(self) -> list[Poll]:
        """Return all Receives and forget them, because this node no longer leads."""
        polls = list(self._polls.values())
        for poll in polls:
            self.remove(poll.call.token)
        self._deadlines.clear()
        return polls

    def _deadline(self, at_ns: int, token: Token) -> None:
        heappush(self._deadlines, (at_ns, token))
        if len(self._deadlines) > 4 * len(self._polls) + 256:
            self._deadlines = [item for item in self._deadlines if item[1] in self._polls]
            heapify(self._deadlines)

    def due(self, now_ns: int) -> list[Poll]:
        """Remove and return the Receives whose time is over."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, token = heappop(self._deadlines)
            poll = self._polls.get(token)
            if poll is not None and _end_ns(poll) <= now_ns:
                self.remove(token)
                due.append(poll)
        return due

    def wake_at_ns(self) -> int | None:
        """The next deadline, rounded up to a grid so that many polls end in one turn. The delay is less than their callers allow."""
        return -(-self._deadlines[0][0] // END_GRID_NS) * END_GRID_NS if self._deadlines else None


def _end_ns(poll: Poll) -> int:
    return poll.call.deadline_ns + (poll.call.patience_ns if poll.leasing else 0)
