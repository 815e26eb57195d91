"""A plan is data: what is drawn, written, read and dropped from it says exactly what happens in a
run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.sim.faults import KNOWN, acting, draw, schedule
from ledgermq.sim.faults.plan import FaultEvent, Plan, PlanError
from ledgermq.sim.runs.world import World

NAMES = ("n1", "n2", "n3")
VALUES = st.integers(-(1 << 62), 1 << 62) | st.floats(allow_nan=False) | st.text() | st.booleans()
EVENTS = st.builds(
    FaultEvent, st.integers(0, 1 << 62), st.text(), st.dictionaries(st.text(), VALUES)
)


@given(st.lists(EVENTS))
def test_a_plan_survives_its_file(events: list[FaultEvent]) -> None:
    """Reading what was written gives the same plan, in the same order."""
    plan = Plan(tuple(events))
    assert Plan.from_json(plan.to_json()) == plan
    assert [event.at_ns for event in plan] == sorted(event.at_ns for event in events)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"v":2,"events":[]}',
        '{"v":1,"events":[1]}',
        '{"v":1,"events":[{"kind":"kill"}]}',
        '{"v":1,"events":[{"at_ns":-1,"kind":"kill"}]}',
        '{"v":1,"events":[{"at_ns":true,"kind":"kill"}]}',
        '{"v":1,"events":[{"at_ns":1,"kind":"kill","params":{"node":null}}]}',
        '{"v":1,"events":[{"at_ns":1,"kind":1}]}',
    ],
)
def test_malformed_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(text)


@pytest.mark.parametrize("kind", KNOWN)
def test_every_kind_is_drawn_as_data_that_can_be_carried_out(kind: str) -> None:
    """What a kind draws survives a file and has all that carrying it out asks for."""
    plan = draw(1, NAMES, 50, (kind,))
    assert plan.kinds() == (kind,)
    assert Plan.from_json(plan.to_json()) == plan
    assert World(1).run(100, acting(plan)).passed


def test_a_run_is_a_function_of_its_seed_and_plan() -> None:
    """The plan of a seed, read from a file, replays the run of that seed; without its events it is
    another run."""
    whole = World(5).run(300, schedule())
    plan = draw(5, NAMES, 2000)
    assert World(5).run(300, acting(Plan.from_json(plan.to_json()))) == whole
    assert World(5).run(300, acting(Plan())).digest != whole.digest


@pytest.mark.parametrize(
    "event",
    [
        FaultEvent(1, "earthquake"),
        FaultEvent(1, "kill", {"node": "n9", "for_ns": 1}),
        FaultEvent(1, "kill", {"node": "n1"}),
        FaultEvent(1, "kill", {"node": "n1", "for_ns": 0.5}),
        FaultEvent(1, "bad-network", {"loss": "much"}),
    ],
)
def test_a_plan_that_cannot_be_carried_out_says_why(event: FaultEvent) -> None:
    with pytest.raises(PlanError):
        World(1).run(50, acting(Plan((event,))))
