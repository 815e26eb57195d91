"""A node with too little CPU time is not dead: when a late replica campaigns, and when a leader
with late answers steps down.

Bounds, with the shortest and longest election timeout and the longest slack of `Timing`:

  without a late sign of life   a follower campaigns between the shortest and longest timeout after its last contact, and a leader
                                steps down after the longest one, as always
  with late ones                each at most `slack_max_ns` later, and as before once signs of life were on time for eight times as long
  a follower that is late       waits once more, for as long as it was late and a timeout without slack at most; the next time it campaigns
  a leader that is late         steps down as always: the others may have elected another leader

Votes and commits do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.types import Role
from ledgermq.raft.config import MS, Timing
from ledgermq.raft.core import Core
from ledgermq.raft.election_timer import SLACK_FACTOR, SLACK_FADES, ElectionTimer
from ledgermq.raft.messages import VoteReply, VoteRequest
from tests.raft.test_raft_members import heard, leading
from tests.raft.test_raft_paper import LATER, append, core, follow, leader

TIMING = Timing()
BEAT, SHORTEST, LONGEST = TIMING.heartbeat_ns, TIMING.election_min_ns, TIMING.election_max_ns
BEGIN = 10_000 * MS
MOST_MS = 600_000


def following(gaps_ns: Iterable[int] = ()) -> tuple[Core, int]:
    """A follower of `b` that received its messages at first and after each of these gaps, without a
    tick in between; and the time."""
    raft, now_ns = core([1], term=2), BEGIN
    follow(raft, append(1, 1), now_ns)
    for round_, gap_ns in enumerate(gaps_ns, 2):
        now_ns += gap_ns
        follow(raft, append(1, 1, round_=round_), now_ns)
    return raft, now_ns


def patience_ns(raft: Core, now_ns: int) -> int:
    """The time from `now_ns` until this follower campaigns, if it is ticked on time and receives no
    messages."""
    for _ in range(3):
        due_ns = raft.wake_at_ns(now_ns)
        raft.tick(due_ns)
        if raft.role is Role.CANDIDATE:
            return due_ns - now_ns
    raise AssertionError(raft)


def endurance_ns(raft: Core, now_ns: int) -> int:
    """The time from `now_ns` until this leader steps down, if it is ticked every millisecond and
    receives no messages."""
    for elapsed_ms in range(1, MOST_MS):
        raft.tick(now_ns + elapsed_ms * MS)
        if raft.role is not Role.LEADER:
            return elapsed_ms * MS
    raise AssertionError(raft)


# A follower that is late itself


def test_a_follower_that_was_late_itself_does_not_campaign_before_it_listened() -> None:
    """It got no processor time while its timer ran out: what the leader sent meanwhile waits to be
    read."""
    raft, now_ns = following()
    woken_ns = raft.wake_at_ns(now_ns) + 300 * MS
    raft.tick(woken_ns)
    assert (raft.role, raft.leader, raft.take(woken_ns).messages) == (Role.FOLLOWER, "b", ())
    read_ns = woken_ns + 50 * MS
    assert raft.wake_at_ns(woken_ns) > read_ns
    follow(raft, append(1, 1, round_=2), read_ns)
    assert raft.wake_at_ns(read_ns) >= read_ns + SHORTEST


def test_late_follower_waits_for_its_lateness_up_to_a_timeout() -> None:
    for late_ns in (BEAT, 250 * MS, 60_000 * MS):
        raft, now_ns = following()
        woken_ns = raft.wake_at_ns(now_ns) + late_ns
        raft.tick(woken_ns)
        assert raft.role is Role.FOLLOWER
        waits_ns = raft.wake_at_ns(woken_ns) - woken_ns
        assert waits_ns <= min(late_ns, LONGEST) and waits_ns >= min(late_ns, SHORTEST), late_ns


def test_a_late_follower_with_slack_waits_no_longer_than_one_without() -> None:
    """A death is noticed within the longest timeout and the longest slack, what the timer was late
    by, and one more timeout at most."""
    raft, now_ns = following([3_600_000 * MS])
    due_ns = raft.wake_at_ns(now_ns)
    assert due_ns - now_ns > TIMING.slack_max_ns
    woken_ns = due_ns + 5_000 * MS
    raft.tick(woken_ns)
    assert raft.role is Role.FOLLOWER and raft.wake_at_ns(woken_ns) <= woken_ns + LONGEST
    raft.tick(raft.wake_at_ns(woken_ns))
    assert raft.role is Role.CANDIDATE


def test_a_follower_that_is_always_late_campaigns_the_second_time() -> None:
    """Permanent lateness does not prevent an election; messages in between restart the timeout."""
    raft, now_ns = following()
    for _ in range(2):
        woken_ns = raft.wake_at_ns(now_ns) + 500 * MS
        raft.tick(woken_ns)
        assert raft.role is Role.FOLLOWER
        now_ns = woken_ns + 100 * MS
        follow(raft, append(1, 1, round_=now_ns), now_ns)
    woken_ns = raft.wake_at_ns(now_ns) + 500 * MS
    raft.tick(woken_ns)
    raft.tick(raft.wake_at_ns(woken_ns) + 500 * MS)
    assert raft.role is Role.CANDIDATE


def test_tick_less_than_a_heartbeat_late_campaigns_at_once() -> None:
    """Less than a heartbeat period is no lateness: nothing is lost on a machine with processors to
    spare."""
    raft, now_ns = following()
    raft.tick(raft.wake_at_ns(now_ns) + BEAT - 1)
    assert raft.role is Role.CANDIDATE


def test_a_replica_without_a_leader_is_not_excused() -> None:
    """At a start, and once a campaign came to nothing, there is no leader that could have been
    missed."""
    raft = core([1], term=2)
    raft.tick(raft.wake_at_ns(0) + 60_000 * MS)
    assert raft.role is Role.CANDIDATE


def test_a_leader_that_was_late_itself_still_steps_down() -> None:
    """Others may have been elected while it stood still; it does not take a call as leader before
    it knows."""
    raft = leading()
    raft.tick(LATER + LONGEST + 1000 * MS)
    assert raft.role is Role.FOLLOWER


# Signs of life that come late


@pytest.mark.parametrize("gaps_ms", [(), (100,), (101, 99, 130, 200, 100)])
def test_timely_heartbeats_leave_timeouts_unchanged(gaps_ms: tuple[int, ...]) -> None:
    """One lost heartbeat is not late either."""
    raft, now_ns = following(gap * MS for gap in gaps_ms)
    assert SHORTEST <= patience_ns(raft, now_ns) <= LONGEST


@pytest.mark.parametrize("gap_ms", [250, 390, 700])
def test_a_leader_that_was_heard_late_is_given_twice_as_much_longer(gap_ms: int) -> None:
    raft, now_ns = following([gap_ms * MS])
    slack_ns = SLACK_FACTOR * (gap_ms * MS - 2 * BEAT)
    assert raft.timer.slack_ns(now_ns) == slack_ns
    assert SHORTEST + slack_ns <= patience_ns(raft, now_ns) <= LONGEST + slack_ns


def test_the_latest_sign_of_life_does_not_make_up_for_a_later_one_before() -> None:
    raft, now_ns = following([500 * MS, 300 * MS])
    assert raft.timer.slack_ns(now_ns) == SLACK_FACTOR * 300 * MS - 300 * MS // SLACK_FADES


def test_slack_is_bounded_and_so_is_the_time_until_a_death_is_noticed() -> None:
    raft, now_ns = following([3_600_000 * MS])
    assert raft.timer.slack_ns(now_ns) == TIMING.slack_max_ns
    assert patience_ns(raft, now_ns) <= LONGEST + TIMING.slack_max_ns == 5 * LONGEST


def test_slack_is_gone_when_signs_of_life_were_on_time_for_long_enough() -> None:
    raft, now_ns = following([600 * MS, *[BEAT] * (SLACK_FADES * 800 // 100)])
    assert raft.timer.slack_ns(now_ns) == 0
    assert SHORTEST <= patience_ns(raft, now_ns) <= LONGEST


def test_the_silence_before_another_leader_is_no_late_sign_of_life() -> None:
    """The former leader was dead: the next death is detected as fast as this one."""
    raft, now_ns = following()
    now_ns += 5_000 * MS
    follow(raft, append(1, 1, term=3), now_ns)
    assert (raft.term, raft.timer.slack_ns(now_ns)) == (3, 0)


def test_a_false_alarm_is_remembered() -> None:
    """The candidate has contact with the same leader again, in the same term: the leader was not
    dead."""
    raft, now_ns = following()
    raft.tick(raft.wake_at_ns(now_ns))
    assert (raft.role, raft.leader) == (Role.CANDIDATE, None)
    follow(raft, append(1, 1, round_=2), now_ns + 900 * MS)
    assert (raft.role, raft.leader) == (Role.FOLLOWER, "b")
    assert raft.timer.slack_ns(now_ns + 900 * MS) == SLACK_FACTOR * 700 * MS


# A leader that is answered late


def test_a_leader_that_is_answered_in_time_steps_down_when_it_did() -> None:
    raft = leading()
    raft.take(LATER)
    heard(raft, "b", 1, now_ns=LATER + 150 * MS)
    assert endurance_ns(raft, LATER + 150 * MS) == LONGEST


def test_a_leader_that_is_answered_late_waits_longer_for_the_next_answer() -> None:
    raft = leading()
    raft.take(LATER)
    heard(raft, "b", 1, now_ns=LATER + 600 * MS)
    slack_ns = SLACK_FACTOR * 400 * MS
    assert raft.timer.slack_ns(LATER + 600 * MS) == slack_ns
    # It fades while it is waited for.
    assert (
        LONGEST + slack_ns - (LONGEST + slack_ns) // SLACK_FADES
        <= endurance_ns(raft, LATER + 600 * MS)
        < LONGEST + slack_ns
    )


@given(silent_ms=st.integers(0, 5_000), limit_ns=st.integers(-LONGEST, 10 * LONGEST))
def test_when_a_silence_lasts_too_long_is_known_in_advance(silent_ms: int, limit_ns: int) -> None:
    """It is the first moment at which the silence lasted as long as the slack that is left then
    allows."""
    timer = ElectionTimer(TIMING, Random(1), BEGIN, promised=False)
    timer.note_silence(silent_ms * MS, BEGIN)
    end_ns = timer.lasts_until_ns(BEGIN + limit_ns)
    assert (
        end_ns - timer.slack_ns(end_ns)
        >= BEGIN + limit_ns
        > end_ns - 1 - timer.slack_ns(end_ns - 1)
    )


def test_a_peer_that_answers_all_the_time_makes_no_quorum_late() -> None:
    """Only one of five voters answers: the silence of the others continues and does not count as
    ended."""
    raft = leader(voters=("a", "b", "c", "d", "e"))
    raft.take(LATER)
    for at_ms in range(50, 800, 50):
        raft.tick(LATER + at_ms * MS)
        raft.take(LATER + at_ms * MS)
        heard(raft, "b", 0, now_ns=LATER + at_ms * MS)
    assert (raft.role, raft.timer.slack_ns(LATER + 799 * MS)) == (Role.LEADER, 0)
    raft.tick(LATER + LONGEST)
    assert raft.role is Role.FOLLOWER


def test_the_quorum_was_late_when_the_last_peer_that_it_takes_was() -> None:
    raft = leader(voters=("a", "b", "c", "d", "e"))
    raft.take(LATER)
    for at_ms in range(50, 650, 50):
        heard(raft, "b", 0, now_ns=LATER + at_ms * MS)
    heard(raft, "c", 0, now_ns=LATER + 650 * MS)
    assert raft.timer.slack_ns(LATER + 650 * MS) == SLACK_FACTOR * 450 * MS


# What does not depend on it


def test_a_voter_with_slack_votes_as_soon_as_one_without() -> None:
    """Its own campaign waits; it grants its vote without delay to a member that detected the
    leader's death sooner."""
    raft, now_ns = following([700 * MS])
    raft.step(
        VoteRequest(sender="c", to="a", term=3, pre=False, last_index=1, last_term=1),
        now_ns + SHORTEST - 1,
    )
    assert raft.term == 2
    raft.step(
        VoteRequest(sender="c", to="a", term=3, pre=False, last_index=1, last_term=1),
        now_ns + SHORTEST,
    )
    assert raft.take(now_ns + SHORTEST).messages[-1] == VoteReply(
        sender="a", to="c", term=3, pre=False, granted=True
    )
    assert raft.voted_for == "c"


