"""Applies the committed log to the derived state of one broker group (invariant I8): the only code
that changes that state.

`apply` takes committed ranges in order: messages go to the consume queues as columns, every record
to the part that its type belongs to (`RECORDS`, `MARKS`). What concerns all parts is applied here:
topics, consumer groups, trims, levels and time epochs. Leader and followers run the same code on
the same bytes. An unknown control record stops the replica before any part of its range is applied.
A range that met a full disk is simply applied again: dispatching to the queues is idempotent, and
everything else happens after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, get_args

import numpy as np

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.origins import Mark, marks
from ledgermq.node.broker.part import Effects, StatePart, Takers, handlers, last_store_ms
from ledgermq.node.broker.parts.dead_letters.letters import Letters
from ledgermq.node.broker.parts.delivery.delivery import Delivery
from ledgermq.node.broker.parts.lite.lite import LiteSets
from ledgermq.node.broker.parts.members.member_forms import (
    export_members,
    members_of,
    restore_members,
)
from ledgermq.node.broker.parts.producers.producers import Producers
from ledgermq.node.broker.parts.pulls.committed_offsets import Offsets
from ledgermq.node.broker.parts.retention.retained import Retained, Trimmed
from ledgermq.node.broker.parts.sends.message_ids import Ids
from ledgermq.node.broker.parts.timers.timers import Timers
from ledgermq.node.broker.parts.transactions.transactions import (
    NewHalf,
    Transactions,
    half_messages,
)
from ledgermq.node.broker.ports import Queues
from ledgermq.node.broker.queues import LiteKey, Places, QueueKey, Topic, Touched
from ledgermq.proto.entries.layout import Columns, record_columns
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.native_ids import Run, native_runs
from ledgermq.proto.entries.properties import INCARNATION, REAL_QUEUE, REAL_TOPIC, parse
from ledgermq.proto.entries.ranges import cut, record_of
from ledgermq.proto.levels import FIRST_LEVEL, LEVEL_MAX, TREE_LEVEL, snapshot_version
from ledgermq.proto.names import CONTROL_TOPICS, HALF_TOPIC, LITE_SEPARATOR, TIMER_TOPIC, parent_of
from ledgermq.proto.records import control
from ledgermq.proto.records.group_config import group_fields, read_group
from ledgermq.proto.records.time_epochs import TimeEpoch, TimeEpochs
from ledgermq.proto.types import (
    I32,
    Permission,
    Range,
    ReplicaStatus,
    TopicConfig,
    TopicDurability,
    TopicKind,
)
from ledgermq.storage.state.snapshot import export_minimums

_SPECIAL_TOPICS = CONTROL_TOPICS | {HALF_TOPIC}
_BETWEEN = frozenset(
    {
        control.TopicRecord,
        control.TrimRecord,
        control.LiteRecord,
        control.LevelRecord,
        control.TimeEpochRecord,
    }
)
"""Records whose effect depends on which messages precede them."""


class Machine(Places):
    """The state, and how committed entries change it."""

    level_max: int = LEVEL_MAX
    """The highest feature level that this program reads."""

    def __init__(
        self,
        queues: Queues,
        read_record: Callable[[int, int], bytes | memoryview],
        index_at: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(queues, read_record, index_at)
        self.members: GroupMembers | None = None
        """From the last membership record applied; None before the first. Replaced, never
        mutated."""
        self.delivery = Delivery(self.first_position)
        self.letters = Letters(self.delivery, self.begin)
        """The dead letters that are settled."""
        self.transactions = Transactions(self.begin)
        self.timers = Timers(self.end)
        self.ids = Ids()
        """Message ids of topics with a deduplication window."""
        self.offsets = Offsets(self.delivery, self.queues_of)
        """The offsets that consumer groups committed."""
        self.lite = LiteSets(self, self.delivery)
        """The lite topics that clients subscribe to."""
        self.producers = Producers()
        """The producers of native frames."""
        self.retained = Retained()
        """Begin, seals and trims of the log."""
        self._windows: set[str] = set()
        """Topics with a deduplication window."""
        self._parts: tuple[StatePart, ...] = (
            *(self.delivery, self.letters, self.transactions, self.timers, self.ids),
            *(self.offsets, self.lite, self.producers, self.retained),
        )
        """In the order of a snapshot."""
        self._appliers = handlers((self, *self._parts), "RECORDS")
        self._marks = handlers(self._parts, "MARKS")
        self._touched: Touched = []
        """Rows touched so far by the current range: applying it may take several attempts, and
        removed rows are found only once."""
        self._halves: list[int] = []
        self._lite_changed: list[tuple[LiteKey, list[str]]] = []
        self._vanished: list[str] = []

    # Reading

    @property
    def begin_index(self) -> int:
        """The first entry of the log, according to the records."""
        return self.retained.begin_index

    @property
    def begin_pos(self) -> int:
        """The position where the file of the first entry begins."""
        return self.retained.begin_pos

    @property
    def seals(self) -> Mapping[int, control.SealRecord]:
        """Base → seal, for the sealed files that are still part of the log."""
        return self.retained.seals

    @property
    def trims(self) -> tuple[Trimmed, ...]:
        """The last trims, oldest first."""
        return self.retained.trims

    @property
    def trim_digest(self) -> str:
        """Rolling digest over all trim records of the log's history."""
        return self.retained.trim_digest

    def first_position(self, topic: str, queue: int) -> int:
        """The lowest position of a consumer group in a queue: below `begin` if the object store has
        what was trimmed."""
        return self.floor(topic, queue) if self.retained.stored else self.begin(topic, queue)

    def cursor(self, key: QueueKey) -> int:
        """A consumer group's position in a queue, however it reads: the next offset never leased,
        or the one it committed. If a group does both, the higher one, also in a queue in which it
        commits but has never leased."""
        return max(self.delivery.cursor(key), self.offsets.get(key) or 0)

    def delayed_state(self, offset: int, properties: bytes) -> tuple[str, int]:
        """As `Timers.state_of`, and `dropped` for a message that waits for its time although its
        topic no longer exists. Safe on a thread: what is read here is replaced, not changed in
        place."""
        state, deliver_ms = self.timers.state_of(offset, properties)
        stored = parse(properties)
        if state == "delayed" and not self.takes(
            stored[REAL_TOPIC], int(stored[INCARNATION]), int(stored[REAL_QUEUE])
        ):
            state = "dropped"
        return state, deliver_ms

    @property
    def voters(self) -> tuple[str, ...]:
        """The voters of the last membership record applied; empty before the first."""
        return () if self.members is None else self.members.voters

    def fill_status(self, status: ReplicaStatus) -> ReplicaStatus:
        """The replicator's status, with the applied index filled in."""
        return replace(status, applied_index=self.applied_index)

    # Applying

    def apply(self, entries: Range) -> Effects:
        """Apply committed entries that follow the applied index, at least the first of them. Raises
        NoSpace and UnknownControlRecord.

        Some records take effect between the messages before and after them (`_BETWEEN`), so the
        applied part ends before the next such record.
        """
        assert entries.first_index == self.applied_index + 1, (
            f"entry {entries.first_index} does not follow {self.applied_index}"
        )
        columns = record_columns(entries)
        plain = columns.rows is not None and not any(
            [row[0] in _SPECIAL_TOPICS or row[6] or row[7] for row in columns.rows]
        )
        records = [] if plain else self._records(entries, columns)
        later = (
            [at for at, record in records if type(record) in _BETWEEN and at > 0] if records else ()
        )
        if later:
            entries = cut(entries, entries.first_index + later[0] - 1)
            columns = record_columns(entries)
            # No run is cut in two: the record stands between runs.
            records = [(at, record) for at, record in records if at < later[0]]
        self.settled = False
        topics = dict.fromkeys([topic for topic in columns.topics if topic not in CONTROL_TOPICS])
        effects = Effects(
            entries=entries,
            columns=columns,
            topics=topics,
            touched=self._touched,
            halves=self._halves,
            lite=self._lite_changed,
            vanished=self._vanished,
        )
        if records and records[0][0] == 0 and type(records[0][1]) in _BETWEEN:
            _, first = records.pop(0)
            self._appliers[type(first)](entries.first_index, first, effects)
        if self._lite_floors:
            self._meet_lite_topics(columns.topics)
        self._queues.append(columns)
        if TIMER_TOPIC in columns.topics:
            self.timers.apply_stored(columns)
        if self._windows:
            self.ids.apply_range(entries, columns, self._windows, self.topics, self.level)
        for topic in effects.topics:
            self._ends.pop(topic, None)
        for topic in columns.topics:
            # Only lite topics with messages: a position in one without messages creates no queue.
            if LITE_SEPARATOR in topic:
                self._lite_topics.setdefault(parent_of(topic), {})[topic] = None
        for at, record in records:
            self._appliers[type(record)](entries.first_index + at, record, effects)
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
        return effects

    def _records(self, entries: Range, columns: Columns) -> list[tuple[int, Any]]:
        """(place in the range, record) of every entry, or run of entries, that is more than a
        message, in order. Raises UnknownControlRecord."""
        records: list[tuple[int, Any]] = [*_control_records(entries, columns, self.level_max)]
        marked: list[tuple[int, Any]] = [
            *half_messages(entries, _places_of(columns, (HALF_TOPIC,))),
            *marks(entries, columns, self._marks),
            *[(run.at, run) for run in native_runs(entries, _flags(columns))],
        ]
        return sorted([*records, *marked], key=lambda item: item[0]) if marked else records

    def _take_mark(self, index: int, mark: Mark, effects: Effects) -> None:
        self._marks[mark.kind](index, mark, effects)

    def _take_members(self, index: int, record: control.Membership, effects: Effects) -> None:
        self.members = members_of(index, record)

    def _take_note(self, index: int, record: control.ControlRecord, effects: Effects) -> None:
        """Terms concern the replicator, markers the audit."""

    def _take_level(self, index: int, record: control.LevelRecord, effects: Effects) -> None:
        if record.level == self.level + 1:
            self.level = record.level
            if record.level == TREE_LEVEL:
                self.retained.begin_tree()

    def _take_trim(self, index: int, record: control.TrimRecord, effects: Effects) -> None:
        """Messages before the new begin are consumed for every group, unless the object store has
        them. Idempotent, because a full disk may interrupt it."""
        self._queues.raise_minimums(max(record.begin_pos, self.begin_pos))
        self.retained.apply_trim(index, effects.store_ms(index), record)
        effects.vanished.extend(self._forget_lite_topics())
        # Before the cursors rise: the order in which leases lapse is part of the format.
        self.lite.topics_vanished(effects)
        for part in self._parts:
            part.trimmed(effects)

    def _take_time_epoch(
        self, index: int, record: control.TimeEpochRecord, effects: Effects
    ) -> None:
        """Idempotent, because a full disk may interrupt it."""
        began = TimeEpoch(index, effects.entries.pos, effects.store_ms(index))
        effects.time_epoch = True
        known, self.time_epochs = self.time_epochs, self.time_epochs.with_begin(began)
        if self.time_epochs is not known:
            for part in self._parts:
                part.time_epoch_began(began.ms)

    def _take_group(self, index: int, record: control.GroupRecord, effects: Effects) -> None:
        groups = dict(self.groups)
        if record.deleted:
            groups.pop(record.stored, None)
        else:
            groups[record.stored] = record.config
        for part in self._parts:
            part.group_changed(record.stored, None if record.deleted else record.config, effects)
        self.groups = groups

    def _take_topic(self, index: int, record: control.TopicRecord, effects: Effects) -> None:
        stored, config = record.stored, record.config
        known = self._topics.get(stored)
        effects.topics[stored] = None
        if record.deleted:
            self._topics.pop(stored, None)
            self._end_topic(stored, effects)
        else:
            if known is None or known.config.incarnation != config.incarnation:
                self._end_topic(stored, effects)
                known = self._topics[stored] = Topic(
                    config, begin_pos=effects.entries.pos if self.lite_topics(stored) else 0
                )
            known.config = config
            if not config.dedup_ms:
                self.ids.forget_topic(stored)
            # Queue offsets never restart; in this incarnation a queue begins where it ends now.
            known.begins.extend(
                self.end(stored, queue) for queue in range(len(known.begins), config.queues)
            )
        self._set_topics()

    def _end_topic(self, stored: str, effects: Effects) -> None:
        for part in self._parts:
            part.topic_ended(stored, effects)
        self._lite_begins.clear()

    def _set_topics(self) -> None:
        self.topics = {stored: topic.config for stored, topic in self._topics.items()}
        self._windows = {stored for stored, config in self.topics.items() if config.dedup_ms}

    RECORDS: ClassVar[Takers] = {
        Mark: _take_mark,
        control.Membership: _take_members,
        control.LevelRecord: _take_level,
        control.TrimRecord: _take_trim,
        control.TimeEpochRecord: _take_time_epoch,
        control.GroupRecord: _take_group,
        control.TopicRecord: _take_topic,
        **dict.fromkeys((control.TermStart, control.ForcedRecord, control.AuditRecord), _take_note),
    }
    """What concerns all parts, or none."""

    def last_of_queues(self, entries: Range) -> list[tuple[str, int, int]]:
        """(topic, queue, last queue offset) of every queue in a range that is not applied yet."""
        columns = record_columns(entries)
        if columns.rows is not None:
            few = {(topic, queue): offset for topic, queue, offset, *_ in columns.rows}
            return [(topic, queue, offset) for (topic, queue), offset in few.items()]
        rows = zip(
            columns.topic_of.tolist(),
            columns.queues.tolist(),
            columns.queue_offsets.tolist(),
            strict=True,
        )
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
            "queues": {
                topic: {str(queue): end for queue, end in ends.items()}
                for topic, ends in self._queues.next_offsets().items()
            },
            "minimums": export_minimums(self._queues.minimums()),
            "members": None if self.members is None else export_members(self.members),
            "topics": {
                stored: _export_topic(topic) for stored, topic in sorted(self._topics.items())
            },
            "groups": {
                stored: group_fields(group) for stored, group in sorted(self.groups.items())
            },
            **{key: value for part in self._parts for key, value in part.values().items()},
        }

    def restore(self, exported: dict[str, Any]) -> None:
        """Replace the state by what `export` returned. The caller brings the consume queues to its
        `queues` and `minimums`."""
        self.level = exported.get("level", FIRST_LEVEL)
        self.members = restore_members(exported.get("members"))
        self._topics = {
            stored: _restore_topic(fields) for stored, fields in exported["topics"].items()
        }
        self._set_topics()
        self.groups = {stored: read_group(fields) for stored, fields in exported["groups"].items()}
        self._ends = {}
        self._restore_lite_topics(exported["queues"], exported.get("lite_floors", {}))
        for part in self._parts:
            part.load(exported)
        self.time_epochs = TimeEpochs.restored(exported.get("time_epochs", ()))
        self.applied_index = exported["applied_index"]
        self.applied_term = exported["applied_term"]
        self.applied_end_pos = exported["applied_end_pos"]
        self.chain_crc = exported["chain_crc"]
        self.store_ms = exported["store_ms"]


