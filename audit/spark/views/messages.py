"""The view `messages`: one row per message, with body and properties as its producer sent them; and
the view `records`: one row per control record, with its JSON.

There is a row only if the record can be trusted: damaged entries are in `entries` only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.audit.checks.replica import Replica
from ledgermq.audit.reading.bodies import PACKINGS, unpack, unpacked_max
from ledgermq.audit.reading.columns import native_ids
from ledgermq.audit.reading.decode import HEADER_BYTES, I64, RECORD_FIXED_BYTES, Flags
from ledgermq.audit.reading.entries import Entries
from ledgermq.audit.reading.properties import Properties, find_properties
from ledgermq.audit.spark.views.entries import log_shares, topics_of, wanted_entries
from ledgermq.audit.spark.views.view import Batch, Share, moments, stretches, texts
from ledgermq.audit.spark.views.wanted import GROUP, INDEX, MS, POS, REPLICA, TIME, TOPIC, Wanted
from ledgermq.proto.names import CONTROL_TOPICS

ID, TAG, KEYS, KEY_LIST, MESSAGE_GROUP, ENCODING = (
    "UNIQ_KEY",
    "TAGS",
    "KEYS",
    "__LMQ.KEYS",
    "__SHARDINGKEY",
    "__LMQ.ENC",
)
OWN_PREFIX, ESCAPE = "__LMQ.", "__LMQ.U."
SYSTEM = {
    ID,
    TAG,
    KEYS,
    MESSAGE_GROUP,
    "TRACE_CONTEXT",
    "__BORNHOST",
    "PRIORITY",
    "TRAN_MSG",
    "TIMER_DELIVER_MS",
    "__LITE_TOPIC",
}
SYSTEM |= {"REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"}
"""Stored names that are not user properties (docs/format.md §4.1, §4.3, §4.4), besides those that
start with `__LMQ.`."""
BORN_MS_MAX = 253_402_300_799_999
ID_AT = len(b"UNIQ_KEY\x01")
PART_BYTES = 32 << 20
"""A Spark batch has at most about this many bytes of bodies: a window of the log can hold a
thousand times as many, compressed."""


@dataclass
class Messages:
    """Sound entries and their property strings, which are parsed when needed."""

    entries: Entries
    rows: I64

    @cached_property
    def properties(self) -> Properties:
        """`owner` is an index into `rows`."""
        entries, rows = self.entries, self.rows
        return find_properties(
            entries.window, entries.parts.property_at[rows], (entries.at + entries.sizes)[rows]
        )

    @cached_property
    def names(self) -> pa.DictionaryArray:
        """The name of each property."""
        properties = self.properties
        return texts(properties.data, properties.name_at, properties.name_bytes).dictionary_encode()

    def field(self, name: str) -> I64:
        return self.entries.field(name)[self.rows]

    def text(self, name: str) -> pa.Array:
        """The value of one property in each row; null if it is missing."""
        properties = self.properties
        numbers = properties.named(name.encode())
        owners, first = np.unique(properties.owner[numbers], return_index=True)
        numbers = numbers[first]
        place = np.zeros(len(self.rows), np.int64)
        missing = np.ones(len(self.rows), np.bool_)
        place[owners], missing[owners] = np.arange(len(owners)), False
        return texts(
            properties.data, properties.value_at[numbers], properties.value_bytes[numbers]
        ).take(pa.array(place, mask=missing))

    def keys(self) -> pa.Array:
        """The keys of each message, in order."""
        joined = self.text(KEYS)
        lists = pc.split_pattern(pc.fill_null(joined, ""), " ").cast(pa.list_(pa.string()))
        lists = pc.if_else(pc.is_null(joined), pa.array([[]], pa.list_(pa.string()))[0], lists)
        exact = self.text(KEY_LIST)
        if exact.null_count == len(exact):
            return lists
        plain = lists.to_pylist()
        return pa.array(
            [_key_list(text, keys) for text, keys in zip(exact.to_pylist(), plain, strict=True)],
            pa.list_(pa.string()),
        )

    def pairs(self, system: bool) -> pa.Array:
        """The user properties of each message, or the system properties."""
        kinds = [_user_name(name) for name in self.names.dictionary.to_pylist()]
        of = self.names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        mine = (
            np.array([(name is None) == system for name in kinds], np.bool_)[of]
            if len(of)
            else np.zeros(0, np.bool_)
        )
        shown = (
            self.names.dictionary
            if system
            else pa.array([name or "" for name in kinds], pa.string())
        )
        properties = self.properties.take(np.flatnonzero(mine))
        offsets = np.zeros(len(self.rows) + 1, np.int64)
        np.cumsum(np.bincount(properties.owner, minlength=len(self.rows)), out=offsets[1:])
        names = shown.take(pa.array(of[mine]))
        values = texts(properties.data, properties.value_at, properties.value_bytes)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values)

    def packings(self) -> list[str | None]:
        """The compression of each stored body."""
        encoded = self.text(ENCODING)
        flags = self.field("sys_flag").tolist()
        if encoded.null_count == len(encoded) and not any(flags):
            return [None] * len(flags)
        return [
            PACKINGS.get(flag) or ("gzip" if text == "GZIP" else None)
            for flag, text in zip(flags, encoded.to_pylist(), strict=True)
        ]

    def stored_bodies(self) -> pa.Array:
        """Every body as it is stored."""
        at = self.entries.at[self.rows] + HEADER_BYTES + RECORD_FIXED_BYTES
        return stretches(np.frombuffer(self.entries.window, np.uint8), at, self.field("body_bytes"))

    def parts(self) -> Iterator[Messages]:
        """The same messages in pieces whose bodies take at most `PART_BYTES` when they are
        decompressed, or are one."""
        packed = self.packings()
        lengths = self.field("body_bytes").astype(np.int64)
        if any(packed):
            stored = self.stored_bodies().to_pylist()
            most = [
                unpacked_max(one, how) if how else 0
                for one, how in zip(stored, packed, strict=True)
            ]
            lengths = np.maximum(lengths, np.array(most))
        begin, size = 0, 0
        for row, length in enumerate(lengths.tolist()):
            if size + length > PART_BYTES and row > begin:
                yield Messages(self.entries, self.rows[begin:row])
                begin, size = row, 0
            size += length
        yield self if begin == 0 else Messages(self.entries, self.rows[begin:])

    def bodies(self) -> pa.Array:
        """Every body as its producer sent it; null if it cannot be decompressed."""
        plain = self.stored_bodies()
        packed = self.packings()
        if not any(packed):
            return plain
        unpacked = [
            body if packing is None else unpack(body, packing)
            for body, packing in zip(plain.to_pylist(), packed, strict=True)
        ]
        return pa.array(unpacked, pa.binary())

    # ------------------------------------------------------------------------------------------------- native messages

    @cached_property
    def native(self) -> Flags:
        """Which messages are from a frame of a native producer, with a native id."""
        entries, rows = self.entries, self.rows
        is_native: Flags = self.field("flag") > 0
        ends = entries.at + entries.sizes
        is_native[is_native] = native_ids(
            entries.window, entries.parts.property_at[rows[is_native]], ends[rows[is_native]]
        )
        return is_native

    def digits(self, first: int, count: int) -> pa.Array:
        """The number in `count` bytes of native ids, from byte `first` of the id on."""
        rows = self.rows[self.native]
        data = np.frombuffer(self.entries.window, np.uint8)
        at = self.entries.parts.property_at[rows] + ID_AT + 2 * first
        letters = data[at[:, None] + np.arange(2 * count)].astype(np.int64)
        values = np.where(letters < ord("A"), letters - ord("0"), letters - ord("A") + 10)
        number = np.zeros(len(self.rows), np.int64)
        number[self.native] = values @ (16 ** np.arange(2 * count - 1, -1, -1, dtype=np.int64))
        return pa.array(number, mask=~self.native)


def _key_list(text: str | None, keys: list[str]) -> list[str]:
    """The exact list of keys, if the record has one."""
    try:
        exact = json.loads(text) if text is not None else None
    except ValueError:
        return keys
    return exact if isinstance(exact, list) and all(isinstance(key, str) for key in exact) else keys


def _user_name(stored: str) -> str | None:
    """The user's name of a stored property; None if it is a system property."""
    if stored.startswith(ESCAPE):
        return stored.removeprefix(ESCAPE)
    return None if stored in SYSTEM or stored.startswith(OWN_PREFIX) else stored


