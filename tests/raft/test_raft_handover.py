"""Handovers by themselves: who could take over, and when each part of a handover begins and ends,
to the nanosecond."""

from __future__ import annotations

from itertools import product

import pytest

from ledgermq.proto.types import Role
from ledgermq.raft.config import MS, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.handover import objection
from ledgermq.raft.membership import Change
from ledgermq.raft.messages import Append, Extent, TimeoutNow
from ledgermq.raft.progress import Peer, Stage
from ledgermq.raft.transfer import Cause, Handover, Reason
from tests.raft.test_raft_members import change, commit, heard, leading
from tests.raft.test_raft_paper import LATER, core, follow

TIMING = Timing()
BEAT_NS, SHORTEST_NS, LONGEST_NS = (
    TIMING.heartbeat_ns,
    TIMING.election_min_ns,
    TIMING.election_max_ns,
)
PATIENCE_NS = 3_000 * MS


def told(raft: Core, now_ns: int) -> list[TimeoutNow]:
    return [message for message in raft.take(now_ns).messages if isinstance(message, TimeoutNow)]


def spoil(peer: Peer, what: str) -> None:
    """Give a peer a reason not to take over."""
    if what == "is about to stop":
        peer.leaving = True
    elif what == "lacks entries":
        peer.needs_snapshot = True
    elif what == "has not been heard for 400 ms":
        peer.contact_ns = LATER - SHORTEST_NS
    elif what == "is not known to all voters":
        peer.provisional = True
    elif what:
        peer.boot_id = None


REASONS = [
    "",
    "is about to stop",
    "lacks entries",
    "has not been heard for 400 ms",
    "is not known to all voters",
    "has not answered this leader",
]


@pytest.mark.parametrize("why", REASONS)
def test_why_a_peer_could_not_take_over(why: str) -> None:
    """It then neither keeps up nor succeeds, and a transfer to it is refused by the same words."""
    raft = leading()
    peer = raft.peers["b"]
    peer.contact_ns = LATER - SHORTEST_NS + 1
    spoil(peer, why)
    found = objection(raft.config, peer, LATER)
    assert (found is None) if not why else (found is not None and why in found and "b" in found)
    assert raft.keeps_up("b", LATER) is (not why)
    raft.peers["c"].durable = 0
    assert raft.best_successor(LATER) == ("c" if why else "b")
    assert raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS) == found


def test_the_peer_with_most_on_stable_storage_is_the_best_successor() -> None:
    """Then the one that received most. Only voters succeed, and there may be none."""
    for b, c in product(((0, 0), (0, 1), (1, 1)), repeat=2):
        raft = leading()
        for node, (durable, received) in (("b", b), ("c", c)):
            raft.peers[node].durable, raft.peers[node].received = durable, received
        assert raft.best_successor(LATER) == ("b" if b > c else "c")
    raft = leading()
    for peer in raft.peers.values():
        peer.leaving = True
    assert raft.best_successor(LATER) is None
    raft = leading()
    change(raft, Change.DEMOTE, "c")
    commit(raft, "b", "c")
    raft.peers["b"].durable = 0
    assert raft.best_successor(LATER) == "b"


@pytest.mark.parametrize(
    ("stage", "lacks", "keeps_up"),
    [(Stage.FLOWING, 0, True), (Stage.PROBING, 0, False), (Stage.FLOWING, 1, False)],
)
def test_peer_keeps_up_if_the_whole_log_is_under_way_to_it(
    stage: Stage, lacks: int, keeps_up: bool
) -> None:
    raft = leading()
    raft.peers["b"].stage = stage
    raft.peers["b"].next_index -= lacks
    assert raft.keeps_up("b", LATER) is keeps_up
    assert not raft.keeps_up("x", LATER)
    follower = leading()
    follow(
        follower,
        Append(sender="b", to="a", term=3, round=1, prev_index=1, prev_term=2, commit_index=1),
        LATER,
    )
    assert not follower.keeps_up("b", LATER) and follower.best_successor(LATER) is None


def test_a_handover_that_is_asked_for_again_lasts_longer_and_never_shorter() -> None:
    raft = leading()
    raft.peers["b"].next_index -= 1
    assert raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS) is None
    assert raft.handover == Handover("b", Cause.OPERATOR, LATER + PATIENCE_NS)
    for patience_ns, until_ns in ((1, PATIENCE_NS), (PATIENCE_NS + 5, PATIENCE_NS + 5)):
        assert raft.transfer("b", Cause.PREFERRED, LATER, patience_ns) is None
        assert raft.handover == Handover("b", Cause.OPERATOR, LATER + until_ns)
    assert "handed over to b already" in str(raft.transfer("c", Cause.OPERATOR, LATER, PATIENCE_NS))
    assert "x is no voter of this group; its voters are a, b, c" in str(
        raft.transfer("x", Cause.OPERATOR, LATER, PATIENCE_NS)
    )


