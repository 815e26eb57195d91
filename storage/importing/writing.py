"""Writing the log of a new broker group from a store root: the second reading.

The log begins like a trimmed one: the membership record, which is the first entry of every group,
was removed with the first file, and a snapshot holds the begins of queues whose first messages
RocketMQ deleted (docs/format.md §4.8). All entries have term 0, because no leader wrote them.
Memory is bounded by one batch and one number per queue.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import chain_seed, seal
from ledgermq.proto.entries.layout import HEADER_BYTES, java_hash
from ledgermq.proto.names import RAFT_TOPIC
from ledgermq.proto.records import control
from ledgermq.proto.types import I64, Draft, Identity, SyncedMark, TopicConfig, UnsealedBatch
from ledgermq.storage.backups.backup_manifest import Refused
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.group.store import GroupStore
from ledgermq.storage.importing.settings import Settings
from ledgermq.storage.importing.sorting import Kept
from ledgermq.storage.importing.survey import QueueKey, Survey
from ledgermq.storage.importing.translating import CannotKeep, Entry, Waiting, assemble, translate
from ledgermq.storage.log.begin import Begin, write_begin
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.synced_mark import SyncedMarkFile
from ledgermq.storage.rocketmq.reading import Reader
from ledgermq.storage.rocketmq.records import Message
from ledgermq.storage.state.checkpoints import LogCheckpoint, write_log_checkpoint

TERM = 0
NO_HOST = bytes(8)
BATCH = 4096
BATCH_BYTES = 4 << 20
SYNC_BYTES = 64 << 20
OFFSETS_A_RECORD = 500
SLOT_MS, SLOTS = 60_000, 4096
LOST = "LEDGERMQ_LOST"
"""Property of a placeholder for a message that could not be read: what is known about that
message."""
_PLACE = struct.Struct(">qqqqi")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an imported log begins: behind the membership record, which is entry 0 of every group.
    `unit`: that record's unit in its consume queue."""

    begin: Begin
    entry_bytes: int
    unit: tuple[int, int, int]


def origin_of(identity: Identity, voters: Sequence[str], created_ms: int) -> Origin:
    """The membership record as every replica would write it at bootstrap, and the file behind the
    one that would hold it."""
    batch = encode_entries([control.draft(control.Membership(tuple(sorted(voters))), created_ms)])
    chain = seal(
        batch, first_index=0, term=TERM, pos=0, queue_offsets=np.zeros(1, np.int64), store_ms=created_ms, store_host=NO_HOST,
        prev_chain=chain_seed(identity.log_id),
    )  # fmt: skip
    size = int(batch.sizes[0])
    unit = HEADER_BYTES, size - HEADER_BYTES, java_hash(control.Membership.TAG)
    return Origin(Begin(1, identity.data_file_bytes, TERM, chain), size, unit)


@dataclass(slots=True)
class Written:
    """The result of the writing. `digests`: per queue a CRC over its messages as read from the
    source."""

    entries: int = 0
    messages: Counter[QueueKey] = field(default_factory=Counter)
    delayed: Counter[QueueKey] = field(default_factory=Counter)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    filled: Counter[QueueKey] = field(default_factory=Counter)
    repeated: Counter[QueueKey] = field(default_factory=Counter)
    times_raised: int = 0
    digests: dict[QueueKey, int] = field(default_factory=dict)
    first_store_ms: dict[QueueKey, int] = field(default_factory=dict)
    last_store_ms: dict[QueueKey, int] = field(default_factory=dict)
    end_index: int = -1
    last_ms: int = 0


def digest_of(before: int, message: Message, store_ms: int) -> int:
    """A queue's digest after one more message: its place, times, redeliveries, tag, keys, id and
    body."""
    value = crc32(
        _PLACE.pack(
            message.queue_offset,
            message.born_ms,
            store_ms,
            len(message.body),
            message.reconsume_times,
        ),
        before,
    )
    for name in (b"UNIQ_KEY\x01", b"TAGS\x01", b"KEYS\x01"):
        value = crc32(_value(message.properties, name), value)
    return crc32(message.body, value)


