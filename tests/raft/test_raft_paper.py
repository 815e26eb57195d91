"""The rules of the Raft paper (extended version, 2014) and of Ongaro's dissertation, one test per
rule, named by section.

Departures, and why: the core appends no entry at the start of a term by itself (the driver appends
a real one); a vote is refused while a leader is heard (dissertation §6.4.1, stickiness); commit
counts durable copies, not received ones (§5.3 says "stored").
"""

from __future__ import annotations

from random import Random

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, Members, RaftConfig, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.effects import Effects
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, Message, VoteReply, VoteRequest

VOTERS = ("a", "b", "c")
LATER = 2000 * MS


def core(
    terms: list[int] | None = None,
    term: int = 1,
    vote: str | None = None,
    voters: tuple[str, ...] = VOTERS,
    commit: int = 0,
) -> Core:
    """Node `a` with a durable log of entries of these terms behind the membership entry."""
    runs: list[tuple[int, int]] = []
    for index, of in enumerate([0, *(terms or [])]):
        if not runs or runs[-1][1] != of:
            runs.append((index, of))
    config = RaftConfig("a", voters, boot_id=1)
    return Core(
        config,
        LogView(runs, len(terms or [])),
        HardState(term, vote),
        Random(1),
        0,
        commit_index=commit,
    )


def said(raft: Core, now_ns: int = LATER) -> list[Message]:
    return list(raft.take(now_ns).messages)


def leader(terms: list[int] | None = None, voters: tuple[str, ...] = VOTERS) -> Core:
    raft = core(terms, voters=voters)
    raft.tick(LATER)
    for pre in (True, False):
        for voter in voters[1:]:
            raft.step(VoteReply(sender=voter, to="a", term=2, pre=pre, granted=True), LATER)
    raft.take(LATER)
    assert (raft.role, raft.term) == (Role.LEADER, 2)
    return raft


def follow(raft: Core, message: Append, now_ns: int = 0) -> Effects:
    """Step an append as a driver does."""
    raft.step(message, now_ns)
    if raft.take_writes().append is not None:
        raft.append_written()
    return raft.take(now_ns)


def append(
    prev: int,
    prev_term: int,
    count: int = 0,
    term: int = 2,
    of: int | None = None,
    commit: int = 0,
    round_: int = 1,
) -> Append:
    extent = (
        Extent(prev + 1, prev + count, term if of is None else of, 100 * count) if count else None
    )
    return Append(
        sender="b",
        to="a",
        term=term,
        round=round_,
        prev_index=prev,
        prev_term=prev_term,
        commit_index=commit,
        extent=extent,
    )


def test_5_1_a_higher_term_makes_a_leader_step_down() -> None:
    """§5.1: if one server's term is smaller than another's, it updates to the larger value; a
    leader reverts to follower."""
    raft = leader()
    raft.step(
        AppendReply(
            sender="b", to="a", term=7, round=1, boot_id=1, rejected=True, received=-1, durable=-1
        ),
        LATER,
    )
    assert (raft.role, raft.term, raft.voted_for, raft.leader) == (Role.FOLLOWER, 7, None, None)
    assert raft.take(LATER).writes.hard_state == HardState(7, None)


def test_5_1_requests_of_an_older_term_are_rejected_with_the_present_one() -> None:
    """§5.1: a request with a stale term number is rejected."""
    raft = core([1], term=5)
    raft.step(append(1, 1, 2, term=4), 0)
    (reply,) = said(raft, 0)
    assert isinstance(reply, AppendReply)
    assert (reply.rejected, reply.term, raft.log.end_index, raft.leader) == (True, 5, 1, None)
    raft.step(VoteRequest(sender="b", to="a", term=4, pre=False, last_index=9, last_term=4), LATER)
    assert said(raft) == [VoteReply(sender="a", to="b", term=5, pre=False, granted=False)]


