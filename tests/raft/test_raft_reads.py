"""Linearizable reads (Raft dissertation §6.4): ReadIndex, rule by rule and in random clusters with
transfers, changes and clocks that stand still."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import Any

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, Members, RaftConfig, Rule
from ledgermq.raft.core import Core
from ledgermq.raft.effects import Effects
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.leader import ANSWERED_ROUND, NEVER_NS
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import Change, MemberChange
from ledgermq.raft.messages import Append, AppendReply, Extent, VoteReply, VoteRequest
from ledgermq.raft.policy import POLICIES
from ledgermq.raft.transfer import Cause
from tests.raft.memory_cluster import Cluster, Member
from tests.raft.test_raft_members import change, commit, heard, leading, send
from tests.raft.test_raft_members_model import ChangingCluster
from tests.raft.test_raft_paper import LATER, VOTERS, append, core, follow, leader, said

SHORTEST = 400 * MS


def test_6_4_a_read_waits_for_a_round_that_began_after_it() -> None:
    """§6.4, steps 2 to 4: the commit index of the moment, confirmed by a majority that answers a
    message sent afterwards."""
    raft = leading()
    before = raft.election.leading.round
    raft.read(7, LATER)
    effects = raft.take(LATER)
    assert effects.reads == () and {m.to for m in effects.messages if isinstance(m, Append)} == {
        "b",
        "c",
    }
    raft.step(
        AppendReply(
            sender="b",
            to="a",
            term=2,
            round=before,
            boot_id=1,
            rejected=False,
            received=1,
            durable=1,
        ),
        LATER,
    )
    assert raft.take(LATER).reads == ()
    heard(raft, "b", 1)
    assert raft.take(LATER).reads == ((7, 1),)
    assert raft.take(LATER).reads == ()


@pytest.mark.parametrize("node", ["b", "c"])
def test_6_4_the_answer_to_any_message_of_the_round_confirms_it(node: str) -> None:
    """§6.4: each peer's message has a number of its own; that of the first one is enough."""
    raft = leading()
    raft.read(7, LATER)
    (round_,) = [
        message.round
        for message in raft.take(LATER).messages
        if isinstance(message, Append) and message.to == node
    ]
    raft.step(
        AppendReply(
            sender=node,
            to="a",
            term=2,
            round=round_ - 1 if node == "b" else round_ - 2,
            boot_id=1,
            rejected=False,
            received=1,
            durable=1,
        ),
        LATER,
    )
    assert raft.take(LATER).reads == ()
    raft.step(
        AppendReply(
            sender=node,
            to="a",
            term=2,
            round=round_,
            boot_id=1,
            rejected=False,
            received=1,
            durable=1,
        ),
        LATER,
    )
    assert raft.take(LATER).reads == ((7, 1),)


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
    assert raft.take(LATER).reads == ()
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
    assert follow(
        raft,
        Append(sender="b", to="a", term=3, round=1, prev_index=1, prev_term=2, commit_index=1),
        LATER,
    ).reads == ((7, None), (8, None))
    raft.read(9, LATER)
    assert raft.take(LATER).reads == ((9, None),)


def with_others() -> Core:
    """Leader `a` of the voters `a`, `b` and `c`, with the learners `d` and `f` and the observer
    `e`."""
    raft = leading()
    for node in "def":
        members = raft.propose_members(
            MemberChange(Change.ADD, node, f"{node}1", observer=node == "e"), LATER
        )
        assert isinstance(members, Members)
        index = raft.log.end_index + 1
        raft.appended(Extent(index, index, 2, 100, membership=True), members=members)
        commit(raft, "b", "c")
        heard(raft, node, index)
    raft.take(LATER)
    return raft


ANSWERS: dict[str, tuple[dict[str, Any], bool]] = {
    "to the round": ({}, True),
    "to a later message": ({"round": 1000}, True),
    "that lacks entries": ({"rejected": True, "received": 0, "durable": -1}, True),
    "sent before the round began": ({"round": -1}, False),
    "of an earlier term": ({"term": 1}, False),
    "of a former life": ({"boot_id": 1, "round": -1}, False),
    "of a provisional directory": ({"provisional": True}, False),
    "of a learner": ({"sender": "d"}, False),
    "of an observer": ({"sender": "e"}, False),
    "of a node that was removed": ({"sender": "f"}, False),
    "of a stranger": ({"sender": "x"}, False),
}


