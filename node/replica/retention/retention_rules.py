"""Which files of a broker group's log may go, which are kept, and why: a pure decision over facts.

A file is *due* when it is too old, when the sealed files together are too large, or when a disk is nearly full; each is a reason of a trim
record. A due file still stays while anything pins it. Laws, whatever the facts are: only sealed files go, oldest first, without a gap; the
last file never goes; a pinned file never goes, however full the disk is. Only a follower's need gives way, to a full disk and to time: what
it lacks then it is brought as files. Nothing here reads a clock, a disk or a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from ledgermq.proto.control import TrimRecord
from ledgermq.storage.thresholds import DISK_ALARM_PERCENT, DISK_WARN_PERCENT

HOUR_MS = 3_600_000
FILES_A_TRIM = 256
"""A trim record names its files, and must fit into one file of the log; the last records are kept in memory and in every snapshot."""
NOT_DUE = ""
FOLLOWER = "follower"
OBSERVER = "observer"
OPERATOR, TIME, SIZE, DISK = "operator", "time", "size", "disk"


class Level(IntEnum):
    """How full a file system is."""

    FINE = 0
    WARN = 1
    DELETE = 2
    """Files go before their time."""
    REFUSE = 3
    """Clients' messages are refused."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Percent used of the file system. None counts as crossed while `ample_bytes` are free: a large disk is not full at 90 percent."""

    warn: int = DISK_WARN_PERCENT
    delete: int = 85
    refuse: int = DISK_ALARM_PERCENT
    ample_bytes: int = 20 << 30

    def level(self, total: int, free: int) -> Level:
        """The highest watermark crossed."""
        if free >= self.ample_bytes or total <= 0:
            return Level.FINE
        used = (total - free) * 100
        crossed = [level for level, mark in zip(list(Level)[1:], (self.warn, self.delete, self.refuse), strict=True) if used > mark * total]
        return max(crossed, default=Level.FINE)

    def excess(self, total: int, free: int) -> int:
        """How many bytes have to go until files need not go early any more."""
        if self.level(total, free) < Level.DELETE:
            return 0
        wanted_free = total - total * self.delete // 100
        return max(1, min(wanted_free, self.ample_bytes) - free)


@dataclass(frozen=True, slots=True)
class Space:
    """The file system under a replica."""

    node: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration wants of one broker group. 0 means no limit."""

    max_age_ms: int = 72 * HOUR_MS
    max_bytes: int = 0
    marks: Watermarks = Watermarks()


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log. `last_…` speak of its last entry; of the active file only as far as it is written."""

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
    """Something that needs the log from position `pos` on."""

    kind: str
    """`follower`, `observer`, `snapshot`, `consumer`, `transaction`, `timer`, `reader`; `digest`, `follower` and `observer` give way to a
    full disk."""
    pos: int
    detail: str
    """For people: who needs it and how far it is."""
    holder: str = ""
    """Who, where several may need it."""
    waived: str = ""
    """Why it keeps nothing nevertheless, for people."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the decision knows."""

    now_ms: int
    files: Sequence[LogFile]
    """Ascending, from the begin of the log to the active file."""
    pins: Sequence[Pin]
    spaces: Sequence[Space] = ()
    """Of every replica that told. Empty while an earlier trim is still being carried out somewhere: its space is not back yet."""
    sealed_digests: frozenset[int] = frozenset()
    """Bases of the files whose digest is recorded."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One file: why it would go, and why it stays nevertheless."""

    file: LogFile
    due: str
    """The reason of a trim, or NOT_DUE."""
    pins: tuple[Pin, ...]
    waived: tuple[Pin, ...] = ()
    """What needs it and keeps it no longer."""

    @property
    def goes(self) -> bool:
        return self.due != NOT_DUE and not self.pins


def decide(rules: Rules, facts: Facts) -> list[Verdict]:
    """A verdict for every file, ascending. Whoever comes behind a file that stays, stays."""
    verdicts: list[Verdict] = []
    sealed_bytes = sum(file.size for file in facts.files if file.sealed)
    excess = max((rules.marks.excess(space.total, space.free) for space in facts.spaces), default=0)
    kept: LogFile | None = None
    for file in facts.files:
        due = _due(rules, facts.now_ms, file, sealed_bytes, excess)
        reaching = [_giving_way(pin, excess) for pin in facts.pins if pin.pos < file.next_base]
        pins = [pin for pin in reaching if not pin.waived]
        if not file.sealed:
            pins.insert(0, Pin("active", file.base, "it is the file that takes new entries, or its successor holds no committed one yet"))
        elif due not in (NOT_DUE, DISK) and file.base not in facts.sealed_digests:
            pins.append(Pin("digest", file.base, "no majority has reported the same digest of it yet"))
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
    """A follower that lacks entries can be brought them as files; room on a full disk comes from nowhere else."""
    gives_way = pin.kind in (FOLLOWER, OBSERVER) and excess > 0
    return replace(pin, waived="the disk of a replica is nearly full") if gives_way else pin


def lowest(pins: Sequence[Pin]) -> list[Pin]:
    """Of every holder the pin that reaches furthest back, which keeps whatever the others keep; ascending."""
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


def trim_of(verdicts: Sequence[Verdict], digests: dict[int, str]) -> TrimRecord | None:
    """The trim record that carries the verdicts out: the leading files that go for one reason, so many that the record fits into any log
    file; the others go next time. `digests` are those of recorded seals."""
    going: list[Verdict] = []
    for verdict in verdicts:
        if not verdict.goes or len(going) == FILES_A_TRIM or (going and verdict.due != going[0].due):
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
    )


def refuses(marks: Watermarks, own: Space, others: Sequence[Space], voters: int) -> bool:
    """Whether a leader refuses clients' messages: its own disk is too full, or too few replicas with room are left for a majority."""
    full = [space for space in others if marks.level(space.total, space.free) is Level.REFUSE]
    return marks.level(own.total, own.free) is Level.REFUSE or voters - len(full) < voters // 2 + 1


def agreed(reports: dict[str, str], voters: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The digest that a majority of the voters reported, and who did; None without one."""
    by_value: dict[str, list[str]] = {}
    for node in sorted(reports):
        if node in voters:
            by_value.setdefault(reports[node], []).append(node)
    for value, nodes in by_value.items():
        if len(nodes) >= len(voters) // 2 + 1:
            return value, tuple(nodes)
    return None
