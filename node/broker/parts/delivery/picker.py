"""Picks the messages for a Receive: candidates of a (consumer group, topic), decided against the
log's end.

Read-only. Queues are examined in rotating order. Messages that are visible again and messages never
leased take turns at being first, so that neither a poison message nor a flood of new ones starves
the other. A filter is first tested by its tags on the hashes in the consume queue, and then on the
properties in the record; messages that do not match are passed over and thereby consumed for the
group. A message that has used up its group's attempts is picked for the dead-letter topic instead;
if it lies in that very topic, it ends there.

Messages that the same plan appends are picked like those in the consume queue, if no other message
is between the cursor and them: then the lease is in the same batch as its message, behind it. The
record of such a message is read when the batch is applied.

Messages that only the object store has are picked like others once they are at hand
(`tier_messages.py`). A message that is not at hand is asked for and left in place; one that total
retention has removed from the store is passed over.

The number of records read for filters is bounded (`filters.py`). FIFO groups have steps of their
own (`fifo_picker.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ledgermq.node.broker.calls.consumer_calls import Receive
from ledgermq.node.broker.filters.filters import Looks
from ledgermq.node.broker.parts.delivery.delivery import Delivery
from ledgermq.node.broker.parts.delivery.fifo import MessageGroups
from ledgermq.node.broker.parts.delivery.leases import LeaseClock
from ledgermq.node.broker.parts.delivery.tier_messages import TierMessages
from ledgermq.node.broker.plan import Sent
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.broker.uncommitted import UncommittedState
from ledgermq.proto.entries.entry_encoding import entry_bytes
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.types import Draft

SCAN_UNITS = 4096
"""How many units one Receive examines per queue and turn; it continues in the next turn."""
IN_FLIGHT_MAX = 65_536
"""About how many messages of a queue a consumer group may have leased and unacknowledged: each
takes memory on every replica (invariant I11). Beyond that only messages visible again are handed
out."""
FIRST_UNITS = 64
TURNS_MAX = 16_384
"""For how many (consumer group, topic) pairs the rotation is remembered; beyond that all of them
start over."""
DEAD_LETTERS_A_PICK = 64
"""At most this many messages go to the dead-letter topic for one Receive; the others follow in the
next turn."""
NOTHING_SENT: Mapping[int, Sent] = {}


class Picked(NamedTuple):
    """One picked message."""

    queue: int
    offset: int
    attempt: int
    record: bytes
    """Empty if the message is appended by the same plan."""
    fresh: bool = False
    """The message has no row yet."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a pick that depend on the consumer group, the topic and the state of the
    disk."""

    max_attempts: int
    letter: Callable[[QueueKey, int, int], Draft | None] | None = None
    """Makes the dead letter of a message that is in flight under a lease. It returns None for one
    that fits no log file: that message is delivered once more, because it must not be lost. Without
    a function no dead letter can be written now, and messages that used up their attempts stay in
    place."""
    keeps_letters: bool = False
    """The topic is that of the group's own dead letters: a message that used up its attempts ends
    where it is."""
    highest_first: bool = False
    """No message of a queue is picked while a higher queue has some."""


@dataclass(slots=True)
class Pick:
    """The result for one Receive. `passed` are ranges of never leased messages that do not match,
    `passed_again` single offsets of messages visible again that do not match. `dead` are (queue,
    offset, dead letter) of messages that used up their attempts, `waiting` are (queue, offset) of
    new messages that a FIFO group skips.

    `cursors` are the new cursors of the queues touched. `more`: the scan stopped before the end of
    the stored messages. `empty`: as of the log's end no queue that was examined has a visible
    message.
    """

    messages: list[Picked] = field(default_factory=list)
    passed: list[tuple[int, int, int]] = field(default_factory=list)
    passed_again: list[tuple[int, int]] = field(default_factory=list)
    dead: list[tuple[int, int, Draft]] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)
    cursors: dict[int, int] = field(default_factory=dict)
    more: bool = False
    empty: bool = True
    bytes: int = 0
    """Of the records of `messages`."""
    gone: int = 0
    """How many of the passed messages no longer exist."""
    ended: int = 0
    """How many of the passed messages are dead letters that their own group gave up."""
    held: bool = False
    """This Receive waits for messages that it got before and that are not at hand; others may still
    get messages."""

    def __bool__(self) -> bool:
        return bool(self.messages or self.passed or self.passed_again or self.dead)


class Picker:
    """Picks messages for Receives. Its only state is the rotation of queues."""

    def __init__(
        self,
        messages: TierMessages,
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
        """Leadership is lost: forget the rotation."""
        self._turns.clear()

    def pick(
        self,
        call: Receive,
        queues: int,
        rules: Rules,
        kind: type[Job] | None = None,
        known: Iterable[int] | None = None,
        sent: Mapping[int, Sent] = NOTHING_SENT,
    ) -> Pick:
        """Candidates for one Receive from queues 0 … `queues` − 1. `kind`: the steps for its kind
        of group; None: those of an ordinary one. `known`: the only queues that may have a visible
        message; None: all. `sent`: the messages of the topic that the plan appends, by queue."""
        turn = self._turns.get((call.group, call.topic), 0)
        job = (kind or Job)(self, call, rules, sent)
        if job.repeats(range(queues)):
            job.pick.bytes += job.bytes
            return job.pick
        steps = job.steps(turn % 2 == 0)
        order = (
            range(queues - 1, -1, -1)
            if rules.highest_first
            else [(turn // 2 + i) % queues for i in range(queues)]
        )
        if known is not None:
            wanted = {*known, *sent}
            order = [queue for queue in order if queue in wanted]
        if rules.highest_first:
            looks = [(step, queue) for queue in order for step in steps]
        else:
            looks = [(step, queue) for step in steps for queue in order]
        last = -1
        for step, queue in looks:
            # A queue whose messages are not at hand has some, so lower ones wait with it.
            if job.full() or (rules.highest_first and job.absent and queue != last):
                job.pick.empty = False
                break
            step(queue)
            last = queue
        job.pick.more |= job.looks.used_up
        job.pick.bytes += job.bytes
        if job.pick:
            # A Receive that finds nothing does not count: how often queues are examined in vain
            # must not decide who is next.
            if not turn and len(self._turns) >= TURNS_MAX:
                # Members of broadcasting groups come and go under client-chosen names, so this
                # table needs a bound.
                self._turns.clear()
            self._turns[call.group, call.topic] = turn + 1
        return job.pick

    def is_new(self, key: QueueKey) -> bool:
        """Whether the queue has applied messages that its consumer group has not leased yet, as of
        the log's end."""
        return self.start(key) < self._messages.end(key[1], key[2])

    def start(self, key: QueueKey) -> int:
        """The cursor as of the log's end."""
        pending, applied = self._uncommitted.cursor(key), self._delivery.cursor(key)
        # The pending cursor may have been planned before a trim was applied.
        return applied if pending is None else max(pending, applied)


