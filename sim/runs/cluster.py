"""One simulated cluster: virtual time, a heap of events, and the turns of its nodes.

This module orders the events; `operated.py` says what operators ask for, `__init__.py` plans
faults, and `world.py` runs a whole run to its end. A node runs the product's code (`node.py` and
`process.py` wire it), `clients.py` defines clients. The invariants are checked after every step
(`checkers.py`, `truth.py`) and over the clients' histories (`histories.py`).

A node's turns are ordered by the product's scheduler; `Loop` drives it. A pass comes a little later
than what caused it, so it takes everything that arrived meanwhile.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ledgermq.node.broker.calls import Token
from ledgermq.node.broker.calls.consumer_calls import Receive
from ledgermq.node.broker.calls.member_calls import (
    Appointed,
    GroupMembers,
    MembersChanged,
    Returned,
)
from ledgermq.node.broker.calls.operator_calls import Seal, Trim
from ledgermq.node.broker.calls.outcome import Call, Done, Refused, Result
from ledgermq.node.broker.calls.read_calls import Confirm, Peek
from ledgermq.node.broker.calls.send_calls import FrameProduced, Produced
from ledgermq.node.broker.calls.tier_calls import TierFetch
from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.broker.ports import Diverged, Fenced, PeerPacket, SyncTicket, Unreadable
from ledgermq.node.broker.queues import QueueKey
from ledgermq.node.replica.background.ports import Worker
from ledgermq.node.replica.consensus.replica_wire import is_of_leader
from ledgermq.node.replica.hosting.hosting import TAKE_AWAY
from ledgermq.node.replica.hosting.ports import State
from ledgermq.proto.entries.entry_sealing import chain_seed
from ledgermq.proto.types import Role
from ledgermq.raft.config import Members, Rule
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.transfer import Cause, LeaderChange
from ledgermq.sim.actors.appointing import Appointing
from ledgermq.sim.actors.clients import Client, Habits
from ledgermq.sim.actors.controller import Controller
from ledgermq.sim.actors.delayers import Delayer, Plans
from ledgermq.sim.actors.fifo_consumers import FifoConsumer, Groups
from ledgermq.sim.actors.natives import NativeProducer, Ways
from ledgermq.sim.actors.operators import Operator, Upgrader
from ledgermq.sim.actors.ports import Answer
from ledgermq.sim.checks.checkers import Checkers, Violation
from ledgermq.sim.checks.histories import Histories
from ledgermq.sim.checks.outcome import TimelineEvent
from ledgermq.sim.checks.ports import OnMedium
from ledgermq.sim.checks.stored import StoredMessages
from ledgermq.sim.checks.timetable import Timetable
from ledgermq.sim.checks.truth import Truth
from ledgermq.sim.checks.wall_clocks import WallClocks
from ledgermq.sim.machine.acquaintance import Acquaintance
from ledgermq.sim.machine.clock import Clock
from ledgermq.sim.machine.disk import Killed
from ledgermq.sim.machine.network import MS, Network
from ledgermq.sim.machine.settings import FILE_BYTES, Settings
from ledgermq.sim.machine.starving import Starving
from ledgermq.sim.nodes.bugs import Bug, cluster_clock_type, election
from ledgermq.sim.nodes.node import RECORD_BODY_AT, Life, Medium
from ledgermq.sim.nodes.process import Process
from ledgermq.sim.runs.decisions import Decisions
from ledgermq.sim.runs.transactors import Manners, Transactor
from ledgermq.storage.files.errors import LogFenced, NoSpace, StorageError

SECOND = 1000 * MS
SYNC_NS = (MS // 5, 6 * MS)
CALL_NS = (MS // 10, MS)
BEGAN_NS = SECOND
"""The time at which every run begins."""
RECONCILE_NS = 100 * MS
PASS_NS = MS
"""A node takes its turn at most this long after something arrived."""
TRANSACTORS = 2
NATIVES = 2
NATIVES_EVERY = 5
"""Native producers take part in every fifth seed, so that the other seeds keep finding what they
found before."""
EVENTS_KEPT = 4096


@dataclass
class Station:
    """One node of the cluster: its permanent medium, and its process while it runs."""

    name: str
    medium: Medium
    running: Process | None = None
    """Its process."""
    life: Life | None = None
    """The group while it is open in that process."""
    acquaintance: Acquaintance = field(default_factory=Acquaintance)
    members: frozenset[str] = frozenset()
    """The group's members as last named in its log."""
    lives: int = 0
    paused_until: int = 0
    wall_offset_ms: int = 0
    """The error of this node's wall clock."""
    clock: Clock = field(default_factory=Clock)
    """Its monotonic clock, which its processes share."""

    def process(self, world_ns: int) -> int:
        """Which process answers at this moment; 0: none."""
        return self.lives if self.running is not None and world_ns >= self.paused_until else 0

    def steady_ns(self, world_ns: int) -> int:
        return self.clock.at(world_ns)


