"""Decides which broker group gets a turn when, and with which inputs. It knows no loop, thread or
clock: a driver runs it.

Theory of operation. Inputs are collected until the next *pass*, which gives each group concerned
one `turn` and has its output delivered at once. What arrives together shares a turn. The outcome of
a sync is an input like any other. The calls of a group wait while a batch is in progress
(`batch_gate.py`), unless the group says that some could be answered sooner; the calls that arrived
by then form the next batch. So a batch costs one append, one push to each follower and one sync,
however many calls it has. The scheduler makes no decision about logs, roles or deliveries.

A turn is bounded, and a pass that took `SLICE_NS` leaves the groups that it has not reached to the
next one: clients, peers and groups get their turns in between.

Groups can be added and removed while it runs. A group that is being removed gets no calls, and
turns only until its last sync has ended. The event loop drives it in a node (`engine.py`), the heap
of events in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgermq.node.broker.calls.outcome import Call
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.plan import NEVER_NS
from ledgermq.node.broker.ports import PeerPacket, SyncTicket
from ledgermq.node.replica.hosting.batch_gate import OPEN_BATCHES, BatchGate
from ledgermq.node.replica.hosting.ports import Driver, EngineGroup
from ledgermq.node.runtime import metrics
from ledgermq.raft.config import MS

# A pass that took this long leaves the groups that it has not reached to the next pass.
SLICE_NS = 10 * MS


@dataclass(slots=True, eq=False)
class Seat:
    """One group with its inputs since its last turn."""

    name: str
    group: EngineGroup
    gate: BatchGate
    seconds: Any
    wake_at_ns: int = 0
    wanted: bool = False
    """Whether an input other than held calls came, or somebody asked for a turn."""
    admitted: bool = False
    held: list[Call] = field(default_factory=list)
    """Calls that wait until the gate is open."""
    urgent: list[Call] = field(default_factory=list)
    packets: list[tuple[str, PeerPacket]] = field(default_factory=list)
    synced: list[tuple[SyncTicket, OSError | None]] = field(default_factory=list)
    gone: Callable[[], None] | None = None
    """Set while the group is being removed; called when no sync runs."""

    @property
    def has_calls(self) -> bool:
        """Whether calls may go to the group now."""
        return bool(self.held) and not self.gate.shut

    @property
    def syncs(self) -> bool:
        """Whether a sync is in progress, or its outcome has not reached the group."""
        return self.gate.under_way > 0 or bool(self.synced)


class Scheduler:
    """Owns the groups. `run` raises what a turn raises; no turn may follow that."""

    def __init__(self, driver: Driver, open_batches: int = OPEN_BATCHES) -> None:
        self.seats: dict[str, Seat] = {}
        self._driver = driver
        self._open_batches = open_batches
        self._soon = False
        """Whether the driver will run a pass in any case."""
        self._resting = False
        """Whether the driver will call `rested` in any case."""
        self._unreached: list[str] = []
        """Groups that the last pass left to the next one."""
        self._timer_ns = NEVER_NS
        """The time for which a pass is ordered; a group may have asked for a later turn since."""
        self._idle: Callable[[], None] | None = None
        """Set by `finish`: no more turns except for ended syncs; called when no sync runs."""

    # -- groups

    def add(self, name: str, group: EngineGroup) -> None:
        self.seats[name] = Seat(
            name, group, BatchGate(self._open_batches), metrics.TURN_SECONDS.labels(name)
        )

    def remove(self, name: str, gone: Callable[[], None]) -> Seat:
        """Give the group no more calls or packets; it is removed, and `gone` called, when its last
        sync has ended."""
        seat = self.seats[name]
        seat.gone = gone
        seat.packets.clear()
        self.pass_soon()
        return seat

    def finish(self, idle: Callable[[], None]) -> None:
        """Take no more inputs; `idle` is called when no sync runs and each outcome has reached its
        group."""
        self._idle = idle
        for seat in self.seats.values():
            seat.packets.clear()
            seat.urgent.clear()
        self.pass_soon()

    # -- inputs

    def put(self, seat: Seat, call: Call) -> None:
        """While the group's gate is closed this only queues the call: a pass takes it when the gate
        is open."""
        seat.held.append(call)
        if not self._resting and not seat.gate.shut:
            self._rest()

    def _rest(self) -> None:
        self._resting = True
        self._driver.rest()

    def put_at_once(self, name: str, call: Call) -> None:
        """Put a call past the gate, because it may be what opens it."""
        seat = self._taking(name)
        if seat is not None:
            seat.urgent.append(call)
            self._want(seat)

    def packets(self, items: Sequence[tuple[str, str, PeerPacket]]) -> None:
        """Put peer packets, each as (group, sender, packet). Packets of groups that are not hosted
        here are dropped."""
        for group, sender, packet in items:
            seat = self._taking(group)
            if seat is not None:
                seat.packets.append((sender, packet))
                self._want(seat)

    def _taking(self, name: str) -> Seat | None:
        """None also while the group waits for its last sync: a packet could begin another one, so
        that a follower under load never ended."""
        seat = self.seats.get(name)
        return None if seat is None or seat.gone is not None or self._idle is not None else seat

    def sync_ended(self, name: str, ticket: SyncTicket, error: OSError | None) -> None:
        seat = self.seats[name]
        seat.gate.sync_ended()
        seat.synced.append((ticket, error))
        self._want(seat)

    def admit(self, name: str) -> None:
        """Let the replica take part, because all other voters know its directory; a turn follows at
        once."""
        if (seat := self.seats.get(name)) is not None:
            seat.admitted = True
            self._want(seat)

    def want(self, name: str) -> None:
        """Give the group a turn soon."""
        if (seat := self.seats.get(name)) is not None:
            self._want(seat)

    def _want(self, seat: Seat) -> None:
        seat.wanted = True
        self.pass_soon()

    def rested(self) -> None:
        """The driver has delivered the answers, and no further calls come: the held ones form a
        batch."""
        self._resting = False
        for seat in self.seats.values():
            seat.gate.rested()
        if any(seat.has_calls for seat in self.seats.values()):
            self.pass_soon()

    # -- passes

    def pass_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self._driver.pass_soon()

    def run(self) -> None:
        """Give each group with inputs, or a timer that is due, one turn, and deliver the
        outputs."""
        self._soon = False
        began_ns = now_ns = self._driver.now_ns()
        names, self._unreached = self._unreached or list(self.seats), []
        for at, name in enumerate(names, 1):
            seat = self.seats.get(name)
            if seat is None or not self._is_due(seat, now_ns):
                continue
            output = self._turn(seat, now_ns)
            now_ns, turned_ns = self._driver.now_ns(), now_ns
            seat.seconds.observe((now_ns - turned_ns) / 1e9)
            self._driver.deliver(name, output)
            if output.done and not self._resting:
                self._rest()
            if now_ns - began_ns >= SLICE_NS:
                self._unreached = names[at:]
                break
        self._let_go()
        self._order_next(now_ns)

    def _is_due(self, seat: Seat, now_ns: int) -> bool:
        if seat.gone is not None or self._idle is not None:
            return bool(seat.synced)
        return seat.wanted or seat.wake_at_ns <= now_ns or seat.has_calls

    def _turn(self, seat: Seat, now_ns: int) -> TurnOutput:
        calls, seat.urgent = seat.urgent, []
        if seat.has_calls and seat.gone is None and self._idle is None:
            calls, seat.held = calls + seat.held, []
        packets, seat.packets = seat.packets, []
        synced, seat.synced = seat.synced, []
        seat.wanted = False
        if seat.admitted:
            seat.admitted = False
            seat.group.admit()
        output = seat.group.turn(now_ns, self._driver.now_ms(), calls, packets, synced)
        seat.wake_at_ns = output.wake_at_ns
        seat.gate.turned(output, answers=bool(output.done))
        if output.sync is not None:
            seat.gate.sync_begins()
            self._driver.sync(seat.name, output.sync)
        return output

    def _let_go(self) -> None:
        """Remove those leaving groups that have no sync in progress, and tell when the last sync of
        a stopping node has ended."""
        for seat in [
            seat for seat in self.seats.values() if seat.gone is not None and not seat.syncs
        ]:
            del self.seats[seat.name]
            assert seat.gone is not None
            seat.gone()
        if self._idle is not None and not any(seat.syncs for seat in self.seats.values()):
            self._idle()

    def _order_next(self, now_ns: int) -> None:
        """See to the next pass: at once if there is something to do, or when the first timer is
        due."""
        at_ns = NEVER_NS
        for seat in self.seats.values():
            if self._is_due(seat, now_ns):
                self.pass_soon()
                return
            if seat.gone is None and seat.wake_at_ns < at_ns:
                at_ns = seat.wake_at_ns
        if self._unreached:
            self.pass_soon()
            return
        if self._idle is not None:
            return
        # A pass that finds nothing to do now and then costs less than to set a timer anew each
        # time.
        if at_ns < self._timer_ns:
            self._timer_ns = at_ns
            self._driver.pass_at(at_ns)

    def time_is_up(self) -> None:
        """The time of the last `pass_at` has come, and what had arrived until then was put."""
        self._timer_ns = NEVER_NS
        self.pass_soon()
