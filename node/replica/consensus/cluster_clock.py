"""The time that a node goes by: its steady clock, corrected towards its wall clock as far as a
majority of the nodes' clocks agrees.

Law. *Cluster time* is the steady clock plus a correction. The correction becomes the node's own
wall clock whenever a majority of all nodes, this one included, certainly has a clock within
`max_offset_ms` of it. Otherwise the correction stays, so time goes on steadily; it moves, as little
as possible, only if a majority of the *other* nodes agrees on a time that it is too far from. So as
long as a majority of the clocks is right, no single clock moves cluster time by more than
`max_offset_ms`, and a clock that is set right again is followed again. Nothing ever waits for an
agreement.

Pure: readings of both clocks are arguments. What is known of another node is an interval: it read
its wall clock after this node asked and before this node had the answer. Intervals are relative to
this node's steady clock, so no step of this node's wall clock moves them. If wall clock and steady
clock of this node go apart, either the wall clock was set or the steady clock stood still (a
suspended machine); the second invalidates everything heard before, so it is forgotten, and time
goes on steadily until the others were heard again.

Until a majority agreed for the first time the lower median of the clocks heard applies: a time that
is too early delays something, one that is too late cannot be taken back. Once a majority was heard,
fewer clocks move nothing any more: after a step of this node's wall clock only that clock is known,
so time goes on steadily then, too. Nodes that do not tell their clock (an older program) do not
count. So a node alone, or among such nodes, goes by its own wall clock. Of two nodes both must
agree.

Store times are stamped in `node/broker/parts/sends/sequencer.py:Sequencer.assign`, which keeps them
from falling when cluster time does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ledgermq.proto.workers import node_of
from ledgermq.raft.config import MS

EXPIRES_NS = 10_000 * MS
"""What was heard longer ago counts as not heard."""
REVIEW_NS = 1_000 * MS
"""The correction is looked at again after this time at the latest."""
SLACK_NS = MS
"""The own clocks are looked at again when they went apart by more than this."""
DRIFT = 1000
"""Steady clocks differ by at most one part in so many."""


class ClockState(StrEnum):
    """What a node knows of its wall clock."""

    AGREED = "agreed"
    """A majority agrees with it."""
    UNCERTAIN = "uncertain"
    """Too few clocks were heard, or not precisely enough."""
    OFF = "off"
    """A majority agrees on another time."""
    DIVIDED = "divided"
    """A majority was heard, and no time has a majority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStanding:
    """The state of a node's wall clock, for people and monitoring."""

    state: ClockState
    offset_ms: int
    """The node's wall clock less cluster time."""
    heard: int
    """How many nodes' clocks are known, the own one included."""
    nodes: int
    """How many nodes count."""
    steps: int
    """How often wall clock and steady clock went apart by more than the largest offset."""
    last_step_ms: int
    """By how much they did so last."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """A node's wall clock less this node's steady clock lies between `low` and `high`, as of
    `at_ns` of the steady clock."""

    low: int
    high: int
    at_ns: int


class ClusterClock:
    """Cluster time on one node. Times in ns; `steady_ns` never falls, `wall_ns` may do anything."""

    def __init__(self, node: str, *, max_offset_ms: int, steady_ns: int, wall_ns: int) -> None:
        self._node = node_of(node)
        self._max_ns = max_offset_ms * MS
        self._seen = wall_ns - steady_ns
        """Wall clock less steady clock when they were looked at last."""
        self._correction = self._seen
        self._settled = False
        """Whether a majority has agreed since this clock exists."""
        self._majority_heard = False
        """Whether a majority, this node included, was heard since this clock exists."""
        self._state = ClockState.UNCERTAIN
        self._others: frozenset[str] = frozenset()
        self._silent: set[str] = set()
        self._heard: dict[str, _Heard] = {}
        self._review_ns = steady_ns
        self._steps = self._last_step_ns = 0
        self._step_at_ns = -1
        """The steady clock when wall clock and steady clock were last found to have gone apart."""

    # What is heard

    def expect(self, nodes: Iterable[str]) -> None:
        """Set the nodes whose clocks count. Workers of one node share its clock, and count once."""
        self._others = frozenset(map(node_of, nodes)) - {self._node}
        self._silent &= self._others
        for gone in self._heard.keys() - self._others:
            del self._heard[gone]
        self._review_ns = 0

    def heard(
        self, node: str, *, wall_ns: int, asked_ns: int, answered_ns: int, own_wall_ns: int
    ) -> None:
        """A node read its wall clock, which said `wall_ns`, between these times of the steady clock
        here. `own_wall_ns`: the wall clock here when the answer came."""
        name, own = node_of(node), own_wall_ns - answered_ns
        if name not in self._others:
            return
        self._silent.discard(name)
        self._look_for_a_step(answered_ns, own)
        if asked_ns < self._step_at_ns:
            # The steady clock may have stood still between question and answer.
            return
        low, high = wall_ns - answered_ns, wall_ns - asked_ns
        former = self._heard.get(name)
        if former is not None:
            # Two intervals are narrower than one, unless a clock was set in between.
            apart = (answered_ns - former.at_ns) // DRIFT
            if former.low - apart <= high and low <= former.high + apart:
                low, high = max(low, former.low - apart), min(high, former.high + apart)
        if high - low <= self._max_ns:
            self._heard[name] = _Heard(low, high, answered_ns)
            self._review(answered_ns, own)

    def silent(self, node: str) -> None:
        """This node's program does not tell its clock."""
        name = node_of(node)
        if name in self._others:
            self._silent.add(name)
            self._heard.pop(name, None)
            self._review_ns = 0

    # What follows

    def now_ms(self, steady_ns: int, wall_ns: int) -> int:
        """Cluster time. May fall when the correction does."""
        own = wall_ns - steady_ns
        if steady_ns >= self._review_ns or not -SLACK_NS <= own - self._seen <= SLACK_NS:
            self._review(steady_ns, own)
        return (steady_ns + self._correction) // MS

    def standing(self, steady_ns: int, wall_ns: int) -> ClockStanding:
        own = wall_ns - steady_ns
        self._review(steady_ns, own)
        return ClockStanding(
            state=self._state,
            offset_ms=_whole_ms(own - self._correction),
            heard=1 + len(self._heard),
            nodes=self._nodes,
            steps=self._steps,
            last_step_ms=_whole_ms(self._last_step_ns),
        )

    def agrees(self, node: str) -> bool | None:
        """Whether a node's wall clock is near cluster time; None: unknown. As of the last look."""
        name = node_of(node)
        if name == self._node:
            return (
                None
                if self._state in (ClockState.UNCERTAIN, ClockState.DIVIDED)
                else self._state is ClockState.AGREED
            )
        found = self._heard.get(name)
        return None if found is None else self._may_agree(found, self._correction)

    @property
    def _nodes(self) -> int:
        return 1 + len(self._others) - len(self._silent)

    def _look_for_a_step(self, steady_ns: int, own: int) -> None:
        step, self._seen = own - self._seen, own
        if abs(step) > self._max_ns:
            self._steps, self._last_step_ns, self._step_at_ns = self._steps + 1, step, steady_ns
            self._heard.clear()
            self._review_ns = 0

    def _review(self, steady_ns: int, own: int) -> None:
        self._look_for_a_step(steady_ns, own)
        self._review_ns = steady_ns + REVIEW_NS
        for name in [
            name for name, found in self._heard.items() if steady_ns - found.at_ns > EXPIRES_NS
        ]:
            del self._heard[name]
        heard, majority = list(self._heard.values()), self._nodes // 2 + 1
        # A clock that was off is followed when it is well within the largest offset, so that it
        # does not alternate at the border.
        near_ns = self._max_ns * 3 // 4 if self._state is ClockState.OFF else self._max_ns
        if (
            1 + sum([found.high - near_ns <= own <= found.low + near_ns for found in heard])
            >= majority
        ):
            self._correction, self._settled, self._state = own, True, ClockState.AGREED
            return
        enough = 1 + len(heard) >= majority
        self._majority_heard |= enough
        agreed = _nearest(
            [(found.high - self._max_ns, found.low + self._max_ns) for found in heard],
            majority,
            self._correction,
        )
        if agreed is not None:
            self._correction, self._settled = agreed, True
        elif not self._settled and (enough or not self._majority_heard):
            self._correction = sorted([own, *[found.low for found in heard]])[len(heard) // 2]
        self._state = self._judged(heard, own, majority, agreed)

    def _judged(
        self, heard: Sequence[_Heard], own: int, majority: int, agreed: int | None
    ) -> ClockState:
        """The state of an own clock with which no majority certainly agrees. It is bad only if none
        possibly does."""
        if 1 + len(heard) < majority:
            return ClockState.UNCERTAIN
        if 1 + sum([self._may_agree(found, own) for found in heard]) >= majority:
            return self._state if self._state is ClockState.OFF else ClockState.UNCERTAIN
        return ClockState.DIVIDED if agreed is None else ClockState.OFF

    def _may_agree(self, found: _Heard, offset: int) -> bool:
        return found.low - self._max_ns <= offset <= found.high + self._max_ns


def _nearest(intervals: Sequence[tuple[int, int]], count: int, to: int) -> int | None:
    """The point nearest to `to` that at least `count` intervals contain; None if there is none."""
    points = [to, *[point for interval in intervals for point in interval]]
    common = [
        point for point in points if sum([low <= point <= high for low, high in intervals]) >= count
    ]
    return min(common, key=lambda point: abs(point - to), default=None)


def _whole_ms(ns: int) -> int:
    """Towards zero, so that a nanosecond behind is not a millisecond."""
    return ns // MS if ns >= 0 else -(-ns // MS)
