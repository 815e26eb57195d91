"""Collects the facts for the retention decision: the log's files, and the parts of a replica's
state that pin them.

Everything here only reads, in steps that are short enough for the thread that owns the group. The
boundaries of a sealed file are found once by bisection and remembered. A new kind of pin needs one
more function here and one line in the caller.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.part import last_store_ms
from ledgermq.node.broker.parts.transactions.transactions import HALF_QUEUE
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.replica.retention.retention_rules import FOLLOWER, OBSERVER, LogFile, Pin
from ledgermq.proto import units
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.entries.ranges import cut
from ledgermq.proto.names import HALF_TOPIC, STORAGE_TOPIC
from ledgermq.proto.types import PeerProgress
from ledgermq.storage.log.entry_log import EntryLog

LOOKS_A_STEP = 32
"""Maximum number of files that are examined for the first time between two turns."""


def first_at(log: EntryLog, first: int, pos: int) -> int:
    """The first entry at or behind position `pos`, among those from entry `first` on."""
    return first + bisect_left(range(first, log.end_index + 1), pos, key=log.pos_of)


def file_at(log: EntryLog, base: int, size: int, settled: int) -> LogFile | None:
    """The sealed file at `base`, which is on this disk; None if its successor has no entry up to
    `settled` (committed and durable) yet."""
    if base + size > log.end_pos:
        return None
    first = first_at(log, log.begin_index, base)
    following = first_at(log, first, base + size)
    if following > settled:
        return None
    last = log.read(following - 1, 1)
    return LogFile(
        base=base,
        size=size,
        first_index=first,
        last_index=last.last_index,
        end_pos=last.end_pos,
        last_term=last.term,
        last_chain=last.last_chain,
        last_store_ms=last_store_ms(last),
    )


class FileBook:
    """The files of one replica's log, from the begin that the trim records give. Memory is bounded
    by the number of files."""

    def __init__(self, log: EntryLog, machine: Machine, file_bytes: int) -> None:
        self._log = log
        self._machine = machine
        self._size = file_bytes
        self._sealed: dict[int, LogFile] = {}

    def advance(self) -> bool:
        """Examine some files that are not known yet; True if `files` will return quickly."""
        known = len(self._sealed)
        return all(len(self._sealed) - known < LOOKS_A_STEP for _ in self._complete())

    def files(self) -> list[LogFile]:
        """All files, ascending; the last one is the active file."""
        found, log = list(self._complete()), self._log
        base, first = (
            (found[-1].next_base, found[-1].last_index + 1)
            if found
            else (self._machine.begin_pos, self._machine.begin_index)
        )
        # The age of a file counts from the time at which its last entry counts as stored.
        if epochs := self._machine.time_epochs:
            found = [
                replace(file, last_store_ms=epochs.counted(file.last_store_ms, file.end_pos - 1))
                for file in found
            ]
        return [
            *found,
            LogFile(
                base=base,
                size=self._size,
                first_index=first,
                last_index=log.end_index,
                end_pos=log.end_pos,
                last_term=log.end_term,
                last_chain=log.end_chain,
                last_store_ms=self._machine.store_ms,
                sealed=False,
            ),
        ]

    def _complete(self) -> Iterator[LogFile]:
        """The files that have a successor."""
        machine, log = self._machine, self._log
        for base in [base for base in self._sealed if base < machine.begin_pos]:
            del self._sealed[base]
        settled = min(machine.applied_index, log.durable_index)
        base, first = machine.begin_pos, machine.begin_index
        while base + self._size <= log.end_pos:
            file = self._sealed.get(base) or self._look(base, first, settled)
            yield file
            base, first = file.next_base, file.last_index + 1

    def sealed_from(self, base: int) -> list[LogFile]:
        """Consecutive sealed files from `base` on; `base` is the end of a sealed file that was
        returned before, or any position up to the begin. Returns a few new files per call, so that
        frequent calls cost almost nothing."""
        machine, log = self._machine, self._log
        before = self._sealed.get(base - self._size)
        if before is None or base <= machine.begin_pos:
            base, first = machine.begin_pos, machine.begin_index
        else:
            first = before.last_index + 1
        settled, known, found = min(machine.applied_index, log.durable_index), len(self._sealed), []
        while base + self._size <= log.end_pos and len(self._sealed) - known < LOOKS_A_STEP:
            file = self._sealed.get(base) or self._look(base, first, settled)
            if not file.sealed:
                break
            found.append(file)
            base, first = file.next_base, file.last_index + 1
        return found

    def _look(self, base: int, first: int, settled: int) -> LogFile:
        """Examine a file that has a successor; remembered once it is sealed."""
        following = first_at(self._log, first, base + self._size)
        last = self._log.read(following - 1, 1)
        sealed = following <= settled
        file = LogFile(
            base=base,
            size=self._size,
            first_index=first,
            last_index=last.last_index,
            end_pos=last.end_pos,
            last_term=last.term,
            last_chain=last.last_chain,
            last_store_ms=last_store_ms(last),
            sealed=sealed,
        )
        if sealed:
            self._sealed[base] = file
        return file

    def sealable(self) -> int:
        """The last entry that is worth a seal: the last applied one, unless the file being written
        has nothing but records about files, such as those that a seal leaves. Then it is the last
        one before that file, so that a seal is not the reason for the next one."""
        log, last = self._log, self._machine.applied_index
        first = index = first_at(
            log, self._machine.begin_index, log.end_pos - log.end_pos % self._size
        )
        while index <= last:
            entries = cut(log.read(index, 1 << 20), last)
            if set(record_columns(entries).topics) != {STORAGE_TOPIC}:
                return last
            index = entries.last_index + 1
        return min(last, first - 1)

    @property
    def end_pos(self) -> int:
        """The position of the end of the log."""
        return self._log.end_pos

    def pos_after(self, index: int) -> int:
        """The position of the first entry that a node lacks if it has everything up to `index`."""
        if index < self._machine.begin_index:
            return self._machine.begin_pos
        return self._log.pos_of(min(index, self._log.end_index) + 1)

    def store_ms(self, index: int) -> int:
        """When an entry of this log counts as stored; for a trimmed entry, the first one that is
        kept."""
        entry = self._log.read(min(max(index, self._machine.begin_index), self._log.end_index), 1)
        return self._machine.time_epochs.counted(last_store_ms(entry), entry.pos)


def observer_pins(
    book: FileBook,
    observers: Iterable[str],
    own: str,
    peers: Sequence[PeerProgress],
    patience_ms: int,
    bytes_max: int,
) -> Iterator[Pin]:
    """What observers do not have on stable storage yet, up to `bytes_max`, if they were heard
    within `patience_ms` (0: no limit). An observer that lacks more gets files; one that has not
    reported yet may lack `bytes_max`."""
    progress = {peer.node: peer for peer in peers}
    for node in sorted(set(observers) - {own}):
        peer = progress.get(node)
        durable = None if peer is None else peer.durable_index
        silent_ms = 0 if peer is None or peer.silent_ms is None else peer.silent_ms
        pos = max(0, book.end_pos - bytes_max) if durable is None else book.pos_after(durable)
        lacks = book.end_pos - pos
        waived = ""
        if patience_ms and silent_ms >= patience_ms:
            waived = f"it was not heard for {units.duration_words(silent_ms)}"
        elif lacks > bytes_max:
            waived = (
                f"it lacks {units.size_words(lacks)}, more than the {units.size_words(bytes_max)}"
                " that are kept for an observer"
            )
        if durable is None:
            yield Pin(
                OBSERVER,
                pos,
                f"observer {node} has not told this leader yet how far it is",
                node,
                waived,
            )
        elif lacks:
            yield Pin(
                OBSERVER,
                pos,
                f"observer {node} has the log up to entry {durable} on stable storage",
                node,
                waived,
            )


def follower_pins(
    book: FileBook,
    members: Iterable[str],
    own: str,
    peers: Sequence[PeerProgress],
    end_index: int,
    patience_ms: int,
) -> Iterator[Pin]:
    """What other members, including learners, do not have on stable storage yet. The leader does
    not wait for one that was silent for `patience_ms` (0: no limit): it gets files when it
    returns."""
    progress = {peer.node: peer for peer in peers}
    for node in sorted(set(members) - {own}):
        peer = progress.get(node)
        durable = None if peer is None else peer.durable_index
        silent_ms = 0 if peer is None or peer.silent_ms is None else peer.silent_ms
        waived = (
            f"it was not heard for {units.duration_words(silent_ms)}"
            if patience_ms and silent_ms >= patience_ms
            else ""
        )
        if durable is None:
            yield Pin(
                FOLLOWER,
                0,
                f"replica {node} has not told this leader yet how far it is",
                node,
                waived,
            )
        elif durable < end_index:
            detail = f"replica {node} has the log up to entry {durable} on stable storage"
            yield Pin(FOLLOWER, book.pos_after(durable), detail, node, waived)


def snapshot_pin(book: FileBook, node: str, snapshot_index: int) -> Pin:
    """The log from the older snapshot on, which is needed to rebuild derived state."""
    return Pin(
        "snapshot",
        book.pos_after(snapshot_index),
        f"the older snapshot of replica {node} covers the log up to entry {snapshot_index}",
    )


def half_pin(machine: Machine) -> Iterator[Pin]:
    """The first undecided half message: a commit would copy it."""
    halves = machine.transactions.halves
    offset = next(iter(halves), None)
    if offset is not None:
        half = halves[offset]
        positions, _, _ = machine.units(HALF_TOPIC, HALF_QUEUE, offset, 1)
        what = (
            f"the transaction of half message {offset} (entry {half.index}) for topic {half.topic}"
            " is undecided"
        )
        yield Pin(
            "transaction",
            int(positions[0]),
            f"{what} after {half.checks} checks, as are {len(halves) - 1} more",
        )


def timer_pin(machine: Machine) -> Iterator[Pin]:
    """The first message that the timers need: it is copied when it is due. Cancelled messages do
    not count."""
    position = machine.timers.oldest_position()
    if position is not None:
        pending = machine.timers.pending
        yield Pin(
            "timer",
            position,
            f"{pending} delayed {'message waits' if pending == 1 else 'messages wait'} for their"
            " time",
        )


def consumed_queues(machine: Machine) -> list[QueueKey]:
    """All queues of every topic that a configured consumer group has ever read from: the group will
    read each of them."""
    used = {(group, topic) for group, topic, _ in machine.delivery.queues} | set(
        machine.offsets.pairs()
    )
    pairs = {pair for pair in used if pair[0] in machine.groups}
    return [
        (*pair, queue)
        for pair in sorted(pairs)
        if pair[1] in machine.topics
        for queue in range(machine.topics[pair[1]].queues)
    ]


def consumer_pins(machine: Machine, keys: Iterable[QueueKey]) -> Iterator[Pin]:
    """The first message that a consumer group has not finished, for each of these queues."""
    for key in keys:
        group, topic, queue = key
        if group not in machine.groups or topic not in machine.topics:
            continue
        state = machine.delivery.queues.get(key)
        begin = machine.begin(topic, queue)
        first = None if state is None else state.rows.first()
        offset = max(machine.cursor(key) if first is None else first, begin)
        if offset >= machine.end(topic, queue):
            continue
        positions, _, _ = machine.units(topic, queue, offset, 1)
        if len(positions):
            pin = (
                f"consumer group {group} has not finished message {offset} of queue {queue} of"
                f" topic {topic}"
            )
            yield Pin("consumer", int(positions[0]), pin, group)