class MessagesView:
    """Names as in the view `messages` of a running cluster, and some more."""

    columns: Mapping[str, str] = {
        "replica": "string",
        "broker_group": "string",
        "topic": "string",
        "queue": "int",
        "offset": "bigint",
        "index": "bigint",
        "term": "bigint",
        "pos": "bigint",
        "store_time": "timestamp",
        "born_time": "timestamp",
        "message_id": "string",
        "tag": "string",
        "keys": "array<string>",
        "message_group": "string",
        "properties": "map<string,string>",
        "system": "map<string,string>",
        "origin": "bigint",
        "native_producer": "bigint",
        "native_epoch": "int",
        "native_sequence": "bigint",
        "frame_position": "int",
        "packing": "string",
        "body": "binary",
    }
    bounds: Mapping[str, str] = {
        "replica": REPLICA,
        "broker_group": GROUP,
        "topic": TOPIC,
        "index": INDEX,
        "pos": POS,
        "store_time": TIME,
    }
    kinds = frozenset({INDEX, MS, TOPIC})

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        return log_shares(replica, wanted)

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        for entries, rows in wanted_entries(share, wanted):
            rows = rows[entries.sound[rows]]
            rows = rows[~control_flags(entries)[rows]]
            if len(rows):
                yield from map(self._batch, Messages(entries, rows).parts())

    @staticmethod
    def _batch(messages: Messages) -> Batch:
        entries, rows = messages.entries, messages.rows
        task = entries.task
        return Batch(
            len(rows),
            {
                "replica": lambda: task.replica,
                "broker_group": lambda: task.group,
                "topic": lambda: topics_of(entries, rows),
                "queue": lambda: messages.field("queue"),
                "offset": lambda: messages.field("queue_offset"),
                "index": lambda: entries.index[rows],
                "term": lambda: messages.field("term"),
                "pos": lambda: entries.pos[rows],
                "store_time": lambda: moments(np.clip(messages.field("store_ms"), 0, BORN_MS_MAX)),
                "born_time": lambda: moments(np.clip(messages.field("born_ms"), 0, BORN_MS_MAX)),
                "message_id": lambda: messages.text(ID),
                "tag": lambda: messages.text(TAG),
                "keys": messages.keys,
                "message_group": lambda: messages.text(MESSAGE_GROUP),
                "properties": lambda: messages.pairs(system=False),
                "system": lambda: messages.pairs(system=True),
                "origin": lambda: _unless_zero(messages.field("prepared_offset")),
                "native_producer": lambda: messages.digits(5, 4),
                "native_epoch": lambda: messages.digits(9, 2),
                "native_sequence": lambda: messages.digits(11, 6),
                "frame_position": lambda: _unless_zero(messages.field("flag")),
                "packing": lambda: pa.array(messages.packings(), pa.string()),
                "body": messages.bodies,
            },
        )


