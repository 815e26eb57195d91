"""Applies the committed log to the derived state of one broker group (invariant I8): the only code that changes that state.

`apply` takes committed ranges in order: messages go to the consume queues as columns, control records to topics, consumer groups and
delivery. Leader and followers run the same code on the same bytes. An unknown control record stops the replica before any part of its range
is applied. A range that met a full disk is simply applied again: dispatching to the queues is idempotent, and everything else happens after
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ledgermq.node.broker.origins import Mark, marks
from ledgermq.node.broker.ports import Queues
from ledgermq.node.broker.queues import State, Topic
from ledgermq.node.broker.state import timers
from ledgermq.node.broker.state.delivery import Touched
from ledgermq.node.broker.state.lapsed_leases import Lapsed
from ledgermq.node.broker.state.lite import LiteKey
from ledgermq.node.broker.state.member_forms import export_members, members_of, restore_members
from ledgermq.node.broker.state.message_ids import new_ids
from ledgermq.node.broker.state.transactions import HALF_QUEUE, ORIGIN_KIND, NewHalf, half_of
from ledgermq.proto import control
from ledgermq.proto.group_config import group_fields, read_group
from ledgermq.proto.layout import FEW_ENTRIES, HEADER_BYTES, Columns, record_columns
from ledgermq.proto.levels import FIRST_LEVEL, LEVEL_MAX, TREE_LEVEL, snapshot_version
from ledgermq.proto.message_record import Record, decode_record
from ledgermq.proto.names import CONTROL_TOPICS, HALF_TOPIC, LITE_SEPARATOR, TIMER_TOPIC, lite_stored, parent_of, stored_name
from ledgermq.proto.native_ids import Run, native_runs
from ledgermq.proto.properties import parse
from ledgermq.proto.ranges import cut, record_of
from ledgermq.proto.time_epochs import TimeEpoch, TimeEpochs
from ledgermq.proto.types import I32, Permission, Range, TopicConfig, TopicDurability, TopicKind
from ledgermq.storage.snapshot import export_minimums

LITE_FLOOR_STEP = 300_000
"""Lite topics begin at multiples of this, which is where a consume-queue file begins if files have their default length."""
_STORE_MS = slice(56, 64)
"""In a message record."""


_Special = control.ControlRecord | Mark | NewHalf | Run
"""The meaning of an entry, or of several, beyond being messages."""


_SPECIAL_TOPICS = CONTROL_TOPICS | {HALF_TOPIC}

_BETWEEN = control.TopicRecord | control.TrimRecord | control.LiteRecord | control.LevelRecord | control.TimeEpochRecord
"""Records whose effect depends on which messages precede them."""


@dataclass(slots=True)
class Effects:
    """What applying a range changed, for modules that keep something beside the derived state."""

    entries: Range
    """The part of the range that was applied."""
    columns: Columns
    """The columns of these entries."""
    topics: dict[str, None]
    """Client topics with new messages, a new configuration, or a consumer group that was reset."""
    touched: Touched
    """Rows of the delivery state that may have changed."""
    halves: list[int]
    """Half messages that were added, checked, or ended."""
    lite: list[tuple[LiteKey, list[str]]]
    """Lite sets that changed, and the names that are new in them."""
    vanished: list[str]
    """Stored lite topics that no longer exist."""
    time_epoch: bool = False
    """A time epoch began."""


class Machine(State):
    """The state, and how committed entries change it."""

    level_max: int = LEVEL_MAX
    """The highest feature level that this program reads."""

    def __init__(
        self, queues: Queues, read_record: Callable[[int, int], bytes | memoryview], index_at: Callable[[int], int] | None = None
    ) -> None:
        super().__init__(queues, read_record, index_at)
        self._marks: dict[str, Callable[[int, Mark, Effects], None]] = {
            "dlq": self._apply_dead_letter,
            ORIGIN_KIND: self._apply_commit,
            timers.KIND: self._apply_timer,
        }
        """By kind of mark, the effect of a message made from another one, beyond being stored."""
        self._windows: set[str] = set()
        """Topics with a deduplication window."""
        self._touched: Touched = []
        """Rows touched so far by the current range: applying it may take several attempts, and removed rows are found only once."""
        self._halves: list[int] = []
        self._lite_changed: list[tuple[LiteKey, list[str]]] = []
        self._vanished: list[str] = []

    # Applying

    def apply(self, entries: Range) -> Effects:
        """Apply committed entries that follow the applied index, at least the first of them. Raises NoSpace and UnknownControlRecord.

        Some records take effect between the messages before and after them (`_BETWEEN`), so the applied part ends before the next such
        record.
        """
        assert entries.first_index == self.applied_index + 1, f"entry {entries.first_index} does not follow {self.applied_index}"
        columns = record_columns(entries)
        plain = columns.rows is not None and not any([row[0] in _SPECIAL_TOPICS or row[6] or row[7] for row in columns.rows])
        records = [] if plain else self._records(entries, columns)
        later = [at for at, record in records if isinstance(record, _BETWEEN) and at > 0] if records else ()
        if later:
            entries = cut(entries, entries.first_index + later[0] - 1)
            columns = record_columns(entries)
            # No run is cut in two: the record stands between runs.
            records = [(at, record) for at, record in records if at < later[0]]
        self.settled = False
        topics = dict.fromkeys([topic for topic in columns.topics if topic not in CONTROL_TOPICS])
        effects = Effects(entries, columns, topics, self._touched, self._halves, self._lite_changed, self._vanished)
        if records and records[0][0] == 0:
            first = records[0][1]
            if isinstance(first, control.TopicRecord):
                self._apply_topic(first, effects)
                del records[0]
            elif isinstance(first, control.TrimRecord):
                self._apply_trim(entries.first_index, _store_ms(entries, 0), first, effects)
                del records[0]
            elif isinstance(first, control.LiteRecord):
                self._apply_lite(first, effects)
                del records[0]
            elif isinstance(first, control.LevelRecord):
                self._apply_level(first)
                del records[0]
            elif isinstance(first, control.TimeEpochRecord):
                self._apply_time_epoch(TimeEpoch(entries.first_index, entries.pos, _store_ms(entries, 0)), effects)
                del records[0]
        if self._lite_floors:
            self._begin_lite_topics(columns.topics)
        self._queues.append(columns)
        if TIMER_TOPIC in columns.topics:
            self.timers.apply_stored(columns)
        for found in new_ids(entries, columns, self._windows, self.level) if self._windows else ():
            self.ids.apply(found.topic, found.key, found.place, self.topics[found.topic].dedup_ms)
        for topic in effects.topics:
            self._ends.pop(topic, None)
        for topic in columns.topics:
            # Only lite topics with messages: a position in one without messages creates no queue.
            if LITE_SEPARATOR in topic:
                self._lite_topics.setdefault(parent_of(topic), {})[topic] = None
        for at, record in records:
            if isinstance(record, Mark):
                self._marks[record.kind](entries.first_index + at, record, effects)
            elif isinstance(record, NewHalf):
                self.transactions.apply_half(record.offset, record.half)
                effects.halves.append(record.offset)
            elif isinstance(record, Run):
                self.producers.apply_run(entries.first_index + at, record, _store_ms(entries, at), entries)
            elif isinstance(record, control.ProducerRecord):
                self.producers.apply_record(record, _store_ms(entries, at))
            else:
                self._apply_control(entries.first_index + at, record, effects)
        self._advance(entries)
        return effects

    def _records(self, entries: Range, columns: Columns) -> list[tuple[int, _Special]]:
        """(place in the range, record) of every entry, or run of entries, that is more than a message, in order. Raises
        UnknownControlRecord."""
        records: list[tuple[int, _Special]] = [*_control_records(entries, columns, self.level_max)]
        marked: list[tuple[int, _Special]] = [*_half_messages(entries, columns), *marks(entries, columns, self._marks)]
        marked += [(run.at, run) for run in native_runs(entries, _flags(columns))]
        return sorted([*records, *marked], key=lambda item: item[0]) if marked else records

    def _advance(self, entries: Range) -> None:
        self.applied_index = entries.last_index
        self.applied_term = entries.term
        self.applied_end_pos = entries.pos + len(entries.data)
        self.chain_crc = entries.last_chain
        self.store_ms = last_store_ms(entries)
        self.settled = True
        self._touched = []
        self._halves = []
        self._lite_changed = []
        self._vanished = []

    def _apply_control(self, index: int, record: control.ControlRecord, effects: Effects) -> None:
        delivery = self.delivery
        if isinstance(record, control.LeaseRecord):
            touched = delivery.apply_lease(
                index,
                record.group,
                record.topic,
                record.client,
                record.duration_ms,
                record.leased,
                record.passed,
                record.passed_again,
                record.waiting,
                record.attempt_id,
            )
        elif isinstance(record, control.AckRecord):
            touched = delivery.apply_ack(record.acks)
        elif isinstance(record, control.ChangeRecord):
            touched = delivery.apply_change(index, record.changes)
        elif isinstance(record, control.ResetRecord):
            touched = delivery.apply_reset(record.group, record.topic, record.queues)
            self.offsets.apply_reset(record.group, record.topic, record.queues)
            # Receives that wait for this topic may find messages again.
            effects.topics[record.topic] = None
        elif isinstance(record, control.OffsetRecord):
            self.offsets.apply(row for row in record.offsets if row[2] < self.queues_of(row[1]))
            return
        elif isinstance(record, control.GroupRecord):
            touched = self._apply_group(record)
        elif isinstance(record, control.LettersRecord):
            touched = self._apply_letters(index, record)
        elif isinstance(record, control.TransactionRecord):
            effects.halves.extend(self.transactions.apply_record(record))
            return
        elif isinstance(record, control.RecallRecord):
            self.timers.apply_recall(record)
            return
        elif isinstance(record, control.TimersRecord):
            self.timers.apply_record(record)
            return
        elif isinstance(record, control.SealRecord):
            self.retained.apply_seal(record)
            return
        elif isinstance(record, control.Membership):
            self.members = members_of(index, record)
            return
        else:
            # Terms concern the replicator, markers the audit; records that take effect between messages were applied before.
            assert isinstance(record, control.TermStart | control.ForcedRecord | control.AuditRecord), record
            return
        effects.touched.extend(touched)

    def _apply_level(self, record: control.LevelRecord) -> None:
        if record.level == self.level + 1:
            self.level = record.level
            if record.level == TREE_LEVEL:
                self.retained.begin_tree()

    def _apply_dead_letter(self, index: int, mark: Mark, effects: Effects) -> None:
        """A dead letter was stored: the message from which it was made is done for its group."""
        group, topic, queue, offset, lease = mark.fields
        effects.touched.extend(self.delivery.apply_dead_letter((group, topic, int(queue)), int(offset), int(lease)))

    def _apply_letters(self, index: int, record: control.LettersRecord) -> Touched:
        """Settle dead letters. The original of a resent one is visible again for its group. A settled one changes nothing."""
        touched: Touched = []
        begin = self.begin(record.topic, 0)
        for at, offset in enumerate(record.offsets):
            if offset >= begin and self.letters.settle(record.topic, offset, record.how) and record.places:
                group, topic, queue, original = record.places[at]
                touched += self.delivery.apply_resent(index, (group, topic, queue), original)
        return touched

    def _apply_timer(self, index: int, mark: Mark, effects: Effects) -> None:
        """A copy was stored in its topic, or on the timer topic again: the delayed message from which it was made is done."""
        fire_ms, _, offset, *again = mark.fields
        self.timers.apply_fired(int(fire_ms), int(offset), rolled=bool(again))

    def _apply_commit(self, index: int, mark: Mark, effects: Effects) -> None:
        """A copy was stored in its topic: the half message from which it was made is done."""
        (offset,) = map(int, mark.fields)
        if self.transactions.apply_commit(offset):
            effects.halves.append(offset)

    def _apply_trim(self, index: int, store_ms: int, record: control.TrimRecord, effects: Effects) -> None:
        """Messages before the new begin are consumed for every group, unless the object store has them. Idempotent, because a full disk may
        interrupt it."""
        self._queues.raise_minimums(max(record.begin_pos, self.begin_pos))
        self.retained.apply_trim(index, store_ms, record)
        self._forget_lite_topics(effects)
        effects.touched.extend(self.delivery.raise_cursors())
        for topic in self.letters.topics():
            self.letters.trim(topic, self.begin(topic, 0))
        effects.halves.extend(self.transactions.raise_minimum(self._queues.min_offset(HALF_TOPIC, HALF_QUEUE)))

    def _apply_time_epoch(self, began: TimeEpoch, effects: Effects) -> None:
        """Whatever the state knows a later store time of counts as stored now. Idempotent, because a full disk may interrupt it."""
        effects.time_epoch = True
        known, self.time_epochs = self.time_epochs, self.time_epochs.with_begin(began)
        if self.time_epochs is not known:
            self.ids.begin_time_epoch(began.ms)
            self.producers.begin_time_epoch(began.ms)
            self.transactions.begin_time_epoch(began.ms)
            self.timers.begin_time_epoch(began.ms, lambda slot: self.end(TIMER_TOPIC, slot))

    def _begin_lite_topics(self, topics: Iterable[str]) -> None:
        """New lite topics begin above all offsets of vanished ones, so that no queue offset is ever used twice."""
        for topic in topics:
            floor = self._lite_floors.get(parent_of(topic), 0) if LITE_SEPARATOR in topic else 0
            if floor and not self._queues.next_offset(topic, 0):
                self._queues.begin_at(topic, 0, floor)

    def _forget_lite_topics(self, effects: Effects) -> None:
        """Lite topics without messages vanish, together with the positions of groups in which no client reads from them. Idempotent."""
        gone: dict[str, None] = {}
        for parent, topics in self._lite_topics.items():
            for topic in topics:
                end = self._queues.next_offset(topic, 0)
                if end == self._queues.min_offset(topic, 0):
                    gone[topic] = None
                    floor = -(-end // LITE_FLOOR_STEP) * LITE_FLOOR_STEP
                    self._lite_floors[parent] = max(self._lite_floors.get(parent, 0), floor)
        for topic in gone:
            del self._lite_topics[parent_of(topic)][topic]
            self._lite_begins.pop(topic, None)
            self._queues.forget(topic, 0)
        effects.vanished.extend(gone)
        if gone:
            unread = [key for key in self.delivery.queues if key[1] in gone and not self.lite.read_by(key[0], key[1])]
            effects.touched.extend(self.delivery.drop(unread))

    def _apply_lite(self, record: control.LiteRecord, effects: Effects) -> None:
        """A group that is new to a lite topic begins at its end. A position in a lite topic without messages is forgotten once no client of
        the group reads from it. Idempotent."""
        new, gone = self.lite.apply(record)
        positions = dict(record.positions)
        for name in new:
            topic = lite_stored(record.topic, name)
            if name in positions:
                effects.touched.extend(self.delivery.apply_reset(record.group, topic, ((0, positions[name]),)))
                # Other clients of the group may find messages again.
                effects.topics[topic] = None
            else:
                self.delivery.meet((record.group, topic, 0), self.end(topic, 0))
        for name in gone:
            topic = lite_stored(record.topic, name)
            if self.begin(topic, 0) == self.end(topic, 0) and not self.lite.read_by(record.group, topic):
                self.delivery.leave((record.group, topic, 0))
        effects.lite.append(((record.group, record.topic, record.client), new))

    def _apply_group(self, record: control.GroupRecord) -> Touched:
        groups = dict(self.groups)
        touched: Touched = []
        if record.deleted:
            groups.pop(record.stored, None)
            touched = self.delivery.forget_group(record.stored)
            self.offsets.forget_group(record.stored)
            self.lite.forget_group(record.stored)
        else:
            groups[record.stored] = record.config
            self.lite.forget_group(record.stored, keep=stored_name(record.config.namespace, record.config.lite_topic))
        self.groups = groups
        return touched

    def _apply_topic(self, record: control.TopicRecord, effects: Effects) -> None:
        stored, config = record.stored, record.config
        known = self._topics.get(stored)
        effects.topics[stored] = None
        if record.deleted:
            self._topics.pop(stored, None)
            self._forget_topic(stored, effects)
        else:
            if known is None or known.config.incarnation != config.incarnation:
                self._forget_topic(stored, effects)
                known = self._topics[stored] = Topic(config, begin_pos=effects.entries.pos if self.lite_topics(stored) else 0)
            known.config = config
            if not config.dedup_ms:
                self.ids.forget_topic(stored)
            # Queue offsets never restart; in this incarnation a queue begins where it ends now.
            known.begins.extend(self.end(stored, queue) for queue in range(len(known.begins), config.queues))
        self._set_topics()

    def _set_topics(self) -> None:
        self.topics = {stored: topic.config for stored, topic in self._topics.items()}
        self._windows = {stored for stored, config in self.topics.items() if config.dedup_ms}

    def _forget_topic(self, stored: str, effects: Effects) -> None:
        effects.touched.extend(self.delivery.forget_topic(stored))
        self.letters.forget_topic(stored)
        effects.halves.extend(self.transactions.forget_topic(stored))
        self.offsets.forget_topic(stored)
        self.lite.forget_topic(stored)
        self._lite_begins.clear()
        self.ids.forget_topic(stored)

    def last_of_queues(self, entries: Range) -> list[tuple[str, int, int]]:
        """(topic, queue, last queue offset) of every queue in a range that is not applied yet."""
        columns = record_columns(entries)
        if columns.rows is not None:
            few = {(topic, queue): offset for topic, queue, offset, *_ in columns.rows}
            return [(topic, queue, offset) for (topic, queue), offset in few.items()]
        rows = zip(columns.topic_of.tolist(), columns.queues.tolist(), columns.queue_offsets.tolist(), strict=True)
        last = {(columns.topics[topic], queue): offset for topic, queue, offset in rows}
        return [(topic, queue, offset) for (topic, queue), offset in last.items()]

    # Snapshot

    def export(self, log_id: str) -> dict[str, Any]:
        """The state as JSON values (format §11)."""
        return {
            "v": snapshot_version(self.level),
            **({"level": self.level} if self.level > FIRST_LEVEL else {}),
            "log_id": log_id,
            "applied_index": self.applied_index,
            "applied_term": self.applied_term,
            "applied_end_pos": self.applied_end_pos,
            "chain_crc": self.chain_crc,
            "store_ms": self.store_ms,
            **({"time_epochs": self.time_epochs.export()} if self.time_epochs else {}),
            "queues": {topic: {str(queue): end for queue, end in ends.items()} for topic, ends in self._queues.next_offsets().items()},
            "minimums": export_minimums(self._queues.minimums()),
            "members": None if self.members is None else export_members(self.members),
            "topics": {stored: _export_topic(topic) for stored, topic in sorted(self._topics.items())},
            "groups": {stored: group_fields(group) for stored, group in sorted(self.groups.items())},
            "delivery": self.delivery.export(),
            "lapsed": self.delivery.lapsed.export(),
            "letters": self.letters.export(),
            "transactions": self.transactions.export(),
            "timers": self.timers.export(),
            "ids": self.ids.export(),
            "offsets": self.offsets.export(),
            "lite": self.lite.export(),
            "lite_floors": {topic: self._lite_floors[topic] for topic in sorted(self._lite_floors)},
            "producers": self.producers.export(),
            "retained": self.retained.export(),
        }

    def restore(self, exported: dict[str, Any]) -> None:
        """Replace the state by what `export` returned. The caller brings the consume queues to its `queues` and `minimums`."""
        self.level = exported.get("level", FIRST_LEVEL)
        self.members = restore_members(exported.get("members"))
        self._topics = {stored: _restore_topic(fields) for stored, fields in exported["topics"].items()}
        self._set_topics()
        self.groups = {stored: read_group(fields) for stored, fields in exported["groups"].items()}
        self._ends = {}
        lapsed = exported.get("lapsed")
        # Before version 5, lapsed leases were not stored: no lease from before is known to be acknowledged.
        self.delivery.restore(exported["delivery"], Lapsed(exported["applied_index"]) if lapsed is None else Lapsed.restored(lapsed))
        self.letters.restore(exported.get("letters", {}))
        self.ids.restore(exported.get("ids", {}))
        self.transactions.restore(exported.get("transactions", {}))
        self.timers.restore(exported.get("timers"))
        self.offsets.restore(exported.get("offsets", {}))
        self.lite.restore(exported.get("lite", {}))
        self.producers.restore(exported.get("producers", {}))
        self._lite_begins = {}
        self._lite_floors = dict(exported.get("lite_floors", {}))
        self._lite_topics = {}
        for topic in exported["queues"]:
            if LITE_SEPARATOR in topic:
                self._lite_topics.setdefault(parent_of(topic), {})[topic] = None
        self.retained.restore(exported["retained"])
        self.time_epochs = TimeEpochs.restored(exported.get("time_epochs", ()))
        self.applied_index = exported["applied_index"]
        self.applied_term = exported["applied_term"]
        self.applied_end_pos = exported["applied_end_pos"]
        self.chain_crc = exported["chain_crc"]
        self.store_ms = exported["store_ms"]


def last_store_ms(entries: Range) -> int:
    """Store time of the last entry of a range."""
    if entries.last_index - entries.first_index < FEW_ENTRIES:
        at = entries.edges[-2] + HEADER_BYTES + _STORE_MS.start
        return int.from_bytes(entries.data[at : at + 8], "big", signed=True)
    return _store_ms(entries, len(entries) - 1)


def _store_ms(entries: Range, at: int) -> int:
    return int.from_bytes(record_of(entries, at)[_STORE_MS], "big", signed=True)


def _control_records(entries: Range, columns: Columns, level_max: int) -> Iterator[tuple[int, control.ControlRecord]]:
    """(place in the range, record) of every control record, in order. Raises UnknownControlRecord."""
    for at in _places_of(columns, CONTROL_TOPICS):
        message = _record_at(entries, at)
        record = control.decode(parse(message.properties).get("TAGS", ""), message.body)
        if isinstance(record, control.LevelRecord) and record.level > level_max:
            what = f"entry {entries.first_index + at} raises the broker group to level {record.level}, this program reads up to {level_max}"
            raise control.UnknownControlRecord(f"{what}; start the version that raised it")
        yield at, record


def _half_messages(entries: Range, columns: Columns) -> Iterator[tuple[int, NewHalf]]:
    """(place in the range, half message) of every half message, in order."""
    for at in _places_of(columns, (HALF_TOPIC,)):
        record = _record_at(entries, at)
        yield at, NewHalf(record.queue_offset, half_of(entries.first_index + at, record.store_ms, parse(record.properties)))


def _places_of(columns: Columns, topics: Collection[str]) -> list[int]:
    """The places of the messages on these topics, ascending."""
    if columns.rows is not None:
        return [at for at, row in enumerate(columns.rows) if row[0] in topics]
    numbers = [number for number, topic in enumerate(columns.topics) if topic in topics]
    places: list[int] = np.flatnonzero(np.isin(columns.topic_of, numbers)).tolist() if numbers else []
    return places


def _flags(columns: Columns) -> list[int] | I32:
    return columns.flags if columns.rows is None else [row[7] for row in columns.rows]


def _record_at(entries: Range, at: int) -> Record:
    return decode_record(record_of(entries, at))


def _export_topic(topic: Topic) -> dict[str, Any]:
    c = topic.config
    return {
        "ns": c.namespace,
        "name": c.name,
        "kind": c.kind.value,
        "queues": c.queues,
        "perm": c.permission.value,
        "incarnation": c.incarnation,
        "begins": list(topic.begins),
        "durability": c.durability.value,
        **({"dedup_ms": c.dedup_ms} if c.dedup_ms else {}),
        **({"begin_pos": topic.begin_pos} if topic.begin_pos else {}),
    }


def _restore_topic(fields: dict[str, Any]) -> Topic:
    kind, permission = TopicKind(fields["kind"]), Permission(fields["perm"])
    durability = TopicDurability(fields.get("durability", ""))
    named = fields["ns"], fields["name"], kind, fields["queues"], permission, fields["incarnation"]
    config = TopicConfig(*named, durability=durability, dedup_ms=fields.get("dedup_ms", 0))
    return Topic(config, list(fields["begins"]), fields.get("begin_pos", 0))
