"""Changes of members that a leader may propose: every small state of an HA group and of one with
majorities, against the rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations, product
from random import Random

import pytest

from ledgermq.proto.types import HardState, Role
from ledgermq.raft.config import HaRules, Members, RaftConfig, Rule, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.ha_control import Appointment
from ledgermq.raft.isr import Eviction
from ledgermq.raft.log_view import LogView
from ledgermq.raft.member_changes import UNSENT_AT_MOST
from ledgermq.raft.membership import Change, MemberChange, NotYet, changed
from ledgermq.raft.messages import Extent
from ledgermq.raft.progress import Stage
from ledgermq.raft.transfer import Cause
from tests.raft.test_raft_members import change, commit, heard, leading
from tests.raft.test_raft_paper import LATER, VOTERS, leader

LONGEST_NS, STALL_NS = Timing().election_max_ns, Timing().stall_ns


def master(in_sync: tuple[str, ...], minimum: int, *silent: str) -> Core:
    """Master `a` of epoch 3 with a committed entry, and the others, which have everything; some
    were not heard for too long."""
    config = RaftConfig("a", VOTERS, 1, rule=Rule.IN_SYNC, ha=HaRules(minimum=minimum))
    raft = Core(config, LogView([(0, 0), (1, 1)], 1), HardState(2), Random(1), 0, commit_index=1)
    raft.appointed(
        Appointment(
            generation=0, version=1, epoch=3, master="a", in_sync=dict.fromkeys(in_sync, "")
        ),
        LATER,
    )
    assert raft.role is Role.LEADER
    raft.appended(Extent(2, 2, 3, 100))
    commit(raft, "b", "c")
    assert raft.commit_index == 2
    for node in silent:
        raft.peers[node].contact_ns = LATER - LONGEST_NS
    return raft


SILENT = list(chain.from_iterable(combinations("bc", count) for count in range(3)))


@pytest.mark.parametrize("minimum", [1, 2, 3])
@pytest.mark.parametrize("in_sync", [("a",), ("a", "b"), VOTERS])
def test_removed_or_lost_voter_leaves_the_in_sync_set_first(
    minimum: int, in_sync: tuple[str, ...]
) -> None:
    """A member of the set is first taken out of it, which begins unless too few would remain in it,
    or too few new voters can be heard. A lost directory leaves in any case. The master itself hands
    over first."""
    for kind, node, evicted, silent in product(
        (Change.REMOVE, Change.DEMOTE, Change.RETURN), "abc", ("", "b", "c"), SILENT
    ):
        if len(in_sync) < minimum:
            continue
        raft = master(in_sync, minimum, *silent)
        review = raft.election.leading.review  # type: ignore[union-attr]
        if evicted:
            review.evict(evicted, LATER + 1, lost=False)
        before = dict(review.evicting)
        asked = MemberChange(kind, node, "new" if kind is Change.RETURN else "")
        after = changed(raft.members, asked, 3)
        assert isinstance(after, Members)
        there = [voter for voter in after.voters if voter not in silent]
        stalls = kind is not Change.RETURN and len(there) < minimum
        left = len(set(in_sync) - {evicted, node})
        found = raft.propose_members(asked, LATER)
        state = kind, node, evicted, silent
        if node not in in_sync:
            assert (
                (isinstance(found, str) and "in sync of the voters" in found)
                if stalls
                else found == after
            ), state
        elif node == "a":
            assert found == "a is the master; hand over first: ledgermq transfer", state
        elif left < minimum and kind is not Change.RETURN:
            assert (
                isinstance(found, str)
                and f"would leave {left} in the in-sync set, and the group demands {minimum}"
                in found
            ), state
        elif stalls:
            assert isinstance(found, str) and "in sync of the voters" in found, state
        else:
            assert isinstance(found, NotYet) and "is being taken out of it" in found, state
            assert review.evicting == {
                **before,
                node: Eviction(LATER + STALL_NS, kind is Change.RETURN),
            }, state
            continue
        assert review.evicting == before, state


@pytest.mark.parametrize("joining", [False, True])
def test_a_node_that_was_asked_into_the_set_leaves_it_first_too(joining: bool) -> None:
    """It may be in it by now."""
    raft = master(("a", "b"), 1)
    if joining:
        raft.isr.join({"c"})
    assert (
        isinstance(raft.propose_members(MemberChange(Change.REMOVE, "c"), LATER), NotYet) is joining
    )


@pytest.mark.parametrize("silent", SILENT)
def test_a_majority_needs_most_of_the_new_voters(silent: tuple[str, ...]) -> None:
    """Whether they become more or fewer. A learner that cannot be heard is no reason against any
    other change."""
    for kind, node in (
        (Change.REMOVE, "b"),
        (Change.REMOVE, "c"),
        (Change.DEMOTE, "c"),
        (Change.RETURN, "b"),
        (Change.ADD, "d"),
    ):
        raft = leading()
        for one in silent:
            raft.peers[one].contact_ns = LATER - LONGEST_NS
        asked = MemberChange(kind, node, "new" if kind is Change.RETURN else "")
        after = changed(raft.members, asked, 2)
        assert isinstance(after, Members)
        there = [voter for voter in after.voters if voter not in silent]
        found = raft.propose_members(asked, LATER)
        if 2 * len(there) > len(after.voters):
            assert found == after
        else:
            assert (
                isinstance(found, str)
                and not isinstance(found, NotYet)
                and "would lose the quorum" in found
            )


def test_change_waits_for_handover_own_commit_and_former_change() -> None:
    """A handover, the commit of an entry of this term, and the change before."""
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, 1_000)
    assert "handed over" in _not_yet(raft)
    raft.handovers.drop()
    raft.log_state.commit_index = 0
    assert "has not committed an entry of its term 2 yet" in _not_yet(raft)
    raft.log_state.commit_index = 1
    change(raft, Change.ADD, "d")
    assert "the change before, entry 2, is not committed yet" in _not_yet(raft)
    fresh = leader()
    assert "has not committed an entry of its term" in _not_yet(fresh)


def appointed(minimum: int, epoch: int = 3, *silent: str) -> Core:
    """Master `a` of two in sync, `a` and `b`, that has appended the first entry of its epoch and
    committed nothing of it. Who is not silent has answered it."""
    raft = master(("a", "b"), minimum)
    raft.appointed(
        Appointment(
            generation=0, version=2, epoch=epoch + 1, master="a", in_sync={"a": "", "b": ""}
        ),
        LATER,
    )
    raft.appended(Extent(3, 3, epoch + 1, 100))
    for node in {"b", "c"}.difference(silent):
        raft.peers[node].boot_id = 1
    return raft


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in Change if kind is not Change.RULE])
def test_appointed_master_without_a_commit_may_return_a_directory_or_set_minimum(
    kind: Change, pending: bool
) -> None:
    """It takes back a directory, which first leaves the in-sync set, and another minimum;
    everything else waits, as it does for the change before. A leader that the controller did not
    appoint for its term may not even do these."""
    raft = appointed(2)
    if pending:
        assert isinstance(
            raft.propose_members(MemberChange(Change.MINIMUM, "", minimum=1), LATER), Members
        )
        raft.appended(
            Extent(4, 4, 4, 100, membership=True), members=replace(raft.members, minimum=1)
        )
    asked = MemberChange(kind, "c", "new", minimum=1)
    found = raft.propose_members(asked, LATER)
    if kind in (Change.RETURN, Change.MINIMUM):
        assert found == changed(raft.members, asked, 5 if pending else 4)
    else:
        assert isinstance(found, NotYet) and "has not committed an entry of its term 4 yet" in found
    again = MemberChange(Change.RETURN, "b", "new")
    assert "is being taken out of it" in str(raft.propose_members(again, LATER))
    assert raft.election.leading.review.evicting["b"].lost  # type: ignore[union-attr]
    raft.isr.appointment = Appointment(
        generation=0, version=2, epoch=3, master="a", in_sync={"a": "", "b": ""}
    )
    assert "has not committed an entry of its term 4 yet" in str(raft.propose_members(asked, LATER))


@pytest.mark.parametrize("minimum", [1, 2, 3])
@pytest.mark.parametrize("silent", SILENT)
def test_a_minimum_is_raised_only_if_it_can_be_reached(
    minimum: int, silent: tuple[str, ...]
) -> None:
    """And lowered whoever can be heard."""
    for wanted in (1, 2, 3):
        raft = appointed(minimum, 3, *silent)
        found = raft.propose_members(MemberChange(Change.MINIMUM, "", minimum=wanted), LATER)
        if wanted <= max(minimum, 3 - len(silent)):
            assert found == replace(raft.members, minimum=wanted)
        else:
            said = (
                f"{', '.join(silent)} cannot be heard, so {wanted} copies of an entry cannot be"
                " reached"
            )
            assert isinstance(found, str) and said in found
    alone = Core(
        RaftConfig("a", VOTERS, 1, rule=Rule.IN_SYNC, ha=HaRules(ack_async=True)),
        LogView([(0, 0)], 0),
        HardState(2),
        Random(1),
        0,
    )
    alone.appointed(
        Appointment(generation=0, version=1, epoch=3, master="a", in_sync={"a": ""}), LATER
    )
    assert "ack: async" in str(
        alone.propose_members(MemberChange(Change.MINIMUM, "", minimum=1), LATER)
    )


def _not_yet(raft: Core) -> str:
    found = raft.propose_members(MemberChange(Change.ADD, "e"), LATER)
    assert isinstance(found, NotYet)
    return found


LAGS = ["", "probing", "suspect", "unsent", "silent", "received"]


@pytest.mark.parametrize("lag", LAGS)
def test_caught_up_means_all_but_the_newest_entries_under_way(lag: str) -> None:
    """A learner that is to vote, and every voter when the rule is to change: everything is under
    way to it but the newest entries."""
    for promoted in (True, False):
        raft = leading()
        if promoted:
            change(raft, Change.ADD, "d")
            commit(raft, "b", "c", "d")
        node, asked = (
            ("d", MemberChange(Change.PROMOTE, "d"))
            if promoted
            else ("b", MemberChange(Change.RULE, "", rule=Rule.IN_SYNC))
        )
        peer, end = raft.peers[node], raft.log.end_index
        raft.log.append(end + 1, end + 5 + UNSENT_AT_MOST, 2)
        for other in raft.peers.values():
            other.next_index = raft.log.end_index + 1
        peer.next_index = raft.log.end_index - UNSENT_AT_MOST + (lag != "unsent")
        if lag == "probing":
            peer.stage = Stage.PROBING
        elif lag == "suspect":
            peer.suspect = True
        elif lag == "silent":
            peer.contact_ns = LATER - Timing().election_min_ns
        elif lag == "received":
            peer.received = peer.durable = 0
        found = raft.propose_members(asked, LATER)
        if lag in ("", "received"):
            assert found == changed(raft.members, asked, raft.log.end_index + 1)
        else:
            assert isinstance(found, str) and node in found
            assert (
                "has not been heard"
                if lag == "silent"
                else f"{raft.log.end_index - peer.received} entries behind entry"
            ) in found
            assert found.startswith("to change the rule every voter is needed: ") is not promoted


def test_a_rule_changes_when_the_whole_group_is_in_sync() -> None:
    """The master does not ask itself whether it keeps up."""
    asked = MemberChange(Change.RULE, "", rule=Rule.MAJORITY)
    assert "every voter must be in sync" in str(master(("a", "b"), 1).propose_members(asked, LATER))
    found = master(VOTERS, 1).propose_members(asked, LATER)
    assert found == Members(VOTERS, rule=Rule.ALL, towards=Rule.MAJORITY, since=3)


def test_which_change_is_due() -> None:
    """The rule that follows that of all, as soon as it is allowed; then the return of each voter
    that has caught up, in order."""
    raft = leading()
    raft.appended(
        Extent(2, 2, 2, 100, membership=True),
        members=Members(VOTERS, rule=Rule.ALL, towards=Rule.IN_SYNC, since=2),
    )
    assert raft.due_change(LATER) is None
    commit(raft, "b", "c")
    for node in "bc":
        raft.peers[node].next_index = raft.log.end_index + 1
    assert raft.due_change(LATER) == MemberChange(
        Change.RULE, "", reason="all voters have entry 2", rule=Rule.IN_SYNC
    )
    raft.peers["b"].contact_ns = LATER - LONGEST_NS
    assert raft.due_change(LATER) is None
    raft = leading(voters=(*VOTERS, "d", "e"))
    members = Members(VOTERS, frozenset("de"), {"d": "d2", "e": "e2"}, frozenset("de"))
    raft.appended(Extent(2, 2, 2, 100, membership=True), members=members)
    commit(raft, "b", "c")
    raft.peers["e"].contact_ns = raft.peers["d"].contact_ns = LATER
    assert raft.due_change(LATER) is None
    heard(raft, "e", 2)
    assert raft.due_change(LATER) == MemberChange(
        Change.PROMOTE, "e", reason="e has caught up with a new directory"
    )
    heard(raft, "d", 2)
    assert raft.due_change(LATER) == MemberChange(
        Change.PROMOTE, "d", reason="d has caught up with a new directory"
    )
