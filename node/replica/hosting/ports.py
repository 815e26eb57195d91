"""The ports between the parts that host a replica: the group that the engine turns, the opener of a
directory, and the shipping handler.

In a node, `ReplicaHost` is the group that the engine turns; tests use small fakes for the ports.

`Scheduler`, `ReplicaHost` and `OpenReplica` run in a node and in the simulator, so they read no
clock and start no thread. They get:

* time: `now_ns` (monotonic) and `now_ms` (cluster time) of each turn, and `clock_ns` for the
  duration of work within one;
* executors (`concurrent.futures.Executor`) for work beside the turns, each of which runs one job at
  a time. A turn looks at the future of its job: the end of a job has no effect between turns,
  except that `wake` asks for the next one;
* the disk (`storage/files/ports.py:Disk`), through the store that an opener opens;
* the network: packets are inputs and outputs of turns; those beside the turns leave by
  `ShippingHandler.send`.
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
from ledgermq.node.replica.hosting.running import OpenReplica
from ledgermq.node.replica.ports import RangePut
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

    def put_back(
        self, first_index: int, last_index: int
    ) -> concurrent.futures.Future[RangePut]: ...

    def mend_all(self, reason: str) -> None: ...

    def close(self) -> None:
        """Flush, write the snapshot, remove the abort file. Called once, after the last turn, with
        no sync in progress."""
        ...


class Driver(Protocol):
    """What runs a `Scheduler`: the event loop of a node, or the heap of the simulator. None of
    these methods calls back at once."""

    def now_ns(self) -> int:
        """The monotonic clock."""
        ...

    def now_ms(self) -> int:
        """Cluster time."""
        ...

    def pass_soon(self) -> None:
        """Call `Scheduler.run` once, after what has arrived until then was put."""
        ...

    def pass_at(self, at_ns: int) -> None:
        """Call `Scheduler.time_is_up` at this time, or earlier, instead of at the former one."""
        ...

    def rest(self) -> None:
        """Call `Scheduler.rested` when answers were delivered and no more calls come."""
        ...

    def sync(self, group: str, ticket: SyncTicket) -> None:
        """Run the ticket beside the turns, after the former one of the group; put its outcome with
        `Scheduler.sync_ended`."""
        ...

    def deliver(self, group: str, output: TurnOutput) -> None:
        """Send and answer what a turn returned."""
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
    """A directory that cannot be opened to run, with the `rebuild` that may mend it. Without a
    rebuild the group can only wait (`joining`), or nothing can be done (`refused`)."""

    state: State
    reason: str
    rebuild: Rebuild | None
    floor_pos: Callable[[], int] = int
    """The position up to which this replica may have acknowledged entries, as far as the rebuild
    knows: a shorter log must not be installed."""


class ReplicaOpener(Protocol):
    """Opens and mends the directory of one group. Called in jobs of the group's executor, except
    for the first `open`."""

    def open(self) -> OpenReplica | Broken:
        """Raises FatalError and StorageError for failures that no repair can mend."""
        ...

    def repair(self, damage: Exception) -> Broken:
        """Begin a repair after the store was closed; `damage` is what a read raised."""
        ...

    def install(self, source: str | None, floor_pos: int, reason: str) -> Broken:
        """Begin an installation after the store was closed: `source` has trimmed entries that are
        needed here, and offers its snapshot and the log behind it."""
        ...

    def range_repair(self, first_index: int, last_index: int) -> RangeRepair:
        """Prepare to restore these entries from peers. Called on the loop while the group runs."""
        ...


class ShippingHandler(Protocol):
    """Answers peers' requests for bytes, beside the turns (`shipping_jobs.py`)."""

    send: Callable[[Sequence[tuple[str, PeerPacket]]], None]

    def offer(self, sender: str, packet: PeerPacket) -> None:
        """Queue a shipping packet, or drop it if the queue is full."""
        ...

    def close(self) -> None: ...
