"""The way between the nodes of an HA group and the metadata quorum: wishes get there late, twice, out of order or never, and so does the
news of what was agreed; the quorum itself may be gone for a while, between any two steps of a decision.

Here lives that way only. What is agreed is decided in `controller.py`, by the product's functions; what a node does about it is the
product's as well. A node hears appointments in their order and may miss some; a process that was just started may hear old ones first, as
one does that reads its journal again. `Trap` lets a fault happen at one step of one decision.

A wish passes four steps: *wished* (it left its node), *asked* (the quorum has it), *agreed*, and *heard*, once for every node.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from ledgermq.raft.config import MS
from ledgermq.raft.ha_control import Appointment, HaRequest
from ledgermq.sim.controller import Controller
from ledgermq.sim.network import Network

QUORUM = "controller"
"""The quorum's name as an end of links."""
AGREE_NS = (2 * MS, 15 * MS)
HEAR_NS = (MS, 25 * MS)
LATE_NS = (100 * MS, 900 * MS)
LATE = 0.06
"""Share of wishes and of news that take longer than an election."""
TWICE = 0.05
MISSED = 0.08
"""Share of news that a node never gets; the next does."""
REREADS = 0.3
"""Share of the processes that read an older appointment again when they start."""

Step = Literal["wished", "asked", "agreed", "heard"]
STEPS: tuple[Step, ...] = ("wished", "asked", "agreed", "heard")


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of one decision. `node` wished it, or, where it is heard, hears it; `appointment` from *agreed* on."""

    step: Step
    node: str
    wish: HaRequest | None
    appointment: Appointment | None = None


Trap = Callable[[Moment], bool]
"""Called at every step until it says that it is done."""


class Cluster(Protocol):
    """What the way needs of the world."""

    now: int
    network: Network
    healed: bool

    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...

    def note(self, text: str, node: str = "") -> None: ...

    def tell(self, node: str, appointment: Appointment) -> None:
        """The node's process hears it, if one runs."""
        ...

    def agreed(self, appointment: Appointment) -> None:
        """The quorum has agreed on it."""
        ...

    def awake(self) -> Iterable[str]:
        """The nodes whose process runs and does not stand still."""
        ...


class Appointing:
    """One run's. Draws from a chance of its own, so that a group that appoints nobody draws nothing."""

    def __init__(self, cluster: Cluster, controller: Controller, founders: tuple[str, ...], chance: random.Random) -> None:
        """`founders`: the nodes of which the quorum itself consists, in half of the runs; in the others it lives elsewhere."""
        self._cluster = cluster
        self._controller = controller
        self._chance = chance
        self._quorum = founders if chance.random() < 0.5 else ()
        self._heard: dict[str, tuple[int, int, int]] = {}
        """Node → order of what its process heard last."""
        self._outages = 0
        self._traps: list[Trap] = []
        self._waiting: list[Callable[[], None]] = []
        """Wishes that the quorum took and has not agreed on when it was lost."""

    # Faults

    def trap(self, trap: Trap) -> None:
        """Look at every step from now on."""
        self._traps.append(trap)

    def forget(self, trap: Trap) -> None:
        """A trap that nothing fell into in time."""
        if trap in self._traps:
            self._traps.remove(trap)

    def lose(self) -> None:
        """The quorum is gone until `regain` was called as often: nothing is agreed, nobody hears anything."""
        self._outages += 1
        self._cluster.note("the metadata quorum is lost")

    def regain(self) -> None:
        """Whatever was taken and not lost is agreed on by the next leader of the quorum."""
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
        """A node, or an operator at one, sends a wish."""
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
        """In order, and maybe not all."""
        if appointment.order < self._heard.get(node, (-1, -1, -1)) or not self._there() or not self._reaches(node, outbound=False):
            return
        news = appointment.order != self._heard.get(node)
        self._heard[node] = appointment.order
        self._cluster.tell(node, appointment)
        if news:
            self._step(Moment("heard", node, None, appointment))

    def refresh(self) -> None:
        """Every node that reaches the quorum asks now and then."""
        known = self._controller.appointment
        if known is None:
            return
        for name in self._cluster.awake():
            self._tell(name, known)

    def started(self, node: str) -> None:
        """A process begins and has heard nothing yet; some read what was agreed long ago in their journals first."""
        self._heard.pop(node, None)
        known = self._controller.appointments
        if known and self._chance.random() < REREADS:
            former = known[self._chance.randrange(max(0, len(known) - 4), len(known))]
            self._heard[node] = former.order
            self._cluster.tell(node, former)

    # Whether there is a way

    def _there(self) -> bool:
        """Whether the quorum can agree on anything."""
        if self._outages:
            return False
        return not self._quorum or 2 * len(set(self._quorum).intersection(self._cluster.awake())) > len(self._quorum)

    def _reaches(self, node: str, *, outbound: bool) -> bool:
        """Over its own link; and where the nodes are the quorum, a majority of them as well."""
        reaches = self._cluster.network.reaches
        link = (node, QUORUM) if outbound else (QUORUM, node)
        if not reaches(*link):
            return False
        if node not in self._quorum:
            return True
        others = [other for other in self._quorum if reaches(*((node, other) if outbound else (other, node)))]
        return 2 * len(others) > len(self._quorum)

    def _step(self, moment: Moment) -> None:
        for trap in tuple(self._traps):
            if trap(moment):
                self.forget(trap)
