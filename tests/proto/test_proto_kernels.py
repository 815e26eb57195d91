"""The compiled kernels and their Python twins: equal for every input, and the kernels do the work
wherever nothing is unusual.

The other tests of the layout run in both modes; these call the kernels themselves, because a kernel
that always left the work to its twin would pass all of those.
"""

from __future__ import annotations

import struct
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq import __version__
from ledgermq.proto import kernels
from ledgermq.proto.entries.compression import FIRST_BYTES
from ledgermq.proto.entries.entry_checking import BadEntry, verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import seal
from ledgermq.proto.entries.key_columns import key_columns
from ledgermq.proto.entries.layout import record_columns
from ledgermq.proto.frames import BadEntries, EntryColumns, FrameBuilder, read_entries
from ledgermq.proto.frames.frame_parts import layout_of
from ledgermq.proto.names import CONTROL_TOPICS, TIMER_TOPIC
from ledgermq.proto.types import Draft
from tests.proto.plain_frame import LIMITS
from tests.proto.test_proto_frames import BORN_MS, EPOCH, PRODUCER, TAG
from tests.proto.test_proto_layout import DRAFTS
from tests.proto.test_proto_verify import PLACE, SEED, entries
from tests.proto.test_proto_ways import BATCHES, COLUMNS, DAMAGES, damaged
from tests.proto.ways import ARRAYS, NOT_BUILT, few_entries, pure, told

FEW = 8
HOST = bytes(range(8))


def seal_args(drafts: list[Draft]) -> tuple[Any, ...]:
    batch = encode_entries(drafts)
    offsets = np.arange(5, 5 + len(drafts), dtype=np.int64)
    return (
        batch.data,
        batch.starts,
        batch.sizes,
        batch.queues,
        offsets,
        batch.starts + 4096,
        9,
        HOST,
        7,
        3,
        SEED,
    )


@NOT_BUILT
@given(BATCHES)
def test_sealing(drafts: list[Draft]) -> None:
    """The bytes and the last chain CRC are those of the twin; sealing again changes nothing."""
    args = seal_args(drafts)
    with few_entries(ARRAYS):
        batch = encode_entries(drafts)
        place = {
            "first_index": 7,
            "term": 3,
            "pos": 4096,
            "store_ms": 9,
            "store_host": HOST,
            "prev_chain": SEED,
        }
        chain = seal(batch, queue_offsets=args[4], **place)  # type: ignore[arg-type]
    for _ in range(2):
        assert kernels.entries.seal(*args) == chain and args[0] == batch.data


@NOT_BUILT
@given(st.lists(DRAFTS, min_size=1, max_size=4), st.integers(-300, 300), st.integers(-300, 300))
def test_sealing_outside_the_data(drafts: list[Draft], start: int, size: int) -> None:
    """An entry that does not lie in the data is refused, and nothing is written."""
    data, starts, sizes, *rest = seal_args(drafts)
    starts[-1] += start
    sizes[-1] += size
    before, fits = (
        bytes(data),
        starts[-1] >= 0 and sizes[-1] >= 136 and int(starts[-1]) + int(sizes[-1]) <= len(data),
    )
    assert (kernels.entries.seal(data, starts, sizes, *rest) is not None) == fits
    assert fits or bytes(data) == before
    if len(drafts) > 1:
        assert kernels.entries.seal(data, starts[:-1].copy(), sizes, *rest) is None


@NOT_BUILT
@given(st.integers(1, 24), st.none() | DAMAGES)
def test_verification(count: int, what: tuple[Any, ...] | None) -> None:
    """The kernel accepts a range exactly if the twin does."""
    data, place = (bytes(entries(count)), PLACE) if what is None else damaged(count, what)
    with pure():
        try:
            good = verify_range(data, *place)
        except BadEntry:
            assert kernels.entries.verify(data, *place, FEW) is None
            return
    found = kernels.entries.verify(data, *place, FEW)
    assert found is not None and found[0] == good.last_chain
    if len(found) == 3:
        assert len(good) <= FEW and found[1] == good.edges
    else:
        assert np.frombuffer(found[1], np.int64).tolist() == good.edges


@NOT_BUILT
@pytest.mark.parametrize("value", [-1, 1 << 63, 1 << 64, 1 << 200])
@pytest.mark.parametrize("which", range(4))
def test_claims_that_fit_no_field(which: int, value: int) -> None:
    """The twin names the error."""
    place = [*PLACE]
    place[which] = value
    assert kernels.entries.verify(bytes(entries(3)), *place, FEW) is None
    with pytest.raises(BadEntry):
        verify_range(bytes(entries(3)), *place)


