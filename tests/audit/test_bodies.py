"""Packed bodies as the audit reads them: bounded whatever their frames state, and read in parts of
bounded size."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from typing import cast

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.audit.reading.bodies import BODY_BYTES_MAX, unpack, unpacked_max
from ledgermq.audit.reading.entries import Entries
from ledgermq.audit.spark.views import messages
from ledgermq.audit.spark.views.messages import Messages

FRAMES: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.ZstdCompressor(write_content_size=True).compress,
    "zstd silent": zstandard.ZstdCompressor(write_content_size=False).compress,
    "lz4": lambda body: bytes(lz4.frame.compress(body, store_size=True)),
    "lz4 silent": lambda body: bytes(lz4.frame.compress(body, store_size=False)),
    "zlib": lambda body: zlib.compress(body, 9),
    "gzip": gzip.compress,
}


@given(st.sampled_from(list(FRAMES)), st.integers(1, 60), st.integers(0, 3_000))
def test_a_body_is_never_longer_than_its_bound(frame: str, pattern: int, count: int) -> None:
    body = bytes(range(pattern)) * count + b"x"
    packed, packing = FRAMES[frame](body), frame.split()[0]
    assert unpack(packed, packing) == body
    assert len(body) <= unpacked_max(packed, packing) <= max(len(body), BODY_BYTES_MAX)


@pytest.mark.parametrize("frame", FRAMES)
def test_a_bomb_is_refused_without_the_memory_that_it_states(frame: str) -> None:
    """The library for ZSTD reserves what a frame states, whatever limit it is given."""
    bomb, packing = FRAMES[frame](bytes(64 << 20)), frame.split()[0]
    tracemalloc.start()
    try:
        assert unpack(bomb, packing) is None
        assert tracemalloc.get_traced_memory()[1] < 4 * BODY_BYTES_MAX
    finally:
        tracemalloc.stop()
    for garbage in (b"", b"x", bomb[:7]):
        assert unpack(garbage, packing) is None and unpacked_max(garbage, packing) <= BODY_BYTES_MAX


class Packed(Messages):
    """Messages that have only bodies."""

    bodies_stored: list[bytes]
    how: list[str | None]

    def packings(self) -> list[str | None]:
        return [self.how[row] for row in self.rows.tolist()]

    def stored_bodies(self) -> pa.Array:
        return pa.array([self.bodies_stored[row] for row in self.rows.tolist()], pa.binary())

    def field(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        assert name == "body_bytes"
        return np.array([len(self.bodies_stored[row]) for row in self.rows.tolist()])


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "zstd", "lz4"]), st.integers(1, 500)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 900),
)
def test_parts_of_messages_are_limited_by_their_unpacked_bodies(
    rows: list[tuple[str | None, int]], part_bytes: int
) -> None:
    """Each once and in order; each part within the limit, or one message."""
    whole = Packed(cast(Entries, None), np.arange(len(rows)))
    Packed.how = [how for how, _ in rows]
    Packed.bodies_stored = [
        bytes(size) if how is None else FRAMES[how](bytes(size)) for how, size in rows
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "PART_BYTES", part_bytes)
        patch.setattr(messages, "Messages", Packed)
        found = [part.rows.tolist() for part in whole.parts()]
    assert [row for part in found for row in part] == list(range(len(rows)))
    for part in found:
        assert (
            len(part) == 1
            or sum(max(rows[row][1], len(Packed.bodies_stored[row])) for row in part) <= part_bytes
        )
