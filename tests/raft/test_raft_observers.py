"""Observers: they count for nothing and promise nothing, become voters only on purpose, and get no
more than they are granted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, SECOND_NS, Members, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import Change, MemberChange, changed
from ledgermq.raft.messages import AppendReply, Extent, LeaderContact, VoteReply, VoteRequest
from ledgermq.raft.transfer import Cause
from tests.raft.test_raft_members import commit, heard, leading, send
from tests.raft.test_raft_paper import LATER, VOTERS, append, core

WITH_O = Members(VOTERS, frozenset("o"), observers=frozenset("o"))


def observed() -> Core:
    """Leader `a` of three voters and the observer `o`, everything committed."""
    raft = leading()
    members = raft.propose_members(MemberChange(Change.ADD, "o", "inc", observer=True), LATER)
    assert isinstance(members, Members) and members.observers == {"o"} <= members.learners
    raft.appended(Extent(2, 2, 2, 100, membership=True), members=members)
    commit(raft, "b", "c")
    assert raft.commit_index == 2
    return raft


def test_copy_of_an_observer_neither_counts_for_nor_delays_commit() -> None:
    """The leader and the observer are no majority; two voters are one, however far back the
    observer is."""
    raft = observed()
    raft.appended(Extent(3, 3, 2, 100))
    raft.synced(*raft.sync_begins())
    send(raft)
    heard(raft, "o", 3)
    raft.take(LATER)
    assert raft.commit_index == 2
    heard(raft, "b", 3)
    raft.take(LATER)
    assert raft.commit_index == 3


def test_an_observer_is_promoted_on_purpose_only() -> None:
    """Neither when it has caught up, nor after it lost its directory, nor by a promotion that does
    not say so."""
    raft = observed()
    heard(raft, "o", 2)
    assert raft.due_change(LATER) is None
    refused = raft.propose_members(MemberChange(Change.PROMOTE, "o", "inc"), LATER)
    assert isinstance(refused, str) and "is an observer" in refused
    returned = changed(raft.members, MemberChange(Change.RETURN, "o", "another"), 3)
    assert isinstance(returned, Members) and returned.observers == {"o"} and not returned.returning
    promoted = raft.propose_members(MemberChange(Change.PROMOTE, "o", "inc", observer=True), LATER)
    assert isinstance(promoted, Members) and "o" in promoted.voters and not promoted.observers


def test_an_observer_neither_votes_nor_campaigns_nor_takes_over() -> None:
    """At any time, and whichever node asks."""
    config = RaftConfig("o", (), 1, incarnation="inc")
    log = LogView(((0, 1),), 0)
    named = Members(VOTERS, frozenset("o"), {"o": "inc"}, observers=frozenset("o"))
    raft = Core(config, log, HardState(1, None), Random(0), 0, 0, configurations=((0, named),))
    raft.tick(3600 * 1000 * MS)
    assert raft.role is Role.LEARNER and not raft.take(LATER).messages
    raft.step(
        VoteRequest(sender="b", to="o", term=5, pre=False, last_index=9, last_term=4),
        3600 * 1000 * MS,
    )
    assert not [
        found
        for found in raft.take(LATER).messages
        if isinstance(found, VoteReply) and found.granted and found.sender != "o"
    ]
    leads = observed()
    heard(leads, "o", 2)
    objection = leads.transfer("o", Cause.OPERATOR, LATER, SECOND_NS)
    assert objection is not None and "no voter" in objection


def test_last_contact_holds_end_and_commit_of_the_latest_round() -> None:
    """Its end and its commit index, by its own word, whether or not the logs agree; never by a
    message that was overtaken."""
    raft = core()
    assert raft.last_contact is None
    raft.step(replace(append(7, 2, commit=6, round_=4), end_index=9), LATER)
    assert raft.last_contact == LeaderContact(
        leader="b", term=2, at_ns=LATER, end_index=9, commit_index=6
    ), "rejected, and heard"
    raft.step(replace(append(0, 0, commit=5, round_=3), end_index=8), LATER + 1)
    assert raft.last_contact == LeaderContact(
        leader="b", term=2, at_ns=LATER, end_index=9, commit_index=6
    )
    raft.step(replace(append(0, 0, term=3, round_=1), sender="c"), LATER + 2)
    assert raft.last_contact == LeaderContact(
        leader="c", term=3, at_ns=LATER + 2, end_index=0, commit_index=0
    )


@given(
    st.integers(1, 10_000_000),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 3_000_000)), min_size=1, max_size=200),
)
def test_never_more_than_the_pace_and_one_range(rate: int, tries: list[tuple[int, int]]) -> None:
    """Over any time what was pushed is at most the rate times that time, a quarter of a second's
    worth and the last range."""
    pace, now, pushed, largest = Timing(observer_bytes_per_s=rate).observer_pace(), 0, 0, 0
    assert pace is not None
    for wait_ms, size in tries:
        now += wait_ms * MS
        if pace.available(now) >= 1:
            pace.take(size, now)
            pushed, largest = pushed + size, max(largest, size)
        assert pushed <= rate * now / SECOND_NS + rate / 4 + largest + 1


def test_zero_pace_is_unlimited_and_overdraft_is_paid_back() -> None:
    """One large entry goes, and then nothing until it is made up for."""
    assert Timing(observer_bytes_per_s=0).observer_pace() is None
    pace = Timing(observer_bytes_per_s=1000).observer_pace()
    assert pace is not None and pace.available(0) == 250
    pace.take(10_000, 0)
    assert pace.available(9 * SECOND_NS) < 1 <= pace.available(10 * SECOND_NS)


def test_push_to_an_observer_is_limited_by_its_pace() -> None:
    """Heartbeats continue; the remaining entries come with later ones."""
    with pytest.raises(ValueError, match="must not be negative"):
        Timing(observer_bytes_per_s=-1)
    raft = observed()
    heard(raft, "o", 2)
    raft.peers["o"].pace = Timing(observer_bytes_per_s=400).observer_pace()
    raft.appended(Extent(3, 12, 2, 1000))
    effects = raft.take(LATER)
    sizes = {push.to: push.size for push in effects.pushes}
    assert sizes["o"] == 100 and sizes["b"] > 1000
    raft.pushed("o", Extent(3, 3, 2, 100))
    assert "o" not in {push.to for push in raft.take(LATER).pushes}
    later = LATER + 250 * MS
    raft.step(
        AppendReply(
            sender="o",
            to="a",
            term=raft.term,
            round=raft.election.leading.round,
            boot_id=1,
            rejected=False,
            received=3,
            durable=3,
        ),
        later,
    )
    assert "o" in {push.to for push in raft.take(later).pushes}
