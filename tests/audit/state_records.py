"""Logs of random records that no leader would write: all kinds in any order, about existing and
missing objects.

The format defines their effect on the state nevertheless. The node's machine applies them one by
one; only records that violate an assertion of the machine are avoided (a timer that fires twice).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.timers.timers import SLOT_MS, slot_of
from ledgermq.proto.entries.entry_encoding import encode_entries, host_bytes
from ledgermq.proto.entries.entry_sealing import make_range, seal
from ledgermq.proto.entries.properties import (
    BORN_HOST,
    DELIVER_MS,
    EXACT_KEYS,
    FIRE_MS,
    KEYS,
    ORIGIN,
    REAL_QUEUE,
    REAL_TOPIC,
    RECOVERY,
    edited,
)
from ledgermq.proto.names import HALF_TOPIC, TIMER_TOPIC, lite_stored
from ledgermq.proto.records import control
from ledgermq.proto.types import Draft, GroupConfig, Permission, TopicConfig, TopicKind
from tests.node_core.core_fakes import EPOCH_MS, MemoryLog, MemoryQueues
from tests.node_core.core_world import exported

GROUPS = ("g", "f", "b$c", "b$d")
LITE = ("x", "y", "empty")
CLIENTS = ("c", "d")
TOPICS = {"n": TopicKind.NORMAL, "m": TopicKind.MIXED, "L": TopicKind.LITE}
QUEUES = (("n", 0), ("n", 1), ("m", 0), ("L$x", 0), ("L$y", 0))
FIRST_MS = EPOCH_MS // SLOT_MS * SLOT_MS
TERM = 1
LEVEL_MAX = 4
STORED_LEVEL = 2
TIME_EPOCH_LEVEL = 3


class Scribe:
    """Writes one entry at a time and applies it to a machine."""

    def __init__(self, seed: int, steps: int, level: int = 1) -> None:
        self.rng = Random(seed)
        self.log = MemoryLog()
        self.machine = Machine(MemoryQueues(), self.log.record, self.log.index_at)
        self.machine.level_max = LEVEL_MAX
        self.snapshots: dict[int, dict[str, Any]] = {}
        self.recalls: list[control.RecallRecord] = []
        self.ahead_ms = 0
        """How far store times are ahead."""
        self.kinds: list[Callable[[], None]] = [
            *[self.message] * 6,
            *[self.lease] * 6,
            *[self.ack] * 4,
            *[self.change] * 2,
            *[self.lite] * 4,
            *[self.half, self.transaction, self.delayed] * 2,
            *[self.timers, self.recall] * 2,
            *(
                self.dead_letter,
                self.letters,
                self.letters,
                self.reset,
                self.topic,
                self.group,
                self.commit,
                self.fired,
                self.trim,
            ),
            *[self.level, self.seal] * 2,
            *[self.time_epoch, self.jump, self.producer] * 2,
        ]
        for _ in range(2):
            self.record(control.TermStart(TERM, "n1"))
        for raised in range(2, level + 1):
            self.record(control.LevelRecord(raised))
        for _ in range(steps):
            self.rng.choice(self.kinds)()
            if self.rng.random() < 0.1:
                self.look()
        self.look()

    def look(self) -> None:
        self.snapshots[self.machine.applied_index] = exported(self.machine)

    def write(self, draft: Draft) -> int:
        """Append a message. Returns its index."""
        first = self.log.end_index + 1
        offset = self.machine.end(draft.stored_topic, draft.queue)
        batch = encode_entries([draft])
        place = {
            "first_index": first,
            "term": TERM,
            "pos": self.log.end_pos,
            "prev_chain": self.log.chain,
        }
        store_ms = EPOCH_MS + self.ahead_ms + first
        seal(
            batch,
            queue_offsets=np.array([offset]),
            store_ms=store_ms,
            store_host=host_bytes("127.0.0.1", 1),
            **place,
        )
        self.log.append(make_range(batch, 0, 1, **place))
        self.machine.apply(self.log.ranges[-1])
        return first

    def record(self, record: control.ControlRecord) -> int:
        return self.write(control.draft(record, EPOCH_MS, self.machine.level))

    def level(self) -> None:
        """Also levels that the group has, and such that it cannot have yet."""
        self.record(control.LevelRecord(self.rng.randint(1, LEVEL_MAX)))

    def jump(self) -> None:
        self.ahead_ms += self.rng.choice([90_000, 600_000])

    def time_epoch(self) -> None:
        """Not while a former wheel is not empty, unless its time is not below the watermark."""
        back_ms = self.ahead_ms - self.ahead_ms // self.rng.choice([1, 2, 1 << 20])
        now_ms = EPOCH_MS + self.ahead_ms - back_ms + self.log.end_index + 1
        if self.machine.level >= TIME_EPOCH_LEVEL and (
            self.machine.timers.former is None or self.machine.timers.watermark.fire_ms <= now_ms
        ):
            self.ahead_ms -= back_ms
            self.record(control.TimeEpochRecord(self.machine.store_ms))

    def producer(self) -> None:
        name = self.rng.choice(["", "p", "q"])
        number = self.rng.randrange(1, 5) * 2 + bool(name)
        self.record(
            control.ProducerRecord(number, self.rng.randrange(3), name and f"{name}{number}")
        )

    def send(
        self, topic: str, queue: int, put: dict[str, str], *, tags_code: int = 0, origin: int = 0
    ) -> int:
        """Some ids were there before, with the same content or with another one."""
        number = (
            self.log.end_index
            if self.rng.random() < 0.8
            else self.rng.randrange(self.log.end_index + 1)
        )
        content = {
            name: self.rng.choice("xy")
            for name in (KEYS, EXACT_KEYS, BORN_HOST)
            if self.rng.random() < 0.1
        }
        properties = edited(f"UNIQ_KEY\x01id{number}\x02".encode(), {**content, **put})
        body = self.rng.choice([b"body", b"body", b"", b"other"])
        return self.write(Draft(topic, queue, body, properties, EPOCH_MS, tags_code, origin=origin))

    # The subjects of records

    def offsets(self, most: int = 3) -> tuple[int, ...]:
        return tuple(sorted({self.rng.randrange(12) for _ in range(self.rng.randrange(most + 1))}))

    def place(self) -> tuple[str, str, int]:
        return self.rng.choice(GROUPS), *self.rng.choice(QUEUES)

    def held(self) -> tuple[str, str, int, int, int]:
        """Usually a message in flight, usually with its lease number."""
        rows = [
            (*key, offset)
            for key, queue in self.machine.delivery.queues.items()
            for offset in queue.rows
        ]
        if not rows or self.rng.random() < 0.2:
            return *self.place(), self.rng.randrange(12), self.rng.randrange(20)
        group, topic, queue, offset = self.rng.choice(rows)
        lease = self.machine.delivery.lease((group, topic, queue), offset)
        return (
            group,
            topic,
            queue,
            offset,
            self.rng.randrange(20) if lease is None or self.rng.random() < 0.3 else lease,
        )

    def half_offset(self) -> int:
        return self.rng.randrange(self.machine.end(HALF_TOPIC, 0) + 2)

    # One entry each

    def message(self) -> None:
        self.send(*self.rng.choice(QUEUES), {})

    def lease(self) -> None:
        group, topic, _ = self.place()
        sets = self.machine.lite.all()
        if sets and self.rng.random() < 0.5:
            # A lite topic that a client of the group reads.
            group, parent, client = self.rng.choice(sets)
            topic = lite_stored(
                parent, self.rng.choice(list(self.machine.lite.names((group, parent, client))))
            )
        numbers = [0, 1] if topic == "n" else [0]

        def some(most: int = 3) -> list[tuple[int, tuple[int, ...]]]:
            return [(queue, self.offsets(most)) for queue in numbers if self.rng.random() < 0.5]

        leased = tuple(
            (queue, offsets, tuple(self.rng.randrange(1, 4) for _ in offsets))
            for queue, offsets in some()
        )
        passed = tuple(
            (queue, low, low + self.rng.randrange(3))
            for queue in numbers
            if self.rng.random() < 0.2
            for low in self.offsets(1)
        )
        duration = self.rng.choice([None, 1000, 2000])
        attempt = self.rng.choice(["", "", "try"])
        named = (
            self.rng.choice(CLIENTS),
            duration,
            leased,
            passed,
            tuple(some(1)),
            tuple(some(2)),
            attempt,
        )
        self.record(control.LeaseRecord(group, topic, *named))

    def ack(self) -> None:
        held = [self.held() for _ in range(self.rng.randrange(1, 4))]
        self.record(
            control.AckRecord(
                tuple(
                    (group, topic, queue, (offset,), (lease,))
                    for group, topic, queue, offset, lease in held
                )
            )
        )

    def change(self) -> None:
        self.record(
            control.ChangeRecord(
                ((*self.held(), self.rng.choice([0, 500]), self.rng.choice(CLIENTS)),)
            )
        )

    def dead_letter(self) -> None:
        mark = ":".join(["dlq", *map(str, self.held())])
        self.send("%DLQ%g", 0, {ORIGIN: mark}, origin=1)

    def letters(self) -> None:
        how = self.rng.choice(control.SETTLEMENTS)
        offsets = tuple(self.rng.randrange(9) for _ in range(self.rng.randrange(4)))
        places = (
            tuple((*self.held()[:3], self.rng.randrange(9)) for _ in offsets)
            if how == control.RESENT
            else ()
        )
        self.record(
            control.LettersRecord(
                self.rng.choice(["%DLQ%g", "%DLQ%f"]),
                how,
                offsets,
                places,
                self.rng.choice(["", "me"]),
            )
        )

    def reset(self) -> None:
        group, topic, queue = self.place()
        self.record(control.ResetRecord(group, topic, ((queue, self.rng.randrange(12)),)))

    def topic(self) -> None:
        name, kind = self.rng.choice(list(TOPICS.items()))
        queues, incarnation = (
            1 if name == "L" else self.rng.randrange(1, 3),
            self.rng.randrange(1, 4),
        )
        window_ms = self.rng.choice([0, 5, 50, 60_000])
        config = TopicConfig(
            "", name, kind, queues, Permission.READ_WRITE, incarnation, dedup_ms=window_ms
        )
        self.record(control.TopicRecord(config, deleted=self.rng.random() < 0.2))

    def group(self) -> None:
        config = GroupConfig(
            "", self.rng.choice(["g", "f", "b"]), lite_topic=self.rng.choice(["", "L", "M"])
        )
        self.record(control.GroupRecord(config, deleted=self.rng.random() < 0.3))

    def lite(self) -> None:
        added, removed = ([name for name in LITE if self.rng.random() < 0.5] for _ in range(2))
        begins = tuple((name, self.rng.randrange(12)) for name in added if self.rng.random() < 0.3)
        who = (
            self.rng.choice(GROUPS[:2]),
            self.rng.choice(["L", "L", "M"]),
            self.rng.choice(CLIENTS),
        )
        whole = self.rng.random() < 0.3
        self.record(
            control.LiteRecord(
                *who, self.rng.randrange(5), whole, tuple(added), tuple(removed), begins
            )
        )

    def half(self) -> None:
        put = {REAL_TOPIC: self.rng.choice("nm"), REAL_QUEUE: "0"}
        self.send(HALF_TOPIC, 0, put | ({RECOVERY: "5000"} if self.rng.random() < 0.3 else {}))

    def transaction(self) -> None:
        ended = [
            (self.half_offset(), self.rng.choice(["rollback", "checks", "age"]))
            for _ in range(self.rng.randrange(3))
        ]
        checked = [
            (self.half_offset(), self.rng.randrange(1, 9)) for _ in range(self.rng.randrange(3))
        ]
        self.record(control.TransactionRecord(tuple(ended), tuple(checked)))

    def commit(self) -> None:
        self.send("n", 0, {ORIGIN: f"tx:{self.half_offset()}"}, origin=1)

    def fire_ms(self) -> int:
        """A time above the watermark, in this minute or one of the next."""
        timers = self.machine.timers
        passed = max(FIRST_MS, timers.firing.watermark.fire_ms, timers.watermark.fire_ms)
        return passed + 1 + self.rng.choice([0, 7, 7, SLOT_MS, 3 * SLOT_MS])

    def delayed(self) -> None:
        fire_ms = self.fire_ms()
        put = {REAL_TOPIC: "m", REAL_QUEUE: "0", DELIVER_MS: str(fire_ms), FIRE_MS: str(fire_ms)}
        watermarks = (
            self.machine.timers.watermark.fire_ms,
            self.machine.timers.firing.watermark.fire_ms,
        )
        again = max(watermarks) < fire_ms - 1 and self.rng.random() < 0.2
        mark = (
            {ORIGIN: f"timer:{fire_ms - 1}:{slot_of(fire_ms - 1)}:{self.rng.randrange(9)}:again"}
            if again
            else {}
        )
        self.send(TIMER_TOPIC, slot_of(fire_ms), mark | put, tags_code=fire_ms, origin=int(again))

    def fired(self) -> None:
        fire_ms = self.fire_ms()
        self.send(
            "m",
            0,
            {ORIGIN: f"timer:{fire_ms}:{slot_of(fire_ms)}:{self.rng.randrange(9)}"},
            origin=1,
        )

    def timers(self) -> None:
        at_ms = self.fire_ms() - self.rng.choice([0, 0, SLOT_MS])
        self.record(control.TimersRecord(at_ms, self.rng.randrange(-1, 9), self.rng.randrange(3)))

    def recall(self) -> None:
        if self.recalls and self.rng.random() < 0.4:
            again = self.rng.choice(self.recalls[-3:])
            self.record(
                control.RecallRecord(
                    again.deliver_ms + self.rng.randrange(2), again.fire_ms, again.offset
                )
            )
            return
        now_ms = self.machine.timers.watermark.fire_ms or FIRST_MS
        fire_ms = now_ms + self.rng.choice([-1, -1, 0, 5, SLOT_MS])
        deliver_ms = fire_ms + self.rng.choice([-SLOT_MS, 0, 1, 1, SLOT_MS])
        self.recalls.append(control.RecallRecord(deliver_ms, fire_ms, self.rng.randrange(-1, 9)))
        self.record(self.recalls[-1])

    def seal(self) -> None:
        """Seal a file, with a root where that is allowed: often the one that continues the log
        tree."""
        tree = self.machine.retained.tree
        number = self.rng.randrange(30)
        first = 10 * number if tree is None or self.rng.random() < 0.5 else tree.next_index
        root = bytes([number] * 32).hex() if tree is not None and self.rng.random() < 0.9 else ""
        self.record(
            control.SealRecord(
                1000 * number,
                first,
                first + self.rng.randrange(12),
                1000 * number + 900,
                "ab" * 32,
                ("n1",),
                root,
            )
        )

    def trim(self) -> None:
        """Trim to an existing entry, or to one before the current begin. Where that is allowed,
        often with what is trimmed in the object store."""
        stored = self.machine.level >= STORED_LEVEL and self.rng.random() < 0.7
        index = self.rng.randrange(self.log.end_index + 1) or 1
        entries = self.log.ranges[index]
        named = (
            entries.pos,
            entries.term,
            self.log.ranges[index - 1].last_chain,
            self.machine.begin_index,
        )
        self.record(control.TrimRecord(index, *named, ((0, None),), "operator", stored))
