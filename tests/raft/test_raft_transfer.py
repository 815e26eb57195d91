"""Leadership transfer (Raft dissertation §3.10): its conversation step by step, what can go wrong
in it, and random clusters full of it."""

from __future__ import annotations

from random import Random

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft.config import MS
from ledgermq.raft.messages import Append, AppendReply, Extent, TimeoutNow, VoteReply, VoteRequest
from ledgermq.raft.transfer import Cause, LeaderChange, Reason
from tests.raft.memory_cluster import Cluster, Member
from tests.raft.scenario import Scenario
from tests.raft.test_raft_paper import LATER, append, core, follow, leader, said

PATIENCE = 2000 * MS


def heard(
    raft,
    node: str,
    received: int,
    durable: int,
    *,
    boot: int = 1,
    leaving: bool = False,
    now_ns: int = LATER,
) -> None:  # type: ignore[no-untyped-def]
    raft.step(
        AppendReply(
            sender=node,
            to="a",
            term=2,
            round=1,
            boot_id=boot,
            rejected=False,
            received=received,
            durable=durable,
            leaving=leaving,
        ),
        now_ns,
    )


def leading(entries: int = 3):  # type: ignore[no-untyped-def]
    """Leader `a` of term 2 with entries of its own that b and c have durable."""
    raft = leader()
    raft.appended(Extent(1, entries, 2, 100 * entries))
    raft.synced(*raft.sync_begins())
    for node in ("b", "c"):
        heard(raft, node, entries, entries)
    raft.take(LATER)
    assert raft.commit_index == entries
    return raft


def told(raft, now_ns: int = LATER) -> list[TimeoutNow]:  # type: ignore[no-untyped-def]
    return [message for message in said(raft, now_ns) if isinstance(message, TimeoutNow)]


def test_target_with_the_whole_log_gets_timeout_now_at_once() -> None:
    """§3.10: the leader brings the target up to date, stops accepting requests and sends
    TimeoutNow; its votes then depose it."""
    raft = leading()
    assert raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE) is None
    assert raft.accepting
    assert told(raft) == [
        TimeoutNow(sender="a", to="b", term=2, last_index=3, last_term=2, cause=Cause.OPERATOR)
    ]
    assert not raft.accepting
    raft.step(
        VoteRequest(
            sender="b", to="a", term=3, pre=False, last_index=3, last_term=2, transfer=True
        ),
        LATER,
    )
    assert said(raft) == [VoteReply(sender="a", to="b", term=3, pre=False, granted=True)]
    assert (raft.role, raft.handover, raft.voted_for) == (Role.FOLLOWER, None, "b")
    assert raft.take_changes()[-1] == LeaderChange(2, "a", None, Reason(Cause.OPERATOR, "b"))


def test_proposals_go_on_while_the_target_is_behind_and_stop_when_it_is_near() -> None:
    """Proposals stop when all entries are in flight; the target is notified when its durable index
    reaches the end."""
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE)
    raft.appended(Extent(4, 5, 2, 200))
    raft.synced(*raft.sync_begins())
    pushes = raft.take(LATER).pushes
    assert raft.accepting and {push.to for push in pushes} == {"b", "c"}
    raft.pushed("b", Extent(4, 5, 2, 200))
    assert not told(raft) and not raft.accepting
    raft.pushed("c", Extent(4, 5, 2, 200))
    heard(raft, "c", 5, 5)
    heard(raft, "b", 5, 3)
    assert raft.commit_index == 5 and not told(raft)
    heard(raft, "b", 5, 5)
    assert [message.last_index for message in told(raft)] == [5]