def _value(properties: bytes, name: bytes) -> bytes:
    at = 0 if properties.startswith(name) else properties.find(b"\x02" + name) + 1
    if not at and not properties.startswith(name):
        return b""
    end = properties.find(b"\x02", at)
    return properties[at : end if end >= 0 else len(properties)]


def create(disk: Disk, root: str, identity: Identity, origin: Origin) -> None:
    """Create the directory of the new replica, with an empty log that begins at `origin`. Raises
    NoSpace, Unusable, OSError."""
    GroupStore.create(disk, root, identity)
    directory = f"{root}/dledger-{identity.replica}"
    begin = origin.begin
    write_begin(disk, directory, identity.log_id, begin)
    disk.unlink(f"{directory}/syncedmark")
    mark = SyncedMark(begin.term, begin.index - 1, begin.pos, begin.chain)
    SyncedMarkFile.create(disk, f"{directory}/syncedmark", identity.log_id, mark).close()
    for kind, base, size, whole in (
        ("data", begin.pos, identity.data_file_bytes, True),
        ("index", 0, identity.index_file_bytes, False),
    ):
        file = disk.create(f"{directory}/{kind}/{base:020d}", size, allocate=whole)
        file.sync()
        file.close()
        disk.sync_dir(f"{directory}/{kind}")


class Writer:
    """Appends to the new log in batches. `close` makes everything durable."""

    def __init__(self, disk: Disk, root: str, identity: Identity, written: Written) -> None:
        self._disk, self._directory = disk, f"{root}/dledger-{identity.replica}"
        self._log = EntryLog.open(disk, self._directory, identity, clean=True)
        if self._log.fenced is not None:
            raise self._log.fenced
        self._room = identity.data_file_bytes - 8
        self._written = written
        self._unsynced = 0
        self._control: Counter[str] = Counter()
        self._entries: list[Entry] = []
        self._times: list[int] = []
        self._bytes = 0

    def put(self, entry: Entry, store_ms: int) -> None:
        """Add one message to the current batch. Raises Refused for one that no log file can
        hold."""
        if entry.size > self._room:
            problem = (
                f"a message of {entry.size} bytes does not fit into a log file of {self._room + 8}"
                " bytes"
            )
            raise Refused(problem, "choose larger files with --log-file-size")
        self._entries.append(entry)
        self._times.append(store_ms)
        self._bytes += entry.size
        if len(self._entries) >= BATCH or self._bytes >= BATCH_BYTES:
            self.flush()

    def put_control(self, records: Iterable[control.ControlRecord], store_ms: int) -> None:
        """Append control records behind everything so far."""
        self.flush()
        rest = iter(records)
        while chosen := list(islice(rest, BATCH)):
            drafts: list[Draft] = [control.draft(record, store_ms) for record in chosen]
            offsets = []
            for draft in drafts:
                offsets.append(self._control[draft.stored_topic])
                self._control[draft.stored_topic] += 1
            self._append(
                encode_entries(drafts),
                np.array(offsets, np.int64),
                np.full(len(drafts), store_ms, np.int64),
                None,
            )

    def flush(self) -> None:
        entries, times = self._entries, self._times
        if not entries:
            return
        self._entries, self._times, self._bytes = [], [], 0
        data = bytearray().join([piece for entry in entries for piece in entry[:3]])
        sizes = np.fromiter([entry.size for entry in entries], np.int32, len(entries))
        ends = np.cumsum(sizes, dtype=np.int64)
        numbers: dict[str, int] = {}
        topic_of = np.fromiter(
            [numbers.setdefault(entry.topic, len(numbers)) for entry in entries],
            np.int32,
            len(entries),
        )
        batch = UnsealedBatch(
            data=data,
            starts=ends - sizes,
            sizes=sizes,
            topics=tuple(numbers),
            topic_of=topic_of,
            queues=np.fromiter([entry.queue for entry in entries], np.int32, len(entries)),
        )
        offsets = np.fromiter([entry.queue_offset for entry in entries], np.int64, len(entries))
        hosts = np.frombuffer(b"".join([entry.store_host for entry in entries]), "V8")
        self._append(batch, offsets, np.array(times, np.int64), hosts)

    def _append(
        self, batch: UnsealedBatch, offsets: I64, times: I64, hosts: NDArray[np.void] | None
    ) -> None:
        self._log.append_leader(
            TERM, batch, offsets, times, NO_HOST if hosts is None else hosts, control=True
        )
        self._written.entries += len(batch)
        self._unsynced += len(batch.data)
        if self._unsynced >= SYNC_BYTES:
            self._unsynced = 0
            job = self._log.begin_sync()
            if job is not None:
                job.run()
                self._log.finish_sync(job, None)

    def close(self) -> int:
        """Make everything durable and note it as committed. Returns the index of the last entry."""
        self.flush()
        self._log.flush_mark()
        end = self._log.end_index
        self._log.close()
        write_log_checkpoint(self._disk, self._directory, LogCheckpoint(end, end))
        return end

    def abandon(self) -> None:
        self._log.close()


