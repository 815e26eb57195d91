"""A simulated run, and the events of its replicas and of the metadata quorum for `Trace.tla`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from ledgermq.raft.config import Rule
from ledgermq.raft.ha_control import Appointment, HaRequest
from ledgermq.sim.checks.outcome import Outcome
from ledgermq.sim.cli.cases import Case
from ledgermq.sim.faults import acting
from ledgermq.sim.nodes import node as sim_node
from ledgermq.sim.nodes.bugs import Bug, replica_type
from ledgermq.sim.runs.world import World
from tests.spec.recorder import Event, appointment_object, recorded, request_object
from tests.spec.traces import Observed, finished_turns, observed, without_heartbeats


@dataclass(frozen=True)
class Run:
    """The outcome of a run, and its trace."""

    result: Outcome
    events: list[Event]
    trace: Observed


def run(case: Case) -> Run:
    """Run a case once and record it."""
    events: list[Event] = []

    def recording(bug: Bug) -> type[RaftReplica]:
        base = replica_type(bug)

        class RecordedReplica(base):  # type: ignore[misc, valid-type]
            core_type = recorded(base.core_type, events.append)

            def take(self, now_ns: int) -> Any:
                output = super().take(now_ns)
                events.append({"do": "told", "node": self.config.node})
                return output

        return RecordedReplica

    with patch.object(sim_node, "replica_type", recording):
        world = World(case.seed, settings=case.settings, bug=case.bug)
        decide = world.controller.decide

        def decided(wish: HaRequest, *, by_force: bool = False) -> Appointment | str:
            made = decide(wish, by_force=by_force)
            if isinstance(made, Appointment):
                events.append(
                    {"do": "decide", "ask": request_object(wish), "made": appointment_object(made)}
                )
            return made

        with patch.object(world.controller, "decide", decided):
            result = world.run(case.steps, acting(case.plan))
    settings = case.settings
    rule = Rule(settings.rule)
    minimum = settings.ha.minimum if rule is Rule.IN_SYNC else 1
    events = without_heartbeats(finished_turns(events))
    return Run(result, events, observed(events, settings.names, str(rule), minimum))
