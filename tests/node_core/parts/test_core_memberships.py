"""Membership changes: requests of operators, the changes that a leader makes for a node that lost
its directory, and their notifications."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.node.broker.calls.member_calls import (
    ChangeMembers,
    GroupMembers,
    MembersChanged,
    Returned,
)
from ledgermq.node.broker.calls.outcome import Refused
from ledgermq.node.broker.parts.members.memberships import AGAIN_NS
from ledgermq.raft.config import Members
from ledgermq.raft.membership import Change, MemberChange, NotYet
from tests.node_core.core_fakes import Bench

THREE = Members(("n1", "n2", "n3"))


def leading(members: Members = THREE) -> Bench:
    """A leader whose log names these members since before its begin."""
    bench = Bench()
    bench.replicator.members = members
    incarnations = dict(members.incarnations)
    bench.machine.members = GroupMembers(
        -1, members.voters, members.learners, incarnations, members.returning
    )
    bench.lead()
    return bench


def ask(bench: Bench, kind: Any, node: str, incarnation: str | None = None) -> Any:
    return bench.ask(ChangeMembers(next(bench.tokens), kind, node, incarnation, "because"))


def known(bench: Bench) -> GroupMembers:
    """What every reader of the applied state sees."""
    members = bench.machine.members
    assert members is not None and bench.group.view().members == members
    return members


def test_each_kind_of_change_ends_in_force() -> None:
    """The answer names the members in effect and the entry that made them, and the applied state
    says the same."""
    bench = leading()
    added = ask(bench, "add", "n4", "dir-4")
    assert added == MembersChanged(
        GroupMembers(bench.log.end_index, ("n1", "n2", "n3"), frozenset({"n4"}), {"n4": "dir-4"})
    )
    assert known(bench) == added.members
    for kind, node, voters in (
        ("promote", "n4", ("n1", "n2", "n3", "n4")),
        ("demote", "n2", ("n1", "n3", "n4")),
        ("remove", "n2", ("n1", "n3", "n4")),
    ):
        outcome = ask(bench, kind, node)
        assert (
            outcome.members == known(bench)
            and known(bench).voters == voters
            and known(bench).index == bench.log.end_index
        )
    assert known(bench).incarnations == {"n4": "dir-4"} and not known(bench).learners


def test_the_answer_waits_for_the_commit() -> None:
    bench = leading()
    bench.replicator.commit_at_once = False
    call = ChangeMembers(next(bench.tokens), "add", "n4", "dir-4")
    bench.turn(call)
    assert call.token not in bench.done and known(bench).learners == frozenset()
    bench.replicator.commit_index = bench.log.end_index
    bench.turn()
    assert isinstance(bench.done[call.token], MembersChanged) and known(bench).learners == {"n4"}


def test_a_directory_is_named_as_soon_as_its_record_is_appended() -> None:
    """Other components learn the members of the configuration in effect at once, because the node
    that it admits may be needed to commit it."""
    bench = leading()
    bench.replicator.commit_at_once = False
    output = bench.turn(ChangeMembers(next(bench.tokens), "add", "n4", "dir-4"))
    assert (
        output.view is not None
        and output.view.incarnations == {"n4": "dir-4"}
        and known(bench).learners == frozenset()
    )
    bench.replicator.members, bench.replicator.members_index = THREE, -1
    output = bench.turn()
    assert output.view is not None and output.view.incarnations == {}


def test_leadership_lost_before_the_commit_leaves_the_outcome_unknown() -> None:
    bench = leading()
    bench.replicator.commit_at_once = False
    call = ChangeMembers(next(bench.tokens), "add", "n4", "dir-4")
    bench.turn(call)
    bench.replicator.follow(2, "n2")
    bench.turn()
    assert bench.done[call.token] == Refused("unknown-outcome", "n2")


def test_repeated_member_change_is_answered_without_an_entry() -> None:
    """A caller that lost the first answer gets it again."""
    bench = leading()
    for kind, incarnation in (("add", "dir-4"), ("promote", None), ("demote", None)):
        first = ask(bench, kind, "n4", incarnation)
        end = bench.log.end_index
        assert ask(bench, kind, "n4", incarnation) == first and bench.log.end_index == end


@pytest.mark.parametrize(
    ("kind", "node", "incarnation", "said"),
    [
        ("add", "n2", "dir", "n2 is a voter of this group already"),
        ("add", "n4", None, "the directory of n4 is not known"),
        ("promote", "n4", None, "n4 is no member of this group"),
        ("remove", "n4", None, "its members are n1, n2, n3"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_with_the_reason(
    kind: str, node: str, incarnation: str | None, said: str
) -> None:
    bench = leading()
    end = bench.log.end_index
    outcome = ask(bench, kind, node, incarnation)
    assert (
        isinstance(outcome, Refused)
        and outcome.reason == "members-refused"
        and said in outcome.detail
        and bench.log.end_index == end
    )


def test_refusal_of_the_core_is_returned_verbatim() -> None:
    bench = leading()
    bench.replicator.refusal = "this would lose the quorum"
    assert ask(bench, "remove", "n2") == Refused(
        "members-refused", "n1", "this would lose the quorum"
    )


def test_momentary_refusal_of_the_core_is_members_not_yet() -> None:
    """The caller may retry."""
    bench = leading()
    bench.replicator.refusal = NotYet("n2 is still in the in-sync set")
    assert ask(bench, "remove", "n2") == Refused(
        "members-not-yet", "n1", "n2 is still in the in-sync set"
    )


def test_only_a_serving_leader_changes_members() -> None:
    bench = leading()
    bench.replicator.follow(2, "n2")
    bench.turn()
    assert ask(bench, "remove", "n3") == Refused("not-leader", "n2")


def test_member_change_on_a_full_disk_is_refused_and_repeatable() -> None:
    bench = leading()
    bench.replicator.full = bench.replicator.full_for_control = True
    outcome = ask(bench, "remove", "n3")
    assert (
        isinstance(outcome, Refused)
        and "disk" in outcome.detail
        and known(bench).voters == THREE.voters
    )
    bench.replicator.full = bench.replicator.full_for_control = False
    assert isinstance(ask(bench, "remove", "n3"), MembersChanged)


def test_a_node_that_lost_its_directory_becomes_a_learner_and_a_voter_again() -> None:
    """The leader does this by itself: informed repeatedly, it acts once, and promotes the node when
    the core reports that this is due."""
    bench = leading()
    for _ in range(3):
        bench.turn(Returned("n3", "new-3"))
        bench.pass_time(AGAIN_NS)
    learner = known(bench)
    assert learner == GroupMembers(
        bench.log.end_index, ("n1", "n2"), frozenset({"n3"}), {"n3": "new-3"}, frozenset({"n3"})
    )
    bench.replicator.owed = MemberChange(Change.PROMOTE, "n3", reason="caught up")
    bench.pass_time(AGAIN_NS)
    bench.replicator.owed = None
    assert known(bench) == GroupMembers(
        bench.log.end_index, ("n1", "n2", "n3"), frozenset(), {"n3": "new-3"}
    )
    end = bench.log.end_index
    bench.turn(Returned("n3", "new-3"))
    bench.pass_time(10 * AGAIN_NS)
    assert bench.log.end_index == end, "the group knows that directory"


def test_return_that_costs_the_quorum_is_retried_with_its_reason() -> None:
    """Two nodes returned, and one cannot be admitted: the other does not wait for it."""
    bench = leading()
    bench.replicator.refusal = "n2 does not answer"
    bench.turn(Returned("n3", "new-3"), Returned("n9", "new-9"))
    bench.pass_time(AGAIN_NS)
    assert bench.group.memberships.objections == {"n3": "n2 does not answer"}, (
        "a stranger is not a member"
    )
    assert bench.output is not None and bench.output.wake_at_ns <= bench.now_ns + AGAIN_NS
    bench.replicator.refusal = ""
    bench.pass_time(AGAIN_NS)
    assert known(bench).returning == {"n3"}
    bench.pass_time(AGAIN_NS)
    assert bench.group.memberships.objections == {}


def test_follower_admits_a_returned_node_once_it_leads() -> None:
    bench = Bench()
    bench.replicator.members = THREE
    bench.machine.members = GroupMembers(-1, THREE.voters)
    bench.turn(Returned("n3", "new-3"))
    assert bench.log.end_index == -1
    bench.lead()
    bench.pass_time(AGAIN_NS)
    assert known(bench).returning == {"n3"}


def test_an_uncommitted_return_is_not_forgotten() -> None:
    """The entry may be cut off by another leader: this one, leading again, does it again."""
    bench = leading()
    bench.replicator.commit_at_once = False
    end = bench.log.end_index
    bench.turn(Returned("n3", "new-3"))
    bench.pass_time(AGAIN_NS)
    bench.pass_time(AGAIN_NS)
    assert bench.log.end_index == end + 1
    bench.replicator.follow(2, "n2")
    bench.turn()
    bench.log.cut(end)
    bench.replicator.members, bench.replicator.members_index = THREE, -1
    bench.replicator.commit_at_once = True
    bench.lead(3)
    bench.pass_time(AGAIN_NS)
    assert known(bench).returning == {"n3"}


def test_leader_without_due_member_changes_is_not_woken() -> None:
    """No busy loop: neither without members to bring back, nor while a change is uncommitted."""
    bench = leading()
    bench.turn()
    assert bench.output is not None and bench.output.wake_at_ns > bench.now_ns + AGAIN_NS
    bench.replicator.commit_at_once = False
    bench.turn(Returned("n3", "new-3"))
    for _ in range(5):
        output = bench.pass_time(AGAIN_NS)
        assert output.wake_at_ns > bench.now_ns
