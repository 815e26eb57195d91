"""Membership change (Raft dissertation ch. 4, with the correction of 2015): one test per rule."""

from __future__ import annotations

from random import Random

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, NOBODY, Members, RaftConfig
from ledgermq.raft.core import Core
from ledgermq.raft.log_view import LogView
from ledgermq.raft.member_changes import UNSENT_AT_MOST
from ledgermq.raft.membership import Change, Configurations, MemberChange, changed
from ledgermq.raft.messages import (
    Append,
    AppendReply,
    Extent,
    LeftBehind,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ledgermq.raft.transfer import Cause
from tests.raft.memory_cluster import ENTRY_BYTES
from tests.raft.test_raft_paper import LATER, VOTERS, append, core, follow, leader, said

ABC = Members(VOTERS)


def heard(
    raft: Core,
    node: str,
    index: int,
    *,
    durable: int | None = None,
    provisional: bool = False,
    now_ns: int = LATER,
) -> None:
    """This peer has everything up to `index`, on stable storage unless said otherwise."""
    claim = index if durable is None else durable
    raft.step(
        AppendReply(
            sender=node,
            to="a",
            term=raft.term,
            round=raft.election.leading.round,
            boot_id=1,
            rejected=False,
            received=index,
            durable=claim,
            provisional=provisional,
        ),
        now_ns,
    )


def leading(*nodes: str, voters: tuple[str, ...] = VOTERS) -> Core:
    """Leader `a` of term 2 with a committed entry of its own, after answers of these nodes
    (default: all)."""
    raft = leader(voters=voters)
    raft.appended(Extent(1, 1, 2, 100))
    raft.synced(*raft.sync_begins())
    send(raft)
    for node in nodes or voters[1:]:
        heard(raft, node, 1)
    raft.take(LATER)
    assert raft.commit_index == 1
    return raft


def send(raft: Core, now_ns: int = LATER) -> list[Append]:
    """Everything the leader has to say, its pushes included, one range each."""
    effects = raft.take(now_ns)
    sent = [message for message in effects.messages if isinstance(message, Append)]
    for push in effects.pushes:
        term = raft.log.term_at(push.first_index)
        assert term is not None
        members = push.first_index in dict(raft.configurations.runs)
        last = push.first_index if members else raft.log.end_index
        size = (last - push.first_index + 1) * ENTRY_BYTES
        sent.append(
            raft.pushed(push.to, Extent(push.first_index, last, term, size, membership=members))
        )
    return sent


def change(raft: Core, kind: Change, node: str, incarnation: str = "") -> str | None:
    """Propose, and append what was allowed."""
    members = raft.propose_members(MemberChange(kind, node, incarnation), LATER)
    if isinstance(members, str):
        return members
    index = raft.log.end_index + 1
    raft.appended(Extent(index, index, raft.term, ENTRY_BYTES, membership=True), members=members)
    return None


def commit(raft: Core, *nodes: str) -> None:
    """The leader and these nodes store everything."""
    raft.synced(*raft.sync_begins())
    send(raft)
    for node in nodes:
        heard(raft, node, raft.log.end_index)
    raft.take(LATER)


@pytest.mark.parametrize(
    ("kind", "node", "voters", "learners"),
    [
        (Change.ADD, "e", "abc", "de"),
        (Change.PROMOTE, "d", "abcd", ""),
        (Change.DEMOTE, "c", "ab", "cd"),
        (Change.REMOVE, "c", "ab", "d"),
        (Change.REMOVE, "d", "abc", ""),
        (Change.RETURN, "c", "ab", "cd"),
        (Change.RETURN, "d", "abc", "d"),
    ],
)
def test_4_1_a_change_moves_one_server(kind: Change, node: str, voters: str, learners: str) -> None:
    """Dissertation §4.1: one server at a time, so that any two majorities before and after share a
    voter."""
    before = Members(tuple("abc"), frozenset("d"), {"d": "d1"})
    after = changed(
        before, MemberChange(kind, node, "new" if kind in (Change.ADD, Change.RETURN) else ""), 9
    )
    assert isinstance(after, Members)
    assert (after.voters, after.learners) == (tuple(voters), frozenset(learners))
    assert len(set(before.voters) ^ set(after.voters)) <= 1
    assert after.returning == (
        frozenset("c") if (kind, node) == (Change.RETURN, "c") else frozenset()
    )
    named = {"d": "d1", node: "new"} if kind in (Change.ADD, Change.RETURN) else {"d": "d1"}
    assert after.incarnations == {n: i for n, i in named.items() if n in after.nodes}


@pytest.mark.parametrize(
    ("kind", "node", "incarnation", "why"),
    [
        (Change.ADD, "a", "x", "voter of this group already"),
        (Change.ADD, "d", "x", "learner of this group already"),
        (Change.PROMOTE, "a", "", "a voter already"),
        (Change.PROMOTE, "x", "", "no member of this group"),
        (Change.PROMOTE, "d", "other", "another directory"),
        (Change.DEMOTE, "d", "", "a learner already"),
        (Change.REMOVE, "x", "", "no member of this group"),
        (Change.RETURN, "d", "d1", "this very directory"),
        (Change.RETURN, "a", "", "this very directory"),
    ],
)
def test_4_1_impossible_changes_are_refused_with_words(
    kind: Change, node: str, incarnation: str, why: str
) -> None:
    """§4.1: what is no change of these members."""
    answer = changed(
        Members(tuple("ab"), frozenset("d"), {"d": "d1"}), MemberChange(kind, node, incarnation), 9
    )
    assert isinstance(answer, str) and why in answer


@pytest.mark.parametrize("kind", [Change.REMOVE, Change.DEMOTE, Change.RETURN])
def test_4_1_the_last_voter_stays(kind: Change) -> None:
    """§4.1: a group without voters could never commit anything, not even another change."""
    answer = changed(Members(("a",), frozenset("d")), MemberChange(kind, "a", "x"), 9)
    assert isinstance(answer, str) and "last voter" in answer


def test_4_1_a_configuration_is_in_effect_when_appended() -> None:
    """§4.1: the leader uses the new configuration as soon as it is in its log, and replicates to
    the new server."""
    raft = leading()
    assert change(raft, Change.ADD, "d", "d1") is None
    assert raft.members == Members(VOTERS, frozenset("d"), {"d": "d1"}) and "d" in raft.peers
    assert {message.to for message in send(raft)} == {"b", "c", "d"}


def test_4_1_a_follower_follows_the_configuration_of_its_log() -> None:
    """§4.1: in effect when received, undone when cut off again."""
    raft = core([1])
    members = Members(("a", "b"))
    raft.step(
        Append(
            sender="b",
            to="a",
            term=2,
            round=1,
            prev_index=1,
            prev_term=1,
            commit_index=0,
            extent=Extent(2, 2, 2, 100, membership=True),
        ),
        LATER,
        members=members,
    )
    raft.take_writes()
    raft.append_written()
    assert raft.members == members and raft.configurations.latest_index == 2
    raft.step(
        Append(
            sender="c",
            to="a",
            term=3,
            round=1,
            prev_index=1,
            prev_term=1,
            commit_index=0,
            extent=Extent(2, 2, 3, 100),
        ),
        LATER,
    )
    raft.take_writes()
    raft.append_written()
    assert raft.members == ABC


def test_4_1_a_refused_write_takes_its_configuration_back() -> None:
    """A full disk: the entry is not there, and so its members are not."""
    raft = core([1])
    raft.step(
        Append(
            sender="b",
            to="a",
            term=2,
            round=1,
            prev_index=1,
            prev_term=1,
            commit_index=0,
            extent=Extent(2, 2, 2, 100, membership=True),
        ),
        LATER,
        members=Members(("b",)),
    )
    raft.take_writes()
    raft.append_refused()
    assert raft.members == ABC


def test_4_1_the_next_change_waits_for_the_commit_of_the_one_before() -> None:
    """§4.1: one at a time."""
    raft = leading()
    assert change(raft, Change.ADD, "d", "d1") is None
    assert "not committed yet" in (change(raft, Change.ADD, "e", "e1") or "")
    commit(raft, "b")
    assert change(raft, Change.ADD, "e", "e1") is None


def test_4_1_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    """§4.1, as corrected in 2015 (raft-dev, "bug in single-server membership changes"): a change
    that an earlier leader left uncommitted could otherwise be overtaken by one whose majority does
    not meet it."""
    raft = leader()
    for node in ("b", "c"):
        heard(raft, node, 0)
    assert "not committed an entry of its term" in (change(raft, Change.ADD, "d", "d1") or "")


def test_4_2_1_a_learner_is_promoted_once_it_has_caught_up() -> None:
    """§4.2.1: a new server without the log would hold up commits; it receives first, and does not
    vote."""
    raft = leading()
    change(raft, Change.ADD, "d", "d1")
    commit(raft, "b", "c")
    assert "has not answered" in (change(raft, Change.PROMOTE, "d") or "")
    raft.appended(Extent(3, 60, 2, 58 * ENTRY_BYTES))
    commit(raft, "b", "c")
    raft.step(
        AppendReply(
            sender="d",
            to="a",
            term=2,
            round=raft.election.leading.round,
            boot_id=9,
            rejected=True,
            received=-1,
            durable=-1,
        ),
        LATER,
    )
    assert "60 entries behind" in (change(raft, Change.PROMOTE, "d") or "").replace("61", "60")
    send(raft)
    heard(raft, "d", 60, provisional=True)
    assert "not known to all voters" in (change(raft, Change.PROMOTE, "d") or "")
    heard(raft, "d", 60)
    assert change(raft, Change.PROMOTE, "d") is None
    assert raft.members.voters == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("unsent", "allowed"), [(UNSENT_AT_MOST, True), (UNSENT_AT_MOST + 1, False)]
)
def test_4_2_1_the_newest_entries_of_a_busy_leader_hold_no_promotion_up(
    unsent: int, allowed: bool
) -> None:
    """§4.2.1: what counts is that it keeps up; between two turns a busy leader always has entries
    that no push has taken."""
    raft = leading()
    change(raft, Change.ADD, "d", "d1")
    commit(raft, "b", "c")
    send(raft)
    heard(raft, "d", raft.log.end_index)
    raft.appended(
        Extent(raft.log.end_index + 1, raft.log.end_index + unsent, 2, unsent * ENTRY_BYTES)
    )
    assert (change(raft, Change.PROMOTE, "d") is None) is allowed