def test_5_2_a_follower_without_a_leader_starts_an_election() -> None:
    """§5.2, dissertation §9.6: after its election timeout it asks for pre-votes without touching
    its term, then for votes in the next."""
    raft = core([1, 1])
    raft.tick(LATER)
    assert said(raft) == [
        VoteRequest(sender="a", to=to, term=2, pre=True, last_index=2, last_term=1)
        for to in ("b", "c")
    ]
    assert (raft.role, raft.term, raft.voted_for) == (Role.CANDIDATE, 1, None)
    raft.step(VoteReply(sender="b", to="a", term=2, pre=True, granted=True), LATER)
    effects = raft.take(LATER)
    assert effects.writes.hard_state == HardState(2, "a")
    assert list(effects.messages) == [
        VoteRequest(sender="a", to=to, term=2, pre=False, last_index=2, last_term=1)
        for to in ("b", "c")
    ]


@pytest.mark.parametrize(
    ("voters", "needed"),
    [(("a",), 0), (("a", "b"), 1), (("a", "b", "c"), 1), (("a", "b", "c", "d", "e"), 2)],
)
def test_5_2_a_majority_of_votes_makes_a_leader(voters: tuple[str, ...], needed: int) -> None:
    """§5.2: a candidate wins with votes from a majority of the servers, its own included, and not
    with one fewer."""
    raft = core(voters=voters)
    raft.tick(LATER)
    for pre in (True, False):
        for voter in voters[1 : 1 + needed]:
            assert raft.role is Role.CANDIDATE
            raft.step(VoteReply(sender=voter, to="a", term=2, pre=pre, granted=True), LATER)
    assert (raft.role, raft.term) == (Role.LEADER, 2)


def test_5_2_one_vote_per_term_first_come_first_served() -> None:
    """§5.2: each server votes for at most one candidate in a given term; the same one may ask
    again."""
    raft = core([1])
    for candidate, granted in (("b", True), ("c", False), ("b", True)):
        raft.step(
            VoteRequest(sender=candidate, to="a", term=2, pre=False, last_index=1, last_term=1),
            LATER,
        )
        effects = raft.take(LATER)
        assert list(effects.messages) == [
            VoteReply(sender="a", to=candidate, term=2, pre=False, granted=granted)
        ]
    assert raft.voted_for == "b"


def test_5_2_the_vote_is_durable_before_the_answer() -> None:
    """§5.2, figure 2: term and vote are updated on stable storage before responding: one Effects
    holds both, hard state first."""
    raft = core([1])
    raft.step(VoteRequest(sender="b", to="a", term=2, pre=False, last_index=1, last_term=1), LATER)
    effects = raft.take(LATER)
    assert effects.writes.hard_state == HardState(2, "b")
    assert effects.messages == (VoteReply(sender="a", to="b", term=2, pre=False, granted=True),)


def test_5_2_a_vote_survives_a_restart() -> None:
    """§5.2: the vote that was stored binds the next life too."""
    raft = core([1], term=2, vote="b")
    raft.step(VoteRequest(sender="c", to="a", term=2, pre=False, last_index=1, last_term=1), LATER)
    assert said(raft) == [VoteReply(sender="a", to="c", term=2, pre=False, granted=False)]


def test_5_2_a_candidate_that_hears_the_leader_follows_it() -> None:
    """§5.2: an append of a term at least as large makes a candidate a follower."""
    raft = core([1])
    raft.tick(LATER)
    raft.step(VoteReply(sender="b", to="a", term=2, pre=True, granted=True), LATER)
    assert (raft.role, raft.term) == (Role.CANDIDATE, 2)
    follow(raft, append(1, 1, term=2), LATER)
    assert (raft.role, raft.leader, raft.voted_for) == (Role.FOLLOWER, "b", "a")


def test_5_2_election_timeouts_are_spread() -> None:
    """§5.2: randomised timeouts make split votes rare: they cover 400 to 800 ms and repeat only by
    accident."""
    dues = set()
    for seed in range(200):
        raft = Core(
            RaftConfig("a", VOTERS, 1), LogView([(0, 0)], 0), HardState(), Random(seed), 0, 0
        )
        dues.add(raft.wake_at_ns(0))
    assert 400 * MS <= min(dues) < 420 * MS
    assert 780 * MS < max(dues) <= 800 * MS
    assert len(dues) > 190


