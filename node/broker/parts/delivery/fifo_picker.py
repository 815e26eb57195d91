"""Picks messages for a Receive of a FIFO consumer group: from each message group the messages that
are not done, in queue order.

Read-only like `picker.py`, whose steps it replaces. In each message group it takes the lowest
messages first and stops at the first one that is leased, or about which an entry in the log is not
applied yet. Messages that were handed out come again without any that never were: until all of them
are done, the others wait. The log says which were handed out: those have an attempt of at least 1
(`delivery.py`).

New messages of a locked message group are skipped: they get rows that wait, but only if a message
behind them is taken, so that a backlog of one message group writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ledgermq.node.broker.calls.consumer_calls import Receive
from ledgermq.node.broker.parts.delivery.fifo import LOOK_AHEAD, ROWS_MAX, QueueOrder
from ledgermq.node.broker.parts.delivery.picker import (
    FIRST_UNITS,
    NOTHING_SENT,
    SCAN_UNITS,
    Job,
    Picker,
    Rules,
)
from ledgermq.node.broker.plan import Sent
from ledgermq.node.broker.queues import QueueKey


class FifoJob(Job):
    """One call of `Picker.pick` for a FIFO group."""

    def __init__(
        self, picker: Picker, call: Receive, rules: Rules, sent: Mapping[int, Sent] = NOTHING_SENT
    ) -> None:
        super().__init__(picker, call, rules, sent)
        # A locked message group is no message that is visible, but unlocks without a lease that
        # ends.
        self.pick.empty = False
        self._opened: set[tuple[int, str]] = set()
        """(queue, message group) pairs whose rows are all in this pick, and none of them comes
        again."""
        self._waiting: set[tuple[int, str]] = set()
        """(queue, message group) pairs with messages that wait from this pick on."""
        self._unknown = False
        """Whether a message that an earlier attempt got is not at hand."""

    def steps(self, again_first: bool) -> list[Callable[[int], None]]:
        """The steps per queue. Behind messages that waited there may be new messages of the same
        message group."""
        return (
            [self.visible_again, self.never_leased]
            if again_first
            else [self.never_leased, self.visible_again, self.never_leased]
        )

    def repeats(self, queues: Sequence[int]) -> bool:
        """Return the messages that an earlier Receive with this attempt id got, if they are still
        leased: its answer was lost. While one of them is not at hand, none is returned, and no
        other message."""
        if self._call.attempt_id:
            for queue in queues:
                self._repeat(self._key(queue))
        if self._unknown:
            self.pick.messages.clear()
            self.pick.held = True
        return self._unknown or bool(self.pick.messages)

    def _repeat(self, key: QueueKey) -> None:
        order = self._groups.order(key)
        if order is None:
            rows = [self._delivery.row(key, offset) for offset in self._groups.unnamed(key)]
            self._unknown |= any(
                row is not None and row.attempt_id == self._call.attempt_id for row in rows
            )
            return
        ready = set(self._clock.ready(key))
        for head in order.heads():
            for offset in order.groups[str(order.name(head))]:
                row = self._delivery.row(key, offset)
                if self.full() or row is None or row.attempt_id != self._call.attempt_id:
                    break
                if offset in ready or self._uncommitted.pending(key, offset) is not None:
                    break
                if not self._at_hand(key[2], offset):
                    if self._messages.gone_to(key[1], key[2], offset) == offset:
                        self._ask_for(key[2], offset)
                        self._unknown = True
                    break
                positions, sizes, _ = self._messages.units(key[1], key[2], offset, 1)
                self._take(key[2], offset, row.attempt, int(positions[0]), int(sizes[0]))

    def visible_again(self, queue: int) -> None:
        """In each message group whose lowest message is visible: take it and those behind it, up to
        the first that is leased. If it comes again, take none that was never handed out."""
        key = self._key(queue)
        ready = set(self._clock.ready(key))
        if not ready:
            return
        order = self._groups.order(key)
        if order is None:
            return
        begin, absent = self._messages.begin(key[1], queue), self.absent
        for head in order.heads():
            if head < begin and self.absent > absent:
                # One message of a queue is asked for at a time. While it does not come, the others
                # must not cost every turn.
                continue
            if self.full():
                return
            if self._enough():
                self.pick.more = True
                return
            if head in ready:
                name = str(order.name(head))
                self._take_group(key, name, order.groups[name], ready)

    def _take_group(
        self, key: QueueKey, name: str, offsets: Sequence[int], ready: set[int]
    ) -> None:
        again: bool | None = None
        for offset in offsets:
            row, taken = self._delivery.row(key, offset), len(self.pick.messages)
            # Otherwise it waits, or was resent from the dead letters.
            handed_out = row is not None and row.attempt > 0
            if (
                self.full()
                or self._enough()
                or offset not in ready
                or again not in (None, handed_out)
            ):
                return
            if not self._consider(key, offset):
                return
            if len(self.pick.messages) > taken:
                again = handed_out
        if not again:
            self._opened.add((key[2], name))

    def never_leased(self, queue: int) -> None:
        """Take new messages of unlocked message groups, from the cursor as of the log's end."""
        key = self._key(queue)
        order = self._groups.order(key)
        if order is None:
            self.absent += 1
            return
        start = self.pick.cursors.get(queue, self._start(key))
        end = self._messages.end(key[1], queue)
        order.tidy(start)
        if start >= end or self._in_flight(key, start) >= ROWS_MAX:
            return
        scan = _Scan(start)
        stop = min(end, start + SCAN_UNITS)
        chunk = FIRST_UNITS
        while scan.next < stop and not self.full() and scan.waits < LOOK_AHEAD:
            count = min(chunk, stop - scan.next, self._at_hand(queue, scan.next))
            if count:
                self._scan_new(order, queue, scan, count)
                chunk = SCAN_UNITS
            elif (gone := self._messages.gone_to(key[1], queue, scan.next)) > scan.next:
                self.pick.gone += gone - scan.next
                scan.pass_over(gone - scan.next)
            else:
                self._ask_for(queue, scan.next)
                break
        self._settle(order, queue, scan, end)

    def _scan_new(self, order: QueueOrder, queue: int, scan: _Scan, count: int) -> None:
        positions, sizes, codes = self._messages.units(self._call.topic, queue, scan.next, count)
        wanted = set(self._codes)
        for position, size, code in zip(
            positions.tolist(), sizes.tolist(), codes.tolist(), strict=True
        ):
            if self.full() or scan.waits >= LOOK_AHEAD:
                return
            offset = scan.next
            if wanted and code not in wanted:
                scan.pass_over()
                continue
            name = order.name(offset)
            if name is None:
                name = self._messages.message_group(position, size)
                order.note(offset, name)
            group = (queue, name)
            if group in self._waiting or (name in order.groups and group not in self._opened):
                scan.wait()
            elif self._take(queue, offset, 1, position, size, fresh=True):
                scan.take()
            else:
                scan.pass_over()

    def _settle(self, order: QueueOrder, queue: int, scan: _Scan, end: int) -> None:
        """Keep the decisions up to the last message taken or passed over. Waiting messages behind
        it are examined again next time."""
        scan.cut()
        if scan.next > scan.first:
            self.pick.cursors[queue] = scan.next
            for begin, to in scan.passed:
                self._pass(queue, begin, to)
            self.pick.waiting += [(queue, offset) for offset in scan.waiting]
            self._waiting.update((queue, str(order.name(offset))) for offset in scan.waiting)
            self.pick.more |= scan.next < end and not self.full() and scan.scanned >= SCAN_UNITS


class _Scan:
    """A pass over new messages, with the decision about each."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.next = first
        """The first message without a decision."""
        self.scanned = 0
        self.waits = 0
        """How many consecutive messages, up to here, are locked."""
        self.waiting: list[int] = []
        self.passed: list[tuple[int, int]] = []

    def take(self) -> None:
        self._step()

    def pass_over(self, count: int = 1) -> None:
        if self.passed and self.passed[-1][1] == self.next:
            self.passed[-1] = (self.passed[-1][0], self.next + count)
        else:
            self.passed.append((self.next, self.next + count))
        self._step(count)

    def _step(self, count: int = 1) -> None:
        self.next += count
        self.scanned += count
        self.waits = 0

    def wait(self) -> None:
        self.waiting.append(self.next)
        self.next += 1
        self.scanned += 1
        self.waits += 1

    def cut(self) -> None:
        """Forget the trailing messages that only wait."""
        if self.waits:
            del self.waiting[-self.waits :]
            self.next -= self.waits
