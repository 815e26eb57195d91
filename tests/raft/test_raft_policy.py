"""The three policies by themselves: every small state of votes, copies and contacts, against the
rule written down again."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import pytest

from ledgermq.raft.config import HaRules, Members, RaftConfig, Rule, Timing
from ledgermq.raft.effects import Outbox
from ledgermq.raft.election_timer import ElectionTimer
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.isr import Isr
from ledgermq.raft.log_state import LogState
from ledgermq.raft.log_view import LogView
from ledgermq.raft.policy import POLICIES, All, InSync, Majority, Policy, is_there
from ledgermq.raft.progress import Peer
from ledgermq.raft.quorum import Ballot
from ledgermq.raft.window import Window

VOTERS = ("a", "b", "c")
OTHERS = ("b", "c")
NOW_NS = 10_000_000_000
TIMING = Timing()
USUAL = HaRules()
LONGEST_NS = TIMING.election_max_ns


def policy(
    rule: Rule,
    in_sync: Mapping[str, str] | None = None,
    ha: HaRules = USUAL,
    voters: tuple[str, ...] = VOTERS,
    observers: frozenset[str] = frozenset(),
    minimum: int = 0,
) -> Policy:
    """That of replica `a`. `in_sync`: what the controller agreed on; None: nothing yet."""
    towards = Rule.MAJORITY if rule is Rule.ALL else None
    members = Members(
        voters, learners=observers, observers=observers, rule=rule, towards=towards, minimum=minimum
    )
    config = RaftConfig("a", voters, 1, ha=ha)
    log = LogState(LogView([(0, 1)], 9), -1)
    isr = Isr(config, log, Outbox())
    if in_sync is not None:
        isr.learn(Appointment(generation=0, version=1, epoch=1, master="a", in_sync=in_sync), 0)
    timer = ElectionTimer(TIMING, random.Random(1), 0, promised=False)
    return POLICIES[rule](members, config, log, isr, timer)


def peer(node: str, **fields: object) -> Peer:
    """A peer that was heard just now."""
    made = Peer(node, 0, NOW_NS, Window(TIMING))
    made.boot_id = 1
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def at(members: Members) -> Callable[[int], Members]:
    """These members at every entry."""
    return lambda _: members


def heard(**ago_ns: int) -> dict[str, Peer]:
    """Peers that were heard so long ago."""
    return {node: peer(node, contact_ns=NOW_NS - ago) for node, ago in ago_ns.items()}


@pytest.mark.parametrize(
    "votes",
    [dict(zip(VOTERS, states, strict=True)) for states in product((True, False, None), repeat=3)],
)
def test_ballots_in_every_state(votes: dict[str, bool | None]) -> None:
    """A majority elects, or all voters, or all of the in-sync set: voters outside of it change
    nothing."""
    answered = {node: vote for node, vote in votes.items() if vote is not None}
    granted, refused = list(votes.values()).count(True), list(votes.values()).count(False)
    assert policy(Rule.MAJORITY).ballot(answered) is (
        Ballot.WON if granted >= 2 else Ballot.LOST if refused >= 2 else Ballot.PENDING
    )
    unanimous = Ballot.LOST if refused else Ballot.WON if granted == 3 else Ballot.PENDING
    assert policy(Rule.ALL).ballot(answered) is unanimous
    assert policy(Rule.IN_SYNC).ballot(answered) is unanimous, (
        "before the first agreement all voters are in sync"
    )
    asked = [votes["a"], votes["b"]]
    of_set = Ballot.LOST if False in asked else Ballot.PENDING if None in asked else Ballot.WON
    assert policy(Rule.IN_SYNC, {"a": "", "b": ""}).ballot(answered) is of_set


@pytest.mark.parametrize("own, b, c", list(product(range(3), repeat=3)))
def test_quorum_reaches_the_index_of_its_rule(own: int, b: int, c: int) -> None:
    """The copies of two of three, of all, or of the in-sync set. A provisional copy and an unknown
    peer count as no copy."""
    copies = {"b": peer("b", durable=b), "c": peer("c", durable=c)}
    for rule, expected in (
        (Rule.MAJORITY, sorted((own, b, c))[1]),
        (Rule.ALL, min(own, b, c)),
        (Rule.IN_SYNC, min(own, b, c)),
    ):
        assert policy(rule).reached(own, copies, lambda of: of.durable) == expected
    assert policy(Rule.IN_SYNC, {"a": "", "c": ""}).reached(
        own, copies, lambda of: of.durable
    ) == min(own, c)
    assert policy(Rule.MAJORITY).reached(own, {"b": copies["b"]}, lambda of: of.durable) == min(
        own, b
    )
    copies["c"].provisional = True
    assert policy(Rule.MAJORITY).reached(own, copies, lambda of: of.durable) == min(own, b)


def test_a_leader_that_is_no_voter_does_not_count_itself() -> None:
    copies = {"b": peer("b", durable=5), "c": peer("c", durable=3)}
    assert policy(Rule.MAJORITY, voters=OTHERS).reached(9, copies, lambda of: of.durable) == 3


def test_a_node_that_was_asked_into_the_set_is_waited_for() -> None:
    """It may be in the set already, so its copy is required; but it cannot be elected yet."""
    found = policy(Rule.IN_SYNC, {"a": ""})
    assert set(found.required()) == {"a"}
    found._isr.join({"b"})  # the master's request
    assert set(found.required()) == {"a", "b"} and set(found.electors()) == {"a"}


@pytest.mark.parametrize(
    "minimum, in_sync, durable, observes",
    list(product((1, 2, 3), (VOTERS, ("a", "b"), ("a",)), range(4), (False, True))),
)
def test_below_the_minimum_copies_outside_of_the_set_count(
    minimum: int, in_sync: tuple[str, ...], durable: int, observes: bool
) -> None:
    """Entry 2, with `c`, `b` and a learner that have it or not; an observer never counts, nor does
    a peer that lacks the entry by which it is known (`named_at`)."""
    learner = frozenset({"d"})
    made = policy(
        Rule.IN_SYNC,
        dict.fromkeys(in_sync, ""),
        HaRules(minimum=minimum),
        observers=learner if observes else frozenset(),
    )
    copies = {node: peer(node, durable=durable) for node in (*OTHERS, "d")}
    outside = [node for node in VOTERS if node not in in_sync]
    enough = len(in_sync) + (len(outside) if durable >= 2 else 0) >= minimum
    assert made.may_commit(2, copies, at(made.members)) is enough
    copies["c"].named_at = 3
    with_c = durable >= 3 or "c" in in_sync
    counted = [node for node in outside if durable >= 2 and (node != "c" or with_c)]
    assert made.may_commit(2, copies, at(made.members)) is (len(in_sync) + len(counted) >= minimum)
    assert made.may_commit(2, {}, at(made.members)) is (len(in_sync) >= minimum)


@pytest.mark.parametrize("returning", [False, True])
def test_a_copy_that_does_not_count_fills_no_minimum_unless_its_node_returns(
    returning: bool,
) -> None:
    """The record of its return could not be committed otherwise."""
    made = policy(Rule.IN_SYNC, {"a": ""}, HaRules(minimum=2), ("a",) if returning else ("a", "b"))
    members = (
        replace(made.members, learners=frozenset("b"), returning=frozenset("b"))
        if returning
        else made.members
    )
    made.members = members
    for provisional in (False, True):
        copies = {"b": peer("b", durable=2, provisional=provisional)}
        assert made.may_commit(2, copies, at(members)) is (returning or not provisional)


def test_only_in_ha_groups_may_copies_be_too_few() -> None:
    for rule in (Rule.MAJORITY, Rule.ALL):
        made = policy(rule)
        assert made.may_commit(2, {}, at(made.members)) is True


@pytest.mark.parametrize(
    "configured, recorded, at_entry", list(product((1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)))
)
def test_a_recorded_minimum_counts_from_its_entry_on(
    configured: int, recorded: int, at_entry: int
) -> None:
    """An entry needs as many copies as the members demanded when it was made; whether calls are
    refused, and whether a member may go, depends on what the members demand now. With ack: async
    the master's copy is enough whatever is recorded."""
    made = policy(Rule.IN_SYNC, {"a": ""}, HaRules(minimum=configured), minimum=recorded)
    assert made.may_commit(2, {}, at(replace(made.members, minimum=at_entry))) is (
        (at_entry or configured) == 1
    )
    now = recorded or configured
    assert made.missing_isr(NOW_NS, {}) == now - 1
    assert (made.would_stall(VOTERS, ["a"], leaves=True) is None) is (now == 1)
    alone = policy(Rule.IN_SYNC, {"a": ""}, HaRules(ack_async=True), minimum=recorded)
    assert alone.missing_isr(NOW_NS, {}) == 0 and alone.may_commit(2, {}, at(alone.members))


