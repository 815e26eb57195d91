"""Masters of HA groups in the metadata: every command is one of `raft.ha_control`, agreed on like
the rest, and bad ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.node.controller import ha
from ledgermq.node.controller.metadata import apply
from ledgermq.node.controller.state import Outcome, State, export, restore
from ledgermq.proto.status import Code
from ledgermq.raft import ha_control
from ledgermq.raft.ha_control import AlterIsr, Appointment, ElectionRequest, HaRequest
from ledgermq.raft.transfer import Cause

THREE = {"n1": "", "n2": "", "n3": "d3"}


def elect(
    node: str = "n1",
    *,
    epoch: int = 0,
    term: int = 0,
    cause: Cause = Cause.STARTED,
    incarnation: str = "",
) -> ElectionRequest:
    return ElectionRequest(
        node=node,
        incarnation=incarnation,
        generation=0,
        epoch=epoch,
        term=term,
        voters=THREE,
        cause=cause,
        asked_by=node,
    )


def asked(state: State, *wishes: HaRequest, group: str = "g1") -> tuple[State, Outcome]:
    outcome = Outcome()
    for wish in wishes:
        operation, arguments = ha.command_of(group, wish)
        # As it travels: JSON text.
        state, outcome = apply(
            state,
            json.loads(
                json.dumps({"op": operation, "id": f"{group}{state.revision}{wish}", **arguments})
            ),
        )
    return state, outcome


def test_an_election_without_an_entry_takes_the_voters_that_it_names() -> None:
    """The first master of a group has all voters in sync; the answer is the appointment."""
    state, outcome = asked(State(), elect())
    assert outcome.code == Code.OK and outcome.changed
    assert outcome.value is not None
    assert (
        ha_control.from_json(outcome.value)
        == state.appointments["g1"]
        == Appointment(
            generation=0,
            version=1,
            epoch=1,
            master="n1",
            in_sync=THREE,
            cause=Cause.STARTED,
            asked_by="n1",
        )
    )


def test_the_three_commands_are_the_three_functions() -> None:
    """What is agreed on is what `elect`, `alter` and `force` say, one after the other."""
    wishes: list[HaRequest] = [
        elect(),
        AlterIsr(node="n1", generation=0, epoch=1, version=1, in_sync={"n1": "", "n2": ""}),
        elect("n2", epoch=1, term=4, cause=Cause.ELECTION_TIMEOUT),
        elect("n3", epoch=5, term=5, cause=Cause.FORCED, incarnation="d3"),
    ]
    functions: list[Any] = [ha_control.elect, ha_control.alter, ha_control.elect, ha_control.force]
    state, known = State(), None
    for wish, function in zip(wishes, functions, strict=True):
        state, outcome = asked(state, wish)
        known = function(known, wish)
        assert state.appointments["g1"] == known, outcome
    assert known == Appointment(
        generation=0,
        version=4,
        epoch=6,
        master="n3",
        in_sync={"n3": "d3"},
        cause=Cause.FORCED,
        asked_by="n3",
    )


def test_refused_election_request_leaves_the_state_and_gives_its_reason() -> None:
    """The words are those of the function, with the group's name; the same wish again is refused,
    under its own id answered."""
    state, _ = asked(State(), elect())
    after, outcome = asked(state, elect("n2"))
    assert outcome.code == Code.PRECONDITION_FAILED
    assert outcome.detail == "broker group g1: epoch 1 with the master n1 has begun since epoch 0"
    assert after.appointments is state.appointments and after.revision == state.revision
    operation, arguments = ha.command_of("g1", elect("n2", epoch=1))
    once, first = apply(state, {"op": operation, "id": "r", **arguments})
    twice, second = apply(once, {"op": operation, "id": "r", **arguments})
    assert twice is once and second == first and first.code == Code.OK


def test_groups_have_masters_of_their_own() -> None:
    """An election in one group leaves the others."""
    state, _ = asked(State(), elect())
    state, _ = asked(state, elect("n2"), group="g2")
    assert {group: found.master for group, found in state.appointments.items()} == {
        "g1": "n1",
        "g2": "n2",
    }


def test_appointments_are_exported_and_metadata_without_them_is_read() -> None:
    """They travel as JSON text; a snapshot from before HA groups has none."""
    state, _ = asked(
        State(), elect(), AlterIsr(node="n1", generation=0, epoch=1, version=1, in_sync={"n1": ""})
    )
    tree = json.loads(json.dumps(export(state)))
    assert restore(tree).appointments == state.appointments
    assert export(restore(tree)) == export(state)
    del tree["appointments"]
    assert (
        restore(tree) == replace(state, appointments=restore(tree).appointments)
        and not restore(tree).appointments
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": 3}, "group is a text"),
        ({"epoch": -1}, "epoch is a whole number"),
        ({"term": True}, "term is a whole number"),
        ({"generation": "0"}, "generation is a whole number"),
        ({"cause": 99}, "99"),
        ({"voters": ["n1"]}, "voters names at most"),
        ({"voters": {"n1": 3}}, "as texts"),
        ({"voters": {f"n{k}": "" for k in range(65)}}, "at most 64"),
        ({"asked_by": None}, "asked_by is a text"),
    ],
)
def test_a_malformed_wish_is_refused(change: dict[str, Any], said: str) -> None:
    """Whatever comes from another version is a refusal, never the end of the controller."""
    operation, arguments = ha.command_of("g1", elect())
    state, outcome = apply(State(), {"op": operation, **arguments, **change})
    assert outcome.code == Code.BAD_REQUEST and said in outcome.detail
    assert export(state) == export(State())