@NOT_BUILT
@given(BATCHES, st.booleans())
def test_columns(drafts: list[Draft], timers: bool) -> None:
    """The kernel reads what the twin reads, also of messages on the timer topic."""
    if timers:
        fire = b"TIMER_OUT_MS\x011700000000000\x02"
        drafts = [
            *drafts,
            Draft(TIMER_TOPIC, 3, b"body", b"UNIQ_KEY\x01" + b"0" * 34 + b"\x02" + fire, 1),
        ]
    args = seal_args(drafts)
    assert kernels.entries.seal(*args) is not None
    data = bytes(args[0])
    assert kernels.entries.columns(data, args[1], args[2], TIMER_TOPIC) is not None
    with few_entries(ARRAYS, native=True):
        made = told(record_columns(verify_range(data, *PLACE)), *COLUMNS)  # type: ignore[arg-type]
    with few_entries(ARRAYS):
        assert told(record_columns(verify_range(data, *PLACE)), *COLUMNS) == made  # type: ignore[arg-type]


IDS = st.sampled_from(
    [
        "4C" + "0" * 32,
        "4C" + "0" * 28 + "1400",
        "4C" + "F" * 32,
        "4c" + "0" * 32,
        "4C" + "0" * 30 + " 0",
        "é" * 17,
        "",
    ]
)
FIELDS = st.one_of(
    IDS.map(lambda text: f"UNIQ_KEY\x01{text}\x02"),
    st.sampled_from(["KEYS\x01a b\x02", "KEYS\x01 a  ü \x02", "KEYS\x01" + "k" * 300 + "\x02"]),
    st.sampled_from(["KEYS\x01\x02", "KEYSa\x01b\x02", "KEYS\x01😀"]),
)


@NOT_BUILT
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["t", "ü", sorted(CONTROL_TOPICS)[0]]),
            st.lists(FIELDS, max_size=3),
            st.sampled_from([0, 1, 2, 7]),
        ),
        min_size=1,
        max_size=24,
    )
)
def test_keys(messages: list[tuple[str, list[str], int]]) -> None:
    """The kernel finds the keys that the twin finds, of ordinary and of native messages."""
    data, *columns = seal_args(
        [Draft(topic, 0, b"body", "".join(fields).encode(), 1) for topic, fields, _ in messages]
    )
    for start, (_, _, flag) in zip(columns[0].tolist(), messages, strict=True):
        struct.pack_into(">i", data, start + 64, flag)
    assert kernels.entries.seal(data, *columns) is not None
    found = verify_range(bytes(data), *PLACE)
    names = ("entry_of", "hashes", "physical_offsets", "store_ms")
    assert (
        kernels.entries.key_columns(found.data, found.starts, found.sizes, sorted(CONTROL_TOPICS))
        is not None
    )
    with pure():
        wanted = told(key_columns(found), *names)  # type: ignore[arg-type]
    assert told(key_columns(found), *names) == wanted  # type: ignore[arg-type]


ASCII = st.text("abcXYZ 0189_-", min_size=1, max_size=9)
WORDS = ASCII.map(str.split).filter(bool).map(" ".join)


@NOT_BUILT
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=60),
            st.none() | WORDS,
            st.none() | WORDS.map(str.split),
            st.booleans(),
        ),
        min_size=1,
    ),
    st.integers(0, 2**48 - 200),
)
def test_usual_frames(messages: list[Any], first: int) -> None:
    """The kernel builds and accepts every frame of usual messages."""
    bodies, tags, keys, users = zip(*messages, strict=True)
    properties = [{"number": "1", "zone": "a b"} if user else {} for user in users]
    topic = layout_of("flights")
    frame = FrameBuilder("flights", TAG, PRODUCER, EPOCH).encode(
        first, 3, bodies, born_ms=BORN_MS, tags=tags, keys=keys, properties=properties
    )
    who = topic.record_magic, topic.topic, TAG, PRODUCER, EPOCH, first
    limits = [
        LIMITS[name]
        for name in (
            "queues",
            "max_body_bytes",
            "max_entry_bytes",
            "max_properties_bytes",
            "max_user_properties",
        )
    ]
    found = kernels.entries.check_frame(
        frame.entries, frame.sizes, *who, *limits, list(FIRST_BYTES.items())
    )
    assert found is not None and set(found[3]) == ({"number", "zone"} if any(users) else set())
    assert np.frombuffer(found[2], np.int32).tolist() == [3] * len(messages)
    n = len(messages)
    columns = np.full(n, 3, np.int32), np.full(n, BORN_MS, np.int64), np.zeros(n, np.int32)
    if not any(tags) and not any(keys) and not any(users):
        assert kernels.entries.build_frame(*who, bodies, *columns, None) == (
            frame.sizes,
            frame.entries,
        )


