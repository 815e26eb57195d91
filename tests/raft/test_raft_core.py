"""The core as a whole: whose messages it hears in every state, what it refuses of a leader, and
what it still does when it must stop."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, Members, RaftConfig, Rule, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.effects import NO_WRITES, Effects
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import Change, MemberChange
from ledgermq.raft.messages import (
    Append,
    AppendReply,
    Extent,
    LeftBehind,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ledgermq.raft.transfer import Cause
from tests.raft.test_raft_members import change, commit, heard, leading
from tests.raft.test_raft_paper import LATER, VOTERS, append, core, follow, leader, said

BEAT_NS = Timing().heartbeat_ns
ALL_IN_SYNC = dict.fromkeys(VOTERS, "")


def messages(sender: str, to: str, term: int) -> list[Message]:
    """One of every kind, but for requests for votes."""
    return [
        VoteReply(sender=sender, to=to, term=term, pre=False, granted=True),
        Append(sender=sender, to=to, term=term, round=1, prev_index=1, prev_term=1, commit_index=0),
        AppendReply(
            sender=sender,
            to=to,
            term=term,
            round=1,
            boot_id=1,
            rejected=False,
            received=1,
            durable=1,
        ),
        TimeoutNow(
            sender=sender, to=to, term=term, last_index=1, last_term=1, cause=Cause.OPERATOR
        ),
        LeftBehind(sender=sender, to=to, term=term, begin_index=5),
    ]


def test_messages_are_heard_of_members_leaders_and_longer_candidates() -> None:
    """Those of members, voters or not. Of strangers those of a leader, unless another one leads
    their term, and of a candidate with a longer log, because an entry that is not here yet may have
    made them members. Nobody hears itself, or what is meant for others."""
    config = RaftConfig("a", VOTERS, 1, learners=frozenset("l"))
    for known in (None, "x", "b"):
        raft = Core(config, LogView([(0, 0), (1, 1)], 1), HardState(2), Random(1), 0)
        if known is not None:
            raft.step(
                Append(
                    sender=known, to="a", term=2, round=1, prev_index=1, prev_term=1, commit_index=0
                ),
                0,
            )
            assert raft.leader == known
        for sender, to, term in product("abclx", "ab", (1, 2, 3)):
            member = sender in "bcl"
            for message in messages(sender, to, term):
                leads = isinstance(message, Append | TimeoutNow | LeftBehind) and (
                    term > 2 or (term == 2 and known in (None, sender))
                )
                heard_of = to == "a" and sender != "a" and (member or leads)
                assert raft.concerns(message) is heard_of, (known, message)
            for last_term, last_index in product((0, 1, 2), (0, 1, 2)):
                asks = VoteRequest(
                    sender=sender,
                    to=to,
                    term=term,
                    pre=False,
                    last_index=last_index,
                    last_term=last_term,
                )
                heard_of = (
                    to == "a" and sender != "a" and (member or (last_term, last_index) > (1, 1))
                )
                assert raft.concerns(asks) is heard_of, (known, asks)


def test_leader_hears_a_removed_member() -> None:
    """They have to learn of it; a stranger that never was a member is not heard."""
    raft = leading()
    change(raft, Change.REMOVE, "c")
    assert "c" not in raft.members.nodes
    assert [
        raft.concerns(VoteReply(sender=node, to="a", term=2, pre=False, granted=True))
        for node in "bcx"
    ] == [
        True,
        True,
        False,
    ]


def test_messages_of_strangers_are_counted_and_unanswered() -> None:
    raft = core([1])
    for message in messages("x", "b", 2):
        raft.step(message, 0)
    assert (
        said(raft, 0) == [] and raft.refused == {"stranger": 5} and raft.calm_until(0) is not None
    )


@pytest.mark.parametrize(
    ("extent", "members", "refused"),
    [
        (Extent(2, 2, 2, 10), None, 0),
        (Extent(2, 2, 2, 10, membership=True), Members(VOTERS), 0),
        (Extent(2, 2, 2, 10, membership=True), None, 1),
        (Extent(2, 2, 2, 10), Members(VOTERS), 1),
        (Extent(2, 3, 2, 10, membership=True), Members(VOTERS), 1),
        (Extent(2, 3, 2, 10), None, 0),
    ],
)
def test_a_membership_entry_comes_alone_and_with_its_members(
    extent: Extent, members: Members | None, refused: int
) -> None:
    """Anything else is refused before it changes anything."""
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
            extent=extent,
        ),
        0,
        members=members,
    )
    assert raft.refused == ({"membership": 1} if refused else {})
    assert (raft.take_writes().append is None) is bool(refused)
    assert (raft.leader, raft.log.end_index) == ((None, 1) if refused else ("b", extent.last_index))


@pytest.mark.parametrize(
    ("term", "answers"),
    [
        (
            1,
            [
                AppendReply(
                    sender="a",
                    to="b",
                    term=2,
                    round=0,
                    boot_id=1,
                    rejected=True,
                    received=-1,
                    durable=-1,
                )
            ],
        ),
        (2, []),
        (3, []),
    ],
)
def test_a_deposed_leader_learns_of_the_newer_term(term: int, answers: list[AppendReply]) -> None:
    """By an answer to round 0, which is no answer to anything it may have sent as leader of that
    term."""
    raft = core([1], term=2)
    raft.step(
        Append(sender="b", to="a", term=term, round=7, prev_index=1, prev_term=1, commit_index=0), 0
    )
    found = [
        message
        for message in said(raft, 0)
        if isinstance(message, AppendReply) and message.rejected
    ]
    assert found == answers


def ha_core(vote: str | None) -> Core:
    config = RaftConfig("a", VOTERS, 1, rule=Rule.IN_SYNC)
    return Core(config, LogView([(0, 0), (1, 1)], 1), HardState(2, vote), Random(1), 0)


@pytest.mark.parametrize("vote", [None, "b", "c", "a"])
def test_an_epoch_that_was_promised_to_another_is_not_followed(vote: str | None) -> None:
    """The votes of a term under another rule may have elected another: the master has to take a new
    epoch."""
    raft = ha_core(vote)
    raft.step(
        Append(sender="b", to="a", term=2, round=7, prev_index=1, prev_term=1, commit_index=0), 0
    )
    promised = vote in ("c", "a")
    assert (raft.term, raft.leader) == ((3, None) if promised else (2, "b"))
    (answer,) = [message for message in said(raft, 0) if isinstance(message, AppendReply)]
    assert (answer.rejected, answer.term, answer.round) == (
        (True, 3, 0) if promised else (False, 2, 7)
    )
    assert raft.voted_for == (None if promised else "b")


def test_a_vote_for_another_does_not_matter_to_a_majority() -> None:
    raft = core([1], term=2, vote="c")
    follow(raft, append(1, 1))
    assert (raft.term, raft.leader, raft.voted_for) == (2, "b", "c")


def test_fenced_core_ignores_messages_appointments_and_reads() -> None:
    """Neither for messages nor for the controller; it answers no read and sends nothing."""
    raft = leading()
    raft.read(7, LATER)
    raft.take(LATER)
    raft.outbox.stop("first")
    raft.outbox.stop("second")
    raft.stirred = False
    assert raft.calm_until(LATER) is None
    heard(raft, "b", 1)
    raft.step(
        Append(sender="b", to="a", term=9, round=1, prev_index=1, prev_term=2, commit_index=1),
        LATER,
    )
    raft.appointed(
        Appointment(generation=0, version=1, epoch=7, master="a", in_sync=ALL_IN_SYNC), LATER
    )
    effects = raft.take(LATER + 10 * BEAT_NS)
    assert (effects.fence, effects.messages, effects.pushes, effects.requests, effects.reads) == (
        "first",
        (),
        (),
        (),
        (),
    )
    assert (raft.term, raft.role, raft.appointment) == (2, Role.LEADER, None)


def test_leader_only_facts_are_empty_in_other_roles() -> None:
    """In other roles there is no peer, nothing is accepted, and the last contact is that of the
    leader that is followed."""
    raft = leading()
    assert (
        set(raft.peers) == {"b", "c"}
        and len(raft.peer_progress()) == 2
        and raft.accepting
        and raft.last_contact is None
    )
    assert raft.replicated_index == 1 and raft.missing_isr(LATER) == 0
    follow(
        raft,
        Append(sender="b", to="a", term=3, round=1, prev_index=1, prev_term=2, commit_index=1),
        LATER,
    )
    assert raft.peers == {} and raft.peer_progress() == () and not raft.accepting
    assert raft.last_contact is not None and raft.last_contact.leader == "b"
    assert (
        raft.missing_isr(LATER),
        raft.keeps_up("b", LATER),
        raft.best_successor(LATER),
        raft.due_change(LATER),
    ) == (
        0,
        False,
        None,
        None,
    )
    assert raft.wake_at_ns(LATER) > LATER


def test_leader_in_sync_rule_counts_missing_replicas() -> None:
    raft = ha_core(None)
    assert raft.missing_isr(LATER) == 0
    raft.appointed(
        Appointment(generation=0, version=1, epoch=3, master="a", in_sync=ALL_IN_SYNC), LATER
    )
    assert (raft.role, raft.term, raft.agreed) == (Role.LEADER, 3, raft.appointment)
    assert raft.missing_isr(LATER) == 0
    raft.appointed(
        Appointment(generation=0, version=1, epoch=3, master="a", in_sync={"a": ""}), LATER
    )
    assert raft.agreed is not None and raft.agreed.in_sync == ALL_IN_SYNC, (
        "the same version again is nothing new"
    )


def test_held_index_allows_early_acknowledgement_on_a_leader_only() -> None:
    """Also if a quorum holds more than is committed, and when more is committed than it holds of
    this term."""
    raft = leading()
    raft.appended(Extent(2, 3, 2, 100), early=True)
    raft.take(LATER)
    raft.peers["b"].pushed(Extent(2, 3, 2, 100), 9, LATER)
    heard(raft, "b", 3, durable=1)
    assert (raft.commit_index, raft.replicated_index) == (1, 3)
    raft.log_state.held_index = 0
    assert raft.replicated_index == 1
    raft.log_state.held_index = 3
    follow(
        raft,
        Append(sender="b", to="a", term=3, round=1, prev_index=1, prev_term=2, commit_index=1),
        LATER,
    )
    assert raft.replicated_index == raft.commit_index


@pytest.mark.parametrize("asked", [False, True])
def test_a_flush_is_asked_for_once(asked: bool) -> None:
    """What is urgent already stirs nobody."""
    raft = leading()
    raft.take(LATER)
    if asked:
        raft.appended(Extent(2, 2, 2, 100), urgent=False)
    raft.take(LATER)
    raft.peers["b"].pushed(Extent(2, 2, 2, 100), 9, LATER) if asked else None
    raft.stirred = False
    raft.request_flush()
    assert raft.stirred is asked and raft.urgent_index == (2 if asked else 1)
    raft.stirred = False
    raft.request_flush()
    assert not raft.stirred


def test_sync_of_a_leader_makes_its_entries_urgent() -> None:
    raft = leading()
    raft.appended(Extent(2, 2, 2, 100), urgent=False)
    assert raft.urgent_index == 1
    assert raft.sync_begins() == (2, 2) and raft.urgent_index == 2
    slave = core([1])
    follow(slave, append(1, 1, 2))
    slave.log_state.urgent_index = 1
    assert slave.sync_begins() == (2, 3) and slave.urgent_index == 1


def test_a_follower_that_leaves_says_so_instead_of_taking_over() -> None:
    raft = core([1])
    follow(raft, append(1, 1))
    raft.leave()
    raft.step(
        TimeoutNow(sender="b", to="a", term=2, last_index=1, last_term=1, cause=Cause.OPERATOR), 0
    )
    (answer,) = said(raft, 0)
    assert isinstance(answer, AppendReply) and answer.leaving and raft.role is Role.FOLLOWER


def test_a_canvass_that_is_over_is_asked_for_once() -> None:
    """Until the next timeout the candidate waits for the controller, whatever else happens."""
    raft = ha_core(None)
    raft.tick(LATER)
    assert raft.take(LATER).requests == ()
    for node in "bc":
        raft.step(VoteReply(sender=node, to="a", term=3, pre=True, granted=True), LATER)
    assert len(raft.take(LATER).requests) == 1
    for now_ns in range(LATER, raft.wake_at_ns(LATER), BEAT_NS // 4):
        raft.tick(now_ns)
        assert raft.take(now_ns).requests == ()


def test_requests_of_an_earlier_time_as_master_are_void_for_a_new_leader() -> None:
    """It may lead by votes under another rule now; what it once asked the controller for must not
    count when the rule comes back."""
    raft = core([1])
    raft.isr.join({"c"})
    raft.tick(LATER)
    for pre in (True, False):
        raft.step(VoteReply(sender="b", to="a", term=2, pre=pre, granted=True), LATER)
    assert raft.role is Role.LEADER and raft.isr.joining == set()


def test_a_leader_without_a_quorum_postpones_its_campaign_where_others_come_first() -> None:
    """A master waits one longest election timeout more than its own; a leader by votes does not
    wait longer."""
    for raft, more in ((leading(), 0), (ha_core(None), Timing().election_max_ns)):
        raft.appointed(
            Appointment(generation=0, version=1, epoch=3, master="a", in_sync=ALL_IN_SYNC), LATER
        )
        assert raft.role is Role.LEADER
        now_ns = LATER + Timing().alone_ns
        raft.tick(now_ns)
        assert raft.role is Role.FOLLOWER
        change_ = raft.take_changes()[-1]
        assert (change_.reason.cause, change_.reason.silent_ms) == (
            Cause.NO_MAJORITY,
            Timing().alone_ns // MS,
        )
        assert (
            Timing().election_min_ns
            <= raft.timer.due_ns - more - now_ns
            <= Timing().election_max_ns
        )


def test_a_removed_leader_hands_over_once_and_then_steps_down() -> None:
    """As soon as its removal is committed, and no earlier."""
    raft = leading()
    raft.appended(Extent(2, 2, 2, 100, membership=True), members=Members(("b", "c")))
    raft.take(LATER)
    assert raft.handover is None and raft.role is Role.LEADER
    commit(raft, "b", "c")
    raft.take(LATER)
    assert (
        raft.handover is not None
        and raft.handover.cause is Cause.REMOVED
        and raft.handovers.retiring
    )
    raft.handovers.give_up("it did not take over")
    raft.stirred = True
    raft.take(LATER)
    assert raft.role is not Role.LEADER and raft.take_changes()[-1].reason.cause is Cause.REMOVED


def test_changes_are_proposed_to_leaders_and_due_to_them() -> None:
    raft = leading()
    assert raft.propose_members(MemberChange(Change.ADD, "d"), LATER) == Members(
        VOTERS, frozenset("d")
    )
    assert raft.due_change(LATER) is None
    change(raft, Change.RETURN, "c", "c2")
    commit(raft, "b", "c")
    heard(raft, "c", raft.log.end_index)
    found = raft.due_change(LATER)
    assert found is not None and (found.kind, found.node, found.reason) == (
        Change.PROMOTE,
        "c",
        "c has caught up with a new directory",
    )


@pytest.mark.parametrize("voters", [("a",), VOTERS])
def test_new_leader_commits_with_its_first_own_entry(voters: tuple[str, ...]) -> None:
    """§5.4.2: alone, too; what it finds is committed with its first own entry."""
    raft = core([1, 1], voters=voters, commit=0)
    raft.tick(LATER)
    for pre in (True, False):
        for node in voters[1:]:
            raft.step(VoteReply(sender=node, to="a", term=2, pre=pre, granted=True), LATER)
    assert raft.role is Role.LEADER and raft.commit_index == 0
    raft.appended(Extent(3, 3, 2, 10))
    raft.synced(*raft.sync_begins())
    assert raft.commit_index == (3 if len(voters) == 1 else 0)
    assert leader().commit_index == 0


# What happens with every input


def test_new_core_keeps_promises_and_rejects_a_contradictory_state() -> None:
    """The promise of an earlier life, from the first term on, and a state that contradicts
    nothing."""
    for term in (0, 1, 2):
        raft = Core(
            RaftConfig("a", VOTERS, 1), LogView([(0, 0)], 0), HardState(term), Random(1), LATER
        )
        assert raft.timer.promised_until_ns == LATER + (Timing().election_min_ns if term else 0)
        assert (
            raft.slack_ms,
            raft.stirred,
            raft.admitted,
            raft.early_index,
            raft.verified_index,
        ) == (0, True, True, -1, -1)
    with pytest.raises(AssertionError):
        Core(RaftConfig("a", VOTERS, 1), LogView([(0, 3)], 0), HardState(2), Random(1), LATER)


def test_invariants_of_every_part_are_checked() -> None:
    raft = leading()
    raft.log_state.durable_index = 99
    with pytest.raises(AssertionError):
        raft.check_invariants()
    raft = leading()
    raft.election.role = Role.FOLLOWER
    with pytest.raises(AssertionError):
        raft.check_invariants()


def test_every_input_that_may_have_to_be_told_stirs() -> None:
    """The next `take` then looks at everything."""
    raft = leading()
    raft.appended(Extent(2, 9, 2, 100))
    commit(raft, "b", "c")
    assert raft.commit_index == 9
    for act in (lambda: raft.trimmed(5), raft.admit):
        raft.stirred = False
        act()
        assert raft.stirred is True
    assert raft.timer.excused
    raft.transfer("b", Cause.OPERATOR, LATER, 10_000 * MS)
    raft.stirred = False
    raft.tick(LATER + 1)
    assert raft.stirred is True
    for report in (Core.append_written, Core.append_refused):
        slave = core([1])
        slave.step(append(1, 1, 1), 0)
        slave.take_writes()
        slave.stirred = False
        report(slave)
        assert slave.stirred is True
    appointed = ha_core(None)
    appointed.stirred = False
    appointed.appointed(
        Appointment(generation=0, version=1, epoch=3, master="b", in_sync=ALL_IN_SYNC), LATER
    )
    assert appointed.stirred is True


def test_a_trim_forgets_the_members_that_no_entry_asks_for() -> None:
    raft = leading()
    for node in "de":
        change(raft, Change.ADD, node)
        commit(raft, "b", "c")
    assert len(raft.configurations.runs) == 3
    raft.appended(Extent(4, 5, 2, 100))
    commit(raft, "b", "c")
    raft.trimmed(5)
    assert len(raft.configurations.runs) == 1 and raft.members.nodes == (*VOTERS, "d", "e")


def test_calm_core_has_empty_effects() -> None:
    raft = leading()
    raft.take(LATER)
    raft.take(LATER)
    assert raft.calm_until(LATER) is not None and raft.take(LATER) == Effects(
        None, NO_WRITES, (), (), 1, role_changed=False
    )
    assert raft.take(LATER).role_changed is False, "it was told once"


def test_silence_of_peers_is_counted_up_to_the_last_input() -> None:
    """Silences that an operator sees are counted up to the last input."""
    for number, act in enumerate((Core.read, Core.propose_members, Core.due_change, Core.take)):
        raft, now_ns = leading(), LATER + 70 * MS
        if act is Core.read:
            raft.read(7, now_ns)
        elif act is Core.propose_members:
            raft.propose_members(MemberChange(Change.ADD, "d"), now_ns)
        else:
            raft.stirred = True
            act(raft, now_ns)  # type: ignore[call-arg,arg-type]
        assert [found.silent_ms for found in raft.peer_progress()] == [70, 70], number


def test_a_handover_wakes_its_leader_in_time() -> None:
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, 3)
    assert raft.wake_at_ns(LATER) == LATER + 3


def test_new_leader_makes_its_log_urgent_and_forgets_held_entries() -> None:
    raft = core([1, 1])
    raft.log_state.held_index = raft.log_state.early_index = 1
    raft.tick(LATER)
    for pre in (True, False):
        raft.step(VoteReply(sender="b", to="a", term=2, pre=pre, granted=True), LATER)
    assert (raft.urgent_index, raft.early_index, raft.log_state.held_index) == (2, -1, -1)


def test_refused_write_of_members_restores_the_former_role() -> None:
    """A learner by an entry that could not be written is a voter again."""
    raft = core([1])
    members = Members(("b", "c"), frozenset("a"))
    raft.step(
        Append(
            sender="b",
            to="a",
            term=2,
            round=1,
            prev_index=1,
            prev_term=1,
            commit_index=1,
            extent=Extent(2, 2, 2, 10, membership=True),
        ),
        0,
        members=members,
    )
    raft.take_writes()
    raft.append_refused()
    assert (raft.members, raft.role) == (Members(VOTERS), Role.FOLLOWER)


def test_late_answers_of_a_former_life_are_counted() -> None:
    raft = leading()
    for boot_id in (2, 1):
        raft.step(
            AppendReply(
                sender="b",
                to="a",
                term=2,
                round=raft.election.leading.round,
                boot_id=boot_id,
                rejected=False,
                received=1,
                durable=1,
            ),
            LATER,
        )  # type: ignore[union-attr]
    assert raft.refused == {"former-life": 1} and raft.peers["b"].boot_id == 2


@pytest.mark.parametrize(("term", "stirs"), [(1, False), (2, True)])
def test_answers_of_an_earlier_term_are_ignored(term: int, stirs: bool) -> None:
    raft = leading("b")
    raft.appended(Extent(2, 2, 2, 100))
    raft.take(LATER)
    raft.stirred = False
    raft.step(
        AppendReply(
            sender="c", to="a", term=term, round=1, boot_id=1, rejected=False, received=1, durable=1
        ),
        LATER,
    )
    assert (raft.peers["c"].received, raft.stirred) == ((1, True) if stirs else (-1, False))


def test_a_higher_term_in_an_answer_has_to_be_told() -> None:
    raft = leading()
    raft.take(LATER)
    raft.stirred = False
    raft.step(
        AppendReply(
            sender="c", to="a", term=9, round=1, boot_id=1, rejected=True, received=-1, durable=-1
        ),
        LATER,
    )
    assert (raft.term, raft.role, raft.stirred) == (9, Role.FOLLOWER, True)


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_candidate_waits_for_the_master_of_a_newer_epoch(epoch: int) -> None:
    """And an appointment that it learned before is taken with the next tick."""
    raft = ha_core(None)
    raft.tick(LATER)
    assert raft.role is Role.CANDIDATE
    raft.appointed(
        Appointment(generation=0, version=1, epoch=epoch, master="b", in_sync=ALL_IN_SYNC),
        LATER + 5 * MS,
    )
    assert raft.role is (Role.FOLLOWER if epoch > 2 else Role.CANDIDATE)
    late = ha_core(None)
    late.isr.learn(
        Appointment(generation=0, version=1, epoch=3, master="a", in_sync=ALL_IN_SYNC), LATER
    )
    late.tick(1)
    assert (late.role, late.term) == (Role.LEADER, 3)


def test_a_master_reviews_its_set_when_that_is_due_and_no_other_leader_does() -> None:
    raft = ha_core(None)
    raft.appointed(
        Appointment(generation=0, version=1, epoch=3, master="a", in_sync={"a": ""}), LATER
    )
    assert raft.election.leading is not None
    review = raft.election.leading.review
    assert review.due_ns == LATER
    raft.take(LATER)
    assert review.due_ns == LATER + BEAT_NS
    raft.stirred = True
    raft.take(LATER + 1)
    assert review.due_ns == LATER + BEAT_NS


def test_smaller_in_sync_set_commits_entries_of_the_rest_at_once() -> None:
    """At once, and it counts as held, too."""
    raft = ha_core(None)
    raft.appointed(
        Appointment(generation=0, version=1, epoch=3, master="a", in_sync=ALL_IN_SYNC), LATER
    )
    raft.appended(Extent(2, 2, 3, 100), early=True)
    raft.synced(*raft.sync_begins())
    assert (raft.commit_index, raft.replicated_index) == (-1, -1)
    raft.appointed(
        Appointment(generation=0, version=2, epoch=3, master="a", in_sync={"a": ""}), LATER
    )
    assert (raft.commit_index, raft.log_state.held_index) == (2, 2)


def test_cut_of_members_restores_the_role_even_if_the_write_fails() -> None:
    """The entry that made it a voter was cut for a range that did not fit on the disk."""
    config = RaftConfig("a", ("b", "c"), 1, learners=frozenset("a"))
    raft = Core(config, LogView([(0, 0), (1, 1)], 1), HardState(1), Random(1), 0, commit_index=1)
    raft.step(
        Append(
            sender="b",
            to="a",
            term=2,
            round=1,
            prev_index=1,
            prev_term=1,
            commit_index=1,
            extent=Extent(2, 2, 2, 10, membership=True),
        ),
        0,
        members=Members(VOTERS),
    )
    raft.take_writes()
    raft.append_written()
    assert raft.role is Role.FOLLOWER
    raft.step(
        Append(
            sender="c",
            to="a",
            term=3,
            round=1,
            prev_index=1,
            prev_term=1,
            commit_index=1,
            extent=Extent(2, 2, 3, 10),
        ),
        0,
    )
    assert raft.take_writes().truncate_from == 2
    raft.append_refused()
    assert (raft.role, raft.members.voters) == (Role.LEARNER, ("b", "c"))


def test_isolated_master_reviews_its_set_when_the_controller_answers() -> None:
    raft = ha_core(None)
    raft.appointed(
        Appointment(generation=0, version=1, epoch=3, master="a", in_sync=ALL_IN_SYNC), LATER
    )
    raft.take(LATER)
    assert raft.election.leading is not None
    now_ns = LATER + 9 * BEAT_NS
    raft.take(now_ns)
    assert raft.election.leading.review.due_ns == now_ns + BEAT_NS
    raft.appointed(
        Appointment(generation=0, version=2, epoch=3, master="a", in_sync=ALL_IN_SYNC), now_ns + 1
    )
    assert raft.election.leading.review.due_ns == now_ns + 1


def test_a_removed_leader_that_gave_its_handover_up_is_looked_at_again() -> None:
    """Otherwise nothing would make it step down; while the handover is under way it needs no second
    look."""
    raft = leading()
    raft.appended(Extent(2, 2, 2, 100, membership=True), members=Members(("b", "c")))
    commit(raft, "b", "c")
    raft.take(LATER)
    assert raft.handover is not None and not raft.stirred
    raft.peers[raft.handover.to].leaving = True
    raft.take(LATER)
    assert raft.handover is None and raft.stirred
    raft.take(LATER)
    assert raft.role is not Role.LEADER
