"""Broker groups as intent: specs, meant leaders, moves that may be repeated, and queues that go
where they should."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.node.controller.broker_groups import Move, fewest_replicas
from ledgermq.node.controller.metadata import apply
from ledgermq.node.controller.state import Outcome, State, export, restore
from ledgermq.proto.status import Code

NODES = {name: {"peer": f"{name}:1"} for name in ("n1", "n2", "n3", "n4")}
THREE = ["n1", "n2", "n3"]
SPEC = {"replicas": THREE, "data_file_bytes": 1 << 20}
GROUPS = {"g1": THREE, "g2": THREE, "g3": THREE}


def begun(groups: dict[str, list[str]] | None = None, **settings: Any) -> State:
    placed = GROUPS if groups is None else groups
    specs = {name: {**SPEC, "replicas": replicas, **settings} for name, replicas in placed.items()}
    return done(State(), "set-cluster", nodes=NODES, broker_groups=placed, specs=specs)


def run(state: State, op: str, **fields: Any) -> tuple[State, Outcome]:
    after, outcome = apply(state, {"op": op, **fields})
    assert restore(export(after)) == after
    return after, outcome


def done(state: State, op: str, **fields: Any) -> State:
    after, outcome = run(state, op, **fields)
    assert outcome.code == Code.OK, outcome
    return after


def refused(state: State, op: str, **fields: Any) -> str:
    after, outcome = run(state, op, **fields)
    assert outcome.code != Code.OK and after == state, outcome
    return outcome.detail


def move(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"group": "g1", "from": source, "to": target, **more}


# -- who is meant to lead


def test_groups_of_a_new_cluster_get_leaders_on_different_nodes() -> None:
    """Each group prefers another node; a cluster of one group is not changed, and a configured
    preference is kept."""
    assert [spec.leader_wanted for spec in begun().specs.values()] == ["n1", "n2", "n3"]
    assert begun({"g1": THREE}).specs["g1"].leader_wanted is None
    fixed = begun(preferred_leader="n2")
    assert [spec.leader_wanted for spec in fixed.specs.values()] == ["n2"] * 3
    assert "preferred_leader is n2" in refused(fixed, "prefer-leader", group="g1", node="n1")


def test_repeated_announcement_of_a_group_is_ignored() -> None:
    """An older file changes nothing."""
    state = done(begun(), "prefer-leader", group="g1", node="n3")
    again = done(
        state,
        "set-cluster",
        nodes=NODES,
        broker_groups=GROUPS,
        specs={"g1": {**SPEC, "data_file_bytes": 5}},
    )
    assert again == state and again.specs["g1"].preferred == "n3"
    assert "has no replica" in refused(state, "prefer-leader", group="g1", node="n4")


# -- new groups


def test_a_group_is_added_once_and_its_leader_is_another() -> None:
    """The same again is fine whenever it is asked; other settings are refused."""
    state = done(
        begun(),
        "add-broker-group",
        group="g4",
        settings={"replicas": ["n2", "n4"], "created_ms": 5},
    )
    assert state.broker_groups["g4"] == ("n2", "n4") and state.specs["g4"].leader_wanted == "n4"
    assert (
        done(
            state,
            "add-broker-group",
            group="g4",
            settings={"replicas": ["n2", "n4"], "created_ms": 6},
        )
        == state
    )
    assert "begun with other settings" in refused(
        state, "add-broker-group", group="g4", settings={"replicas": ["n1"]}
    )


@pytest.mark.parametrize(
    ("group", "settings", "words"),
    [
        ("a b", {"replicas": ["n1"]}, "is no name of a broker group"),
        ("controller", {"replicas": ["n1"]}, "keep something else under that name"),
        ("g4", {"replicas": []}, "has no replicas"),
        ("g4", {"replicas": ["n1", "n1"]}, "two replicas on one node"),
        (
            "g4",
            {"replicas": ["n1", "n9"]},
            "n9, which is no node of this cluster; known: n1, n2, n3, n4",
        ),
        ("g4", None, "no names and values"),
    ],
)
def test_a_group_that_cannot_be_is_refused_by_name(group: str, settings: Any, words: str) -> None:
    """With what is wrong."""
    assert words in refused(begun(), "add-broker-group", group=group, settings=settings)


def test_two_nodes_on_one_address_are_one_place() -> None:
    """Neither a new group nor a move puts two replicas there."""
    state = done(begun(), "set-node", node="n4", addresses={"peer": "n3:1"})
    assert "nodes n3 and n4 have one address, n3:1" in refused(
        state, "add-broker-group", group="g4", settings={"replicas": ["n3", "n4"]}
    )
    assert "have one address" in refused(state, "begin-move", **move("n1", "n4"))
    assert done(state, "begin-move", **move("n3", "n4")).broker_groups["g1"] == (
        "n1",
        "n2",
        "n3",
        "n4",
    )


def test_replicas_go_where_the_fewest_are() -> None:
    """Then by name."""
    assert fewest_replicas({"g1": ["n1", "n2"], "g2": ["n1"]}, ["n3", "n2", "n1", "n4"], 3) == (
        "n2",
        "n3",
        "n4",
    )


# -- moves


def test_a_move_begins_ends_and_may_be_told_twice() -> None:
    """The target joins, the source leaves, and the preferred leader is updated; a repeated report
    changes nothing."""
    state = done(begun(), "begin-move", **move("n1", "n4"))
    assert state.broker_groups["g1"] == ("n1", "n2", "n3", "n4") and state.specs["g1"].move == Move(
        "n1", "n4"
    )
    assert done(state, "begin-move", **move("n1", "n4")) == state
    assert "finish that first: ledgermq move-replica g1 --from n1 --to n4" in refused(
        state, "begin-move", **move("n2", "n4")
    )
    moved = done(state, "end-move", **move("n1", "n4", done=True))
    spec = moved.specs["g1"]
    assert moved.broker_groups["g1"] == ("n2", "n3", "n4")
    assert (spec.move, spec.joined, spec.left, spec.preferred) == (None, ("n4",), ("n1",), "n4")
    assert done(moved, "end-move", **move("n1", "n4", done=True)) == moved


def test_a_replica_that_moves_back_joins() -> None:
    """A founder that gave its replica away begins nothing when it gets one again."""
    state = done(
        done(begun(), "begin-move", **move("n1", "n4")), "end-move", **move("n1", "n4", done=True)
    )
    back = done(state, "begin-move", **move("n4", "n1"))
    assert back.specs["g1"].left == () and back.specs["g1"].joined == ("n1", "n4")


def test_a_move_is_given_up() -> None:
    """Everything is as before, but for the target's directory, which is not opened."""
    state = done(begun(), "begin-move", **move("n1", "n4"))
    after = done(state, "end-move", **move("n1", "n4", done=False))
    assert (
        after.broker_groups["g1"] == ("n1", "n2", "n3")
        and after.specs["g1"].left == ("n4",)
        and after.specs["g1"].preferred == "n1"
    )


