"""Ports between the parts that host a replica: what the engine turns, what opens a directory, and what answers peers. Protocols only.

`ReplicaHost` is the group that the engine turns in a node; tests give the engine, and the host, small fakes.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from ledgermq.node.broker.calls.outcome import Call
from ledgermq.node.broker.group.group import TurnOutput
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
        """What questions are put to. Raises LedgerError while the group does not run."""
        ...

    def admit(self) -> None: ...

    def status(self) -> ReplicaStatus: ...

    def put_back(self, first_index: int, last_index: int) -> concurrent.futures.Future[RangePut]: ...

    def mend_all(self, reason: str) -> None: ...

    def close(self) -> None:
        """Flush, write the snapshot, remove the abort file. Called once, after the last turn, with no ticket under way."""
        ...


class State(StrEnum):
    """Of a hosted group; see the table above."""

    JOINING = "joining"
    REPAIRING = "repairing"
    REFUSED = "refused"
    INSTALLING = "installing"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Broken:
    """The directory cannot be opened to run, and `rebuild` is what can be done about it. None: nothing but waiting (`joining`), or nothing
    at all (`refused`)."""

    state: State
    reason: str
    rebuild: Rebuild | None
    floor_pos: Callable[[], int] = int
    """Up to where this replica may have acknowledged entries, as far as the rebuild found out: nothing shorter may be installed."""


class ReplicaOpener(Protocol):
    """What opens and mends the directory of one group. Called on the group's thread, but for the first `open`."""

    def open(self) -> OpenReplica | Broken:
        """Raises FatalError and StorageError for what nobody can mend."""
        ...

    def repair(self, damage: Exception) -> Broken:
        """After the store was let go of: `damage` is what a read raised."""
        ...

    def install(self, source: str | None, floor_pos: int, reason: str) -> Broken:
        """After the store was let go of: `source` keeps nothing of what is needed here but its snapshot and what follows it."""
        ...

    def range_repair(self, first_index: int, last_index: int) -> RangeRepair:
        """While the group runs, on the engine's thread: what puts these entries back from peers."""
        ...


class ShippingHandler(Protocol):
    """Answers the requests of peers for bytes, beside the turns (`shipping_thread.py`)."""

    send: Callable[[Sequence[tuple[str, PeerPacket]]], None]

    def offer(self, sender: str, packet: PeerPacket) -> None:
        """Take a packet of shipping, or drop it when there are too many."""
        ...

    def close(self) -> None: ...
