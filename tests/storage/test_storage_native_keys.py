"""Native messages by their ids: few of them are in the key index, all of them are found, whatever
pieces the index was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.key_columns import key_columns
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.native_ids import native_id
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.types import Draft
from tests.example_counts import examples
from tests.storage.key_material import BEGIN_MS, KeyLog
from tests.storage.log_material import HOST
from tests.storage.lookups import by_key

TAG = 0x0A0B0C0D
FLAG = slice(64, 68)


def store(log: KeyLog, ids: Sequence[str], *, native: bool = True, key: str = "") -> None:
    """One batch: a frame, or messages of the unary path that call themselves the same."""
    keys = (key,) if key else ()
    drafts = [
        Draft("t", 0, f"{name} {at}".encode(), encode(Fields(message_id=name, keys=keys)), 1)
        for at, name in enumerate(ids)
    ]
    batch = encode_entries(drafts)
    for at, start in enumerate(batch.starts.tolist() if native else []):
        batch.data[start + FLAG.start : start + FLAG.stop] = (at + 1).to_bytes(4, "big")
    offsets = np.arange(len(drafts)) + log.log.end_index + 1
    log.log.append_leader(1, batch, offsets, BEGIN_MS, HOST)
    log.limit()


def frame(producer: int, first: int, count: int) -> list[str]:
    return [native_id(TAG, producer, 0, first + at) for at in range(count)]


def bodies(log: KeyLog, name: str) -> list[str]:
    return [decode_record(one.record).body.decode() for one in by_key(log.lookup, "t", name)]


FRAMES = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from((1, 2, 3, 20, 700)), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(30))
@given(FRAMES, st.integers(0, 3000), st.sampled_from((1, 3000, 1 << 20)))
def test_every_native_message_is_found_by_its_id(
    parts: list[tuple[int, int, bool]], first: int, step: int
) -> None:
    """Frames of two producers, with messages of the unary path between them: each id finds its
    message, once."""
    log = KeyLog(slots=50, units=2000)
    ends = {1: first, 2: first}
    wanted: list[tuple[str, str]] = []
    for number, (producer, count, native) in enumerate(parts):
        ids = (
            frame(producer, ends[producer], count)
            if native
            else [f"plain-{number}-{at}" for at in range(count)]
        )
        if native:
            ends[producer] += count
        store(log, ids, native=native)
        wanted += [(name, f"{name} {at}") for at, name in enumerate(ids)]
    log.catch_up(step)
    for name, body in wanted:
        assert bodies(log, name) == [body]
    for producer, end in ends.items():
        assert (
            bodies(log, native_id(TAG, producer, 0, end))
            == []
            == bodies(log, native_id(TAG, producer, 1, first))
        )


def test_only_the_first_of_a_frame_and_of_a_stretch_has_a_key() -> None:
    """Two keys for a frame of a thousand messages that crosses one border; names in KEYS are keys
    as ever."""
    log = KeyLog(slots=50, units=5000)
    store(log, frame(1, 500, 1000))
    assert log.reader.limits.end_index == 1000
    rows = []
    at = 0
    while at < 1000:
        piece = log.reader.read(at, 1 << 20)
        assert piece is not None
        rows += [(piece.first_index + int(row)) for row in key_columns(piece).entry_of]
        at = piece.last_index + 1
    assert rows == [0, 524]
    store(log, frame(1, 1500, 3), key="k")
    piece = log.reader.read(1000, 1 << 20)
    assert piece is not None and key_columns(piece).entry_of.tolist() == [0, 0, 1, 2]
    log.catch_up()
    assert sorted(bodies(log, "k")) == sorted(
        f"{name} {at}" for at, name in enumerate(frame(1, 1500, 3))
    )


def test_native_looking_key_is_found_beside_the_native_one() -> None:
    """A client of the unary path may choose any id: it is no place to count from, and is found
    beside the one it imitates."""
    log = KeyLog(slots=50, units=2000)
    ids = frame(1, 1020, 8)
    store(log, [ids[4], ids[6], ids[6]], native=False)
    store(log, ids)
    log.catch_up()
    assert bodies(log, ids[4]) == [f"{ids[4]} 4", f"{ids[4]} 0"]
    assert bodies(log, ids[6]) == [f"{ids[6]} 6", f"{ids[6]} 2", f"{ids[6]} 1"]
    assert bodies(log, ids[7]) == [f"{ids[7]} 7"]


@pytest.mark.parametrize("begin", [1, 3, 6])
def test_a_frame_that_is_trimmed_in_its_middle_is_counted_from_the_begin(begin: int) -> None:
    """The indexed message was trimmed, but the rest of its frame is still found."""
    log = KeyLog(slots=50, units=2000)
    ids = frame(1, 5, 8)
    store(log, ids)
    log.catch_up()
    piece = log.reader.read(begin, 1)
    assert piece is not None
    log.reader.limits = replace(log.reader.limits, begin_index=begin, begin_pos=piece.pos)
    assert [bodies(log, name) for name in ids] == [[] for _ in ids[:begin]] + [
        [f"{ids[at]} {at}"] for at in range(begin, 8)
    ]
