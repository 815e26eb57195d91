"""Laws of the metadata state machine: deterministic, idempotent, exportable, evenly placed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.controller import metadata
from ledgermq.node.controller.metadata import REMEMBERED_REQUESTS, apply
from ledgermq.node.controller.signing_keys import signs_with
from ledgermq.node.controller.state import Outcome, State, UnknownCommand, export, may_vote, restore
from ledgermq.node.controller.topics import MAX_QUEUES, spread
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.status import Code
from ledgermq.proto.types import Permission, TopicConfig, TopicDurability, TopicKind

NODES = {"n1": {"peer": "h1:1"}, "n2": {"peer": "h2:1"}, "n3": {"peer": "h3:1"}}
DESCRIBED = {
    "op": "set-cluster",
    "id": "boot",
    "nodes": NODES,
    "broker_groups": {"g1": ["n1", "n2"], "g2": ["n2", "n3"]},
}


def topic(name: str = "t", **changes: Any) -> dict[str, Any]:
    return {
        "op": "create-topic",
        "ns": "",
        "name": name,
        "kind": "normal",
        "queues": 4,
        "permission": "rw",
        **changes,
    }


def run(commands: list[dict[str, Any]], state: State | None = None) -> tuple[State, list[Outcome]]:
    state = State() if state is None else state
    outcomes = []
    for command in commands:
        state, outcome = apply(state, command)
        outcomes.append(outcome)
    return state, outcomes


def described() -> State:
    return run([DESCRIBED])[0]


names = st.sampled_from(["a", "b", "c", "rmq_sys_x", "bad name", ""])
common = {
    "ns": st.sampled_from(["", "x"]),
    "name": names,
    "id": st.sampled_from([f"r{i}" for i in range(12)]),
}
commands = st.lists(
    st.one_of(
        st.just(DESCRIBED),
        st.fixed_dictionaries({"op": st.just("barrier")}),
        st.fixed_dictionaries(
            {
                "op": st.just("create-topic"),
                "kind": st.sampled_from(["normal", "fifo", "delay", "?", 3]),
                "queues": st.sampled_from([0, 1, 3, 8, "8", True, None]),
                "permission": st.sampled_from(["rw", "none", "x"]),
                "durability": st.sampled_from(["", "high", "hybrid", "x"]),
                "dedup_ms": st.sampled_from([0, 60_000, -1]),
                **common,
            }
        ),
        st.fixed_dictionaries(
            {
                "op": st.just("update-topic"),
                "queues": st.sampled_from([None, 2, 9]),
                "permission": st.sampled_from([None, "r"]),
                **common,
            }
        ),
        st.fixed_dictionaries({"op": st.just("delete-topic"), **common}),
        st.fixed_dictionaries(
            {"op": st.just("create-group"), "max_attempts": st.sampled_from([1, 17, 0]), **common}
        ),
        st.fixed_dictionaries({"op": st.just("delete-group"), **common}),
    ),
    max_size=30,
)


@given(commands, st.integers(0, 30))
def test_replay_is_deterministic_and_may_start_at_any_snapshot(
    script: list[dict[str, Any]], cut: int
) -> None:
    """Two replicas end equal, also when one of them began from an exported state that travelled as
    JSON text."""
    whole, outcomes = run(script)
    half, first = run(script[:cut])
    travelled = restore(json.loads(json.dumps(export(half))))
    assert export(travelled) == export(half)
    rest, second = run(script[cut:], travelled)
    assert export(rest) == export(whole)
    assert first + second == outcomes


@given(commands)
def test_a_repeated_request_is_answered_not_carried_out(script: list[dict[str, Any]]) -> None:
    """Submitting every command twice under its id changes nothing and gives the same answers."""
    once, outcomes = run(script)
    state = State()
    for command, outcome in zip(script, outcomes, strict=True):
        state, first = apply(state, command)
        again, second = apply(state, command)
        assert first == outcome
        if "id" in command:
            assert again is state
            assert second == outcome
    assert export(state) == export(once)


@given(commands)
def test_revision_grows_by_one_with_each_change(script: list[dict[str, Any]]) -> None:
    """The revision grows by one exactly when nodes, broker groups, topics or consumer groups
    change; `changed` reports this too."""
    state = State()
    for command in script:
        repeated = command.get("id") in state.answered
        after, outcome = apply(state, command)
        same = all(
            getattr(after, part) == getattr(state, part)
            for part in ("nodes", "broker_groups", "topics", "groups")
        )
        assert after.revision == state.revision + (0 if same else 1)
        assert repeated or outcome.changed == (not same)
        assert outcome.code == Code.OK or (same and outcome.detail)
        state = after
    for config in state.topics.values():
        assert sum(config.placement.values()) == config.queues


@given(
    st.integers(1, 60), st.dictionaries(st.sampled_from("abcde"), st.integers(0, 50), min_size=1)
)
def test_queues_spread_evenly(queues: int, load: dict[str, int]) -> None:
    """Numbers of queues per broker group differ by at most one, and the surplus goes to the groups
    with the least load."""
    placed = spread(queues, {}, load)
    counts = {group: placed.get(group, 0) for group in load}
    assert sum(counts.values()) == queues
    assert max(counts.values()) - min(counts.values()) <= 1
    few = [load[g] for g in load if counts[g] == min(counts.values())]
    many = [load[g] for g in load if counts[g] > min(counts.values())]
    assert not many or max(many) <= min(few)


def test_the_same_settings_again_are_fine_and_others_conflict() -> None:
    """Create is idempotent by settings, not by request, and never changes what exists."""
    state, outcomes = run(
        [topic(), topic(), topic(queues=5), topic(kind="fifo"), topic(permission="r")], described()
    )
    assert [o.code for o in outcomes] == [Code.OK, Code.OK, *[Code.PRECONDITION_FAILED] * 3]
    assert [o.changed for o in outcomes] == [True, False, False, False, False]
    assert outcomes[0].value == outcomes[1].value
    assert state.topics["", "t"].queues == 4


def test_the_window_of_deduplication_of_a_topic() -> None:
    """The window is stored with the topic of any kind and sent to every broker group; a creation
    with another window conflicts, and null does not change it."""
    state, outcomes = run(
        [
            DESCRIBED,
            topic(dedup_ms=60_000, kind="mixed"),
            topic(dedup_ms=60_000, kind="mixed"),
            topic(kind="mixed"),
        ]
    )
    assert [(o.code, o.changed) for o in outcomes[1:]] == [
        (20000, True),
        (20000, False),
        (Code.PRECONDITION_FAILED, False),
    ]
    assert "deduplication for 1m" in outcomes[3].detail
    assert {(config.kind.value, config.dedup_ms) for config in state.topics_of("g1")} == {
        ("mixed", 60_000)
    }
    update = {"op": "update-topic", "ns": "", "name": "t"}
    for value, expected in ((None, 60_000), (5, 5), (0, 0)):
        state, _ = run([{**update, "dedup_ms": value}], state)
        assert restore(export(state)).topics["", "t"].dedup_ms == expected


def test_unknown_things_are_not_found() -> None:
    """Update and delete of what does not exist say so with the contract's codes."""
    missing = [
        {"op": op, "ns": "", "name": "t"} for op in ("update-topic", "delete-topic", "delete-group")
    ]
    _, outcomes = run(missing, described())
    assert [o.code for o in outcomes] == [
        Code.TOPIC_NOT_FOUND,
        Code.TOPIC_NOT_FOUND,
        Code.CONSUMER_GROUP_NOT_FOUND,
    ]