def test_timeout_now_waits_for_the_commit_of_the_leader() -> None:
    """A caller of this leader gets its answer from it: not one ends with an unknown outcome because
    of a transfer."""
    raft = leading()
    raft.appended(Extent(4, 4, 2, 100))
    raft.take(LATER)
    for node in ("b", "c"):
        raft.pushed(node, Extent(4, 4, 2, 100))
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE)
    heard(raft, "b", 4, 4)
    assert raft.commit_index == 3 and not told(raft) and not raft.accepting
    raft.synced(*raft.sync_begins())
    assert raft.commit_index == 4 and len(told(raft)) == 1


def test_a_target_that_dies_costs_one_election_timeout() -> None:
    """The leader resumes, says why, and the word that is still on its way does not find its entry
    any more."""
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE)
    assert told(raft)
    end = LATER + raft.config.timing.election_max_ns
    heard(raft, "c", 3, 3, now_ns=end - 1)
    raft.tick(end - 1)
    assert not raft.accepting and raft.wake_at_ns(end - 1) <= end
    raft.tick(end)
    assert raft.accepting and raft.role is Role.LEADER
    assert raft.handover_failure == "b was told to take over and did not do so within 800 ms"


def test_a_word_that_was_lost_is_said_again() -> None:
    """TimeoutNow is repeated once a heartbeat period while the closed part lasts."""
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE)
    assert told(raft) and not told(raft, LATER + 1)
    assert len(told(raft, LATER + raft.config.timing.heartbeat_ns)) == 1


def test_an_impatient_caller_ends_the_open_part() -> None:
    """A target that never comes near leaves the leader undisturbed; asking again prolongs the open
    part only."""
    raft = leading()
    raft.appended(Extent(4, 9, 2, 600))
    raft.transfer("b", Cause.OPERATOR, LATER, 100 * MS)
    raft.transfer("b", Cause.OPERATOR, LATER, 300 * MS)
    raft.take(LATER)
    raft.tick(LATER + 299 * MS)
    assert raft.handover is not None and raft.accepting
    raft.tick(LATER + 300 * MS)
    assert raft.handover is None and raft.accepting
    assert (
        raft.handover_failure
        == "b did not come near the end of the log in time: it holds entry 3 of 9"
    )


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("z", "z is no voter of this group; its voters are a, b, c"),
        ("c", "c has not been heard for 400 ms"),
        ("d", "d is no voter"),
    ],
)
def test_refusals_by_name(to: str, words: str) -> None:
    """Strangers, learners and the silent are refused before anything stops."""
    raft = leading()
    later = LATER + raft.config.timing.election_min_ns
    heard(raft, "b", 3, 3, now_ns=later)
    refusal = raft.transfer(to, Cause.OPERATOR, later, PATIENCE)
    assert refusal is not None and refusal.startswith(words)
    assert raft.handover is None and raft.best_successor(later) == "b"


def test_a_target_that_never_answered_is_refused() -> None:
    """A replica that is not admitted says nothing, as one that is down."""
    raft = leader()
    refusal = raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE)
    assert refusal is not None and "has not answered this leader yet" in refusal
    assert raft.best_successor(LATER) is None


def test_a_second_transfer_waits_for_the_first() -> None:
    """During a transfer, a request for another target is refused and names the current one; a
    request for the same target joins it."""
    raft = leading()
    assert raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE) is None
    assert (
        raft.transfer("c", Cause.OPERATOR, LATER, PATIENCE)
        == "leadership is being handed over to b already"
    )
    assert raft.transfer("b", Cause.PLANNED_STOP, LATER, PATIENCE) is None


def test_a_target_that_is_about_to_stop_says_so() -> None:
    """It takes nothing over; its leader ends the handover with its answer instead of waiting for
    the time to be over."""
    follower = core()
    follower.leave()
    follow(follower, append(0, 0, 2))
    follower.synced(*follower.sync_begins())
    follower.take(0)
    follower.step(
        TimeoutNow(sender="b", to="a", term=2, last_index=2, last_term=2, cause=Cause.OPERATOR), 0
    )
    (reply,) = said(follower, 0)
    assert isinstance(reply, AppendReply) and reply.leaving and follower.role is Role.FOLLOWER
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE)
    assert told(raft)
    heard(raft, "b", 3, 3, leaving=True)
    assert not told(raft, LATER + 200 * MS)
    assert raft.accepting and raft.handover_failure == "b is about to stop"
    assert raft.best_successor(LATER) == "c"


