"""Bounds the cost of a commit by counts that repeat exactly: no timing, no profile of a loaded
machine.

`turn_costs.json` holds the costs that are known. After an improvement, `python -m
tests.replica.turn_costs --write` lowers the bounds.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.broker.group import TurnOutput
from ledgermq.node.replica.consensus.raft_replica import RaftReplica
from tests.replica.turn_costs import (
    COMMITS,
    PYTHON,
    SENDS,
    TABLE,
    Cost,
    Node,
    Trio,
    excess,
    measured_alone,
)

SCENARIOS = [f"{role}-{sends}" for sends in SENDS for role in ("leader", "follower")]


class Pushing(Trio):
    """Notes the ranges that each turn of the leader pushes."""

    def __init__(self, base: Path) -> None:
        self.pushed: list[list[bytes | memoryview]] = []
        super().__init__(base)

    def noted(self, node: Node, output: TurnOutput) -> None:
        if ranges := [packet.payload for _, packet in output.packets if len(packet.payload)]:
            self.pushed.append(ranges)


def test_followers_are_pushed_the_same_range(tmp_path: Path) -> None:
    """What a turn appended is at hand for every follower, and goes with the turn."""
    trio = Pushing(tmp_path)
    try:
        trio.configure()
        trio.pushed.clear()
        trio.send(1)
        ((one, other),) = trio.pushed
        replica = trio.leader.group.replicator
        assert isinstance(replica, RaftReplica) and not replica._travelling
    finally:
        trio.close()
    assert one is other


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return json.loads(TABLE.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def costs() -> dict[str, Cost]:
    return measured_alone()


@pytest.mark.parametrize(
    ("scenario", "calls", "module_changes"),
    [("leader-1", 7_200, 4_000), ("follower-1", 4_000, 3_200)],
)
def test_lone_commits_stay_within_their_budget(
    costs: dict[str, Cost], scenario: str, calls: int, module_changes: int
) -> None:
    """Of all `COMMITS` together, however often the table is written anew."""
    cost = costs[scenario]
    assert cost.calls <= calls, cost.functions.most_common(25)
    assert cost.module_changes <= module_changes, cost.modules.most_common(25)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_commit_costs_no_more_than_the_table_says(
    costs: dict[str, Cost], known: dict[str, Any], scenario: str
) -> None:
    told = excess(costs[scenario], known[scenario], memory=known["python"] == PYTHON)
    assert not told, f"{scenario}: {told}"


@pytest.mark.verify
def test_costs_are_the_same_in_every_run(costs: dict[str, Cost]) -> None:
    """All but memory, for which the bounds have slack: Python's allocator serves the whole
    process."""

    def counted(found: dict[str, Cost]) -> dict[str, Cost]:
        return {
            scenario: replace(cost, kept_blocks=0, peak_bytes=0) for scenario, cost in found.items()
        }

    assert counted(measured_alone()) == counted(costs)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_hundred_more_calls_are_found_and_named(
    costs: dict[str, Cost], known: dict[str, Any], scenario: str
) -> None:
    cost = costs[scenario]
    grown = replace(
        cost,
        functions=cost.functions
        + Counter({"a:slow": 60 * COMMITS, "a:other": 30 * COMMITS, "b:helper": 10 * COMMITS}),
    )
    told = excess(grown, known[scenario], memory=False)
    assert (
        "+90.00 a commit  a: slow 60.00, other 30.00\n" in told
        and "+10.00 a commit  b: helper 10.00" in told
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"packets": 1}, "packets"),
        ({"system_calls": Counter(fdatasync=1)}, "fdatasync"),
        ({"system_calls": Counter(pread=1)}, "1 pread, not 0"),
        ({"functions": Counter({"a:Thing.__init__": 6 * COMMITS})}, "objects"),
        ({"module_changes": 21 * COMMITS}, "changes of module"),
        ({"kept_blocks": 10**6}, "blocks kept"),
        ({"peak_bytes": 10**8}, "bytes at the peak"),
    ],
)
def test_costs_above_the_table_are_reported(
    costs: dict[str, Cost], known: dict[str, Any], scenario: str, more: dict[str, Any], told: str
) -> None:
    cost = costs[scenario]
    grown = replace(cost, **{name: getattr(cost, name) + by for name, by in more.items()})
    assert told in excess(grown, known[scenario], memory=True)