def test_the_durability_of_a_topic() -> None:
    """The durability is stored with the topic and sent to every broker group; a creation with
    another one is refused; null does not change it, and "" resets it."""
    state, outcomes = run(
        [DESCRIBED, topic(durability="high"), topic(durability="high"), topic(), topic("u")]
    )
    assert [(o.code, o.changed) for o in outcomes[1:4]] == [
        (20000, True),
        (20000, False),
        (Code.PRECONDITION_FAILED, False),
    ]
    assert "durability high" in outcomes[3].detail
    assert {config.durability.value for config in state.topics_of("g1")} == {"high", ""}
    update = {"op": "update-topic", "ns": "", "name": "t"}
    for value, expected in ((None, "high"), ("hybrid", "hybrid"), ("", "")):
        state, _ = run([{**update, "durability": value}], state)
        assert state.topics["", "t"].durability.value == expected
    _, (refused,) = run([{**update, "durability": "sometimes"}], state)
    assert refused.code == Code.BAD_REQUEST


def test_metadata_written_before_topics_had_a_durability_is_read() -> None:
    """A state or a command without the key means the broker group's policy."""
    tree = export(run([DESCRIBED, topic()])[0])
    del tree["topics"][0]["durability"]
    assert restore(tree).topics["", "t"].durability is TopicDurability.GROUP


