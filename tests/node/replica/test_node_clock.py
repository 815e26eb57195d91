"""The clocks of a node's process: what it asks its peers, tells its operator, and prefers as
leader."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from ledgermq.node.process.node_clock import NodeClock
from ledgermq.node.replica.consensus.cluster_clock import ClockState
from ledgermq.node.runtime import metrics

MS = 1_000_000
SECOND = 1000 * MS
DAY = 86_400 * SECOND


class Times:
    """Both clocks of this node, those of its peers, which are right, and its looks every second."""

    def __init__(self, *peers: str) -> None:
        self.steady, self.error, self.peers = 5 * SECOND, 0, peers
        self.clock = NodeClock("n1", 1000, self.wall, lambda: self.steady)
        self.clock.expect(["n1", *peers])

    @property
    def true(self) -> int:
        return 1_000 * DAY + self.steady

    def wall(self) -> int:
        return self.true + self.error

    def seconds(self, count: int) -> list[str]:
        """Let so many pass; returns what was logged."""
        with capture_logs() as logged:
            for _ in range(count):
                self.steady += SECOND
                self.clock.now_ms()
                for peer in self.peers:
                    self.clock.heard(peer, self.true, self.steady)
                self.clock.look()
        return [
            f"{line['log_level']}: {line['event']} {line.get('state', '')}".rstrip()
            for line in logged
        ]


def sample(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


def test_a_state_is_told_once_and_a_step_with_it() -> None:
    """When two looks in a row found the same."""
    times = Times("n2", "n3")
    assert times.seconds(5) == ["info: clock agreed"]
    steps = sample("ledgermq_clock_steps_total")
    times.error = 400 * DAY
    assert times.seconds(1) == ["warning: wall clock and steady clock went apart"]
    assert times.seconds(5) == ["error: the clock of this node is not followed off"]
    assert times.clock.now_ms() == times.true // MS
    assert (
        sample("ledgermq_clock_state", state="off") == 1
        and sample("ledgermq_clock_state", state="agreed") == 0
    )
    assert sample("ledgermq_clock_offset_seconds") == 400 * 86_400
    assert sample("ledgermq_clocks_heard") == 3
    times.error = 0
    assert times.seconds(5) == [
        "warning: wall clock and steady clock went apart",
        "info: clock agreed",
    ]
    assert sample("ledgermq_clock_state", state="off") == 0
    assert sample("ledgermq_clock_steps_total") == (steps or 0) + 2


def test_a_state_of_one_look_is_not_told() -> None:
    """What is not known for a moment, as after a step, is no news."""
    times = Times("n2", "n3")
    times.seconds(3)
    times.peers = ("n2",)
    times.error = 400 * DAY
    assert [line for line in times.seconds(1) if "state" in line] == []
    assert times.clock.standing().state is ClockState.DIVIDED
    times.peers = ("n2", "n3")
    assert times.seconds(3) == ["error: the clock of this node is not followed off"]


@pytest.mark.parametrize(
    ("wanted", "error", "leads"),
    [
        (None, 0, None),
        ("n3", 0, "n3"),
        (None, 400 * DAY, "n2"),
        ("n3", 400 * DAY, "n3"),
        ("n1", 400 * DAY, "n2"),
        ("n1", 0, "n1"),
        ("n9", 0, "n9"),
    ],
)
def test_leader_with_a_wrong_clock_yields_to_a_node_with_a_right_one(
    wanted: str | None, error: int, leads: str | None
) -> None:
    times = Times("n2", "n3")
    times.error = error
    times.seconds(3)
    assert times.clock.leader_instead(wanted, ("n1", "n2", "n3")) == leads


def test_preferred_leader_with_a_wrong_clock_is_passed_over() -> None:
    times = Times("n2", "n3")
    times.seconds(3)
    times.steady += 3 * SECOND
    times.clock.heard("n3", times.true + DAY, times.steady)
    assert times.clock.leader_instead("n3", ("n1", "n2", "n3")) is None
    times.clock.heard("n3", None, times.steady)
    assert times.clock.leader_instead("n3", ("n1", "n2", "n3")) == "n3"


def test_every_peer_is_asked() -> None:
    class Asked:
        at: Any = None

        def ask_clock(self, now_ns: int) -> None:
            self.at = now_ns

    times, links = Times(), [Asked(), Asked()]
    times.clock.ask(links)  # type: ignore[arg-type]
    assert [link.at for link in links] == [times.steady] * 2
