"""What the checks read of a run, and nothing more: nodes, their disks, the committed entries and
the appointments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ledgermq.proto.types import I64, Range, Role
from ledgermq.raft.config import Members
from ledgermq.raft.ha_control import Appointment

QueueKey = tuple[str, int]


class Watched(Protocol):
    """What a checker reads from a running replica."""

    @property
    def role(self) -> Role: ...

    @property
    def term(self) -> int: ...

    @property
    def begin_index(self) -> int:
        """The first entry that was not trimmed."""
        ...

    @property
    def end_index(self) -> int: ...

    @property
    def commit_index(self) -> int: ...

    @property
    def counted(self) -> tuple[Members, ...]:
        """The sets of members by any of which its commit index may have been counted."""
        ...

    @property
    def promise(self) -> tuple[int, str | None]:
        """Term and vote, as they are on stable storage."""
        ...

    @property
    def open_changes(self) -> tuple[tuple[int, Members, Members], ...]:
        """The membership changes that it does not know to be committed: their entry, the members
        before, and after it."""
        ...

    @property
    def tip(self) -> tuple[int, int, int]:
        """(end index, its term, its chain CRC), kept in memory."""
        ...

    def term_at(self, index: int) -> int: ...

    def chain_at(self, index: int) -> int: ...

    def entry(self, index: int) -> Range:
        """The single entry at this index."""
        ...

    def bytes_behind_end(self) -> int:
        """The number of nonzero bytes behind the end of the log."""
        ...


class OnMedium(Protocol):
    """What a checker reads from a node's disk, whether the node runs or not."""

    def holds(self, pos: int, data: bytes) -> bool:
        """Whether these bytes would survive a power cut now at this position of the log."""
        ...


class Appointments(Protocol):
    """The decisions of the metadata quorum (`controller.py`)."""

    @property
    def appointment(self) -> Appointment | None:
        """The current appointment."""
        ...

    def of_epoch(self, epoch: int) -> Appointment | None:
        """The last appointment of this epoch."""
        ...


class Committed(Protocol):
    """The committed entries known so far (`truth.py`)."""

    chains: list[int]
    terms: list[int]

    def pieces(self, first_index: int, last_index: int) -> list[Range]: ...


class Clocked(Protocol):
    """What this module reads of a node."""

    wall_offset_ms: int

    def process(self, world_ns: int) -> int:
        """Which process of it answers at this moment; 0: none."""
        ...

    def steady_ns(self, world_ns: int) -> int:
        """Its steady clock at a moment of the world."""
        ...


class QueueValues(Protocol):
    """The committed entries known so far (`truth.py`)."""

    def queues(self) -> Mapping[QueueKey, I64]:
        """Every queue's values by offset."""
        ...