def test_4_2_1_copies_of_learners_do_not_count() -> None:
    """§4.2.1: neither for commit nor for the leader's contact with a majority."""
    raft = leading()
    change(raft, Change.ADD, "d", "d1")
    commit(raft, "d")
    assert raft.commit_index == 1
    heard(raft, "b", 2)
    assert raft.commit_index == 2


def test_4_2_1_provisional_copies_do_not_count() -> None:
    """The copies and answers of a voter whose directory is provisional do not count
    (docs/architecture.md, Durability)."""
    raft = leading("b")
    raft.appended(Extent(2, 2, 2, 100))
    raft.synced(*raft.sync_begins())
    send(raft)
    heard(raft, "b", 2, provisional=True)
    assert (raft.commit_index, raft.replicated_index) == (1, 1)
    heard(raft, "b", 2)
    assert raft.commit_index == 2


def test_4_2_2_removed_leader_leads_uncounted_until_the_commit() -> None:
    """§4.2.2: it manages a cluster that does not include itself, then hands over, or steps down."""
    raft = leading()
    assert change(raft, Change.REMOVE, "a") is None
    raft.synced(*raft.sync_begins())
    send(raft)
    heard(raft, "b", 2)
    assert (raft.commit_index, raft.role) == (1, Role.LEADER)
    heard(raft, "c", 2)
    assert raft.commit_index == 2
    told = [message for message in raft.take(LATER).messages if isinstance(message, TimeoutNow)]
    assert [(message.to, message.cause) for message in told] == [("c", Cause.REMOVED)]
    follow(
        raft,
        Append(sender="c", to="a", term=3, round=1, prev_index=2, prev_term=2, commit_index=2),
        LATER,
    )
    assert raft.role is Role.LEARNER and raft.wake_at_ns(LATER) > 1 << 60
    assert raft.take_changes()[-1].reason.cause is Cause.REMOVED