@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize(
    ("ours", "last_index", "last_term", "granted"),
    [
        ([1, 1], 2, 1, True),
        ([1, 1], 3, 1, True),
        ([1, 1], 1, 1, False),
        ([1, 1], 1, 2, True),
        ([1, 2], 9, 1, False),
        ([1, 2], 2, 2, True),
    ],
)
def test_5_4_1_only_an_up_to_date_candidate_gets_a_vote(
    ours: list[int], last_index: int, last_term: int, granted: bool, pre: bool
) -> None:
    """§5.4.1: the log with the later last term is more up to date; with equal last terms, the
    longer one."""
    raft = core(ours, term=2)
    raft.step(
        VoteRequest(
            sender="b", to="a", term=3, pre=pre, last_index=last_index, last_term=last_term
        ),
        LATER,
    )
    assert [m.granted for m in said(raft) if isinstance(m, VoteReply)] == [granted]


def test_5_3_the_leader_pushes_at_once_and_commits_on_durable_copies() -> None:
    """§5.3: an entry is committed once it is stored on a majority; stored means durable, and the
    leader's own disk is one vote."""
    raft = leader()
    raft.appended(Extent(1, 3, 2, 300))
    pushes = raft.take(LATER).pushes
    assert [(p.to, p.first_index) for p in pushes] == [("b", 1), ("c", 1)]
    raft.step(
        AppendReply(
            sender="b", to="a", term=2, round=3, boot_id=1, rejected=False, received=3, durable=0
        ),
        LATER,
    )
    assert raft.commit_index == 0
    raft.step(
        AppendReply(
            sender="b", to="a", term=2, round=3, boot_id=1, rejected=False, received=3, durable=2
        ),
        LATER,
    )
    assert raft.commit_index == 0
    raft.sync_begins()
    raft.synced(2, 3)
    assert raft.commit_index == 2
    raft.step(
        AppendReply(
            sender="c", to="a", term=2, round=3, boot_id=1, rejected=False, received=3, durable=3
        ),
        LATER,
    )
    assert raft.commit_index == 3


def test_5_3_the_leaders_own_disk_is_not_needed_for_a_majority() -> None:
    """§5.3, dissertation §10.2.1: two durable followers of three commit what the leader has not
    synced yet."""
    raft = leader()
    raft.appended(Extent(1, 1, 2, 100))
    for peer in ("b", "c"):
        raft.step(
            AppendReply(
                sender=peer,
                to="a",
                term=2,
                round=3,
                boot_id=1,
                rejected=False,
                received=1,
                durable=1,
            ),
            LATER,
        )
    assert (raft.durable_index, raft.commit_index) == (0, 1)


@pytest.mark.parametrize(
    ("ours", "prev", "prev_term", "hint"),
    [
        ([1, 1], 4, 2, (2, 1)),
        ([1, 1, 3, 3], 4, 2, (2, 1)),
        ([1, 2, 2, 2], 4, 5, (4, 2)),
        ([3, 3], 2, 2, (0, 0)),
    ],
)
def test_5_3_an_append_after_an_unknown_entry_is_rejected(
    ours: list[int], prev: int, prev_term: int, hint: tuple[int, int]
) -> None:
    """§5.3: without the entry before the range the follower refuses, and names the last index that
    can be common (term-wise back-off)."""
    raft = core(ours, term=6)
    (reply,) = follow(raft, append(prev, prev_term, 1, term=6)).messages
    assert isinstance(reply, AppendReply)
    assert (reply.rejected, reply.received, reply.hint_term) == (True, *hint)
    assert raft.log.end_index == len(ours)


