"""Pulls: reads of one queue from an offset on that wait for messages. They lease nothing and write
nothing.

A pull arrives here once the leader is known to have everything that was acknowledged before it
(`reads.py`). It returns committed messages, so the answer stays true under later leaders. Only a
leader serves pulls, because on a follower a pull could wait for messages that the leader already
has; the exception is a pull that begins far before the end (`Cold`). Messages that do not match the
filter still advance the pull's offset, so no message is examined twice during a wait, and the
caller learns how far the pull came.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.outcome import UNREAD, Done, Refused
from ledgermq.node.broker.calls.read_calls import Pull, Pulled
from ledgermq.node.broker.filters.filters import CallLooks, Looks
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.plan import NEVER_NS
from ledgermq.node.broker.ports import ReadBudget

SCAN_UNITS = 4096
"""How many units one pull examines per turn; it continues in the next turn."""
_FIRST_UNITS = 64


@dataclass(slots=True)
class _Waiting:
    call: Pull
    offset: int


class Pulls:
    """The waiting pulls of one replica."""

    def __init__(self, machine: Machine, budget: ReadBudget) -> None:
        self._machine = machine
        self._budget = budget
        self.turned_away: dict[Token, None] = {}
        """Pulls that may have messages, which may not be read as of `_version` of the budget."""
        self._version = 0
        self.waiting: dict[Token, _Waiting] = {}
        self._of_topic: dict[str, dict[Token, None]] = {}
        self.woken: dict[Token, None] = {}
        self.deadlines: list[tuple[int, Token]] = []
        self.looks = Looks()

    def __len__(self) -> int:
        return len(self.waiting)

    def take(self, call: Pull) -> None:
        """Accept a pull whose read index is applied; the next `serve` examines it."""
        self.waiting[call.token] = _Waiting(call, call.offset)
        self._of_topic.setdefault(call.topic, {})[call.token] = None
        self.woken[call.token] = None
        heappush(self.deadlines, (call.deadline_ns, call.token))
        if len(self.deadlines) > 4 * len(self.waiting) + 256:
            self.deadlines = [item for item in self.deadlines if item[1] in self.waiting]
            heapify(self.deadlines)

    def wake(self, topics: Iterable[str]) -> None:
        """These topics have new messages, or their configuration changed."""
        if self._of_topic:
            for topic in topics:
                self.woken.update(self._of_topic.get(topic, {}))

    def serve(self) -> list[Done]:
        """Answer the pulls that have messages."""
        done: list[Done] = []
        budget = self._budget
        if budget.version != self._version:
            self._version, self.turned_away, self.woken = (
                budget.version,
                {},
                self.turned_away | self.woken,
            )
        dirty, self.woken = self.woken, {}
        for place, token in enumerate(dirty):
            if not budget.admits(token):
                self.turned_away[token] = None
                continue
            if self.looks.left <= 0:
                # The remaining pulls come next, in the next turn.
                self.woken = dict.fromkeys(list(dirty)[place:]) | self.woken
                break
            waiting = self.waiting[token]
            outcome = self._look(waiting)
            if isinstance(outcome, Refused) or outcome.records:
                if isinstance(outcome, Pulled):
                    budget.take(token, sum(map(len, outcome.records)))
                self._remove(token)
                done.append(Done(token, outcome))
            else:
                waiting.offset = outcome.next_offset
                if outcome.next_offset < outcome.end_offset:
                    self.woken[token] = None
        return done

    def due(self, now_ns: int) -> list[Done]:
        """Answer the pulls whose deadline has passed with an empty result, or refuse them if their
        messages may not be read now. Each was examined at least once, however short its
        deadline."""
        done: list[Done] = []
        while self.deadlines and self.deadlines[0][0] <= now_ns:
            _, token = heappop(self.deadlines)
            waiting = self.waiting.get(token)
            if waiting is not None:
                unread = token in self.turned_away
                end_ns = waiting.call.deadline_ns + waiting.call.patience_ns
                if unread and now_ns < end_ns:
                    heappush(self.deadlines, (end_ns, token))
                    continue
                self._remove(token)
                done.append(Done(token, UNREAD if unread else Pulled((), (), waiting.offset)))
        return done

    def cancel(self, token: Token) -> list[Done]:
        """The caller is gone: the pull ends with an empty result."""
        waiting = self.waiting.get(token)
        if waiting is None:
            return []
        self._remove(token)
        return [Done(token, Pulled((), (), waiting.offset))]

    def resign(self, refused: Refused) -> list[Done]:
        """Leadership is lost. Every caller may ask the next leader."""
        tokens = list(self.waiting)
        for token in tokens:
            self._remove(token)
        self.deadlines.clear()
        return [Done(token, refused) for token in tokens]

    def wake_at_ns(self, now_ns: int) -> int:
        """When `serve` or `due` has work next."""
        if self.woken:
            return now_ns
        return self.deadlines[0][0] if self.deadlines else NEVER_NS

    def _remove(self, token: Token) -> None:
        topic = self.waiting.pop(token).call.topic
        self.woken.pop(token, None)
        self.turned_away.pop(token, None)
        others = self._of_topic[topic]
        del others[token]
        if not others:
            del self._of_topic[topic]

    def _look(self, waiting: _Waiting) -> Pulled | Refused:
        """The messages that a pull can get now; without any, `next_offset` says how far the filter
        came."""
        call, machine = waiting.call, self._machine
        queues = machine.queues_of(call.topic)
        if not 0 <= call.queue < queues:
            return Refused("unknown-topic", detail=f"queue {call.queue} of topic {call.topic}")
        begin, end = machine.begin(call.topic, call.queue), machine.end(call.topic, call.queue)
        if not begin <= waiting.offset <= end:
            what = (
                f"offset {waiting.offset} is outside of queue {call.queue} of topic {call.topic},"
                f" which holds {begin} to {end}"
            )
            return Refused("illegal-offset", detail=f"{what} (exclusive)")
        found = _Scan(machine, call, self.looks.of_call(call.filter))
        offset, stop, chunk = waiting.offset, min(end, waiting.offset + SCAN_UNITS), _FIRST_UNITS
        while offset < stop and not found.full:
            offset = found.scan(offset, min(chunk, stop - offset))
            chunk = SCAN_UNITS
        return Pulled(tuple(found.offsets), tuple(found.records), offset, end)


class _Scan:
    """One pass over a queue for one pull."""

    def __init__(self, machine: Machine, call: Pull, looks: CallLooks) -> None:
        self._machine = machine
        self._call = call
        self._looks = looks
        self._codes = [machine.tags_code(tag) for tag in sorted(call.filter.tags)]
        self._bytes = 0
        self.offsets: list[int] = []
        self.records: list[bytes] = []

    @property
    def full(self) -> bool:
        return self._served or self._looks.used_up

    @property
    def _served(self) -> bool:
        return len(self.records) >= self._call.max_messages or self._bytes >= self._call.max_bytes

    def scan(self, first: int, count: int) -> int:
        """Examine `count` messages from `first` on. Returns the offset of the first one not
        examined."""
        call, machine = self._call, self._machine
        positions, sizes, codes = machine.units(call.topic, call.queue, first, count)
        hits = np.flatnonzero(np.isin(codes, self._codes)).tolist() if self._codes else range(count)
        for i in hits:
            if self.full:
                return first + int(i)
            position, size = int(positions[i]), int(sizes[i])
            if self._looks.matches(machine, position, size):
                self.offsets.append(first + int(i))
                self.records.append(machine.record(position, size))
                self._bytes += size
        return self.offsets[-1] + 1 if self._served else first + count