@pytest.mark.parametrize("which", ANSWERS)
def test_6_4_which_answer_confirms_that_the_leader_still_leads(which: str) -> None:
    """§6.4, step 3: that of a voter in its present life that was sent after the round began, in
    this term. It may come late or twice, lack entries, or answer another message of the same
    leader."""
    told, confirms = ANSWERS[which]
    raft = with_others()
    assert change(raft, Change.REMOVE, "f") is None
    commit(raft, "b", "c")
    leads = raft.election.leading
    assert leads is not None
    raft.step(
        AppendReply(
            sender="b",
            to="a",
            term=2,
            round=leads.round,
            boot_id=2,
            rejected=False,
            received=1,
            durable=1,
        ),
        LATER,
    )
    before = leads.round
    raft.read(7, LATER)
    raft.take(LATER)
    of_b = {
        "sender": "b",
        "to": "a",
        "term": 2,
        "boot_id": 2,
        "rejected": False,
        "received": 1,
        "durable": 1,
        "round": 0,
    }
    answer: dict[str, Any] = {**of_b, **told}
    answer["round"] = before if answer["round"] < 0 else leads.round + answer["round"]
    raft.step(AppendReply(**answer), LATER)
    raft.step(AppendReply(**answer), LATER)
    assert raft.take(LATER).reads == (((7, raft.commit_index),) if confirms else ())
    assert (raft.reads.underway is None) is confirms


@pytest.mark.parametrize("voters", range(1, 6))
@pytest.mark.parametrize("removed", [False, True])
def test_6_4_answers_of_a_voter_majority_confirm_a_read(voters: int, removed: bool) -> None:
    """§6.4: those of a majority of the voters, the leader included unless it was removed; every set
    of answers."""
    names = tuple("abcde"[:voters])
    for told in product((False, True), repeat=voters - 1):
        answering = [node for node, says in zip(names[1:], told, strict=True) if says]
        raft = leading(voters=names)
        if removed and voters > 1:
            assert change(raft, Change.REMOVE, "a") is None
        raft.read(7, LATER)
        at_once = raft.take(LATER).reads
        for node in answering:
            heard(raft, node, 1)
        count = voters - (removed and voters > 1)
        enough = len(answering) + (count == voters) > count // 2
        assert (*at_once, *raft.take(LATER).reads) == (((7, 1),) if enough else ()), (
            names,
            answering,
        )


@pytest.mark.parametrize("rule", list(Rule))
def test_6_4_read_quorum_of_every_rule_intersects_its_electors(rule: Rule) -> None:
    """§6.4: under the rule MAJORITY a majority, otherwise each voter; in an HA group each of the
    in-sync set, from which the next master is taken, and each that the master wishes to add,
    because the controller may have agreed to that."""
    raft = Core(
        RaftConfig("a", VOTERS, 1, rule=Rule.IN_SYNC),
        LogView([(0, 0), (1, 1)], 1),
        HardState(2),
        Random(1),
        0,
    )
    raft.appointed(
        Appointment(generation=0, version=1, epoch=3, master="a", in_sync={"a": "", "b": ""}), LATER
    )
    members = Members(VOTERS, rule=rule, towards=Rule.IN_SYNC if rule is Rule.ALL else None)
    policy = POLICIES[rule](members, raft.config, raft.log_state, raft.isr, raft.timer)
    for joins, of_b, of_c in product((False, True), repeat=3):
        raft.isr.joining.clear()
        raft.isr.join({"c"} if joins else set())
        raft.peers["b"].answered_round, raft.peers["c"].answered_round = 8 + of_b, 8 + of_c
        confirmed = policy.reached(NEVER_NS, raft.peers, ANSWERED_ROUND) >= 9
        expected = {
            Rule.MAJORITY: of_b or of_c,
            Rule.ALL: of_b and of_c,
            Rule.IN_SYNC: of_b and (of_c or not joins),
        }
        assert confirmed is expected[rule]
        assert set(policy.required()) == {"a", "b", "c"} - (
            {"c"} if rule is Rule.IN_SYNC and not joins else set()
        )


def test_6_4_lone_voter_answers_a_read_without_a_message() -> None:
    """§6.4: a majority of one, whoever else copies; the answer needs no message."""
    raft = leading(voters=("a",))
    assert change(raft, Change.ADD, "d", "d1") is None
    commit(raft, "d")
    raft.read(7, LATER)
    effects = raft.take(LATER)
    assert effects.reads == ((7, 2),) and effects.messages == ()


def test_6_4_read_round_is_one_message_to_each_counted_voter() -> None:
    """§6.4, counted: two messages in a group of three, however many reads they serve; none to
    learners and observers."""
    raft = with_others()
    for token in range(64):
        raft.read(token, LATER)
    assert sorted(message.to for message in raft.take(LATER).messages) == ["b", "c"]
    for token in range(64, 128):
        raft.read(token, LATER)
        assert raft.take(LATER).messages == (), "a round is under way"
    heard(raft, "c", 4)
    effects = raft.take(LATER)
    assert [token for token, _ in effects.reads] == list(range(64)) and len(effects.messages) == 2
    heard(raft, "b", 4)
    assert [token for token, _ in raft.take(LATER).reads] == list(range(64, 128))