def test_5_3_conflicting_entries_are_cut_and_replaced() -> None:
    """§5.3: an existing entry that conflicts with a new one (same index, other term) goes away with
    all that follow."""
    raft = core([1, 1, 1, 1], term=1)
    raft.step(append(2, 1, 1), 0)
    writes = raft.take_writes()
    assert (writes.truncate_from, writes.append, writes.hard_state) == (
        3,
        (3, 3),
        HardState(2, None),
    )
    raft.append_written()
    assert (raft.log.runs, raft.log.end_index, raft.durable_index) == (
        ((0, 0), (1, 1), (3, 2)),
        3,
        2,
    )


def test_5_3_entries_already_there_are_kept() -> None:
    """§5.3: a late, shorter push of existing entries truncates nothing."""
    raft = core([1, 2, 2, 2], term=2)
    raft.step(append(1, 1, 1), 0)
    writes = raft.take_writes()
    assert (writes.truncate_from, writes.append) == (None, None)
    assert raft.log.end_index == 4


def test_5_3_follower_commits_up_to_its_verified_index() -> None:
    """§5.3, figure 2: commit = min(leader's commit, last new entry): a heartbeat never commits an
    old tail of our own."""
    raft = core([1, 1, 1], term=1)
    follow(raft, append(1, 1, commit=3))
    assert raft.commit_index == 1


def test_5_3_backing_off_takes_one_round_per_term_not_per_entry() -> None:
    """§5.3: the leader skips whole conflicting terms; a peer with 100 foreign entries is found
    after one question."""
    raft = leader([1] * 10)
    raft.take(LATER)
    raft.step(
        AppendReply(
            sender="b",
            to="a",
            term=2,
            round=1,
            boot_id=1,
            rejected=True,
            received=4,
            durable=-1,
            hint_term=1,
        ),
        LATER,
    )
    (probe,) = [m for m in said(raft) if isinstance(m, Append) and m.to == "b"]
    assert (probe.prev_index, probe.prev_term) == (4, 1)


def test_5_4_2_old_terms_are_not_committed_by_counting() -> None:
    """§5.4.2, figure 8: only entries of the leader's own term are counted; they commit everything
    before them."""
    raft = leader([1, 1])
    for peer in ("b", "c"):
        raft.step(
            AppendReply(
                sender=peer,
                to="a",
                term=2,
                round=2,
                boot_id=1,
                rejected=False,
                received=2,
                durable=2,
            ),
            LATER,
        )
    assert raft.commit_index == 0
    raft.appended(Extent(3, 3, 2, 100))
    for peer in ("b", "c"):
        raft.step(
            AppendReply(
                sender=peer,
                to="a",
                term=2,
                round=4,
                boot_id=1,
                rejected=False,
                received=3,
                durable=3,
            ),
            LATER,
        )
    assert raft.commit_index == 3


def test_5_5_repeated_messages_are_idempotent() -> None:
    """§5.5: RPCs are idempotent: the same append and the same reply twice leave the same state."""
    raft = core([1], term=1)
    for _ in range(2):
        follow(raft, append(1, 1, 2))
        assert (raft.log.end_index, raft.verified_index) == (3, 3)
    lead = leader([1])
    lead.appended(Extent(2, 2, 2, 100))
    for _ in range(2):
        lead.step(
            AppendReply(
                sender="b",
                to="a",
                term=2,
                round=4,
                boot_id=1,
                rejected=False,
                received=2,
                durable=2,
            ),
            LATER,
        )
        assert (lead.peers["b"].received, lead.peers["b"].next_index) == (2, 3)


def test_9_6_pre_vote_leaves_term_vote_and_timer_unchanged() -> None:
    """Dissertation §9.6: answering a pre-vote neither raises the term nor spends the vote nor
    resets the timer."""
    raft = core([1])
    before = (raft.term, raft.voted_for, raft.wake_at_ns(0))
    raft.step(VoteRequest(sender="b", to="a", term=9, pre=True, last_index=1, last_term=1), LATER)
    effects = raft.take(LATER)
    assert effects.messages == (VoteReply(sender="a", to="b", term=9, pre=True, granted=True),)
    assert (raft.term, raft.voted_for, raft.wake_at_ns(0)) == before
    assert effects.writes.hard_state is None


