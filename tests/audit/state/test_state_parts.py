"""What logs cannot show of the audit's parts: columns that no writer makes, and entries that a
sound log does not have."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.audit.state.packed import table, unpack, unpack_all
from ledgermq.audit.state.reader import HALF_TOPIC, Entry
from ledgermq.audit.state.transactions import Transactions
from ledgermq.node.broker.packed import pack

I64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(I64))
def test_columns_are_read_as_they_were_packed(numbers: list[int]) -> None:
    """Differences wrap around, and come back."""
    assert unpack(pack(np.array(numbers, np.int64), "q"), "q") == numbers
    halves = [number >> 32 for number in numbers]
    assert unpack(pack(np.array(halves, np.int32), "i"), "i") == halves


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "no base64!",
        b64encode(b"not deflated").decode(),
        b64encode(zlib.compress(bytes(12))).decode(),
        b64encode(zlib.compress(bytes(8)) + b"x").decode(),
        b64encode(zlib.compress(bytes(80))[:-5]).decode(),
    ],
)
def test_a_column_that_no_writer_makes_is_refused(text: Any) -> None:
    """By one error, whatever is wrong with it."""
    with pytest.raises(ValueError, match=r".+"):
        unpack(text, "q")


def test_a_column_that_claims_to_be_endless_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few bytes of a damaged file do not fill the memory of an audit."""
    monkeypatch.setattr("ledgermq.audit.state.packed.ROWS_MAX", 1000)
    assert len(unpack(pack(np.zeros(1000, np.int64), "q"), "q")) == 1000
    with pytest.raises(ValueError, match="does not end where it should"):
        unpack(pack(np.zeros(1001, np.int64), "q"), "q")


def test_columns_of_different_length_and_objects_of_other_keys_are_refused() -> None:
    """Columns of one object must have the same length and keys."""
    columns = {"o": pack(np.arange(3), "q"), "h": pack(np.arange(2), "q")}
    with pytest.raises(ValueError, match="differ in length"):
        unpack_all(columns, {"o": "q", "h": "q"})
    assert table(columns, "o", "h") is columns
    with pytest.raises(ValueError, match=r"the keys h, o instead of o"):
        table(columns, "o")
    with pytest.raises(ValueError, match="is not an object"):
        table([columns])


class Begins:
    """Nothing was trimmed."""

    def begin(self, topic: str, queue: int) -> int:
        return 0


def test_a_half_message_that_is_there_twice_counts_once() -> None:
    """An offset always names the same transaction: another message under it changes nothing,
    whether the first one is undecided or ended."""
    part = Transactions(Begins())

    def half(index: int, topic: str) -> Entry:
        return Entry(
            index, 1, index * 200, 200, HALF_TOPIC, 0, 0, 1000 + index, 0, {"REAL_TOPIC": topic}
        )

    part.apply(half(1, "first"))
    part.apply(half(2, "second"))
    before = part.values()
    assert before["transactions"]["halves"]["0"]["topic"] == "first"
    ended = Entry(3, 1, 600, 200, "n", 0, 0, 1003, 1, {"__LMQ.ORIGIN": "tx:0"})
    part.apply(ended)
    part.apply(half(4, "third"))
    assert part.values() == {"transactions": {"halves": {}, "topics": [], "ended": [[0, "commit"]]}}
    assert part.touched(("transactions", "ended", "0")) == 3
