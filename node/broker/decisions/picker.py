"""Which messages a Receive gets: candidates of a (consumer group, topic), decided against the log's end.

Pure reading. Queues are looked at in rotating order; messages visible again and messages never leased take turns at being first, so
that neither a poison message nor a flood of new ones starves the other. A filter's tags are tested on the hashes in the consume queue
first and then the filter on the properties in the record; what does not match is passed over and thereby consumed for the group. A message
that was delivered as often as its group allows is picked for the dead-letter topic instead.

What looking at records may cost is bounded (`filters.py`). FIFO groups have steps of their own (`fifo_picker.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ledgermq.node.broker.calls.consumer_calls import Receive
from ledgermq.node.broker.decisions.fifo import MessageGroups
from ledgermq.node.broker.decisions.leases import LeaseClock
from ledgermq.node.broker.decisions.uncommitted import UncommittedState
from ledgermq.node.broker.filters.filters import Looks
from ledgermq.node.broker.ports import Messages
from ledgermq.node.broker.state.delivery import Delivery, QueueKey

SCAN_UNITS = 4096
"""Units one Receive looks at per queue and turn; the rest is looked at in the next turn."""
IN_FLIGHT_MAX = 65_536
"""A consumer group holds at most about this many messages of a queue leased and not acknowledged: every one costs memory on every replica
(invariant I11). Beyond it only messages visible again are handed out."""
FIRST_UNITS = 64
TURNS_MAX = 16_384
"""Of so many (consumer group, topic) it is remembered whose turn it is; beyond that all begin anew."""
DEAD_LETTERS_A_PICK = 64
"""So many messages go to the dead-letter topic for one Receive; the others follow in the next turn."""


@dataclass(frozen=True, slots=True)
class Picked:
    """One message chosen."""

    queue: int
    offset: int
    attempt: int
    record: bytes
    fresh: bool = False
    """It has no row yet."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a consumer group and the moment ask of a pick."""

    max_attempts: int
    burying: bool = True
    """Dead letters can be written now; else messages that used up their attempts stay where they are."""
    highest_first: bool = False
    """None of a queue while a higher one has some."""


@dataclass(slots=True)
class Pick:
    """What one Receive gets. `passed` are ranges never leased, `passed_again` single offsets visible again; both do not match. `dead` are
    (queue, offset) of messages that have used up their attempts, `waiting` of new ones that a FIFO group jumps over.

    `cursors` are the new cursors of the queues touched. `more`: the scan stopped before the end of what is stored.
    """

    messages: list[Picked] = field(default_factory=list)
    passed: list[tuple[int, int, int]] = field(default_factory=list)
    passed_again: list[tuple[int, int]] = field(default_factory=list)
    dead: list[tuple[int, int]] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)
    cursors: dict[int, int] = field(default_factory=dict)
    more: bool = False

    def __bool__(self) -> bool:
        return bool(self.messages or self.passed or self.passed_again or self.dead)


