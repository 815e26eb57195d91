"""The entries of a log in order, for deriving state from them: plain messages as columns, the
others one by one.

An entry is *of interest* if it is more than a message: control records, half messages, and messages
made from another entry (docs/format.md §4.3). Only these become objects. Some control records take
effect between the messages before and behind them; such an entry is a stretch by itself. Nothing is
judged: a log that cannot be followed ends the reading with `Unreadable`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ledgermq.audit.reading.begin import Begin
from ledgermq.audit.reading.columns import fire_time, intern
from ledgermq.audit.reading.decode import (
    HEADER_BYTES,
    I64,
    NOT_JSON,
    RECORD_FIXED_BYTES,
    RECORD_V1,
    RECORD_V2,
    U8,
    crc,
    tags_code,
)
from ledgermq.audit.reading.files import open_file
from ledgermq.audit.reading.walk import LogFile, Piece, Walk
from ledgermq.proto.carried import Carried

RAFT_TOPIC = "rmq_sys_ledgermq_raft"
CONFIG_TOPIC = "rmq_sys_ledgermq_config"
DELIVERY_TOPIC = "rmq_sys_ledgermq_delivery"
STORAGE_TOPIC = "rmq_sys_ledgermq_storage"
CONTROL_TOPICS = frozenset({RAFT_TOPIC, CONFIG_TOPIC, DELIVERY_TOPIC, STORAGE_TOPIC})
TIMER_TOPIC = "rmq_sys_ledgermq_timer"
HALF_TOPIC = "rmq_sys_ledgermq_half"
WAITING_TOPICS = frozenset({TIMER_TOPIC, HALF_TOPIC})

TURNING = frozenset({"topic", "producer", "trim", "lite", "level", "time-epoch"})
"""Kinds of control records that take effect exactly at their place: before their own message is in
its queue, and between all others."""
NO_FIELDS: dict[str, Any] = {}
"""The kind of an entry that is not a control record."""
VERSIONS = {"membership": (1, 2, 3, 4), "producer": (1, 2), "seal": (1, 2), "trim": (1, 2)}
"""Versions of control records; all others have version 1."""
LITE = "$"
BODY_AT = 48 + 88
"""Where the body begins in an entry (docs/format.md §3, §4)."""


class Unreadable(Carried):
    """The log cannot be followed as far as requested; the text says why."""


class Unknown(Unreadable):
    """A record written by a later version of the program."""


class BadRecord(Unreadable):
    """A record that affects the state, in the entry at `index` and position `pos`, does not conform
    to docs/format.md §11."""

    def __init__(self, index: int, pos: int, size: int, why: str) -> None:
        super().__init__(f"entry {index} is a record that {why}")
        self.index, self.pos, self.size = index, pos, size


def stored_name(namespace: str, name: str) -> str:
    """The stored name of a topic or consumer group in a namespace."""
    return f"{namespace}@{name}" if namespace else name


def parent_of(topic: str) -> str:
    """The topic of kind lite to which a stored lite topic belongs; other topics are returned
    unchanged. For a client of a broadcasting group, the group."""
    return topic.partition(LITE)[0]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of interest. `pos`: of the entry; its record is 48 bytes behind. `origin`: index of
    the entry that it was made from, or 0.

    For a control record `kind` is its tag, `fields` its JSON body and `body` the bytes of the body;
    for other entries they are empty.
    """

    index: int
    term: int
    pos: int
    size: int
    topic: str
    queue: int
    queue_offset: int
    store_ms: int
    origin: int
    properties: dict[str, str]
    kind: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""

    @property
    def turning(self) -> bool:
        return self.kind in TURNING

    @property
    def origin_text(self) -> tuple[str, ...]:
        """The value of `__LMQ.ORIGIN`, split at its colons; empty if there is none."""
        text = self.properties.get("__LMQ.ORIGIN", "")
        return tuple(text.split(":")) if text else ()


