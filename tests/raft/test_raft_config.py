"""What a configuration may be: each bound itself is allowed, and what lies beyond it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.raft.config import MIB, MS, HaRules, Members, Rule, Timing

TIMING: list[tuple[dict[str, int], dict[str, int]]] = [
    ({"heartbeat_ns": 1, "news_ns": 0}, {"heartbeat_ns": 0, "news_ns": 0}),
    ({"heartbeat_ns": 200 * MS}, {"heartbeat_ns": 200 * MS + 1}),
    ({"election_min_ns": 800 * MS}, {"election_min_ns": 800 * MS + 1}),
    ({"range_bytes_max": 1}, {"range_bytes_max": 0}),
    ({"range_bytes_max": 4 * MIB}, {"range_bytes_max": 4 * MIB + 1}),
    ({"window_ranges": 1}, {"window_ranges": 0}),
    ({"news_ns": 0}, {"news_ns": -1}),
    ({"news_ns": 100 * MS}, {"news_ns": 100 * MS + 1}),
    ({"observer_bytes_per_s": 0}, {"observer_bytes_per_s": -1}),
    ({"window_first_bytes": 1}, {"window_first_bytes": 0}),
    ({"stall_ns": 800 * MS}, {"stall_ns": 800 * MS - 1}),
]
HA: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"minimum": 1}, {"minimum": 0}),
    ({"minimum": 2}, {"minimum": 2, "ack_async": True}),
    ({"minimum": 1, "ack_async": True}, {"minimum": 3, "ack_async": True}),
    ({"lag_ns": 1}, {"lag_ns": 0}),
    ({"lag_bytes": 1}, {"lag_bytes": 0}),
]
AB = ("a", "b")
C, CD = frozenset("c"), frozenset("cd")
MEMBERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"voters": ()}, {"voters": (), "learners": C}),
    ({"voters": AB}, {"voters": ("a", "b", "a")}),
    ({"voters": AB, "learners": C}, {"voters": (*AB, "c"), "learners": CD}),
    ({"voters": AB, "learners": C, "returning": C}, {"voters": AB, "learners": C, "returning": CD}),
    (
        {"voters": AB, "incarnations": {"a": "1", "b": "2"}},
        {"voters": AB, "incarnations": {"a": "1", "c": "2"}},
    ),
    (
        {"voters": AB, "learners": C, "incarnations": {"a": "1", "b": "2", "c": "3"}},
        {"voters": AB, "incarnations": {"c": "3"}},
    ),
    (
        {"voters": AB, "learners": CD, "returning": C, "observers": frozenset("d")},
        {"voters": AB, "observers": C},
    ),
    (
        {"voters": AB, "learners": C, "observers": C},
        {"voters": AB, "learners": C, "returning": C, "observers": C},
    ),
    ({"voters": AB, "rule": Rule.ALL, "towards": Rule.IN_SYNC}, {"voters": AB, "rule": Rule.ALL}),
    (
        {"voters": AB, "rule": Rule.ALL, "towards": Rule.MAJORITY},
        {"voters": AB, "rule": Rule.ALL, "towards": Rule.ALL},
    ),
    (
        {"voters": AB, "rule": Rule.IN_SYNC},
        {"voters": AB, "rule": Rule.IN_SYNC, "towards": Rule.MAJORITY},
    ),
    ({"voters": AB, "rule": Rule.IN_SYNC, "minimum": 2}, {"voters": AB, "minimum": 2}),
    (
        {"voters": AB, "rule": Rule.IN_SYNC, "minimum": 0},
        {"voters": AB, "rule": Rule.IN_SYNC, "minimum": -1},
    ),
]


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        (kind, *pair)
        for kind, pairs in ((Timing, TIMING), (HaRules, HA), (Members, MEMBERS))
        for pair in pairs
    ],
)
def test_configuration_at_a_bound_is_allowed_and_beyond_it_refused(
    kind: type[Any], allowed: dict[str, Any], refused: dict[str, Any]
) -> None:
    """A configuration that could never work is a ValueError before anything is built on it."""
    kind(**allowed)
    with pytest.raises(ValueError, match=r"raft timing|raft members|ha rules"):
        kind(**refused)


def test_limits_that_follow_from_the_longest_election_timeout() -> None:
    """Four of them: how long a master remains alone, and how much slack there is."""
    timing = Timing(election_max_ns=900 * MS)
    assert (timing.alone_ns, timing.slack_max_ns) == (3600 * MS, 3600 * MS)


@pytest.mark.parametrize(("rate", "burst"), [(1, 1), (7, 1), (8, 2), (20, 5), (4000, 1000)])
def test_an_observer_may_be_sent_a_quarter_of_a_second_at_once(rate: int, burst: int) -> None:
    """And always one byte, however slow it is."""
    pace = Timing(observer_bytes_per_s=rate).observer_pace()
    assert pace is not None and (pace.rate * 1_000_000_000, pace.burst) == (
        pytest.approx(rate),
        burst,
    )
