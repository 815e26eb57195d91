"""An audit as a client of a simulated cluster: its calls are answered by the simulated nodes, and
between them the cluster goes on.

It needs of a node's process its log, its machine, its consume queues and its pins, and of a medium
its files.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ledgermq.audit.reading.node_paths import NodeLost
from ledgermq.audit.run.jobs import Audit, audit_running
from ledgermq.audit.run.running import RunningCluster
from ledgermq.client.errors import Unreachable
from ledgermq.node.broker.calls.operator_calls import Mark, Marked
from ledgermq.proto.records.control import AuditRecord
from ledgermq.sim.actors.ports import Answer
from ledgermq.sim.nodes.node import CLUSTER_ID, CREATED_MS, Life
from ledgermq.sim.runs.cluster import SECOND, Station
from ledgermq.sim.runs.world import World
from ledgermq.storage.files import sealed_json
from tests.audit.served import NODE_FILE, Here, Point, Served, connected

MARK_NS = 20 * SECOND
"""The limit for a marker, and for a replica to reach it."""


@dataclass
class SimulatedNode(Served):
    """What a simulated node answers."""

    name: str
    group: str
    world: World
    pins: int = 0

    @property
    def station(self) -> Station:
        return self.world.stations[self.name]

    @property
    def _life(self) -> Life:
        life = self.station.life
        assert life is not None
        return life

    @property
    def up(self) -> bool:
        return self.station.life is not None and self.world.now >= self.station.paused_until

    @property
    def life(self) -> str:
        return f"{self.name}-{self.station.lives}"

    @property
    def applied(self) -> int:
        # Units of consume queues are written from the durable log only.
        return min(self._life.machine.applied_index, self._life.replica.durable_index)

    def reaches(self, index: int) -> bool:
        pass_time(
            self.world, lambda: not self.up or self.applied >= index, self.world.now + MARK_NS
        )
        if not self.up:
            raise NodeLost(self.name, f"{self.name} went away")
        return self.applied >= index

    def begin(self) -> Point:
        log = self._life.log
        before = log.begin_index - 1
        return before, log.begin_pos, log.term_at(before), log.chain_at(before)

    def point(self, index: int) -> Point:
        life = self._life
        if index < life.begin_index:
            return self.begin()
        found = life.log.read(index, 1)
        end_pos = found.pos + len(found.data)
        while not life.store.queues.write_below(end_pos):
            continue
        return index, end_pos, found.term, found.last_chain

    def names(self) -> Iterable[str]:
        files = self.station.medium.disk.files()
        return [NODE_FILE, *(path.removeprefix(f"/{self.name}/") for path in files)]

    def content(self, path: str) -> bytes | None:
        if path == NODE_FILE:
            return sealed_json.encode(
                {
                    "cluster_id": CLUSTER_ID,
                    "created_ms": CREATED_MS,
                    "format_version": 1,
                    "node": self.name,
                }
            )
        disk = self.station.medium.disk
        try:
            return disk.read_file(f"/{self.name}/{path}")
        except FileNotFoundError:
            return None

    def take_pin(self) -> str:
        self.pins += 1
        pin, life = f"{self.life}-{self.pins}", self._life
        life.pins.take(pin, life.log.begin_pos, "an audit", 3_600_000, self.world.now)
        return pin

    def renew_pin(self, pin: str) -> bool:
        return self._life.pins.renew(pin, 3_600_000, self.world.now)

    def drop_pin(self, pin: str) -> bool:
        return self._life.pins.drop(pin)


def pass_time(world: World, enough: Callable[[], bool], until_ns: int) -> None:
    """Run the cluster, within one of its own events, until something is so, but not longer than
    this."""
    while not enough() and world.now < until_ns:
        world._one_event()


@dataclass
class Auditing:
    """Audits of a simulated cluster."""

    world: World
    chance: random.Random
    events_a_call: int
    results: list[Audit] = field(default_factory=list)

    def begin(self, after_ns: int, gap_ns: int, times: int) -> None:
        """Audit for the first time after this time, and so often with these gaps."""
        self.world.after(after_ns, self._work, gap_ns, times)

    def _work(self, gap_ns: int, times: int) -> None:
        if times and not self.world.healed:
            try:
                self.results.append(self.audit())
            except Unreachable:
                # The node with which an audit begins is away: there is no audit, and the next one
                # is asked for.
                times += 1
            self.world.after(gap_ns, self._work, gap_ns, times - 1)

    def audit(self) -> Audit:
        world = self.world
        nodes = {
            f"127.0.0.1:{9000 + at}": SimulatedNode(name, world.settings.group, world)
            for at, name in enumerate(world.names)
        }
        here = Here(nodes, world.settings.group, self._mark, lambda number, method: self.go_on())
        with connected(here) as connection:
            return audit_running(RunningCluster(connection, 5.0, lambda: world.now / SECOND))  # type: ignore[arg-type]

    def go_on(self) -> None:
        """The cluster goes on for some events."""
        for _ in range(self.chance.randrange(2 * self.events_a_call + 1)):
            self.world._one_event()

    def _mark(self, name: str) -> Point:
        """Append a marker at whichever node leads."""
        world, answers = self.world, list[Answer]()
        until = world.now + MARK_NS
        while world.now < until:
            answers.clear()
            for node in world.names:
                world.ask(node, lambda token: Mark(token, AuditRecord(name)), answers.append)
            pass_time(
                world,
                lambda: any(isinstance(answer, Marked) for answer in answers),
                world.now + SECOND,
            )
            index = next((answer.index for answer in answers if isinstance(answer, Marked)), None)
            for life in (
                [station.life for station in world.stations.values()] if index is not None else []
            ):
                if life is not None and life.machine.applied_index >= index:
                    found = life.log.read(index, 1)
                    return index, found.pos + len(found.data), found.term, found.last_chain
        raise AssertionError("nobody appends the marker")


def reasons(result: Audit) -> str:
    """For the message of a failed test."""
    return json.dumps(
        {
            "verdict": result.verdict,
            "reasons": result.reasons,
            "findings": [f.text for f in result.findings],
        },
        indent=1,
    )
