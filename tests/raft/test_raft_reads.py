"""Linearizable reads (Raft dissertation §6.4): ReadIndex and leases, rule by rule and in random clusters with transfers and changes."""

from __future__ import annotations

from random import Random

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, RaftConfig
from ledgermq.raft.core import Core
from ledgermq.raft.effects import Effects
from ledgermq.raft.log_view import LogView
from ledgermq.raft.messages import Append, AppendReply, Extent, VoteReply, VoteRequest
from ledgermq.raft.reads import lease_ns
from ledgermq.raft.transfer import Cause
from tests.raft.memory_cluster import Cluster, Member
from tests.raft.test_raft_members import heard, leading, send
from tests.raft.test_raft_members_model import ChangingCluster
from tests.raft.test_raft_paper import LATER, VOTERS, append, core, follow, leader, said

LEASE = lease_ns(400 * MS)


def test_6_4_a_read_waits_for_a_round_that_began_after_it() -> None:
    """§6.4, steps 2 to 4: the commit index of the moment, confirmed by a majority that answers a message sent afterwards."""
    raft = leading()
    before = raft.election.leading.round
    raft.read(7, LATER)
    effects = raft.take(LATER)
    assert effects.reads == () and {m.to for m in effects.messages if isinstance(m, Append)} == {"b", "c"}
    raft.step(AppendReply("b", "a", 2, before, 1, False, 1, 1), LATER)
    assert raft.take(LATER).reads == ()
    heard(raft, "b", 1)
    assert raft.take(LATER).reads == ((7, 1),)
    assert raft.take(LATER).reads == ()


def test_6_4_reads_asked_together_share_a_round() -> None:
    """§6.4: one round for all that wait; those that come meanwhile wait for the next."""
    raft = leading()
    for token in (1, 2):
        raft.read(token, LATER)
    raft.take(LATER)
    raft.read(3, LATER)
    raft.take(LATER)
    heard(raft, "b", 1)
    assert raft.take(LATER).reads == ((1, 1), (2, 1))
    heard(raft, "c", 1)
    assert raft.take(LATER).reads == ((3, 1),)


def test_6_4_a_new_leader_answers_no_read_before_it_committed_an_entry_of_its_term() -> None:
    """§6.4, step 1: until then it does not know which entries are committed."""
    raft = leader()
    raft.read(7, LATER)
    for node in ("b", "c"):
        raft.take(LATER)
        heard(raft, node, 0)
    assert (raft.take(LATER).reads, raft.lease_index(LATER)) == ((), None)
    raft.appended(Extent(1, 1, 2, 100))
    raft.synced(*raft.sync_begins())
    send(raft)
    heard(raft, "b", 1)
    assert raft.commit_index == 1
    raft.take(LATER)
    heard(raft, "b", 1)
    assert raft.take(LATER).reads == ((7, 1),)


def test_6_4_a_read_of_a_deposed_leader_is_not_answered() -> None:
    """§6.4: another leader may have committed more. Nor is one that was asked of a follower."""
    raft = leading()
    raft.read(7, LATER)
    raft.take(LATER)
    raft.read(8, LATER)
    assert follow(raft, Append("b", "a", 3, 1, 1, 2, 1), LATER).reads == ((7, None), (8, None))
    raft.read(9, LATER)
    assert raft.take(LATER).reads == ((9, None),)


def test_6_4_provisional_answers_confirm_nothing() -> None:
    """A provisional directory has promised nothing."""
    raft = leading("b")
    raft.read(7, LATER)
    raft.take(LATER)
    heard(raft, "c", 1, provisional=True)
    assert raft.take(LATER).reads == ()


def test_6_4_the_only_voter_confirms_itself() -> None:
    """A majority of one."""
    raft = leading(voters=("a",))
    raft.read(7, LATER)
    assert raft.take(LATER).reads == ((7, 1),)
    assert raft.lease_index(LATER) == 1


def test_6_4_1_a_lease_runs_from_the_sending_of_the_answered_round() -> None:
    """§6.4.1: not from its answer, and nine tenths of the shortest election timeout long."""
    raft = leading()
    heard(raft, "b", 1)
    sent_ns = LATER + 200 * MS
    raft.take(sent_ns)
    answered_ns = sent_ns + 300 * MS
    heard(raft, "b", 1, now_ns=answered_ns)
    assert raft.lease_index(answered_ns) == 1
    assert raft.lease_index(sent_ns + LEASE - 1) == 1
    assert raft.lease_index(sent_ns + LEASE) is None


def test_6_4_1_an_answer_to_an_earlier_round_confirms_no_later_one() -> None:
    """§6.4.1: a round that went out after the last confirmed one may still be unheard when the answer to one between them comes in."""
    raft = leading()
    heard(raft, "b", 1)
    sent: list[int] = []
    for beat in (1, 2, 3):
        now_ns = LATER + beat * 100 * MS
        raft.tick(now_ns)
        sent += [m.round for m in raft.take(now_ns).messages if isinstance(m, Append) and m.to == "b"]
        if beat == 2:
            raft.step(AppendReply("b", "a", 2, sent[0], 1, False, 1, 1), now_ns)
    assert len(sent) == 3
    raft.step(AppendReply("b", "a", 2, sent[1], 1, False, 1, 1), LATER + 300 * MS)
    assert raft.lease_index(LATER + 100 * MS + LEASE - 1) == 1
    assert raft.lease_index(LATER + 100 * MS + LEASE) is None
    raft.step(AppendReply("b", "a", 2, sent[2], 1, False, 1, 1), LATER + 400 * MS)
    assert raft.lease_index(LATER + 300 * MS + LEASE - 1) == 1


