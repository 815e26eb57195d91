"""Few entries are handled one by one, many as arrays, and either by compiled kernels: all ways give
the same bytes, columns and errors for any batch and any range."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto import kernels
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import make_range, seal
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.entries.properties import PROPERTIES_MAX
from ledgermq.proto.entries.ranges import cut, record_of, tail_of
from ledgermq.proto.names import TIMER_TOPIC
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Draft, Range
from ledgermq.storage.log.index_files import make_units, unit_bytes
from tests.proto.test_proto_layout import DRAFTS
from tests.proto.test_proto_verify import PLACE, SEED, entries, resealed
from tests.proto.ways import ARRAYS, LISTS, few_entries, told, told_range

COLUMNS = (
    "topics",
    "topic_of",
    "queues",
    "queue_offsets",
    "tags_codes",
    "physical_offsets",
    "sizes",
    "origins",
    "flags",
)
BATCHES = st.lists(DRAFTS, min_size=1, max_size=24)
STRINGS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"TAGS\x01a\x02", b"UNIQ_KEY\x01" + b"0" * 34 + b"\x02TAGS\x01b\x02"]),
    st.sampled_from([b"TAGS\x01", b"TAGS\x01unended", b"\x02TAGS\x01c"]),
)


def both(action: Callable[[], Any]) -> tuple[Any, Any]:
    """The results of both ways in Python; those of the kernels are the same."""
    with few_entries(ARRAYS):
        arrays = action()
    if kernels.NATIVE:
        for limit in (ARRAYS, LISTS):
            with few_entries(limit, native=True):
                assert action() == arrays, "the kernels and their twins differ"
    with few_entries(LISTS):
        return arrays, action()


def sealed(drafts: list[Draft], low: int = 0, high: int | None = None) -> Range:
    batch = encode_entries(drafts)
    n, place = len(drafts), {"first_index": 7, "term": 3, "prev_chain": SEED}
    seal(
        batch,
        pos=4096,
        queue_offsets=np.arange(5, 5 + n),
        store_ms=9,
        store_host=bytes(range(8)),
        **place,
    )
    return make_range(batch, low, n if high is None else high, pos=4096, **place)


@given(BATCHES, st.data())
def test_batches_and_their_ranges(drafts: list[Draft], data: st.DataObject) -> None:
    """Encoding, sealing once and again, and any piece of the result."""
    low = data.draw(st.integers(0, len(drafts) - 1))
    high = data.draw(st.integers(low + 1, len(drafts)))
    names = ("data", "starts", "sizes", "topics", "topic_of", "queues", "edges", "keys")
    arrays, lists = both(lambda: told(encode_entries(drafts), *names))
    assert arrays == lists
    arrays, lists = both(lambda: told_range(sealed(drafts, low, high)))
    assert arrays == lists


def test_properties_that_are_too_long() -> None:
    """Both ways refuse them."""
    for limit in (ARRAYS, LISTS):
        with few_entries(limit), pytest.raises(LedgerError, match="properties"):
            encode_entries([Draft("t", 0, b"b", bytes(PROPERTIES_MAX + 1), 1)])


@given(BATCHES, st.data())
def test_parts_of_a_range(drafts: list[Draft], data: st.DataObject) -> None:
    """Cuts, tails, single records and index units."""
    whole = sealed(drafts)
    first = data.draw(st.integers(whole.first_index, whole.last_index))
    last = data.draw(st.integers(first, whole.last_index))
    arrays, lists = both(lambda: told_range(tail_of(cut(sealed(drafts), last), first)))
    assert arrays == lists
    arrays, lists = both(lambda: bytes(record_of(sealed(drafts), last - whole.first_index)))
    assert arrays == lists
    units = make_units(whole.first_index, whole.term, whole.starts + whole.pos, whole.sizes)
    assert unit_bytes(whole.first_index, whole.term, whole.pos, whole.edges) == units.tobytes()


@given(
    st.lists(
        st.tuples(st.sampled_from(["t", "ü" * 70, TIMER_TOPIC]), STRINGS), min_size=1, max_size=24
    )
)
def test_columns(rows: list[tuple[str, bytes]]) -> None:
    """Whatever the property strings hold: the same columns of the same types, or the same kind of
    error."""
    fire = b"\x02TIMER_OUT_MS\x011700000000000\x02"
    drafts = [
        Draft(topic, at, b"b" * at, text + fire if topic == TIMER_TOPIC else text, 1)
        for at, (topic, text) in enumerate(rows)
    ]

    def columns() -> object:
        try:
            return told(record_columns(sealed(drafts)), *COLUMNS)  # type: ignore[arg-type]
        except ValueError as error:
            return type(error)

    arrays, lists = both(columns)
    assert arrays == lists


PLACES = [
    (0, 4),
    (4, 4),
    (8, 8),
    (16, 8),
    (24, 8),
    (32, 4),
    (44, 4),
    (48, 4),
    (52, 4),
    (76, 8),
    (132, 4),
    (136, 2),
    (142, 4),
]
"""Offset and width of fields of an entry."""
FIELDS = st.sampled_from(PLACES)
EDGES = [0, 1, -1, 2, 48, 139, 0xDAA320A7, 0xDAA320AB, 2**31 - 1, 2**31, 2**63]
VALUES = st.one_of(st.sampled_from(EDGES), st.integers(0, 1 << 62))
DAMAGES = st.one_of(
    st.tuples(st.just("bytes"), st.integers(0, 1 << 20), st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("field"), st.integers(0, 24), FIELDS, VALUES),
    st.tuples(st.just("cut"), st.integers(1, 1 << 20)),
    st.tuples(st.just("more"), st.binary(min_size=1, max_size=300)),
    st.tuples(
        st.just("place"),
        st.tuples(st.integers(-1, 1), st.integers(-1, 1), st.integers(-1, 1), st.integers(0, 1)),
    ),
)


def damaged(count: int, what: tuple[Any, ...]) -> tuple[bytes, tuple[int, int, int, int]]:
    """A range as a broken disk, a broken peer or a hostile one with correct checksums would give
    it."""
    data = entries(count)
    kind, *rest = what
    if kind == "bytes":
        at = rest[0] % len(data)
        data[at : at + len(rest[1])] = rest[1][: len(data) - at]
    elif kind == "field":
        victim, (offset, width), value = rest
        at = int(verify_range(bytes(data), *PLACE).starts[victim % count])
        packed = (value & (1 << 8 * width) - 1).to_bytes(width, "big")
        data[at + offset : at + offset + width] = packed
        try:
            data = resealed(data, victim % count)
        except struct.error:
            data = data[: at + offset + width]
    elif kind == "cut":
        data = data[: len(data) - rest[0] % len(data)]
    elif kind == "more":
        data += rest[0]
    else:
        return bytes(data), tuple([right + by for right, by in zip(PLACE, rest[0], strict=True)])  # type: ignore[return-value]
    return bytes(data), PLACE


def agree(count: int, what: tuple[Any, ...]) -> None:
    """Both ways accept the range, or refuse the same entry for the same reason."""
    data, place = damaged(count, what)

    def outcome() -> list[object]:
        try:
            return told_range(verify_range(data, *place))
        except BadEntry as bad:
            return [bad.index, bad.offset, bad.reason]

    arrays, lists = both(outcome)
    assert arrays == lists, what


@given(st.integers(1, 24), DAMAGES)
def test_damaged_and_hostile_ranges(count: int, what: tuple[Any, ...]) -> None:
    """Noise, cuts, other bytes behind, other places, and fields that a writer with correct
    checksums set."""
    agree(count, what)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("place", PLACES)
def test_values_at_the_edges_of_every_field(place: tuple[int, int]) -> None:
    """In the first, a middle and the last entry of a range, with correct checksums."""
    for value in EDGES:
        for victim in range(3):
            agree(3, ("field", victim, place, value))
