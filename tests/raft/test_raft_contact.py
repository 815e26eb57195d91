"""Contact of a leader with its peers, to the nanosecond: which silences give it slack, and when it
must step down."""

from __future__ import annotations

from functools import partial

import pytest

from ledgermq.proto.types import PeerProgress, Role
from ledgermq.raft.config import MS, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.membership import Change
from ledgermq.raft.messages import AppendReply, Extent
from tests.raft.test_raft_members import change, heard, leading
from tests.raft.test_raft_paper import LATER, VOTERS

BEAT_NS, LONGEST_NS = Timing().heartbeat_ns, Timing().election_max_ns
FIVE = (*VOTERS, "d", "e")


@pytest.mark.parametrize(
    ("silent_ns", "slack_ms"),
    [(2 * BEAT_NS, 0), (2 * BEAT_NS + 5 * MS, 10), (3 * BEAT_NS, 200), (5 * BEAT_NS, 600)],
)
def test_a_quorum_that_answers_late_gives_slack(silent_ns: int, slack_ms: int) -> None:
    """Twice what exceeds two heartbeat periods, as soon as the quorum is there again."""
    raft = leading()
    heard(raft, "b", 1, now_ns=LATER + silent_ns)
    assert raft.slack_ms == slack_ms


def test_a_silence_ends_when_the_quorum_is_heard_and_not_with_the_first_answer() -> None:
    """Of five, two others besides the leader: the first one alone says nothing about the quorum."""
    raft = leading(voters=FIVE)
    heard(raft, "b", 1, now_ns=LATER + 4 * BEAT_NS)
    assert raft.slack_ms == 0
    heard(raft, "c", 1, now_ns=LATER + 4 * BEAT_NS)
    assert raft.slack_ms == 400
    heard(raft, "d", 1, now_ns=LATER + 5 * BEAT_NS)
    assert raft.slack_ms < 400, "the quorum was there meanwhile"


def test_a_copy_that_did_not_count_was_not_silent() -> None:
    """Before its answers counted there was no quorum whose silence could end."""
    raft = leading("b", voters=("a", "b"))
    heard(raft, "b", 1, provisional=True, now_ns=LATER + 1)
    heard(raft, "b", 1, now_ns=LATER + 5 * BEAT_NS)
    assert raft.slack_ms == 0


@pytest.mark.parametrize("c_ago_ns", [LONGEST_NS - 1, LONGEST_NS])
def test_a_leader_checks_its_contact_when_a_copy_stops_counting(c_ago_ns: int) -> None:
    """Not only with the next heartbeat: what was a quorum is none without that copy."""
    raft = leading()
    now_ns = LATER + c_ago_ns
    for at_ns in range(LATER, now_ns, BEAT_NS // 2):
        heard(raft, "b", 1, now_ns=at_ns)
        raft.tick(at_ns)
        raft.take(at_ns)
    heard(raft, "b", 1, now_ns=now_ns)
    raft.tick(now_ns)
    raft.take(now_ns)
    assert raft.role is Role.LEADER
    heard(raft, "b", 1, provisional=True, now_ns=now_ns)
    raft.tick(now_ns)
    assert raft.role is (Role.FOLLOWER if c_ago_ns >= LONGEST_NS else Role.LEADER)


def answers(raft: Core) -> list[AppendReply]:
    """Every answer that a peer can give about a log of six entries."""
    assert raft.election.leading is not None
    reply = partial(
        AppendReply,
        sender="b",
        to="a",
        term=raft.term,
        round=raft.election.leading.round,
        boot_id=1,
    )
    indexes = range(-1, raft.log.end_index + 1)
    hints = [
        reply(rejected=True, received=hint, durable=-1, hint_term=raft.log.term_at(hint) or 0)
        for hint in indexes
    ]
    return hints + [
        reply(rejected=False, received=received, durable=durable)
        for received in indexes
        for durable in range(-1, received + 1)
    ]


@pytest.mark.parametrize("begin", range(7))
def test_no_answer_makes_a_leader_probe_below_its_begin(begin: int) -> None:
    """Whatever a peer lacks: it is asked about entries that the log has, and needs a snapshot if it
    lacks others."""

    def trimmed() -> Core:
        raft = leading()
        for node in ("b", "c"):
            heard(raft, node, 1)
        for index in range(2, 7):
            raft.appended(Extent(index, index, raft.term, 100))
        raft.synced(*raft.sync_begins())
        heard(raft, "c", 6)
        raft.take(LATER)
        if begin:
            raft.trimmed(begin)
        raft.check_invariants()
        return raft

    for number in range(len(answers(trimmed()))):
        raft = trimmed()
        raft.step(answers(raft)[number], LATER)
        raft.check_invariants()
        peer = raft.peers["b"]
        assert peer.next_index >= begin and peer.anchor() >= begin - 1
        raft.take(LATER)
        raft.check_invariants()


def test_peer_progress_reports_place_silence_snapshot_need_and_restarts() -> None:
    """Where a peer is, once that is known; how long ago it was heard; that it needs a snapshot; and
    how often logs were compared anew."""
    raft = leading("b")
    change(raft, Change.ADD, "d")
    heard(raft, "b", 2, durable=1)
    now_ns = LATER + 250 * MS
    raft.peers["d"].needs_snapshot = True
    raft.restarts["c"] = 3
    assert raft.peer_progress() == (
        PeerProgress("b", Role.FOLLOWER, 2, 1, 0, False, 0),
        PeerProgress("c", Role.FOLLOWER, None, None, 0, False, 3),
        PeerProgress("d", Role.LEARNER, None, None, 0, True, 0),
    )
    raft.tick(now_ns)
    assert [found.silent_ms for found in raft.peer_progress()] == [250, 250, 250]