def test_6_4_1_a_told_target_ends_the_lease_for_the_whole_term() -> None:
    """§6.4.1 with §3.10: its requests for votes override what voters promised, and may come after the handover was given up."""
    raft = leading()
    assert raft.lease_index(LATER) == 1
    raft.transfer("b", Cause.OPERATOR, LATER, 2000 * MS)
    raft.take(LATER)
    assert raft.handover is not None and raft.handover.notified and raft.lease_index(LATER) is None
    for now_ns in range(LATER, LATER + 1500 * MS, 100 * MS):
        raft.tick(now_ns)
        raft.take(now_ns)
        for node in ("b", "c"):
            heard(raft, node, 1, now_ns=now_ns)
    assert (raft.role, raft.handover, raft.lease_index(now_ns)) == (Role.LEADER, None, None)


def restarted(term: int, now_ns: int) -> Core:
    return Core(RaftConfig("a", VOTERS, 2), LogView([(0, 0)], 0), HardState(term), Random(1), now_ns)


def test_6_4_1_a_restarted_voter_keeps_what_it_may_have_promised() -> None:
    """§6.4.1: it may have had contact with a leader until it stopped, and does not remember it. A first start promised nothing, and a
    handover is requested by the leader itself."""
    asks = VoteRequest("b", "a", 9, False, 5, 5)
    raft = restarted(5, LATER)
    early = LATER + raft.config.timing.election_min_ns - 1
    raft.step(asks, early)
    assert said(raft, early) == [VoteReply("a", "b", 5, False, False)]
    raft.step(asks, early + 1)
    assert said(raft, early + 1) == [VoteReply("a", "b", 9, False, True)]
    raft = restarted(5, LATER)
    raft.step(VoteRequest("b", "a", 9, False, 5, 5, transfer=True), LATER)
    assert said(raft) == [VoteReply("a", "b", 9, False, True)]
    raft = restarted(0, LATER)
    raft.step(asks, LATER)
    assert said(raft) == [VoteReply("a", "b", 9, False, True)]


def test_6_4_1_who_confirmed_a_round_refuses_others_as_long_as_the_lease() -> None:
    """§6.4.1: the promise that a lease rests on, and the margin for drift."""
    raft = core([1])
    follow(raft, append(1, 1), LATER)
    raft.take(LATER)
    raft.step(VoteRequest("c", "a", 9, False, 5, 5), LATER + LEASE)
    assert [m.granted for m in said(raft, LATER + LEASE) if isinstance(m, VoteReply)] == [False]
    assert raft.config.timing.election_min_ns - LEASE == raft.config.timing.election_min_ns // 10


@pytest.mark.parametrize(
    "late",
    [
        VoteReply("c", "a", 3, True, False),
        VoteReply("c", "a", 3, False, False),
        AppendReply("c", "a", 3, 0, 1, True, -1, -1),
    ],
)
def test_6_4_1_a_late_answer_does_not_end_the_promise(late: VoteReply | AppendReply) -> None:
    """§6.4.1: an answer from a candidate of a later term to a request that this voter sent in a former role must not make it forget its
    contact with a leader: the candidate's own request comes next, and the leader's lease depends on its refusal."""
    raft = core([1])
    follow(raft, append(1, 1), LATER)
    raft.take(LATER)
    raft.step(late, LATER)
    raft.step(VoteRequest("c", "a", 3, False, 5, 5), LATER + LEASE)
    assert [m.granted for m in said(raft, LATER + LEASE) if isinstance(m, VoteReply)] == [False]
    assert (raft.term, raft.leader) == (2, "b")


class Reading(Cluster):
    """Reads of both kinds all the time. What a lease or a round proves must cover everything that anybody has committed: by then, or, for
    ReadIndex, when it was asked."""

    def __init__(self, *arguments: int) -> None:
        self.reading = Random(arguments[-1])
        self.asked: dict[int, int] = {}
        self.answers = self.leases = 0
        super().__init__(*arguments)

    def watch(self, member: Member, effects: Effects) -> None:
        newest = max(self.committed)
        for token, index in effects.reads:
            asked = self.asked.pop(token)
            if index is not None:
                self.answers += 1
                assert index >= asked, f"stale read: {index} was read after {asked} was committed"
        for each in self.up():
            index = each.core.lease_index(self.now_ns)
            if index is not None:
                self.leases += 1
                assert index >= newest, f"stale lease: {each.name} would read {index} after {newest} was committed"
        if self.reading.random() < 0.1 and member.core.role is Role.LEADER:
            token = len(self.asked) + self.answers * 1000 + self.reading.getrandbits(40)
            self.asked[token] = newest
            member.core.read(token, self.now_ns)
        if self.reading.random() < 0.002 and member.core.role is Role.LEADER and len(self.members) > 1:
            to = self.reading.choice([name for name in self.members if name != member.name])
            member.core.transfer(to, Cause.OPERATOR, self.now_ns, 500 * MS)


class ReadingWhileChanging(Reading, ChangingCluster):
    """Also while members change."""


@pytest.mark.parametrize(("kind", "arguments"), [(Reading, (3,)), (Reading, (5,)), (ReadingWhileChanging, ())])
def test_6_4_no_read_is_stale_in_any_random_life(kind: type[Reading], arguments: tuple[int, ...]) -> None:
    """§6.4: whatever is lost, restarted, handed over or changed, a proven read covers all that was committed before."""
    answers = leases = 0
    for seed in range(12):
        cluster = kind(*arguments, seed)
        for _ in range(1200):
            cluster.step()
        answers, leases = answers + cluster.answers, leases + cluster.leases
    assert answers > 10 and leases > 50
