"""Members by themselves: every change of every small group, every cut of a log's configurations,
and what they make of a replica, each against the rule written down again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft.config import Members, RaftConfig, Rule, Timing
from ledgermq.raft.effects import Outbox
from ledgermq.raft.election_timer import ElectionTimer
from ledgermq.raft.isr import Isr
from ledgermq.raft.log_state import LogState
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import (
    Change,
    Configurations,
    MemberChange,
    Membership,
    NotYet,
    changed,
)
from ledgermq.raft.messages import VoteRequest
from ledgermq.raft.policy import POLICIES, Policy

State = tuple[str, str]
"""What a node is, and the directory by which it is known; empty for none."""
OUT: State = ("", "")
IN: list[State] = [
    (role, named) for role in ("voter", "learner", "returning", "observer") for named in ("", "1")
]


def members_of(
    states: dict[str, State],
    since: int = 0,
    rule: Rule = Rule.MAJORITY,
    towards: Rule | None = None,
) -> Members:
    def nodes(*roles: str) -> list[str]:
        return [node for node, (role, _) in sorted(states.items()) if role in roles]

    named = {node: incarnation for node, (_, incarnation) in states.items() if incarnation}
    learners = frozenset(nodes("learner", "returning", "observer"))
    parts = learners, named, frozenset(nodes("returning"))
    return Members(
        tuple(nodes("voter")), *parts, rule, towards, frozenset(nodes("observer")), since
    )


def after(state: State, change: MemberChange, *, last: bool) -> State | None:
    """What a change makes of its node; None if it is refused. `last`: the node is the only
    voter."""
    (role, named), kind, given = state, change.kind, change.incarnation
    if kind is Change.ADD:
        return None if role else ("observer" if change.observer else "learner", given)
    if not role or (last and kind is not Change.PROMOTE):
        return None
    if kind is Change.REMOVE:
        return OUT
    if kind is Change.RETURN:
        return None if given in ("", named) else ("returning" if role == "voter" else role, given)
    if (role == "voter") is (kind is Change.PROMOTE) or (given and named and given != named):
        return None
    if kind is Change.DEMOTE:
        return "learner", given or named
    return None if role == "observer" and not change.observer else ("voter", given or named)


def changes(node: str) -> Iterator[MemberChange]:
    for kind, incarnation, observer in product(Change, ("", "1", "2"), (False, True)):
        if kind not in (Change.RULE, Change.MINIMUM):
            yield MemberChange(kind, node, incarnation, observer=observer)


@pytest.mark.parametrize("b", [("voter", ""), ("returning", "1"), ("observer", "")], ids=str)
def test_every_change_of_every_small_group(b: State) -> None:
    """One node changes, and nothing else does; the last voter stays, and what is no change of these
    members is refused."""
    for a in [OUT, *IN]:
        states = {"a": a, "b": b, "z": ("learner", "9")}
        for more in ({}, {"c": ("voter", "3")}):
            before = {**states, **more}
            if all(role != "voter" for role, _ in before.values()):
                continue
            members = members_of(before, 5, Rule.IN_SYNC)
            for change in changes("a"):
                new = after(a, change, last=members.voters == ("a",))
                found = changed(members, change, 9)
                if new is None:
                    assert isinstance(found, str) and not isinstance(found, NotYet), (
                        before,
                        change,
                    )
                else:
                    assert found == members_of({**before, "a": new}, 5, Rule.IN_SYNC), (
                        before,
                        change,
                    )


def test_while_the_rule_changes_no_node_does() -> None:
    members = members_of({"a": ("voter", ""), "b": ("voter", "")}, 5, Rule.ALL, Rule.IN_SYNC)
    for change in changes("b"):
        assert isinstance(changed(members, change, 9), NotYet)


@pytest.mark.parametrize("wanted", Rule)
@pytest.mark.parametrize(
    ("rule", "towards"),
    [
        (Rule.MAJORITY, None),
        (Rule.IN_SYNC, None),
        (Rule.ALL, Rule.MAJORITY),
        (Rule.ALL, Rule.IN_SYNC),
    ],
)
def test_a_rule_is_reached_through_that_of_all(
    rule: Rule, towards: Rule | None, wanted: Rule
) -> None:
    """Only the next rule can follow that of all. A rule remembers the entry that made it, except
    for that of a majority."""
    members = members_of({"a": ("voter", ""), "b": ("learner", "1")}, 5, rule, towards)
    found = changed(members, MemberChange(Change.RULE, "", rule=wanted), 9)
    states = {"a": ("voter", ""), "b": ("learner", "1")}
    if wanted in (rule, Rule.ALL) or (towards is not None and wanted is not towards):
        assert isinstance(found, str)
        assert isinstance(found, NotYet) is (towards is not None and wanted is not Rule.ALL), (
            "the change-over ends by itself"
        )
    elif towards is None:
        assert found == members_of(states, 9, Rule.ALL, wanted)
    else:
        assert found == members_of(states, 9 if wanted is Rule.IN_SYNC else 0, wanted)


@pytest.mark.parametrize("rule", [Rule.MAJORITY, Rule.IN_SYNC])
def test_a_minimum_is_that_of_an_ha_group_and_at_most_its_voters(rule: Rule) -> None:
    """It stays whatever node changes, and ends with the rule."""
    members = members_of({"a": ("voter", ""), "b": ("voter", ""), "c": ("learner", "1")}, 5, rule)
    for wanted in range(-1, 4):
        found = changed(members, MemberChange(Change.MINIMUM, "", minimum=wanted), 9)
        assert isinstance(found, Members) is (rule is Rule.IN_SYNC and 1 <= wanted <= 2), wanted
        if isinstance(found, str):
            assert (f"is 1 to 2, the number of voters, not {wanted}" in found) is (
                rule is Rule.IN_SYNC
            )
            assert (f"a group of the rule {rule} has no minimum" in found) is (
                rule is Rule.MAJORITY
            )
        else:
            assert found == replace(members, minimum=wanted)
            for change in (
                MemberChange(Change.PROMOTE, "c"),
                MemberChange(Change.RETURN, "b", "2"),
                MemberChange(Change.REMOVE, "c"),
            ):
                later = changed(found, change, 10)
                assert isinstance(later, Members) and later.minimum == wanted
            onward = changed(found, MemberChange(Change.RULE, "", rule=Rule.MAJORITY), 10)
            assert isinstance(onward, Members) and onward.minimum == 0


RUNS = [(index, Members(("a", f"n{index}"))) for index in (4, 6, 9)]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("cut", range(11))
def test_truncation_removes_the_configurations_behind_the_cut(count: int, cut: int) -> None:
    """Except for the first: those members were true before the log, or their entry is committed."""
    known = Configurations(RUNS[:count])
    runs = [RUNS[0], *[run for run in RUNS[1:count] if run[0] < cut]]
    assert known.truncate_from(cut) is (len(runs) < count)
    assert known.runs == tuple(runs)
    assert (known.latest_index, known.latest) == runs[-1]
    assert known.before == runs[max(0, len(runs) - 2)][1]
    assert [known.at(index) for index in range(12)] == [
        next((members for first, members in reversed(runs) if first <= index), RUNS[0][1])
        for index in range(12)
    ]


@pytest.mark.parametrize("runs", [[], [(5, RUNS[0][1]), (4, RUNS[1][1])], [(-2, RUNS[0][1])]])
def test_configurations_that_no_log_has_are_an_assertion(runs: list[tuple[int, Members]]) -> None:
    with pytest.raises(AssertionError):
        Configurations(runs)


def standing(mine: str, before: State, latest: State, *, pending: bool, met: bool) -> Membership:
    """What replica `a` of directory `mine` knows: it was `before` up to entry 3, and is `latest`
    since entry 4, the last one of its log."""
    config = RaftConfig("a", ("a",), 1, incarnation=mine)
    log = LogState(LogView([(0, 1)], 4), 3 if pending else 4)
    isr, timer = (
        Isr(config, log, Outbox()),
        ElectionTimer(Timing(), random.Random(1), 0, promised=False),
    )

    def policy_of(members: Members) -> Policy:
        return POLICIES[members.rule](members, config, log, isr, timer)

    others = {"b": ("voter", "")}
    known = Configurations(
        [(0, members_of({"a": before, **others})), (4, members_of({"a": latest, **others}))]
    )
    return Membership(config, log, known, policy_of, met_by_all=met)


@pytest.mark.parametrize("mine", ["", "1"])
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("met", [False, True])
def test_members_determine_role_vote_and_counting_of_a_replica(
    mine: str, pending: bool, met: bool
) -> None:
    """Its copy counts only if its loss would be noticed. A voter is needed until its removal is
    committed, a learner may have become a voter once its entry is, and a directory that others do
    not mean promises nothing for the one that they mean."""
    states = [OUT, *((role, named) for role in ("voter", "learner") for named in ("", "1", "2"))]
    for before, latest in product(states, repeat=2):
        found = standing(mine, before, latest, pending=pending, met=met)
        admitted, was_admitted = (
            met if not named or not mine else named == mine for _, named in (latest, before)
        )
        votes, learns = latest[0] == "voter", latest[0] == "learner"
        leaves = (
            not votes
            and pending
            and before[0] == "voter"
            and was_admitted
            and (not latest[1] or admitted)
        )
        counts = admitted if votes or (learns and not pending) else leaves
        assert (found.admitted, found.steady, found.pending) == (
            admitted,
            votes and admitted,
            pending,
        )
        assert (found.leaves(), found.counts()) == (leaves, counts), (before, latest)
        assert found.resting_role() is (Role.FOLLOWER if votes or leaves else Role.LEARNER)
        assert found.may_campaign() is (counts and (votes or leaves))
        for asked_as in ("", "1", "2"):
            by_name = asked_as == mine and mine != "" and latest[1] in ("", mine)
            voted = not (mine and asked_as and asked_as != mine) and (counts or by_name)
            assert (
                found.may_vote(
                    VoteRequest(
                        sender="b",
                        to="a",
                        term=9,
                        pre=False,
                        last_index=4,
                        last_term=1,
                        incarnation=asked_as,
                    )
                )
                is voted
            ), (before, latest, asked_as)


def test_latest_configuration_determines_the_replica() -> None:
    """An appended entry is in effect at once, one that is cut off no longer is, and an admission
    lasts."""
    found = standing("1", ("voter", ""), ("learner", ""), pending=True, met=False)
    assert not found.steady
    found.append(5, members_of({"a": ("voter", "1"), "b": ("voter", "")}))
    assert (
        found.steady
        and found.members.incarnations == {"a": "1"} == found.policy.members.incarnations
    )
    found.truncate_from(6)
    assert found.steady
    found.truncate_from(4)
    assert not found.steady and found.members == found.policy.members == members_of(
        {"a": ("voter", ""), "b": ("voter", "")}
    )
    found.admit()
    assert found.steady and found.admitted
    found.append(7, members_of({"b": ("voter", "")}))
    found.trim(7)
    assert len(found.configurations.runs) == 2 and not found.steady
    found.trim(8)
    assert len(found.configurations.runs) == 1
