"""The repair plan that the auditor makes and the store carries out: plain values, including the
proofs.

Only the format is defined here. `audit/repairs` makes a plan from findings and proven bytes,
`storage/repair/replacing.py` carries it out on directories of stopped nodes, and a running node is
asked for ranges (`RepairRange` in proto/admin.proto).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` … `end` − 1 of a recreated file: the bytes at the same place of the file
    `source` or, without one, `data` followed by zeros."""

    start: int
    end: int
    source: str | None
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class FileRepair:
    """One log file, recreated from pieces that cover it without gaps."""

    base: int
    """The position in the file's name."""
    pieces: tuple[Piece, ...]
    sha256: str
    """The digest of the whole file, computed as for log files (format §11, `seal`)."""
    why: str
    """What is wrong with the existing file, as text."""
    proof: str
    """The proof of the bytes: the seal of a majority, or the entries on which a majority agrees."""
    keep: bool = False
    """Whether the existing file is of another history, not damaged: it is then kept beside."""


@dataclass(frozen=True, slots=True)
class MarkRepair:
    """The end of the log after another history was replaced: no bytes behind it, and the synced
    mark at it."""

    term: int
    index: int
    end_pos: int
    chain: int


@dataclass(frozen=True, slots=True)
class BeginRepair:
    """The begin of a trimmed log, in the form of its begin file (format §9)."""

    index: int
    pos: int
    term: int
    chain: int


@dataclass(frozen=True, slots=True)
class DirectoryRepair:
    """The changes to one replica whose node is stopped. Nothing else in the directory changes."""

    directory: str
    """The node directory."""
    group: str
    replica: str
    log_id: str
    incarnation: str
    files: tuple[FileRepair, ...] = ()
    end: MarkRepair | None = None
    derived: tuple[str, ...] = ()
    """Wrong derived files, by their paths under the group's directory, or directories of them (with
    a slash at the end): they are removed, and rebuilt from the log."""
    mark_slots: bool = False
    """The synced mark is damaged outside the current slot: that slot is written to both, and the
    rest is zeroed."""
    hard_state_fill: bool = False
    """The hard state is damaged outside its slots: the slots stay, and the rest is zeroed."""
    begin: BeginRepair | None = None
    """The begin file is damaged or missing."""
    snapshot: str | None = None
    """Where to copy a snapshot from: the log was trimmed, and none of its own snapshots is
    valid."""
    opens: bool = True
    """No other damage remains, so the log can be opened and derived files rebuilt."""

    @property
    def root(self) -> str:
        return f"{self.directory}/{self.group}"


@dataclass(frozen=True, slots=True)
class RangeRepair:
    """Entries that a running node repairs itself, first and last included."""

    address: str
    """host:port of the node."""
    group: str
    replica: str
    log_id: str
    incarnation: str
    first_index: int
    last_index: int
    why: str


@dataclass(frozen=True, slots=True)
class Left:
    """A finding that a repair does not fix. `file` is a path under the node directory."""

    replica: str
    group: str
    file: str
    reason: str

    @property
    def text(self) -> str:
        return f"{self.replica} {self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan. Findings that are in neither list of work are reported: `undecided` (no proof
    of the right bytes) and `remaining` (no peer can supply what is wrong here)."""

    directories: tuple[DirectoryRepair, ...] = ()
    ranges: tuple[RangeRepair, ...] = ()
    undecided: tuple[Left, ...] = ()
    remaining: tuple[Left, ...] = ()
