"""The review of the in-sync set by itself: every small state of a master and three others, against
the rules written down again."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import product

import pytest

from ledgermq.raft.config import HaRules, Members, RaftConfig, Rule, Timing
from ledgermq.raft.effects import Outbox
from ledgermq.raft.election_timer import ElectionTimer
from ledgermq.raft.ha_control import AlterIsr, Appointment, ElectionRequest
from ledgermq.raft.isr import Isr
from ledgermq.raft.isr_review import IsrReview
from ledgermq.raft.log_state import LogState
from ledgermq.raft.log_view import LogView
from ledgermq.raft.membership import Configurations, Membership
from ledgermq.raft.parts import Parts
from ledgermq.raft.policy import POLICIES, InSync, Policy
from ledgermq.raft.progress import Peer, Stage
from ledgermq.raft.reads import Reads
from ledgermq.raft.transfer import Cause
from ledgermq.raft.window import Window

TIMING = Timing()
BEAT_NS, SHORTEST_NS, LONGEST_NS = (
    TIMING.heartbeat_ns,
    TIMING.election_min_ns,
    TIMING.election_max_ns,
)
NOW_NS = 100 * LONGEST_NS
TERM, END = 2, 9
OTHERS = ("b", "c", "d")
ALL_IN_SYNC = dict.fromkeys("abcd", "")
USUAL = HaRules()


class Master:
    """Master `a` of epoch 2, whose entries 5 to 9 are of that epoch, and three others that have
    them all and were heard just now."""

    def __init__(
        self,
        in_sync: Mapping[str, str] | None = None,
        ha: HaRules = USUAL,
        voters: Iterable[str] = "abcd",
        named: Mapping[str, str] | None = None,
        *,
        epoch: int = TERM,
        rule: Rule = Rule.IN_SYNC,
        silent_master: str | None = None,
        begun_ns: int = NOW_NS,
    ) -> None:
        self.config = RaftConfig("a", tuple("abcd"), 1, rule=rule, ha=ha)
        self.log = LogState(LogView([(0, 1), (5, TERM)], END), END)
        self.outbox = Outbox()
        self.isr = Isr(self.config, self.log, self.outbox)
        self.timer = ElectionTimer(TIMING, random.Random(1), 0, promised=False)
        members = Members(tuple(voters), incarnations=dict(named or {}), rule=rule)
        known = Configurations([(-1, Members(tuple("abcd"), rule=rule)), (3, members)])
        self.membership = Membership(self.config, self.log, known, self._policy_of, met_by_all=True)
        if in_sync is not None:
            self.isr.learn(
                Appointment(generation=0, version=1, epoch=epoch, master="a", in_sync=in_sync),
                NOW_NS,
            )
        self.peers = {node: self._peer(node) for node in OTHERS}
        parts = Parts(
            config=self.config,
            log=self.log,
            membership=self.membership,
            isr=self.isr,
            timer=self.timer,
            reads=Reads(),
            outbox=self.outbox,
        )
        self.review = IsrReview(parts, self.peers, TERM, begun_ns, silent_master)

    def _policy_of(self, members: Members) -> Policy:
        return POLICIES[members.rule](members, self.config, self.log, self.isr, self.timer)

    def _peer(self, node: str) -> Peer:
        peer = Peer(node, END + 1, NOW_NS, Window(TIMING))
        peer.boot_id, peer.stage, peer.received, peer.durable = 1, Stage.FLOWING, END, END
        return peer

    @property
    def policy(self) -> InSync:
        assert isinstance(self.membership.policy, InSync)
        return self.membership.policy

    def leaving(self, now_ns: int = NOW_NS) -> set[str]:
        assert self.isr.appointment is not None
        return self.review.leaving_set(self.isr.appointment, now_ns)

    def requested(self, now_ns: int = NOW_NS) -> list[set[str] | str]:
        """The in-sync set that the next review asks for, or the node that it asks to elect."""
        self.review.review(now_ns)
        requests = self.outbox.take_requests()
        assert all(
            isinstance(request, ElectionRequest) or request.version == 1 for request in requests
        )
        return [
            request.node if isinstance(request, ElectionRequest) else set(request.in_sync)
            for request in requests
        ]


@pytest.mark.parametrize("ago_ns", [0, BEAT_NS - 1, BEAT_NS, LONGEST_NS - 1, LONGEST_NS])
@pytest.mark.parametrize("leads_for_ns", [0, SHORTEST_NS - 1, SHORTEST_NS])
def test_silent_or_uncounted_members_are_late(ago_ns: int, leads_for_ns: int) -> None:
    """Who was silent for the longest election timeout, the silent former master for a heartbeat
    period until it answers, and whose copy does not count. Nobody as long as a lease of a former
    master of an earlier release may last."""
    for silent_master, boot_id, provisional in product((None, "b", "c"), (None, 1), (False, True)):
        master = Master(ALL_IN_SYNC, silent_master=silent_master)
        master.timer.contact(NOW_NS - leads_for_ns)
        peer = master.peers["b"]
        peer.contact_ns, peer.boot_id, peer.provisional = NOW_NS - ago_ns, boot_id, provisional
        patience_ns = BEAT_NS if silent_master == "b" and boot_id is None else LONGEST_NS
        late = leads_for_ns >= SHORTEST_NS and (provisional or ago_ns >= patience_ns)
        assert master.leaving() == ({"b"} if late else set())


def test_a_member_of_the_set_that_is_no_peer_is_late() -> None:
    master = Master(ALL_IN_SYNC)
    del master.peers["c"]
    assert master.leaving() == {"c"}


@pytest.mark.parametrize(("more_ns", "more_bytes"), [(0, 0), (1, 0), (0, 1)])
def test_a_copy_that_lags_too_far_is_late(more_ns: int, more_bytes: int) -> None:
    """By time or by bytes; the bounds themselves are allowed."""
    ha = HaRules(lag_ns=5_000, lag_bytes=700)
    master = Master(ALL_IN_SYNC, ha, begun_ns=NOW_NS - 5_000 - more_ns)
    master.review.lag.appended(700 + more_bytes)
    master.peers["c"].durable = END - 1
    assert master.leaving() == ({"c"} if more_ns or more_bytes else set())


STATES = ("fine", "late", "later", "evicted", "lost", "renamed", "no voter")


@pytest.mark.parametrize("minimum", [1, 2, 3, 4])
def test_review_evicts_lost_then_unwanted_then_late_members_to_the_minimum(minimum: int) -> None:
    """Who lost its directory or its vote, whatever remains; then, down to the minimum, those whom a
    change of members needs out, and then the late ones, the longest silent first."""
    for states in product(STATES, repeat=3):
        of = dict(zip(OTHERS, states, strict=True))
        voters = ["a", *(node for node, state in of.items() if state != "no voter")]
        named = {node: "new" for node, state in of.items() if state == "renamed"}
        master = Master(ALL_IN_SYNC, HaRules(minimum=minimum), voters, named)
        for node, state in of.items():
            if state in ("late", "later"):
                master.peers[node].contact_ns = NOW_NS - LONGEST_NS - (state == "later")
            if state in ("evicted", "lost"):
                master.review.evict(node, NOW_NS + 1, lost=state == "lost")
        expected = {node for node, state in of.items() if state in ("lost", "renamed", "no voter")}
        for wanted in ("evicted", "later", "late"):
            for node in (node for node, state in of.items() if state == wanted):
                if 4 - len(expected) > minimum:
                    expected.add(node)
        assert master.leaving() == expected, of


@pytest.mark.parametrize("minimum", [1, 2, 3])
@pytest.mark.parametrize("outside", ["returning", "promoted", "learner", "voter"])
def test_promoted_or_returning_copy_counts_towards_the_minimum(outside: str, minimum: int) -> None:
    """Set `a`, `b`; `b` is silent; `c` has everything and is in no set. If `c` joins only once an
    entry is committed, because it lost its directory or is a voter by an uncommitted change, it
    counts as long as its copy does: otherwise `b` could keep it out for ever. A learner that stays
    one counts never, and a voter joins first."""
    for lack in (
        "",
        "only what is committed",
        "silent",
        "behind",
        "of another epoch",
        "stops",
        "never heard",
    ):
        master = Master({"a": "", "b": ""}, HaRules(minimum=minimum))
        voters = ("a", "b", *(["c"] if outside in ("promoted", "voter") else []))
        learners = frozenset("c" if outside in ("returning", "learner") else "")
        returning = frozenset("c" if outside == "returning" else "")
        now = Members(voters, learners, returning=returning, rule=Rule.IN_SYNC)
        before = (
            Members(("a", "b"), frozenset("c"), rule=Rule.IN_SYNC) if outside == "promoted" else now
        )
        master.log.commit_index = 6
        master.membership.configurations = Configurations([(-1, before), (8, now)])
        master.membership.members = now
        master.peers["b"].contact_ns = NOW_NS - LONGEST_NS
        c = master.peers["c"]
        c.durable = {"only what is committed": 6, "behind": 5, "of another epoch": 4}.get(lack, END)
        c.contact_ns = NOW_NS - (LONGEST_NS if lack == "silent" else 0)
        c.leaving, c.boot_id = lack == "stops", None if lack == "never heard" else 1
        counts = outside in ("returning", "promoted") and lack in ("", "only what is committed")
        assert master.leaving() == ({"b"} if 2 + counts > minimum else set()), lack


def test_a_voter_by_one_of_two_uncommitted_changes_joins_later() -> None:
    master = Master({"a": ""}, voters="abc")
    master.log.commit_index = 6
    first, second = (
        Members(("a", "b", "c"), rule=Rule.IN_SYNC),
        Members(("a", "b", "c"), rule=Rule.IN_SYNC, minimum=1),
    )
    master.membership.configurations = Configurations(
        [(-1, Members(("a", "b"), frozenset("c"), rule=Rule.IN_SYNC)), (7, first), (8, second)]
    )
    assert master.review.may_join("b", NOW_NS) and not master.review.may_join("c", NOW_NS)
    master.log.commit_index = 7
    assert master.review.may_join("c", NOW_NS)


@pytest.mark.parametrize("commit", [4, 6, END])
def test_voter_joins_the_set_if_heard_wanted_and_caught_up(commit: int) -> None:
    """A voter that was heard, stays, is wanted, and has on stable storage what is committed and an
    entry of this epoch. It has to be a voter before a change that is not committed, too."""
    for flowing, leaving, evicted, provisional, ago_ns, durable in product(
        (True, False),
        (False, True),
        (False, True),
        (False, True),
        (LONGEST_NS - 1, LONGEST_NS),
        (4, 5, 6, 8, END),
    ):
        master = Master(ALL_IN_SYNC, begun_ns=NOW_NS - SHORTEST_NS)
        master.log.commit_index = commit
        peer = master.peers["b"]
        peer.stage = Stage.FLOWING if flowing else Stage.PROBING
        peer.leaving, peer.provisional, peer.contact_ns, peer.durable = (
            leaving,
            provisional,
            NOW_NS - ago_ns,
            durable,
        )
        if evicted:
            master.review.evict("b", NOW_NS + 1, lost=False)
        joins = (
            flowing
            and not (leaving or evicted or provisional)
            and ago_ns < LONGEST_NS
            and durable >= max(5, commit)
        )
        assert master.review.may_join("b", NOW_NS) is joins
    assert not Master(ALL_IN_SYNC).review.may_join("x", NOW_NS)


@pytest.mark.parametrize("more_ns", [0, 1])
def test_a_copy_that_lags_longer_than_an_election_timeout_joins_not_yet(more_ns: int) -> None:
    master = Master(ALL_IN_SYNC, begun_ns=NOW_NS - SHORTEST_NS - more_ns)
    master.log.commit_index = master.peers["b"].durable = END - 1
    assert master.review.may_join("b", NOW_NS) is (more_ns == 0)


@pytest.mark.parametrize("commit", [9, 10])
def test_a_voter_by_a_change_that_is_not_committed_joins_later(commit: int) -> None:
    """If that change were cut off, the set would have a member that is no voter."""
    master = Master({"a": ""}, voters="acd")
    master.log.view.append(10, 10, TERM)
    master.membership.append(10, Members(tuple("abcd"), rule=Rule.IN_SYNC))
    master.log.commit_index = commit
    for peer in master.peers.values():
        peer.received = peer.durable = 10
    assert [node for node in OTHERS if master.review.may_join(node, NOW_NS)] == (
        ["c", "d"] if commit < 10 else ["b", "c", "d"]
    )


def test_when_an_eviction_is_over() -> None:
    """When its node is no voter any more, when nobody asks any more, or when the set is too small,
    unless the directory is lost."""
    for votes, left_ns, lost, missing in product((True, False), (1, 0), (False, True), (0, 1)):
        master = Master(ALL_IN_SYNC, HaRules(minimum=4 if votes else 3), "abcd" if votes else "acd")
        master.review.evict("b", NOW_NS + left_ns, lost=lost)
        if missing:
            for node in "cd" if not votes else "d":
                master.peers[node].contact_ns = NOW_NS - LONGEST_NS
        master.review.forget_evictions(master.policy, NOW_NS)
        assert ("b" in master.review.evicting) is (votes and left_ns > 0 and (lost or not missing))


def test_a_review_is_due_once_in_a_heartbeat_period() -> None:
    """And at once when the controller answered a master that hears nobody."""
    master = Master({"a": "", "b": "", "c": ""}, begun_ns=NOW_NS)
    assert master.requested(NOW_NS - 1) == []
    assert master.requested(NOW_NS) == [{"a", "b", "c", "d"}]
    assert master.review.due_ns == NOW_NS + BEAT_NS
    assert master.requested(NOW_NS + BEAT_NS - 1) == []
    master.review.hurry(NOW_NS + 1)
    assert master.review.due_ns == NOW_NS + BEAT_NS
    for peer in master.peers.values():
        peer.contact_ns = NOW_NS - LONGEST_NS
    master.review.hurry(NOW_NS + 1)
    assert master.review.due_ns == NOW_NS + 1


def test_no_set_is_reviewed_under_rules_without_one() -> None:
    master = Master(rule=Rule.MAJORITY)
    master.review.hurry(NOW_NS + 5)
    assert (master.requested(), master.review.due_ns) == ([], NOW_NS)


@pytest.mark.parametrize(
    ("in_sync", "epoch"), [(None, TERM), (ALL_IN_SYNC, TERM - 1), (ALL_IN_SYNC, TERM + 1)]
)
def test_a_leader_without_the_present_epoch_asks_for_one(
    in_sync: Mapping[str, str] | None, epoch: int
) -> None:
    """It led when the group took this rule, and is asked for as what it is."""
    master = Master(in_sync, epoch=epoch)
    master.review.review(NOW_NS)
    (request,) = master.outbox.take_requests()
    known = epoch if in_sync is not None else 0
    assert request == ElectionRequest(
        node="a",
        incarnation="",
        generation=0,
        epoch=known,
        term=TERM,
        voters=ALL_IN_SYNC,
        cause=Cause.STARTED,
        asked_by="a",
        begun=True,
    )


@pytest.mark.parametrize("answered_ago_ns", [LONGEST_NS - 1, LONGEST_NS])
def test_isolated_master_without_a_recent_answer_requests_the_set_it_knows(
    answered_ago_ns: int,
) -> None:
    """Unless the controller answered it within the longest election timeout, it asks for the set
    that it knows."""
    master = Master(ALL_IN_SYNC)
    master.isr.learn(
        Appointment(generation=0, version=2, epoch=TERM, master="a", in_sync=ALL_IN_SYNC),
        NOW_NS - answered_ago_ns,
    )
    for peer in master.peers.values():
        peer.contact_ns = NOW_NS - LONGEST_NS
    master.review.review(NOW_NS)
    (request,) = master.outbox.take_requests()
    assert isinstance(request, AlterIsr) and set(request.in_sync) == (
        {"a"} if answered_ago_ns < LONGEST_NS else set("abcd")
    )


def test_review_requests_the_right_set_unless_it_is_in_force() -> None:
    """The set that is right now, by the directories that the members name; nothing if the set is
    right already. A node that was asked into the set and is not wanted any more makes the review
    ask for the same set once more."""
    master = Master({"a": "", "b": "", "c": ""}, named={"d": "d2"})
    master.peers["b"].contact_ns = NOW_NS - LONGEST_NS
    master.review.review(NOW_NS)
    (request,) = master.outbox.take_requests()
    assert request == AlterIsr(
        node="a", generation=0, epoch=TERM, version=1, in_sync={"a": "", "c": "", "d": "d2"}
    )
    assert master.isr.joining == {"d"}
    master = Master({"a": "", "b": "", "c": ""})
    master.isr.join({"d"})
    master.peers["d"].leaving = True
    assert master.requested() == [{"a", "b", "c"}]
    assert Master(ALL_IN_SYNC).requested() == []
    assert Master(ALL_IN_SYNC, voters="abc").requested() == [{"a", "b", "c"}]


def test_a_review_samples_the_log_and_forgets_evictions() -> None:
    master = Master(ALL_IN_SYNC, begun_ns=NOW_NS - LONGEST_NS)
    master.review.evict("b", NOW_NS, lost=False)
    assert master.requested() == [] and not master.review.evicting
    assert master.review.lag.behind(END - 1, END, NOW_NS)[0] == LONGEST_NS
    assert master.review.lag.behind(END, END + 1, NOW_NS)[0] == 0
