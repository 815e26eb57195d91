"""The members of a group in the machine's state: from records, and through snapshots of both
versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.broker.calls.member_calls import GroupMembers
from ledgermq.node.broker.machine import Machine
from ledgermq.node.broker.parts.members.member_forms import export_members, restore_members
from tests.node_core.core_fakes import LOG_ID, Bench

NODES = ("n1", "n2", "n3", "n4", "n5")


@st.composite
def members(draw: st.DrawFn) -> GroupMembers:
    """Any members under any rule: a voter, and of the others each a voter, a learner or a stranger,
    with or without an incarnation."""
    kinds = {
        node: draw(st.sampled_from(("voter", "learner", "returning", "observer", "")))
        for node in NODES[1:]
    } | {NODES[0]: "voter"}
    voters = tuple(node for node in NODES if kinds[node] == "voter")
    learners = frozenset(
        node for node in NODES if kinds[node] in ("learner", "returning", "observer")
    )
    known = frozenset(draw(st.sets(st.sampled_from(NODES)))) & {*voters, *learners}
    incarnations = {node: f"incarnation of {node}" for node in sorted(known)}
    returning = frozenset(node for node in NODES if kinds[node] == "returning")
    observers = frozenset(node for node in NODES if kinds[node] == "observer")
    rule, towards = draw(
        st.sampled_from(
            (("majority", None), ("in-sync", None), ("all", "in-sync"), ("all", "majority"))
        )
    )
    since = draw(st.integers(1, 99)) if rule != "majority" else 0
    told = rule, towards, observers, since, draw(st.integers(0, 5)) if rule == "in-sync" else 0
    return GroupMembers(
        draw(st.integers(0, 1 << 40)), voters, learners, incarnations, returning, *told
    )


@given(members())
def test_a_snapshot_brings_the_members_back(found: GroupMembers) -> None:
    """Law: whatever a record said of each node, the snapshot says the same."""
    assert restore_members(export_members(found)) == found


@pytest.mark.parametrize(
    ("kept", "expected"),
    [(["n1", "n2"], GroupMembers(0, ("n1", "n2"))), ([], None), (None, None)],
    ids=["voters", "none-yet", "absent"],
)
def test_members_of_older_snapshots_are_read(kept: object, expected: GroupMembers | None) -> None:
    """Version 2 listed the voters of the group's first entry."""
    bench = Bench()
    value = {**bench.machine.export(LOG_ID), "v": 2, "members": kept}
    if kept is None:
        del value["members"]
    other = Machine(bench.queues, bench.log.record)
    other.restore(value)
    assert other.members == expected
