"""The one grammar of durations and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto import units


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("2m", 120_000),
        (" 1.5 h ", 5_400_000),
        ("3d", 259_200_000),
        ("0s", 0),
        ("0.4ms", 0),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    """Every unit, spaces, and fractions rounded to the millisecond."""
    assert units.duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["10", "", "s", "-1s", "1 week", "1.s", "1s 2s", "١s", "1S"])
def test_no_durations(text: str) -> None:
    """A number without a unit is not guessed at, and no other digits or letters count."""
    assert units.duration_ms(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("7B", 7), ("64KiB", 65_536), ("1.5 MiB", 1_572_864), ("2GiB", 2 << 30), ("1TiB", 1 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    """Powers of two, with their proper names."""
    assert units.size_bytes(text) == size


@pytest.mark.parametrize("text", ["64", "64KB", "64K", "-1KiB", ""])
def test_no_sizes(text: str) -> None:
    """Decimal units and bare numbers are refused, because they are ambiguous."""
    assert units.size_bytes(text) is None


@given(st.integers(0, 1 << 50))
def test_a_duration_is_written_as_it_is_read(milliseconds: int) -> None:
    """What people are shown can be given back."""
    assert units.duration_ms(units.duration_text(milliseconds)) == milliseconds
