"""What the auditor plans and the store carries out when damage is repaired: plain values, with the proof they rest on.

Only the shape lives here. `audit/repairs` makes a plan from findings and proven bytes, `storage/replacing.py` carries one out on stopped
directories, and a running node is asked for ranges (`RepairRange` in proto/admin.proto).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` … `end` − 1 of a file that is made anew: those at the same place of the file `source`, or, without one, `data` and
    zeros behind it."""

    start: int
    end: int
    source: str | None
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class FileRepair:
    """One log file, made anew from pieces that cover it without a gap."""

    base: int
    """What names it: its position in the log."""
    pieces: tuple[Piece, ...]
    sha256: str
    """Of the whole file, as digests of log files are computed (format §11, `seal`)."""
    why: str
    """What is wrong with the file that is there, for people."""
    proof: str
    """What proves the bytes: the seal of a majority, or the entries on which a majority agrees."""
    keep: bool = False
    """The file that is there is another history, not damage: it is kept beside."""


@dataclass(frozen=True, slots=True)
class MarkRepair:
    """Where the log ends once another history was replaced: nothing behind it, and the synced mark at it."""

    term: int
    index: int
    end_pos: int
    chain: int


@dataclass(frozen=True, slots=True)
class BeginRepair:
    """Where a trimmed log begins, as its begin file says it (format §9)."""

    index: int
    pos: int
    term: int
    chain: int


@dataclass(frozen=True, slots=True)
class DirectoryRepair:
    """What is done to one replica whose node is stopped. Nothing else of the directory changes."""

    directory: str
    """The node directory."""
    group: str
    replica: str
    log_id: str
    incarnation: str
    files: tuple[FileRepair, ...] = ()
    end: MarkRepair | None = None
    derived: tuple[str, ...] = ()
    """Derived files that are wrong, by their paths under the group's directory, or directories of them (with a slash at the end): they go,
    and are made again from the log."""
    mark_slots: bool = False
    """The synced mark is damaged beside the slot that counts: that one is written to both, and the rest is zero."""
    hard_state_fill: bool = False
    """The hard state is damaged outside its slots: the slots stay, and the rest is zero."""
    begin: BeginRepair | None = None
    """The begin file is damaged or missing."""
    snapshot: str | None = None
    """Where to copy a snapshot from: the log was trimmed, and no own snapshot is right."""
    opens: bool = True
    """Nothing else of it stays damaged, so its log can be opened and derived files made again."""

    @property
    def root(self) -> str:
        return f"{self.directory}/{self.group}"


@dataclass(frozen=True, slots=True)
class RangeRepair:
    """Entries that a running node puts back itself, both included."""

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
    """What a repair does not mend. `file` is a path under the node directory."""

    replica: str
    group: str
    file: str
    reason: str

    @property
    def text(self) -> str:
        return f"{self.replica} {self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it. What is in neither list of work is said: `undecided` (nobody proves the bytes) and `remaining` (no peer can give what is
    wrong here)."""

    directories: tuple[DirectoryRepair, ...] = ()
    ranges: tuple[RangeRepair, ...] = ()
    undecided: tuple[Left, ...] = ()
    remaining: tuple[Left, ...] = ()
