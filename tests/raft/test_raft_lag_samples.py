"""Lag in time and bytes against a list of everything that was appended."""

from __future__ import annotations

from bisect import bisect_right

from ledgermq.raft.lag_samples import SAMPLES_MAX, LagSamples

BEGIN_NS, PERIOD_NS, SIZE = 1_000, 100, 7


def sampled(count: int) -> LagSamples:
    """A log that ended with entry 9 at first; each of `count` samples found it one entry longer."""
    lag = LagSamples(9, BEGIN_NS)
    for at in range(1, count + 1):
        lag.appended(SIZE)
        lag.sample(9 + at, BEGIN_NS + at * PERIOD_NS)
    return lag


def behind(lag: LagSamples, count: int) -> list[int]:
    """How many samples each copy that ends with entry 9 or later is behind, in time; the same
    number of entries in bytes."""
    end, now_ns = 9 + count, BEGIN_NS + count * PERIOD_NS
    found = [lag.behind(index, end, now_ns) for index in range(9, end)]
    assert all(late_ns * SIZE == late_bytes * PERIOD_NS for late_ns, late_bytes in found)
    return [late_ns // PERIOD_NS for late_ns, _ in found]


def test_as_long_as_all_samples_are_kept_the_lag_is_exact() -> None:
    """The begin is two samples: only the later one moves while nothing is appended."""
    for count in (0, 1, 5, SAMPLES_MAX - 2):
        assert behind(sampled(count), count) == list(range(count, 0, -1))


def test_the_older_half_is_thinned_and_the_newer_half_stays_exact() -> None:
    """Every second of the older half is left; a copy between two samples counts as the older of
    them, so no lag is ever too small."""
    count, newer = SAMPLES_MAX - 1, SAMPLES_MAX // 2 - 1
    kept = [*range(0, newer, 2), *range(newer, count + 1)]
    assert behind(sampled(count), count) == [
        count - kept[bisect_right(kept, at) - 1] for at in range(count)
    ]


def test_samples_are_bounded_and_no_lag_is_ever_too_small() -> None:
    """However long a leader leads: memory is bounded, the newer half stays exact, and the relative
    error of an older sample is small."""
    count = 20 * SAMPLES_MAX
    lag = sampled(count)
    assert len(lag._samples) <= SAMPLES_MAX
    found = behind(lag, count)
    assert all(
        behind_by >= really for behind_by, really in zip(found, range(count, 0, -1), strict=True)
    )
    assert found[-SAMPLES_MAX // 2 :] == list(range(SAMPLES_MAX // 2, 0, -1))
    assert found[0] == count, "what the log ended with when it began to be led is never forgotten"


def test_a_copy_that_ends_before_the_oldest_sample_counts_from_then_on() -> None:
    lag = sampled(3)
    assert (
        lag.behind(-1, 12, BEGIN_NS + 3 * PERIOD_NS)
        == lag.behind(9, 12, BEGIN_NS + 3 * PERIOD_NS)
        == (3 * PERIOD_NS, 3 * SIZE)
    )


def test_a_complete_copy_of_a_quiet_log_is_not_behind() -> None:
    """While nothing is appended the last sample moves in time: what is appended then is late from
    then on only."""
    lag = sampled(2)
    assert lag.behind(11, 11, BEGIN_NS + 900) == (0, 0)
    lag.sample(11, BEGIN_NS + 1_000)
    lag.appended(SIZE)
    assert lag.behind(11, 12, BEGIN_NS + 1_010) == (10, SIZE)
    assert lag.behind(10, 12, BEGIN_NS + 1_010) == (1_010 - PERIOD_NS, 2 * SIZE)


def test_a_quiet_time_costs_no_sample() -> None:
    """The lag of copies that fell behind before stays exact, however long nothing is appended."""
    lag = sampled(5)
    for at in range(1, 3 * SAMPLES_MAX):
        lag.sample(14, BEGIN_NS + (5 + at) * PERIOD_NS)
    now_ns = BEGIN_NS + (5 + 3 * SAMPLES_MAX) * PERIOD_NS
    assert [lag.behind(9 + at, 14, now_ns) for at in range(5)] == [
        (now_ns - BEGIN_NS - at * PERIOD_NS, (5 - at) * SIZE) for at in range(5)
    ]


def test_a_copy_that_lacks_the_end_of_a_quiet_log_stays_behind() -> None:
    """Since the leader began: it does not count as complete because nothing else is appended."""
    lag = sampled(0)
    for at in range(1, 4):
        lag.sample(9, BEGIN_NS + at * PERIOD_NS)
        assert lag.behind(8, 9, BEGIN_NS + at * PERIOD_NS) == (at * PERIOD_NS, 0)
        assert lag.behind(9, 9, BEGIN_NS + at * PERIOD_NS) == (0, 0)