def outcome(sizes: bytes, data: bytes, *, verify: bool) -> object:
    try:
        found = read_entries(sizes, data, verify=verify)
    except BadEntries as bad:
        return bad.position, bad.reason
    return everything(found)


def everything(found: EntryColumns) -> list[object]:
    names = (
        "starts",
        "sizes",
        "indexes",
        "queues",
        "queue_offsets",
        "sysflags",
        "body_lengths",
        "body_offsets",
        "property_offsets",
        "property_lengths",
    )
    arrays = [
        *[getattr(found, name) for name in names],
        found._tails.topic_at,
        found._tails.topic_length,
    ]
    return [*[(item.dtype.str, item.tolist()) for item in arrays], found.property_strings]


@NOT_BUILT
@given(st.integers(1, 24), st.none() | DAMAGES, st.booleans(), st.integers(-2, 2))
def test_received_entries(
    count: int, what: tuple[Any, ...] | None, verify: bool, shift: int
) -> None:
    """The kernel accepts received entries exactly if the twin does, which names the error
    otherwise."""
    sizes = np.diff(verify_range(bytes(entries(count)), *PLACE).edges)
    data = bytes(entries(count)) if what is None else damaged(count, what)[0]
    sizes[-1] += shift if what is None else len(data) - int(sizes.sum())
    if sizes[-1] < 0:
        return
    said = sizes.astype("<u4").tobytes()
    with pure():
        wanted = outcome(said, data, verify=verify)
    assert outcome(said, data, verify=verify) == wanted
    assert (kernels.entries.read_entries(data, said, verify) is None) == isinstance(wanted, tuple)


@NOT_BUILT
@given(
    st.binary(max_size=400),
    st.binary(max_size=40),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
)
def test_garbage(data: bytes, sizes: bytes, places: list[int]) -> None:
    """Bytes without meaning are refused by every kernel, and none of them fails in another way."""
    starts, lengths = (
        np.array(places, np.int64),
        np.array([place % 400 - 20 for place in places], np.int32),
    )
    assert kernels.entries.verify(data, 0, 0, 0, 0, FEW) is None
    assert kernels.entries.columns(data, starts, lengths, TIMER_TOPIC) is None or not places
    assert kernels.entries.read_entries(data, sizes, True) is None or not data
    limits = [
        LIMITS[name]
        for name in (
            "queues",
            "max_body_bytes",
            "max_entry_bytes",
            "max_properties_bytes",
            "max_user_properties",
        )
    ]
    assert (
        kernels.entries.check_frame(data, sizes, 1, b"\x01t", 0, 1, 0, 2**64 - 1, *limits, [])
        is None
        or not data
    )


def test_which_package_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the same version that has all functions, unless it is switched off."""
    package, entries, front = (
        ModuleType("ledgermq_native"),
        ModuleType("entries"),
        ModuleType("front"),
    )
    package.__dict__.update(__version__=__version__, entries=entries, front=front)
    entries.__dict__.update(dict.fromkeys(kernels.FUNCTIONS))
    front.__dict__.update(dict.fromkeys(kernels.FRONT))
    monkeypatch.delenv(kernels.SWITCH, raising=False)
    monkeypatch.setitem(sys.modules, "ledgermq_native", package)
    assert kernels._find() == (package, __version__)
    monkeypatch.setenv(kernels.SWITCH, "1")
    assert kernels._find() == (None, "switched off by LEDGERMQ_PURE=1")
    monkeypatch.setenv(kernels.SWITCH, "0")
    del front.__dict__["END_TAKEN"]
    assert kernels._find() == (None, "it lacks END_TAKEN; build it again: make native")
    del entries.__dict__["grow_tree"]
    assert kernels._find() == (None, "it lacks grow_tree; build it again: make native")
    package.__dict__["__version__"] = "0.0.9"
    assert kernels._find() == (None, f"version 0.0.9 does not fit version {__version__}")
    monkeypatch.setitem(sys.modules, "ledgermq_native", None)
    assert kernels._find() == (None, "not installed")


def test_how_it_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version, or why it is not used."""
    for native, state, text in (
        (True, "0.1.0", "ledgermq-native 0.1.0"),
        (False, "not installed", "ledgermq-native is not used: not installed"),
    ):
        monkeypatch.setattr(kernels, "NATIVE", native)
        monkeypatch.setattr(kernels, "STATE", state)
        assert kernels.described() == text
