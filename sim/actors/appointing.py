"""The connection between the nodes of an HA group and the metadata quorum. Requests arrive late,
twice, out of order or never, and so do notifications of decisions; the quorum itself may be lost
for a while between any two steps of a decision.

`controller.py` decides, with the product's functions; a node's reaction is the product's as well. A
node receives appointments in order and may miss some. A process that was just started may receive
old ones first, like one that reads its journal again. `Trap` lets a fault happen at one step of one
decision.

A request passes four steps: *wished* (it left its node), *asked* (the quorum has it), *agreed*, and
*heard*, once for every node.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ledgermq.raft.config import MS
from ledgermq.raft.ha_control import Appointment, HaRequest
from ledgermq.sim.actors.controller import Controller
from ledgermq.sim.actors.ports import AppointedCluster

QUORUM = "controller"
"""The quorum's name as an end of links."""
AGREE_NS = (2 * MS, 15 * MS)
HEAR_NS = (MS, 25 * MS)
LATE_NS = (100 * MS, 900 * MS)
LATE = 0.06
"""Share of requests and notifications that take longer than an election."""
TWICE = 0.05
MISSED = 0.08
"""Share of notifications that a node never receives; it receives the next one."""
REREADS = 0.3
"""Share of processes that read an older appointment again when they start."""

Step = Literal["wished", "asked", "agreed", "heard"]
STEPS: tuple[Step, ...] = ("wished", "asked", "agreed", "heard")


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of one decision. `node` sent the request or, in the step *heard*, receives the
    decision; `appointment` from *agreed* on."""

    step: Step
    node: str
    wish: HaRequest | None
    appointment: Appointment | None = None


Trap = Callable[[Moment], bool]
"""Called at every step until it returns that it is done."""


class Appointing:
    """The connections of one run. Has its own random source, so a group without appointments draws
    nothing."""

    def __init__(
        self,
        cluster: AppointedCluster,
        controller: Controller,
        founders: tuple[str, ...],
        chance: random.Random,
    ) -> None:
        """`founders`: the nodes that form the quorum, in half of the runs; in the others it runs
        elsewhere."""
        self._cluster = cluster
        self._controller = controller
        self._chance = chance
        self._quorum = founders if chance.random() < 0.5 else ()
        self._heard: dict[str, tuple[int, int, int]] = {}
        """Node → order of the last appointment its process received."""
        self._outages = 0
        self._traps: list[Trap] = []
        self._waiting: list[Callable[[], None]] = []
        """Requests that the quorum accepted but had not decided when it was lost."""

    # Faults

    def trap(self, trap: Trap) -> None:
        """Call the trap at every step from now on."""
        self._traps.append(trap)

    def forget(self, trap: Trap) -> None:
        """Remove a trap that was not triggered in time."""
        if trap in self._traps:
            self._traps.remove(trap)

    def lose(self) -> None:
        """The quorum is lost until `regain` was called as often: it decides nothing and notifies no
        node."""
        self._outages += 1
        self._cluster.note("the metadata quorum is lost")

    def regain(self) -> None:
        """The quorum's next leader decides every request that was accepted and not lost."""
        if not self._outages:
            return
        self._outages -= 1
        if not self._outages:
            self._cluster.note("the metadata quorum is back")
            waiting, self._waiting = self._waiting, []
            for again in waiting:
                self._cluster.after(self._chance.randrange(*AGREE_NS), again)

    def heal(self) -> None:
        """Everything works again."""
        self._traps.clear()
        while self._outages:
            self.regain()

    # The way there

    def wished(self, node: str, wish: HaRequest, *, by_force: bool = False) -> None:
        """A node, or an operator at one, sends a request."""
        self._step(Moment("wished", node, wish))
        if self._chance.random() < MISSED and not self._cluster.healed:
            return
        for _ in range(1 + (self._chance.random() < TWICE)):
            for delay in self._cluster.network.deliveries(node, QUORUM):
                arrive = partial(self._arrive, node, wish, by_force)
                self._cluster.after(delay + self._late(AGREE_NS), arrive)

    def _late(self, usual_ns: tuple[int, int]) -> int:
        late = self._chance.random() < LATE and not self._cluster.healed
        return self._chance.randrange(*(LATE_NS if late else usual_ns))

    def _arrive(self, node: str, wish: HaRequest, by_force: bool) -> None:
        if not self._reaches(node, outbound=True) and not by_force:
            return
        self._step(Moment("asked", node, wish))
        if self._there():
            self._agree(node, wish, by_force)
        elif self._chance.random() < 0.5:
            # The leader of the quorum had stored it, and some follower, too.
            self._waiting.append(partial(self._agree, node, wish, by_force))

    def _agree(self, node: str, wish: HaRequest, by_force: bool) -> None:
        if not self._there():
            self._waiting.append(partial(self._agree, node, wish, by_force))
            return
        decided = self._controller.decide(wish, by_force=by_force)
        if isinstance(decided, str):
            return
        how, in_sync = " by force" if decided.forced else "", ", ".join(sorted(decided.in_sync))
        master = f"{decided.master} is master of epoch {decided.epoch}"
        self._cluster.note(f"agreed{how}: {master}, in sync: {in_sync} (version {decided.version})")
        self._cluster.agreed(decided)
        self._step(Moment("agreed", node, wish, decided))
        for name in self._cluster.awake():
            self._tell(name, decided)

    # The way back

    def _tell(self, node: str, appointment: Appointment) -> None:
        if self._chance.random() < MISSED and not self._cluster.healed:
            return
        self._cluster.after(self._late(HEAR_NS), partial(self._hear, node, appointment))

    def _hear(self, node: str, appointment: Appointment) -> None:
        """Notify in order, possibly skipping some."""
        if (
            appointment.order < self._heard.get(node, (-1, -1, -1))
            or not self._there()
            or not self._reaches(node, outbound=False)
        ):
            return
        news = appointment.order != self._heard.get(node)
        self._heard[node] = appointment.order
        self._cluster.tell(node, appointment)
        if news:
            self._step(Moment("heard", node, None, appointment))

    def refresh(self) -> None:
        """Every node that reaches the quorum asks it from time to time."""
        known = self._controller.appointment
        if known is None:
            return
        for name in self._cluster.awake():
            self._tell(name, known)

    def started(self, node: str) -> None:
        """A process starts without knowing any appointment; some first read old ones from their
        journals."""
        self._heard.pop(node, None)
        known = self._controller.appointments
        if known and self._chance.random() < REREADS:
            former = known[self._chance.randrange(max(0, len(known) - 4), len(known))]
            self._heard[node] = former.order
            self._cluster.tell(node, former)

    # Whether there is a way

    def _there(self) -> bool:
        """Whether the quorum can decide anything."""
        if self._outages:
            return False
        return not self._quorum or 2 * len(
            set(self._quorum).intersection(self._cluster.awake())
        ) > len(self._quorum)

    def _reaches(self, node: str, *, outbound: bool) -> bool:
        """Through the node's own link and, if the nodes are the quorum, with a majority of them."""
        reaches = self._cluster.network.reaches
        link = (node, QUORUM) if outbound else (QUORUM, node)
        if not reaches(*link):
            return False
        if node not in self._quorum:
            return True
        others = [
            other
            for other in self._quorum
            if reaches(*((node, other) if outbound else (other, node)))
        ]
        return 2 * len(others) > len(self._quorum)

    def _step(self, moment: Moment) -> None:
        for trap in tuple(self._traps):
            if trap(moment):
                self.forget(trap)
