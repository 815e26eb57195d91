"""The simulator's own test: every rule of the product that is broken on purpose is noticed, and its
page says by which seed.

A bug that 2,000 seeds do not find is a defect of the simulator. The seed of each is committed here;
the search, for when the draws change, is marked `soak` and prints what to write down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.broker.flush import FlushPolicy
from ledgermq.sim.cli.cases import Case
from ledgermq.sim.faults import KNOWN, acting
from ledgermq.sim.faults.plan import FaultEvent, Plan, Value
from ledgermq.sim.machine.network import MS
from ledgermq.sim.machine.settings import SMALL_FILE_BYTES, Settings
from ledgermq.sim.nodes.bugs import Bug
from ledgermq.sim.runs.world import World

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "simulator.md").read_text()
SEEDS = 2000
NEAR = 40
STEPS = 1200
HYBRID = replace(Settings(), policy=FlushPolicy.HYBRID)
SMALL = replace(Settings(), file_bytes=SMALL_FILE_BYTES)
HA = Settings.of_ha()
TWO_IN_SYNC = Settings.of_ha(minimum=2)
ALONE = Settings.of_ha(ack_async=True)


@dataclass(frozen=True)
class Found:
    """The seed that finds a bug today, and what it is run with."""

    seed: int
    kinds: tuple[str, ...] | None = None
    settings: Settings = Settings()  # noqa: RUF009  a frozen value
    steps: int = STEPS

    def case(self, bug: Bug, seed: int | None = None) -> Case:
        return Case.drawn(
            self.seed if seed is None else seed, self.steps, self.settings, self.kinds, bug
        )


FOUND: dict[Bug, Found] = {
    Bug.VOTE_NOT_SYNCED: Found(4),
    Bug.ACK_BEFORE_SYNC: Found(1),
    Bug.OLD_TERM_COMMIT: Found(1),
    Bug.TAIL_NOT_ERASED: Found(6, steps=3000),
    Bug.ABA_IN_SYNCED: Found(32, ("slow-disks", "depose", "slow-leader", "isolate")),
    Bug.CHAIN_NOT_VERIFIED: Found(37),
    Bug.EARLY_ACK_ALONE: Found(1, settings=HYBRID),
    Bug.LAZY_CALLED_DURABLE: Found(1, settings=HYBRID),
    Bug.MARK_NOT_LOWERED: Found(6, ("cut-after-truncation",), steps=6000),
    Bug.SYNC_RETRIED: Found(1, ("failed-sync", "power-cut", "failed-sync", "power-cut-all")),
    Bug.VOTE_FOR_ANY_LOG: Found(24),
    Bug.COMMIT_UNVERIFIED: Found(44),
    Bug.READS_BY_LEASE: Found(2, ("suspend",)),
    Bug.ANY_ANSWER_CONFIRMS: Found(133, ("late-answers", "transfer"), steps=1500),
    Bug.ANSWER_BEFORE_COMMIT: Found(1),
    Bug.TRIM_WITHOUT_SNAPSHOT: Found(8, ("trim", "kill", "power-cut", "trim"), SMALL),
    Bug.TWO_CHANGES_AT_ONCE: Found(19, ("membership", "join", "slow-disks", "membership")),
    Bug.COMMIT_TWICE: Found(1),
    Bug.FRAMES_FORGOTTEN: Found(5),
    Bug.CACHE_BELIEVED: Found(18, ("slow-follower", "kill", "slow-follower", "kill")),
    Bug.VOTE_LOST_BY_INSTALL: Found(1, ("left-behind", "left-behind", "depose"), SMALL, steps=3000),
    Bug.SHRUNK_BEFORE_AGREED: Found(8, settings=HA, steps=1500),
    Bug.JOINER_NOT_COUNTED: Found(
        3, ("in-sync-race", "slow-slave", "in-sync-race", "cut-from-quorum"), HA, 4000
    ),
    Bug.JOINS_BEHIND: Found(
        3, ("in-sync-race", "slow-slave", "in-sync-race", "lost-tail"), HA, 1500
    ),
    Bug.EPOCH_LED_TWICE: Found(1, settings=HA, steps=1500),
    Bug.EPOCH_NOT_DURABLE: Found(
        5, ("slow-disks", "depose", "power-cut-all", "power-cut-all"), HA, 4000
    ),
    Bug.IN_SYNC_BY_MAJORITY: Found(1, settings=HA, steps=1500),
    Bug.MINIMUM_IGNORED: Found(13, ("in-sync-race", "slow-slave", "isolate"), TWO_IN_SYNC, 1500),
    Bug.EPOCH_AS_ASKED: Found(53, settings=HA, steps=1500),
    Bug.INCARNATION_IGNORED: Found(
        8, ("wipe-and-return", "kill-majority", "wipe-and-return", "depose"), HA, 1500
    ),
    Bug.ACK_BEFORE_TERM_START: Found(1, settings=ALONE, steps=1500),
    Bug.UNCONFIRMED_SHOWN: Found(1, settings=ALONE, steps=1500),
    Bug.EVICTED_WISHED_BACK: Found(1, ("move", "remove"), HA, 1500),
    Bug.RAISED_UNASKED: Found(18, ("upgrade", "upgrade", "kill", "join"), steps=3000),
    Bug.LEVEL_NOT_RAISED: Found(1, ("upgrade", "upgrade", "kill", "join")),
    Bug.DIGEST_AS_ROOT: Found(4, ("seal", "seal", "kill", "power-cut"), SMALL),
    Bug.SEALED_BY_ONE: Found(1),
    Bug.SCRUB_READS_NOTHING: Found(5, ("bit-rot",), steps=8000),
    Bug.KEYS_NOT_SYNCED: Found(2, ("power-cut", "power-cut-all"), steps=6000),
    Bug.UNREAD_TRIMMED: Found(1, ("trim", "slow-disks", "late-group", "trim"), SMALL, steps=3000),
    Bug.READS_BY_MAJORITY: Found(1, ("usurper", "cut-from-quorum", "usurper"), ALONE, 1500),
    Bug.OWN_CLOCK_FOLLOWED: Found(2, ("clock-jump", "clock-jump", "kill", "isolate")),
}
BUGS = list(FOUND)


def _cuts_while_disks_lag() -> Plan:
    """Followers sync late, files go meanwhile, and a follower loses its power."""
    events = []
    for number in range(8):
        at = 1500 + 1500 * number
        late = {"node": "follower", "sync_ns": 1200 * MS, "for_ns": 1400 * MS}
        events += [
            FaultEvent((at + k) * MS, "slow-follower", {**late, "salt": 10 * number + k})
            for k in range(4)
        ]
        events += [
            FaultEvent((at + 300 + 200 * k) * MS, "trim", {"files": 20, "salt": 3 * number + k})
            for k in range(3)
        ]
        events.append(
            FaultEvent(
                (at + 1000) * MS,
                "power-cut",
                {"node": "follower", "for_ns": 20 * MS, "salt": number},
            )
        )
    return Plan(tuple(events))


def _groups_begin_while_the_store_is_away() -> Plan:
    """Files go to the object store, which is away when new consumer groups begin."""
    events: list[FaultEvent] = []
    for number in range(20):
        at = 500 + 500 * number
        events.append(FaultEvent(at * MS, "trim-stored", {"files": 3, "salt": number}))
        if number % 2:
            events.append(
                FaultEvent((at + 100) * MS, "store-away", {"for_ns": 3000 * MS, "salt": number})
            )
            events.append(FaultEvent((at + 110) * MS, "late-group", {"salt": number}))
    return Plan(tuple(events))


def _only_the_late_one_is_left() -> Plan:
    """A slave is cut off until it is out of the in-sync set; then both others end."""
    away = FaultEvent(
        600 * MS,
        "isolate",
        {"node": "n3", "inbound": True, "outbound": True, "for_ns": 60_000 * MS, "salt": 0},
    )
    return Plan(
        (
            away,
            *(
                FaultEvent(2600 * MS, "kill", {"node": name, "for_ns": 3000 * MS, "salt": 0})
                for name in ("n1", "n2")
            ),
        )
    )


def _alone_with_the_quorum() -> Plan:
    """A leader that only the metadata quorum can reach is asked to change the group to appointed
    masters."""
    hears: dict[str, Value] = {"deaf": False, "mute": False}
    apart: dict[str, Value] = {
        "node": "leader",
        "inbound": True,
        "outbound": True,
        **hears,
        "for_ns": 3000 * MS,
        "salt": 0,
    }
    asked: dict[str, Value] = {"stage": "", "hit": "all", "how": "kill", "for_ns": MS, "salt": 0}
    return Plan(
        (FaultEvent(1200 * MS, "two-masters", apart), FaultEvent(1220 * MS, "change-over", asked))
    )


@dataclass(frozen=True)
class Planned:
    """A bug that drawn faults hardly meet: the plan made for it, and the world it happens in."""

    seed: int
    breaks: str
    """The invariant."""
    plan: Plan
    steps: int
    world: Mapping[str, Any]

    def broken(self, seed: int, bug: Bug) -> bool:
        violation = World(seed, bug=bug, **self.world).run(self.steps, acting(self.plan)).violation
        return violation is not None and violation.invariant == self.breaks


PLANNED: dict[Bug, Planned] = {
    Bug.SNAPSHOT_ABOVE_DURABLE: Planned(
        6, "I10", _cuts_while_disks_lag(), 4000, {"file_bytes": SMALL_FILE_BYTES}
    ),
    Bug.ELECTED_OUT_OF_SYNC: Planned(6, "I4", _only_the_late_one_is_left(), 4000, {"settings": HA}),
    Bug.FAILURE_AS_END: Planned(
        4,
        "delivery",
        _groups_begin_while_the_store_is_away(),
        4000,
        {"file_bytes": SMALL_FILE_BYTES},
    ),
    Bug.CHANGE_OVER_AT_ONCE: Planned(1, "I1", _alone_with_the_quorum(), 1500, {}),
    Bug.BATCH_PASSED: Planned(
        2, "I7", Plan((FaultEvent(300 * MS, "fifo-group", {"salt": 1}),)), 2500, {}
    ),
}
NOT_YET = [bug for bug in Bug if bug is not Bug.NONE and bug not in FOUND and bug not in PLANNED]
"""Planted, and no seed is known: docs/simulator.md says why."""


LONG = {
    Bug.CACHE_BELIEVED,
    Bug.CHAIN_NOT_VERIFIED,
    Bug.TAIL_NOT_ERASED,
    Bug.SNAPSHOT_ABOVE_DURABLE,
    Bug.JOINER_NOT_COUNTED,
}
"""Bugs whose seeds or plans take more than four seconds."""


def of_all(bugs: Iterable[Bug]) -> list[Any]:
    """One parameter a bug; those that take long belong to `make verify`."""
    return [pytest.param(bug, marks=pytest.mark.verify) if bug in LONG else bug for bug in bugs]


@pytest.mark.one_in(10)
@pytest.mark.parametrize("bug", of_all(BUGS))
def test_a_planted_bug_is_found_by_its_seed(bug: Bug) -> None:
    """Its seed, or one of the first few when a change of the product moved the draws, breaks an
    invariant, and none without the bug."""
    found = FOUND[bug]
    seeds = (found.seed, *range(1, NEAR + 1))
    noticed = next((seed for seed in seeds if not found.case(bug, seed).run().result.passed), None)
    assert noticed is not None, (
        f"none of {len(seeds)} seeds notices {bug.value}; search again, and write the new seed down"
    )
    assert found.case(Bug.NONE, noticed).run().result.passed


@pytest.mark.parametrize("bug", of_all(PLANNED))
def test_a_planted_bug_is_found_by_its_plan(bug: Bug) -> None:
    """As with seeds; without the bug the same invariant holds."""
    planned = PLANNED[bug]
    noticed = next(
        (seed for seed in (planned.seed, *range(1, NEAR + 1)) if planned.broken(seed, bug)), None
    )
    assert noticed is not None
    assert not planned.broken(noticed, Bug.NONE)


@pytest.mark.soak
@pytest.mark.parametrize("bug", [*BUGS, *NOT_YET])
def test_a_planted_bug_is_found_within_the_seeds(bug: Bug) -> None:
    for seed in range(1, SEEDS + 1):
        if not FOUND.get(bug, Found(1)).case(bug, seed).run().result.passed:
            print(f"{bug.value}: seed {seed}")
            return
    pytest.fail(f"{SEEDS} seeds did not notice {bug.value}")


def test_the_page_tells_every_bug_with_its_seed_and_every_kind_with_its_rows() -> None:
    """What docs/simulator.md says is what the code has."""
    assert [bug.value for bug in BUGS if f"| {bug.value} | {FOUND[bug].seed} |" not in PAGE] == []
    assert [
        bug.value
        for bug, planned in PLANNED.items()
        if f"| {bug.value} | {planned.seed} |" not in PAGE
    ] == []
    assert [bug.value for bug in NOT_YET if f"* {bug.value}:" not in PAGE] == []
    rows = {name: ", ".join(map(str, kind.rows)) for name, kind in KNOWN.items()}
    assert [
        name
        for name, told in rows.items()
        if f"| {name} | {told} | {KNOWN[name].about} |" not in PAGE
    ] == []
