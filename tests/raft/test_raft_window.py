"""The window of one peer by itself, to the byte."""

from __future__ import annotations

import pytest

from ledgermq.raft.config import Timing
from ledgermq.raft.window import Window

WITHIN_NS = 6
TIMING = Timing(
    heartbeat_ns=3,
    election_min_ns=WITHIN_NS,
    election_max_ns=WITHIN_NS,
    news_ns=0,
    window_bytes=1000,
    range_bytes_max=1,
    window_first_bytes=160,
)


@pytest.mark.parametrize(
    ("size", "ahead", "took_ns", "after"),
    [
        (160, 40, WITHIN_NS, 160),  # as long as allowed is not too long
        (160, 100, WITHIN_NS + 1, 85),  # so many bytes would have been in time
        # more was carried than the window is large: no reason to shrink it
        (160, 300, WITHIN_NS + 1, 160),
        (160, 40, 100 * WITHIN_NS, 10),  # a sixteenth of the first window remains
        (160, 79, 1, 160),  # it was not half full: an answer in time says nothing
        (160, 80, 1, 320),  # it doubles at most
        (160, 80, 2, 240),
        (160, 80, 0, 320),  # less than a nanosecond counts as one
        (160, 90, 5, 160),  # the link carries less than the window holds, but in time
        (160, 150, 5, 180),
        (600, 600, 1, 1000),  # and it never exceeds its limit
    ],
)
def test_window_grows_to_the_capacity_of_the_link_in_an_election_timeout(
    size: int, ahead: int, took_ns: int, after: int
) -> None:
    window = Window(TIMING)
    window.size = size
    window.confirmed(ahead, took_ns)
    assert window.size == after


@pytest.mark.parametrize(
    ("first", "most", "size", "least"),
    [
        (160, 1000, 160, 10),
        (160, 100, 100, 6),
        (15, 1000, 15, 1),
        (16, 1000, 16, 1),
        (32, 1000, 32, 2),
    ],
)
def test_a_window_begins_with_the_first_size_and_never_closes(
    first: int, most: int, size: int, least: int
) -> None:
    timing = Timing(range_bytes_max=1, window_bytes=most, window_first_bytes=first)
    window = Window(timing)
    assert window.size == size
    window.confirmed(1, 1 << 60)
    assert window.size == least
