"""One broker group in memory and all its clients: calls of every kind with failures, which produce
a log with records of every kind.

Every step takes two small numbers, so a run is a list of steps.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np

from ledgermq.node.broker.calls.consumer_calls import (
    Ack,
    Change,
    ClientGone,
    Forward,
    Handle,
    Receive,
    Received,
    SyncLite,
)
from ledgermq.node.broker.calls.operator_calls import Configure, Reset, SettleLetters
from ledgermq.node.broker.calls.outcome import Call, Refused
from ledgermq.node.broker.calls.read_calls import CommitOffset
from ledgermq.node.broker.calls.send_calls import (
    FrameProduced,
    OpenProducer,
    Produce,
    Produced,
    ProduceFrame,
    ProducerOpened,
    Recall,
    ResumeProducer,
)
from ledgermq.node.broker.calls.transaction_calls import (
    CountChecks,
    Overdue,
    OverdueHalves,
    Prepare,
    Resolve,
)
from ledgermq.node.broker.filters.filters import TagFilter
from ledgermq.node.broker.leader import LeaderSettings
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.delivery.leases import LeaseTimes
from ledgermq.node.broker.parts.delivery.tier_messages import NOT_YET
from ledgermq.node.broker.parts.transactions.transaction_checks import TransactionRules
from ledgermq.node.replica.retention.retention_facts import half_pin, timer_pin
from ledgermq.proto.entries.layout import java_hash
from ledgermq.proto.entries.properties import Fields, encode, parse
from ledgermq.proto.entries.ranges import cut, tail_of
from ledgermq.proto.names import base_group, lite_stored, member_group
from ledgermq.proto.types import Draft, GroupConfig, Permission, Range, TopicConfig, TopicKind
from tests.node_core.core_fakes import EPOCH_MS, LOG_ID, MS, SECOND, Bench, MemoryLog
from tests.node_core.core_frames import check_sequences, numbered, sequences

LIVENESS_NS = 10 * SECOND
TOPICS = {
    "n": TopicConfig("", "n", TopicKind.NORMAL, 2, Permission.READ_WRITE, 1),
    "m": TopicConfig("", "m", TopicKind.MIXED, 2, Permission.READ_WRITE, 1, dedup_ms=20_000),
    "L": TopicConfig("", "L", TopicKind.LITE, 1, Permission.READ_WRITE, 1),
}
GROUPS = {
    "g": GroupConfig("", "g", max_attempts=1),
    "f": GroupConfig("", "f", max_attempts=2, fifo=True),
    "b": GroupConfig("", "b", broadcast=True),
    "l": GroupConfig("", "l", max_attempts=2, lite_topic="L"),
}
CLIENTS = ("c", "d")
LITE = ("x", "y", "z")
READERS = ("g", "f", member_group("b", "c"), member_group("b", "d"))
STORED_LEVEL = 2
DELAYS = (500, 3_000, 61_000, 200_000, 5_000 * 60_000)


def merged(log: MemoryLog) -> list[Range]:
    """The log in ranges of maximal length: one per term."""
    out: list[Range] = []
    for entries in log.ranges:
        last = out[-1] if out else None
        if last is None or last.term != entries.term:
            out.append(entries)
            continue
        out[-1] = Range(
            last.first_index,
            entries.last_index,
            last.term,
            last.pos,
            memoryview(bytes(last.data) + bytes(entries.data)),
            np.concatenate([last.starts, entries.starts + len(last.data)]),
            np.concatenate([last.sizes, entries.sizes]),
            last.prev_chain,
            entries.last_chain,
        )
    return out


class World:
    """One broker group, its clients, and the handles they hold."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        times = LeaseTimes(handover_ns=0, liveness_ns=LIVENESS_NS)
        rules = TransactionRules(
            check_ns=2 * SECOND, interval_ns=4 * SECOND, checks_max=2, retry_ns=SECOND
        )
        self.bench = Bench(
            log,
            LeaderSettings(
                times=times, transactions=rules, max_attempts=3, lite_topics_max=4, producers_max=3
            ),
        )
        self.term = 1
        self.bodies = 0
        self.incarnation = 1
        self.calls: dict[int, Call] = {}
        self.leases: list[Handle] = []
        self.delayed: list[tuple[int, int, int]] = []
        self.halves: list[tuple[int, str]] = []
        self.judged: set[int] = set()
        self.producers: dict[int, int] = {}
        """Producer → its last known epoch."""
        self.next: dict[int, int] = {}
        """Producer → sequence number of its next new message, according to its client."""
        self.receipts: list[tuple[int, int, FrameProduced]] = []
        """(producer, first sequence number, answer) of each durable frame."""
        self.bench.lead(1)
        self.turn(
            Configure(next(self.bench.tokens), tuple(TOPICS.values()), tuple(GROUPS.values()))
        )

    def turn(self, *calls: Call) -> None:
        for call in calls:
            if hasattr(call, "token"):
                self.calls[call.token] = call
        self.bench.turn(*calls)
        self.listen()

    def listen(self) -> None:
        for token in self.bench.done.keys() - self.judged:
            self.judged.add(token)
            outcome, call = self.bench.done[token], self.calls.pop(token, None)
            if isinstance(outcome, Received) and isinstance(call, Receive):
                for lease in outcome.leases:
                    place = call.group, lease.topic or call.topic, lease.queue, lease.queue_offset
                    self.leases.append(Handle(*place, lease.lease_number, lease.attempt))
            elif isinstance(outcome, Produced) and isinstance(call, Produce):
                for draft, offset, fire_ms in zip(
                    call.drafts, outcome.queue_offsets, outcome.fire_ms or (0,) * 99, strict=False
                ):
                    if fire_ms:
                        self.delayed.append((draft.deliver_ms, fire_ms, offset))
            elif isinstance(outcome, ProducerOpened):
                self.producers[outcome.producer_id] = outcome.epoch
                self.next[outcome.producer_id] = outcome.next_sequence
            elif isinstance(call, ProduceFrame):
                producer = call.frame.producer_id
                if isinstance(outcome, FrameProduced):
                    self.receipts.append((producer, call.frame.first_sequence, outcome))
                elif isinstance(outcome, Refused) and outcome.next_sequence is not None:
                    self.next[producer] = outcome.next_sequence
            elif isinstance(outcome, Produced) and isinstance(call, Prepare):
                ids = [parse(draft.properties)["UNIQ_KEY"] for draft in call.drafts]
                self.halves += zip(outcome.queue_offsets, ids, strict=True)

    @property
    def token(self) -> int:
        return next(self.bench.tokens)

    def draft(self, topic: str, a: int, b: int, deliver_ms: int = 0) -> Draft:
        self.bodies += 1
        # Some ids are repeated: a topic with a deduplication window stores only the first message.
        message_id = f"id{b}" if a % 3 == 0 else f"new{self.bodies}"
        group, tag = (None, "A", "B")[a % 3], (None, "T")[b % 2]
        fields = Fields(
            message_id=message_id, tag=tag, message_group=group, deliver_ms=deliver_ms or None
        )
        code = java_hash(tag) if tag else 0
        return Draft(
            topic,
            b % 2,
            f"m{self.bodies}".encode(),
            encode(fields),
            EPOCH_MS,
            code,
            deliver_ms=deliver_ms,
        )

    # Steps; each takes two small numbers

    def send(self, a: int, b: int) -> None:
        topic = ("n", "m")[a % 2]
        self.turn(Produce(self.token, [self.draft(topic, a + i, b + i) for i in range(1 + b % 3)]))

    def send_lite(self, a: int, b: int) -> None:
        draft = replace(self.draft(lite_stored("L", LITE[a % 3]), a, b), queue=0)
        self.turn(Produce(self.token, [draft] * (1 + b % 2)))

    def delay(self, a: int, b: int) -> None:
        topic, at_ms = ("n", "m")[a % 2], self.bench.now_ms + DELAYS[b % len(DELAYS)]
        self.turn(Produce(self.token, [self.draft(topic, a, b, at_ms)]))

    def recall(self, a: int, b: int) -> None:
        if self.delayed:
            self.turn(Recall(self.token, *self.delayed[a % len(self.delayed)]))

    def open(self, a: int, b: int) -> None:
        """With a digest, or without one, which depends on the level of the group too."""
        if b % 4 == 3:
            self.bench.raise_level()
        self.turn(OpenProducer(self.token, ("", "", "w", "v")[a % 4], digest=b % 2 == 1))

    def resume(self, a: int, b: int) -> None:
        number = 1 + a % 6
        self.turn(
            ResumeProducer(self.token, number, max(0, self.producers.get(number, 0) - (b == 11)))
        )

    def frames(self, a: int, b: int) -> None:
        """Consecutive frames in one turn. Some are repeated with the same or other boundaries, and
        some come too early or too late."""
        number = list(self.producers)[-1 - a % len(self.producers)] if self.producers else 1
        first, calls = self.next.get(number, 0), []
        for at in range(1 + b % 3):
            size, back = 1 + (a + at) % 4, (0, 0, 0, 2, 3, 8, -2)[(a * 5 + b * 3 + at) % 7]
            frame = numbered(
                number,
                self.producers.get(number, 0),
                max(0, first - back),
                size,
                ("n", "m")[b % 2],
                2,
            )
            calls.append(ProduceFrame(self.token, ("n", "m")[b % 2], frame))
            first += 0 if back else size
        self.next[number] = first
        self.turn(*calls)

    def prepare(self, a: int, b: int) -> None:
        self.turn(Prepare(self.token, [self.draft("m", a, b)], [None]))

    def resolve(self, a: int, b: int) -> None:
        if self.halves:
            offset, message_id = self.halves[a % len(self.halves)]
            self.turn(Resolve(self.token, offset, "m", message_id, b % 2 == 0))

    def check(self, a: int, b: int) -> None:
        call = Overdue(self.token, 10)
        self.turn(call)
        found = self.bench.done.get(call.token)
        if isinstance(found, OverdueHalves) and found.halves:
            count = CountChecks(self.token, [offset for offset, _ in found.halves])
            self.turn(count)

    def receive(self, a: int, b: int) -> None:
        group, topic, tags = (
            READERS[a % 4],
            ("n", "m")[b % 2],
            (frozenset({"T"}), frozenset[str]())[b % 4 > 0],
        )
        call = Receive(
            self.token,
            group,
            topic,
            CLIENTS[a % 2],
            TagFilter(tags),
            1 + b,
            1_000 * (1 + a % 3),
            self.bench.now_ns,
        )
        self.turn(replace(call, attempt_id=f"try{a % 3}" if group == "f" else ""))

    def line_up(self, a: int, b: int) -> None:
        """Messages of a message group that wait for its first message, while a message of another
        group is delivered."""
        self.turn(Produce(self.token, [self.draft("n", 1 + at // 3, 2 * b) for at in range(4)]))
        for _ in range(2):
            self.turn(
                Receive(
                    self.token,
                    "f",
                    "n",
                    CLIENTS[a % 2],
                    TagFilter(),
                    1,
                    1_000 * (1 + a % 3),
                    self.bench.now_ns,
                )
            )

    def receive_lite(self, a: int, b: int) -> None:
        self.turn(
            Receive(
                self.token,
                "l",
                "L",
                CLIENTS[a % 2],
                TagFilter(),
                1 + b,
                3_000,
                self.bench.now_ns,
                lite=True,
            )
        )

    def handle(self, a: int) -> Handle | None:
        return self.leases[-1 - a % len(self.leases)] if self.leases else None

    def ack(self, a: int, b: int) -> None:
        if self.leases:
            self.turn(
                Ack(
                    self.token,
                    [self.leases[-1 - (a + i) % len(self.leases)] for i in range(1 + b % 3)],
                )
            )

    def change(self, a: int, b: int) -> None:
        if (held := self.handle(a)) is not None:
            self.turn(Change(self.token, held, 1_000 * (b % 3), "c"))

    def forward(self, a: int, b: int) -> None:
        if (held := self.handle(a)) is not None:
            self.turn(Forward(self.token, held))

    def settle_letters(self, a: int, b: int) -> None:
        """A consumer gives a message up, and dead letters of its group are settled, also such that
        do not exist; sometimes twice."""
        held = self.handle(a)
        if held is None:
            return
        self.turn(Forward(self.token, held))
        topic, machine = f"%DLQ%{base_group(held.group)}", self.bench.machine
        begin, end = machine.begin(topic, 0), machine.end(topic, 0)
        offsets = [*range(begin, end)] if b % 2 == 0 else [end - 1 - b // 4, end]
        for _ in range(1 + a % 2):
            self.turn(
                SettleLetters(
                    self.token,
                    topic,
                    offsets[:100],
                    ("resent", "resent", "purged")[b % 3],
                    ("", "me")[a % 2],
                )
            )

    def sync_lite(self, a: int, b: int) -> None:
        action: Any = ("add", "add", "remove", "set")[a % 4]
        start: Any = ("last", "min", "tail")[b % 3]
        names = LITE[: 1 + b % 3]
        self.turn(
            SyncLite(self.token, "l", "L", CLIENTS[b % 2], action, names, start=start, start_at=1)
        )

    def commit(self, a: int, b: int) -> None:
        self.turn(CommitOffset(self.token, "g", ("n", "m")[a % 2], b % 2, a))

    def reset(self, a: int, b: int) -> None:
        self.turn(Reset(self.token, READERS[a % 4], ("n", "m")[b % 2], [(b % 2, a)]))

    def gone(self, a: int, b: int) -> None:
        self.turn(ClientGone(CLIENTS[a % 2], self.bench.now_ns))

    def topic(self, a: int, b: int) -> None:
        """Delete, create or recreate a topic, or change its queues or its deduplication window."""
        name = ("n", "m", "L")[a % 3]
        self.incarnation += 1
        if b % 4 == 0:
            self.turn(Configure(self.token, deleted_topics=(name,)))
        elif b % 4 == 1:
            self.turn(
                Configure(self.token, topics=(replace(TOPICS[name], incarnation=self.incarnation),))
            )
        else:
            now = self.bench.machine.topics.get(
                name, replace(TOPICS[name], incarnation=self.incarnation)
            )
            other = replace(
                now,
                queues=now.queues + (name != "L" and now.queues < 4),
                dedup_ms=(b % 3) * 10_000 if name == "m" else 0,
            )
            self.turn(Configure(self.token, topics=(other,)))

    def group(self, a: int, b: int) -> None:
        name = ("g", "f", "b", "l")[a % 4]
        if b % 2 == 0:
            self.turn(Configure(self.token, deleted_groups=(name,)))
        else:
            self.turn(
                Configure(
                    self.token,
                    groups=(replace(GROUPS[name], fifo=(b % 3 == 0) if name in "gf" else False),),
                )
            )

    def trim(self, a: int, b: int) -> None:
        """Trim the log up to the first entry that a half message or a timer still needs."""
        machine, log = self.bench.machine, self.bench.log
        pins = [pin.pos for pin in (*half_pin(machine), *timer_pin(machine))]
        low, high = machine.begin_index + 1, machine.applied_index
        index = low + (high - low) * (1 + a % 3) // 3
        while index > low and any(tail_of(log.read(index), index).pos > pos for pos in pins):
            index -= 1
        if not low <= index <= high or any(
            tail_of(log.read(index), index).pos > pos for pos in pins
        ):
            return
        if b % 2:
            # Only the object store has what is trimmed.
            self.bench.raise_level()
        self.turn(self.bench.trimming(index, stored=b % 2 == 1 and machine.level >= STORED_LEVEL))

    def time(self, a: int, b: int) -> None:
        self.bench.now_ns += (100 * MS, SECOND, 4 * SECOND, 4 * SECOND, 4 * SECOND, 70 * SECOND)[
            a % 6
        ]
        for _ in range(1 + b % 3):
            self.turn()

    def lag(self, a: int, b: int) -> None:
        """Stop commits, or resume them."""
        self.bench.replicator.commit_at_once = not self.bench.replicator.commit_at_once
        self.turn()

    def full(self, a: int, b: int) -> None:
        """Fill the log, for messages only or for all entries, or fill the consume queues."""
        replicator = self.bench.replicator
        replicator.full = b % 5 < 4
        replicator.full_for_control = a % 2 == 0
        self.bench.queues.full = b % 5 == 4
        self.turn()

    def mend(self, a: int, b: int) -> None:
        """Make room again, and resume commits."""
        replicator = self.bench.replicator
        replicator.full = replicator.full_for_control = self.bench.queues.full = False
        replicator.commit_at_once = True
        self.turn()

    def fail_over(self, a: int, b: int) -> None:
        """Lose leadership and win it again, with a part of the uncommitted entries."""
        replicator, log = self.bench.replicator, self.bench.log
        replicator.follow(self.term, "n2")
        if a % 2:
            self.turn()
        log.cut(max(replicator.commit_index, log.end_index - b))
        self.turn()
        self.term += 1
        if a % 3 == 0:
            self.move(replicator.commit_index)
        self.bench.replicator.lead(self.term)
        self.turn()

    def move(self, committed: int) -> None:
        """Another node takes over; it restores its state from a snapshot and the log behind it."""
        former = self.bench
        self.bench = Bench(former.log, former.settings, f"n{self.term}")
        self.bench.tokens, self.bench.done, self.bench.now_ns = (
            former.tokens,
            former.done,
            former.now_ns,
        )
        self.bench.replicator.commit_index = committed
        if former.machine.settled:
            mine, theirs = self.bench.queues, former.queues
            mine.rows, mine.low, mine.lasts = copy.deepcopy((theirs.rows, theirs.low, theirs.lasts))
            self.bench.machine.restore(exported(former.machine))

    # The end of a run

    def heal(self) -> None:
        self.mend(0, 0)
        for _ in range(5):
            self.bench.now_ns += SECOND
            self.turn()
        assert self.bench.machine.applied_index == self.bench.log.end_index

    def settle(self) -> None:
        """Let all waiting messages become due, and consume all messages."""
        for ms in (70_000, 300_000, 4_200 * 60_000, 1_000 * 60_000, 5_000 * 60_000):
            self.bench.now_ns += ms * MS
            for _ in range(12):
                self.turn()
        machine = self.bench.machine
        assert machine.timers.pending == 0, "some delayed messages never fire"
        self.drain()

    def check_frames(self) -> None:
        """Check that each message is stored once and in order, and that every receipt is true."""
        check_sequences(self.bench.log.ranges, self.bench.machine.producers)
        assert self.bench.machine.producers.astray == 0
        places = {
            (producer, sequence): index
            for index, producer, _, sequence in sequences(self.bench.log.ranges)
        }
        for producer, first, receipt in self.receipts:
            assert [places[producer, first + at] for at in range(receipt.count)] == list(
                range(receipt.first_index, receipt.last_index + 1)
            )
            last = cut(self.bench.log.read(receipt.last_index), receipt.last_index)
            assert (last.last_chain, last.term) == (receipt.chain_crc, receipt.term)

    def drain(self) -> None:
        b, machine = self.bench, self.bench.machine
        for group in ("g", "f"):
            for topic in sorted({"n", "m"} & machine.topics.keys()):
                for _ in range(400):
                    call = Receive(self.token, group, topic, "c", TagFilter(), 32, 1_000, b.now_ns)
                    b.turn(call)
                    outcome = b.done[call.token]
                    if outcome == Refused("store-away", detail=NOT_YET):
                        continue
                    assert isinstance(outcome, Received), outcome
                    leases = outcome.leases
                    b.turn(
                        Ack(
                            self.token,
                            [
                                Handle(
                                    group,
                                    topic,
                                    at.queue,
                                    at.queue_offset,
                                    at.lease_number,
                                    at.attempt,
                                )
                                for at in leases
                            ],
                        )
                    )
                    if not leases:
                        break
                for queue in range(machine.topics[topic].queues):
                    key = group, topic, queue
                    rows = machine.delivery.queues.get(key)
                    assert rows is None or not len(rows.rows), f"{key} is stuck: {list(rows.rows)}"
                    assert machine.delivery.cursor(key) == machine.end(topic, queue), (
                        f"{key} is stuck at its cursor"
                    )

    def exported(self) -> dict[str, Any]:
        return exported(self.bench.machine)


def exported(machine: Machine) -> dict[str, Any]:
    return json.loads(json.dumps(machine.export(LOG_ID)))  # type: ignore[no-any-return]


STEPS = {
    "send": 4,
    "send_lite": 3,
    "delay": 3,
    "recall": 1,
    "open": 2,
    "resume": 1,
    "frames": 6,
    "prepare": 3,
    "resolve": 3,
    "check": 1,
    "receive": 8,
    "line_up": 1,
    "receive_lite": 3,
    "ack": 4,
    "change": 1,
    "forward": 1,
    "settle_letters": 2,
    "sync_lite": 3,
    "commit": 1,
    "reset": 1,
    "gone": 1,
    "topic": 2,
    "group": 1,
    "trim": 1,
    "time": 6,
    "lag": 1,
    "full": 1,
    "mend": 4,
    "fail_over": 2,
}
NAMES = [name for name, weight in STEPS.items() for _ in range(weight)]