def test_6_4_a_lost_round_is_made_good_by_the_next_heartbeat() -> None:
    """§6.4: whatever is answered later confirms it; nothing is asked again for the reads alone."""
    raft = leading()
    raft.read(7, LATER)
    raft.take(LATER)
    due_ns = raft.wake_at_ns(LATER)
    raft.tick(due_ns)
    assert len(raft.take(due_ns).messages) == 2
    heard(raft, "b", 1, now_ns=due_ns)
    assert raft.take(due_ns).reads == ((7, 1),)


def test_6_4_frequent_reads_delay_no_heartbeat_and_no_restart_of_a_stalled_peer() -> None:
    """However often something is read: heartbeats keep their period, also to those whom no round
    asks, and a peer that answers without progress is compared anew."""
    raft = leading()
    assert change(raft, Change.ADD, "d", "d1") is None
    commit(raft, "b", "c")
    beats: Counter[str] = Counter()
    raft.appended(Extent(3, 3, 2, 100))
    raft.synced(*raft.sync_begins())
    send(raft)
    now_ns, token = LATER, 0
    while now_ns < LATER + 2 * raft.config.timing.stall_ns:
        now_ns, token = now_ns + 10 * MS, token + 1
        raft.read(token, now_ns)
        raft.tick(now_ns)
        beats.update(message.to for message in raft.take(now_ns).messages)
        heard(raft, "b", 3, now_ns=now_ns)
        heard(raft, "c", 2, now_ns=now_ns)
    periods = 2 * raft.config.timing.stall_ns // raft.config.timing.heartbeat_ns
    assert abs(beats["d"] - periods) <= 2 and beats["b"] >= token
    assert raft.restarts["c"] > 0


def test_6_4_1_leader_with_a_stopped_clock_answers_no_read_by_recent_contact() -> None:
    """§6.4.1 proposes reads by a lease. A machine that was suspended does not know that its lease
    is over: what it read would be old. So contact, however recent by its own clock, answers no
    read; and what waited in a buffer meanwhile was sent before the round."""
    raft = leading()
    for node in ("b", "c"):
        heard(raft, node, 1)
    late = [
        AppendReply(
            sender=node,
            to="a",
            term=2,
            round=raft.election.leading.round,
            boot_id=1,
            rejected=False,
            received=1,
            durable=1,
        )
        for node in ("b", "c")
    ]
    # Another leader commits here. For this one no time passes.
    raft.read(7, LATER)
    assert raft.take(LATER).reads == ()
    for answer in late:
        raft.step(answer, LATER)
    assert raft.take(LATER).reads == ()
    raft.step(
        AppendReply(
            sender="b", to="a", term=3, round=0, boot_id=1, rejected=True, received=-1, durable=-1
        ),
        LATER,
    )
    assert raft.take(LATER).reads == ((7, None),) and raft.role is Role.FOLLOWER


def restarted(term: int, now_ns: int) -> Core:
    return Core(
        RaftConfig("a", VOTERS, 2), LogView([(0, 0)], 0), HardState(term), Random(1), now_ns
    )


def test_6_4_1_restarted_voter_withholds_its_vote_for_a_timeout() -> None:
    """§6.4.1, for leaders of earlier releases, which have leases: it may have had contact with a
    leader until it stopped, and does not remember it. A first start promised nothing, and a
    handover is requested by the leader itself."""
    asks = VoteRequest(sender="b", to="a", term=9, pre=False, last_index=5, last_term=5)
    raft = restarted(5, LATER)
    early = LATER + raft.config.timing.election_min_ns - 1
    raft.step(asks, early)
    assert said(raft, early) == [VoteReply(sender="a", to="b", term=5, pre=False, granted=False)]
    raft.step(asks, early + 1)
    assert said(raft, early + 1) == [VoteReply(sender="a", to="b", term=9, pre=False, granted=True)]
    raft = restarted(5, LATER)
    raft.step(
        VoteRequest(
            sender="b", to="a", term=9, pre=False, last_index=5, last_term=5, transfer=True
        ),
        LATER,
    )
    assert said(raft) == [VoteReply(sender="a", to="b", term=9, pre=False, granted=True)]
    raft = restarted(0, LATER)
    raft.step(asks, LATER)
    assert said(raft) == [VoteReply(sender="a", to="b", term=9, pre=False, granted=True)]