def test_4_2_2_a_removed_leader_without_a_successor_just_stops() -> None:
    """§4.2.2: no member is notified; the others elect a leader by themselves."""
    raft = leading()
    change(raft, Change.REMOVE, "a")
    raft.synced(*raft.sync_begins())
    send(raft)
    for node in ("b", "c"):
        raft.step(
            AppendReply(
                sender=node,
                to="a",
                term=2,
                round=raft.election.leading.round,
                boot_id=1,
                rejected=False,
                received=2,
                durable=2,
                leaving=True,
            ),
            LATER,
        )
    assert raft.commit_index == 2
    raft.take(LATER)
    assert raft.role is Role.LEARNER
    assert raft.take_changes()[-1].reason.cause is Cause.REMOVED


def test_4_2_2_voter_under_removal_acts_until_the_removal_is_committed() -> None:
    """§4.2.2: until the entry is committed, its candidate and its vote may be what the others need;
    from then on it is at rest."""
    view = LogView([(0, 0), (1, 1)], 2)
    runs = [(-1, Members(("a", "b"))), (2, Members(("b",)))]
    raft = Core(
        RaftConfig("a", ("a", "b"), 1),
        view,
        HardState(1, None),
        Random(1),
        0,
        1,
        configurations=runs,
    )
    raft.tick(LATER)
    assert [message.to for message in said(raft) if isinstance(message, VoteRequest)] == ["b"]
    raft.step(VoteReply(sender="b", to="a", term=2, pre=True, granted=True), LATER)
    raft.step(VoteReply(sender="b", to="a", term=2, pre=False, granted=True), LATER)
    assert raft.role is Role.LEADER
    certain = Core(
        RaftConfig("a", ("a", "b"), 1),
        LogView([(0, 0), (1, 1)], 2),
        HardState(1, None),
        Random(1),
        0,
        2,
        configurations=runs,
    )
    certain.tick(10 * LATER)
    assert (certain.role, said(certain)) == (Role.LEARNER, [])