@pytest.mark.parametrize("ago_ns", [0, LONGEST_NS - 1, LONGEST_NS, LONGEST_NS + 1])
def test_a_peer_is_there_if_it_was_heard_within_the_time(ago_ns: int) -> None:
    """The limit itself is too long. A peer that never answered and a provisional one are not
    there."""
    found = peer("b", contact_ns=NOW_NS - ago_ns)
    assert is_there(found, NOW_NS, LONGEST_NS) is (ago_ns < LONGEST_NS)
    assert not is_there(None, NOW_NS, LONGEST_NS)
    assert not is_there(peer("b", boot_id=None), NOW_NS, LONGEST_NS)
    assert not is_there(peer("b", provisional=True), NOW_NS, LONGEST_NS)


@pytest.mark.parametrize(
    "b, c", list(product((0, LONGEST_NS - 1, LONGEST_NS, LONGEST_NS + 5), repeat=2))
)
def test_how_long_a_leader_lacked_contact(b: int, c: int) -> None:
    """Two of three, or all three, heard within the longest election timeout; a leader hears
    itself."""
    peers = heard(b=b, c=c)
    for rule, silent_ns in ((Rule.MAJORITY, min(b, c)), (Rule.ALL, max(b, c))):
        found = policy(rule)
        assert found.quorum_contact_ns(NOW_NS, peers) == NOW_NS - silent_ns
        assert found.silence_ns(NOW_NS, peers) == (silent_ns if silent_ns >= LONGEST_NS else 0)
        assert found.contact_limit_ns(NOW_NS, peers, 7) == NOW_NS - silent_ns + LONGEST_NS


