"""The ports between the parts that host a replica: the group that the engine turns, the opener of a directory, and the shipping handler.

In a node, `ReplicaHost` is the group that the engine turns; tests use small fakes for the ports.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from ledgermq.node.broker.calls.outcome import Call
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.replica.hosting.range_repairs import RangePut
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.shipping.ports import Rebuild
from ledgermq.node.replica.shipping.range_repair import RangeRepair
from ledgermq.proto.types import ReplicaStatus


class EngineGroup(Protocol):
    """One broker group as the engine sees it."""

    def turn(
        self,
        now_ns: int,
        now_ms: int,
        calls: Sequence[Call],
        packets: Sequence[tuple[str, PeerPacket]],
        synced: Sequence[tuple[SyncTicket, OSError | None]],
    ) -> TurnOutput: ...

    @property
    def running(self) -> Any:
        """The open group, for queries. Raises LedgerError while the group does not run."""
        ...

    def admit(self) -> None: ...

    def status(self) -> ReplicaStatus: ...

    def put_back(self, first_index: int, last_index: int) -> concurrent.futures.Future[RangePut]: ...

    def mend_all(self, reason: str) -> None: ...

    def close(self) -> None:
        """Flush, write the snapshot, remove the abort file. Called once, after the last turn, with no sync in progress."""
        ...


class State(StrEnum):
    """The state of a hosted group; see the table in `hosting.py`."""

    JOINING = "joining"
    REPAIRING = "repairing"
    REFUSED = "refused"
    INSTALLING = "installing"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Broken:
    """A directory that cannot be opened to run, with the `rebuild` that may mend it. Without a rebuild the group can only wait (`joining`),
    or nothing can be done (`refused`)."""

    state: State
    reason: str
    rebuild: Rebuild | None
    floor_pos: Callable[[], int] = int
    """The position up to which this replica may have acknowledged entries, as far as the rebuild knows: a shorter log must not be
    installed."""


class ReplicaOpener(Protocol):
    """Opens and mends the directory of one group. Called on the group's life thread, except for the first `open`."""

    def open(self) -> OpenReplica | Broken:
        """Raises FatalError and StorageError for failures that no repair can mend."""
        ...

    def repair(self, damage: Exception) -> Broken:
        """Begin a repair after the store was closed; `damage` is what a read raised."""
        ...

    def install(self, source: str | None, floor_pos: int, reason: str) -> Broken:
        """Begin an installation after the store was closed: `source` has trimmed entries that are needed here, and offers its snapshot and
        the log behind it."""
        ...

    def range_repair(self, first_index: int, last_index: int) -> RangeRepair:
        """Prepare to restore these entries from peers. Called on the loop while the group runs."""
        ...


class ShippingHandler(Protocol):
    """Answers peers' requests for bytes, beside the turns (`shipping_thread.py`)."""

    send: Callable[[Sequence[tuple[str, PeerPacket]]], None]

    def offer(self, sender: str, packet: PeerPacket) -> None:
        """Queue a shipping packet, or drop it if the queue is full."""
        ...

    def close(self) -> None: ...