def test_4_2_2_removed_member_is_notified_for_an_election_timeout() -> None:
    """The leader still notifies it for the longest election timeout after the first heartbeat
    behind the commit, then forgets it."""
    raft = leading()
    change(raft, Change.REMOVE, "c")
    commit(raft, "b")
    assert raft.commit_index == 2 and "c" in raft.peers
    for beat in range(1, 12):
        now_ns = LATER + beat * raft.config.timing.heartbeat_ns
        sent = send(raft, now_ns)
        heard(raft, "b", raft.log.end_index, now_ns=now_ns)
        assert ("c" in {message.to for message in sent}) == (beat <= 8)
    assert "c" not in raft.peers
    raft.step(
        AppendReply(
            sender="c", to="a", term=2, round=1, boot_id=1, rejected=False, received=2, durable=2
        ),
        now_ns,
    )
    assert raft.refused["stranger"] == 1


def test_4_2_2_readded_member_stays_and_is_notified_of_its_next_removal() -> None:
    """An earlier removal counts no longer: a member is never forgotten, and after another removal
    it has the whole time to hear of it."""
    raft, beats = leading(), iter(range(1, 100))

    def beat() -> set[str]:
        now_ns = LATER + next(beats) * raft.config.timing.heartbeat_ns
        sent = send(raft, now_ns)
        for node in ("b", "c"):
            if node in raft.peers:
                heard(raft, node, raft.log.end_index, now_ns=now_ns)
        return {message.to for message in sent}

    change(raft, Change.REMOVE, "c")
    commit(raft, "b")
    assert all("c" in beat() for _ in range(3))
    change(raft, Change.ADD, "c")
    commit(raft, "b", "c")
    assert all("c" in beat() for _ in range(20)), "a member was forgotten"
    change(raft, Change.REMOVE, "c")
    commit(raft, "b")
    assert ["c" in beat() for _ in range(10)] == [True] * 8 + [False] * 2


