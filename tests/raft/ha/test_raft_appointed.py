"""Masters that a controller appoints, step by step (docs/architecture.md, HA groups): wishes,
leading, and commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import MS, HaRules, Members, RaftConfig, Rule
from ledgermq.raft.ha_control import (
    AlterIsr,
    Appointment,
    ElectionRequest,
    alter,
    elect,
    force,
    from_json,
    to_json,
)
from ledgermq.raft.membership import Change, MemberChange, NotYet, changed
from ledgermq.raft.messages import Append, AppendReply, TimeoutNow, VoteReply, VoteRequest
from ledgermq.raft.transfer import Cause
from tests.raft.memory_cluster import Cluster, Disk, Member

ALL_IN_SYNC = {"n1": "", "n2": "", "n3": ""}


class Pair(Cluster):
    """Three replicas without faults that receive only what the test sends; their requests are
    kept."""

    def __init__(self, rules: HaRules | None = None, rule: Rule = Rule.IN_SYNC) -> None:
        ha = rules or HaRules()

        class Replica(Member):
            disk_full_share = 0.0

            def config(self) -> RaftConfig:
                known = self.name, self.voters, self.boots
                return RaftConfig(
                    *known, timing=self.timing, incarnation=self.directory, rule=rule, ha=ha
                )

        self.member_type = Replica
        super().__init__(3, 0)
        self.loss = self.repeat = 0.0
        self.shuffle = False
        self.wishes: list[ElectionRequest | AlterIsr] = []
        said: dict[int, Members] = {}
        for member in self.members.values():
            member.said = said

    def watch(self, member: Member, effects: object) -> None:
        self.wishes += effects.requests  # type: ignore[attr-defined]

    def check(self, member: Member) -> None:
        member.core.check_invariants()

    def appoint(self, appointment: Appointment, *nodes: str) -> None:
        for name in nodes or tuple(self.members):
            self.members[name].core.appointed(appointment, self.now_ns)
            self.turn(self.members[name])

    def settle(self) -> None:
        """Deliver all messages and sync all disks."""
        for _ in range(10):
            for member in self.up():
                self.turn(member)
            while self.network:
                self.deliver()
            for member in self.up():
                member.begin_sync()
                member.end_sync()
                self.turn(member)

    def until(self, condition: Callable[[], bool], most_ms: int = 20_000) -> None:
        for _ in range(most_ms // 10):
            if condition():
                return
            self.now_ns += 10 * MS
            for member in self.up():
                member.core.tick(self.now_ns)
            self.settle()
        raise AssertionError([repr(member.core) for member in self.members.values()])

    def answered(self, known: Appointment, for_ms: int) -> Appointment:
        """The in-sync set after a time in which the controller receives and answers the requests of
        n1."""
        seen = len(self.wishes)
        for _ in range(for_ms // 10):
            self.now_ns += 10 * MS
            for member in self.up():
                member.core.tick(self.now_ns)
            self.settle()
            for wish in self.wishes[seen:]:
                after = alter(known, wish) if isinstance(wish, AlterIsr) else ""
                known = known if isinstance(after, str) else after
            news, seen = len(self.wishes) > seen, len(self.wishes)
            if news:
                self.appoint(known, "n1")
        return known

    def granted(self, known: Appointment | None) -> Appointment:
        """What the controller makes of the last wish."""
        wish = self.wishes[-1]
        after = elect(known, wish) if isinstance(wish, ElectionRequest) else alter(known, wish)
        assert isinstance(after, Appointment), after
        return after


FIRST = Appointment(
    generation=0,
    version=1,
    epoch=1,
    master="n1",
    in_sync=ALL_IN_SYNC,
    cause=Cause.STARTED,
    asked_by="n1",
)


@pytest.fixture
def led() -> Pair:
    """`n1` is master of epoch 1; all three are in sync."""
    pair = Pair()
    pair.appoint(FIRST)
    pair.members["n1"].propose(1)
    pair.settle()
    assert pair.members["n1"].core.commit_index == 1
    return pair


def core(pair: Cluster, name: str):  # type: ignore[no-untyped-def]
    return pair.members[name].core


# Who leads


def test_canvass_of_an_appointed_group_ends_in_an_election_request() -> None:
    """A canvass ends in a wish, never in leadership; the wish names the epoch that is known and the
    voters."""
    pair = Pair()
    pair.until(lambda: bool(pair.wishes))
    assert all(member.core.role is not Role.LEADER for member in pair.members.values())
    wish = pair.wishes[0]
    assert isinstance(wish, ElectionRequest) and (wish.node, wish.epoch, wish.voters) == (
        wish.asked_by,
        0,
        ALL_IN_SYNC,
    )
    assert all(member.core.term == 0 for member in pair.members.values())


def test_a_real_vote_is_no_way_to_lead_either(led: Pair) -> None:
    """Under this rule, collecting votes does not change the role of a replica."""
    voter = core(led, "n2")
    voter.step(VoteReply(sender="n3", to="n2", term=2, pre=False, granted=True), led.now_ns)
    assert voter.role is Role.FOLLOWER


def test_the_word_of_the_master_is_no_way_to_lead_either(led: Pair) -> None:
    """Only the controller appoints: a TimeoutNow that would begin a campaign under another rule is
    refused, and counted once."""
    slave = core(led, "n2")
    end = slave.log.end_index
    slave.step(
        TimeoutNow(
            sender="n1",
            to="n2",
            term=1,
            last_index=end,
            last_term=slave.log.term_at(end),
            cause=Cause.OPERATOR,
        ),
        led.now_ns,
    )
    assert (slave.role, slave.term) == (Role.FOLLOWER, 1) and slave.take(led.now_ns).messages == ()
    assert slave.refused == {"stale-handover": 1}


def test_forced_election_names_one_node_in_sync_and_raises_the_epoch() -> None:
    """The node alone is in sync; epoch and version go on from what was agreed, and the epoch is
    above every term the node has seen."""
    ask = ElectionRequest(
        node="n2",
        incarnation="d",
        generation=7,
        epoch=3,
        term=5,
        voters=ALL_IN_SYNC,
        cause=Cause.FORCED,
        asked_by="an operator",
    )
    assert force(None, ask) == Appointment(
        generation=7,
        version=1,
        epoch=6,
        master="n2",
        in_sync={"n2": "d"},
        cause=Cause.FORCED,
        asked_by="an operator",
    )
    for epoch in (3, 9):
        known = Appointment(generation=7, version=4, epoch=epoch, master="n1", in_sync=ALL_IN_SYNC)
        forced = force(known, replace(ask, epoch=epoch))
        assert forced == Appointment(
            generation=7,
            version=5,
            epoch=max(epoch, 5) + 1,
            master="n2",
            in_sync={"n2": "d"},
            cause=Cause.FORCED,
            asked_by="an operator",
        )


def test_a_canvass_stops_at_whoever_hears_the_master(led: Pair) -> None:
    """Only n3 is partitioned: n2 has contact with the master, so n3 requests no election."""
    led.cut = {("n1", "n3"), ("n3", "n1")}
    led.until(lambda: led.now_ns > 3_000 * MS)
    assert not [wish for wish in led.wishes if isinstance(wish, ElectionRequest)]


def test_a_canvass_stops_at_a_longer_log(led: Pair) -> None:
    """Of two that lost their master, the one with more entries is elected, with an asynchronous
    tail too."""
    led.cut = {("n1", "n3")}
    led.members["n1"].propose(2)
    led.settle()
    assert (core(led, "n2").log.end_index, core(led, "n3").log.end_index) == (3, 1)
    led.down["n1"] = 1 << 60
    led.cut.clear()
    led.wishes.clear()
    led.until(lambda: any(isinstance(wish, ElectionRequest) for wish in led.wishes))
    assert {wish.node for wish in led.wishes if isinstance(wish, ElectionRequest)} == {"n2"}


def test_no_epoch_is_led_twice(led: Pair) -> None:
    """A master that restarts has its epoch on disk: the appointment it had means nothing any
    more."""
    master = led.members["n1"]
    master.crash()
    master.start(led.now_ns)
    master.core.appointed(FIRST, led.now_ns)
    assert master.core.role is Role.FOLLOWER and master.disk.hard_state.term == 1
    master.core.appointed(
        Appointment(
            generation=0,
            version=2,
            epoch=2,
            master="n1",
            in_sync=ALL_IN_SYNC,
            cause=Cause.STARTED,
            asked_by="n1",
        ),
        led.now_ns,
    )
    assert master.core.role is Role.LEADER and master.core.term == 2


def test_a_master_that_is_elected_again_begins_anew(led: Pair) -> None:
    """It leaves the old epoch before it leads the new one: waiting reads are lost, and both changes
    are reported."""
    raft = core(led, "n1")
    raft.take_changes()
    raft.read(7, led.now_ns)
    assert raft.reads.asked or raft.reads.underway is not None
    led.appoint(replace(FIRST, version=2, epoch=2), "n1")
    assert (raft.role, raft.term, raft.reads.asked, raft.reads.underway) == (
        Role.LEADER,
        2,
        [],
        None,
    )
    assert [(change.term, change.leader) for change in raft.take_changes()] == [
        (1, None),
        (2, "n1"),
    ]


def test_older_appointment_is_ignored(led: Pair) -> None:
    """News come late and out of order."""
    second = Appointment(
        generation=0,
        version=2,
        epoch=2,
        master="n2",
        in_sync=ALL_IN_SYNC,
        cause=Cause.OPERATOR,
        asked_by="n1",
    )
    led.appoint(second, "n2")
    led.appoint(FIRST, "n2")
    led.appoint(second, "n1")
    assert core(led, "n2").role is Role.LEADER and core(led, "n1").role is Role.FOLLOWER


def test_replica_out_of_sync_takes_no_office(led: Pair) -> None:
    """Not even if it is named; and it does not campaign."""
    led.appoint(
        Appointment(
            generation=0,
            version=2,
            epoch=2,
            master="n3",
            in_sync={"n1": "", "n2": ""},
            cause=Cause.STARTED,
            asked_by="n3",
        ),
        "n3",
    )
    assert core(led, "n3").role is Role.FOLLOWER and not core(led, "n3").membership.may_campaign()


def test_slave_persists_epoch_and_master_before_it_takes_a_frame() -> None:
    """Like a vote: in the writes that come before its entries and its answer."""
    pair = Pair()
    slave = core(pair, "n2")
    slave.step(
        Append(sender="n1", to="n2", term=4, round=1, prev_index=0, prev_term=0, commit_index=0), 0
    )
    kept = slave.take_writes().hard_state
    assert kept is not None and (kept.term, kept.vote) == (4, "n1")


def test_of_two_masters_of_one_epoch_a_slave_follows_one() -> None:
    """The second one is refused with a later term, and must ask for another epoch."""
    pair = Pair()
    slave = pair.members["n2"]
    slave.core.step(
        Append(sender="n1", to="n2", term=4, round=1, prev_index=0, prev_term=0, commit_index=0), 0
    )
    slave.carry_out(slave.core.take_writes(), None, [])
    slave.start(0)
    slave.core.step(
        Append(sender="n3", to="n2", term=4, round=1, prev_index=0, prev_term=0, commit_index=0), 0
    )
    effects = slave.core.take(0)
    answer = effects.messages[-1]
    assert (
        isinstance(answer, AppendReply)
        and answer.rejected
        and answer.term == 5
        and slave.core.leader is None
    )


# A master that receives no messages


def deaf(pair: Pair) -> None:
    """All nodes receive messages from n1, but n1 receives none."""
    pair.cut = {("n2", "n1"), ("n3", "n1")}


def test_master_that_hears_no_answer_steps_down_and_is_replaced(
    led: Pair,
) -> None:
    """Neither a slave nor the controller answers it: its heartbeats end, and its slaves stand for
    election before it does."""
    deaf(led)
    led.until(lambda: core(led, "n1").role is not Role.LEADER)
    change = core(led, "n1").take_changes()[-1]
    assert (
        change.leader is None
        and change.reason.cause is Cause.NO_MAJORITY
        and change.reason.silent_ms >= 3200
    )
    led.until(lambda: any(isinstance(wish, ElectionRequest) for wish in led.wishes))
    assert led.wishes[-1].node != "n1"
    led.appoint(led.granted(FIRST), "n2", "n3")
    assert core(led, led.wishes[-1].node).role is Role.LEADER


@pytest.mark.parametrize(
    "rules", [HaRules(), HaRules(ack_async=True), HaRules(minimum=2)], ids=["alone", "async", "two"]
)
def test_isolated_master_keeps_its_set_until_the_controller_answers(
    rules: HaRules,
) -> None:
    """Its request may be granted without its knowledge, and then no other node could be elected. So
    it first requests the same set, and continues as long as that is answered."""
    pair = Pair(rules)
    pair.appoint(FIRST)
    pair.members["n1"].propose(1)
    pair.settle()
    deaf(pair)
    pair.wishes.clear()
    known = pair.answered(FIRST, 6_000)
    assert pair.wishes[0] == AlterIsr(
        node="n1", generation=0, epoch=1, version=1, in_sync=ALL_IN_SYNC
    )
    assert core(pair, "n1").role is Role.LEADER and len(known.in_sync) == rules.minimum
    if rules.minimum > 1:
        pair.until(lambda: core(pair, "n1").role is not Role.LEADER)


def test_one_slave_that_answers_keeps_a_master_in_office(led: Pair) -> None:
    """Whatever happened to the controller and the other slave, these two may be the only remaining
    nodes."""
    led.cut = {("n2", "n1")}
    led.until(lambda: led.now_ns > 8_000 * MS)
    assert core(led, "n1").role is Role.LEADER


def test_master_alone_in_sync_keeps_office_without_contact(led: Pair) -> None:
    """The controller agreed to this set, so no other node can be elected."""
    led.appoint(replace(FIRST, version=2, in_sync={"n1": ""}))
    deaf(led)
    led.until(lambda: led.now_ns > 8_000 * MS)
    assert core(led, "n1").role is Role.LEADER


# What is committed


def test_commit_waits_for_every_replica_in_sync(led: Pair) -> None:
    """A majority is not enough, as long as the controller may elect the third."""
    led.cut = {("n1", "n3")}
    led.members["n1"].propose(1)
    led.settle()
    assert core(led, "n2").durable_index == 2 and core(led, "n1").commit_index == 1


def test_the_set_shrinks_when_that_is_agreed_and_not_before(led: Pair) -> None:
    """With a silent slave, the master requests its removal from the set, waits, and commits once it
    learns that the controller agreed."""
    led.down["n3"] = 1 << 60
    led.members["n1"].propose(1)
    led.until(lambda: any(isinstance(wish, AlterIsr) for wish in led.wishes))
    assert core(led, "n1").commit_index == 1
    smaller = led.granted(FIRST)
    assert set(smaller.in_sync) == {"n1", "n2"}
    led.appoint(smaller, "n1")
    assert core(led, "n1").commit_index == 2


def test_a_master_that_was_silent_before_is_not_waited_for_as_long_again(led: Pair) -> None:
    """Its successor wishes it out of the set with its second review, not after another election
    timeout."""
    led.down["n1"] = 1 << 60
    led.until(lambda: any(isinstance(wish, ElectionRequest) for wish in led.wishes))
    elected = led.granted(FIRST)
    led.appoint(elected, "n2", "n3")
    began = led.now_ns
    led.until(
        lambda: any(isinstance(wish, AlterIsr) and "n1" not in wish.in_sync for wish in led.wishes)
    )
    assert led.now_ns - began <= 2 * core(led, elected.master).config.timing.heartbeat_ns


def test_requested_joiner_counts_for_commit_from_the_request_on(led: Pair) -> None:
    """From the wish on, whether it was granted or not: until a later version says."""
    smaller = Appointment(
        generation=0,
        version=2,
        epoch=1,
        master="n1",
        in_sync={"n1": "", "n2": ""},
        cause=Cause.STARTED,
        asked_by="n1",
    )
    led.appoint(smaller)
    led.until(lambda: any(isinstance(wish, AlterIsr) for wish in led.wishes))
    led.cut = {("n1", "n3")}
    led.members["n1"].propose(1)
    led.settle()
    assert core(led, "n1").commit_index == 1
    led.appoint(replace(smaller, version=3), "n1")
    assert core(led, "n1").commit_index == 2


def test_a_wish_that_is_not_meant_any_more_is_made_void(led: Pair) -> None:
    """The node is gone again, and the outcome of the request is unknown: the master requests the
    same set in a new version."""
    smaller = Appointment(
        generation=0,
        version=2,
        epoch=1,
        master="n1",
        in_sync={"n1": "", "n2": ""},
        cause=Cause.STARTED,
        asked_by="n1",
    )
    led.appoint(smaller)
    led.until(lambda: any(isinstance(wish, AlterIsr) for wish in led.wishes))
    led.wishes.clear()
    led.down["n3"] = 1 << 60
    led.until(
        lambda: any(
            isinstance(wish, AlterIsr) and set(wish.in_sync) == {"n1", "n2"} for wish in led.wishes
        )
    )
    led.members["n1"].propose(1)
    led.settle()
    assert core(led, "n1").commit_index == 1
    led.appoint(replace(smaller, version=3), "n1")
    assert core(led, "n1").commit_index == 2


def test_below_the_minimum_commits_stop_and_late_replicas_stay() -> None:
    """`minimum` 2 of three: two slaves gone."""
    pair = Pair(HaRules(minimum=2))
    pair.appoint(FIRST)
    pair.members["n1"].propose(1)
    pair.settle()
    pair.down = {"n2": 1 << 60, "n3": 1 << 60}
    known = pair.answered(FIRST, 2_000)
    assert len(known.in_sync) == 2
    pair.members["n1"].propose(1)
    after, master = pair.answered(known, 8_000), core(pair, "n1")
    assert (
        master.commit_index == 1
        and master.missing_isr(pair.now_ns) == 1
        and after.in_sync == known.in_sync
    )


@pytest.mark.parametrize("least", [2, 3])
def test_a_set_that_is_too_small_fills_again(least: int) -> None:
    """It is, after an operator's election or with a greater minimum: copies outside of it count
    until their nodes are in it again."""
    pair = Pair(HaRules(minimum=least))
    forced = force(
        FIRST,
        ElectionRequest(
            node="n1",
            incarnation="",
            generation=0,
            epoch=1,
            term=1,
            voters={},
            cause=Cause.FORCED,
            asked_by="n2",
        ),
    )
    assert isinstance(forced, Appointment)
    pair.down = {} if least == 3 else {"n3": 1 << 60}
    pair.cut = {("n1", "n2")}
    pair.appoint(forced, "n1")
    pair.members["n1"].propose(1)
    pair.settle()
    assert core(pair, "n1").commit_index == 0, "one copy is too few"
    pair.cut.clear()
    pair.until(lambda: core(pair, "n1").commit_index == 1)
    pair.until(
        lambda: any(
            isinstance(wish, AlterIsr) and len(wish.in_sync) == least for wish in pair.wishes
        )
    )


def test_a_lost_disk_of_two_is_made_good() -> None:
    """`minimum` 2 of the two that are there: the new directory is a learner, which no set has; its
    copy makes it a voter, then in sync."""
    pair = Pair(HaRules(minimum=2))
    known = replace(FIRST, in_sync={"n1": "", "n2": ""})
    pair.down = {"n3": 1 << 60}
    pair.appoint(known, "n1", "n2")
    pair.members["n1"].propose(3)
    pair.until(lambda: core(pair, "n1").commit_index == 3)
    lost = pair.members["n2"]
    lost.disk, lost.directory, lost.admitted = Disk(), "n2/new", False
    lost.start(pair.now_ns)
    back = MemberChange(Change.RETURN, "n2", "n2/new")
    assert "taken out" in str(pair.members["n1"].change(back, pair.now_ns))
    pair.wishes.clear()
    pair.until(lambda: bool(pair.wishes))
    known = pair.granted(known)
    assert set(known.in_sync) == {"n1"}
    pair.appoint(known, "n1", "n2")
    assert pair.members["n1"].change(back, pair.now_ns) is None
    pair.until(lambda: core(pair, "n1").due_change(pair.now_ns) is not None)
    promotion = core(pair, "n1").due_change(pair.now_ns)
    assert promotion is not None and pair.members["n1"].change(promotion, pair.now_ns) is None
    pair.wishes.clear()
    pair.until(
        lambda: any(
            isinstance(wish, AlterIsr) and wish.in_sync.get("n2") == "n2/new"
            for wish in pair.wishes
        )
    )


def test_alone_in_sync_a_master_commits_alone() -> None:
    """With a minimum of one."""
    pair = Pair()
    pair.appoint(replace(FIRST, in_sync={"n1": ""}), "n1")
    pair.down = {"n2": 1 << 60, "n3": 1 << 60}
    pair.members["n1"].propose(2)
    pair.settle()
    assert core(pair, "n1").commit_index == 2 and core(pair, "n1").missing_isr(pair.now_ns) == 0


def test_an_asynchronous_acknowledgement_rests_on_the_masters_disk_alone() -> None:
    """`replicated_index` is its durable index; committed is still what all in sync have."""
    pair = Pair(HaRules(ack_async=True))
    pair.appoint(FIRST)
    pair.cut = {("n1", "n2"), ("n1", "n3")}
    pair.members["n1"].propose(3)
    master = core(pair, "n1")
    assert master.replicated_index == 0
    pair.settle()
    assert (master.replicated_index, master.commit_index) == (3, 0)


@pytest.mark.parametrize(
    "lag", [HaRules(lag_ns=2_000 * MS), HaRules(lag_bytes=1_000)], ids=["time", "bytes"]
)
def test_lagging_replica_leaves_the_in_sync_set(lag: HaRules) -> None:
    """A slave that answers, and whose disk does not follow."""
    pair = Pair(lag)
    pair.appoint(FIRST)
    slow = pair.members["n3"]
    slow.begin_sync = lambda: None  # type: ignore[method-assign]
    for _ in range(40):
        pair.members["n1"].propose(1)
        pair.now_ns += 100 * MS
        for member in pair.up():
            member.core.tick(pair.now_ns)
        pair.settle()
    assert any(
        isinstance(wish, AlterIsr) and set(wish.in_sync) == {"n1", "n2"} for wish in pair.wishes
    )


def test_read_needs_an_answer_of_every_replica_in_sync(led: Pair) -> None:
    """Each of them may be the next master: no round without its answer."""
    master = core(led, "n1")
    master.read(6, led.now_ns)
    led.settle()
    assert master.reads.underway is None
    led.cut = {("n3", "n1")}
    led.until(lambda: led.now_ns > 5_000 * MS)
    master.read(7, led.now_ns)
    led.settle()
    assert master.reads.underway is not None


# Handing over, members, rules


def test_a_handover_is_an_election_the_master_asks_for(led: Pair) -> None:
    """The successor needs no canvass and no vote of other nodes."""
    assert core(led, "n1").transfer("n3", Cause.OPERATOR, led.now_ns, 5_000 * MS) is None
    led.settle()
    wish = led.wishes[-1]
    assert isinstance(wish, ElectionRequest) and (wish.node, wish.asked_by, wish.cause) == (
        "n3",
        "n1",
        Cause.OPERATOR,
    )
    led.appoint(led.granted(FIRST))
    assert core(led, "n3").role is Role.LEADER and core(led, "n1").role is Role.FOLLOWER
    change = core(led, "n3").take_changes()[-1]
    assert (change.reason.cause, change.reason.peer) == (Cause.OPERATOR, "n1")


def test_handover_to_a_replica_out_of_sync_is_refused(led: Pair) -> None:
    """The controller would not elect another."""
    led.appoint(replace(FIRST, version=2, in_sync={"n1": "", "n2": ""}))
    assert "not in sync" in str(
        core(led, "n1").transfer("n3", Cause.OPERATOR, led.now_ns, 5_000 * MS)
    )


def test_a_voter_leaves_the_set_before_it_leaves_the_group(led: Pair) -> None:
    """Removing it is refused, and prepared; asked again it works."""
    removal = MemberChange(Change.REMOVE, "n3")
    assert "being taken out" in str(led.members["n1"].change(removal, led.now_ns))
    led.until(lambda: any(isinstance(wish, AlterIsr) for wish in led.wishes))
    smaller = led.granted(FIRST)
    assert set(smaller.in_sync) == {"n1", "n2"}
    led.appoint(smaller)
    assert led.members["n1"].change(removal, led.now_ns) is None


def test_evicted_replica_rejoins_after_the_last_request_lapses(led: Pair) -> None:
    """Longer than any operator takes to ask again; then it is in sync again."""
    removal, master = MemberChange(Change.REMOVE, "n3"), led.members["n1"]
    assert isinstance(master.change(removal, led.now_ns), NotYet)
    known = led.answered(FIRST, 9_000)
    assert set(known.in_sync) == {"n1", "n2"} and known.version == FIRST.version + 1
    known = led.answered(known, 3_000)
    assert set(known.in_sync) == {"n1", "n2", "n3"}
    assert isinstance(master.change(removal, led.now_ns), NotYet)
    known = led.answered(known, 5_000)
    assert master.change(removal, led.now_ns) is None
    led.answered(known, 1_000)
    assert not master.core.election.leading.review.evicting


def test_set_below_the_minimum_takes_an_evicted_replica_back() -> None:
    """Another node failed while one was kept out for its removal: with a minimum of two, the group
    continues with the node that was to be removed. The removal is refused, because the group needs
    this node now."""
    pair = Pair(HaRules(minimum=2))
    pair.appoint(FIRST)
    master = pair.members["n1"]
    master.propose(1)
    pair.settle()
    removal = MemberChange(Change.REMOVE, "n3")
    master.change(removal, pair.now_ns)
    known = pair.answered(FIRST, 500)
    assert set(known.in_sync) == {"n1", "n2"}
    pair.down["n2"] = 1 << 60
    pair.until(lambda: pair.now_ns >= 1_600 * MS)
    refusal = str(master.change(removal, pair.now_ns))
    assert "2 in sync of the voters n1, n2 are needed, and n2 cannot be heard" in refusal
    known = pair.answered(known, 1_500)
    assert set(known.in_sync) == {"n1", "n3"}
    master.propose(1)
    pair.settle()
    assert master.core.commit_index == master.core.log.end_index


def test_two_changes_at_once_do_not_leave_the_set_below_its_minimum() -> None:
    """The second one is refused."""
    pair = Pair(HaRules(minimum=2))
    pair.appoint(FIRST)
    master = pair.members["n1"]
    master.propose(1)
    pair.settle()
    assert isinstance(master.change(MemberChange(Change.REMOVE, "n3"), pair.now_ns), NotYet)
    assert "would leave 1 in the in-sync set" in str(
        master.change(MemberChange(Change.REMOVE, "n2"), pair.now_ns)
    )


def test_eviction_lapses_if_the_set_shrank_to_the_minimum() -> None:
    """Another node was taken out, which was not known yet when the removal was asked for. Both
    together would leave the master alone."""
    pair = Pair(HaRules(minimum=2))
    pair.appoint(FIRST)
    master = pair.members["n1"]
    master.propose(1)
    pair.settle()
    began = pair.now_ns
    pair.down["n2"] = 1 << 60
    pair.until(lambda: pair.now_ns >= began + 700 * MS)
    assert isinstance(master.change(MemberChange(Change.REMOVE, "n3"), pair.now_ns), NotYet)
    smaller = replace(FIRST, version=2, in_sync={"n1": "", "n3": ""})
    pair.appoint(smaller, "n1")
    pair.wishes.clear()
    assert set(pair.answered(smaller, 1_000).in_sync) >= {"n1", "n3"}
    assert all(len(wish.in_sync) >= 2 for wish in pair.wishes if isinstance(wish, AlterIsr))


def test_the_master_is_not_removed_and_the_minimum_not_undercut() -> None:
    """Each with what to do instead."""
    pair = Pair(HaRules(minimum=3))
    pair.appoint(FIRST)
    pair.members["n1"].propose(1)
    pair.settle()
    assert "hand over first" in str(
        pair.members["n1"].change(MemberChange(Change.REMOVE, "n1"), pair.now_ns)
    )
    assert "demands 3" in str(
        pair.members["n1"].change(MemberChange(Change.REMOVE, "n2"), pair.now_ns)
    )


def test_between_two_rules_stands_that_of_all() -> None:
    """Nothing else, and no other change meanwhile."""
    members = Members(("n1", "n2", "n3"))
    between = changed(members, MemberChange(Change.RULE, "", rule=Rule.IN_SYNC), 9)
    assert isinstance(between, Members) and (between.rule, between.towards, between.since) == (
        Rule.ALL,
        Rule.IN_SYNC,
        9,
    )
    assert "changing over" in str(changed(between, MemberChange(Change.REMOVE, "n3"), 10))
    assert "changing over" in str(
        changed(between, MemberChange(Change.RULE, "", rule=Rule.MAJORITY), 10)
    )
    after = changed(between, MemberChange(Change.RULE, "", rule=Rule.IN_SYNC), 11)
    assert isinstance(after, Members) and (after.rule, after.towards, after.since) == (
        Rule.IN_SYNC,
        None,
        11,
    )
    assert "already" in str(changed(after, MemberChange(Change.RULE, "", rule=Rule.IN_SYNC), 12))
    assert "only stands between" in str(
        changed(after, MemberChange(Change.RULE, "", rule=Rule.ALL), 12)
    )


@pytest.mark.parametrize("rival", [False, True], ids=["elected by all", "elected against a rival"])
def test_a_group_changes_over_and_back(rival: bool) -> None:
    """majority → all → in-sync, a master with an epoch above the term; then all the way back, and
    votes elect again.

    A replica that voted for itself in the leader's term keeps that vote for as long as the term
    lasts.
    """
    pair = Pair(rule=Rule.MAJORITY)
    pair.until(lambda: any(member.core.role is Role.LEADER for member in pair.members.values()))
    leader = next(member for member in pair.members.values() if member.core.role is Role.LEADER)
    if rival:
        other = next(member for member in pair.members.values() if member is not leader)
        other.disk.hard_state = HardState(leader.core.term, other.name)
        other.start(pair.now_ns)
    leader.propose(1)
    pair.settle()
    for wanted in (Rule.IN_SYNC, Rule.MAJORITY):
        known = leader.core.appointment
        term = leader.core.term
        pair.until(
            lambda: leader.change(MemberChange(Change.RULE, "", rule=wanted), pair.now_ns) is None  # noqa: B023
        )
        assert leader.core.members.rule is Rule.ALL
        pair.settle()
        onward = leader.core.due_change(pair.now_ns)
        assert onward is not None and onward.rule is wanted
        assert leader.change(onward, pair.now_ns) is None
        pair.wishes.clear()
        pair.settle()
        if wanted is Rule.IN_SYNC:
            # A rival answers with a later term, which ends the one for which the first epoch was
            # asked.
            while leader.core.role is not Role.LEADER or leader.core.term == term:
                pair.until(lambda: bool(pair.wishes))
                pair.appoint(pair.granted(known))
                known = leader.core.appointment
                leader = next(
                    member
                    for member in pair.members.values()
                    if known is not None and member.name == known.master
                )
                pair.wishes.clear()
        leader.propose(1)
        pair.settle()
        assert all(member.core.members.rule is wanted for member in pair.members.values())
        assert leader.core.commit_index == leader.core.log.end_index
    pair.down[leader.name] = 1 << 60
    pair.until(lambda: any(member.core.role is Role.LEADER for member in pair.up()))


def test_no_epoch_is_wished_for_under_a_rule_that_a_power_cut_could_undo() -> None:
    """The entry that sets the rule may be lost and appended again at a lower index; the controller
    must not know the higher index."""
    pair = Pair(rule=Rule.MAJORITY)
    pair.until(lambda: any(member.core.role is Role.LEADER for member in pair.members.values()))
    leader = next(member for member in pair.members.values() if member.core.role is Role.LEADER)
    leader.propose(1)
    pair.settle()
    assert leader.change(MemberChange(Change.RULE, "", rule=Rule.IN_SYNC), pair.now_ns) is None
    pair.settle()
    onward = leader.core.due_change(pair.now_ns)
    assert onward is not None and leader.change(onward, pair.now_ns) is None
    pair.now_ns += leader.core.config.timing.heartbeat_ns
    leader.core.tick(pair.now_ns)
    pair.turn(leader)
    assert leader.core.durable_index < leader.core.members.since and not pair.wishes
    pair.settle()
    pair.until(lambda: bool(pair.wishes))


def test_to_change_the_rule_every_voter_is_needed() -> None:
    """One is gone: refused by its name, with nothing appended."""
    pair = Pair(rule=Rule.MAJORITY)
    pair.until(lambda: any(member.core.role is Role.LEADER for member in pair.members.values()))
    leader = next(member for member in pair.members.values() if member.core.role is Role.LEADER)
    leader.propose(1)
    pair.settle()
    gone = next(name for name in pair.members if name != leader.name)
    pair.down[gone] = 1 << 60
    pair.until(
        lambda: (
            gone
            in str(
                leader.core.propose_members(
                    MemberChange(Change.RULE, "", rule=Rule.IN_SYNC), pair.now_ns
                )
            )
        )
    )


def test_under_the_rule_of_all_every_vote_and_every_copy_is_needed() -> None:
    """Two of three replicas cannot elect a leader or commit an entry."""
    pair = Pair(rule=Rule.MAJORITY)
    pair.until(lambda: any(member.core.role is Role.LEADER for member in pair.members.values()))
    leader = next(member for member in pair.members.values() if member.core.role is Role.LEADER)
    leader.propose(1)
    pair.settle()
    pair.until(
        lambda: leader.change(MemberChange(Change.RULE, "", rule=Rule.IN_SYNC), pair.now_ns) is None
    )
    third = next(name for name in pair.members if name != leader.name)
    pair.settle()
    pair.down[third] = 1 << 60
    leader.propose(1)
    pair.settle()
    assert leader.core.commit_index == leader.core.log.end_index - 1
    pair.until(lambda: leader.core.role is not Role.LEADER)
    before = pair.now_ns
    pair.until(lambda: pair.now_ns > before + 5_000 * MS)
    assert all(member.core.role is not Role.LEADER for member in pair.up())


# Pulling


def test_a_slave_that_pulls_gets_one_range_at_a_time_and_only_when_it_asks() -> None:
    """Its answer is the next question; a range that is lost is asked for with the next
    heartbeat."""
    pair = Pair(HaRules(pull=True))
    pair.appoint(FIRST)
    pair.settle()
    leading = core(pair, "n1").election.leading
    assert leading is not None and all(peer.pulls for peer in leading.peers.values())
    master = pair.members["n1"]
    for _ in range(8):
        master.propose(4)
    _, packets = master.take(pair.now_ns)
    ranges = [
        packet.message
        for packet in packets
        if isinstance(packet.message, Append) and packet.message.extent is not None
    ]
    assert len(ranges) == 2 and {message.to for message in ranges} == {"n2", "n3"}
    assert not [
        packet for packet in master.take(pair.now_ns)[1] if packet.message.extent is not None
    ]
    pair.until(lambda: {core(pair, name).durable_index for name in pair.members} == {32})


def test_replica_that_never_pulls_is_pushed_by_a_master_of_pulling_slaves() -> None:
    """Its settings are others, or it joins with an empty log and does not know yet by which rule
    the group goes: it never asks."""
    pair = Pair(HaRules(pull=True))
    slave = core(pair, "n3")
    slave.config = replace(slave.config, ha=HaRules())
    pair.appoint(FIRST)
    for _ in range(8):
        pair.members["n1"].propose(4)
    pair.until(lambda: {core(pair, name).durable_index for name in pair.members} == {32})


# The controller's functions


def test_elect_refuses_by_reason_and_never_grants_an_epoch_twice() -> None:
    """By name, and never twice for the same epoch."""
    ask = ElectionRequest(
        node="n2",
        incarnation="",
        generation=0,
        epoch=1,
        term=5,
        voters=ALL_IN_SYNC,
        cause=Cause.ELECTION_TIMEOUT,
        asked_by="n2",
    )
    granted = elect(FIRST, ask)
    assert isinstance(granted, Appointment) and (
        granted.epoch,
        granted.master,
        granted.version,
    ) == (6, "n2", 2)
    assert "epoch 6" in str(elect(granted, ask))
    assert "in-sync set" in str(elect(FIRST, replace(ask, node="n9")))
    assert "in-sync set" in str(elect(FIRST, replace(ask, incarnation="another")))
    assert "changed its rule" in str(elect(replace(FIRST, generation=7), ask))
    again = elect(granted, replace(ask, generation=9, epoch=0, term=2))
    assert isinstance(again, Appointment) and (again.epoch, again.generation, again.in_sync) == (
        7,
        9,
        ALL_IN_SYNC,
    )


def test_controller_without_memory_refuses_to_elect_in_a_begun_group(
    led: Pair,
) -> None:
    """It does not know the in-sync set, but the log shows that there was an epoch."""
    led.down["n1"] = 1 << 60
    led.until(lambda: any(isinstance(wish, ElectionRequest) for wish in led.wishes))
    wish = next(wish for wish in led.wishes if isinstance(wish, ElectionRequest))
    assert wish.begun and "does not remember" in str(elect(None, wish))
    assert isinstance(elect(FIRST, wish), Appointment)


def test_alter_is_the_masters_and_from_the_version_it_knew() -> None:
    """Anything else changes nothing."""
    ask = AlterIsr(node="n1", generation=0, epoch=1, version=1, in_sync={"n1": "", "n2": ""})
    granted = alter(FIRST, ask)
    assert isinstance(granted, Appointment) and (granted.version, set(granted.in_sync)) == (
        2,
        {"n1", "n2"},
    )
    wrong: list[dict[str, Any]] = [
        {"node": "n2"},
        {"epoch": 2},
        {"generation": 1},
        {"version": 2},
        {"in_sync": {"n2": ""}},
    ]
    for change in wrong:
        assert isinstance(alter(FIRST, replace(ask, **change)), str)
    assert isinstance(alter(None, ask), str)


def test_force_leaves_the_others_out() -> None:
    """A forced election has an epoch above all others, a set of one node, and the cause
    `forced`."""
    forced = force(
        FIRST,
        ElectionRequest(
            node="n3",
            incarnation="x",
            generation=0,
            epoch=1,
            term=9,
            voters=ALL_IN_SYNC,
            cause=Cause.FORCED,
            asked_by="an operator",
        ),
    )
    assert (
        isinstance(forced, Appointment)
        and forced.forced
        and (forced.epoch, forced.in_sync) == (10, {"n3": "x"})
    )
    assert isinstance(
        force(
            FIRST,
            ElectionRequest(
                node="n3",
                incarnation="x",
                generation=0,
                epoch=0,
                term=9,
                voters=ALL_IN_SYNC,
                cause=Cause.FORCED,
                asked_by="an operator",
            ),
        ),
        str,
    )


def test_a_quorum_that_counts_versions_anew_is_heard(led: Pair) -> None:
    """It lost its metadata, and an operator named a master: no replica takes that for something
    old, though its version is lower."""
    led.appoint(replace(FIRST, version=57))
    anew = force(
        None,
        ElectionRequest(
            node="n2",
            incarnation="",
            generation=0,
            epoch=0,
            term=1,
            voters={},
            cause=Cause.FORCED,
            asked_by="n2",
        ),
    )
    assert isinstance(anew, Appointment) and anew.version < 57
    led.appoint(anew)
    assert core(led, "n2").role is Role.LEADER and core(led, "n1").agreed == anew


def test_json_and_back() -> None:
    """What a controller stores is what it was."""
    assert from_json(to_json(FIRST)) == FIRST


def test_canvass_asks_only_members_of_the_in_sync_set(led: Pair) -> None:
    """The logs and contacts of other nodes do not matter."""
    led.appoint(replace(FIRST, version=2, in_sync={"n1": "", "n2": ""}))
    led.down["n1"] = 1 << 60
    replica = core(led, "n2")
    led.now_ns = replica.wake_at_ns(led.now_ns)
    replica.tick(led.now_ns)
    asked = [
        message for message in replica.take(led.now_ns).messages if isinstance(message, VoteRequest)
    ]
    assert {message.to for message in asked} == {"n1"} and all(message.pre for message in asked)