class Cluster:
    """All random numbers come from `self.chance`, all times from `self.now`."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        bug: Bug = Bug.NONE,
        policy: FlushPolicy = FlushPolicy.DURABLE,
        file_bytes: int = FILE_BYTES,
        settings: Settings | None = None,
        clients: int = 3,
        habits: Habits | None = None,
    ) -> None:
        self.seed = seed
        self.bug = bug
        self.chance = random.Random(seed)
        self.now = BEGAN_NS
        self.step_number = 0
        self.network = Network(self.chance)
        self.starving = Starving(self.chance, self.after)
        self.settings = settings or replace(
            Settings.of_nodes(nodes), policy=policy, file_bytes=file_bytes
        )
        self.names = list(self.settings.names)
        self.stations = {
            name: Station(name, Medium(name, self.settings, bug)) for name in self.names
        }
        for station in self.stations.values():
            # Founders have all met, with their first directories.
            station.acquaintance.met = {
                name: other.medium.identity.incarnation for name, other in self.stations.items()
            }
        log_id = self.stations[self.names[0]].medium.identity.log_id
        self.truth = Truth(log_id, self.settings.file_bytes)
        self.media: dict[str, OnMedium] = {
            name: station.medium for name, station in self.stations.items()
        }
        self.controller = Controller(
            addresses={name: f"{name}:9000" for name in self.names}, elects=election(bug)
        )
        self.appointing = Appointing(
            self, self.controller, self.settings.names, random.Random(f"controller {seed}")
        )
        self.checkers = Checkers(self.truth, self.media, self.controller, self.settings.ha.minimum)
        self.wall_clocks = WallClocks(
            random.Random(f"clocks {seed}"),
            self.stations,
            self.network.reaches,
            cluster_clock_type(bug),
            by_majority=self.settings.rule is Rule.MAJORITY,
        )
        self._timed = 0
        """How many committed entries had their store times checked."""
        self.histories = Histories(self.truth)
        self.faults: Counter[str] = Counter()
        """How often each kind of fault was carried out."""
        self.kept: set[tuple[str, str]] | None = None
        """(consumer group, topic) whose unread messages held back every trim that left nothing in
        the object store; None: none did."""
        self.coverage: Counter[str] = Counter()
        """What happened, besides faults."""
        self.fifo_groups: list[Groups] = []
        self.fifo_consumers: list[FifoConsumer] = []
        self.operators: list[Operator | Upgrader] = []
        self.observing: set[str] = set()
        """Nodes that joined to observe: a move to an observer is refused for good."""
        self.events: deque[TimelineEvent] = deque(maxlen=EVENTS_KEPT)
        """The last events, for a timeline."""
        self._slow: dict[int, tuple[tuple[str, ...], tuple[int, int]]] = {}
        self.healed = False
        self.hopeless = False
        """The same place is damaged on every replica: the cluster must keep refusing it by name."""
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._digest = hashlib.sha256()
        self._token = 0
        self._waiting: dict[int, tuple[Callable[[Answer], None], Process | None]] = {}
        """Clients' calls by token, and the process that accepted them."""
        self._asked_at = 0
        """How much was committed when deposed leaders were last asked."""
        self._reading: dict[int, tuple[int, Life]] = {}
        """Reads by token: the last entry that was committed when the read came to a process, and
        that process."""
        self._touched: list[str] = []
        habits = habits or Habits()
        self.decisions = Decisions(self.histories, self.settings.transactions.checks_max)
        producers = [random.Random(f"transactor {seed} {k}") for k in range(TRANSACTORS)]
        self.transactors = [
            Transactor(self, self.decisions, clients + k, chance, Manners())
            for k, chance in enumerate(producers)
        ]
        self.timetable = Timetable(self.histories, self.truth)
        self.delayer = Delayer(
            self, self.timetable, clients + TRANSACTORS, random.Random(f"delayer {seed}"), Plans()
        )
        natives = [
            random.Random(f"native {seed} {k}")
            for k in range(NATIVES if seed % NATIVES_EVERY == 0 else 0)
        ]
        first, tag = clients + TRANSACTORS + 1, chain_seed(log_id)
        self.natives = [
            NativeProducer(
                self, self.truth, first + k, chance, Ways(), name="native" if k else "", log_tag=tag
            )
            for k, chance in enumerate(natives)
        ]
        self.store = StoredMessages(self.truth)
        self._habits = habits
        self.clients = [
            Client(self, k, random.Random(f"client {seed} {k}"), habits, RECORD_BODY_AT)
            for k in range(clients)
        ]

    # -- time
    # -----------------------------------------------------------------------------------------------------------------------

    def after(self, delay_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        """Schedule an action."""
        self._order += 1
        heapq.heappush(
            self._heap,
            (self.now + (delay_ns if delay_ns > 0 else 0), self._order, action, arguments),
        )

    def note(self, text: str, node: str = "") -> None:
        """Add one line to the history; the digest covers all of them."""
        self._digest.update(f"{self.now} {node} {text}\n".encode())
        self.events.append(TimelineEvent(self.now, node, text))

    def _one_event(self) -> bool:
        """Returns whether a node took a turn in it."""
        self.now, _, action, arguments = heapq.heappop(self._heap)
        self.step_number += 1
        action(*arguments)
        if not self._touched:
            return False
        self.look()
        self._ask_deposed()
        if len(self.truth) > self._timed:
            self.wall_clocks.check(self.truth.pieces(self._timed, len(self.truth) - 1), self.now)
            self._timed = len(self.truth)
        return True

    def look(self) -> None:
        """Run every checker after every step, on the node that acted in it."""
        touched, self._touched = self._touched, []
        for name in touched:
            station = self.stations[name]
            if station.life is not None:
                self.checkers.look(name, station.lives, station.life)

    def _ask_deposed(self) -> None:
        """Another leader has committed something: somebody reads from every node that still
        believes that it leads. Nobody waits for the answer, but it must be true."""
        if len(self.truth) == self._asked_at:
            return
        self._asked_at = len(self.truth)
        newest = self.truth.terms[-1]
        for station in self.stations.values():
            life = station.life
            if life is None or life.role is not Role.LEADER or life.term >= newest:
                continue
            if not any(reader is life for _, reader in self._reading.values()):
                self.ask(station.name, Confirm, lambda outcome: None)

    # -- nodes
    # ----------------------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a node's next process from the content of its medium."""
        station = self.stations[name]
        if station.running is not None:
            return
        self.note("start", name)
        station.acquaintance.begin()
        station.paused_until = self.now
        loop = Loop(self, station)
        running = station.running = loop.process = Process(
            station.medium, partial(self._live, station), station.members, self.chance, loop
        )
        if self._run(station, running, running.begin):
            self._watch(station, running)

    def _live(
        self,
        station: Station,
        thread: Callable[[], Executor],
        worker: Callable[[str], Worker],
    ) -> Life:
        """A process opens its group: at its start, and again after the group's files were repaired
        or installed."""
        station.lives += 1
        chance = random.Random(self.chance.random())
        life = station.medium.live(
            clock_ns=lambda: station.clock.at(self.now),
            chance=chance,
            boot_id=station.lives,
            truth=self.truth,
            worker=worker,
            thread=thread,
        )
        life.start()
        life.changed = partial(self._leader_changed, station.name)
        if life.machine.applied_index >= 0:
            self.coverage["starts-from-snapshot"] += 1
            life.machine.export(station.medium.identity.log_id)
        return life

    def _run(self, station: Station, running: Process, work: Callable[[], None]) -> bool:
        """Run code of a process; False if the process ended in it."""
        medium = station.medium
        medium.busy = True
        try:
            work()
        except Killed:
            self._killed(station)
        except (Fenced, LogFenced, OSError, StorageError) as error:
            self._ended_by(station, error)
        finally:
            medium.busy = False
        return station.running is running

    def _watch(self, station: Station, running: Process) -> None:
        """Look at what became of the group in a turn."""
        opened = running.opened
        if opened is not station.life:
            if station.life is not None:
                self._bury(station)
            station.life = opened
            if opened is not None:
                self.appointing.started(station.name)
        former, state = running.state, running.host.state
        if state is former:
            return
        running.state = state
        rebuild = running.host.status().rebuild
        reason = "" if rebuild is None else rebuild.reason
        self.note(f"{state}: {reason}" if reason else str(state), station.name)
        if TAKE_AWAY in reason:
            self._ended_by(station, Diverged(reason))
        elif state is State.RUNNING and former is not State.JOINING:
            station.medium.wounded = False
            self.coverage["mended"] += 1
        elif state is State.REFUSED:
            self.coverage["repairs-refused"] += 1
        elif former is not State.REFUSED and state in (State.REPAIRING, State.INSTALLING):
            self.coverage["repairs" if state is State.REPAIRING else "installs"] += 1

    def trimmed_for_good(self, consumed: Iterable[QueueKey]) -> None:
        """A trim that leaves nothing in the object store was held back by what these (consumer
        group, topic, queue) had not read, and by nothing else."""
        kept = {(group, topic) for group, topic, _ in consumed}
        self.kept = kept if self.kept is None else self.kept & kept

    def _leader_changed(self, name: str, change: LeaderChange) -> None:
        running = self.stations[name].running
        if change.leader == name and running is not None:
            running.upkeep.hurry()
        self.note(
            f"term {change.term}: {change.former or 'nobody'} led, now {change.leader or 'nobody'}",
            name,
        )
        self.coverage["leaders-by-transfer"] += (
            change.leader == name and change.reason.cause is Cause.OPERATOR
        )

    def _end(self, station: Station, *, power: bool) -> None:
        """The process ends, whatever it was doing, and all its connections with it."""
        running, station.running = station.running, None
        if station.life is not None:
            self._bury(station)
        for token in [token for token, (_, taken) in self._waiting.items() if taken is running]:
            self.after(self.chance.randrange(*CALL_NS), self._answer, token, None)
        self.starving.ended(station.name)
        station.medium.crash(self.chance if power else None)

    def crash(self, name: str, *, power: bool) -> None:
        """End a process: with `power` a random subset of unsynced pages is lost, without it
        (SIGKILL) the cache survives. After the end of faults nothing crashes any more."""
        station = self.stations[name]
        if station.running is None or self.healed:
            return
        self.note("power cut" if power else "kill", name)
        if power and station.medium.disk.unsynced_pages():
            self.coverage["crashes-with-unsynced-pages"] += 1
        self._end(station, power=power)

    def _bury(self, station: Station) -> None:
        """The group is no longer open."""
        life, station.life = station.life, None
        assert life is not None
        station.members = frozenset(life.replica.members.nodes)
        self.coverage["crashes"] += 1
        self.coverage["files-trimmed"] += life.trimming.files_removed
        self.checkers.dies(station.name, life)
        self._reading = {
            token: read for token, read in self._reading.items() if read[1] is not life
        }
        self._nothing_gone(station.name, life)

    def pause(self, name: str, duration_ns: int) -> None:
        """Pause the process; packets wait for it."""
        if self.healed:
            return
        station = self.stations[name]
        station.paused_until = self.now + duration_ns
        self.note(f"paused for {duration_ns // MS} ms", name)

    def suspend(self, name: str, duration_ns: int) -> None:
        """Suspend the machine: the process is paused, and its monotonic clock stands still."""
        if not self.healed:
            self.pause(name, duration_ns)
            self.stations[name].clock.stand_still(self.now, duration_ns)

    def set_clock(self, name: str, ppm: int) -> None:
        """Set the rate of a node's monotonic clock; its timers are recalculated."""
        station = self.stations[name]
        station.clock.set_rate(self.now, ppm)
        if station.running is not None:
            station.running.scheduler.time_is_up()

    def slow_down(self, names: tuple[str, ...], sync_ns: tuple[int, int]) -> int:
        """Syncs of these nodes take this long (from, to), until the returned number is passed to
        `speed_up`."""
        self._order += 1
        self._slow[self._order] = names, sync_ns
        return self._order

    def speed_up(self, number: int) -> None:
        self._slow.pop(number, None)

    def _sync_ns(self, name: str) -> tuple[int, int]:
        """The slowest of the current slowdowns of a node."""
        if not self._slow:
            return SYNC_NS
        return max(
            (times for names, times in self._slow.values() if name in names),
            key=lambda times: times[1],
            default=SYNC_NS,
        )

    def _deliver(self, sender: str, incarnation: str, to: str, packet: PeerPacket) -> None:
        self.starving.hand(
            to, "read", [(sender, incarnation, packet)], self._take_in, self.stations[to]
        )

    def _take_in(self, station: Station, came: Iterable[tuple[str, str, PeerPacket]]) -> None:
        running = station.running
        if running is None:
            return
        if station.life is not None:
            station.acquaintance.named = station.life.replica.members.incarnations
        heard = []
        for sender, incarnation, packet in came:
            if not station.acquaintance.hears(sender, incarnation) and not is_of_leader(packet):
                self.coverage["packets-of-replaced-directories"] += 1
            else:
                heard.append((self.settings.group, sender, packet))
        running.scheduler.packets(heard)

    def _sync(self, station: Station, running: Process, ticket: SyncTicket) -> None:
        early = run_ticket(ticket) if self.chance.random() < 0.5 else True
        self.after(
            int(self.chance.uniform(*self._sync_ns(station.name))),
            self._synced,
            station,
            running,
            ticket,
            early,
        )

    def _synced(
        self, station: Station, running: Process, ticket: SyncTicket, early: OSError | bool | None
    ) -> None:
        """The end of an fdatasync: `early` is its outcome if it took effect at its start, True if
        it takes effect now."""
        if station.running is not running:
            return
        outcome = [early]
        if early is True and not self._run(
            station, running, lambda: outcome.append(run_ticket(ticket))
        ):
            return
        error = outcome[-1]
        assert not isinstance(error, bool)
        running.scheduler.sync_ended(self.settings.group, ticket, error)

    def put(self, station: Station, call: Call) -> None:
        """A call comes to the node's process, if one runs."""
        running = station.running
        if running is not None and running.seat is not None:
            running.scheduler.put(running.seat, call)

    def turn_soon(self, station: Station) -> None:
        """The group gets a turn without an input."""
        if station.running is not None:
            station.running.scheduler.want(self.settings.group)

    def _pass(self, station: Station, running: Process) -> None:
        """Run a node's scheduler on what has arrived."""
        self._touched.append(station.name)
        if self._run(station, running, running.scheduler.run):
            self._watch(station, running)

    def _carry_out(self, station: Station, running: Process, output: TurnOutput) -> None:
        name = station.name
        self._send(name, output.packets)
        for wish in output.ha_requests:
            self.appointing.wished(name, wish)
        for fetch in output.tier_fetches:
            self.after(self.chance.randrange(*CALL_NS), self._fetched, station, running, fetch)
        for done in output.done:
            self._done(name, done)

    def _fetched(self, station: Station, running: Process, fetch: TierFetch) -> None:
        """The object store answers."""
        if station.running is running:
            self.coverage["fetches-failed" if self.now < self.store.away_until else "fetches"] += 1
            self.put(station, self.store.answer(fetch, self.now))

    def _nothing_gone(self, name: str, life: Life) -> None:
        """Nothing was removed from the store, so no group passes over a message because it no
        longer exists."""
        gone = life.group.leader.counters["gone"]
        if gone:
            raise Violation(
                "delivery",
                f"{name} let consumer groups pass over {gone} messages that the object store has",
            )

    def call_own(
        self, station: Station, running: Process, call: Call, answered: Callable[[Answer], None]
    ) -> None:
        """A process calls its own group."""
        self._waiting[call.token] = (answered, running)
        self.put(station, call)
        if isinstance(call, Seal):
            self.note(f"seal of the file at {call.record.base}", station.name)
            self.coverage["seals"] += 1
        elif isinstance(call, Trim):
            self.note(f"trim to entry {call.record.begin_index}", station.name)

    def query(
        self, sender: str, to: str, request: bytes, answered: Callable[[bytes | None], None]
    ) -> None:
        """A process asks another node."""
        for delay in self.network.deliveries(sender, to)[:1]:
            self.after(delay, self._queried, sender, to, request, answered)

    def _queried(
        self, sender: str, to: str, request: bytes, answered: Callable[[bytes | None], None]
    ) -> None:
        running, replies = self.stations[to].running, partial(self._reply, to, sender, answered)
        if running is None:
            # No process listens there: the connection is refused.
            replies(None)
        else:
            running.upkeep.answer(request, replies)

    def _reply(
        self, to: str, sender: str, answered: Callable[[bytes | None], None], told: bytes | None
    ) -> None:
        for delay in self.network.deliveries(to, sender)[:1]:
            self.after(delay, answered, told)

    def new_token(self) -> Token:
        self._token += 1
        return self._token

    def _send(self, name: str, packets: Iterable[tuple[str, PeerPacket]]) -> None:
        # Copy the bytes now: their map may change later.
        taken = [(to, PeerPacket(packet.header, bytes(packet.payload))) for to, packet in packets]
        self.starving.hand(name, "send", taken, self._leave, name)

    def _leave(self, name: str, packets: Iterable[tuple[str, PeerPacket]]) -> None:
        incarnation = self.stations[name].medium.identity.incarnation
        for to, packet in packets:
            sent = PeerPacket(packet.header, self.network.damaged(bytes(packet.payload)))
            for delay in self.network.deliveries(name, to):
                self.after(delay, self._deliver, name, incarnation, to, sent)

    def _killed(self, station: Station) -> None:
        """The process ended in the middle of its own code, possibly by a power cut."""
        self.note("killed", station.name)
        self._end(station, power=self.chance.random() < 0.5)
        self.after(self.chance.randrange(20 * MS, SECOND), self.start, station.name)

    def _ended_by(self, station: Station, error: Exception) -> None:
        """The process ends itself, and its supervisor restarts it. The reason is a failed sync, a
        full disk, or damage that no peer can mend; anything else is a proven divergence, or damage
        that nothing did."""
        medium, fenced = station.medium, isinstance(error, Fenced | LogFenced)
        self.note(f"{'fenced' if fenced else 'failed'}: {error}", station.name)
        self.coverage["fenced"] += fenced
        if not (
            medium.sync_failed or (not fenced and (medium.harmed or isinstance(error, NoSpace)))
        ):
            raise Violation(
                "I2" if fenced else "I10", f"{station.name} ended itself: {error}"
            ) from error
        self._end(station, power=False)
        self.after(SECOND, self.start, station.name)

    def unreadable(self, station: Station, failure: Exception) -> None:
        """Something found durable entries of the log that cannot be read."""
        if station.life is not None:
            station.life.fail(Unreadable(failure))
            self.turn_soon(station)

    # -- clients
    # --------------------------------------------------------------------------------------------------------------------

    def ask(
        self, node: str, make: Callable[[int], Call], answered: Callable[[Answer], None]
    ) -> int:
        """Send a call, which is made for the given token, to a node; returns the token. `answered`
        is called once, unless the call is given up: with an answer, or with None if the connection
        broke."""
        self._token += 1
        token = self._token
        self._waiting[token] = (answered, None)
        self.after(self.chance.randrange(*CALL_NS), self._arrive, node, token, make(token))
        return token

    def give_up(self, token: int) -> None:
        """Stop waiting for this call; its request may still be carried out."""
        self._waiting.pop(token, None)

    def _arrive(self, node: str, token: int, call: Call) -> None:
        station = self.stations[node]
        waiting = self._waiting.get(token)
        running, life = station.running, station.life
        if waiting is None:
            return
        if running is None:
            # No process listens there: the connection is refused.
            self.after(self.chance.randrange(*CALL_NS), self._answer, token, None)
            return
        self._waiting[token] = (waiting[0], running)
        if isinstance(call, Receive):
            # A server converts a caller's deadline to its own clock.
            call = replace(call, deadline_ns=station.clock.at(call.deadline_ns))
        if isinstance(call, Peek | Confirm) and life is not None:
            self._reading[token] = len(self.truth) - 1, life
        self.put(station, call)

    def _done(self, node: str, done: Done) -> None:
        """An answer leaves the cluster: from now on it must hold, whether a client receives it or
        not."""
        outcome = done.outcome
        committed, life = self._reading.pop(done.token, (-1, None))
        if (
            life is not None
            and not isinstance(outcome, Refused)
            and life.machine.applied_index < committed
        ):
            known = f"{node} answered from what it had applied, entry {life.machine.applied_index}"
            raise Violation(
                "read", f"{known}, although {committed} was committed before the read came"
            )
        if isinstance(outcome, Produced | FrameProduced):
            life = self.stations[node].life
            assert life is not None
            last = (
                outcome.last_index
                if isinstance(outcome, FrameProduced)
                else outcome.first_index + len(outcome.queue_offsets) - 1
            )
            self.checkers.promised(node, last, outcome.term, outcome.durability, life)
        elif isinstance(outcome, MembersChanged):
            self.note(
                f"members as of entry {outcome.members.index}: {_told(outcome.members)}", node
            )
            self.coverage["membership-changes"] += 1
        elif isinstance(outcome, Refused) and outcome.reason in (
            "members-refused",
            "members-not-yet",
        ):
            self.note(f"members not changed: {outcome.detail}", node)
            self.coverage["membership-changes-refused"] += 1
        if done.token in self._waiting:
            self.after(self.chance.randrange(*CALL_NS), self._answer, done.token, outcome)

    def _answer(self, token: int, outcome: Answer) -> None:
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            waiting[0](outcome)

    def _reconcile(self) -> None:
        """The controller's requests reach the leader, and connected nodes learn each other's
        directories."""
        self._greet()
        for station in self.stations.values():
            life = station.life
            if life is not None and life.group.leader.serving:
                self._token += 1
                call = self.controller.missing(
                    life.machine.topics, life.machine.groups, self._token
                )
                if call is not None:
                    self.put(station, call)
        self.appointing.refresh()
        self.after(RECONCILE_NS, self._reconcile)

    # What the way to the metadata quorum needs

    def awake(self) -> list[str]:
        """The nodes whose process runs and is not paused."""
        return [
            name
            for name, station in self.stations.items()
            if station.running is not None and self.now >= station.paused_until
        ]

    def tell(self, node: str, appointment: Appointment) -> None:
        """The node's process receives it, if its group is open."""
        running = self.stations[node].running
        if running is not None:
            running.scheduler.put_at_once(self.settings.group, Appointed(appointment))

    def members(self) -> Members | None:
        """The group's members according to its newest leader; None without one."""
        led = [
            (life.term, life)
            for station in self.stations.values()
            if (life := station.life) is not None and life.role is Role.LEADER
        ]
        return max(led, key=lambda pair: pair[0])[1].replica.members if led else None

    def agreed(self, appointment: Appointment) -> None:
        """The metadata quorum has decided it."""
        self.coverage["appointments"] += 1
        members = self.members()
        if (
            members is not None
            and members.rule is Rule.IN_SYNC
            and appointment.generation == members.since
            and not appointment.forced
        ):
            self.checkers.appointed()

    def _greet(self) -> None:
        """Every connected pair of nodes greets; a node that sees another directory than it knows
        tells its group."""
        there = [
            station
            for station in self.stations.values()
            if station.running is not None and self.now >= station.paused_until
        ]
        for station in there:
            known = station.acquaintance
            for other in there:
                pair = station.name, other.name
                if (
                    other is not station
                    and self.network.reaches(*pair)
                    and self.network.reaches(*pair[::-1])
                ):
                    known.greeted(other.name, other.medium.identity.incarnation)
            life = station.life
            if life is not None:
                known.named = life.replica.members.incarnations
                for node, incarnation in known.returned():
                    self.put(station, Returned(node, incarnation))


class Loop:
    """The event loop of a process, and its other threads, on the heap of the world. What comes up
    while the process is paused waits."""

    process: Process

    def __init__(self, cluster: Cluster, station: Station) -> None:
        self._cluster = cluster
        self._station = station
        self._timer = 0
        """The number of the timer in force."""

    def now_ns(self) -> int:
        return self._station.clock.at(self._cluster.now)

    def now_ms(self) -> int:
        return self._cluster.wall_clocks.now_ms(self._station.name, self._cluster.now)

    def _after(self, delay_ns: int, action: Callable[..., object], *given: Any) -> None:
        self._cluster.after(delay_ns, self._act, action, given)

    def _act(self, action: Callable[..., object], given: tuple[Any, ...]) -> None:
        paused_ns = self._station.paused_until - self._cluster.now
        if self._station.running is not self.process:
            return
        if paused_ns > 0:
            self._after(paused_ns, action, *given)
        else:
            action(*given)

    def _pass_ns(self) -> int:
        cluster = self._cluster
        return int(cluster.chance.random() * PASS_NS) + cluster.starving.wait_ns(self._station.name)

    def pass_soon(self) -> None:
        self._after(self._pass_ns(), self._cluster._pass, self._station, self.process)

    def pass_at(self, at_ns: int) -> None:
        self._timer += 1
        self._after(
            max(self._station.clock.when(at_ns) - self._cluster.now, MS // 10),
            self._time_is_up,
            self._timer,
        )

    def _time_is_up(self, timer: int) -> None:
        if timer == self._timer:
            self.process.scheduler.time_is_up()

    def rest(self) -> None:
        self._after(self._pass_ns(), self.process.scheduler.rested)

    def sync(self, group: str, ticket: SyncTicket) -> None:
        self._cluster._sync(self._station, self.process, ticket)

    def deliver(self, group: str, output: TurnOutput) -> None:
        self._cluster._carry_out(self._station, self.process, output)

    def later(self, wait_ns: tuple[int, int], action: Callable[[], None]) -> None:
        self._after(
            self._cluster.chance.randrange(*wait_ns),
            self._cluster._run,
            self._station,
            self.process,
            action,
        )

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        cluster, station = self._cluster, self._station
        wait_ns = max(station.clock.when(at_ns) - cluster.now, 0)
        self._after(wait_ns, cluster._run, station, self.process, action)

    def soon(self, action: Callable[[], None]) -> None:
        self._after(self._pass_ns(), self._cluster._run, self._station, self.process, action)

    def turn_soon(self) -> None:
        self._cluster.turn_soon(self._station)

    def new_token(self) -> Token:
        return self._cluster.new_token()

    def call(self, call: Call, answered: Callable[[Result | Refused], None]) -> None:
        def told(answer: Answer) -> None:
            if answer is not None:
                answered(answer)

        self._cluster.call_own(self._station, self.process, call, told)

    def trims(self, consumed: Iterable[QueueKey]) -> None:
        self._cluster.trimmed_for_good(consumed)

    def ask(self, node: str, request: bytes, answered: Callable[[bytes | None], None]) -> None:
        self._cluster.query(self._station.name, node, request, answered)

    def send(self, packets: Sequence[tuple[str, PeerPacket]]) -> None:
        self._cluster._send(self._station.name, packets)


def _told(members: GroupMembers) -> str:
    """A text form of the members."""
    learners = f", learners {', '.join(sorted(members.learners))}" if members.learners else ""
    return f"voters {', '.join(members.voters)}{learners}"


def run_ticket(ticket: SyncTicket) -> OSError | None:
    """Run the sync, and return its error as a value, as the engine gets it."""
    try:
        ticket.run()
    except OSError as error:
        return error
    return None