@pytest.mark.parametrize("early", [1, 0])
def test_a_target_that_does_not_come_near_in_time(early: int) -> None:
    """The leader then goes on, accepts as before, and says why; the next handover begins anew."""
    raft = leading()
    raft.appended(Extent(2, 2, 2, 100))
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS)
    now_ns = LATER + PATIENCE_NS - early
    for at_ns in range(LATER, now_ns, BEAT_NS):
        heard(raft, "c", 1, now_ns=at_ns)
        raft.tick(at_ns)
        raft.take(at_ns)
    heard(raft, "c", 1, now_ns=now_ns)
    raft.tick(now_ns)
    assert (raft.handover is None) is (not early) and raft.accepting
    if not early:
        assert (
            raft.handover_failure
            == "b did not come near the end of the log in time: it holds entry 1 of 2"
        )
        assert raft.calm_until(now_ns) is None
        heard(raft, "b", 1, now_ns=now_ns)
        assert (
            raft.transfer("b", Cause.OPERATOR, now_ns, PATIENCE_NS) is None
            and raft.handover_failure == ""
        )


@pytest.mark.parametrize("durable", [1, 2])
def test_the_closed_part_lasts_for_one_election_timeout(durable: int) -> None:
    """Nothing is accepted meanwhile, and everything is to be synced at once. No caller makes it
    longer; afterwards the leader goes on."""
    raft = leading()
    raft.appended(Extent(2, 2, 2, 100), urgent=False)
    raft.synced(*raft.log_state.begin_sync())
    raft.take(LATER)
    raft.peers["b"].pushed(Extent(2, 2, 2, 100), 9, LATER)
    assert raft.urgent_index < 2
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS)
    assert told(raft, LATER) == [] and not raft.accepting and raft.urgent_index == 2
    assert raft.handover == Handover("b", Cause.OPERATOR, LATER + LONGEST_NS, closed=True)
    assert raft.transfer("b", Cause.OPERATOR, LATER, 10 * PATIENCE_NS) is None
    assert raft.handover is not None and raft.handover.until_ns == LATER + LONGEST_NS, (
        "the closed part is never extended"
    )
    heard(raft, "b", 2, durable=durable)
    heard(raft, "c", 2)
    assert len(told(raft, LATER)) == (durable == 2)
    assert raft.wake_at_ns(LATER) <= LATER + LONGEST_NS
    for now_ns in range(LATER, LATER + LONGEST_NS + 1, BEAT_NS):
        assert not raft.accepting and raft.role is Role.LEADER
        heard(raft, "c", 2, now_ns=now_ns)
        raft.tick(now_ns)
        raft.take(now_ns)
    assert raft.accepting
    assert raft.handover_failure == (
        "b was told to take over and did not do so within 800 ms"
        if durable == 2
        else "b did not store the last entries in time: entry 1 of 2 is durable there"
    )


def test_a_target_is_told_again_with_every_heartbeat_period() -> None:
    raft = leading()
    raft.transfer("b", Cause.PREFERRED, LATER, PATIENCE_NS)
    for after_ns, count in (
        (0, 1),
        (0, 0),
        (BEAT_NS - 1, 0),
        (BEAT_NS, 1),
        (2 * BEAT_NS - 1, 0),
        (2 * BEAT_NS, 1),
    ):
        heard(raft, "b", 1, now_ns=LATER + after_ns)
        assert (
            told(raft, LATER + after_ns)
            == [
                TimeoutNow(
                    sender="a", to="b", term=2, last_index=1, last_term=2, cause=Cause.PREFERRED
                )
            ]
            * count
        )


@pytest.mark.parametrize("lacks", ["received", "durable", "commit", ""])
def test_timeout_now_waits_until_the_target_has_the_committed_log_durable(lacks: str) -> None:
    """Otherwise a caller would have to find out what became of its entry."""
    raft = leading()
    raft.appended(Extent(2, 2, 2, 100))
    raft.synced(*raft.sync_begins())
    raft.take(LATER)
    raft.peers["b"].pushed(Extent(2, 2, 2, 100), 9, LATER)
    peer = raft.peers["b"]
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS)
    peer.received, peer.durable, raft.log_state.commit_index = (
        2 - (lacks == "received"),
        2 - (lacks == "durable"),
        2 - (lacks == "commit"),
    )
    raft.stirred = True
    assert len(told(raft, LATER)) == (not lacks)


def test_a_target_that_leaves_ends_the_handover() -> None:
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS)
    raft.peers["b"].leaving = True
    assert told(raft, LATER) == [] and raft.handover is None
    assert raft.handover_failure == "b is about to stop"


@pytest.mark.parametrize(("notified", "sender", "cause"), [
    (False, "b", Cause.HIGHER_TERM), (True, "c", Cause.HIGHER_TERM), (True, "b", Cause.OPERATOR),
])  # fmt: skip
def test_why_a_leader_yields(notified: bool, sender: str, cause: Cause) -> None:
    """Its own handover is the reason only for the target that it told."""
    raft = leading()
    assert raft.handovers.reason_to_yield(sender) == Reason(Cause.HIGHER_TERM, sender)
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS)
    assert raft.handover is not None
    raft.handover.notified = notified
    assert raft.handovers.reason_to_yield(sender) == Reason(cause, sender)


def test_a_role_begins_without_a_handover() -> None:
    """And without a retirement; what an earlier term failed to hand over is no failure of this
    one."""
    fresh = core().handovers
    assert (fresh.current, fresh.failure, fresh.leaving, fresh.retiring) == (None, "", False, False)
    raft = leading()
    raft.transfer("b", Cause.OPERATOR, LATER, PATIENCE_NS)
    raft.handovers.retire()
    raft.handovers.drop()
    assert (raft.handover, raft.handovers.retiring) == (None, False)
    raft.handovers.failure = "why"
    raft.handovers.begin_leading()
    assert raft.handover_failure == ""