class Job:
    """One call of `Picker.pick`."""

    def __init__(
        self, picker: Picker, call: Receive, rules: Rules, sent: Mapping[int, Sent] = NOTHING_SENT
    ) -> None:
        self._start = picker.start
        self._rules = rules
        self._sent = sent
        self._groups = picker._groups
        self._messages = picker._messages
        self._delivery = picker._delivery
        self._clock = picker._clock
        self._uncommitted = picker._uncommitted
        self._max_bytes = picker._max_bytes
        self._call = call
        self._codes = [self._messages.tags_code(tag) for tag in sorted(call.filter.tags)]
        self.bytes = 0
        """Of the records of all messages picked, dead ones included."""
        self.looks = picker.looks.of_call(call.filter)
        self.absent = 0
        """How often a message was not at hand."""
        self.pick = Pick()

    def steps(self, again_first: bool) -> list[Callable[[int], None]]:
        """The steps to run on each queue, in order."""
        return (
            [self.visible_again, self.never_leased]
            if again_first
            else [self.never_leased, self.visible_again]
        )

    def repeats(self, queues: Sequence[int]) -> bool:
        """Whether the Receive gets exactly what an earlier attempt got."""
        return False

    def full(self) -> bool:
        return self._served() or self.looks.used_up

    def _served(self) -> bool:
        return len(self.pick.messages) >= self._call.max_messages or self.bytes >= self._max_bytes

    def _key(self, queue: int) -> QueueKey:
        return (self._call.group, self._call.topic, queue)

    def _take(
        self,
        queue: int,
        offset: int,
        attempt: int,
        position: int,
        size: int,
        *,
        fresh: bool = False,
    ) -> bool:
        """Pick this message if it matches the filter. Returns whether it does."""
        if not self.looks.matches(self._messages, position, size):
            return False
        self._add(queue, offset, attempt, position, size, fresh=fresh)
        return True

    def _add(
        self,
        queue: int,
        offset: int,
        attempt: int,
        position: int,
        size: int,
        *,
        fresh: bool = False,
    ) -> None:
        self.bytes += size
        self.pick.messages.append(
            Picked(queue, offset, attempt, self._messages.record(position, size), fresh)
        )

    def _consider(self, key: QueueKey, offset: int) -> bool:
        """Decide about a message that is visible again. Returns False if it stays in place."""
        row = self._delivery.row(key, offset)
        if row is None or self._uncommitted.pending(key, offset) is not None:
            return False
        exhausted, letter_of, queue = (
            row.attempt >= self._rules.max_attempts,
            self._rules.letter,
            key[2],
        )
        if exhausted and self._rules.keeps_letters:
            self.pick.passed_again.append((queue, offset))
            self.pick.ended += 1
            return True
        if exhausted and letter_of is None:
            return False
        if not self._at_hand(queue, offset):
            if self._messages.gone_to(key[1], queue, offset) == offset:
                self._ask_for(queue, offset)
                return False
            self.pick.passed_again.append((queue, offset))
            self.pick.gone += 1
            return True
        positions, sizes, codes = self._messages.units(key[1], queue, offset, 1)
        position, size = int(positions[0]), int(sizes[0])
        wanted = not self._codes or int(codes[0]) in self._codes
        if not wanted or not self.looks.matches(self._messages, position, size):
            self.pick.passed_again.append((queue, offset))
        elif (
            exhausted
            and letter_of is not None
            and (letter := letter_of(key, offset, row.lease)) is not None
        ):
            self.bytes += size
            self.pick.bytes -= size
            self.pick.dead.append((queue, offset, letter))
        else:
            self._add(queue, offset, row.attempt + 1, position, size)
        return True

    def visible_again(self, queue: int) -> None:
        """Pick redeliveries from one queue."""
        key = self._key(queue)
        begin, absent = self._messages.begin(key[1], queue), self.absent
        for offset in self._clock.ready(key):
            if offset < begin and self.absent > absent:
                # One message of a queue is asked for at a time. While it does not come, the others
                # must not cost every turn.
                continue
            # Also if it is taken: until that is applied, nothing tells apart what else is visible
            # again.
            self.pick.empty = False
            if self.full():
                return
            if self._enough():
                self.pick.more = True
                return
            self._consider(key, offset)

    def _at_hand(self, queue: int, offset: int) -> int:
        """How many consecutive messages are at hand from this one on."""
        return self._messages.at_hand(self._call.topic, queue, offset) - offset

    def _ask_for(self, queue: int, offset: int) -> None:
        """The object store may have this message. The Receive is examined again when that is
        known."""
        self._messages.want(self._key(queue), offset)
        self.pick.empty = False
        self.absent += 1

    def _enough(self) -> bool:
        """Whether the pick already has as many skipped and dead messages as one record should
        contain."""
        return (
            len(self.pick.passed_again) >= SCAN_UNITS or len(self.pick.dead) >= DEAD_LETTERS_A_PICK
        )

    def never_leased(self, queue: int) -> None:
        """Pick new messages from one queue, from its cursor as of the log's end."""
        key = self._key(queue)
        cursor = start = self._start(key)
        end = self._messages.end(key[1], queue)
        sent = self._sent.get(queue)
        if start >= end and sent is None:
            return
        if self._in_flight(key, start) >= IN_FLIGHT_MAX:
            # Examined again in the next turn, because an acknowledgement may have freed a place.
            self.pick.more |= start < end
            self.pick.empty &= start >= end
            return
        stop = min(end, start + SCAN_UNITS)
        chunk = FIRST_UNITS
        absent = self.absent
        while cursor < stop and not self.full():
            count = min(chunk, stop - cursor, self._at_hand(queue, cursor))
            if count:
                cursor = self._scan(queue, cursor, count)
                chunk = SCAN_UNITS
            elif (gone := self._messages.gone_to(key[1], queue, cursor)) > cursor:
                self._pass(queue, cursor, gone)
                self.pick.gone += gone - cursor
                cursor = gone
            else:
                self._ask_for(queue, cursor)
                break
        if sent is not None and max(end, sent.first) <= cursor:
            cursor = self._take_sent(queue, cursor, sent)
        if cursor > start:
            self.pick.cursors[queue] = cursor
            self.pick.more |= cursor < end and not self.full() and self.absent == absent
        self.pick.empty &= cursor >= end

    def _take_sent(self, queue: int, first: int, sent: Sent) -> int:
        """Pick from the messages that the plan appends to this queue, from offset `first` on.
        Returns the offset of the first one not examined."""
        fixed = entry_bytes(self._call.topic, 0, 0) - HEADER_BYTES
        for offset in range(first, sent.end):
            if self.full():
                return offset
            draft = sent.drafts[offset - sent.first]
            if self._wants(draft):
                self.bytes += fixed + len(draft.body) + len(draft.properties)
                self.pick.messages.append(Picked(queue, offset, 1, b"", fresh=True))
            else:
                self._pass(queue, offset, offset + 1)
        return max(first, sent.end)

    def _wants(self, draft: Draft) -> bool:
        if self._codes and draft.tags_code not in self._codes:
            return False
        return self.looks.matches_properties(draft.properties, len(draft.body))

    def _in_flight(self, key: QueueKey, cursor: int) -> int:
        """An upper bound of a queue's rows once all entries in the log are applied."""
        known = self._delivery.queues.get(key)
        return 0 if known is None else len(known.rows) + cursor - known.cursor

    def _scan(self, queue: int, first: int, count: int) -> int:
        """Examine `count` messages from `first` on. Returns the offset of the first one not
        examined."""
        positions, sizes, codes = self._messages.units(self._call.topic, queue, first, count)
        if not self._codes and not self.looks.reads:
            return self._take_all(queue, first, positions.tolist(), sizes.tolist())
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

    def _take_all(
        self, queue: int, first: int, positions: Sequence[int], sizes: Sequence[int]
    ) -> int:
        """`_scan` for a filter that matches every message."""
        picked, most = self.pick.messages, self._call.max_messages
        read = self._messages.reader(self._call.topic, queue, first)
        offset = first
        for position, size in zip(positions, sizes, strict=True):
            if len(picked) >= most or self.bytes >= self._max_bytes:
                break
            self.bytes += size
            picked.append(Picked(queue, offset, 1, read(position, size), True))
            offset += 1
        return offset

    def _pass(self, queue: int, begin: int, to: int) -> None:
        """Pass over the messages begin … to − 1, which do not match."""
        passed = self.pick.passed
        if begin >= to:
            return
        if passed and passed[-1][0] == queue and passed[-1][2] == begin:
            passed[-1] = (queue, passed[-1][1], to)
        else:
            passed.append((queue, begin, to))
