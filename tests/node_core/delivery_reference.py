"""A minimal reference model of delivery: each message is judged by the records in the committed log
and by a clock.

It does not use the core's classes. Every decision of a leader is in the log; a decision that breaks
a rule of the contract raises an AssertionError. The rules cover leases, attempts, order within
message groups, filters, and dead letters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import parse
from ledgermq.proto.records import control
from ledgermq.proto.types import Range

MS = 1_000_000
Place = tuple[int, int]
"""(queue, offset)"""


@dataclass(frozen=True)
class Rules:
    """The settings of one consumer group that the model needs."""

    max_attempts: int
    fifo: bool = False
    tags: frozenset[str] = frozenset()


@dataclass
class State:
    """One message in one consumer group. `lease` 0: it is not leased."""

    lease: int
    attempt: int
    client: str = ""
    duration_ms: int | None = 0
    attempt_id: str = ""
    since_ns: int = 0
    ended: bool = False
    gone_ns: int | None = None
    """When the lease ends because its client left; only the current leader knows this."""


@dataclass
class Message:
    body: str
    tag: str
    message_group: str


@dataclass
class Reference:
    """The messages of topic `t`, and their states per consumer group. A message without a state is
    new, from the group's cursor on."""

    rules: dict[str, Rules]
    liveness_ns: int
    messages: dict[Place, Message] = field(default_factory=dict)
    rows: dict[str, dict[Place, State]] = field(default_factory=dict)
    done: dict[str, dict[Place, str]] = field(default_factory=dict)
    """How each message ended: acknowledged, skipped or dead."""
    given_up: dict[str, set[Place]] = field(default_factory=dict)
    """Messages that a consumer may have forwarded."""
    seen_ns: dict[str, int] = field(default_factory=dict)
    next_index: int = 0

    def __post_init__(self) -> None:
        for name in self.rules:
            self.rows[name], self.done[name], self.given_up[name] = {}, {}, set()

    # Time

    def ends_ns(self, row: State) -> int:
        if row.duration_ms is not None:
            return row.since_ns + row.duration_ms * MS
        return row.gone_ns or max(row.since_ns, self.seen_ns.get(row.client, 0)) + self.liveness_ns

    def gone(self, client: str, now_ns: int) -> None:
        """Leases renewed automatically for this client end within a second."""
        for rows in self.rows.values():
            for row in rows.values():
                if row.client == client and row.duration_ms is None and not row.ended:
                    row.gone_ns = min(self.ends_ns(row), now_ns + 1000 * MS)

    def advance(self, now_ns: int) -> None:
        """End the leases that have expired; they stay ended."""
        for rows in self.rows.values():
            for row in rows.values():
                row.ended = row.ended or self.ends_ns(row) <= now_ns

    def new_leader(self, now_ns: int) -> None:
        """Every lease starts again now."""
        self.seen_ns.clear()
        for rows in self.rows.values():
            for row in rows.values():
                row.since_ns, row.ended, row.gone_ns = now_ns, False, None
        self.advance(now_ns)

    # The log

    def read(self, entries: Range, now_ns: int) -> None:
        for at, start in enumerate(entries.starts.tolist()):
            index = entries.first_index + at
            if index < self.next_index:
                continue
            assert index == self.next_index
            self.next_index += 1
            record = decode_record(entries.data[start + 48 : start + int(entries.sizes[at])])
            stored = parse(record.properties)
            if record.topic == "t":
                place = (record.queue, record.queue_offset)
                self.messages[place] = Message(
                    record.body.decode(), stored.get("TAGS", ""), stored.get("__SHARDINGKEY", "")
                )
            elif record.topic.startswith("%DLQ%"):
                self._dead(stored["__LMQ.ORIGIN"], record.body.decode())
            elif record.topic == "rmq_sys_ledgermq_delivery":
                found = control.decode(stored["TAGS"], record.body)
                if isinstance(found, control.LeaseRecord) and found.topic == "t":
                    self._lease(index, found, now_ns)
                elif isinstance(found, control.AckRecord):
                    for group, topic, queue, offsets, numbers in found.acks:
                        for offset, number in zip(offsets, numbers, strict=True):
                            self._ack(group, topic, (queue, offset), number)
                elif isinstance(found, control.ChangeRecord):
                    for group, _, queue, offset, number, duration_ms, client in found.changes:
                        row = self.rows[group][queue, offset]
                        assert row.lease == number and number, (
                            "a record changes a lease that is not the latest"
                        )
                        self.rows[group][queue, offset] = State(
                            index, row.attempt, client, duration_ms, "", now_ns
                        )
        self.advance(now_ns)

    def _wanted(self, group: str, place: Place) -> bool:
        tags = self.rules[group].tags
        return not tags or self.messages[place].tag in tags

    def _end(self, group: str, place: Place, how: str) -> None:
        assert place not in self.done[group], f"{self.messages[place]} ended twice"
        self.done[group][place] = how
        self.rows[group].pop(place, None)

    def _ack(self, group: str, topic: str, place: Place, number: int) -> None:
        if topic == "t":
            assert self.rows[group][place].lease == number, (
                "a record acknowledges a lease that is not the latest"
            )
            self._end(group, place, "acknowledged")

    def _dead(self, origin: str, body: str) -> None:
        kind, group, topic, queue, offset, number = origin.split(":")
        place = (int(queue), int(offset))
        row = self.rows[group].get(place)
        assert (kind, topic) == ("dlq", "t") and self.messages[place].body == body
        assert row is not None and row.lease == int(number), (
            "a dead letter names a lease that is not the latest"
        )
        exhausted = row.ended and row.attempt >= self.rules[group].max_attempts
        assert exhausted or place in self.given_up[group], (
            f"{body} is dead after {row.attempt} attempts"
        )
        self._end(group, place, "dead")

    def _lease(self, index: int, record: control.LeaseRecord, now_ns: int) -> None:
        group = record.group
        rows, done = self.rows[group], self.done[group]
        for queue, begin, to in record.passed:
            for offset in range(begin, to):
                assert (queue, offset) not in rows and not self._wanted(group, (queue, offset)), (
                    "a new message was skipped"
                )
                self._end(group, (queue, offset), "passed")
        for queue, offsets in record.passed_again:
            for offset in offsets:
                row = rows[queue, offset]
                assert row.ended and not self._wanted(group, (queue, offset)), (
                    "a message in flight was skipped"
                )
                self._end(group, (queue, offset), "passed")
        leased: dict[Place, int] = {}
        for queue, offsets, attempts in record.leased:
            leased.update(
                ((queue, offset), attempt)
                for offset, attempt in zip(offsets, attempts, strict=True)
            )
        for place, attempt in leased.items():
            assert place in self.messages and place not in done and self._wanted(group, place)
            assert 1 <= attempt <= self.rules[group].max_attempts, (
                "a message was delivered more often than its attempts allow"
            )
            before = rows.get(place)
            if before is not None and not before.ended:
                assert record.attempt_id and before.attempt_id == record.attempt_id, (
                    "a message has two live leases"
                )
                assert attempt == before.attempt
            else:
                assert attempt == (0 if before is None else before.attempt) + 1, (
                    "attempts must increase by one per delivery"
                )
        if self.rules[group].fifo:
            for place in leased:
                assert all(other in leased for other in self._earlier(group, place)), (
                    "a message overtook an earlier one"
                )
                handed_out = place in rows and rows[place].attempt > 0
                assert handed_out or not self._handed_out(group, place), (
                    "a new message came before all of a batch was done"
                )
        for place, attempt in leased.items():
            rows[place] = State(
                index, attempt, record.client, record.duration_ms, record.attempt_id, now_ns
            )
        for queue, offsets in record.waiting:
            for offset in offsets:
                assert (
                    self.rules[group].fifo
                    and (queue, offset) not in rows
                    and (queue, offset) not in done
                )
                # The message it waits for may have ended in the same batch.
                name = self.messages[queue, offset].message_group
                assert any(
                    self.messages[queue, other].message_group == name for other in range(offset)
                ), "no earlier message to wait for"
                rows[queue, offset] = State(0, 0, since_ns=now_ns)
        for queue in {queue for queue, _ in [*leased, *rows]}:
            last = max([offset for at, offset in [*rows, *done] if at == queue], default=-1)
            assert all(
                (queue, offset) in rows or (queue, offset) in done for offset in range(last)
            ), "a message was skipped without a record"

    def _earlier(self, group: str, place: Place) -> list[Place]:
        """Earlier messages of the same message group that are not done."""
        queue, offset = place
        name = self.messages[place].message_group
        before = ((queue, other) for other in range(offset))
        return [
            other
            for other in before
            if self.messages[other].message_group == name and other not in self.done[group]
        ]

    def _handed_out(self, group: str, place: Place) -> list[Place]:
        """The messages of this message group that were handed out and are not done."""
        name = self.messages[place].message_group
        return [
            other
            for other, row in self.rows[group].items()
            if row.attempt and other[0] == place[0] and self.messages[other].message_group == name
        ]

    def deliverable(self, group: str) -> list[Place]:
        """The messages that a Receive now must return or turn into dead letters."""
        found = []
        locked: set[tuple[int, str]] = set()
        for place in sorted(self.messages):
            if place in self.done[group]:
                continue
            row = self.rows[group].get(place)
            name = (place[0], self.messages[place].message_group)
            if row is not None and not row.ended:
                locked.add(name)
            elif self._wanted(group, place) and not (self.rules[group].fifo and name in locked):
                found.append(place)
        return found