_PARTS = (
    Machine,
    Delivery,
    Letters,
    Transactions,
    Timers,
    Ids,
    Offsets,
    LiteSets,
    Producers,
    Retained,
)
# What no part takes, or two, is found here and not by a replica.
handlers(_PARTS, "RECORDS", {*get_args(control.ControlRecord), Mark, NewHalf, Run})
handlers(_PARTS[1:], "MARKS")


def _control_records(
    entries: Range, columns: Columns, level_max: int
) -> Iterator[tuple[int, control.ControlRecord]]:
    """(place in the range, record) of every control record, in order. Raises
    UnknownControlRecord."""
    for at in _places_of(columns, CONTROL_TOPICS):
        message = decode_record(record_of(entries, at))
        record = control.decode(parse(message.properties).get("TAGS", ""), message.body)
        if isinstance(record, control.LevelRecord) and record.level > level_max:
            what = (
                f"entry {entries.first_index + at} raises the broker group to level {record.level},"
                f" this program reads up to {level_max}"
            )
            raise control.UnknownControlRecord(f"{what}; start the version that raised it")
        yield at, record


def _places_of(columns: Columns, topics: Collection[str]) -> list[int]:
    """The places of the messages on these topics, ascending."""
    if columns.rows is not None:
        return [at for at, row in enumerate(columns.rows) if row[0] in topics]
    numbers = [number for number, topic in enumerate(columns.topics) if topic in topics]
    places: list[int] = (
        np.flatnonzero(np.isin(columns.topic_of, numbers)).tolist() if numbers else []
    )
    return places


def _flags(columns: Columns) -> list[int] | I32:
    return columns.flags if columns.rows is None else [row[7] for row in columns.rows]


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
    config = TopicConfig(
        namespace=fields["ns"],
        name=fields["name"],
        kind=TopicKind(fields["kind"]),
        queues=fields["queues"],
        permission=Permission(fields["perm"]),
        incarnation=fields["incarnation"],
        durability=TopicDurability(fields.get("durability", "")),
        dedup_ms=fields.get("dedup_ms", 0),
    )
    return Topic(config, list(fields["begins"]), fields.get("begin_pos", 0))