# -- queues


def created(state: State, **fields: Any) -> State:
    base = {"ns": "", "name": "t", "kind": "normal", "queues": 6, "permission": "rw"}
    return done(state, "create-topic", **{**base, **fields})


def updated(state: State, **fields: Any) -> dict[str, int]:
    return dict(done(state, "update-topic", ns="", name="t", **fields).topics["", "t"].placement)


def test_queues_grow_where_they_should() -> None:
    """Evenly over all groups; in one that has none; or as many as are asked for there."""
    one = created(begun({"g1": THREE}))
    state = done(one, "add-broker-group", group="g2", settings={"replicas": THREE})
    assert updated(state, queues=8) == {"g1": 6, "g2": 2}
    assert updated(state, add_group="g2") == {"g1": 6, "g2": 6}
    assert updated(state, add_group="g2", queues=9) == {"g1": 6, "g2": 3}
    assert updated(state, grow={"g2": 4, "g1": 2}) == {"g1": 6, "g2": 4}
    assert "has 6 queues in broker group g1 already" in refused(
        state, "update-topic", ns="", name="t", add_group="g1"
    )
    assert "g9 does not exist; known: g1, g2" in refused(
        state, "update-topic", ns="", name="t", add_group="g9"
    )


@pytest.mark.parametrize("settings", [{"kind": "lite"}, {"dedup_ms": 60_000}])
def test_topics_that_look_for_messages_by_group_stay_in_theirs(settings: dict[str, Any]) -> None:
    """More queues there, none elsewhere."""
    state = done(
        created(begun({"g1": THREE}), **settings),
        "add-broker-group",
        group="g2",
        settings={"replicas": THREE},
    )
    assert updated(state, queues=8) == {"g1": 8}
    refused(state, "update-topic", ns="", name="t", add_group="g2")
