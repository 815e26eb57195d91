"""Bounds the cost of a commit by counts that repeat exactly: no timing, no profile of a loaded
machine.

`turn_costs.json` holds the costs that are known. After an improvement, `python -m
tests.replica.turn_costs --write` lowers the bounds.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.replica.turn_costs import COMMITS, PYTHON, SENDS, TABLE, Cost, excess, measured_alone

SCENARIOS = [f"{role}-{sends}" for sends in SENDS for role in ("leader", "follower")]


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return json.loads(TABLE.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def costs() -> dict[str, Cost]:
    return measured_alone()


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