@dataclass(frozen=True, slots=True)
class Messages:
    """Consecutive entries as columns: every entry is a message of some queue. `pos` as in `Entry`;
    `chain`: the stored word."""

    index: I64
    term: I64
    pos: I64
    size: I64
    chain: I64
    queue: I64
    queue_offset: I64
    store_ms: I64
    flag: I64
    origin: I64
    topic_of: I64
    topics: list[str]
    """Names of topics; `topic_of` are indexes into it, and not all need occur."""
    base: int
    """Position of the log file that contains all of them."""
    window: bytes
    property_at: I64
    """Where the properties begin in `window`."""
    property_end: I64

    def __len__(self) -> int:
        return len(self.index)

    def part(self, start: int, stop: int) -> Messages:
        """Rows start … stop − 1."""
        cut = slice(start, stop)
        return Messages(
            index=self.index[cut],
            term=self.term[cut],
            pos=self.pos[cut],
            size=self.size[cut],
            chain=self.chain[cut],
            queue=self.queue[cut],
            queue_offset=self.queue_offset[cut],
            store_ms=self.store_ms[cut],
            flag=self.flag[cut],
            origin=self.origin[cut],
            topic_of=self.topic_of[cut],
            topics=self.topics,
            base=self.base,
            window=self.window,
            property_at=self.property_at[cut],
            property_end=self.property_end[cut],
        )

    def rows_of(self, topic: str) -> I64:
        """The rows with messages of a topic."""
        if topic not in self.topics:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.topic_of == self.topics.index(topic))

    def place(self, row: int) -> tuple[int, int, int]:
        """Index, position and size of an entry."""
        return int(self.index[row]), int(self.pos[row]), int(self.size[row])

    def raw_properties(self, row: int) -> bytes:
        return self.window[int(self.property_at[row]) : int(self.property_end[row])]

    def body(self, row: int) -> bytes:
        """The body of a message, as it is stored."""
        begin = int(self.property_end[row]) - int(self.size[row]) + BODY_AT
        length = int.from_bytes(self.window[begin - 4 : begin], "big")
        return self.window[begin : begin + length]

    def properties(self, row: int) -> dict[str, str]:
        return parse_properties(self.raw_properties(row))

    def unit(self, row: int) -> tuple[int, int, int]:
        """The consume queue unit of one message: physical offset, TOTALSIZE, tags code (for a
        message on the timer topic its delivery time)."""
        return unit_of(
            self.topics[int(self.topic_of[row])],
            int(self.pos[row]),
            int(self.size[row]),
            self.raw_properties(row),
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive entries: `messages` are all of them, `entries` those of interest among them.

    `turning`: the only entry takes effect before its own message counts. Otherwise all messages
    count before the first entry takes effect.
    """

    messages: Messages
    entries: tuple[Entry, ...]
    turning: bool

    @property
    def last(self) -> tuple[int, int, int, int, int]:
        """Index, term, end position, chain CRC and store time of the last entry."""
        m = self.messages
        return (
            int(m.index[-1]),
            int(m.term[-1]),
            int(m.pos[-1] + m.size[-1]),
            int(m.chain[-1]),
            int(m.store_ms[-1]),
        )


def read_stretches(task: LogFile, begin: Begin, stops: Sequence[int]) -> Iterator[Stretch]:
    """The log from its begin up to the highest of `stops` (indexes; each is the last of a stretch),
    which were known before the call.

    Raises Unreadable if the log does not reach that far, BadRecord for an invalid control record,
    OSError.
    """
    last, following = max(stops), begin.index
    for part in task.log_so_far(begin.pos):
        if following > last:
            break
        with open_file(part.path) as file:
            for piece in Walk(part, file, file.size).pieces():
                count = min(piece.count, last + 1 - following)
                if not (
                    piece.rows["index"][:count] == np.arange(following, following + count)
                ).all():
                    raise Unreadable(f"the log has no entry {following}, but later ones")
                # Bytes behind the last stop may be half-written.
                yield from _cut(piece, read_messages(part.base, piece, count), stops)
                following += count
                if following > last:
                    return
    raise Unreadable(f"the log ends before entry {last}")


def _cut(piece: Piece, messages: Messages, stops: Sequence[int]) -> Iterator[Stretch]:
    """The stretches of one piece."""
    control = np.array(
        [topic in CONTROL_TOPICS or topic == HALF_TOPIC for topic in messages.topics], np.bool_
    )
    rows = np.flatnonzero(control[messages.topic_of] | (messages.origin != 0)).tolist()
    entries = [(row, read_entry(piece, messages, row)) for row in rows]
    first, count = int(messages.index[0]), len(messages)
    edges = {0, count, *(stop - first + 1 for stop in stops if first <= stop < first + count)}
    for row, entry in entries:
        if entry.turning:
            edges |= {row, row + 1}
    at = 0
    for start, stop in pairwise(sorted(edges)):
        begin = at
        while at < len(entries) and entries[at][0] < stop:
            at += 1
        chosen = tuple([entry for _, entry in entries[begin:at]])
        yield Stretch(messages.part(start, stop), chosen, bool(chosen) and chosen[0].turning)


def read_messages(base: int, piece: Piece, count: int) -> Messages:
    """The first `count` entries of a piece, at least one. Raises Unreadable for a record that
    cannot be parsed."""
    rows, offsets, sizes = piece.rows[:count], piece.offsets[:count], piece.sizes[:count]
    data: U8 = np.frombuffer(piece.window, np.uint8)
    ends = offsets + sizes
    wide = rows["record_magic"] == RECORD_V2
    body_bytes = rows["body_bytes"].astype(np.int64)
    fits = (
        (wide | (rows["record_magic"] == RECORD_V1))
        & (body_bytes >= 0)
        & (body_bytes <= sizes - HEADER_BYTES - RECORD_FIXED_BYTES - 3)
    )
    at = offsets + HEADER_BYTES + RECORD_FIXED_BYTES + np.where(fits, body_bytes, 0)
    topic_bytes = np.where(wide, data[at].astype(np.int64) << 8 | data[at + 1], data[at])
    topic_at = at + 1 + wide
    length_at = topic_at + topic_bytes
    fits &= length_at + 2 <= ends
    length_at = np.where(fits, length_at, at)
    property_at = length_at + 2
    fits &= property_at + (data[length_at].astype(np.int64) << 8 | data[length_at + 1]) == ends
    if not fits.all():
        raise Unreadable(
            f"entry {int(rows['index'][int(np.argmin(fits))])} is not a message record"
        )
    topic_of, topics = intern(data, topic_at, topic_bytes)
    return Messages(
        index=rows["index"].astype(np.int64),
        term=rows["term"].astype(np.int64),
        pos=base + piece.start + offsets,
        size=sizes,
        chain=rows["chain_crc"].astype(np.int64),
        queue=rows["queue"].astype(np.int64),
        queue_offset=rows["queue_offset"].astype(np.int64),
        store_ms=rows["store_ms"].astype(np.int64),
        flag=rows["flag"].astype(np.int64),
        origin=rows["prepared_offset"].astype(np.int64),
        topic_of=topic_of,
        topics=[topic.decode("utf-8", "replace") for topic in topics],
        base=base,
        window=piece.window,
        property_at=property_at,
        property_end=ends,
    )


def read_entry(piece: Piece, messages: Messages, row: int) -> Entry:
    """One entry of interest, with its CRC verified. Raises Unreadable, BadRecord."""
    offset, size, index = int(piece.offsets[row]), int(piece.sizes[row]), int(messages.index[row])
    if crc(memoryview(piece.window)[offset + HEADER_BYTES : offset + size]) != int(
        piece.rows["body_crc"][row]
    ):
        raise Unreadable(f"entry {index} is damaged")
    topic, pos = messages.topics[int(messages.topic_of[row])], int(messages.pos[row])
    properties = messages.properties(row)
    kind, body, fields = "", b"", NO_FIELDS
    if topic in CONTROL_TOPICS:
        start = offset + HEADER_BYTES + RECORD_FIXED_BYTES
        kind, body = (
            properties.get("TAGS", ""),
            piece.window[start : start + int(piece.rows["body_bytes"][row])],
        )
        fields = read_fields(kind, body, (index, pos, size))
    return Entry(
        index=index,
        term=int(messages.term[row]),
        pos=pos,
        size=size,
        topic=topic,
        queue=int(messages.queue[row]),
        queue_offset=int(messages.queue_offset[row]),
        store_ms=int(messages.store_ms[row]),
        origin=int(messages.origin[row]),
        properties=properties,
        kind=kind,
        fields=fields,
        body=body,
    )


def read_fields(kind: str, body: bytes, place: tuple[int, int, int]) -> dict[str, Any]:
    """The JSON object in a control record. `place`: index, position and size of its entry. Raises
    BadRecord, and Unknown for a later version of it."""
    versions = VERSIONS.get(kind, (1,))
    try:
        fields = json.loads(body)
    except NOT_JSON as error:
        raise BadRecord(*place, f"is not JSON: {error}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("v"), int):
        raise BadRecord(*place, "is not a JSON object with a version")
    if fields["v"] not in versions:
        problem = f"entry {place[0]} is a control record {kind!r} of version {fields['v']}"
        raise Unknown(
            f"{problem}, and this program knows {max(versions)}; audit with the version that wrote"
            " it"
        )
    return fields


def parse_properties(text: bytes) -> dict[str, str]:
    """`name 01 value 02`, repeated."""
    pairs = (part.partition("\x01") for part in text.decode("utf-8", "replace").split("\x02"))
    return {name: value for name, separator, value in pairs if separator}


def unit_of(topic: str, pos: int, size: int, properties: bytes) -> tuple[int, int, int]:
    """The consume queue unit (docs/format.md §6) of the message in the entry at `pos`."""
    code = (
        fire_time(properties)
        if topic == TIMER_TOPIC
        else tags_code(parse_properties(properties).get("TAGS", "").encode())
    )
    return pos + HEADER_BYTES, size - HEADER_BYTES, code