def _unless_zero(values: I64) -> pa.Array:
    return pa.array(values, mask=values == 0)


class RecordsView:
    """Control records (docs/format.md §11): topic, kind, and the body as JSON text."""

    columns: Mapping[str, str] = {
        "replica": "string",
        "group": "string",
        "index": "bigint",
        "term": "bigint",
        "store_ms": "bigint",
        "topic": "string",
        "kind": "string",
        "body": "string",
    }
    bounds: Mapping[str, str] = {
        "replica": REPLICA,
        "group": GROUP,
        "index": INDEX,
        "topic": TOPIC,
        "store_ms": MS,
    }
    kinds = frozenset({INDEX, MS, TOPIC})

    def shares(self, replica: Replica, wanted: Wanted) -> list[Share]:
        controls = CONTROL_TOPICS if wanted.topics is None else wanted.topics & CONTROL_TOPICS
        return log_shares(replica, replace(wanted, topics=frozenset(controls))) if controls else []

    def read(self, share: Share, wanted: Wanted) -> Iterator[Batch]:
        for entries, rows in wanted_entries(share, wanted):
            rows = rows[entries.sound[rows] & control_flags(entries)[rows]]
            if len(rows):
                yield self._batch(Messages(entries, rows))

    @staticmethod
    def _batch(messages: Messages) -> Batch:
        entries, rows = messages.entries, messages.rows
        task = entries.task
        at, lengths = (
            entries.at[rows] + HEADER_BYTES + RECORD_FIXED_BYTES,
            messages.field("body_bytes"),
        )
        return Batch(
            len(rows),
            {
                "replica": lambda: task.replica,
                "group": lambda: task.group,
                "index": lambda: entries.index[rows],
                "term": lambda: messages.field("term"),
                "store_ms": lambda: messages.field("store_ms"),
                "topic": lambda: topics_of(entries, rows),
                "kind": lambda: messages.text(TAG),
                "body": lambda: texts(np.frombuffer(entries.window, np.uint8), at, lengths),
            },
        )


def control_flags(entries: Entries) -> Flags:
    """Which entries are control records."""
    names = [topic.decode("utf-8", "replace") in CONTROL_TOPICS for topic in entries.parts.topics]
    return np.array(names, np.bool_)[entries.parts.topic_of]
