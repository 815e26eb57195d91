"""Delivery (POP) as a state machine fed by the log: what every replica of a broker group knows
about leases.

This is the replicated half: `apply_lease`, `apply_ack`, `apply_change`, `apply_reset`,
`apply_resent` and `raise_cursors` are pure functions of (state, record, index), with the same
result on leader and followers and after a restart (invariant I8). The leader alone has clocks and
waiting clients, and decides what is expired, who is next, and what is still uncommitted
(`leases.py`, `plan.py`).

State per (consumer group, stored topic, queue): a cursor, which is the next queue offset never
examined, and one row for every offset below it that is not done. Memory is bounded by the messages
in flight (I11): a message that is done, or beyond the cursor, has no row. A row is a lease number,
an attempt and the number of its *terms*, which it shares with all rows that have equal ones: about
twenty bytes, in columns (`offset_table.py`). Facts that few rows have, or that many rows share,
belong in the terms.

Transition table of one (group, topic, queue, offset). `n` is a lease number, `a` an attempt, `i`
the index of the record's entry:

    record names the offset     new (>= cursor)   waiting           leased (n, a)             done (< cursor, no row)
    --------------------------  ----------------  ----------------  ------------------------  -----------------------
    lease `q` with attempt b    leased (i, b)     leased (i, b)     leased (i, b)             -
    lease `w`, jumped over      waiting           -                 -                         -
    lease `s`, passed over      done              -                 -                         -
    lease `x`, passed over      -                 done              done                      -
    ack of lease m              -                 -                 done if m = n, else -     -
    change of lease m           -                 -                 leased (i, a) if m = n    -
    dead letter of lease m      -                 -                 done if m = n, else -     -
    letters, resent             -                 -                 -                         leased (i, 0), ended
    reset to it or below        new               new               new                       new
    reset to above it           done              done              done                      done
    trim to above it            done              done              done                      done

`-` changes nothing. A trim whose files the object store has changes nothing either. A lease that
ends without its acknowledgement becomes a lapsed one (`lapsed_leases.py`), so that for a message
that is done, the handle that acknowledged it can be recognised. A lease record moves the cursor
behind the highest offset that it names; offsets that it skips without naming them are done. Only
FIFO groups have waiting messages: those were never delivered, and an earlier message of their
message group is not done. The row of a waiting message is a lease with number 0 and attempt 0,
expired from the beginning. The message itself contains its message group; the leader decides
whether one message locks another (`fifo.py`). A dead letter is not a control record: the copy in
the dead-letter topic is itself the mark.

Expiry is not in this table, because it is not an event in the log. An expired lease stays leased
until a lease record leases the message again, an acknowledgement that was accepted in time ends it,
a filter passes it over, or the leader makes a dead letter of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ledgermq.node.broker.packed import pack, unpack
from ledgermq.node.broker.part import Effects, StatePart, Takers
from ledgermq.node.broker.parts.delivery.lapsed_leases import Lapsed
from ledgermq.node.broker.parts.delivery.offset_table import OffsetTable
from ledgermq.node.broker.queues import QueueKey, Touched
from ledgermq.proto.names import base_group, parent_of
from ledgermq.proto.records import control
from ledgermq.proto.types import GroupConfig

_COLUMNS = "qii"
LEASE, ATTEMPT, TERMS = 1, 2, 3
"""Columns of a row."""


class Terms(NamedTuple):
    """The common facts of a lease's rows. `duration_ms` None: the lease is auto-renewed while its
    client is alive. `attempt_id`: that of the Receive, in a FIFO group."""

    client: str
    duration_ms: int | None
    attempt_id: str = ""


WAITING = Terms("", 0)
RESENT = Terms("", 0)
"""Of a message whose dead letter was resent: a lease that no client holds and that has ended."""


class Row(NamedTuple):
    """One message in flight. A waiting one has the lease number 0."""

    lease: int
    attempt: int
    client: str
    duration_ms: int | None
    attempt_id: str = ""


class TermsTable:
    """Terms by number, each stored once, while rows refer to them. The numbers are local to this
    replica."""

    def __init__(self) -> None:
        self._numbers: dict[Terms, int] = {}
        self._terms: list[Terms] = []
        self._rows: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Terms:
        return self._terms[number]

    def take(self, terms: Terms, rows: int = 1) -> int:
        """The number of these terms, to which `rows` more rows refer from now on."""
        number = self._numbers.get(terms)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._terms[number], self._rows[number] = terms, 0
            else:
                number = len(self._terms)
                self._terms.append(terms)
                self._rows.append(0)
            self._numbers[terms] = number
        self._rows[number] += rows
        return number

    def drop(self, number: int, rows: int = 1) -> None:
        """`rows` fewer rows refer to these terms."""
        self._rows[number] -= rows
        if not self._rows[number]:
            del self._numbers[self._terms[number]]
            self._free.append(number)


class QueueRows:
    """Delivery state of one (group, topic, queue)."""

    __slots__ = ("cursor", "rows")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.rows = OffsetTable(_COLUMNS)
        """By offset: lease, attempt, number of the terms."""

    def __repr__(self) -> str:
        return f"QueueRows(cursor={self.cursor}, in_flight={len(self.rows)})"


class Delivery(StatePart):
    """The delivery state of one broker group. `begin(topic, queue)`: the lowest position of a group
    in a queue."""

    KEY = "delivery"

    def __init__(self, begin: Callable[[str, int], int]) -> None:
        self._begin = begin
        self.terms = TermsTable()
        self.queues: dict[QueueKey, QueueRows] = {}
        self.lapsed = Lapsed()
        self.in_flight = 0
        """The number of rows: messages leased and not done, with expired leases, and waiting
        ones."""

    def cursor(self, key: QueueKey) -> int:
        """The next queue offset never leased; the beginning of the queue for a group that has never
        read from it."""
        queue = self.queues.get(key)
        return self._begin(key[1], key[2]) if queue is None else queue.cursor

    def row(self, key: QueueKey, offset: int) -> Row | None:
        """The row of a message in flight; None if it is new or done."""
        queue = self.queues.get(key)
        found = None if queue is None else queue.rows.find(offset)
        if found is None:
            return None
        (_, leases, attempts, numbers), at = found
        terms = self.terms[numbers[at]]
        return Row(
            lease=leases[at],
            attempt=attempts[at],
            client=terms.client,
            duration_ms=terms.duration_ms,
            attempt_id=terms.attempt_id,
        )

    def lease(self, key: QueueKey, offset: int) -> int | None:
        """The lease number of a message in flight; None if it is new or done."""
        queue = self.queues.get(key)
        found = None if queue is None else queue.rows.find(offset)
        return None if found is None else found[0][LEASE][found[1]]

    def acknowledged(self, key: QueueKey, offset: int, lease: int) -> bool:
        """Whether the message is done because this very lease was acknowledged. Also False if that
        is no longer remembered."""
        queue = self.queues.get(key)
        done = queue is not None and offset < queue.cursor and offset not in queue.rows
        return done and not self.lapsed.has(key, offset, lease)

    def waiting(self, key: QueueKey) -> list[int]:
        """Offsets of messages that wait for an earlier message of their message group,
        ascending."""
        queue = self.queues.get(key)
        if queue is None:
            return []
        columns = queue.rows.columns()
        found: list[int] = columns[0][columns[LEASE] == 0].tolist()
        return found

    # What records do

    def take_lease(self, index: int, record: control.LeaseRecord, effects: Effects) -> None:
        effects.touched += self.apply_lease(
            index,
            record.group,
            record.topic,
            record.client,
            record.duration_ms,
            leased=record.leased,
            passed=record.passed,
            passed_again=record.passed_again,
            waiting=record.waiting,
            attempt_id=record.attempt_id,
        )

    def take_acks(self, index: int, record: control.AckRecord, effects: Effects) -> None:
        effects.touched += self.apply_ack(record.acks)

    def take_changes(self, index: int, record: control.ChangeRecord, effects: Effects) -> None:
        effects.touched += self.apply_change(index, record.changes)

    RECORDS: ClassVar[Takers] = {
        control.LeaseRecord: take_lease,
        control.AckRecord: take_acks,
        control.ChangeRecord: take_changes,
    }

    def trimmed(self, effects: Effects) -> None:
        effects.touched += self.raise_cursors()

    def group_changed(self, group: str, config: GroupConfig | None, effects: Effects) -> None:
        """A consumer group, or a member of one, that is created again starts from the beginning."""
        if config is None:
            effects.touched += self.forget(
                [key for key in self.queues if group in (key[0], base_group(key[0]))]
            )

    def topic_ended(self, topic: str, effects: Effects) -> None:
        """No group has read anything of the topic's next incarnation, or of its lite topics."""
        effects.touched += self.forget([key for key in self.queues if parent_of(key[1]) == topic])

    def _queue(self, key: QueueKey) -> QueueRows:
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = QueueRows(self._begin(key[1], key[2]))
        return queue

    def _put(
        self, key: QueueKey, queue: QueueRows, offset: int, lease: int, attempt: int, terms: Terms
    ) -> None:
        """Set the row of an offset, whether or not it has one."""
        found = queue.rows.find(offset)
        number = self.terms.take(terms)
        if found is None:
            queue.rows.put(offset, lease, attempt, number)
            self.in_flight += 1
            return
        (_, leases, attempts, numbers), at = found
        self._lapse(key, offset, leases[at])
        self.terms.drop(numbers[at])
        leases[at], attempts[at], numbers[at] = lease, attempt, number

    def _lapse(self, key: QueueKey, offset: int, lease: int) -> None:
        # A waiting message has no lease.
        if lease:
            self.lapsed.add(key, offset, lease)

    def _remove(self, key: QueueKey, offset: int, *, lapses: bool) -> None:
        """The message, if in flight, is done. `lapses`: for another reason than the acknowledgement
        of its lease."""
        queue = self.queues[key]
        found = queue.rows.find(offset)
        if found is not None:
            chunk, at = found
            _, leases, _, numbers = chunk
            if lapses:
                self._lapse(key, offset, leases[at])
            self.terms.drop(numbers[at])
            queue.rows.remove(offset, chunk, at)
            self.in_flight -= 1

    def _clear(self, key: QueueKey, queue: QueueRows) -> Touched:
        """Remove all rows of a queue; returns them."""
        offsets, leases, _, terms = queue.rows.columns()
        for offset, lease in zip(offsets.tolist(), leases.tolist(), strict=True):
            self._lapse(key, offset, lease)
        for number, rows in zip(*np.unique(terms, return_counts=True), strict=True):
            self.terms.drop(int(number), int(rows))
        self.in_flight -= len(queue.rows)
        queue.rows.clear()
        return [(key, offsets.tolist())] if len(offsets) else []

    def apply_lease(
        self,
        index: int,
        group: str,
        topic: str,
        client: str,
        duration_ms: int | None,
        leased: Iterable[tuple[int, Sequence[int], Sequence[int]]],
        passed: Iterable[tuple[int, int, int]],
        passed_again: Iterable[tuple[int, Sequence[int]]],
        waiting: Iterable[tuple[int, Sequence[int]]] = (),
        attempt_id: str = "",
    ) -> Touched:
        """Apply a `lease` record: `leased`, `passed`, `passed_again` and `waiting` are its fields
        q, s, x and w (format §11)."""
        touched: Touched = []
        cursors: dict[QueueKey, int] = {}
        terms = Terms(client, duration_ms, attempt_id)
        for queue_id, offsets, attempts in leased:
            key = (group, topic, queue_id)
            queue = self._queue(key)
            touched.append((key, offsets))
            if self._is_all_new(queue, offsets) and len(attempts) == len(offsets):
                # Nearly every lease. Row by row it would have the same effect.
                count = len(offsets)
                queue.rows.extend(
                    offsets, [index] * count, attempts, [self.terms.take(terms, count)] * count
                )
                self.in_flight += count
                cursors[key] = max(cursors.get(key, 0), offsets[-1] + 1)
                continue
            for offset, attempt in zip(offsets, attempts, strict=True):
                if offset >= queue.cursor:
                    cursors[key] = max(cursors.get(key, 0), offset + 1)
                elif offset not in queue.rows:
                    continue
                self._put(key, queue, offset, lease=index, attempt=attempt, terms=terms)
        for queue_id, offsets in waiting:
            key = (group, topic, queue_id)
            queue = self._queue(key)
            touched.append((key, offsets))
            for offset in offsets:
                if offset >= queue.cursor:
                    cursors[key] = max(cursors.get(key, 0), offset + 1)
                    self._put(key, queue, offset, lease=0, attempt=0, terms=WAITING)
        for queue_id, _, to in passed:
            key = (group, topic, queue_id)
            cursors[key] = max(cursors.get(key, 0), to)
        for queue_id, offsets in passed_again:
            key = (group, topic, queue_id)
            self._queue(key)
            touched.append((key, offsets))
            for offset in offsets:
                self._remove(key, offset, lapses=True)
        for key, cursor in cursors.items():
            queue = self._queue(key)
            queue.cursor = max(queue.cursor, cursor)
        return touched

    @staticmethod
    def _is_all_new(queue: QueueRows, offsets: Sequence[int]) -> bool:
        """Whether these are messages that were never leased, in ascending order, and none behind
        them has a row."""
        return bool(offsets) and offsets[0] >= queue.cursor and queue.rows.takes_behind(offsets)

    def apply_ack(
        self, acks: Iterable[tuple[str, str, int, Sequence[int], Sequence[int]]]
    ) -> Touched:
        """Apply an `ack` record: (group, topic, queue, offsets, lease numbers) each."""
        touched: Touched = []
        for group, topic, queue_id, offsets, leases in acks:
            key = (group, topic, queue_id)
            touched.append((key, offsets))
            queue = self.queues.get(key)
            for offset, lease in zip(offsets, leases, strict=True):
                found = None if queue is None else queue.rows.find(offset)
                if queue is not None and found is not None and found[0][LEASE][found[1]] == lease:
                    chunk, at = found
                    self.terms.drop(chunk[TERMS][at])
                    queue.rows.remove(offset, chunk, at)
                    self.in_flight -= 1
        return touched

    def apply_dead_letter(self, key: QueueKey, offset: int, lease: int) -> Touched:
        """Apply a dead letter: a copy of the message, made under this lease, is in the dead-letter
        topic."""
        if self.lease(key, offset) == lease:
            self._remove(key, offset, lapses=True)
        return [(key, (offset,))]

    def apply_change(
        self, index: int, changes: Iterable[tuple[str, str, int, int, int, int, str]]
    ) -> Touched:
        """Apply a `change` record: (group, topic, queue, offset, old lease, duration in ms, client)
        each."""
        touched: Touched = []
        for group, topic, queue_id, offset, lease, duration_ms, client in changes:
            key = (group, topic, queue_id)
            touched.append((key, (offset,)))
            row = self.row(key, offset)
            if row is not None and row.lease == lease:
                self._put(
                    key,
                    queue=self.queues[key],
                    offset=offset,
                    lease=index,
                    attempt=row.attempt,
                    terms=Terms(client, duration_ms),
                )
        return touched

    def holds(self, key: QueueKey, offset: int) -> bool:
        """Whether the group has a position in the queue, and the message can still be delivered, as
        far as the log says."""
        return key in self.queues and offset >= self._begin(key[1], key[2])

    def is_done(self, key: QueueKey, offset: int) -> bool:
        """Whether the message is done for the group, and can still be delivered, as far as the log
        says."""
        return (
            self.holds(key, offset)
            and offset < self.queues[key].cursor
            and offset not in self.queues[key].rows
        )

    def apply_resent(self, index: int, key: QueueKey, offset: int) -> Touched:
        """The dead letter of this message was resent: if the message is done, the group gets it
        again, with all its attempts."""
        if self.is_done(key, offset):
            self._put(
                key, queue=self.queues[key], offset=offset, lease=index, attempt=0, terms=RESENT
            )
        return [(key, (offset,))]

    def apply_reset(self, group: str, topic: str, queues: Iterable[tuple[int, int]]) -> Touched:
        """Apply a `reset` record: (queue, new cursor) each. All rows of these queues are removed,
        below the cursor and above."""
        touched: Touched = []
        for queue_id, cursor in queues:
            key = (group, topic, queue_id)
            queue = self._queue(key)
            touched += self._clear(key, queue)
            # What can no longer be delivered stays done.
            queue.cursor = max(cursor, self._begin(topic, queue_id))
        return touched

    def meet(self, key: QueueKey, cursor: int) -> None:
        """A group starts to read a queue at `cursor`, unless it has already started."""
        if key not in self.queues:
            self.queues[key] = QueueRows(cursor)

    def leave(self, key: QueueKey) -> None:
        """Forget a group's cursor in a queue, unless the group has messages in flight there."""
        queue = self.queues.get(key)
        if queue is not None and not len(queue.rows):
            del self.queues[key]

    def raise_cursors(self) -> Touched:
        """Positions of groups begin at higher offsets: all messages below are done for every
        group."""
        touched: Touched = []
        for key, queue in self.queues.items():
            begin = self._begin(key[1], key[2])
            if below := queue.rows.below(begin):
                touched.append((key, below))
            queue.cursor = max(queue.cursor, begin)
        # Lapsed leases are forgotten in order, so the order must not depend on which queue this
        # replica met first.
        touched.sort(key=lambda item: item[0])
        for key, offsets in touched:
            for offset in offsets:
                self._remove(key, offset, lapses=True)
        return touched

    def forget(self, keys: list[QueueKey]) -> Touched:
        """Forget groups' cursors and rows in these queues."""
        touched: Touched = []
        for key in sorted(keys):
            queue = self.queues.pop(key)
            touched += self._clear(key, queue)
        return touched

    def export(self) -> dict[str, Any]:
        """The state as JSON values (format §11): group → topic → queue → [cursor, columns of the
        rows]."""
        out: dict[str, Any] = {}
        for key in sorted(self.queues):
            group, topic, queue_id = key
            queue = self.queues[key]
            out.setdefault(group, {}).setdefault(topic, {})[str(queue_id)] = [
                queue.cursor,
                self._export_rows(queue.rows),
            ]
        return out

    def _export_rows(self, rows: OffsetTable) -> dict[str, Any]:
        offsets, leases, attempts, numbers = rows.columns()
        # Numbers of terms are local to this replica, so the snapshot renumbers them in order of
        # first use.
        known, first, place = np.unique(numbers, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return {
            "o": pack(offsets, "q"),
            "l": pack(leases, "q"),
            "a": pack(attempts, "i"),
            "k": pack(rank[place], "i"),
            "terms": [_export_terms(self.terms[int(number)]) for number in known[order]],
        }

    def values(self) -> dict[str, Any]:
        return {**super().values(), "lapsed": self.lapsed.export()}

    def load(self, snapshot: Mapping[str, Any]) -> None:
        lapsed = snapshot.get("lapsed")
        # Before version 5, lapsed leases were not stored: no lease from before is known to be
        # acknowledged.
        self.restore(
            snapshot[self.KEY],
            Lapsed(snapshot["applied_index"]) if lapsed is None else Lapsed.restored(lapsed),
        )

    def restore(self, exported: dict[str, Any], lapsed: Lapsed | None = None) -> None:
        """Replace the state by what `export` returned, and by these lapsed leases."""
        lapsed = Lapsed() if lapsed is None else lapsed
        self.queues = {}
        self.lapsed = lapsed
        self.terms = TermsTable()
        self.in_flight = 0
        for group, topics in exported.items():
            for topic, queues in topics.items():
                for queue_id, (cursor, rows) in queues.items():
                    key = (group, topic, int(queue_id))
                    queue = self.queues[key] = QueueRows(cursor)
                    if isinstance(rows, list):
                        # The older form, before columns: one list per row.
                        for offset, lease, attempt, client, duration_ms in rows:
                            self._put(
                                key, queue, offset, lease, attempt, terms=Terms(client, duration_ms)
                            )
                    else:
                        self._restore_rows(queue.rows, rows)

    def _restore_rows(self, rows: OffsetTable, exported: dict[str, Any]) -> None:
        offsets, leases = unpack(exported["o"], "q"), unpack(exported["l"], "q")
        attempts, ranks = unpack(exported["a"], "i"), unpack(exported["k"], "i")
        counts = np.bincount(ranks, minlength=len(exported["terms"])).tolist()
        numbers = [
            self.terms.take(_read_terms(terms), rows)
            for terms, rows in zip(exported["terms"], counts, strict=True)
        ]
        rows.load(offsets, leases, attempts, np.array(numbers, np.int32)[ranks])
        self.in_flight += len(rows)


def _export_terms(terms: Terms) -> list[Any]:
    return list(terms if terms.attempt_id else terms[:2])


def _read_terms(fields: list[Any]) -> Terms:
    client, duration_ms, *attempt_id = fields
    return Terms(client, duration_ms, attempt_id[0] if attempt_id else "")