@pytest.mark.parametrize("pre", [True, False])
def test_6_4_1_a_voter_that_hears_a_leader_refuses(pre: bool) -> None:
    """Dissertation §4.2.3 and §6.4.1: within the minimum election timeout of hearing a leader, a
    higher term changes nothing."""
    raft = core([1], term=2)
    follow(raft, append(1, 1))
    raft.step(VoteRequest(sender="c", to="a", term=8, pre=pre, last_index=9, last_term=7), 399 * MS)
    assert said(raft, 399 * MS) == [VoteReply(sender="a", to="c", term=2, pre=pre, granted=False)]
    assert raft.term == 2
    raft.step(VoteRequest(sender="c", to="a", term=8, pre=pre, last_index=9, last_term=7), 400 * MS)
    assert said(raft, 400 * MS) == [VoteReply(sender="a", to="c", term=8, pre=pre, granted=True)]


def test_6_2_a_leader_without_a_quorum_steps_down() -> None:
    """Dissertation §6.2: a leader steps down if an election timeout passes without contact to a
    majority; one of two peers is enough."""
    raft = leader()
    end = LATER + 800 * MS
    raft.step(
        AppendReply(
            sender="b", to="a", term=2, round=1, boot_id=1, rejected=False, received=0, durable=0
        ),
        LATER + 200 * MS,
    )
    raft.tick(end)
    assert raft.role is Role.LEADER
    raft.tick(end + 200 * MS)
    assert (raft.role, raft.term, raft.leader) == (Role.FOLLOWER, 2, None)


def test_a_restarted_leader_never_leads_its_term_again() -> None:
    """W15 of DLedger: with the vote for itself on disk it is a follower, and its next campaign
    takes a new term."""
    raft = core([1], term=4, vote="a")
    assert raft.role is Role.FOLLOWER
    raft.tick(LATER)
    for pre in (True, False):
        raft.step(VoteReply(sender="b", to="a", term=5, pre=pre, granted=True), LATER)
    assert (raft.role, raft.term) == (Role.LEADER, 5)


def test_two_leaders_of_one_term_are_a_fence() -> None:
    """I1: an append of our term from another node while we lead, or from a second leader, stops
    us."""
    raft = leader()
    raft.step(
        Append(sender="b", to="a", term=2, round=1, prev_index=0, prev_term=0, commit_index=0),
        LATER,
    )
    effects = raft.take(LATER)
    assert effects.fence is not None and "I1" in effects.fence
    assert (effects.messages, effects.pushes) == ((), ())
    other = core([1])
    follow(other, append(1, 1))
    other.step(
        Append(sender="c", to="a", term=2, round=1, prev_index=1, prev_term=1, commit_index=0), 0
    )
    assert "b both lead term 2" in str(other.take(0).fence)


def test_the_same_entry_written_again_is_not_made_durable_by_an_older_sync() -> None:
    """ABA with equal (index, term): cut by one leader, pushed again by the next, while the sync of
    the first copy still runs."""
    raft = core(term=1)
    follow(raft, append(0, 0, 4, term=1))
    began = raft.sync_begins()
    assert began == (1, 4)
    raft.step(
        Append(
            sender="c",
            to="a",
            term=2,
            round=1,
            prev_index=1,
            prev_term=1,
            commit_index=0,
            extent=Extent(2, 2, 2, 100),
        ),
        0,
    )
    assert raft.take_writes().truncate_from == 2
    raft.append_written()
    raft.step(append(1, 1, 3, term=3, of=1), 0)
    assert raft.take_writes().truncate_from == 2
    raft.append_written()
    assert (raft.log.term_at(4), raft.log.end_index) == (1, 4)
    raft.synced(*began)
    assert raft.durable_index == 1
    raft.sync_begins()
    raft.synced(1, 4)
    assert raft.durable_index == 4