def test_a_recreated_topic_is_a_new_incarnation() -> None:
    """Delete and create never reuse an incarnation, whatever happened between."""
    state, _ = run([topic()], described())
    first = state.topics["", "t"].incarnation
    state, _ = run([{"op": "delete-topic", "ns": "", "name": "t"}, topic("other"), topic()], state)
    assert state.topics["", "t"].incarnation > first


def test_deleted_objects_are_remembered_until_recreated() -> None:
    """A broker group's log drops deleted topics and those of other groups, but never topics that
    this state only does not know."""
    assert described().gone_topics("g1") == frozenset()
    state, _ = run(
        [
            topic("one", queues=1),
            topic("two", queues=1),
            {"op": "delete-topic", "ns": "", "name": "two"},
        ],
        described(),
    )
    assert state.gone_topics("g1") == {("", "two")}
    assert state.gone_topics("g2") == {("", "one"), ("", "two")}
    state, _ = run([topic("two", queues=4)], state)
    assert state.gone_topics("g1") == frozenset() and not state.deleted_topics
    group = {"ns": "", "name": "g", "max_attempts": 17}
    state, _ = run([{"op": "create-group", **group}, {"op": "delete-group", **group}], state)
    assert list(state.deleted_groups) == [("", "g")]
    state, _ = run([{"op": "create-group", **group}], state)
    assert not state.deleted_groups


def test_more_queues_keep_the_old_ones_in_place() -> None:
    """Growing adds queues to broker groups and moves none; shrinking is refused."""
    state, _ = run([topic(queues=3)], described())
    before = state.topics["", "t"].placement
    state, (grown, shrunk) = run(
        [{"op": "update-topic", "ns": "", "name": "t", "queues": n} for n in (8, 7)], state
    )
    after = state.topics["", "t"].placement
    assert grown.code == Code.OK and shrunk.code == Code.PRECONDITION_FAILED
    assert dict(after) == {"g1": 4, "g2": 4}
    assert all(after[group] >= count for group, count in before.items())


def test_names_in_different_namespaces_are_different() -> None:
    """The key of a topic or consumer group is (namespace, name)."""
    state, _ = run(
        [topic(), topic(ns="x", kind="fifo"), {"op": "delete-topic", "ns": "", "name": "t"}],
        described(),
    )
    assert list(state.topics) == [("x", "t")]


def test_a_group_keeps_the_settings_that_an_update_leaves_alone() -> None:
    """Null leaves a setting alone, a backoff without values is the default again, and creating with
    other settings is refused."""
    group = {"ns": "", "name": "g"}
    steps = {"steps_ms": [1000, 5000]}
    create = {"op": "create-group", **group, "max_attempts": 5, "fifo": True, "backoff": steps}
    state, (outcome,) = run([create])
    assert outcome.value == {**group, "max_attempts": 5, "fifo": True, "backoff": steps}
    again, other = run([create, {**create, "fifo": False}], state)[1]
    assert not again.changed and other.code == Code.PRECONDITION_FAILED
    update = {"op": "update-group", **group, "max_attempts": 3, "broadcast": True, "fifo": None}
    state, (outcome,) = run([update], state)
    assert outcome.value == {
        **group,
        "max_attempts": 3,
        "fifo": True,
        "backoff": steps,
        "broadcast": True,
    }
    assert (
        run([{"op": "update-group", **group, "lite_topic": "L"}], state)[1][0].code
        == Code.BAD_REQUEST
    )
    assert restore(export(state)).groups == state.groups
    _, (outcome,) = run(
        [{"op": "update-group", **group, "backoff": {}, "lite_topic": "L", "broadcast": False}],
        state,
    )
    assert outcome.value == {**group, "max_attempts": 3, "fifo": True, "lite_topic": "L"}