class Picker:
    """Chooses messages for Receives. Keeps nothing but whose turn it is."""

    def __init__(
        self,
        messages: Messages,
        delivery: Delivery,
        clock: LeaseClock,
        uncommitted: UncommittedState,
        groups: MessageGroups,
        max_bytes: int,
    ) -> None:
        self._messages = messages
        self._delivery = delivery
        self._clock = clock
        self._uncommitted = uncommitted
        self._groups = groups
        self._max_bytes = max_bytes
        self._turns: dict[tuple[str, str], int] = {}
        self.looks = Looks()

    def forget(self) -> None:
        """Leadership is lost."""
        self._turns.clear()

    def pick(self, call: Receive, queues: int, rules: Rules, kind: type[Job] | None = None) -> Pick:
        """Candidates for one Receive among queues 0 … `queues` − 1. `kind`: the steps of its group; None: those of an ordinary one."""
        turn = self._turns.get((call.group, call.topic), 0)
        if not turn and len(self._turns) >= TURNS_MAX:
            # Members of broadcasting groups come and go under names that clients choose.
            self._turns.clear()
        self._turns[call.group, call.topic] = turn + 1
        job = (kind or Job)(self, call, rules)
        if job.repeats(range(queues)):
            return job.pick
        steps = job.steps(turn % 2 == 0)
        if rules.highest_first:
            looks = [(step, queue) for queue in reversed(range(queues)) for step in steps]
        else:
            looks = [(step, (turn // 2 + i) % queues) for step in steps for i in range(queues)]
        for step, queue in looks:
            if job.full():
                break
            step(queue)
        job.pick.more |= job.looks.used_up
        return job.pick


class Job:
    """One call of `Picker.pick`."""

    def __init__(self, picker: Picker, call: Receive, rules: Rules) -> None:
        self._rules = rules
        self._groups = picker._groups
        self._messages = picker._messages
        self._delivery = picker._delivery
        self._clock = picker._clock
        self._uncommitted = picker._uncommitted
        self._max_bytes = picker._max_bytes
        self._call = call
        self._codes = [self._messages.tags_code(tag) for tag in sorted(call.filter.tags)]
        self._bytes = 0
        self.looks = picker.looks.of_call(call.filter)
        self.pick = Pick()

    def steps(self, again_first: bool) -> list[Callable[[int], None]]:
        """What to do with every queue, one after the other."""
        return [self.visible_again, self.never_leased] if again_first else [self.never_leased, self.visible_again]

    def repeats(self, queues: Sequence[int]) -> bool:
        """Is the Receive to get what it got before, and nothing else?"""
        return False

    def full(self) -> bool:
        return self._served() or self.looks.used_up

    def _served(self) -> bool:
        return len(self.pick.messages) >= self._call.max_messages or self._bytes >= self._max_bytes

    def _key(self, queue: int) -> QueueKey:
        return (self._call.group, self._call.topic, queue)

    def _take(self, queue: int, offset: int, attempt: int, position: int, size: int, *, fresh: bool = False) -> bool:
        """Choose this message if the filter wants it."""
        if not self.looks.matches(self._messages, position, size):
            return False
        self._bytes += size
        if attempt > self._rules.max_attempts:
            self.pick.dead.append((queue, offset))
        else:
            self.pick.messages.append(Picked(queue, offset, attempt, self._messages.record(position, size), fresh))
        return True

    def _consider(self, key: QueueKey, offset: int) -> bool:
        """Decide about a message that is visible again; False if it stays where it is."""
        row = self._delivery.row(key, offset)
        if row is None or self._uncommitted.pending(key, offset) is not None:
            return False
        if row.attempt >= self._rules.max_attempts and not self._rules.burying:
            return False
        queue = key[2]
        positions, sizes, codes = self._messages.units(key[1], queue, offset, 1)
        wanted = not self._codes or int(codes[0]) in self._codes
        if not wanted or not self._take(queue, offset, row.attempt + 1, int(positions[0]), int(sizes[0])):
            self.pick.passed_again.append((queue, offset))
        return True

    def visible_again(self, queue: int) -> None:
        """Redeliveries of one queue."""
        key = self._key(queue)
        for offset in self._clock.ready(key):
            if self.full():
                return
            if self._enough():
                self.pick.more = True
                return
            self._consider(key, offset)

    def _enough(self) -> bool:
        """Is there as much besides messages as one record should say?"""
        return len(self.pick.passed_again) >= SCAN_UNITS or len(self.pick.dead) >= DEAD_LETTERS_A_PICK

    def _start(self, key: QueueKey) -> int:
        """The cursor as of the log's end."""
        pending = self._uncommitted.cursor(key)
        # What is pending may have been planned before a trim was applied.
        return self._delivery.cursor(key) if pending is None else max(pending, self._messages.begin(key[1], key[2]))

    def never_leased(self, queue: int) -> None:
        """New messages of one queue, from its cursor as of the log's end."""
        key = self._key(queue)
        cursor = start = self._start(key)
        end = self._messages.end(key[1], queue)
        if start < end and self._in_flight(key, start) >= IN_FLIGHT_MAX:
            # Looked at again in the next turn: an acknowledgement may have made room.
            self.pick.more = True
            return
        stop = min(end, start + SCAN_UNITS)
        chunk = FIRST_UNITS
        while cursor < stop and not self.full():
            count = min(chunk, stop - cursor)
            cursor = self._scan(queue, cursor, count)
            chunk = SCAN_UNITS
        if cursor > start:
            self.pick.cursors[queue] = cursor
            self.pick.more |= cursor < end and not self.full()

    def _in_flight(self, key: QueueKey, cursor: int) -> int:
        """Rows of a queue, and at most so many more once what is in the log is applied."""
        known = self._delivery.queues.get(key)
        return 0 if known is None else len(known.rows) + cursor - known.cursor

    def _scan(self, queue: int, first: int, count: int) -> int:
        """Look at `count` messages from `first` on; returns the first one not looked at."""
        positions, sizes, codes = self._messages.units(self._call.topic, queue, first, count)
        hits = np.flatnonzero(np.isin(codes, self._codes)).tolist() if self._codes else range(count)
        done = first
        for i in hits:
            if self.full():
                self._pass(queue, done, first + i)
                return first + i
            if self._take(queue, first + i, 1, int(positions[i]), int(sizes[i]), fresh=True):
                self._pass(queue, done, first + i)
                done = first + i + 1
        if self._served():
            return done
        self._pass(queue, done, first + count)
        return first + count

    def _pass(self, queue: int, begin: int, to: int) -> None:
        """The messages begin … to − 1 do not match."""
        passed = self.pick.passed
        if begin >= to:
            return
        if passed and passed[-1][0] == queue and passed[-1][2] == begin:
            passed[-1] = (queue, passed[-1][1], to)
        else:
            passed.append((queue, begin, to))