def test_only_the_very_word_of_the_leader_starts_a_campaign() -> None:
    """Late, repeated, foreign and mistaken copies of TimeoutNow change nothing; the right one skips
    the pre-vote."""
    follower = core()
    follow(follower, append(0, 0, 2))
    follower.synced(*follower.sync_begins())
    follower.take(0)
    for wrong in (
        TimeoutNow(sender="c", to="a", term=2, last_index=2, last_term=2, cause=Cause.OPERATOR),
        TimeoutNow(sender="b", to="a", term=1, last_index=2, last_term=1, cause=Cause.OPERATOR),
        TimeoutNow(sender="b", to="a", term=3, last_index=2, last_term=2, cause=Cause.OPERATOR),
        TimeoutNow(sender="b", to="a", term=2, last_index=1, last_term=2, cause=Cause.OPERATOR),
        TimeoutNow(sender="b", to="a", term=2, last_index=3, last_term=2, cause=Cause.OPERATOR),
    ):
        follower.step(wrong, 0)
        assert (follower.role, follower.term) == (Role.FOLLOWER, 2), wrong
    right = TimeoutNow(sender="b", to="a", term=2, last_index=2, last_term=2, cause=Cause.PREFERRED)
    follower.step(right, 0)
    assert follower.role is Role.CANDIDATE and follower.term == 3
    requests = [message for message in said(follower, 0) if isinstance(message, VoteRequest)]
    assert [(r.to, r.term, r.pre, r.transfer, r.last_index) for r in requests] == [
        ("b", 3, False, True, 2),
        ("c", 3, False, True, 2),
    ]
    follower.step(right, 0)
    assert follower.term == 3
    follower.step(VoteReply(sender="b", to="a", term=3, pre=False, granted=True), 0)
    assert follower.role is Role.LEADER
    follower.step(right, 0)
    assert (follower.role, follower.term) == (Role.LEADER, 3)
    assert follower.take_changes()[-1] == LeaderChange(3, "b", "a", Reason(Cause.PREFERRED, "b"))


def test_a_voter_that_hears_its_leader_votes_for_its_successor_only_when_told_so() -> None:
    """Stickiness (dissertation §6.4.1) gives way to the flag of a transfer, and to nothing else;
    the log is still compared."""
    for transfer, last, granted in ((False, 9, False), (True, 9, True), (True, 1, False)):
        voter = core()
        follow(voter, append(0, 0, 2))
        voter.step(
            VoteRequest(
                sender="c",
                to="a",
                term=3,
                pre=False,
                last_index=last,
                last_term=2,
                transfer=transfer,
            ),
            0,
        )
        answer = [message for message in said(voter, 0) if isinstance(message, VoteReply)]
        assert [reply.granted for reply in answer] == [granted]


def test_stale_appends_of_the_old_leader_are_rejected_by_the_new_one() -> None:
    """What the old leader pushed before it stepped down arrives late: the new leader answers with
    its term and keeps its log."""
    follower = core()
    late = append(0, 0, 2)
    follow(follower, late)
    follower.synced(*follower.sync_begins())
    follower.take(0)
    follower.step(
        TimeoutNow(sender="b", to="a", term=2, last_index=2, last_term=2, cause=Cause.OPERATOR), 0
    )
    follower.step(VoteReply(sender="c", to="a", term=3, pre=False, granted=True), 0)
    follower.take(0)
    effects = follow(
        follower,
        Append(
            sender="b",
            to="a",
            term=2,
            round=9,
            prev_index=2,
            prev_term=2,
            commit_index=2,
            extent=Extent(3, 4, 2, 200),
        ),
    )
    (reply,) = [message for message in effects.messages if isinstance(message, AppendReply)]
    assert (reply.rejected, reply.term, follower.role, follower.log.end_index) == (
        True,
        3,
        Role.LEADER,
        2,
    )