def test_late_answers_give_a_leader_more_time() -> None:
    """Slack is added to the timeout."""
    found = policy(Rule.MAJORITY)
    found._timer.note_silence(2 * LONGEST_NS, NOW_NS)
    slack_ns = found._timer.slack_ns(NOW_NS)
    assert slack_ns > 0
    for silent_ns in (LONGEST_NS + slack_ns - 1, LONGEST_NS + slack_ns):
        expected = silent_ns if silent_ns >= LONGEST_NS + slack_ns else 0
        assert found.silence_ns(NOW_NS, heard(b=silent_ns, c=silent_ns)) == expected


@pytest.mark.parametrize(
    "b, c, controller",
    list(product((0, LONGEST_NS - 1, LONGEST_NS, TIMING.alone_ns, TIMING.alone_ns + 3), repeat=3)),
)
def test_how_long_a_master_lacked_contact(b: int, c: int, controller: int) -> None:
    """One other node of the set, or the controller, is enough; the others do not matter."""
    for in_sync in (VOTERS, ("a", "b"), ("a",)):
        found = policy(Rule.IN_SYNC, dict.fromkeys(in_sync, ""))
        assert isinstance(found, InSync)
        found._isr.agreed_ns = NOW_NS - controller
        others = [ago for node, ago in (("b", b), ("c", c)) if node in in_sync]
        alone = bool(others) and min(others) >= LONGEST_NS
        assert found.hears_nobody(NOW_NS, heard(b=b, c=c)) is alone
        silent_ns = min([*others, controller]) if alone else 0
        assert found.silence_ns(NOW_NS, heard(b=b, c=c)) == (
            silent_ns if silent_ns >= TIMING.alone_ns else 0
        )
        assert found.contact_limit_ns(NOW_NS, heard(b=b, c=c), 7) == 7, (
            "the review of the in-sync set looks at it"
        )


def test_a_node_of_the_set_that_is_no_peer_was_never_heard() -> None:
    """Its last contact lies before any time, so the controller alone decides."""
    found = policy(Rule.IN_SYNC, {"a": "", "b": ""})
    assert isinstance(found, InSync)
    found._isr.agreed_ns = 0
    assert found.hears_nobody(LONGEST_NS - 1, {}) and not found.hears_nobody(LONGEST_NS - 2, {})
    assert found.silence_ns(TIMING.alone_ns, {}) == TIMING.alone_ns


@pytest.mark.parametrize(
    "minimum, b, c", list(product((1, 2, 3), (0, LONGEST_NS), (0, LONGEST_NS)))
)
def test_how_many_of_the_set_are_missing(minimum: int, b: int, c: int) -> None:
    """Of the minimum, not counting nodes outside of the set; the other rules have no minimum."""
    ha = HaRules(minimum=minimum)
    for in_sync in (VOTERS, ("a", "c"), ("a",)):
        there = 1 + sum(node in in_sync and not ago for node, ago in (("b", b), ("c", c)))
        found = policy(Rule.IN_SYNC, dict.fromkeys(in_sync, ""), ha)
        assert found.missing_isr(NOW_NS, heard(b=b, c=c)) == max(0, minimum - there)
    for rule in (Rule.MAJORITY, Rule.ALL):
        assert policy(rule, ha=ha).missing_isr(NOW_NS, heard(b=b, c=c)) == 0