def test_4_2_3_removed_servers_cannot_disturb() -> None:
    """§4.2.3, §9.6: a member in contact with its leader grants no vote to a stranger, and keeps its
    term."""
    raft = core([1])
    follow(raft, append(1, 1), LATER)
    raft.take(LATER)
    raft.step(VoteRequest(sender="x", to="a", term=9, pre=False, last_index=5, last_term=5), LATER)
    assert [m.granted for m in said(raft) if isinstance(m, VoteReply)] == [False]
    assert (raft.term, raft.leader) == (2, "b")


def test_4_1_requests_are_heard_from_servers_that_the_own_configuration_lacks() -> None:
    """§4.1: a server accepts a leader, and grants its vote to a candidate, that is not part of its
    latest configuration; nothing else from strangers counts."""
    raft = core([1])
    follow(
        raft,
        Append(sender="d", to="a", term=3, round=1, prev_index=1, prev_term=1, commit_index=0),
        LATER,
    )
    assert (raft.leader, raft.term) == ("d", 3)
    raft.step(
        Append(sender="e", to="a", term=3, round=1, prev_index=1, prev_term=1, commit_index=0),
        LATER,
    )
    assert (raft.leader, raft.refused["stranger"], raft.take(LATER).fence) == ("d", 1, None)
    voter = core([1])
    voter.step(VoteRequest(sender="d", to="a", term=2, pre=False, last_index=1, last_term=1), LATER)
    assert (said(voter), voter.refused["stranger"]) == ([], 1)
    voter.step(VoteRequest(sender="d", to="a", term=2, pre=False, last_index=2, last_term=1), LATER)
    assert said(voter) == [VoteReply(sender="a", to="d", term=2, pre=False, granted=True)]


@pytest.mark.parametrize(("asked_as", "granted"), [("a2", True), ("a1", False), ("", False)])
def test_4_1_a_voter_that_does_not_know_it_votes_where_it_is_named(
    asked_as: str, granted: bool
) -> None:
    """§4.1: the entry that made it a voter may be on its way. The candidate's members name its very
    directory, so the entry that ended what an earlier directory had promised is committed; by any
    other name it was asked as the directory that is lost."""
    raft = Core(
        RaftConfig("a", (), 1, incarnation="a2"),
        LogView(),
        HardState(),
        Random(1),
        0,
        admitted=False,
    )
    raft.step(
        VoteRequest(
            sender="b", to="a", term=2, pre=False, last_index=5, last_term=1, incarnation=asked_as
        ),
        LATER,
    )
    assert bool([m for m in said(raft) if isinstance(m, VoteReply) and m.granted]) is granted
    assert raft.refused["no-voter"] == int(not granted)


def test_4_1_former_directory_ignores_requests_to_the_present_one() -> None:
    """§4.1: to that candidate they are different servers; the directory it asks may have voted in
    this term already."""
    runs = [(-1, ABC)]
    view = LogView([(0, 0), (1, 1)], 1)
    raft = Core(
        RaftConfig("a", VOTERS, 1, incarnation="a1"),
        view,
        HardState(1),
        Random(1),
        0,
        1,
        configurations=runs,
    )
    raft.step(
        VoteRequest(
            sender="b", to="a", term=9, pre=False, last_index=5, last_term=8, incarnation="a2"
        ),
        LATER,
    )
    assert (said(raft), raft.term, raft.refused["no-voter"]) == ([], 1, 1)
    raft.step(
        VoteRequest(
            sender="b", to="a", term=9, pre=False, last_index=5, last_term=8, incarnation="a1"
        ),
        LATER,
    )
    assert said(raft) == [VoteReply(sender="a", to="b", term=9, pre=False, granted=True)]


