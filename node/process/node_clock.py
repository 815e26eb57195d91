"""The clocks of this process: reads them, exchanges them with the peers, and tells when they
disagree.

`node/replica/consensus/cluster_clock.py` decides; this module reads `time` for it. Everything
belongs to the loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ledgermq.node.replica.consensus.cluster_clock import ClockStanding, ClockState, ClusterClock
from ledgermq.node.replica.peers.links import Link
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger

log = get_logger()


class NodeClock:
    """Cluster time of this process."""

    def __init__(
        self,
        node: str,
        max_offset_ms: int,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._max_offset_ms = max_offset_ms
        self._clock = ClusterClock(
            node, max_offset_ms=max_offset_ms, steady_ns=steady_ns(), wall_ns=wall_ns()
        )
        self._told = self._state = ClockState.UNCERTAIN
        self._steps = 0

    def now_ms(self) -> int:
        """Cluster time; see `ClusterClock`."""
        return self._clock.now_ms(self._steady_ns(), self.wall_ns())

    def standing(self) -> ClockStanding:
        return self._clock.standing(self._steady_ns(), self.wall_ns())

    def heard(self, peer: str, wall_ns: int | None, asked_ns: int) -> None:
        """A peer that was asked at this time of the steady clock has answered just now; None: it
        does not tell its clock."""
        if wall_ns is None:
            self._clock.silent(peer)
        else:
            answered_ns = self._steady_ns()
            self._clock.heard(
                peer,
                wall_ns=wall_ns,
                asked_ns=asked_ns,
                answered_ns=answered_ns,
                own_wall_ns=self.wall_ns(),
            )

    def expect(self, nodes: Iterable[str]) -> None:
        """Set the nodes whose clocks count."""
        self._clock.expect(nodes)

    def leader_instead(self, wanted: str | None, voters: Iterable[str]) -> str | None:
        """Which voter should lead a broker group that this node leads. A preferred leader whose
        clock is off is not preferred; if the clock here is off, any voter is whose clock is
        right."""
        agrees = self._clock.agrees
        if wanted is not None and agrees(wanted) is not False:
            return wanted
        if self._told is not ClockState.OFF:
            return None
        return next((node for node in sorted(voters) if agrees(node)), None)

    def ask(self, links: Iterable[Link]) -> None:
        """Ask the peers for their clocks."""
        for link in links:
            link.ask_clock(self._steady_ns())

    def look(self) -> None:
        """Count the state, and tell each change of it once, when two looks in a row found the
        same."""
        found = self.standing()
        for state in ClockState:
            metrics.CLOCK_STATE.labels(state.value).set(found.state is state)
        metrics.CLOCK_OFFSET.set(found.offset_ms / 1000)
        metrics.CLOCKS_HEARD.set(found.heard)
        if found.steps != self._steps:
            metrics.CLOCK_STEPS.inc(found.steps - self._steps)
            self._steps = found.steps
            why = "the wall clock was set, or the machine stood still"
            log.warning(
                "wall clock and steady clock went apart", by_ms=found.last_step_ms, reason=why
            )
        former, self._state = self._state, found.state
        if found.state is former and found.state is not self._told:
            self._told = found.state
            self._tell(found)

    def _tell(self, found: ClockStanding) -> None:
        facts = {
            "state": found.state.value,
            "offset_ms": found.offset_ms,
            "heard": found.heard,
            "nodes": found.nodes,
        }
        if found.state in (ClockState.OFF, ClockState.DIVIDED):
            what = (
                "a majority of the nodes has another time"
                if found.state is ClockState.OFF
                else "no time has a majority of the nodes"
            )
            until = (
                "this node goes on by its steady clock until they agree within"
                f" {self._max_offset_ms} ms"
            )
            remedy = f"set the clocks right (NTP); {until}"
            log.error("the clock of this node is not followed", **facts, reason=what, remedy=remedy)
        else:
            log.info("clock", **facts)
