"""Whether simulated runs are behaviours of the specification, and whether runs of a broken product
are not (docs/specification.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ledgermq.sim.cli.cases import Case
from ledgermq.sim.machine.settings import Settings
from ledgermq.sim.nodes.bugs import Bug
from tests.spec import models, simulated, tlc
from tests.spec.traces import Observed, finished_turns

UNBOUNDED = {name: "1000000" for name in models.BOUNDS}
FLAGS = {
    "Early": "FALSE",
    "Late": "TRUE",
    "Rises": "TRUE",
    "Eager": "FALSE",
    "Dropped": "{}",
    "None": "None",
}


def checked(trace: Observed) -> tlc.Checked:
    """Let TLC follow a trace. Skips the test where it cannot be had."""
    constants = {**UNBOUNDED, **FLAGS, **trace.constants()}
    text = tlc.config(constants, "TraceSpec", models.TRACE_INVARIANTS, models.PROPERTIES)
    try:
        return tlc.check("Trace", text, modules={"Observed": trace.module()}, short=True)
    except tlc.NoChecker as reason:
        pytest.skip(str(reason))


def accepted(trace: Observed) -> None:
    """Every step of the trace is allowed, and no state violates a property."""
    found = checked(trace)
    assert found.violated is None, found.output[-4000:]
    assert found.finished, found.output[-4000:]
    assert found.depth == len(trace.events) + 1, (
        f"step {found.depth} is not allowed: {trace.events[found.depth - 1]}"
    )


@dataclass(frozen=True)
class Profile:
    """A run of the simulator."""

    seed: int
    kinds: tuple[str, ...] | None = None
    settings: Settings = Settings()  # noqa: RUF009  a frozen value
    steps: int = 1500

    def case(self, bug: Bug = Bug.NONE) -> Case:
        return Case.drawn(self.seed, self.steps, self.settings, self.kinds, bug)


HA = Settings.of_ha()
TWO_IN_SYNC = Settings.of_ha(minimum=2)
ALONE = Settings.of_ha(ack_async=True)
PROFILES = {
    "default": Profile(4),
    "power-cuts": Profile(
        3, ("power-cut-all", "cut-after-truncation", "depose", "power-cut"), steps=2500
    ),
    "members": Profile(3, ("membership", "join", "power-cut", "membership")),
    "lost-directories": Profile(4, ("wipe-and-return", "wipe-and-return", "kill"), steps=2000),
    "raft-to-ha": Profile(1, ("change-over", "kill", "power-cut"), steps=2000),
    "ha": Profile(8, ("in-sync-race", "slow-slave", "lost-tail", "restart-when-appointed"), HA),
    "ha-two-in-sync": Profile(4, ("two-masters", "usurper", "power-cut-all"), TWO_IN_SYNC),
    "ha-async": Profile(3, ("lost-tail", "depose", "power-cut-all"), ALONE),
    "ha-to-raft": Profile(4, ("change-over", "power-cut", "kill"), HA, steps=2000),
    "ha-members": Profile(1, ("move", "remove", "membership"), HA),
}


def test_a_short_run_is_a_behaviour_of_the_specification() -> None:
    """A few hundred steps of three nodes, in every `make test`."""
    run = simulated.run(Profile(1, steps=250).case())
    assert run.result.passed
    accepted(run.trace)


def test_an_unfinished_turn_counts_as_far_as_it_was_stored() -> None:
    """A process is killed after it stored term 3, and before it stored term 4 or told anybody."""
    stored = {"do": "hear", "node": "n1", "term": 3, "after": {"term": 3, "vote": None}}
    undone = {"do": "campaign", "node": "n1", "after": {"term": 4, "vote": "n1"}}
    start = {"do": "start", "node": "n1", "after": {"term": 3, "vote": None}}
    told = {"do": "told", "node": "n1"}
    assert finished_turns([stored, undone, start]) == [stored, start]
    assert finished_turns([stored, undone, told, start]) == [stored, undone, start]


@pytest.mark.verify
@pytest.mark.parametrize("name", PROFILES)
def test_simulated_runs_are_behaviours_of_the_specification(name: str) -> None:
    """Raft and HA groups under crashes, power cuts, changes of members and of the rule."""
    run = simulated.run(PROFILES[name].case())
    assert run.result.passed, run.result.violation
    accepted(run.trace)


BROKEN: dict[Bug, Profile] = {
    Bug.VOTE_NOT_SYNCED: Profile(4, steps=1200),
    Bug.ACK_BEFORE_SYNC: Profile(1, steps=1200),
    Bug.OLD_TERM_COMMIT: Profile(1, steps=1200),
    Bug.VOTE_FOR_ANY_LOG: Profile(53, steps=1200),
    Bug.COMMIT_UNVERIFIED: Profile(44, steps=1200),
    Bug.TWO_CHANGES_AT_ONCE: Profile(
        1, ("membership", "join", "slow-disks", "membership"), steps=1200
    ),
    Bug.CHANGE_OVER_AT_ONCE: Profile(1, ("change-over", "kill", "power-cut"), steps=2000),
    Bug.SHRUNK_BEFORE_AGREED: Profile(3, None, HA),
    Bug.JOINER_NOT_COUNTED: Profile(
        3, ("in-sync-race", "slow-slave", "in-sync-race", "cut-from-quorum"), HA
    ),
    Bug.JOINS_BEHIND: Profile(3, ("in-sync-race", "slow-slave", "in-sync-race", "lost-tail"), HA),
    Bug.EPOCH_LED_TWICE: Profile(1, None, HA),
    Bug.IN_SYNC_BY_MAJORITY: Profile(1, None, HA),
    Bug.MINIMUM_IGNORED: Profile(13, ("in-sync-race", "slow-slave", "isolate"), TWO_IN_SYNC),
    Bug.EPOCH_AS_ASKED: Profile(53, None, HA),
    Bug.INCARNATION_IGNORED: Profile(
        8, ("wipe-and-return", "kill-majority", "wipe-and-return", "depose"), HA
    ),
}
"""Bugs of the simulator that break a rule of the specification, and runs in which they do."""
NEAR = 20
"""If a change moved the draws, one of the next seeds shows the bug."""


@pytest.mark.verify
@pytest.mark.parametrize("bug", BROKEN)
def test_runs_of_a_broken_product_are_no_behaviours_of_the_specification(bug: Bug) -> None:
    """TLC names a step that is not allowed, or a property that a state violates."""
    runs = (
        simulated.run(replace(BROKEN[bug], seed=BROKEN[bug].seed + more).case(bug))
        for more in range(NEAR)
    )
    assert any(rejected(run.trace) for run in runs)


def rejected(trace: Observed) -> bool:
    found = checked(trace)
    return found.violated is not None or (found.finished and found.depth <= len(trace.events))