def test_4_3_changes_that_would_lose_the_quorum_are_refused() -> None:
    """§4.3, availability: of the new voters a majority must be there, or the change itself could
    never be committed."""
    raft = leading("b")
    answer = change(raft, Change.REMOVE, "b")
    assert (
        answer is not None
        and "lose the quorum: 2 of the voters a, c are needed, and c cannot be heard" in answer
    )
    assert change(raft, Change.REMOVE, "c") is None


def test_no_change_during_a_handover() -> None:
    """§3.10: while leadership moves nothing new begins."""
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, 2000 * MS)
    assert "handed over" in (change(raft, Change.ADD, "d", "d1") or "")


def test_a_returning_voter_is_owed_its_promotion() -> None:
    """A lost directory: learner first, then a voter again by the leader itself once it has caught
    up."""
    raft = leading()
    assert change(raft, Change.RETURN, "c", "c2") is None
    assert raft.members == Members(("a", "b"), frozenset("c"), {"c": "c2"}, frozenset("c"))
    commit(raft, "b")
    assert raft.due_change(LATER) is None
    raft.step(
        AppendReply(
            sender="c",
            to="a",
            term=2,
            round=raft.election.leading.round,
            boot_id=77,
            rejected=True,
            received=-1,
            durable=-1,
        ),
        LATER,
    )
    send(raft)
    raft.step(
        AppendReply(
            sender="c",
            to="a",
            term=2,
            round=raft.election.leading.round,
            boot_id=77,
            rejected=False,
            received=2,
            durable=2,
        ),
        LATER,
    )
    due = raft.due_change(LATER)
    assert due is not None and (due.kind, due.node) == (Change.PROMOTE, "c")
    assert isinstance(raft.propose_members(due, LATER), Members)


def test_answers_of_a_lost_directory_promote_no_learner() -> None:
    """An answer that was in flight when the new directory was accepted lacks the entry that names
    the directory; only the new directory has it."""
    raft = leading()
    before = AppendReply(
        sender="c",
        to="a",
        term=2,
        round=raft.election.leading.round,
        boot_id=1,
        rejected=False,
        received=1,
        durable=1,
    )
    assert change(raft, Change.RETURN, "c", "c2") is None
    commit(raft, "b")
    raft.step(before, LATER)
    send(raft)
    assert raft.peers["c"].next_index > raft.log.end_index and raft.due_change(LATER) is None
    raft.step(
        AppendReply(
            sender="c",
            to="a",
            term=2,
            round=raft.election.leading.round,
            boot_id=77,
            rejected=False,
            received=2,
            durable=2,
        ),
        LATER,
    )
    assert raft.due_change(LATER) is not None