def test_strangers_are_not_heard() -> None:
    """Only messages addressed to us are accepted, from members of the group or from nodes that an
    entry that we lack may have added (dissertation §4.1)."""
    raft = core([1])
    raft.step(VoteRequest(sender="x", to="a", term=9, pre=False, last_index=1, last_term=1), LATER)
    raft.step(VoteReply(sender="x", to="a", term=9, pre=False, granted=False), LATER)
    raft.step(
        AppendReply(
            sender="x", to="a", term=9, round=1, boot_id=1, rejected=True, received=-1, durable=-1
        ),
        LATER,
    )
    raft.step(VoteRequest(sender="b", to="c", term=9, pre=False, last_index=9, last_term=9), LATER)
    assert said(raft) == []
    assert raft.term == 1


def test_a_learner_never_campaigns_and_never_counts() -> None:
    """A member without a vote never campaigns, and only voters count for a majority."""
    config = RaftConfig("l", ("a",), 1, learners=frozenset({"l"}))
    raft = Core(config, LogView([(0, 0)], 0), HardState(), Random(1), 0, 0)
    raft.tick(10 * LATER)
    assert (raft.role, list(raft.take(LATER).messages)) == (Role.LEARNER, [])
    assert raft.wake_at_ns(LATER) > 1 << 60
    boss = Core(
        RaftConfig("a", ("a",), 1, learners=frozenset({"l"})),
        LogView([(0, 0)], 0),
        HardState(),
        Random(1),
        0,
        0,
    )
    boss.tick(LATER)
    assert boss.role is Role.LEADER
    boss.appended(Extent(1, 1, 1, 100))
    boss.sync_begins()
    boss.synced(1, 1)
    assert boss.commit_index == 1
    assert [p.to for p in boss.take(LATER).pushes] == ["l"]


def test_a_replica_that_could_be_forgotten_only_follows_until_it_is_admitted() -> None:
    """No campaign, no vote, and its copy is called provisional; from its admission on it elects,
    votes and counts like any other."""

    def fresh() -> Core:
        return Core(
            RaftConfig("a", VOTERS, 1),
            LogView([(0, 0)], 0),
            HardState(),
            Random(1),
            0,
            0,
            admitted=False,
        )

    asked = [
        VoteRequest(sender="b", to="a", term=1, pre=pre, last_index=5, last_term=1)
        for pre in (True, False)
    ]
    raft = fresh()
    raft.tick(10 * LATER)
    for message in asked:
        raft.step(message, LATER)
    effects = raft.take(10 * LATER)
    assert (effects.messages, effects.writes.hard_state) == ((), None)
    follow(raft, append(0, 0, 1, term=1), LATER)
    raft.synced(*raft.sync_begins())
    effects = raft.take(LATER)
    assert effects.messages == (
        AppendReply(
            sender="a",
            to="b",
            term=1,
            round=1,
            boot_id=1,
            rejected=False,
            received=1,
            durable=1,
            provisional=True,
        ),
    )
    assert (raft.role, raft.term, raft.voted_for, raft.leader, raft.log.end_index) == (
        Role.FOLLOWER,
        1,
        None,
        "b",
        1,
    )
    assert raft.wake_at_ns(LATER) > 1 << 60
    raft.admit()
    raft.tick(10 * LATER)
    assert [(m.to, m.pre) for m in said(raft) if isinstance(m, VoteRequest)] == [
        ("b", True),
        ("c", True),
    ]
    voter = fresh()
    voter.admit()
    for message in asked:
        voter.step(message, LATER)
    assert said(voter) == [
        VoteReply(sender="a", to="b", term=1, pre=True, granted=True),
        VoteReply(sender="a", to="b", term=1, pre=False, granted=True),
    ]
    follower = fresh()
    follower.admit()
    follow(follower, append(0, 0, 1, term=1))
    assert (follower.leader, follower.log.end_index) == ("b", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ns": 0},
        {"heartbeat_ns": 300 * MS},
        {"election_min_ns": 900 * MS},
        {"window_bytes": 10},
        {"window_ranges": 0},
    ],
)
def test_impossible_periods_are_refused(wrong: dict[str, int]) -> None:
    """Periods and windows that could never work are a ValueError at once."""
    with pytest.raises(ValueError, match="raft timing"):
        Timing(**wrong)


