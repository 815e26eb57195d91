"""Laws of the balance: even, with the fewest moves, nothing taken away first, and nothing left to
do afterwards."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.frontend.admin.cluster import balancing
from ledgermq.node.frontend.admin.cluster.balancing import (
    ADD_QUEUES,
    MOVE_LEADER,
    MOVE_REPLICA,
    Facts,
    GroupFacts,
    Plan,
    Step,
    TopicFacts,
    plan,
)

NODES = ("n1", "n2", "n3", "n4", "n5")


@st.composite
def clusters(draw: st.DrawFn, most_groups: int = 7) -> Facts:
    """Groups anywhere, all of them led and able to change."""
    nodes = NODES[: draw(st.integers(1, len(NODES)))]
    groups = {}
    for number in range(draw(st.integers(0, most_groups))):
        voters = tuple(
            sorted(draw(st.sets(st.sampled_from(nodes), min_size=1, max_size=min(3, len(nodes)))))
        )
        leader = draw(st.sampled_from(voters))
        groups[f"g{number}"] = GroupFacts(
            voters, leader=leader, wanted=draw(st.none() | st.sampled_from(voters))
        )
    counts = st.dictionaries(
        st.sampled_from(sorted(groups) or ["g0"]), st.integers(1, 9), min_size=1
    )
    topics = tuple(
        TopicFacts("", f"t{k}", draw(counts))
        for k in range(draw(st.integers(0, 3)) if groups else 0)
    )
    return Facts(nodes, groups, topics)


def carried_out(facts: Facts, steps: tuple[Step, ...]) -> Facts:
    """What the cluster is after the steps, by the words of the steps alone."""
    groups = dict(facts.groups)
    topics = {(topic.namespace, topic.name): topic for topic in facts.topics}
    for step in steps:
        group = groups[step.group]
        if step.kind == MOVE_REPLICA:
            assert step.source in group.voters and step.target not in group.voters, step
            after = tuple(sorted({*group.voters, step.target} - {step.source}))
            assert len(after) == len(group.voters), "as many voters as before"
            follow = {step.source: step.target}
            leader, wanted = (
                follow.get(str(group.leader), group.leader),
                follow.get(str(group.wanted), group.wanted),
            )
            groups[step.group] = replace(
                group, voters=after, leader=leader, wanted=wanted, move=None
            )
        elif step.kind == MOVE_LEADER:
            assert step.target in group.voters, step
            groups[step.group] = replace(group, leader=step.target, wanted=step.target)
        else:
            topic = topics[step.topic]
            assert step.kind == ADD_QUEUES and step.queues > topic.placement.get(step.group, 0), (
                "queues only come"
            )
            topics[step.topic] = replace(
                topic, placement={**topic.placement, step.group: step.queues}
            )
    return replace(facts, groups=groups, topics=tuple(topics.values()))


def replicas(facts: Facts) -> Counter[str]:
    found = Counter(dict.fromkeys(facts.nodes, 0))
    found.update(node for group in facts.groups.values() for node in group.voters)
    return found


def led(facts: Facts) -> Counter[str]:
    found = Counter(dict.fromkeys(facts.nodes, 0))
    found.update(str(group.leader) for group in facts.groups.values())
    return found


def gap(load: Counter[str]) -> int:
    return max(load.values()) - min(load.values())


@given(clusters())
def test_replicas_end_even_with_the_fewest_moves(facts: Facts) -> None:
    """Within one; and as many moves as are needed to empty what is above the ceiling or fill what
    is below the floor."""
    found = plan(facts)
    assert gap(replicas(carried_out(facts, found.steps))) <= 1 and not found.notes
    load = replicas(facts)
    floor, over = divmod(load.total(), len(facts.nodes))
    above = sorted((count - floor for count in load.values()), reverse=True)
    excess = sum(max(0, extra - (1 if place < over else 0)) for place, extra in enumerate(above))
    assert sum(step.kind == MOVE_REPLICA for step in found.steps) == (
        excess if gap(load) > 1 else 0
    )


@given(clusters())
def test_a_second_plan_is_empty(facts: Facts) -> None:
    """Whatever the first one did, nothing is left."""
    assert plan(carried_out(facts, plan(facts).steps)) == Plan()


@given(clusters(), st.integers(0, 20))
def test_a_plan_that_was_broken_off_goes_on(facts: Facts, taken: int) -> None:
    """After any number of its steps a new plan leads to a balance, with no more moves of replicas
    than the old one had left."""
    first = plan(facts).steps
    between = carried_out(facts, first[:taken])
    rest = plan(between).steps
    assert gap(replicas(carried_out(between, rest))) <= 1
    left = sum(step.kind == MOVE_REPLICA for step in first[taken:])
    assert sum(step.kind == MOVE_REPLICA for step in rest) == left


@given(clusters(most_groups=5))
def test_leaders_are_as_even_as_the_replicas_allow(facts: Facts) -> None:
    """No choice of leaders among the replicas, as they are afterwards, is more even."""
    after = carried_out(facts, plan(facts).steps)
    found = led(after)
    choices = itertools.product(*(group.voters for group in after.groups.values()))
    best = min(
        (sum(count * count for count in Counter(choice).values()) for choice in choices),
        default=0,
    )
    assert sum(count * count for count in found.values()) == best


@given(clusters())
def test_leaders_differ_by_one_where_all_nodes_have_all_groups(facts: Facts) -> None:
    """The usual cluster: three nodes, each group on all of them."""
    everywhere = {
        name: replace(group, voters=facts.nodes, leader=facts.nodes[0])
        for name, group in facts.groups.items()
    }
    usual = replace(facts, groups=everywhere)
    assert gap(led(carried_out(usual, plan(usual).steps))) <= 1


@given(clusters())
def test_queues_end_even_and_only_come(facts: Facts) -> None:
    """Each topic has as many queues in every group, where it was more than one apart."""
    after = carried_out(facts, plan(facts).steps)
    for topic in after.topics:
        counts = [topic.placement.get(group, 0) for group in after.groups]
        assert max(counts) - min(counts) <= 1


def test_every_step_says_why() -> None:
    """In words with the numbers that decided it."""
    groups = {
        f"g{k}": GroupFacts(("n1", "n2", "n3"), leader="n1", wanted="n1") for k in range(1, 4)
    }
    facts = Facts(("n1", "n2", "n3", "n4"), groups, (TopicFacts("ns", "t", {"g1": 4}),))
    found = plan(facts)
    assert [
        (step.kind, step.group, step.source, step.target)
        for step in found.steps
        if step.kind == MOVE_REPLICA
    ] == [
        ("move-replica", "g1", "n2", "n4"),
        ("move-replica", "g2", "n3", "n4"),
    ]
    assert found.steps[0].reason == "n2 has 3 replicas and n4 has 0"
    assert {step.group: step.queues for step in found.steps if step.kind == ADD_QUEUES} == {
        "g2": 4,
        "g3": 4,
    }
    moved = [step for step in found.steps if step.kind == MOVE_LEADER]
    assert len(moved) == 2 and all("leads 3 broker groups" in step.reason for step in moved)


def test_unmovable_groups_and_topics_are_noted() -> None:
    """A group without a leader, a leader that the configuration names, a topic with an order, a
    node that is down."""
    groups = {
        "g1": GroupFacts(("n1", "n2", "n3"), leader="n1", wanted="n1", fixed=True),
        "g2": GroupFacts(("n1", "n2", "n3"), leader="n1", wanted="n1", fixed=True),
        "g3": GroupFacts(("n1", "n2", "n3"), leader=None),
    }
    found = plan(
        Facts(("n1", "n2"), groups, (TopicFacts("", "f", {"g1": 8}, "its order"),), down=("n3",))
    )
    assert found.steps == ()
    assert [note.split(":")[0] for note in found.notes] == [
        "not reached",
        "broker group g3 has no leader",
        "topic f stays where it is",
    ]


def test_a_move_that_was_begun_is_finished_first() -> None:
    """And what it leads to counts for everything after it."""
    groups = {
        "g1": GroupFacts(
            ("n1", "n2", "n3"), leader="n1", wanted="n1", others=("n4",), move=("n1", "n4")
        )
    }
    found = plan(Facts(("n1", "n2", "n3", "n4"), groups))
    assert [(step.kind, step.source, step.target) for step in found.steps] == [
        (MOVE_REPLICA, "n1", "n4")
    ]


def test_a_node_that_comes_empty_gets_its_share_of_replicas_and_leaders() -> None:
    """Four groups on three nodes, and a fourth node: three replicas each, and one leader each."""
    led_by = ("n1", "n2", "n3", "n1")
    groups = {
        f"g{k}": GroupFacts(("n1", "n2", "n3"), leader=node, wanted=node)
        for k, node in enumerate(led_by)
    }
    facts = Facts(("n1", "n2", "n3", "n4"), groups)
    found = plan(facts)
    after = carried_out(facts, found.steps)
    assert set(replicas(after).values()) == {3} and set(led(after).values()) == {1}


def test_a_large_cluster_is_planned_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 groups on three of 30 nodes: comparing all groups for each of 810 moves would take twelve
    seconds of the event loop."""
    asked = 0
    may_move = balancing._may_move

    def counted(*arguments: Any) -> bool:
        nonlocal asked
        asked += 1
        return may_move(*arguments)

    monkeypatch.setattr(balancing, "_may_move", counted)
    nodes = tuple(f"n{number + 1:02}" for number in range(30))
    groups = {
        f"g{number:03}": GroupFacts(nodes[:3], leader=nodes[number % 3], wanted=nodes[number % 3])
        for number in range(300)
    }
    steps = plan(Facts(nodes, groups)).steps
    assert sum(step.kind == MOVE_REPLICA for step in steps) == 810
    assert asked < 10 * 300 * 810, asked