def test_a_replica_joins_with_an_empty_log() -> None:
    """It knows no members, follows any leader, marks its copy as provisional, and is a learner for
    certain once its entry is committed."""
    raft = Core(
        RaftConfig("d", (), 1, incarnation="d1"),
        LogView(),
        HardState(),
        Random(1),
        0,
        admitted=False,
    )
    assert (raft.members, raft.role, raft.wake_at_ns(0) > 1 << 60) == (NOBODY, Role.LEARNER, True)
    raft.step(
        Append(sender="a", to="d", term=2, round=1, prev_index=4, prev_term=2, commit_index=0),
        LATER,
    )
    assert said(raft) == [
        AppendReply(
            sender="d",
            to="a",
            term=2,
            round=1,
            boot_id=1,
            rejected=True,
            received=-1,
            durable=-1,
            provisional=True,
        )
    ]
    for index, term, members in (
        (0, 0, ABC),
        (1, 2, None),
        (2, 2, Members(VOTERS, frozenset("d"), {"d": "d1"})),
    ):
        before = -1 if index == 0 else 0 if index == 1 else 2
        extent = Extent(index, index, term, 100, membership=members is not None)
        raft.step(
            Append(
                sender="a",
                to="d",
                term=2,
                round=2 + index,
                prev_index=index - 1,
                prev_term=before,
                commit_index=index - 1,
                extent=extent,
            ),
            LATER,
            members=members,
        )
        raft.take_writes()
        raft.append_written()
    raft.synced(*raft.sync_begins())
    assert [m.provisional for m in said(raft) if isinstance(m, AppendReply)][-1]
    raft.step(
        Append(sender="a", to="d", term=2, round=9, prev_index=2, prev_term=2, commit_index=2),
        LATER,
    )
    (reply,) = [m for m in said(raft) if isinstance(m, AppendReply)]
    assert (reply.received, reply.durable, reply.provisional, raft.commit_index) == (2, 2, False, 2)


def test_a_wiped_voter_does_not_vote_as_its_former_self() -> None:
    """Design §4: committed on a and w, w loses its disk, c campaigns. Did w's new directory vote as
    the old one, the entry were lost."""
    wiped = Core(
        RaftConfig("w", (), 2, incarnation="w2"),
        LogView(),
        HardState(),
        Random(1),
        0,
        admitted=False,
    )
    for pre in (True, False):
        wiped.step(
            VoteRequest(
                sender="c", to="w", term=9, pre=pre, last_index=0, last_term=0, incarnation=""
            ),
            10 * LATER,
        )
    assert said(wiped, 10 * LATER) == [] and wiped.term == 0


def returned(*runs: tuple[int, Members], commit: int) -> Core:
    """Voter `a` lost its directory a1; a2 has a log with the entry that names it (entry 2 of term
    4), committed up to `commit`."""
    view = LogView([(0, 0), (1, 4)], 2)
    return Core(
        RaftConfig("a", (), 2, incarnation="a2"),
        view,
        HardState(4),
        Random(1),
        0,
        commit,
        admitted=False,
        configurations=runs,
    )


@pytest.mark.parametrize("before", [{}, {"a": "a1"}])
@pytest.mark.parametrize("kind", [Change.RETURN, Change.DEMOTE])
def test_4_1_new_directory_does_not_vote_until_its_entry_is_committed(
    kind: Change, before: dict[str, str]
) -> None:
    """§4.1: until the entry that ends its old promises is committed, a candidate without that entry
    may have asked the lost directory in this very term already. With its second vote two would lead
    one term; and it must not campaign or count as what it was."""
    voters = tuple("abcde")
    after = Members(
        tuple("bcde"),
        frozenset("a"),
        {"a": "a2"},
        frozenset("a") if kind is Change.RETURN else frozenset(),
    )
    raft = returned((-1, Members(voters, incarnations=before)), (2, after), commit=1)
    raft.tick(LATER)
    raft.step(VoteRequest(sender="e", to="a", term=6, pre=False, last_index=2, last_term=5), LATER)
    assert (said(raft), raft.role, raft.refused["no-voter"]) == ([], Role.LEARNER, 1)
    follow(
        raft,
        Append(sender="e", to="a", term=6, round=1, prev_index=2, prev_term=4, commit_index=1),
        LATER,
    )
    raft.step(
        Append(sender="e", to="a", term=6, round=2, prev_index=2, prev_term=4, commit_index=1),
        LATER,
    )
    (reply,) = [message for message in said(raft) if isinstance(message, AppendReply)]
    assert (reply.received, reply.provisional) == (2, True)


