"""Decides which files of a broker group's log may go, which are kept, and why. Pure: it reads no
clock, disk or log.

A file is *due* if it is too old, if the sealed files together are too large, or if the disks of a
majority of the replicas are nearly full because of the log; the cause becomes the reason in the
trim record. Replicas hold the same bytes, so what a log fills shows on most of its disks: a node
alone asks for help by its `Need`, and decides nothing about the data of all. A due file stays while
a pin needs it. Some laws hold for all facts: only sealed files go, oldest first, without a gap; the
last file never goes; a pinned file never goes, however full the disks are. Only the pins of
followers and observers give way, to full disks and to a time limit: what they then lack they get as
files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from ledgermq.proto.records.control import TrimRecord
from ledgermq.storage.files.thresholds import DISK_ALARM_PERCENT, DISK_WARN_PERCENT

HOUR_MS = 3_600_000
FILES_A_TRIM = 256
"""A trim record names its files and must fit into one log file; the last records are kept in memory
and in every snapshot."""
NOT_DUE = ""
FOLLOWER = "follower"
OBSERVER = "observer"
STORE = "store"
OPERATOR, TIME, SIZE, DISK = "operator", "time", "size", "disk"


class Level(IntEnum):
    """How full a file system is."""

    FINE = 0
    WARN = 1
    DELETE = 2
    """Files go before they are due by age or size."""
    REFUSE = 3
    """Clients' messages are refused."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Watermarks in percent of the file system. None counts as crossed while `ample_bytes` are
    free: a large disk is not full at 90 percent."""

    warn: int = DISK_WARN_PERCENT
    delete: int = 85
    refuse: int = DISK_ALARM_PERCENT
    ample_bytes: int = 20 << 30

    def level(self, total: int, free: int) -> Level:
        """The highest watermark crossed."""
        if free >= self.ample_bytes or total <= 0:
            return Level.FINE
        used = (total - free) * 100
        crossed = [
            level
            for level, mark in zip(
                list(Level)[1:], (self.warn, self.delete, self.refuse), strict=True
            )
            if used > mark * total
        ]
        return max(crossed, default=Level.FINE)

    def excess(self, total: int, free: int) -> int:
        """The number of bytes to remove until the delete watermark is no longer crossed."""
        if self.level(total, free) < Level.DELETE:
            return 0
        wanted_free = total - total * self.delete // 100
        return max(1, min(wanted_free, self.ample_bytes) - free)


@dataclass(frozen=True, slots=True)
class Space:
    """The file system under a replica, in bytes."""

    node: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Need:
    """What a replica says about the disk under it."""

    full: bool = False
    """It takes no messages of clients."""
    wanted: int = 0
    """How many bytes of this broker group's log have to go before the disk is below its delete
    watermark."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The configured limits for one broker group. 0 means no limit."""

    max_age_ms: int = 72 * HOUR_MS
    max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log. The fields `last_…` describe its last entry; in the active file, the last
    one written so far."""

    base: int
    size: int
    first_index: int
    last_index: int
    end_pos: int
    last_term: int
    last_chain: int
    last_store_ms: int
    sealed: bool = True
    """The first entry of the next file is committed and durable here."""

    @property
    def next_base(self) -> int:
        return self.base + self.size


@dataclass(frozen=True, slots=True)
class Pin:
    """A need for the log from position `pos` on."""

    kind: str
    """`follower`, `observer`, `snapshot`, `consumer`, `transaction`, `timer`, `reader`, `store`;
    `decide` adds `active`, `digest` and `order`. `digest`, `follower` and `observer` give way to a
    full disk."""
    pos: int
    detail: str
    """For operators: the holder and its progress."""
    holder: str = ""
    """The holder, if several can hold pins of this kind."""
    waived: str = ""
    """For operators: why the pin keeps nothing; empty if it is in force."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of the decision."""

    now_ms: int
    files: Sequence[LogFile]
    """Ascending, from the begin of the log to the active file."""
    pins: Sequence[Pin]
    excess: int = 0
    """`common_excess` of the voters' needs; 0 while some replica still carries out an earlier trim,
    because the space it will free is unknown."""
    sealed_digests: frozenset[int] = frozenset()
    """Bases of the files whose digest is recorded."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one file: why it is due, and what keeps it."""

    file: LogFile
    due: str
    """The reason of a trim, or NOT_DUE."""
    pins: tuple[Pin, ...]
    waived: tuple[Pin, ...] = ()
    """Pins that need the file but gave way."""

    @property
    def goes(self) -> bool:
        return self.due != NOT_DUE and not self.pins


