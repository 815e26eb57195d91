"""The reported catch-up of lagging followers: state, rates, and the estimated end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.replica.consensus.catch_up import SECOND, WINDOW_NS, CatchUp
from ledgermq.proto.types import PeerProgress, Role

BYTES = 100
"""Every entry of these logs has so many."""


def peer(
    index: int | None, *, restarts: int = 0, left_behind: bool = False, role: Role = Role.LEARNER
) -> PeerProgress:
    return PeerProgress(
        "n2", role, index, index, silent_ms=0, left_behind=left_behind, restarts=restarts
    )


def watch() -> CatchUp:
    return CatchUp(lambda index: (index + 1) * BYTES, lambda index: 10 * index)


def told(catch_up: CatchUp, one: PeerProgress, end: int, at_ns: int) -> PeerProgress:
    catch_up.look([one], (end + 1) * BYTES, at_ns)
    (found,) = catch_up.annotated([one], end, {}, at_ns)
    return found


@given(st.integers(1, 10_000), st.integers(0, 20_000), st.integers(1, 30), st.integers(1, 10**6))
def test_catch_up_estimate_is_lag_over_its_rate(
    received: int, appended: int, seconds: int, lag: int
) -> None:
    """Law: with steady rates the lag of a later second is known now, and a lag that grows has no
    end."""
    catch_up, end, index = watch(), lag + received * seconds, 0
    for second in range(seconds + 1):
        found = told(catch_up, peer(index), end, second * SECOND)
        index, end = index + received, end + appended
    assert (
        found.behind_entries == max(0, end - appended - (index - received))
        and found.behind_bytes == found.behind_entries * BYTES
    )
    assert found.entries_per_s == pytest.approx(received) and found.bytes_per_s == pytest.approx(
        received * BYTES
    )
    if found.behind_bytes == 0:
        assert found.seconds_left == 0
    elif received <= appended:
        assert found.seconds_left is None
    else:
        assert found.seconds_left == pytest.approx(found.behind_entries / (received - appended))


def test_rates_are_those_of_the_last_seconds() -> None:
    """A follower that stopped receiving has no rate any more once the window has passed, and no
    estimate."""
    catch_up = watch()
    for second in range(5):
        told(catch_up, peer(second * 10), 1000, second * SECOND)
    for second in range(5, 30):
        found = told(catch_up, peer(40), 1000, second * SECOND)
    assert (found.entries_per_s, found.seconds_left, found.behind_entries) == (0, None, 960)


def test_one_look_is_no_rate() -> None:
    found = told(watch(), peer(5), 10, 0)
    assert (found.behind_entries, found.entries_per_s, found.seconds_left, found.state) == (
        5,
        None,
        None,
        "flowing",
    )


def test_states() -> None:
    """Unknown while its position in the log is being probed; a restarted probe is reported for a
    while, and logged once."""
    catch_up = watch()
    assert told(catch_up, peer(None), 10, 0).state == "probing"
    assert told(catch_up, peer(None, left_behind=True), 10, SECOND).state == "installing"
    assert told(catch_up, peer(3), 10, 2 * SECOND).state == "flowing"
    assert catch_up.look([peer(None, restarts=1)], 1100, 3 * SECOND) == ["n2"]
    assert catch_up.look([peer(None, restarts=1)], 1100, 4 * SECOND) == []
    assert told(catch_up, peer(None, restarts=1), 10, 5 * SECOND).state == "restarted-from-compare"
    later = 5 * SECOND + WINDOW_NS
    assert told(catch_up, peer(None, restarts=1), 10, later).state == "probing"
    assert told(catch_up, peer(9, restarts=1), 10, later + SECOND).state == "flowing"


def test_a_follower_that_forgot_begins_a_new_rate() -> None:
    """Another boot of it, or a lost range: the way back is no negative speed."""
    catch_up = watch()
    told(catch_up, peer(900), 1000, 0)
    told(catch_up, peer(10), 1000, SECOND)
    found = told(catch_up, peer(20), 1000, 2 * SECOND)
    assert found.entries_per_s == 10 and found.seconds_left == pytest.approx(98)


def test_samples_are_taken_once_a_second_and_forgotten_with_the_follower() -> None:
    catch_up = watch()
    for at_ns in range(0, 60 * SECOND, SECOND // 20):
        if catch_up.due(at_ns):
            catch_up.look([peer(at_ns // SECOND)], 10_000, at_ns)
    assert len(catch_up._samples["n2"]) <= WINDOW_NS // SECOND + 1
    catch_up.look([], 10_000, 61 * SECOND)
    assert not catch_up._samples and not catch_up._restarts


def test_of_a_learner_it_is_told_how_old_the_first_entry_is_that_it_lacks() -> None:
    """Entry n was stored 10 n ms ago; a follower that votes is not asked about."""
    catch_up = watch()
    assert told(catch_up, peer(4), 9, 0).lag_ms == 50
    assert told(catch_up, peer(9), 9, SECOND).lag_ms == 0
    assert told(watch(), peer(4, role=Role.FOLLOWER), 9, 0).lag_ms is None
