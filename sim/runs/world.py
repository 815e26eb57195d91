"""One run of a simulated cluster: a function of its seed and scenario.

This module does what happens before, between and after the faults: it starts everything, compares
what clients saw and replicas derived with the log from time to time, and at the end it ends all
faults, demands progress and compares all replicas. `cluster.py` runs the events in between.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import structlog

from ledgermq.node.replica.hosting.ports import State
from ledgermq.sim.actors.natives import judge
from ledgermq.sim.actors.operators import Upgrader
from ledgermq.sim.checks.checkers import Violation
from ledgermq.sim.checks.outcome import Outcome
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import NEXT_LEVEL
from ledgermq.sim.nodes.node import Life
from ledgermq.sim.runs.cluster import RECONCILE_NS, SECOND
from ledgermq.sim.runs.operated import Operated

HEAL_S = 30
SETTLE_NS = SECOND
"""How often what clients saw is compared with the log."""
DRAINED_SHARE = 0.25
"""Share of the runs in which clients, at the end, receive until nothing is left."""


class World(Operated):
    """A cluster that is run once; `run` is the only entry point."""

    def run(
        self, steps: int, schedule: Callable[[World], None], *, until_ns: int | None = None
    ) -> Outcome:
        """`schedule` schedules the faults (`faults.acting(plan)`); after `steps` events, or
        `until_ns` of virtual time, all faults end and progress is demanded."""
        violation = None
        began = self.now
        processors = structlog.get_config()["processors"]
        logging, processors[:] = processors[:], [_drop]
        try:
            for name in self.names:
                self.start(name)
            for client in self.clients:
                client.start()
            for transactor in self.transactors:
                transactor.start()
            self.delayer.start()
            for native in self.natives:
                native.start()
            self.after(RECONCILE_NS // 4, self._reconcile)
            self.after(SETTLE_NS, self._settle)
            schedule(self)
            self._spend(steps, began + until_ns if until_ns is not None else None)
            self._demand_progress()
        except Violation as broken:
            violation = broken
        except AssertionError as broken:
            violation = Violation("assertion", f"{broken} ({_place(broken)})")
        finally:
            processors[:] = logging
        durable, memory = self.histories.acknowledged
        result = Outcome(
            seed=self.seed,
            steps=self.step_number,
            digest="",
            violation=violation,
            commits=len(self.truth),
            terms=len(self.checkers.leaders),
            acknowledged_durable=durable,
            acknowledged_memory=memory,
        )
        result.lost_memory = self.histories.early_lost() if violation is None else 0
        result.virtual_ns = self.now - began
        self._count(result)
        # A difference anywhere in a run shows in its log.
        self._digest.update(f"{self.truth.chains[-1:]} {result.coverage}".encode())
        result.digest = self._digest.hexdigest()[:16]
        return result

    def _spend(self, steps: int, until: int | None) -> None:
        end = self.step_number + steps
        heap = self._heap
        while self.step_number < end and heap and (until is None or heap[0][0] <= until):
            self._one_event()

    def _settle(self) -> None:
        """From time to time: compare what clients saw and what replicas derived with the log."""
        self.histories.settle()
        self.decisions.settle()
        self._compare_states()
        self.after(SETTLE_NS, self._settle)

    def _compare_states(self) -> None:
        states = []
        for station in self.stations.values():
            if station.life is not None:
                machine = station.life.machine
                states += [(index, station.name, value) for index, value in machine.exported]
                machine.exported.clear()
        for index, name, value in sorted(states, key=lambda state: state[:2]):
            self.truth.state(name, index, value)
            self.coverage["states-compared"] += 1

    def _demand_progress(self) -> None:
        """End all faults; within a virtual time limit all replicas must agree on a leader and
        commit and apply one more entry."""
        self.healed = True
        self.note("everything heals")
        self.network.heal()
        self.starving.heal()
        self.appointing.heal()
        self.store.away_until = 0
        self._slow.clear()
        for station in self.stations.values():
            station.paused_until = self.now
            station.wall_offset_ms = 0
            station.clock.go_on(self.now)
            station.clock.set_rate(self.now, 0)
            station.medium.repair()
            if station.medium.harmed:
                self._verify_all(station)
            self.start(station.name)
            self.turn_soon(station)
        self.wall_clocks.healed(self.now)
        goal = len(self.truth) + 1
        deadline = self.now + HEAL_S * SECOND
        while self._heap and self.now < deadline:
            if not self._one_event():
                continue
            members = self._in_force()
            if members and all(
                life is not None and life.machine.applied_index >= goal for life in members
            ):
                break
            if self.hopeless and self._refused_by_name():
                self.coverage["refused-by-name"] += 1
                return
        else:
            raise Violation(
                "O7", f"no progress within {HEAL_S} s of virtual time after everything healed"
            )
        self._come_to_rest(deadline)
        self._compare_all()

    def _come_to_rest(self, deadline: int) -> None:
        """Clients stop sending; all replicas must reach and apply the same log, and in some runs
        every message must be acknowledged."""
        drains = self.chance.random() < DRAINED_SHARE
        self.note("clients send no more" + (", and take what is left" if drains else ""))
        for client in self.clients:
            client.wind_down(receives=drains)
        for consumer in self.fifo_consumers:
            consumer.wind_down(receives=drains)
        for transactor in self.transactors:
            transactor.wind_down()
        self.delayer.wind_down()
        for native in self.natives:
            native.wind_down()
        ends: set[tuple[int, int]] = set()
        while self._heap and self.now < deadline:
            if not self._one_event():
                continue
            lives = self._in_force()
            ends = {
                (life.end_index, life.machine.applied_index) for life in lives if life is not None
            }
            same = (
                None not in lives
                and len(ends) == 1
                and all(end == applied for end, applied in ends)
            )
            same = (
                same
                and not self._delays_left()
                and not any(native.waits for native in self.natives)
            )
            same = same and all(operator.ended for operator in self.operators)
            same = same and not any(life is not None and life.indexer.lag for life in lives)
            upgraded = same and any(isinstance(operator, Upgrader) for operator in self.operators)
            if upgraded and (
                behind := [
                    life.group.node
                    for life in lives
                    if life is not None and life.machine.level < NEXT_LEVEL
                ]
            ):
                raise Violation(
                    "level",
                    f"the upgrade is finished, and {', '.join(behind)} is at the former level",
                )
            if same and self._all_count() and (not drains or self._all_acknowledged()):
                # Polls of several clients may follow each other without a gap, for ever.
                for client in self.clients:
                    client.wind_down(receives=False)
                for consumer in self.fifo_consumers:
                    consumer.wind_down(receives=False)
                if self._waiting:
                    continue
                self.coverage["drained"] += drains
                for group in (
                    dict.fromkeys(client.group for client in self.clients) if drains else ()
                ):
                    self.histories.all_delivered(group, self.owed(group))
                return
        if endless := [str(operator) for operator in self.operators if not operator.ended]:
            raise Violation(
                "O7",
                f"{', '.join(endless)} does not end within {HEAL_S} s of virtual time after"
                " everything healed",
            )
        if drains and len(ends) == 1:
            raise Violation(
                "delivery",
                f"messages are left that no client receives within {HEAL_S} s of virtual time",
            )
        raise Violation(
            "O7",
            f"the replicas did not come to hold the same within {HEAL_S} s of virtual time:"
            f" {sorted(ends)}",
        )

    def _delays_left(self) -> bool:
        """Whether a delayed message is still to be delivered."""
        machine = next(life for life in self._in_force() if life is not None).machine
        return self.timetable.waits(machine.timers, self.now // MS)

    def _all_acknowledged(self) -> bool:
        """Whether every message was delivered and none is in flight."""
        machine = next(life for life in self._in_force() if life is not None).machine
        groups = dict.fromkeys(client.group for client in self.clients)
        queues = [
            (group, topic, queue)
            for group in groups
            for topic, config in machine.topics.items()
            for queue in range(config.queues)
        ]
        return machine.delivery.in_flight == 0 and all(
            machine.delivery.cursor(key) == machine.end(*key[1:]) for key in queues
        )

    def _refused_by_name(self) -> bool:
        """Whether a majority reports that no replica has the entries it lacks."""
        refused = [
            s
            for s in self.stations.values()
            if s.running is not None and s.running.state is State.REFUSED
        ]
        return len(refused) > len(self.stations) // 2

    def _compare_keys(self, life: Life) -> None:
        """The key index has every message from the begin of the log on, and nothing else."""
        begin = life.log.begin_pos
        for key, places in self.truth.keys().items():
            wanted = [place for place in places if place >= begin]
            found = [place for place in life.positions_of(key) if place >= begin]
            if found != wanted:
                missing, strange = sorted({*wanted} - {*found}), sorted({*found} - {*wanted})
                raise Violation(
                    "keys",
                    f"the key index of {life.group.node} lacks the messages at {missing[:3]}, and has"
                    f" {strange[:3]} that have no such key",
                )

    def _compare_all(self) -> None:
        """Compare all bytes of all replicas up to their applied index, and all derived state."""
        members = self._in_force()
        for station in self.stations.values():
            life = station.life
            if life is None:
                # Not a member (yet, or any more).
                continue
            self._nothing_gone(station.name, life)
            if life in members:
                self.checkers.still_durable(station.name, life)
            wrong = station.medium.first_difference(
                self.truth.pieces(life.begin_index, life.machine.applied_index), life
            )
            if wrong is not None:
                raise Violation(
                    "I2", f"{station.name} holds other bytes than were committed at entry {wrong}"
                )
        # Of one replica, because it walks through each chain of keys.
        compared = members[self.seed % len(members)]
        if compared is not None:
            self._compare_keys(compared)
        self._compare_states()
        for name, life in sorted(self._lives(), key=lambda found: found[1].machine.applied_index):
            life.machine.export(self.stations[name].medium.identity.log_id)
            self._compare_states()
            self.truth.compare_queues(name, life.machine, life.store.queues)
        self.histories.finish()
        for groups in self.fifo_groups:
            groups.check()
        self.decisions.finish()
        self.timetable.finish(self.truth.machine.timers.pending)
        judge(
            self.natives, self.truth.pieces(0, len(self.truth) - 1), self.truth.machine.time_epochs
        )

    def _count(self, result: Outcome) -> None:
        of = self.coverage
        of["elections"] = self.checkers.elections
        of["redeliveries"] = sum(group.again for group in self.histories.groups.values())
        of["acknowledgements-repeated"] = sum(
            group.repeated for group in self.histories.groups.values()
        )
        of["reads"] = self.histories.reads
        of["transactions-committed"], of["transactions-rolled-back"] = self.decisions.confirmed
        of["delayed-messages"], of["recalls"] = self.timetable.confirmed
        of["frames-acknowledged"] = sum(len(native.receipts) for native in self.natives)
        of["frames-answered-again"] = sum(native.duplicates for native in self.natives)
        of["transaction-checks"] = sum(
            decision.checks for decision in self.decisions.halves.values()
        )
        of["acknowledged-messages"] = sum(
            len(done) for group in self.histories.groups.values() for done in group.done.values()
        )
        of["files-trimmed"] += sum(life.trimming.files_removed for _, life in self._lives())
        result.coverage = dict(sorted(of.items()))


def _drop(logger: Any, method: str, event: Any) -> Any:
    """The nodes' log lines are of no interest: the timeline has what happened. An unexpected error
    that the product survives is one."""
    if event.get("exc_info"):
        raise Violation("assertion", str(event["event"])) from sys.exc_info()[1]
    raise structlog.DropEvent


def _place(error: BaseException) -> str:
    """Module and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f"{frames[-1].filename.rpartition('/')[2]} line {frames[-1].lineno}"
        if frames
        else "nowhere"
    )