def test_impossible_memberships_are_refused() -> None:
    """Learners without a voter, duplicates, a learner that is also a voter, a returning voter, and
    the incarnation of a stranger."""
    for voters, learners in (((), ("b",)), (("a", "a"), ()), (("a",), ("a",))):
        with pytest.raises(ValueError, match="raft members"):
            RaftConfig("a", voters, 1, learners=frozenset(learners))
    with pytest.raises(ValueError, match="raft members"):
        Members(("a", "b"), returning=frozenset({"b"}))
    with pytest.raises(ValueError, match="raft members"):
        Members(("a", "b"), incarnations={"c": "1"})


def test_a_peer_that_forgot_without_a_restart_is_probed_again() -> None:
    """The peer does not stay stuck: if it refuses even confirmed entries, it is probed from scratch
    and does not count meanwhile."""
    raft = leader([1])
    raft.appended(Extent(2, 4, 2, 300))
    raft.take(LATER)
    raft.pushed("b", Extent(2, 4, 2, 300))
    raft.step(
        AppendReply(
            sender="b", to="a", term=2, round=3, boot_id=1, rejected=False, received=4, durable=4
        ),
        LATER,
    )
    assert (raft.peers["b"].received, raft.peers["b"].durable) == (4, 4)
    for round_ in (4, 5):
        raft.take(LATER + 100 * MS * round_)
        raft.step(
            AppendReply(
                sender="b",
                to="a",
                term=2,
                round=100 + round_,
                boot_id=1,
                rejected=True,
                received=1,
                durable=-1,
                hint_term=1,
            ),
            LATER,
        )
    assert (raft.peers["b"].received, raft.peers["b"].durable) == (-1, -1)
    probes = [m for m in said(raft, 2 * LATER) if isinstance(m, Append) and m.to == "b"]
    assert probes[0].extent is None
    raft.step(
        AppendReply(
            sender="b",
            to="a",
            term=2,
            round=200,
            boot_id=1,
            rejected=True,
            received=1,
            durable=-1,
            hint_term=1,
        ),
        2 * LATER,
    )
    (probe,) = [m for m in said(raft, 2 * LATER) if isinstance(m, Append) and m.to == "b"]
    assert (probe.prev_index, probe.prev_term) == (1, 1)
    raft.step(
        AppendReply(
            sender="b", to="a", term=2, round=201, boot_id=1, rejected=False, received=1, durable=1
        ),
        2 * LATER,
    )
    (push,) = [p for p in raft.take(2 * LATER).pushes if p.to == "b"]
    assert push.first_index == 2


def test_late_words_of_a_life_that_was_never_heard_do_not_silence_the_present_one() -> None:
    """A peer restarted twice, and an answer of the process in between arrives last: the next answer
    of the current process is accepted again, and answers of the former one are not."""
    raft = leader()

    now_ns = LATER

    def answer(boot: int, round_: int) -> int:
        """The round of the next heartbeats."""
        nonlocal now_ns
        raft.step(
            AppendReply(
                sender="b",
                to="a",
                term=2,
                round=round_,
                boot_id=boot,
                rejected=False,
                received=0,
                durable=0,
            ),
            now_ns,
        )
        now_ns += 100 * MS
        raft.take(now_ns)
        return raft.election.leading.round

    first = answer(1, raft.election.leading.round)
    third = answer(3, first)
    between = answer(2, first)
    assert (raft.peers["b"].boot_id, raft.refused["former-life"]) == (2, 0) and between > third
    answer(3, first)
    assert (raft.peers["b"].boot_id, raft.refused["former-life"]) == (2, 1)
    answer(3, between)
    assert (raft.peers["b"].boot_id, raft.refused["former-life"]) == (3, 1)
    answer(2, third)
    answer(1, first)
    assert (raft.peers["b"].boot_id, raft.refused["former-life"]) == (3, 3)
