"""The messages that are written by hand, against the generated code."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.frontend.native.answers import Batch, entries_answer
from ledgermq.proto import log_pb2 as pb

NUMBERS = st.one_of(st.just(0), st.integers(0, 300), st.integers(0, (1 << 63) - 1))


@given(
    st.integers(-1, 1 << 20),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.lists(st.binary(max_size=200), min_size=1, max_size=40),
)
def test_fetch_answer_equals_generated_encoding(
    queue: int, first: int, end: int, skipped: int, entries: list[bytes]
) -> None:
    """Byte by byte, with every number of every length."""
    sizes = np.array([len(entry) for entry in entries], np.int32)
    answer = entries_answer(
        Batch(queue, first, sizes, [*map(memoryview, entries)], "cold"), end, skipped
    )
    expected = pb.Entries(queue=queue, first_offset=first, end_offset=end, skipped=skipped)
    expected.sizes, expected.entries = sizes.astype("<u4").tobytes(), b"".join(entries)
    found = pb.FetchResponse.FromString(answer.data)
    assert found == pb.FetchResponse(entries=expected)
    if expected.entries:
        assert answer.data == pb.FetchResponse(entries=expected).SerializeToString()
    assert (answer.count, answer.size) == (len(entries), len(expected.entries))