def test_6_4_1_voter_that_heard_its_leader_refuses_others_for_a_timeout() -> None:
    """§4.2.3, and §6.4.1 for leaders of earlier releases: so nobody deposes a leader that a
    majority hears."""
    raft = core([1])
    follow(raft, append(1, 1), LATER)
    raft.take(LATER)
    raft.step(
        VoteRequest(sender="c", to="a", term=9, pre=False, last_index=5, last_term=5),
        LATER + SHORTEST - 1,
    )
    assert [m.granted for m in said(raft, LATER + SHORTEST - 1) if isinstance(m, VoteReply)] == [
        False
    ]
    assert raft.config.timing.election_min_ns == SHORTEST


@pytest.mark.parametrize(
    "late",
    [
        VoteReply(sender="c", to="a", term=3, pre=True, granted=False),
        VoteReply(sender="c", to="a", term=3, pre=False, granted=False),
        AppendReply(
            sender="c", to="a", term=3, round=0, boot_id=1, rejected=True, received=-1, durable=-1
        ),
    ],
)
def test_6_4_1_a_late_answer_does_not_end_the_promise(late: VoteReply | AppendReply) -> None:
    """§6.4.1: an answer from a candidate of a later term to a request that this voter sent in a
    former role must not make it forget its contact with a leader: the candidate's own request comes
    next."""
    raft = core([1])
    follow(raft, append(1, 1), LATER)
    raft.take(LATER)
    raft.step(late, LATER)
    raft.step(
        VoteRequest(sender="c", to="a", term=3, pre=False, last_index=5, last_term=5),
        LATER + SHORTEST - 1,
    )
    assert [m.granted for m in said(raft, LATER + SHORTEST - 1) if isinstance(m, VoteReply)] == [
        False
    ]
    assert (raft.term, raft.leader) == (2, "b")


class Reading(Cluster):
    """Reads all the time, while machines are suspended and their clocks stand still. What a round
    proves must cover everything that anybody had committed when the read was asked."""

    def __init__(self, *arguments: int) -> None:
        self.reading = Random(arguments[-1])
        self.asked: dict[int, int] = {}
        self.answers = self.after_sleep = self.refused = 0
        super().__init__(*arguments)

    def watch(self, member: Member, effects: Effects) -> None:
        newest = max(self.committed)
        for token, index in effects.reads:
            asked = self.asked.pop(token)
            if index is not None:
                self.answers += 1
                assert index >= asked, f"stale read: {index} was read after {asked} was committed"
            else:
                self.refused += 1
        if self.reading.random() < 0.1 and member.core.role is Role.LEADER:
            self.after_sleep += member.slept_ns > 0
            self.ask(member, newest)
        if (
            self.reading.random() < 0.002
            and member.core.role is Role.LEADER
            and len(self.members) > 1
        ):
            to = self.reading.choice([name for name in self.members if name != member.name])
            member.core.transfer(to, Cause.OPERATOR, self.now_of(member), 500 * MS)
        if self.reading.random() < 0.0015:
            leads = member.core.role is Role.LEADER or self.reading.random() < 0.2
            self.suspend(
                member.name if leads else self.reading.choice(list(self.members)),
                self.reading.randrange(2000 * MS),
            )

    def ask(self, member: Member, newest: int) -> None:
        token = len(self.asked) + self.answers * 1000 + self.reading.getrandbits(40)
        self.asked[token] = newest
        member.core.read(token, self.now_of(member))

    def resume(self, name: str) -> None:
        """The first thing that a leader does after a pause is to read."""
        super().resume(name)
        member = self.members[name]
        if member.core.role is Role.LEADER:
            self.ask(member, max(self.committed))
            self.turn(member)


class ReadingWhileChanging(Reading, ChangingCluster):
    """Also while members change."""


@pytest.mark.parametrize(
    ("kind", "arguments"), [(Reading, (3,)), (Reading, (5,)), (ReadingWhileChanging, ())]
)
def test_6_4_no_read_is_stale_in_any_random_life(
    kind: type[Reading], arguments: tuple[int, ...]
) -> None:
    """§6.4: whatever is lost, restarted, suspended, handed over or changed, a proven read covers
    all that was committed before."""
    answers = slept = refused = 0
    for seed in range(12):
        cluster = kind(*arguments, seed)
        for _ in range(1200):
            cluster.step()
        answers, slept, refused = (
            answers + cluster.answers,
            slept + cluster.after_sleep,
            refused + cluster.refused,
        )
    assert answers > 10 and slept > 5 and refused > 5, (answers, slept, refused)
