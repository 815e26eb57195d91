"""What a follower and a candidate say, and when: single rules that random clusters meet too
rarely."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, Members, RaftConfig, Rule, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.election import CHANGES_KEPT
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import AppendReply, VoteReply, VoteRequest
from ledgermq.raft.transfer import Cause
from tests.raft.test_raft_paper import LATER, VOTERS, append, core, follow, leader, said

BEAT_NS = Timing().heartbeat_ns


@pytest.mark.parametrize("verified", [False, True])
def test_reader_is_announced_once_an_entry_is_verified(verified: bool) -> None:
    """Before that, an answer would claim a common entry that nothing showed; the next answer
    announces the reader."""
    raft = core([1])
    follow(raft, append(*((1, 1) if verified else (4, 2))))
    raft.watch(True)
    assert [(m.received, m.watched) for m in said(raft, 0) if isinstance(m, AppendReply)] == (
        [(1, True)] if verified else []
    )
    raft.watch(True)
    assert said(raft, 0) == [], "it was announced already"


def test_verified_first_entry_is_enough_to_announce_a_reader() -> None:
    raft = core()
    follow(raft, append(0, 0))
    raft.watch(True)
    assert [m.received for m in said(raft, 0) if isinstance(m, AppendReply)] == [0]


def test_a_repeated_message_is_no_later_contact() -> None:
    """A reader trusts that contact: a late copy of an old message must not make the state of this
    replica look newer than it is."""
    raft = core([1])
    follow(raft, append(1, 1, round_=5), 10)
    first = raft.last_contact
    assert first is not None and first.at_ns == 10
    for round_, at_ns in ((5, 20), (4, 30)):
        follow(raft, append(1, 1, round_=round_), at_ns)
        assert raft.last_contact == first
    follow(raft, append(1, 1, round_=6), 40)
    assert raft.last_contact is not None and raft.last_contact.at_ns == 40


def test_a_sync_is_answered_once() -> None:
    """What was written is reported when it is durable. A sync that nothing waits for is no reason
    to answer."""
    raft = core([1])
    raft.step(append(1, 1, 2), 0)
    raft.take_writes()
    raft.append_written()
    assert said(raft, 0) == []
    raft.synced(*raft.sync_begins())
    assert [(m.received, m.durable) for m in said(raft, 0) if isinstance(m, AppendReply)] == [
        (3, 3)
    ]
    raft.synced(*raft.sync_begins())
    assert said(raft, 0) == []


@pytest.mark.parametrize("pre", [True, False])
def test_a_lost_election_ends_the_campaign(pre: bool) -> None:
    """As soon as no majority can be left, not when the timer expires."""
    raft = core([1])
    raft.tick(LATER)
    if not pre:
        raft.step(VoteReply(sender="b", to="a", term=2, pre=True, granted=True), LATER)
    assert raft.role is Role.CANDIDATE
    for number, node in enumerate(("b", "c")):
        assert raft.role is Role.CANDIDATE, number
        raft.step(VoteReply(sender=node, to="a", term=raft.term, pre=pre, granted=False), LATER)
    assert (raft.role, raft.leader) == (Role.FOLLOWER, None)


def test_a_replica_that_restarted_votes_in_the_term_that_it_stored() -> None:
    """The promise of its former life concerns candidates of later terms only."""
    for term, granted in ((5, True), (6, False)):
        raft = Core(
            RaftConfig("a", VOTERS, 1),
            LogView([(0, 0), (1, 3)], 2),
            HardState(5, None),
            Random(1),
            0,
            0,
        )
        raft.step(
            VoteRequest(sender="b", to="a", term=term, pre=False, last_index=2, last_term=3), 1
        )
        assert (raft.voted_for == "b") is granted


def test_a_canvass_waits_for_silent_nodes_for_one_heartbeat_period() -> None:
    """To the nanosecond, and asks the controller once."""
    config = RaftConfig("a", VOTERS, 1, rule=Rule.IN_SYNC)
    raft = Core(config, LogView([(0, 0), (1, 1)], 2), HardState(1, None), Random(1), 0, 2)
    assert raft.wake_at_ns(0) > 0
    raft.tick(LATER)
    raft.step(VoteReply(sender="b", to="a", term=2, pre=True, granted=True), LATER)
    for now_ns, requests in (
        (LATER, 0),
        (LATER + BEAT_NS - 1, 0),
        (LATER + BEAT_NS, 1),
        (LATER + BEAT_NS + 1, 0),
    ):
        raft.tick(now_ns)
        assert len(raft.take(now_ns).requests) == requests, now_ns - LATER
    raft.step(VoteReply(sender="c", to="a", term=2, pre=True, granted=True), LATER + BEAT_NS + 2)
    assert len(raft.take(LATER + BEAT_NS + 2).requests) == 1, (
        "the last one agrees, and the request may have been lost"
    )


def test_untaken_leader_changes_are_bounded_to_the_newest() -> None:
    """The newest ones stay."""
    raft = core([1])
    for term in range(2, 200):
        follow(raft, append(1, 1, term=term))
    found = [change.term for change in raft.election.take_changes()]
    assert found == list(range(200 - CHANGES_KEPT, 200))
    assert raft.election.take_changes() == ()


def test_new_term_forgets_the_handover_failure_of_the_former() -> None:
    """Such as the reason why one failed."""
    raft = leader()
    raft.handovers.failure = "it did not take over"
    raft.step(
        AppendReply(
            sender="b", to="a", term=7, round=1, boot_id=1, rejected=True, received=-1, durable=-1
        ),
        LATER,
    )
    assert raft.role is Role.FOLLOWER
    raft.tick(2 * LATER)
    for pre in (True, False):
        raft.step(VoteReply(sender="b", to="a", term=8, pre=pre, granted=True), 2 * LATER)
    assert (raft.role, raft.term) == (Role.LEADER, 8)
    assert raft.handover_failure == ""


def test_a_leader_that_stepped_down_counts_silence_from_then_on() -> None:
    raft = leader()
    raft.step(
        AppendReply(
            sender="b", to="a", term=7, round=1, boot_id=1, rejected=True, received=-1, durable=-1
        ),
        2 * LATER,
    )
    raft.tick(2 * LATER + 900 * MS)
    assert raft.role is Role.CANDIDATE
    assert (raft.election.candidacy.cause, raft.election.candidacy.silent_ms) == (
        Cause.ELECTION_TIMEOUT,
        900,
    )


def test_5_2_a_granted_vote_begins_a_new_timeout() -> None:
    """§5.2: the candidate has the whole timeout to win."""
    raft = core([1])
    due_ns = raft.timer.due_ns
    raft.step(
        VoteRequest(sender="b", to="a", term=2, pre=False, last_index=1, last_term=1), due_ns - 1
    )
    raft.tick(due_ns)
    assert (raft.role, raft.voted_for) == (Role.FOLLOWER, "b")
    raft.tick(due_ns + Timing().election_max_ns)
    assert raft.role is Role.CANDIDATE


def test_follower_rests_in_the_role_of_its_committed_members() -> None:
    """A voter that the log makes a learner is one once that is certain, and the reverse."""
    raft = core([1])
    for index, members, role in (
        (2, Members(("b", "c"), frozenset({"a"})), Role.LEARNER),
        (3, Members(VOTERS), Role.FOLLOWER),
    ):
        message = append(index - 1, 1 if index == 2 else 2, 1)
        assert message.extent is not None
        raft.step(
            replace(message, extent=replace(message.extent, membership=True), round=index),
            0,
            members=members,
        )
        raft.take_writes()
        raft.append_written()
        raft.synced(*raft.sync_begins())
        raft.step(append(index, 2, commit=index, round_=index + 10), 0)
        raft.take(0)
        assert raft.role is role, index


@pytest.mark.parametrize("verified", [True, False])
def test_every_answer_says_whether_the_replica_leaves_and_has_a_reader(verified: bool) -> None:
    for leaves, reads in product((True, False), repeat=2):
        raft = core([1])
        follow(raft, append(*((1, 1) if verified else (4, 2))))
        raft.watch(reads)
        if leaves:
            raft.leave()
        raft.take(0)
        effects = follow(raft, append(*((1, 1) if verified else (4, 2)), round_=2))
        (answer,) = [m for m in effects.messages if isinstance(m, AppendReply)]
        assert (answer.rejected, answer.leaving, answer.watched) == (not verified, leaves, reads)
