"""One simulated cluster: virtual time, a heap of events, and the turns of its nodes; a pure function of its seed and scenario.

Here lives the order of things. What a node does is the product's code (`node.py` starts it), what may go wrong is drawn in `faults.py`,
and what must hold is judged in `checkers.py` after every step.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ledgermq.node.core.flush import Durability, FlushPolicy
from ledgermq.node.core.ports import Fenced, LogFull, NotLeader, PeerPacket, SyncTicket
from ledgermq.proto.types import Role
from ledgermq.raft.transfer import Cause
from ledgermq.sim.acknowledgements import Acknowledgements, lost
from ledgermq.sim.bugs import Bug
from ledgermq.sim.checkers import Checkers, Violation
from ledgermq.sim.disk import Killed
from ledgermq.sim.network import MS, Network
from ledgermq.sim.node import DATA_FILE_BYTES, Life, Medium
from ledgermq.sim.trims import Trims
from ledgermq.sim.workload import Workload
from ledgermq.storage.errors import LogFenced, NoSpace, StorageError

SECOND = 1000 * MS
SYNC_NS = (MS // 5, 6 * MS)
HEAL_S = 30


@dataclass
class Outcome:
    """What one seed came to."""

    seed: int
    steps: int
    digest: str
    violation: Violation | None = None
    commits: int = 0
    terms: int = 0
    acknowledged_durable: int = 0
    """Batches, not entries; so below."""
    acknowledged_memory: int = 0
    lost_memory: int = 0

    @property
    def passed(self) -> bool:
        return self.violation is None


@dataclass
class Station:
    """One node of the cluster: its medium for ever, its life while it runs."""

    name: str
    medium: Medium
    life: Life | None = None
    lives: int = 0
    paused_until: int = 0
    waiting: list[tuple[str, PeerPacket]] = field(default_factory=list)
    wake_at: int = 0


class World:
    """`run` is the only entry. Every draw comes from `self.chance`, every moment from `self.now`."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        bug: Bug = Bug.NONE,
        policy: FlushPolicy = FlushPolicy.DURABLE,
        file_bytes: int = DATA_FILE_BYTES,
    ) -> None:
        self.seed = seed
        self.bug = bug
        self.chance = random.Random(seed)
        self.now = SECOND
        self.step_number = 0
        self.network = Network(self.chance)
        self.workload = Workload(self.chance, policy)
        self.checkers = Checkers(nodes)
        self.acknowledgements = Acknowledgements(nodes)
        self.trims = Trims()
        self.lost_memory = 0
        self.faults: Counter[str] = Counter()
        """How often each kind of fault was carried out."""
        self.names = [f"n{k}" for k in range(1, nodes + 1)]
        self.stations = {name: Station(name, Medium(name, tuple(self.names), bug, file_bytes)) for name in self.names}
        self._slow: dict[int, tuple[tuple[str, ...], tuple[int, int]]] = {}
        self.healed = False
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._digest = hashlib.sha256()

    # -- time -----------------------------------------------------------------------------------------------------------------------

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Let something happen later."""
        self._order += 1
        heapq.heappush(self._events, (self.now + max(0, delay_ns), self._order, action))

    def note(self, text: str) -> None:
        """One line of the history; the digest covers all of them."""
        self._digest.update(f"{self.now} {text}\n".encode())

    def run(self, steps: int, schedule: Callable[[World], None]) -> Outcome:
        """`schedule` sets the faults up (`faults.acting(plan)`); after `steps` events everything heals and progress is demanded."""
        violation = None
        try:
            for name in self.names:
                self.start(name)
            schedule(self)
            self._spend(steps)
            self._demand_progress()
        except Violation as broken:
            violation = broken
        except AssertionError as broken:
            violation = Violation("assertion", str(broken))
        digest = self._digest.hexdigest()[:16]
        told = self.acknowledgements
        counts = len(self.checkers.committed), len(self.checkers.leaders), len(told.durable), len(told.memory), self.lost_memory
        return Outcome(self.seed, self.step_number, digest, violation, *counts)

    def _spend(self, steps: int) -> None:
        end = self.step_number + steps
        while self.step_number < end and self._events:
            self._one_event()

    def _one_event(self) -> None:
        self.now, _, action = heapq.heappop(self._events)
        self.step_number += 1
        action()
        self.look()

    def look(self) -> None:
        """Every checker, after every step."""
        living = {s.name: (s.lives, s.life) for s in self.stations.values() if s.life is not None}
        self.checkers.look(living, {s.name: s.medium.watched() for s in self.stations.values()})
        self.acknowledgements.look({name: life for name, (_, life) in living.items()})

    # -- nodes ----------------------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Begin a node's next life from what its medium holds."""
        station = self.stations[name]
        if station.life is not None:
            return
        station.lives += 1
        station.waiting.clear()
        station.paused_until = self.now
        self.note(f"start {name}")
        try:
            with station.medium.working():
                station.life = station.medium.live(self.now, random.Random(self.chance.random()), station.lives)
        except Killed:
            self.note(f"killed in recovery {name}")
            station.medium.abandon(self.chance if self.chance.random() < 0.5 else None)
            self.after(SECOND, lambda: self.start(name))
            return
        except (OSError, StorageError) as error:
            if not (station.medium.sync_failed or isinstance(error, NoSpace)):
                raise
            # A sync failed (code 73) or the disk is full (74): the process exits and its supervisor starts it again.
            station.medium.abandon()
            self.after(SECOND, lambda: self.start(name))
            return
        self._turn(name)

    def crash(self, name: str, *, power: bool) -> None:
        """End a life: with `power` unsynced pages are lost as chance has it, without it (SIGKILL) the cache survives."""
        station = self.stations[name]
        if station.life is None:
            return
        self.note(f"{'power cut' if power else 'kill'} {name}")
        self.acknowledgements.dies(name, station.life)
        station.life = None
        station.medium.crash(self.chance if power else None)

    def pause(self, name: str, duration_ns: int) -> None:
        """The process stands still; packets wait for it."""
        self.stations[name].paused_until = self.now + duration_ns
        self.after(duration_ns, lambda: self._turn(name))

    def slow_down(self, names: tuple[str, ...], sync_ns: tuple[int, int]) -> int:
        """Syncs of these nodes take so long, from and to, until the number that is returned is given to `speed_up`."""
        self._order += 1
        self._slow[self._order] = names, sync_ns
        return self._order

    def speed_up(self, number: int) -> None:
        self._slow.pop(number, None)

    def _sync_ns(self, name: str) -> tuple[int, int]:
        """The slowest of what is under way for a node."""
        return max((times for names, times in self._slow.values() if name in names), key=lambda times: times[1], default=SYNC_NS)

    def _deliver(self, sender: str, to: str, packet: PeerPacket) -> None:
        station = self.stations[to]
        if station.life is not None:
            station.waiting.append((sender, packet))
            self._turn(to)

    def _synced(self, name: str, life: Life, ticket: SyncTicket, early: OSError | bool | None) -> None:
        """The end of an fdatasync: `early` is its outcome when it took effect at its beginning, True when it takes effect now."""
        if self.stations[name].life is not life:
            return
        try:
            with self.stations[name].medium.working():
                error = run_ticket(ticket) if early is True else early
        except Killed:
            self._killed(name)
            return
        assert not isinstance(error, bool)
        life.finished.append((ticket, error))
        self._turn(name)

    def _wake(self, name: str, at: int) -> None:
        station = self.stations[name]
        if station.wake_at == at:
            station.wake_at = 0
            self._turn(name)

    def _turn(self, name: str) -> None:
        """What a node's engine does with what has come in: step, tick, propose, carry out."""
        station = self.stations[name]
        life = station.life
        if life is None or self.now < station.paused_until:
            return
        waiting, station.waiting = station.waiting, []
        try:
            with station.medium.working():
                self._work(station, life, waiting)
        except Killed:
            self._killed(name)
        except (Fenced, LogFenced) as fenced:
            self._fenced(name, fenced)

    def _work(self, station: Station, life: Life, waiting: list[tuple[str, PeerPacket]]) -> None:
        for ticket, error in life.take_finished():
            life.replica.synced(self.now, ticket, error)
        for sender, packet in waiting:
            life.replica.step(self.now, sender, packet)
        life.replica.tick(self.now)
        self._take(station, life)
        self._propose(station, life)
        with suppress(NoSpace):  # tried again in the next turn
            self.trims.carry_out(life)

    def _killed(self, name: str) -> None:
        """The process ended between two lines of its own code; the power may have gone with it."""
        self.crash(name, power=self.chance.random() < 0.5)
        self.after(self.chance.randrange(20 * MS, SECOND), lambda: self.start(name))

    def _take(self, station: Station, life: Life) -> None:
        output = life.replica.take(self.now)
        for to, packet in output.packets:
            packet = PeerPacket(packet.header, self.network.damaged(bytes(packet.payload)))
            for delay in self.network.deliveries(station.name, to):
                self.after(delay, partial(self._deliver, station.name, to, packet))
        if output.sync is not None:
            ticket = output.sync
            early = run_ticket(ticket) if self.chance.random() < 0.5 else True
            delay = int(self.chance.uniform(*self._sync_ns(station.name)))
            self.after(delay, lambda: self._synced(station.name, life, ticket, early))
        wake = max(output.wake_at_ns, self.now + MS // 10)
        if station.wake_at == 0 or wake < station.wake_at:
            station.wake_at = wake
            self.after(wake - self.now, lambda: self._wake(station.name, wake))

    def _propose(self, station: Station, life: Life) -> None:
        """A new leader's term-start record first, then whatever the workload wants."""
        replica = life.replica
        if not replica.accepting:
            return
        batch = self.workload.next_batch(station.name, replica.term, self.now)
        if batch is None:
            return
        try:
            early = batch.durability is Durability.MEMORY
            where = (batch.queue_offsets, self.now // MS)
            replica.propose(self.now, batch.entries, *where, control=batch.control, urgent=not early, early=early)
        except (NotLeader, LogFull):
            return
        self.workload.proposed(station.name, replica.term)
        if not batch.control:
            self.acknowledgements.proposed(station.name, life, batch.durability)
        self.note(f"propose {station.name} {replica.term} {replica.end_index}")
        self._take(station, life)

    def trim(self, files: int) -> None:
        """Whoever leads records that the log begins up to so many files later."""
        for station in self.stations.values():
            life = station.life
            if life is None or self.now < station.paused_until or not self.workload.led(station.name, life.term):
                continue
            record = self.trims.decide(life, files)
            if record is None:
                continue
            entries, offsets = self.trims.batch(record, len(self.trims.recorded), self.now // MS)
            try:
                life.replica.propose(self.now, entries, offsets, self.now // MS, control=True)
                self.trims.proposed(life, record)
                self.note(f"trim {station.name} {record.begin_index}")
                self._take(station, life)
            except (NotLeader, LogFull):
                continue
            except Fenced as fenced:
                self._fenced(station.name, fenced)

    def transfer(self, to: str) -> None:
        """Whoever leads is asked to let another node lead."""
        for station in self.stations.values():
            life = station.life
            if life is None or self.now < station.paused_until or life.role is not Role.LEADER or station.name == to:
                continue
            refusal = life.replica.transfer(self.now, to, Cause.OPERATOR, self.chance.randrange(50 * MS, SECOND))
            self.note(f"transfer {station.name} {to} {'refused' if refusal else 'begun'}")
            self.after(0, partial(self._turn, station.name))

    def _fenced(self, name: str, fenced: Fenced | LogFenced) -> None:
        """The process ends itself. Only a failed sync may be the reason: anything else is a proven divergence."""
        station = self.stations[name]
        self.note(f"fenced {name} {fenced}")
        if not station.medium.sync_failed:
            raise Violation("I2", f"{name} fenced itself: {fenced}")
        station.life = None
        station.medium.crash(None)
        self.after(SECOND, lambda: self.start(name))

    # -- the end --------------------------------------------------------------------------------------------------------------------

    def _demand_progress(self) -> None:
        """Heal everything; within virtual time all replicas must agree on a leader and commit one entry more, everywhere."""
        self.healed = True
        self.network.heal()
        self._slow.clear()
        for station in self.stations.values():
            station.paused_until = self.now
            station.medium.repair()
            self.start(station.name)
        for name in self.names:
            self.after(0, partial(self._turn, name))
        goal = len(self.checkers.committed) + 1
        deadline = self.now + HEAL_S * SECOND
        while self._events and self.now < deadline:
            self._one_event()
            lives = [s.life for s in self.stations.values()]
            if all(life is not None and life.replica.commit_index >= goal for life in lives):
                self._compare_all()
                return
        raise Violation("O7", f"no progress within {HEAL_S} s of virtual time after everything healed")

    def _compare_all(self) -> None:
        """All replicas hold the committed entries, by chain CRC recomputed by their own reads."""
        lives = {s.name: s.life for s in self.stations.values() if s.life is not None}
        last = min(life.commit_index for life in lives.values())
        chains = {name: life.chain_at(last) for name, life in lives.items()}
        if len(set(chains.values())) > 1:
            raise Violation("I2", f"replicas differ at the committed entry {last}: {chains}")
        name, leader = max(lives.items(), key=lambda item: (item[1].role is Role.LEADER, item[1].term))
        self.acknowledgements.check(name, leader)
        self.lost_memory = len(lost(leader, self.acknowledgements.memory))


def run_ticket(ticket: SyncTicket) -> OSError | None:
    """Do the sync; its error is a value here, as it is for the engine."""
    try:
        ticket.run()
    except OSError as error:
        return error
    return None