class Import:
    """The second reading, one message after the other."""

    def __init__(
        self, found: Survey, topics: Mapping[str, TopicConfig], writer: Writer, written: Written
    ) -> None:
        self._found = found
        self._topics = topics
        self._writer = writer
        self._written = written
        self._next = {key: queue.first for key, queue in found.queues.items()}
        self._slots: Counter[int] = Counter()
        self._last_ms = found.first_store_ms

    def run(self, *, skip_damaged: bool, progress: Callable[[int], None]) -> None:
        """Raises Refused if the source changed since the first reading; OSError, NoSpace."""
        known = self._found.damages
        reader = Reader(
            self._found.root,
            lambda _: False,
            skip_damaged=skip_damaged,
            progress=progress,
            known=known,
        )
        count = 0
        for message in reader.messages():
            count += 1
            kept = self._found.sorter.sort(message)
            if isinstance(kept, str):
                self._written.left_out[message.topic, kept] += 1
            elif kept.deliver_ms:
                self._wait(message, kept)
            else:
                self._keep(message)
        if count != self._found.messages:
            problem = (
                f"{self._found.root.path} changed while it was read: {self._found.messages}"
                f" messages, then {count}"
            )
            raise Refused(problem, "stop the broker, or import a copy that is not written to")
        self._written.last_ms = self._last_ms

    def _time(self, message: Message) -> int:
        """Store times never decrease along our log; RocketMQ's do when a clock is set back."""
        if message.store_ms < self._last_ms:
            self._written.times_raised += 1
        self._last_ms = max(self._last_ms, message.store_ms)
        return self._last_ms

    def _keep(self, message: Message) -> None:
        written, key = self._written, (message.topic, message.queue)
        if message.queue_offset < self._next[key]:
            written.repeated[key] += 1
            return
        try:
            entry = translate(message)
        except CannotKeep as error:
            problem = (
                f"message {message.queue_offset} of queue {key[1]} of topic {key[0]} cannot be"
                f" kept: {error}"
            )
            raise Refused(problem, "omit the topic: name the others with --topics") from error
        store_ms = self._time(message)
        for offset in range(self._next[key], message.queue_offset):
            self._writer.put(_lost(message, offset), store_ms)
            written.filled[key] += 1
        self._next[key] = message.queue_offset + 1
        self._writer.put(entry, store_ms)
        written.messages[key] += 1
        written.digests[key] = digest_of(
            written.digests.get(key, 0), message._replace(properties=entry.properties), store_ms
        )
        written.first_store_ms.setdefault(key, store_ms)
        written.last_store_ms[key] = store_ms

    def _wait(self, message: Message, kept: Kept) -> None:
        """Write a message that is not visible yet to the timer topic: into the slot of its minute,
        within the reach of the wheel."""
        now_ms = self._found.now_ms
        reach_ms = (now_ms // SLOT_MS + SLOTS - 1) * SLOT_MS
        fire_ms = max(kept.deliver_ms, now_ms) if kept.deliver_ms < reach_ms + SLOT_MS else reach_ms
        slot = fire_ms // SLOT_MS % SLOTS
        waiting = Waiting(
            topic=kept.topic,
            queue=kept.queue,
            deliver_ms=kept.deliver_ms,
            incarnation=self._topics[kept.topic].incarnation,
            fire_ms=fire_ms,
            slot=slot,
            offset=self._slots[slot],
        )
        try:
            entry = translate(message, waiting)
        except CannotKeep as error:
            problem = (
                f"delayed message {message.queue_offset} for topic {kept.topic} cannot be kept:"
                f" {error}"
            )
            raise Refused(problem, "omit the topic: name the others with --topics") from error
        self._slots[slot] += 1
        self._writer.put(entry, self._time(message))
        self._written.delayed[kept.topic, kept.queue] += 1


def _lost(after: Message, offset: int) -> Entry:
    """The placeholder of a message that could not be read; queue offsets must be dense."""
    text = (
        f"message {offset} of queue {after.queue} of topic {after.topic} could not be read when the"
        " log was imported"
    )
    name = (
        hashlib.blake2b(f"{after.topic}/{after.queue}/{offset}".encode(), digest_size=16)
        .hexdigest()
        .upper()
    )
    body = text.encode()
    properties = f"UNIQ_KEY\x01{name}\x02{LOST}\x01true\x02".encode()
    born = after.store_ms, NO_HOST
    return assemble(
        after.topic,
        after.queue,
        queue_offset=offset,
        body=body,
        body_crc=crc32(body) & 0x7FFFFFFF,
        properties=properties,
        sysflag=0,
        born=born,
        stored=born,
        reconsume_times=0,
    )


def write(
    disk: Disk,
    root: str,
    identity: Identity,
    found: Survey,
    settings: Settings,
    *,
    skip_damaged: bool,
    progress: Callable[[int], None],
) -> Written:
    """Fill the log that `create` made. Raises Refused, NoSpace, LogFenced, OSError."""
    written = Written()
    writer = Writer(disk, root, identity, written)
    topics = {topic.name: topic for topic in settings.topics}
    try:
        before_ms = found.first_store_ms
        writer.put_control([control.TimersRecord(found.now_ms, -1)], before_ms)
        writer.put_control((control.TopicRecord(topic) for topic in settings.topics), before_ms)
        writer.put_control((control.GroupRecord(group) for group in settings.groups), before_ms)
        Import(found, topics, writer, written).run(skip_damaged=skip_damaged, progress=progress)
        writer.put_control(_offset_records(settings), written.last_ms)
        written.end_index = writer.close()
    except BaseException:
        # After any error: close the files; nothing of them becomes visible.
        writer.abandon()
        raise
    return written


def _offset_records(settings: Settings) -> Iterator[control.ControlRecord]:
    """The positions of consumer groups: cursors of groups that lease, committed offsets of groups
    that pull."""
    pairs = sorted(settings.offsets.items())
    rows = [
        (group, topic, queue, at)
        for (group, topic), places in pairs
        for queue, at in sorted(places.items())
    ]
    for first in range(0, len(rows), OFFSETS_A_RECORD):
        yield control.OffsetRecord(tuple(rows[first : first + OFFSETS_A_RECORD]))
    for (group, topic), places in pairs:
        yield control.ResetRecord(group, topic, tuple(sorted(places.items())))


def queue_begins(survey_of_source: Survey) -> dict[str, dict[int, int]]:
    """Topic → queue → first offset, of queues that do not begin with 0."""
    begins: dict[str, dict[int, int]] = {}
    for (topic, queue), survey in sorted(survey_of_source.queues.items()):
        if survey.first:
            begins.setdefault(topic, {})[queue] = survey.first
    return begins


def raft_queue(origin: Origin) -> tuple[str, tuple[int, tuple[int, int, int]]]:
    """The consume queue of the membership record: all of it lies before the begin."""
    return RAFT_TOPIC, (1, origin.unit)