def test_dead_letter_topics_are_where_the_logs_say() -> None:
    """Each broker group with dead letters adds a queue; operators cannot create, change or delete
    these topics; they are not sent to the logs."""
    key = {"ns": "", "name": "%DLQ%g"}
    adopt = {"op": "adopt-topic", **key}
    state, outcomes = run(
        [
            {**adopt, "broker_group": "g2"},
            {**adopt, "broker_group": "g1"},
            {**adopt, "broker_group": "g1"},
        ],
        described(),
    )
    assert [outcome.changed for outcome in outcomes] == [True, True, False]
    assert (
        dict(state.topics["", "%DLQ%g"].placement) == {"g1": 1, "g2": 1}
        and state.topics["", "%DLQ%g"].queues == 2
    )
    assert restore(export(state)).topics == state.topics
    assert not state.topics_of("g1") and not state.gone_topics("g1")
    refused = [topic("%DLQ%g"), {"op": "update-topic", **key}, {"op": "delete-topic", **key}]
    assert [outcome.code for outcome in run(refused, state)[1]] == [Code.PRECONDITION_FAILED] * 3
    bad = [
        {**adopt, "broker_group": "g9"},
        {"op": "adopt-topic", "ns": "", "name": "t", "broker_group": "g1"},
    ]
    assert [outcome.code for outcome in run(bad, state)[1]] == [Code.BAD_REQUEST] * 2


def test_a_broker_group_sees_its_share() -> None:
    """`topics_of` gives each group's log its number of queues and leaves out topics without one
    there."""
    state, _ = run([topic("one", queues=1), topic("three", queues=3, permission="r")], described())
    assert state.topics_of("g1") == (
        TopicConfig("", "one", TopicKind.NORMAL, 1, Permission.READ_WRITE, 2),
        TopicConfig("", "three", TopicKind.NORMAL, 1, Permission.READ, 3),
    )
    assert [t.name for t in state.topics_of("g2")] == ["three"]
    assert state.topics_of("g3") == ()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (topic("rmq_sys_x"), Code.ILLEGAL_TOPIC),
        (topic(ns="a@b"), Code.ILLEGAL_TOPIC),
        (topic(7), Code.BAD_REQUEST),
        (topic(queues=MAX_QUEUES + 1), Code.BAD_REQUEST),
        (topic(kind="odd"), Code.BAD_REQUEST),
        (topic(dedup_ms=-1), Code.BAD_REQUEST),
        (topic(dedup_ms="1"), Code.BAD_REQUEST),
        (
            {"op": "create-group", "ns": "", "name": "g g", "max_attempts": 17},
            Code.ILLEGAL_CONSUMER_GROUP,
        ),
        (
            {"op": "create-group", "ns": "", "name": "g", "max_attempts": 17, "fifo": "yes"},
            Code.BAD_REQUEST,
        ),
        (
            {"op": "create-group", "ns": "", "name": "g", "max_attempts": 17, "lite_topic": "a b"},
            Code.ILLEGAL_TOPIC,
        ),
        (
            {
                "op": "create-group",
                "ns": "",
                "name": "g",
                "max_attempts": 17,
                "backoff": {"steps_ms": [0]},
            },
            Code.BAD_REQUEST,
        ),
        (
            {
                "op": "create-group",
                "ns": "",
                "name": "g",
                "max_attempts": 17,
                "backoff": {"initial_ms": 5},
            },
            Code.BAD_REQUEST,
        ),
        ({"op": "update-group", "ns": "", "name": "no_such"}, Code.CONSUMER_GROUP_NOT_FOUND),
        ({"op": "set-cluster", "nodes": {}, "broker_groups": {"g9": ["n9"]}}, Code.BAD_REQUEST),
        ({"op": "set-node", "node": "n9", "addresses": {"peer": "h:1"}}, Code.PRECONDITION_FAILED),
        (
            {"op": "set-node", "node": "n9", "addresses": {"phone": "h:1"}, "state": "member"},
            Code.BAD_REQUEST,
        ),
        ({"op": "set-node", "node": "n/9", "addresses": {}, "state": "member"}, Code.BAD_REQUEST),
        ({"op": "set-node", "node": "n9", "addresses": {}, "state": "guest"}, Code.BAD_REQUEST),
        ({"op": "remove-node", "node": "n1"}, Code.PRECONDITION_FAILED),
        ({"op": "remove-node", "node": "n9"}, Code.PRECONDITION_FAILED),
        ({"op": "place-replica", "group": "g9", "node": "n1", "present": True}, Code.BAD_REQUEST),
        (
            {"op": "place-replica", "group": "g1", "node": "n9", "present": True},
            Code.PRECONDITION_FAILED,
        ),
        ({"op": "place-replica", "group": "g1", "node": "n1", "present": None}, Code.BAD_REQUEST),
        ({"op": "set-cluster", "nodes": [], "broker_groups": {}}, Code.BAD_REQUEST),
    ],
)
def test_bad_commands_are_refused(command: dict[str, Any], code: Code) -> None:
    """A command that breaks a rule is answered with its status and leaves the state alone."""
    state = described()
    after, outcome = apply(state, command)
    assert outcome.code == code and outcome.detail
    assert after is state


