"""Cluster time on one node: what a minority of wrong clocks can do to it, and how fast it follows
clocks that are set right."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.node.replica.consensus.cluster_clock import (
    EXPIRES_NS,
    REVIEW_NS,
    ClockState,
    ClusterClock,
)
from ledgermq.raft.config import MS

SECOND = 1000 * MS
DAY = 86_400 * SECOND
BEGAN = 1_800_000_000 * SECOND
"""The true time at which every test begins."""
MAX = SECOND
ROUND_TRIP = 2 * MS


class Nodes:
    """Node 0 has the clock under test; the others are heard when a test says so. `errors`: what
    each wall clock is wrong by."""

    def __init__(
        self, count: int, errors: dict[int, int] | None = None, silent: tuple[int, ...] = ()
    ) -> None:
        self.errors = {k: 0 for k in range(count)} | (errors or {})
        self.true = BEGAN
        self.steady = 77 * SECOND
        self.clock = ClusterClock(
            "n0", max_offset_ms=MAX // MS, steady_ns=self.steady, wall_ns=self.wall(0)
        )
        self.clock.expect(f"n{k}" for k in range(count))
        for k in silent:
            self.clock.silent(f"n{k}")

    def wall(self, node: int) -> int:
        return self.true + self.errors[node]

    def go_on(self, duration: int) -> None:
        self.true += duration
        self.steady += duration

    def suspend(self, duration: int) -> None:
        """The machine stands still: its steady clock does, too."""
        self.true += duration

    def hear(self, *nodes: int, round_trip: int = ROUND_TRIP, early: int = ROUND_TRIP // 2) -> None:
        """Ask these nodes, which answer after `early` of the round trip."""
        for node in nodes:
            asked = self.steady
            self.go_on(early)
            wall = self.wall(node)
            self.go_on(round_trip - early)
            self.clock.heard(
                f"n{node}",
                wall_ns=wall,
                asked_ns=asked,
                answered_ns=self.steady,
                own_wall_ns=self.wall(0),
            )

    @property
    def error(self) -> int:
        """Cluster time less the true time, in ns; what is lost by counting in ms makes no
        difference here."""
        return self.clock.now_ms(self.steady, self.wall(0)) * MS - self.true

    @property
    def state(self) -> ClockState:
        return self.clock.standing(self.steady, self.wall(0)).state


WRONG = (400 * DAY, -400 * DAY, 2 * MAX, -2 * MAX)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_no_minority_moves_cluster_time_by_more_than_the_largest_offset(count: int) -> None:
    """All ways in which clocks are heard or not and become wrong, after all were right: time goes
    on truly if a majority is right."""
    for wrong in product((0, *WRONG), repeat=count):
        if 2 * sum(map(bool, wrong)) >= count:
            continue
        for heard in product((False, True), repeat=count - 1):
            nodes = Nodes(count)
            nodes.hear(*range(1, count))
            assert abs(nodes.error) <= MS
            nodes.errors = dict(enumerate(wrong))
            nodes.go_on(SECOND)
            assert abs(nodes.error) <= 2 * MS
            nodes.hear(*[node for node, known in enumerate(heard, 1) if known])
            assert abs(nodes.error) <= 2 * MS
            nodes.go_on(2 * EXPIRES_NS)
            assert abs(nodes.error) <= 2 * MS


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_wrong_clock_at_the_first_start_is_never_gone_by_once_a_majority_was_heard(
    count: int,
) -> None:
    """Whoever leads has heard a majority of its group: the round of greetings comes before the
    first packet."""
    for wrong in product((0, *WRONG), repeat=count):
        if 2 * sum(map(bool, wrong)) >= count:
            continue
        for heard in product((False, True), repeat=count - 1):
            if 2 * (1 + sum(heard)) <= count:
                continue
            nodes = Nodes(count, dict(enumerate(wrong)))
            nodes.hear(*[node for node, known in enumerate(heard, 1) if known])
            right = sum(not wrong[node] for node, known in enumerate((True, *heard)) if known)
            if (
                2 * right > count
                or sum(bool(wrong[node]) for node, known in enumerate((True, *heard)) if known)
                < right
            ):
                assert abs(nodes.error) <= MAX + 2 * MS
            assert (
                nodes.error
                <= max(0, *(wrong[node] for node, known in enumerate((True, *heard)) if known))
                + MAX
            )
            if all(heard):
                assert abs(nodes.error) <= MAX + 2 * MS


def test_a_clock_that_is_ahead_for_three_seconds() -> None:
    """400 days: time goes on steadily, the state is told, and the clock is followed again
    afterwards."""
    nodes, states = Nodes(3), []
    nodes.hear(1, 2)
    for second in range(9):
        nodes.errors[0] = 400 * DAY if 3 <= second < 6 else 0
        assert abs(nodes.error) <= 2 * MS
        nodes.hear(1, 2)
        assert abs(nodes.error) <= 2 * MS
        states.append(nodes.state)
        nodes.go_on(SECOND)
        assert abs(nodes.error) <= 2 * MS
    assert states == [ClockState.AGREED] * 3 + [ClockState.OFF] * 3 + [ClockState.AGREED] * 3
    standing = nodes.clock.standing(nodes.steady, nodes.wall(0))
    assert (standing.steps, standing.last_step_ms, standing.offset_ms) == (2, -400 * DAY // MS, 0)
    assert (standing.heard, standing.nodes) == (3, 3)


@pytest.mark.parametrize("error", [400 * DAY, -400 * DAY])
def test_a_leader_with_a_wrong_clock_prefers_the_others(error: int) -> None:
    nodes = Nodes(3, {0: error})
    nodes.hear(1, 2)
    assert nodes.state is ClockState.OFF
    assert nodes.clock.standing(nodes.steady, nodes.wall(0)).offset_ms * MS == pytest.approx(
        error, abs=MAX + MS
    )
    assert [nodes.clock.agrees(f"n{k}") for k in range(3)] == [False, True, True]


def test_the_wrong_clock_of_another_node_is_known() -> None:
    nodes = Nodes(3, {2: 5 * SECOND})
    assert [nodes.clock.agrees(f"n{k}") for k in range(3)] == [None, None, None]
    nodes.hear(1, 2)
    assert nodes.state is ClockState.AGREED
    assert [nodes.clock.agrees(f"n{k}") for k in range(3)] == [True, True, False]


def test_two_nodes_that_disagree_go_on_steadily() -> None:
    """Neither has a majority against the other; both tell."""
    nodes = Nodes(2)
    nodes.hear(1)
    for node, error in ((0, 400 * DAY), (1, 400 * DAY), (0, -DAY)):
        nodes.errors = {0: 0, 1: 0, node: error}
        nodes.go_on(SECOND)
        assert abs(nodes.error) <= 3 * MS
        nodes.hear(1)
        assert nodes.state is ClockState.DIVIDED
        assert abs(nodes.error) <= 3 * MS
    nodes.errors = {0: 7 * SECOND, 1: 7 * SECOND}
    nodes.hear(1)
    nodes.hear(1)
    assert nodes.state is ClockState.AGREED
    assert abs(nodes.error - 7 * SECOND) <= MS


def test_a_step_before_the_first_agreement_is_not_gone_by_once_a_majority_was_heard() -> None:
    """What was heard is forgotten then, or expires: time goes on steadily, as after an agreement.
    Clocks that are heard again count again."""
    nodes = Nodes(3, {1: DAY, 2: -DAY})
    nodes.hear(1, 2)
    assert nodes.state is ClockState.DIVIDED
    assert abs(nodes.error) <= 2 * MS
    nodes.errors[0] = 400 * DAY
    for duration in (MS, REVIEW_NS, 2 * EXPIRES_NS):
        nodes.go_on(duration)
        assert abs(nodes.error) <= 2 * MS
        assert nodes.state is ClockState.UNCERTAIN
    nodes.hear(1, 2)
    assert nodes.state is ClockState.DIVIDED
    assert abs(nodes.error - DAY) <= 2 * MS
    nodes.go_on(2 * EXPIRES_NS)
    assert abs(nodes.error - DAY) <= 2 * MS
    nodes.errors[1] = 0
    nodes.hear(1)
    assert abs(nodes.error) <= 2 * MS, "two of three had reached it"


def test_a_node_alone_goes_by_its_own_clock_and_counts_its_steps() -> None:
    nodes = Nodes(1)
    for error in (0, 400 * DAY, 0):
        nodes.errors[0] = error
        assert abs(nodes.error - error) <= MS
        assert nodes.state is ClockState.AGREED
    assert nodes.clock.standing(nodes.steady, nodes.wall(0)).steps == 2


def test_nodes_that_do_not_tell_their_clock_do_not_count() -> None:
    """Among older programs a node goes by its own clock, as they do; one that is upgraded counts
    from then on."""
    nodes = Nodes(3, silent=(1, 2))
    nodes.errors[0] = DAY
    assert abs(nodes.error - DAY) <= MS
    nodes.hear(1, 2)
    assert nodes.state is ClockState.OFF
    assert abs(nodes.error) <= MAX + MS
    nodes.clock.silent("n1")
    nodes.clock.silent("n2")
    assert abs(nodes.error - DAY) <= MS


def test_suspended_machine_agrees_on_time_after_hearing_the_others() -> None:
    """Its steady clock stood still, so what it heard before is forgotten: it is behind until then,
    and never told to be off."""
    nodes = Nodes(3)
    nodes.hear(1, 2)
    assert nodes.state is ClockState.AGREED
    nodes.suspend(3600 * SECOND)
    assert nodes.state is ClockState.UNCERTAIN
    assert abs(nodes.error + 3600 * SECOND) <= 2 * MS
    nodes.hear(1, 2)
    assert nodes.state is ClockState.AGREED
    assert abs(nodes.error) <= MS


def test_clock_answer_across_a_suspension_is_ignored() -> None:
    """The steady clock did not see the time between question and answer."""
    nodes = Nodes(3)
    nodes.hear(1, 2)
    asked, wall = nodes.steady, nodes.wall(1)
    nodes.suspend(60 * SECOND)
    nodes.go_on(1)
    for node in ("n1", "n2"):
        nodes.clock.heard(
            node, wall_ns=wall, asked_ns=asked, answered_ns=nodes.steady, own_wall_ns=nodes.wall(0)
        )
    assert nodes.state is ClockState.UNCERTAIN
    nodes.go_on(MS)
    nodes.hear(1, 2)
    assert nodes.state is ClockState.AGREED


def test_a_step_that_an_answer_finds_is_followed_at_once_while_nobody_was_heard() -> None:
    """The answer says nothing, having been asked for before the step was found; the own clock is
    all that is known, and the former one was wrong."""
    nodes = Nodes(3, {0: DAY})
    assert abs(nodes.error - DAY) <= MS
    asked, wall = nodes.steady, nodes.wall(1)
    nodes.errors[0] = 0
    nodes.go_on(MS)
    nodes.clock.heard(
        "n1", wall_ns=wall, asked_ns=asked, answered_ns=nodes.steady, own_wall_ns=nodes.wall(0)
    )
    assert abs(nodes.error) <= MS


@pytest.mark.parametrize("ppm", [200, -200])
def test_a_slow_drift_is_followed_as_far_as_the_others_agree_and_told_beyond(ppm: int) -> None:
    nodes = Nodes(3)
    for _ in range(7200):
        nodes.go_on(SECOND)
        nodes.errors[0] += ppm * SECOND // 1_000_000
        nodes.hear(1, 2)
        assert abs(nodes.error) <= MAX + 2 * MS
        assert nodes.state is (
            ClockState.AGREED if abs(nodes.errors[0]) <= MAX - 2 * MS else nodes.state
        )
    assert nodes.state is ClockState.OFF


def test_a_clock_at_the_border_is_not_told_in_turns() -> None:
    """It counts as right again well within the largest offset."""
    nodes, states = Nodes(3), []
    for k in range(20):
        nodes.errors[0] = MAX + (3 if k % 2 else -3) * 2 * MS
        nodes.hear(1, 2)
        nodes.hear(1, 2)
        states.append(nodes.state)
    assert states == [ClockState.AGREED] + [ClockState.OFF] * 19
    nodes.errors[0] = MAX // 2
    nodes.hear(1, 2)
    assert nodes.state is ClockState.AGREED


def test_a_minority_that_is_partitioned_off_goes_on_steadily() -> None:
    nodes = Nodes(5)
    nodes.hear(1, 2, 3, 4)
    nodes.go_on(EXPIRES_NS + SECOND)
    nodes.hear(1)
    nodes.errors = {0: 400 * DAY, 1: 400 * DAY, 2: 0, 3: 0, 4: 0}
    for _ in range(60):
        nodes.go_on(SECOND)
        nodes.hear(1)
        assert abs(nodes.error) <= 2 * MS
        assert nodes.state is ClockState.UNCERTAIN


def test_workers_of_a_node_count_once() -> None:
    """They share its clock: three workers of one wrong machine have no majority over two others."""
    clock = ClusterClock("n0.2", max_offset_ms=1000, steady_ns=0, wall_ns=BEGAN)
    clock.expect(["n0", "n0.2", "n1", "n1.2", "n1.3", "n2"])
    for worker in ("n1", "n1.2", "n1.3"):
        clock.heard(worker, wall_ns=BEGAN + DAY, asked_ns=0, answered_ns=0, own_wall_ns=BEGAN)
    clock.heard("n2", wall_ns=BEGAN, asked_ns=0, answered_ns=0, own_wall_ns=BEGAN)
    assert clock.now_ms(0, BEGAN) * MS == BEGAN
    assert clock.standing(0, BEGAN).nodes == 3


def test_slow_clock_answers_are_ignored() -> None:
    nodes = Nodes(3, {0: 5 * SECOND})
    nodes.hear(1, 2, round_trip=MAX + MS)
    assert nodes.state is ClockState.UNCERTAIN
    nodes.hear(1, 2, round_trip=MAX // 4)
    assert nodes.state is ClockState.OFF


def test_a_slow_answer_does_not_replace_a_quick_one() -> None:
    nodes = Nodes(2, {0: MAX - 3 * MS})
    nodes.hear(1)
    assert nodes.state is ClockState.AGREED
    nodes.hear(1, round_trip=MAX // 2, early=MAX // 2)
    assert nodes.state is ClockState.AGREED


def test_a_node_that_left_does_not_count() -> None:
    nodes = Nodes(3, {0: DAY})
    nodes.hear(1, 2)
    assert nodes.state is ClockState.OFF
    nodes.clock.expect(["n0"])
    assert nodes.state is ClockState.AGREED
    nodes.hear(1)
    nodes.clock.silent("n1")
    assert nodes.clock.standing(nodes.steady, nodes.wall(0)).nodes == 1


EVENTS = st.one_of(
    st.tuples(st.just("go on"), st.integers(0, 3 * SECOND)),
    st.tuples(st.just("suspend"), st.integers(0, 100 * SECOND)),
    st.tuples(
        st.just("hear"),
        st.tuples(st.sets(st.integers(1, 4)), st.integers(0, 300 * MS), st.floats(0, 1)),
    ),
    st.tuples(
        st.just("set"),
        st.tuples(
            st.integers(0, 4), st.sampled_from((0, 0, *WRONG, MAX // 2, -MAX // 2, MAX, 1500 * MS))
        ),
    ),
)


def play(events: list[tuple[str, object]], count: int, check: Callable[[Nodes], None]) -> Nodes:
    nodes = Nodes(count)
    nodes.hear(*range(1, count))
    for what, given_ in events:
        if what == "go on":
            nodes.go_on(given_)  # type: ignore[arg-type]
        elif what == "suspend":
            nodes.suspend(given_)  # type: ignore[arg-type]
        elif what == "hear":
            others, round_trip, share = given_  # type: ignore[misc]
            nodes.hear(
                *[node for node in others if node < count],
                round_trip=round_trip,
                early=int(share * round_trip),
            )
        else:
            node, error = given_  # type: ignore[misc]
            errors = {**nodes.errors, node: error}
            if node < count and 2 * sum(map(bool, errors.values())) < count:
                nodes.errors = errors
        check(nodes)
    return nodes


@given(st.lists(EVENTS, max_size=40), st.integers(1, 5))
@settings(max_examples=300)
def test_cluster_time_is_never_too_late_and_converges(
    events: list[tuple[str, object]], count: int
) -> None:
    """Clocks of a minority are set, machines are suspended, answers are lost and late. A little is
    allowed for what is heard over time."""

    def never_late(nodes: Nodes) -> None:
        assert nodes.error <= MAX + 20 * MS

    nodes = play(events, count, never_late)
    nodes.errors = dict.fromkeys(range(count), 0)
    for _ in range(3):
        nodes.go_on(REVIEW_NS)
        nodes.hear(*range(1, count))
    assert abs(nodes.error) <= 2 * MS
    assert nodes.state is ClockState.AGREED
