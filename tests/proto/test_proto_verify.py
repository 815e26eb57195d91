"""verify_range: every flipped bit, cut, extra byte and broken rule is refused, and the first bad
entry is named."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.entries import layout
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import chain_seed, seal
from ledgermq.proto.types import Draft, Range

pytestmark = pytest.mark.usefixtures("way")
SEED = chain_seed("6f9619ff-8b86-d011-b42d-00cf4fc964ff")
PLACE = (7, 3, 4096, SEED)
COUNTS = [1, 3, 20]


def entries(count: int, alike: int = 0) -> bytearray:
    """A number of entries; the first `alike` have equal sizes, all others different ones."""
    odd = [i >= alike and i for i in range(count)]
    drafts = [
        Draft("t" * (130 if n % 3 == 2 else 5), i, b"body" * n, b"TAGS\x01x\x02", i)
        for i, n in enumerate(odd)
    ]
    batch = encode_entries(drafts)
    offsets = np.arange(count, dtype=np.int64)
    seal(
        batch,
        first_index=7,
        term=3,
        pos=4096,
        queue_offsets=offsets,
        store_ms=5,
        store_host=bytes(8),
        prev_chain=SEED,
    )
    return batch.data


def refused(data: bytes | bytearray, place: tuple[int, int, int, int] = PLACE) -> BadEntry:
    with pytest.raises(BadEntry) as caught:
        verify_range(data, *place)
    return caught.value


def bounds(good: Range) -> list[int]:
    return [*good.starts.tolist(), len(good.data)]


@pytest.mark.parametrize("count", [1, 3])
def test_every_flipped_bit_is_refused(count: int) -> None:
    """No bit of a range is without meaning: flipping any one is found, and blamed on the entry it
    is in."""
    data = entries(count)
    starts = bounds(verify_range(data, *PLACE))
    for at in range(len(data)):
        entry = np.searchsorted(starts, at, side="right") - 1
        for bit in range(8):
            data[at] ^= 1 << bit
            error = refused(data)
            data[at] ^= 1 << bit
            assert (error.index, error.offset) == (7 + entry, starts[entry]), (at, bit, str(error))
    verify_range(data, *PLACE)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("alike", [0, 17, 39, 40])
def test_flipped_bits_in_a_long_range(alike: int) -> None:
    """The same for a range long enough for the vector path, at random places; also where entries of
    equal size are detected by their distance."""
    data = entries(40, alike)
    starts = bounds(verify_range(data, *PLACE))
    chance = random.Random(20)
    assert len(starts) == 41
    for at in chance.sample(range(len(data)), 1500):
        bit = 1 << chance.randrange(8)
        data[at] ^= bit
        error = refused(data)
        data[at] ^= bit
        assert starts[error.index - 7] == error.offset <= at < starts[error.index - 6]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("count", "alike"), [(1, 0), (3, 0), (20, 0), (20, 18), (20, 20)])
def test_every_cut_is_refused_unless_it_is_between_entries(count: int, alike: int) -> None:
    """A range that lost bytes at its end is refused at the entry that is not whole; cut between
    entries it is a shorter range."""
    data = bytes(entries(count, alike))
    starts = bounds(verify_range(data, *PLACE))
    for length in range(len(data)):
        whole = int(np.searchsorted(starts, length, side="right")) - 1
        if length in starts[1:]:
            assert verify_range(data[:length], *PLACE).last_index == 6 + whole
        else:
            assert refused(data[:length]).index == 7 + whole


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "tail", [b"\0", bytes(8), bytes(138), bytes(139), bytes(400), b"\xff\xff\xff\xff\0\0\0\x08"]
)
def test_trailing_bytes_are_refused(count: int, tail: bytes) -> None:
    """Zeros, a blank or anything else behind the last entry is not part of a range."""
    data = bytes(entries(count))
    error = refused(data + tail)
    assert (error.index, error.offset) == (7 + count, len(data))


@pytest.mark.parametrize("count", COUNTS)
def test_the_place_must_fit(count: int) -> None:
    """The same bytes at another index, term, position or behind another chain are refused at their
    first entry."""
    data = entries(count)
    for place in (
        (8, 3, 4096, SEED),
        (7, 4, 4096, SEED),
        (7, 3, 4095, SEED),
        (7, 3, 4096, SEED ^ 1),
    ):
        assert refused(data, place).index == place[0]


def test_empty_bytes_are_not_a_range() -> None:
    """An empty range does not exist."""
    assert refused(b"").offset == 0


@pytest.mark.parametrize("count", COUNTS)
def test_parts_continue_each_other(count: int) -> None:
    """A range split between any two entries is two ranges, the second continuing the chain of the
    first."""
    data = bytes(entries(count))
    whole = verify_range(data, *PLACE)
    for i, cut in enumerate(bounds(whole)[1:-1], 1):
        left = verify_range(data[:cut], *PLACE)
        right = verify_range(data[cut:], 7 + i, 3, 4096 + cut, left.last_chain)
        assert right.last_chain == whole.last_chain and left.end_pos == right.pos
        assert refused(data[cut:], (7 + i, 3, 4096 + cut, SEED)).index == 7 + i


def resealed(data: bytearray, victim: int) -> bytearray:
    """Both CRC words made right again from entry `victim` on, so that only the broken rule itself
    can be found."""
    at, chain = 0, SEED
    index = 0
    while at < len(data):
        size = struct.unpack_from(">i", data, at + 4)[0]
        if not 48 <= size <= len(data) - at:
            # The victim's size leads into the middle of an entry, or nowhere.
            return data
        body_crc = crc32c.crc32c(memoryview(data)[at + 48 : at + size])
        data[at + 40 : at + 44] = body_crc.to_bytes(4, "big")
        chain = crc32c.crc32c(bytes(data[at : at + 36]) + bytes(data[at + 40 : at + 44]), chain)
        data[at + 36 : at + 40] = chain.to_bytes(4, "big")
        at += size
        index += 1
    return data


def put(form: str, offset: int, value: int) -> Callable[[bytearray, int], None]:
    return lambda data, at: struct.pack_into(form, data, at + offset, value)


# Offsets below are within the entry; the topic length of an entry with body "body" * i lies at 136
# + 4 * i.
RULES: dict[str, tuple[str, Callable[[bytearray, int], None]]] = {
    "magic": ("magic is 2", put(">i", 0, 2)),
    "size": ("size", put(">i", 4, 2**31 - 1)),
    "negative size": ("size", put(">i", 4, -200)),
    "index": ("index is 99", put(">q", 8, 99)),
    "term": ("term is 4", put(">q", 16, 4)),
    "position": ("position is 1", put(">q", 24, 1)),
    "channel": ("channel is 2", put(">i", 32, 2)),
    "body size": ("body size is 5", put(">i", 44, 5)),
    "record size": ("record size is 9", put(">i", 48, 9)),
    "record magic": ("record magic is 0xdaa320a8", put(">I", 52, 0xDAA320A8)),
    "v2 for v1": ("length", put(">I", 52, 0xDAA320AB)),
    "physical offset": ("physical offset", put(">q", 76, 4096)),
    "body length": ("length", put(">i", 132, 3)),
    "huge body length": ("body length", put(">i", 132, 2**31 - 1)),
    "negative body length": ("body length", put(">i", 132, -1)),
    "topic length": ("length", put(">b", 140, 6)),
    "huge topic length": ("topic length", put(">b", 140, 127)),
    "negative topic length": ("topic length", put(">b", 140, -1)),
    "properties length": ("properties length", put(">h", 146, 6)),
    "negative properties length": ("properties length", put(">h", 146, -7)),
}


@pytest.mark.parametrize("count", [2, 20])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_is_checked_by_itself(rule: str, count: int) -> None:
    """A writer that breaks one rule and computes its CRCs correctly is refused for that rule, in
    short and in long ranges."""
    words, break_it = RULES[rule]
    data = entries(count)
    at = int(verify_range(data, *PLACE).starts[1])
    break_it(data, at)
    error = refused(resealed(data, 1))
    assert (error.index, error.offset) == (8, at) and words in error.reason


@given(st.binary(max_size=600))
def test_garbage_is_refused(data: bytes) -> None:
    """Any bytes at all give the typed error and nothing else."""
    refused(data)


@given(st.integers(0, 40), st.binary(min_size=1, max_size=60), st.data())
def test_overwritten_ranges_are_refused(count: int, noise: bytes, data: st.DataObject) -> None:
    """Noise written anywhere over a good range gives the typed error, or changed nothing."""
    good = entries(count + 1)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at : at + len(noise)] = noise
    if bad != good:
        assert refused(bad).offset <= at + len(noise)


def test_range_error_names_the_valid_prefix() -> None:
    """Everything before the named offset is a valid range."""
    data = entries(20)
    data[-1] ^= 1
    error = refused(data)
    assert error.index == 26 and verify_range(data[: error.offset], *PLACE).last_index == 25
    assert str(error).startswith("entry 26 (byte ") and "body CRC" in error.reason


def test_views_are_enough() -> None:
    """A read-only view is verified in place, not copied."""
    data = bytes(entries(3))
    checked = verify_range(memoryview(data), *PLACE)
    assert checked.data.obj is data and layout.record_columns(checked).queues.tolist() == [0, 1, 2]