@pytest.mark.parametrize("seed", range(20))
def test_changing_slack_never_elects_within_the_shortest_timeout(
    seed: int,
) -> None:
    """The invariant of `State._restart_election_timer`: with any slack, and any timing of ticks,
    the follower neither campaigns nor votes for another member within the shortest election timeout
    after contact with the leader."""
    chance = Random(seed)
    raft, now_ns = following()
    slacks = set()
    for round_ in range(2, 100):
        heard_ns = now_ns
        while chance.random() < 0.8:
            now_ns += round(chance.expovariate(1 / (100 * MS)))
            raft.tick(now_ns)
            if now_ns - heard_ns < SHORTEST:
                raft.step(
                    VoteRequest(
                        sender="c",
                        to="a",
                        term=3,
                        pre=chance.random() < 0.5,
                        last_index=1,
                        last_term=1,
                    ),
                    now_ns,
                )
                assert (raft.role, raft.term, raft.leader) == (Role.FOLLOWER, 2, "b")
                assert not any(
                    message.granted
                    for message in raft.take(now_ns).messages
                    if isinstance(message, VoteReply)
                )
        now_ns += round(chance.expovariate(1 / (100 * MS)))
        follow(raft, append(1, 1, round_=round_), now_ns)
        assert (
            now_ns + SHORTEST <= raft.wake_at_ns(now_ns) <= now_ns + LONGEST + TIMING.slack_max_ns
        )
        slacks.add(raft.timer.slack_ns(now_ns))
    assert len(slacks) > 10