def test_a_master_that_steps_down_lets_the_others_campaign_first() -> None:
    """It waits for one more of the longest timeouts. A leader by votes does not wait longer than
    its timeout."""
    pauses = {rule: policy(rule).pause_after_silence_ns for rule in Rule}
    assert pauses == {Rule.MAJORITY: 0, Rule.ALL: 0, Rule.IN_SYNC: LONGEST_NS}


def test_replica_in_the_agreed_set_may_campaign() -> None:
    """Under the rule of the set, a member of it, with the directory that was agreed on; everyone
    before the first agreement."""
    assert (
        policy(Rule.MAJORITY).may_campaign()
        and policy(Rule.ALL).may_campaign()
        and policy(Rule.IN_SYNC).may_campaign()
    )
    assert policy(Rule.IN_SYNC, {"a": "", "b": ""}).may_campaign()
    assert not policy(Rule.IN_SYNC, {"b": ""}).may_campaign()
    assert not policy(Rule.IN_SYNC, {"a": "another directory", "b": ""}).may_campaign()
    assert policy(Rule.IN_SYNC, {"a": "", "b": ""}).objection_to("b") is None
    assert "c is not in sync; the in-sync set is a, b" in str(
        policy(Rule.IN_SYNC, {"a": "", "b": ""}).objection_to("c")
    )
    assert policy(Rule.MAJORITY).objection_to("c") is policy(Rule.ALL).objection_to("c") is None


def test_early_claim_is_memory_of_a_quorum_or_the_own_disk() -> None:
    """The memory of a quorum; under `ack_async` the master's own disk, and never memory."""
    copies = {"b": peer("b", received=4), "c": peer("c", received=6)}
    for rule, reached in ((Rule.MAJORITY, 6), (Rule.ALL, 4), (Rule.IN_SYNC, 4)):
        assert policy(rule).early_acks is True and policy(rule).early_claim(copies) == reached
    alone = policy(Rule.IN_SYNC, ha=HaRules(ack_async=True))
    alone._log.cut_from(8)
    alone._log.merge(8, 9, 1)
    assert (alone.early_acks, alone.early_claim(copies)) == (False, 7)


@pytest.mark.parametrize("there, leaves", list(product(range(4), (False, True))))
def test_a_change_that_could_not_be_committed_is_refused(there: int, leaves: bool) -> None:
    """By votes: without a majority of the new voters. Under the rule of the set: if a voter leaves
    and the minimum is not there."""
    new, reachable = VOTERS, VOTERS[:there]
    for rule in (Rule.MAJORITY, Rule.ALL):
        said = policy(rule).would_stall(new, reachable, leaves=leaves)
        assert (said is None) is (there >= 2)
    for minimum in (1, 2, 3):
        said = policy(Rule.IN_SYNC, ha=HaRules(minimum=minimum)).would_stall(
            new, reachable, leaves=leaves
        )
        assert (said is None) is (not leaves or there >= minimum)


def test_refused_change_names_the_silent_voters() -> None:
    said = policy(Rule.MAJORITY).would_stall(VOTERS, ("a",), leaves=True)
    assert said is not None and "b, c cannot be heard" in said and "a, b, c" in said
    assert "there are no others" in str(
        policy(Rule.IN_SYNC, ha=HaRules(minimum=2)).would_stall(("a",), ("a",), leaves=True)
    )


def test_the_rule_changes_only_with_every_voter_in_sync() -> None:
    assert (
        policy(Rule.MAJORITY).objection_to_rule_change()
        is policy(Rule.ALL).objection_to_rule_change()
        is None
    )
    assert policy(Rule.IN_SYNC, dict.fromkeys(VOTERS, "")).objection_to_rule_change() is None
    assert "is a, b" in str(policy(Rule.IN_SYNC, {"a": "", "b": ""}).objection_to_rule_change())
    assert policy(Rule.IN_SYNC).objection_to_rule_change() is not None, (
        "before the first agreement nothing shows who is in sync"
    )


def test_rules_differ_in_election_stored_leader_and_pull() -> None:
    """Who elects, whether a followed leader is stored like a vote, and who pulls."""
    kinds = {
        Rule.MAJORITY: (Majority, False, False),
        Rule.ALL: (All, False, True),
        Rule.IN_SYNC: (InSync, True, True),
    }
    for rule, (kind, elects, follows) in kinds.items():
        found = policy(rule)
        assert (type(found), found.controller_elects, found.vote_follows_leader, found.pulls) == (
            kind,
            elects,
            follows,
            False,
        )
    assert policy(Rule.IN_SYNC, ha=HaRules(pull=True)).pulls is True
    assert policy(Rule.IN_SYNC).agreed is None and policy(Rule.MAJORITY, {"a": ""}).agreed is None
