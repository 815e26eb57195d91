"""An independent, naive model of delivery: it reads the committed log record by record, and follows
every answer to a client.

It does not use the core's classes, only dictionaries, one message at a time. A record that breaks a
rule, or an answer that contradicts the log or the clock, raises an AssertionError.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import parse
from ledgermq.proto.records import control
from ledgermq.proto.types import Range

Message = tuple[str, str, int, int]
"""(consumer group, topic, queue, offset)"""


@dataclass
class LoggedState:
    """The delivery state according to the committed log."""

    bodies: dict[tuple[str, int, int], tuple[str, str]] = field(default_factory=dict)
    """(topic, queue, offset) → (body, tag)"""
    leases: dict[Message, tuple[int, int]] = field(default_factory=dict)
    """Messages in flight: (lease number, attempt)"""
    history: dict[Message, list[int]] = field(default_factory=dict)
    """All lease numbers that a message had"""
    acked: dict[Message, set[int]] = field(default_factory=dict)
    """Leases ended by an acknowledgement"""
    lapsed: dict[Message, int] = field(default_factory=dict)
    """The last lease of each message that ended in another way"""
    done: set[Message] = field(default_factory=set)
    passed: set[Message] = field(default_factory=set)
    skipped: set[Message] = field(default_factory=set)
    """Messages below the cursor of a reset that were neither done nor skipped before."""
    resets: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    """(group, topic, queue) → index and cursor of the last reset"""
    next_index: int = 0

    def read(self, entries: Range) -> None:
        for at, start in enumerate(entries.starts.tolist()):
            record = decode_record(entries.data[start + 48 : start + int(entries.sizes[at])])
            index = entries.first_index + at
            assert index == self.next_index
            self.next_index += 1
            tag = parse(record.properties).get("TAGS", "")
            if not record.topic.startswith("rmq_sys_"):
                assert (record.topic, record.queue, record.queue_offset) not in self.bodies
                assert (
                    record.queue_offset == 0
                    or (record.topic, record.queue, record.queue_offset - 1) in self.bodies
                ), "I6"
                self.bodies[record.topic, record.queue, record.queue_offset] = (
                    record.body.decode(),
                    tag,
                )
                continue
            found = control.decode(tag, record.body)
            if isinstance(found, control.LeaseRecord):
                self._lease(index, found)
            elif isinstance(found, control.AckRecord):
                for group, topic, queue, offsets, numbers in found.acks:
                    for offset, number in zip(offsets, numbers, strict=True):
                        self._end((group, topic, queue, offset), number)
            elif isinstance(found, control.ChangeRecord):
                for group, topic, queue, offset, number, _, _ in found.changes:
                    message = (group, topic, queue, offset)
                    assert self.leases[message][0] == number, (
                        "a record changes a lease that is not the latest"
                    )
                    self.lapsed[message] = number
                    self.leases[message] = (index, self.leases[message][1])
                    self.history[message].append(index)

            elif isinstance(found, control.ResetRecord):
                for queue, cursor in found.queues:
                    self._reset(index, (found.group, found.topic, queue), cursor)

    def _reset(self, index: int, queue: tuple[str, str, int], cursor: int) -> None:
        self.resets[queue] = index, cursor
        for offset in [offset for topic, of, offset in self.bodies if (topic, of) == queue[1:]]:
            message = (*queue, offset)
            if message in self.leases:
                self.lapsed[message] = self.leases.pop(message)[0]
            if offset >= cursor:
                self.done.discard(message)
                self.passed.discard(message)
                self.skipped.discard(message)
            elif message not in self.done and message not in self.passed:
                self.skipped.add(message)

    def _lease(self, index: int, record: control.LeaseRecord) -> None:
        for queue, offsets, attempts in record.leased:
            for offset, attempt in zip(offsets, attempts, strict=True):
                message = (record.group, record.topic, queue, offset)
                assert (record.topic, queue, offset) in self.bodies, (
                    "a message was leased before it was committed"
                )
                assert message not in self.done and message not in self.passed, (
                    "a message was leased after it was done"
                )
                assert message not in self.skipped, "a message below a reset was leased"
                assert attempt == (self.leases[message][1] + 1 if message in self.leases else 1), (
                    "attempts must rise by one per delivery"
                )
                if message in self.leases:
                    self.lapsed[message] = self.leases[message][0]
                self.leases[message] = (index, attempt)
                self.history.setdefault(message, []).append(index)
        for queue, begin, to in record.passed:
            for offset in range(begin, to):
                message = (record.group, record.topic, queue, offset)
                assert (
                    message not in self.leases
                    and message not in self.done
                    and message not in self.passed
                )
                self.passed.add(message)
        for queue, offsets in record.passed_again:
            for offset in offsets:
                message = (record.group, record.topic, queue, offset)
                self.lapsed[message] = self.leases.pop(message)[0]
                self.passed.add(message)

    def _end(self, message: Message, number: int) -> None:
        assert self.leases.pop(message)[0] == number, (
            "a record acknowledges a lease that is not the latest"
        )
        self.acked.setdefault(message, set()).add(number)
        self.done.add(message)

    def acknowledged(self, message: Message, number: int) -> bool:
        """Whether an acknowledgement of this lease ended the message."""
        return (
            message in self.done
            and number in self.acked.get(message, ())
            and self.lapsed.get(message, -1) < number
        )


@dataclass
class Held:
    """A lease from the view of a client."""

    number: int
    attempt: int
    until_ns: int | None
    """None: renewed while the client is alive."""
    duration_ms: int | None
    client: str
    since_ns: int


class Clients:
    """The answers to the clients, checked against the clock of the answering leader."""

    def __init__(self, liveness_ns: int) -> None:
        self.liveness_ns = liveness_ns
        self.held: dict[Message, Held] = {}
        self.acked: set[Message] = set()
        self.delivered: set[Message] = set()
        self.seen_ns: dict[str, int] = {}

    def ends_ns(self, held: Held) -> int:
        """The time at which the lease ends."""
        if held.until_ns is not None:
            return held.until_ns
        return max(held.since_ns, self.seen_ns.get(held.client, 0)) + self.liveness_ns

    def leased(
        self,
        message: Message,
        number: int,
        attempt: int,
        now_ns: int,
        duration_ms: int | None,
        client: str,
    ) -> None:
        assert message not in self.acked, f"{message} was acknowledged and delivered again"
        before = self.held.get(message)
        if before is not None:
            assert self.ends_ns(before) <= now_ns, f"{message} has two live leases"
            assert attempt > before.attempt
        self.delivered.add(message)
        until = None if duration_ms is None else now_ns + duration_ms * 1_000_000
        self.held[message] = Held(number, attempt, until, duration_ms, client, now_ns)

    def live(self, message: Message, number: int, now_ns: int) -> bool:
        held = self.held.get(message)
        return held is not None and held.number == number and self.ends_ns(held) > now_ns

    def changed(self, message: Message, number: int, now_ns: int, duration_ms: int) -> None:
        held = self.held.get(message)
        if held is None:
            return
        held.number, held.duration_ms, held.since_ns = number, duration_ms, now_ns
        held.until_ns = now_ns + duration_ms * 1_000_000

    def alive(self, client: str, now_ns: int) -> None:
        for held in self.held.values():
            if held.client == client and held.until_ns is None and self.ends_ns(held) <= now_ns:
                held.until_ns = self.ends_ns(held)
        self.seen_ns[client] = now_ns

    def gone(self, client: str, now_ns: int) -> None:
        for held in self.held.values():
            if held.client == client and held.until_ns is None:
                held.until_ns = min(self.ends_ns(held), now_ns + 1_000_000_000)

    def reset(self, queue: tuple[str, str, int], cursor: int) -> None:
        """Handles of this queue become invalid, and messages from the cursor on may be delivered
        again, acknowledged or not."""
        self.held = {message: held for message, held in self.held.items() if message[:3] != queue}
        self.acked = {
            message for message in self.acked if message[:3] != queue or message[3] < cursor
        }

    def new_leader(self, now_ns: int) -> None:
        """Every lease starts again now."""
        self.seen_ns.clear()
        for held in self.held.values():
            held.since_ns = now_ns
            # Only the old leader knew that the client had left, so the lease is renewed
            # automatically again.
            held.until_ns = (
                None if held.duration_ms is None else now_ns + held.duration_ms * 1_000_000
            )
