"""Where entries lie (format §2), against a second version that places them one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.entries.layout import BLANK_MAGIC
from ledgermq.proto.types import Range
from ledgermq.storage.log import placing
from ledgermq.storage.log.placing import (
    BLANK,
    BLANK_BYTES,
    is_placed,
    make_blank,
    place,
    whole_blank,
)

FILE_BYTES = 1000
SIZES = st.lists(st.integers(139, FILE_BYTES - BLANK_BYTES), min_size=1, max_size=30)


def positions_of(sizes: list[int], pos: int) -> list[int]:
    """Each entry behind the one before, or at the beginning of the next file when less than a blank
    would be left behind it."""
    found = []
    for size in sizes:
        left = FILE_BYTES - pos % FILE_BYTES
        if size + BLANK_BYTES > left:
            pos += left
        found.append(pos)
        pos += size
    return found


@given(SIZES, st.integers(0, 5), st.integers(0, FILE_BYTES - BLANK_BYTES))
def test_placed_entries_are_contiguous_and_within_one_file(
    sizes: list[int], file: int, inside: int
) -> None:
    """Positions, pieces and end follow the rule, and every piece is in one file at the expected
    position."""
    pos = file * FILE_BYTES + inside
    expected = positions_of(sizes, pos)
    positions, cuts, end = place(np.array(sizes, np.int32), pos, FILE_BYTES)
    assert (positions.tolist(), end) == (expected, expected[-1] + sizes[-1])
    assert cuts[0] == 0 and cuts[-1] == len(sizes) and cuts == sorted(set(cuts))
    for low, high in pairwise(cuts):
        assert len({at // FILE_BYTES for at in expected[low:high]}) == 1
        entries = piece(expected[low], sizes[low:high])
        assert is_placed(entries, pos, FILE_BYTES)
        assert not is_placed(piece(expected[low] + 1, sizes[low:high]), pos, FILE_BYTES)
        pos = entries.end_pos


@given(st.integers(139, 400), st.integers(0, FILE_BYTES - BLANK_BYTES))
def test_range_off_its_position_is_out_of_place(size: int, pos: int) -> None:
    """A receiver accepts entries at the position that the rule gives, or at the begin of the next
    file: the leader ended the file."""
    (expected,) = positions_of([size], pos)
    for at in (pos, pos + 1, FILE_BYTES, 2 * FILE_BYTES):
        assert is_placed(piece(at, [size]), pos, FILE_BYTES) == (
            at == expected or (at == FILE_BYTES and pos > 0)
        )
    assert not is_placed(piece(FILE_BYTES, [size, FILE_BYTES - size]), pos, FILE_BYTES)


@pytest.mark.parametrize("length", [8, 9, 99, 100, 101, 2500])
def test_a_long_blank_is_written_as_far_as_older_bytes_may_lie(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Where anything may lie, all of it is written, in pieces."""
    monkeypatch.setattr(placing, "STALE_BYTES", 100)
    monkeypatch.setattr(placing, "_PIECE_BYTES", 100)
    whole = BLANK.pack(BLANK_MAGIC, length) + bytes(length - 8)
    assert make_blank(length) == whole[:100]
    pieces = list(whole_blank(7, length))
    assert (
        b"".join(data for _, data in pieces) == whole
        and max(len(data) for _, data in pieces) <= 100
    )
    assert [at for at, _ in pieces] == list(range(7, 7 + length, 100))


def piece(pos: int, sizes: list[int]) -> Range:
    """A range whose bytes do not matter."""
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    return Range(
        0,
        len(sizes) - 1,
        1,
        pos,
        memoryview(bytes(sum(sizes))),
        starts,
        np.array(sizes, np.int32),
        0,
        0,
    )