def test_4_2_2_a_voter_that_joined_is_still_needed_while_it_is_removed() -> None:
    """§4.2.2: the members before the change name its directory, whether or not all members have
    seen it."""
    before = Members(tuple("ab"), incarnations={"a": "a2"})
    raft = returned((1, before), (2, Members(("b",))), commit=1)
    raft.step(
        VoteRequest(
            sender="b", to="a", term=6, pre=False, last_index=2, last_term=4, incarnation=""
        ),
        LATER,
    )
    assert said(raft) == [VoteReply(sender="a", to="b", term=6, pre=False, granted=True)]


def test_a_directory_that_the_members_replaced_is_never_admitted_again() -> None:
    """An old backup of a voter that has returned with another directory since."""
    runs = [(-1, ABC), (1, Members(VOTERS, incarnations={"a": "new"}))]
    view = LogView([(0, 0), (1, 1)], 1)
    raft = Core(
        RaftConfig("a", VOTERS, 1, incarnation="old"),
        view,
        HardState(1),
        Random(1),
        0,
        1,
        configurations=runs,
    )
    raft.admit()
    raft.tick(10 * LATER)
    assert not raft.admitted and said(raft) == []


def test_left_behind_is_said_with_every_heartbeat_and_passed_on() -> None:
    """§7: the log alone cannot help; what to do about it is not the core's business."""
    raft = core([1])
    follow(raft, append(1, 1), 0)
    raft.step(LeftBehind(sender="c", to="a", term=2, begin_index=50), 0)
    raft.step(LeftBehind(sender="b", to="a", term=1, begin_index=50), 0)
    assert raft.take(0).left_behind is None
    raft.step(LeftBehind(sender="b", to="a", term=2, begin_index=50), 0)
    assert raft.take(0).left_behind == ("b", 50)
    assert raft.take(0).left_behind is None


def test_a_peer_that_answers_without_progress_is_compared_anew() -> None:
    """For `stall_ns` it answers and receives nothing of what it lacks: everything about it is
    forgotten, and counted. A silent one is not stalled, nor one that lacks nothing."""
    raft = leading()
    stall, beat = raft.config.timing.stall_ns, raft.config.timing.heartbeat_ns
    raft.appended(Extent(2, 2, 2, 100))
    send(raft)
    for now_ns in range(LATER, LATER + stall + 1, beat):
        heard(raft, "b", 2, now_ns=now_ns)
        heard(raft, "c", 1, now_ns=now_ns)
        send(raft, now_ns)
    assert raft.restarts == {"c": 1}
    assert raft.peers["c"].received == -1
    heard(raft, "c", 2, now_ns=now_ns)
    later = now_ns + 2 * stall
    heard(raft, "c", 2, now_ns=later)
    heard(raft, "b", 2, now_ns=later)
    send(raft, later)
    assert raft.restarts == {"c": 1}


def test_configurations_of_a_trimmed_log_are_bounded() -> None:
    """Memory is O(configurations of the retained log)."""
    known = Configurations([(-1, ABC)])
    for index in range(10, 1000, 10):
        known.append(index, Members((*VOTERS, f"n{index}")))
        known.trim(index - 25)
    assert len(known.runs) <= 4
    assert known.at(known.latest_index).voters[-1] == "n990"
    known.truncate_from(0)
    assert len(known.runs) == 1


@pytest.mark.parametrize("begin", range(10))
def test_a_trimmed_log_knows_the_members_of_every_entry_that_it_has(begin: int) -> None:
    """And of the entry before its begin; what it forgets is what no entry asks for."""
    every = [(index, Members((*VOTERS, f"n{index}"))) for index in (2, 3, 7)]
    whole, known = Configurations([(-1, ABC), *every]), Configurations([(-1, ABC), *every])
    known.trim(begin)
    known.check()
    assert [known.at(index) for index in range(begin - 1, 10)] == [
        whole.at(index) for index in range(begin - 1, 10)
    ]
    assert len(known.runs) == 1 + sum(index >= begin for index, _ in every)
