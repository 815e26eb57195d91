"""Waiting Receives: the long polls of this leader by (consumer group, topic), each until it gets
messages or its deadline passes.

This module only keeps which Receives wait, which must be examined again, and in which queues;
`lease_serving.py` decides what they get. Every iteration is in order of arrival (plain dicts, never
sets), so that the same inputs give the same turn.

For a pair of an ordinary consumer group that was examined to the end of its queues, the queues that
may have a visible message are *known*: too many may be listed, but never too few. So a Receive that
finds nothing, and one that comes again after such an end, examines no queue. Whatever makes
messages visible lists their queue (`arrived`) or ends the knowledge (`wake`, `forget`,
`forget_all`, `wake_topic`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import Receive, client_of
from ledgermq.node.broker.plan import NEVER_NS, Poll
from ledgermq.node.broker.queues import Pair, QueueKey, lite_pair

END_GRID_NS = 20_000_000
"""A fifth of the time by which a long poll ends before its caller's deadline
(`node/frontend/rocketmq/service_config.py`)."""

KNOWN_MAX = 16_384
"""For how many pairs the queues with visible messages are known; beyond that all of them are
examined again. Members of broadcasting groups come under names that clients choose, so this table
needs a bound."""


def _pair_of(call: Receive) -> Pair:
    return (
        lite_pair(call.group, call.topic, client_of(call.client_id))
        if call.lite
        else (call.group, call.topic)
    )


class Polls:
    """All unanswered Receives."""

    def __init__(self) -> None:
        self._polls: dict[Token, Poll] = {}
        self.waiting_for: dict[Pair, dict[Token, Poll]] = {}
        self._pairs_of: dict[str, dict[Pair, None]] = {}
        self.woken: dict[Pair, None] = {}
        self._known: dict[Pair, dict[int, None]] = {}
        """Pair → the queues that may have a visible message. Pairs that are not here may have one
        in any queue."""
        self.known_of: dict[str, dict[Pair, None]] = {}
        """Stored topic → its pairs in `_known`."""
        self.deadlines: list[tuple[int, Token]] = []

    def __len__(self) -> int:
        return len(self._polls)

    def add(self, call: Receive) -> None:
        """Accept a Receive. This turn examines it, unless it is known that there is nothing for
        it."""
        pair = _pair_of(call)
        poll = self._polls[call.token] = Poll(call, pair)
        self.waiting_for.setdefault(pair, {})[call.token] = poll
        self._pairs_of.setdefault(call.topic, {})[pair] = None
        if self._known.get(pair) != {}:
            self.woken[pair] = None
        self._deadline(call.deadline_ns, call.token)

    def get(self, token: Token) -> Poll | None:
        return self._polls.get(token)

    def waiting(self, pair: Pair) -> Collection[Poll]:
        """The Receives that wait for messages of this pair, longest waiting first. Valid until one
        is added or removed."""
        return self.waiting_for.get(pair, {}).values()

    def is_lite(self, pair: Pair) -> bool:
        """Whether the Receives of this pair ask for messages of lite topics. All of a pair do, or
        none."""
        first = next(iter(self.waiting(pair)), None)
        return first is not None and first.call.lite

    def pairs_of(self, topic: str) -> Collection[Pair]:
        """The pairs with Receives that wait for messages of this topic, in the order in which the
        first Receive came."""
        return self._pairs_of.get(topic, {}).keys()

    def known(self, pair: Pair) -> Mapping[int, None] | None:
        """The queues that may have a visible message for this pair; None if that is not known."""
        return self._known.get(pair)

    def leasing(self, poll: Poll) -> None:
        """A lease for this Receive was appended. It stops waiting, and is answered when the lease
        is applied."""
        poll.leasing = True
        self._unwait(poll)
        # An empty answer now would discard the lease, cost each message an attempt, and look like
        # an empty topic to the caller.
        self._deadline(_end_ns(poll), poll.call.token)

    def remove(self, token: Token) -> Poll | None:
        """Remove a Receive that is answered, or about to be."""
        poll = self._polls.pop(token, None)
        if poll is not None:
            self._unwait(poll)
        return poll

    def _unwait(self, poll: Poll) -> None:
        waiting = self.waiting_for.get(poll.pair)
        if waiting is None or waiting.pop(poll.call.token, None) is None or waiting:
            return
        del self.waiting_for[poll.pair]
        self.woken.pop(poll.pair, None)
        pairs = self._pairs_of[poll.call.topic]
        del pairs[poll.pair]
        if not pairs:
            del self._pairs_of[poll.call.topic]

    def waits_for(self, topic: str) -> bool:
        """Whether a Receive without a lease waits for messages of this topic."""
        return topic in self._pairs_of

    def wake_topic(self, topic: str) -> None:
        """Messages of this topic may be visible in any of its queues."""
        for pair in [*self.known_of.get(topic, ())]:
            self.forget(pair)
        self.woken.update(self._pairs_of.get(topic, {}))

    def arrived(
        self, topic: str, queues: Iterable[int], is_new: Callable[[QueueKey], bool]
    ) -> None:
        """Messages of this topic were applied in these queues. `is_new`: whether a queue has
        messages that its consumer group has not leased yet, as of the log's end. In other queues
        nothing became visible."""
        for pair in [*self.known_of.get(topic, ())]:
            if pair not in self.waiting_for:
                # Nothing is to be decided for it now, and it must not cost anything with every
                # message.
                self.forget(pair)
                continue
            found = [queue for queue in queues if is_new((*pair, queue))]
            if found:
                self._known[pair].update(dict.fromkeys(found))
                self.woken[pair] = None
        for pair in self._pairs_of.get(topic, ()):
            if pair not in self._known:
                self.woken[pair] = None

    def wake(self, pair: Pair) -> None:
        """Messages became visible again for this pair."""
        self.forget(pair)
        if pair in self.waiting_for:
            self.woken[pair] = None

    def wake_group(self, group: str) -> None:
        """The consumer group gets another configuration, or is deleted."""
        self.woken.update({pair: None for pair in self.waiting_for if pair[0] == group})

    def wake_all(self) -> None:
        """Any queue may have visible messages for any pair, also for those that wait."""
        self.forget_all()
        self.woken.update(dict.fromkeys(self.waiting_for))

    def forget(self, pair: Pair) -> None:
        """Any queue may have visible messages for this pair from now on."""
        if self._known.pop(pair, None) is not None:
            pairs = self.known_of[pair[1]]
            del pairs[pair]
            if not pairs:
                del self.known_of[pair[1]]

    def forget_all(self) -> None:
        """Any queue may have visible messages for any pair from now on."""
        self._known.clear()
        self.known_of.clear()

    def dirty(self) -> list[Pair]:
        """The pairs to examine, in the order in which they were woken."""
        return list(self.woken)

    def later(self, pair: Pair) -> None:
        """Move this pair behind the others that are to be examined."""
        if pair in self.woken:
            del self.woken[pair]
            self.woken[pair] = None

    def settled(self, pair: Pair, *, empty: bool) -> None:
        """This pair has no work left until it is woken again. `empty`: none of its queues has a
        visible message, as of the log's end."""
        self.woken.pop(pair, None)
        if empty:
            if len(self._known) >= KNOWN_MAX:
                self.forget_all()
            self._known[pair] = {}
            self.known_of.setdefault(pair[1], {})[pair] = None

    def all(self) -> list[Poll]:
        """Every Receive, oldest first."""
        return list(self._polls.values())

    def of_client(self, client_id: str) -> list[Poll]:
        return [
            poll for poll in self._polls.values() if client_of(poll.call.client_id) == client_id
        ]

    def clear(self) -> list[Poll]:
        """Return all Receives and forget them, because this node no longer leads."""
        polls = list(self._polls.values())
        for poll in polls:
            self.remove(poll.call.token)
        self.deadlines.clear()
        self.forget_all()
        return polls

    def _deadline(self, at_ns: int, token: Token) -> None:
        heappush(self.deadlines, (at_ns, token))
        if len(self.deadlines) > 4 * len(self._polls) + 256:
            self.deadlines = [item for item in self.deadlines if item[1] in self._polls]
            heapify(self.deadlines)

    def due(self, now_ns: int, has_patience: Callable[[Poll], bool]) -> list[Poll]:
        """The Receives whose time is over, for the caller to remove. One that `has_patience` waits
        longer, as one that is leasing does."""
        due: dict[Token, Poll] = {}
        while self.deadlines and self.deadlines[0][0] <= now_ns:
            _, token = heappop(self.deadlines)
            poll = self._polls.get(token)
            if poll is None or _end_ns(poll) > now_ns:
                continue
            last_ns = poll.call.deadline_ns + poll.call.patience_ns
            if now_ns < last_ns and has_patience(poll):
                self._deadline(last_ns, token)
            else:
                due[token] = poll
        return list(due.values())

    def wake_at_ns(self) -> int:
        """The next deadline, rounded up to a grid so that many polls end in one turn. The delay is
        less than their callers allow."""
        return -(-self.deadlines[0][0] // END_GRID_NS) * END_GRID_NS if self.deadlines else NEVER_NS


def _end_ns(poll: Poll) -> int:
    return poll.call.deadline_ns + (poll.call.patience_ns if poll.leasing else 0)