def decide(rules: Rules, facts: Facts) -> list[Verdict]:
    """A verdict for every file, ascending. All files behind one that stays, stay."""
    verdicts: list[Verdict] = []
    sealed_bytes = sum(file.size for file in facts.files if file.sealed)
    excess = facts.excess
    kept: LogFile | None = None
    for file in facts.files:
        due = _due(rules, facts.now_ms, file, sealed_bytes, excess)
        reaching = [_giving_way(pin, excess) for pin in facts.pins if pin.pos < file.next_base]
        pins = [pin for pin in reaching if not pin.waived]
        if not file.sealed:
            pins.insert(
                0,
                Pin(
                    "active",
                    file.base,
                    "it is the file that takes new entries, or its successor holds no committed"
                    " one yet",
                ),
            )
        elif due not in (NOT_DUE, DISK) and file.base not in facts.sealed_digests:
            pins.append(
                Pin("digest", file.base, "no majority has reported the same digest of it yet")
            )
        if due != NOT_DUE and kept is not None:
            pins.append(Pin("order", kept.base, f"the file {kept.base:020d} before it is kept"))
        verdict = Verdict(file, due, tuple(pins), tuple([pin for pin in reaching if pin.waived]))
        verdicts.append(verdict)
        if verdict.goes:
            sealed_bytes -= file.size
            excess -= file.size
        elif kept is None:
            kept = file
    return verdicts


def _giving_way(pin: Pin, excess: int) -> Pin:
    """A follower that lacks entries can get them as files, while a full disk has no other source of
    space."""
    gives_way = pin.kind in (FOLLOWER, OBSERVER) and excess > 0
    return (
        replace(pin, waived="the disks of a majority of the replicas are nearly full")
        if gives_way
        else pin
    )


def lowest(pins: Sequence[Pin]) -> list[Pin]:
    """For each holder the lowest pin, which keeps everything that its other pins keep;
    ascending."""
    found: dict[tuple[str, str], Pin] = {}
    for pin in pins:
        known = found.setdefault((pin.kind, pin.holder), pin)
        if pin.pos < known.pos:
            found[pin.kind, pin.holder] = pin
    return sorted(found.values(), key=lambda pin: pin.pos)


def _due(rules: Rules, now_ms: int, file: LogFile, sealed_bytes: int, excess: int) -> str:
    if rules.max_age_ms and file.last_store_ms + rules.max_age_ms <= now_ms:
        return TIME
    if rules.max_bytes and file.sealed and sealed_bytes > rules.max_bytes:
        return SIZE
    return DISK if excess > 0 else NOT_DUE


def trim_of(
    verdicts: Sequence[Verdict], digests: dict[int, str], *, stored: bool = False
) -> TrimRecord | None:
    """The trim record for the verdicts: the leading files that go for one reason, at most as many
    as fit into a record; the next check continues with the rest. `digests` are those of recorded
    seals. `stored`: the object store has the files. None if no file goes."""
    going: list[Verdict] = []
    for verdict in verdicts:
        if (
            not verdict.goes
            or len(going) == FILES_A_TRIM
            or (going and verdict.due != going[0].due)
        ):
            break
        going.append(verdict)
    if not going:
        return None
    last = going[-1].file
    return TrimRecord(
        begin_index=last.last_index + 1,
        begin_pos=last.next_base,
        begin_term=last.last_term,
        begin_chain=last.last_chain,
        from_index=going[0].file.first_index,
        files=tuple([(verdict.file.base, digests.get(verdict.file.base)) for verdict in going]),
        reason=going[0].due,
        stored=stored,
    )


def need_of(
    marks: Watermarks, space: Space, group_bytes: int, own_bytes: int, *, lacks_room: bool = False
) -> Need:
    """What the replica of a group that has `group_bytes` on this disk says about it, if all groups
    of the node together have `own_bytes`. Each group gives its share of what has to go. If that is
    more than all of them have, they did not fill the disk and removing their files would not help:
    an operator has to. `lacks_room`: the log was refused room, whatever the watermarks say."""
    level, excess = marks.level(space.total, space.free), marks.excess(space.total, space.free)
    wanted = -(-excess * group_bytes // own_bytes) if 0 < excess <= own_bytes else 0
    return Need(lacks_room or level is Level.REFUSE, wanted)


def common_excess(needs: Sequence[Need], voters: int) -> int:
    """How many bytes a majority of the voters wants gone. A voter that is not among `needs` wants
    nothing."""
    wanted = sorted((need.wanted for need in needs), reverse=True)
    return wanted[voters // 2] if len(wanted) > voters // 2 else 0


def refuses(own: Need, others: Sequence[Need], voters: int, needed: int) -> bool:
    """Whether a leader refuses clients' messages: its own disk is full, or so many others are that
    fewer than the `needed` voters could store anything."""
    return own.full or voters - sum(need.full for need in others) < needed


def agreed(reports: dict[str, str], voters: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The digest that a majority of the voters reported, and those voters; None if there is
    none."""
    by_value: dict[str, list[str]] = {}
    for node in sorted(reports):
        if node in voters:
            by_value.setdefault(reports[node], []).append(node)
    for value, nodes in by_value.items():
        if len(nodes) >= len(voters) // 2 + 1:
            return value, tuple(nodes)
    return None
