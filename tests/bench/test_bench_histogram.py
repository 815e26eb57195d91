"""bench/tools/histogram.py: a stall is seen in full, sums of histograms are the histograms of all
values, and errors are bounded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.tools.histogram import BUCKETS, POWERS, UNIT_NS, Histogram, Schedule, bucket_of, upper_ns

values = st.lists(st.integers(0, 3_600_000_000_000), min_size=1, max_size=200)


@given(values)
def test_a_bucket_holds_its_value_within_one_percent(some: list[int]) -> None:
    for value, bucket in zip(some, bucket_of(np.array(some, np.int64)).tolist(), strict=True):
        assert value <= upper_ns(bucket) <= value * 1.01 + UNIT_NS
        assert bucket == 0 or upper_ns(bucket - 1) < value


def test_buckets_cover_the_whole_range_without_gaps() -> None:
    edges = [upper_ns(bucket) for bucket in range(BUCKETS)]
    assert all(low < high for low, high in itertools.pairwise(edges))
    ends = np.array([-1, 0, (1 << 62)], np.int64)
    assert bucket_of(ends).tolist() == [
        0,
        0,
        int(bucket_of(np.array([((1 << POWERS) - 1) * UNIT_NS]))[0]),
    ]
    assert bucket_of(ends)[2] < BUCKETS


@given(values, values)
def test_merged_histograms_are_those_of_all_values(first: list[int], second: list[int]) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    one.add(first)
    other.add(second)
    both.add([*first, *second])
    one.merge(Histogram.from_document(other.document()))
    assert one.document() == both.document()
    assert one.total == len(first) + len(second)


@given(values)
def test_percentiles_are_ranks(some: list[int]) -> None:
    histogram = Histogram()
    histogram.add(some)
    ordered = sorted(some)
    for percent in (1, 50, 90, 99, 100):
        right = ordered[max(1, -(-len(ordered) * percent // 100)) - 1]
        assert right <= histogram.percentile_ns(percent) <= right * 1.01 + UNIT_NS
    assert histogram.percentile_ns(100) == ordered[-1]


def test_a_weight_counts_so_many_times() -> None:
    histogram = Histogram()
    histogram.add(np.array([1_000_000, 9_000_000]), np.array([99, 1]))
    assert histogram.total == 100
    assert histogram.percentile_ns(99) < 1_100_000 < histogram.percentile_ns(99.9)


def test_no_value_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no value"):
        Histogram().percentile_ns(50)


def test_a_stall_is_counted_for_every_send_it_delayed() -> None:
    """A server that answers at once but pauses for the whole second half: a client that waits for
    it would count only one slow send."""
    schedule, histogram = Schedule(0, 1000), Histogram()
    for number in range(1000):
        intended = schedule.intended_ns(number)
        answered = intended if intended < 500_000_000 else 1_000_000_000
        histogram.add([answered - intended])
    assert histogram.percentile_ns(50) < 2 * UNIT_NS
    assert histogram.percentile_ns(75) == pytest.approx(250e6, rel=0.02)
    assert histogram.most_ns == 500_000_000


@given(st.integers(0, 10**9), st.floats(0.5, 1e6))
def test_due_sends_are_those_intended_by_now(now_ns: int, per_second: float) -> None:
    schedule = Schedule(1000, per_second)
    due = schedule.due(1000 + now_ns)
    assert due >= 1
    assert schedule.intended_ns(due - 1) <= 1000 + now_ns + 1
    assert schedule.intended_ns(due) >= 1000 + now_ns - 1
