"""The election timer by itself, to the nanosecond: when it expires, which lateness excuses a
silence, and what slack adds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgermq.raft.config import MS, Timing
from ledgermq.raft.election_timer import ElectionTimer

TIMING = Timing()
BEAT_NS, SHORTEST_NS, LONGEST_NS = (
    TIMING.heartbeat_ns,
    TIMING.election_min_ns,
    TIMING.election_max_ns,
)
BEGIN_NS = 5_000 * MS
FIRST_NS, SECOND_NS = 500 * MS, 700 * MS


class Draws:
    """Chance that answers what a test wants, within the bounds that are asked for."""

    def __init__(self, *values: int) -> None:
        self._values: Iterator[int] = iter(values)

    def uniform(self, a: float, b: float, /) -> float:
        assert (a, b) == (SHORTEST_NS, LONGEST_NS)
        return float(next(self._values))


def timer(*, promised: bool = False) -> ElectionTimer:
    return ElectionTimer(
        TIMING, Draws(FIRST_NS, SECOND_NS, SHORTEST_NS), BEGIN_NS, promised=promised
    )


@pytest.mark.parametrize("promised", [False, True])
def test_new_timer_runs_a_timeout_and_keeps_a_former_promise(
    promised: bool,
) -> None:
    made = timer(promised=promised)
    assert (made.due_ns, made.last_contact_ns, made.excused) == (
        BEGIN_NS + FIRST_NS,
        BEGIN_NS,
        False,
    )
    assert made.promised_until_ns == BEGIN_NS + (SHORTEST_NS if promised else 0)
    assert (made.slack_ns(BEGIN_NS), made.lasts_until_ns(BEGIN_NS + 3)) == (0, BEGIN_NS + 3)


def test_hearing_the_leader_begins_a_new_timeout_and_contact_alone_does_not() -> None:
    """Hearing the leader does, and it ends the excuse; knowing of contact alone does not; a
    postponement is added."""
    made = timer()
    made.demand_punctuality()
    made.contact(BEGIN_NS + 1)
    made.postpone(5)
    assert (made.due_ns, made.last_contact_ns, made.excused) == (
        BEGIN_NS + FIRST_NS + 5,
        BEGIN_NS + 1,
        True,
    )
    made.heard(BEGIN_NS + 9)
    assert (made.due_ns, made.last_contact_ns, made.excused) == (
        BEGIN_NS + 9 + SECOND_NS,
        BEGIN_NS + 9,
        False,
    )


@pytest.mark.parametrize(
    "late_ns", [0, BEAT_NS - 1, BEAT_NS, SECOND_NS - 1, SECOND_NS, 10 * SECOND_NS]
)
@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("punctual", [False, True])
def test_a_replica_that_was_late_itself_waits_once_more(
    late_ns: int, follows: bool, punctual: bool
) -> None:
    """As long as it was late, at most for one timeout. Not without a leader, not for less than a
    heartbeat period, and not twice."""
    made = timer()
    if punctual:
        made.demand_punctuality()
    now_ns = made.due_ns + late_ns
    excused = follows and not punctual and late_ns >= BEAT_NS
    assert made.excuse(now_ns, follows=follows) is excused
    assert made.due_ns == (now_ns + min(late_ns, SECOND_NS) if excused else BEGIN_NS + FIRST_NS)
    assert made.excused is (excused or punctual)
    assert not made.excuse(made.due_ns + 10 * LONGEST_NS, follows=follows) or (
        follows and not excused and not punctual
    )


@pytest.mark.parametrize(
    "silent_ns",
    [0, 2 * BEAT_NS, 2 * BEAT_NS + 1, 3 * BEAT_NS, 18 * BEAT_NS, 18 * BEAT_NS + 1, 40 * BEAT_NS],
)
def test_late_signs_of_life_lengthen_the_next_timeout(silent_ns: int) -> None:
    """By twice of what exceeds two heartbeat periods, up to a limit; an eighth of the time that
    passes is taken off again."""
    made = timer()
    made.note_silence(silent_ns, BEGIN_NS)
    slack_ns = min(2 * max(0, silent_ns - 2 * BEAT_NS), 4 * LONGEST_NS)
    assert [made.slack_ns(BEGIN_NS + passed) for passed in (0, 7, 8, 80)] == [
        max(0, slack_ns - fades) for fades in (0, 0, 1, 10)
    ]
    assert [made.slack_ns(BEGIN_NS + 8 * slack_ns + more) for more in (-8, 0, 1000)] == [
        min(1, slack_ns),
        0,
        0,
    ]
    made.restart(BEGIN_NS)
    assert made.due_ns == BEGIN_NS + SECOND_NS + slack_ns


def test_a_shorter_silence_does_not_take_slack_away() -> None:
    """Nor does it begin anew what is left of an earlier slack; a longer one does."""
    made = timer()
    made.note_silence(4 * BEAT_NS, BEGIN_NS)
    made.note_silence(3 * BEAT_NS, BEGIN_NS + 80)
    assert made.slack_ns(BEGIN_NS + 80) == 4 * BEAT_NS - 10
    made.note_silence(5 * BEAT_NS, BEGIN_NS + 160)
    assert [made.slack_ns(BEGIN_NS + at) for at in (160, 240)] == [6 * BEAT_NS, 6 * BEAT_NS - 10]