def test_reasons_name_the_silence_and_the_lost_majority() -> None:
    """The winner of an election reports how long which leader was silent; a leader that steps down
    reports how long no majority answered."""
    raft = core()
    follow(raft, append(0, 0, 1), now_ns=LATER)
    due_ns = raft.wake_at_ns(LATER)
    raft.tick(due_ns)
    for pre in (True, False):
        raft.step(VoteReply(sender="c", to="a", term=3, pre=pre, granted=True), due_ns)
    silence = Reason(Cause.ELECTION_TIMEOUT, "b", (due_ns - LATER) // MS)
    assert [change.reason for change in raft.take_changes()] == [
        Reason(Cause.FOLLOWED, "b"),
        silence,
    ]
    raft.tick(due_ns + 900 * MS)
    assert raft.take_changes() == (LeaderChange(3, "a", None, Reason(Cause.NO_MAJORITY, "", 900)),)
    assert leader().take_changes() == (LeaderChange(2, None, "a", Reason(Cause.STARTED)),)
    deposed = leader()
    deposed.step(
        AppendReply(
            sender="c", to="a", term=9, round=1, boot_id=1, rejected=True, received=-1, durable=-1
        ),
        LATER,
    )
    assert deposed.take_changes()[-1] == LeaderChange(2, "a", None, Reason(Cause.HIGHER_TERM, "c"))


def test_a_lost_campaign_leaves_a_cluster_that_elects_again() -> None:
    """The target is notified and partitioned before its campaign reaches others: the leader resumes
    and commits; the late campaign ends in an election."""
    scenario = Scenario()
    scenario.run(
        [
            "cluster 3",
            "timeout n1",
            "deliver",
            "propose n1 1",
            "sync",
            "deliver",
            "sync",
            "deliver",
            "transfer n1 n2",
        ]
    )
    scenario.run(
        ["cut n2 n1", "cut n2 n3", "wait 500", "tick n1", "deliver", "wait 301", "tick n1"]
    )
    one = scenario.members["n1"].core
    assert (
        one.role is Role.LEADER
        and one.accepting
        and "was told to take over" in one.handover_failure
    )
    scenario.run(["propose n1 1", "deliver", "sync", "deliver"])
    assert one.commit_index == 2


class HandsOver(Cluster):
    """Transfers to members in any state, mixed with everything else; their chance is their own, so
    that seeds keep their histories."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.whim = Random(seed)
        self.moved = 0

    def step(self) -> None:
        super().step()
        if self.whim.random() < 0.1:
            self.hand_over()

    def hand_over(self) -> None:
        for member in self.up():
            to = self.whim.choice(list(self.members))
            if member.core.role is Role.LEADER and to != member.name:
                member.core.transfer(
                    to, Cause.OPERATOR, self.now_ns, self.whim.randint(1, 3000) * MS
                )
                self.turn(member)

    def check(self, member: Member) -> None:
        super().check(member)
        changes = member.core.take_changes()
        self.moved += sum(
            change.leader == member.name and change.reason.cause is Cause.OPERATOR
            for change in changes
        )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("size", "seeds"), [(3, 60), (2, 10), (5, 20)])
def test_transfers_among_random_faults_break_no_invariant(size: int, seeds: int) -> None:
    """I1 to I5 hold, a healed cluster commits, and leadership really moves."""
    moved = 0
    for seed in range(seeds):
        cluster = HandsOver(size, seed)
        for _ in range(800):
            cluster.step()
        cluster.heal()
        assert not cluster.fences, f"seed {seed}: {cluster.fences}"
        moved += cluster.moved
    assert moved > seeds // 4