def test_without_broker_groups_there_is_no_place_for_queues() -> None:
    """A topic needs a broker group; the answer says to wait for the cluster."""
    _, outcome = apply(State(), topic())
    assert outcome.code == Code.HA_NOT_AVAILABLE and "broker group" in outcome.detail


def test_an_unknown_operation_stops_the_controller() -> None:
    """Skipping a command of a newer version would make replicas differ."""
    with pytest.raises(UnknownCommand):
        apply(State(), {"op": "fold-space"})
    with pytest.raises(UnknownCommand) as stopped:
        restore({**export(State()), "v": 2})
    assert stopped.value.exit_code == 76


def test_the_level_is_raised_one_by_one_and_never_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exported state of level 1 is what former programs wrote."""
    monkeypatch.setattr("ledgermq.node.controller.state.LEVEL_MAX", 4)
    state, outcome = apply(State(), {"op": "raise-level", "level": 3})
    assert (outcome.code, state.level) == (Code.BAD_REQUEST, 1) and "level" not in export(state)
    for level, expected in ((2, 2), (2, 2), (3, 3), (1, 3)):
        state, outcome = apply(state, {"op": "raise-level", "level": level})
        assert (outcome.code, state.level, export(state)["level"]) == (Code.OK, expected, expected)
    assert (state.revision, restore(export(state))) == (2, state)


def test_a_level_above_that_of_the_program_stops_the_controller() -> None:
    """By the command and by the state: status 76, with what to do."""
    above = LEVEL_MAX + 1
    said = (
        f"the cluster has feature level {above}, this program reads up to {LEVEL_MAX}: start the"
        " program that raised it"
    )
    with pytest.raises(UnknownCommand, match=said):
        apply(State(level=LEVEL_MAX), {"op": "raise-level", "level": above})
    with pytest.raises(UnknownCommand, match=said):
        restore({**export(State()), "level": above})


def test_checkpoint_keys() -> None:
    """The newest key of each node is the one that it signs with; the command needs level 2, and a
    key that is known changes nothing."""
    add = {"op": "add-checkpoint-key", "node": "n1", "public": "ab" * 32, "created_ms": 5}
    _, refused = apply(State(), add)
    assert refused.code == Code.PRECONDITION_FAILED and "upgrade finish" in refused.detail
    state, (one, again, two, other) = run(
        [add, add, {**add, "public": "cd" * 32}, {**add, "node": "n2"}], State(level=2)
    )
    assert (one.changed, again.changed, two.changed, other.changed) == (True, False, True, True)
    assert [(key.node, key.public[:2]) for key in state.checkpoint_keys] == [
        ("n1", "ab"),
        ("n1", "cd"),
        ("n2", "ab"),
    ]
    assert (
        signs_with(state.checkpoint_keys, "n1") == "cd" * 32
        and signs_with(state.checkpoint_keys, "n3") is None
    )
    assert restore(export(state)) == state
    for wrong in (
        {**add, "public": "ab"},
        {**add, "public": "zz" * 32},
        {**add, "node": ""},
        {**add, "created_ms": True},
    ):
        assert apply(State(level=2), wrong)[1].code == Code.BAD_REQUEST


def test_remembered_requests_are_bounded() -> None:
    """The oldest answers are forgotten, the newest kept."""
    state, _ = run(
        [
            {"op": "delete-topic", "ns": "", "name": "t", "id": str(i)}
            for i in range(REMEMBERED_REQUESTS + 10)
        ]
    )
    assert list(state.answered) == [str(i) for i in range(10, REMEMBERED_REQUESTS + 10)]


def test_states_cannot_be_changed_by_readers() -> None:
    """A snapshot handed to another thread is read-only all the way down."""
    state, _ = run([topic()], described())
    for mapping in (
        state.nodes,
        state.nodes["n1"],
        state.topics,
        state.topics["", "t"].placement,
        state.answered,
    ):
        with pytest.raises(TypeError):
            mapping["new"] = 1  # type: ignore[index]


def carried_out(state: State, *commands: dict[str, Any]) -> State:
    for command in commands:
        state, outcome = apply(state, command)
        assert outcome.code == Code.OK, outcome.detail
    return state


def test_old_configuration_neither_moves_nor_revives_a_node() -> None:
    """Configuration files are only seeds: changes by `member` commands survive restarts with an
    older file."""
    before = described()
    moved = carried_out(
        before,
        {"op": "set-node", "node": "n2", "addresses": {"peer": "elsewhere:1"}},
        {"op": "set-node", "node": "n4", "addresses": {"peer": "new:1"}, "state": "joining"},
        {"op": "place-replica", "group": "g1", "node": "n4", "present": True},
        {"op": "place-replica", "group": "g1", "node": "n1", "present": False},
        {"op": "remove-node", "node": "n1"},
    )
    assert moved.nodes["n2"]["peer"] == "elsewhere:1" and moved.nodes["n4"] == {
        "peer": "new:1",
        "state": "joining",
    }
    assert (
        moved.broker_groups["g1"] == ("n2", "n4")
        and "n1" not in moved.nodes
        and set(moved.removed_nodes) == {"n1"}
    )
    again = carried_out(moved, {**DESCRIBED, "id": "a restart with the old file"})
    assert (again.nodes, again.broker_groups, again.removed_nodes) == (
        moved.nodes,
        moved.broker_groups,
        moved.removed_nodes,
    )
    assert restore(json.loads(json.dumps(export(again)))) == again
    back = carried_out(
        again, {"op": "set-node", "node": "n1", "addresses": NODES["n1"], "state": "member"}
    )
    assert "n1" in back.nodes and not back.removed_nodes and "state" not in back.nodes["n1"], (
        "an operator's word does"
    )


def test_removing_a_node_twice_is_fine() -> None:
    """So is every other member command: an operator repeats what was interrupted."""
    steps = [
        {"op": "place-replica", "group": "g1", "node": "n1", "present": False},
        {"op": "remove-node", "node": "n1"},
    ]
    state = carried_out(described(), *steps)
    assert carried_out(state, *steps) is state


def test_observer_is_not_chosen_for_a_voter() -> None:
    """An observer is a node like any other, but for this; it may become a member."""
    state = State()
    for node, told in (("n1", "member"), ("n2", "joining"), ("dr1", "observer")):
        state, outcome = metadata.apply(
            state,
            {"op": "set-node", "node": node, "addresses": {"peer": f"{node}:1"}, "state": told},
        )
        assert outcome.code == 20000
    assert may_vote(state) == ("n1", "n2") and state.nodes["dr1"]["state"] == "observer"
    state, _ = metadata.apply(
        state, {"op": "set-node", "node": "dr1", "addresses": {}, "state": "member"}
    )
    assert set(may_vote(state)) == {"n1", "n2", "dr1"}
