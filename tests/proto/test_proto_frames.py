"""Native frames: what a builder makes a node reads, what is anything else is refused by position,
and both speak the format's bytes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.tools.drafts import drafts
from ledgermq.proto import kernels
from ledgermq.proto.entries import layout
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import make_range, seal
from ledgermq.proto.entries.properties import Fields
from ledgermq.proto.frames import (
    BadEntries,
    BadFrame,
    Column,
    Compression,
    EncodedFrame,
    Frame,
    FrameBuilder,
    NativeId,
    Run,
    frame_reading,
    native_ids,
    native_runs,
    read_entries,
    read_frame,
    read_native_id,
)
from ledgermq.proto.status import Code, LedgerError
from ledgermq.proto.types import Draft, Range
from tests.proto.plain_frame import LIMITS, plain_good, plain_id, unary_entry
from tests.proto.ways import pure

TAG, PRODUCER, EPOCH = 0x8E3F00AB, 0x01020304, 5
BORN_MS = 1_700_000_000_123
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
TAGS = TEXT.filter(lambda text: text.strip() and "|" not in text)
KEYS = TEXT.filter(lambda text: bool(text.strip()))
USER_KEYS = st.sampled_from(
    ["a", "b", "TRACE_CONTEXT", "PRIORITY", "__LMQ.x", "__LMQ.KEYS", "zürich"]
)
MESSAGES = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=60),
        st.none() | TAGS,
        st.none() | KEYS | st.lists(st.just("") | KEYS, min_size=1, max_size=3),
        st.dictionaries(USER_KEYS, TEXT | st.just(""), max_size=3),
        st.integers(0, 7),
    ),
    min_size=1,
    max_size=40,
)
TOPICS = st.sampled_from(["flights", "ns@flights", "t" * 127, "n" * 100 + "@" + "t" * 100])


def read(topic: str, frame: EncodedFrame, **changes: Any) -> Frame:
    return read_frame(
        topic,
        TAG,
        PRODUCER,
        EPOCH,
        frame.first_sequence,
        frame.sizes,
        frame.entries,
        **{**LIMITS, **changes},
    )


def entries_of(frame: EncodedFrame) -> list[bytes]:
    sizes = struct.unpack(f"<{frame.count}I", frame.sizes)
    ends = np.cumsum(sizes).tolist()
    return [frame.entries[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def built(
    topic: str,
    first: int,
    messages: list[Any],
    compression: Compression = Compression.NONE,
    over: int = 4096,
) -> EncodedFrame:
    bodies, tags, keys, users, queues = zip(*messages, strict=True)
    return FrameBuilder(topic, TAG, PRODUCER, EPOCH).encode(
        first, np.array(queues, np.int32), bodies, born_ms=BORN_MS, tags=tags, keys=keys, properties=users,
        compression=compression, compress_over=over,
    )  # fmt: skip


def said(sequence: int, tag: str | None, keys: Any, user: Mapping[str, str]) -> Fields:
    listed = [] if keys is None else [keys] if isinstance(keys, str) else keys
    return Fields(plain_id(TAG, PRODUCER, EPOCH, sequence), tag, listed, user=user)


@given(TOPICS, st.integers(0, 2**48 - 41), MESSAGES)
def test_native_frame_equals_the_unary_encoding(
    topic: str, first: int, messages: list[Any]
) -> None:
    """Entry by entry the bytes of the unary encoder, but for FLAG; and a node takes them as they
    are."""
    frame = built(topic, first, messages)
    with pure():
        assert built(topic, first, messages) == frame
    entries = entries_of(frame)
    assert (
        b"".join(entries) == frame.entries
        and frame.count == len(messages)
        and frame.next_sequence == first + len(messages)
    )
    for position, (entry, (body, tag, keys, user, queue)) in enumerate(
        zip(entries, messages, strict=True)
    ):
        assert entry == unary_entry(
            topic, queue, body, said(first + position, tag, keys, user), BORN_MS, position + 1
        )
        assert plain_good(
            topic, plain_id(TAG, PRODUCER, EPOCH, first + position), position + 1, entry
        )
    got = read(topic, frame)
    assert (got.producer_id, got.epoch, got.first_sequence, got.next_sequence) == (
        PRODUCER,
        EPOCH,
        first,
        frame.next_sequence,
    )
    assert (
        bytes(got.batch.data) == frame.entries
        and got.batch.topics == (topic,)
        and not got.batch.topic_of.any()
    )
    assert got.batch.queues.tolist() == [queue for *_, queue in messages]
    assert (
        got.batch.sizes.tolist() == list(map(len, entries)) and got.batch.starts.dtype == np.int64
    )


@given(
    st.integers(0, 2**48 - 1),
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
)
def test_native_ids(first: int, producer: int, epoch: int, tag: int) -> None:
    """The vectors write the digits of the format, and reading is the inverse."""
    count = min(3, 2**48 - first)
    ids = [bytes(item).decode() for item in native_ids(tag, producer, epoch, first, count)]
    assert ids == [plain_id(tag, producer, epoch, first + i) for i in range(count)]
    assert [read_native_id(one) for one in ids] == [
        NativeId(tag, producer, epoch, first + i) for i in range(count)
    ]
    assert read_native_id(ids[0].encode()) == NativeId(tag, producer, epoch, first)


NO_NATIVE_IDS = [
    "",
    "4C" + "0" * 31,
    "4c" + "0" * 32,
    "01" + "0" * 32,
    "4C" + "0" * 31 + "g",
    "4C " + "0" * 31,
    "é" * 34,
    b"\xff" * 34,
]


@pytest.mark.parametrize("text", NO_NATIVE_IDS)
def test_other_ids_are_no_native_ones(text: str | bytes) -> None:
    """Nothing else is read as a native id."""
    assert read_native_id(text) is None


def outcome(topic: str, first: int, sizes: bytes, entries: bytes) -> tuple[int, list[int]]:
    try:
        frame = read_frame(topic, TAG, PRODUCER, EPOCH, first, sizes, entries, **LIMITS)
    except BadFrame as bad:
        assert bad.code is not Code.INTERNAL_ERROR, bad
        return bad.position, []
    return -1, frame.batch.queues.tolist()


def agree(topic: str, first: int, sizes: bytes, entries: bytes) -> None:
    """The vectors, the rules one by one, the kernel and the plain second opinion agree; the
    position is that of the first bad message."""
    lengths = struct.unpack(f"<{len(sizes) // 4}I", sizes)
    ends = np.cumsum(lengths).tolist()
    pieces = [entries[end - size : end] for size, end in zip(lengths, ends, strict=True)]
    good = [
        plain_good(topic, plain_id(TAG, PRODUCER, EPOCH, first + i), i + 1, piece)
        for i, piece in enumerate(pieces)
    ]
    outcomes = []
    for few in (0, 1 << 20):
        with pure(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(frame_reading, "FEW", few)
            outcomes.append(outcome(topic, first, sizes, entries))
    assert outcomes[0] == outcomes[1] == outcome(topic, first, sizes, entries)
    assert outcomes[0][0] == (-1 if all(good) else good.index(False))


@given(TOPICS, MESSAGES, st.data())
def test_a_changed_byte_is_refused_or_harmless(
    topic: str, messages: list[Any], data: st.DataObject
) -> None:
    """Any byte of the entries changed: the reader says what the second opinion says, and never
    something else than BadFrame."""
    frame = built(topic, 7, messages)
    entries = bytearray(frame.entries)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(entries) - 1))
        entries[at] = data.draw(st.integers(0, 255))
    agree(topic, 7, frame.sizes, bytes(entries))


PIECES = st.lists(
    st.sampled_from(
        [
            b"TAGS", b"KEYS", b"__LMQ.KEYS", b"TRACE_CONTEXT", b"UNIQ_KEY", b"__SHARDINGKEY", b"PRIORITY", b"__LMQ.U.", b"__LMQ.ORIGIN",
            b"DELAY", b"a", b"b", b"\x01", b"\x01", b"\x01", b"\x02", b"\x02", b"\x02", b" ", b"|", b'["a b"]', b'[""]', b"[",
            b"\xc2\x85", b"\xff", b"\xc3\xa9", b"\x00", b"\x7f", b"\x1f", b"TAGS\x01x\x02", b"KEYS\x01a b\x02",
            b'KEYS\x01a b\x02__LMQ.KEYS\x01["a b"]\x02', b"a\x01\x02", b"b\x01v\x02", b"__LMQ.U.PRIORITY\x01v\x02",
            b"__LMQ.U.c\x01v\x02", b"TRACE_CONTEXT\x01\x02", b"KEYS\x01\xc2\xa0\x02", b"TAGS\x01\xc2\xa0\x02", b"c\x01w\x02",
            b"d\x01w\x02", b"e\x01w\x02",
        ]
    ),
    max_size=7,
)  # fmt: skip


@given(st.lists(PIECES, min_size=1, max_size=6), st.integers(0, 3))
def test_property_strings_of_any_kind(rests: list[list[bytes]], garbage: int) -> None:
    """Whole messages with made-up properties: accepted exactly when the unary path would write them
    so."""
    entries, sizes = [], []
    for position, pieces in enumerate(rests):
        message_id = plain_id(TAG, PRODUCER, EPOCH, 3 + position)
        properties = b"UNIQ_KEY\x01%b\x02%b" % (message_id.encode(), b"".join(pieces))
        entry = bytearray(encode_entries([Draft("t", 2, b"body", properties, BORN_MS)]).data)
        struct.pack_into(">i", entry, 64, position + 1)
        entries.append(bytes(entry))
        sizes.append(len(entry))
    agree("t", 3, struct.pack(f"<{len(sizes)}I", *sizes), b"".join(entries))


@given(st.binary(max_size=40), st.binary(max_size=400))
def test_garbage_is_a_bad_frame(sizes: bytes, entries: bytes) -> None:
    """Whatever the two byte strings are."""
    with pytest.raises(BadFrame) as bad:
        read_frame("t", TAG, PRODUCER, EPOCH, 0, sizes, entries, **LIMITS)
    assert bad.value.position == -1 or bad.value.position < len(sizes) // 4


@given(st.lists(st.integers(0, 400), min_size=1, max_size=8), st.data())
def test_garbage_of_the_right_size_is_a_bad_frame(sizes: list[int], data: st.DataObject) -> None:
    """Sizes that add up say nothing about what is in the entries."""
    entries = data.draw(st.binary(min_size=sum(sizes), max_size=sum(sizes)))
    agree("t", 0, struct.pack(f"<{len(sizes)}I", *sizes), entries)


def test_names_and_limits() -> None:
    """What is refused before any message is looked at."""
    frame = FrameBuilder("t", TAG, PRODUCER, EPOCH).encode(0, 0, [b"a", b"b"], born_ms=1)
    for changes, entries, sizes in [
        ((0, EPOCH, 0), frame.entries, frame.sizes),
        ((PRODUCER, 1 << 16, 0), frame.entries, frame.sizes),
        ((PRODUCER, EPOCH, 2**48 - 1), frame.entries, frame.sizes),
        ((PRODUCER, EPOCH, 0), frame.entries + b"\0", frame.sizes),
        ((PRODUCER, EPOCH, 0), frame.entries, frame.sizes[:-1]),
        ((PRODUCER, EPOCH, 0), b"", b""),
    ]:
        with pytest.raises(BadFrame) as bad:
            read_frame("t", TAG, *changes, sizes, entries, **LIMITS)
        assert bad.value.position == -1
    for limit, code in [
        ({"queues": 0}, Code.BAD_REQUEST),
        ({"max_body_bytes": 0}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"max_entry_bytes": 150}, Code.MESSAGE_BODY_TOO_LARGE),
    ]:
        with pytest.raises(BadFrame) as bad:
            read("t", frame, **limit)
        assert (bad.value.position, bad.value.code) == (0, code)


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"tags": ["ok", " "]}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tags": ["ok", "a|b"]}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["ok", "\u00a0"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"keys": ["ok", "a\x02b"]}, Code.BAD_REQUEST),
        ({"properties": [{}, {"DELAY": "1"}]}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"properties": [{}, {"a": "\x01"}]}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"properties": [{}, {str(i): "" for i in range(129)}]}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"properties": [{}, {"a": "x" * 20000}]}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)
def test_frame_builder_refuses_messages_a_node_refuses(columns: dict[str, Any], code: Code) -> None:
    """With the node's code and the position, before anything is sent."""
    with pytest.raises(LedgerError, match="message 1 of the frame") as refused:
        FrameBuilder("t", TAG, PRODUCER, EPOCH).encode(0, 0, [b"a", b"b"], born_ms=1, **columns)
    assert refused.value.code == code


def test_a_builder_refuses_empty_bodies_and_frames() -> None:
    """As the unary path does."""
    builder = FrameBuilder("t", TAG, PRODUCER, EPOCH)
    with pytest.raises(LedgerError, match="message 1 of the frame"):
        builder.encode(0, 0, [b"a", b""], born_ms=1)
    with pytest.raises(LedgerError):
        builder.encode(0, 0, [], born_ms=1)
    with pytest.raises(LedgerError):
        builder.encode(2**48 - 1, 0, [b"a", b"b"], born_ms=1)
    with pytest.raises(ValueError, match="2 tags for 1 messages"):
        builder.encode(0, 0, [b"a"], born_ms=1, tags=["a", "b"])


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    "body",
    [array("I", [1, 2]), memoryview(array("I", [1, 2])), memoryview(b"abcd")[::2], "text", 5, None],
)
def test_a_builder_refuses_a_body_that_is_not_contiguous_bytes(
    monkeypatch: pytest.MonkeyPatch, body: Any, native: bool
) -> None:
    """One of longer items has another length than bytes: the sizes of the frame would be those of
    no entries, and a node refuses it all."""
    monkeypatch.setattr(kernels, "NATIVE", native and kernels.NATIVE)
    for compression in (Compression.NONE, Compression.LZ4):
        with pytest.raises((TypeError, ValueError, BufferError)):
            packed: dict[str, Any] = {"compression": compression, "compress_over": 1}
            FrameBuilder("t", TAG, PRODUCER, EPOCH).encode(
                0, 0, [b"a", body, b"b"], born_ms=1, **packed
            )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("__SHARDINGKEY", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("TIMER_DELIVER_MS", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("TRAN_MSG", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("PRIORITY", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("__LITE_TOPIC", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("__LMQ.ENC", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("__LMQ.ORIGIN", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("__BORNHOST", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("UNIQ_KEY", Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ],
)
def test_other_kinds_of_messages_are_refused(name: str, code: Code) -> None:
    """What makes a message of another kind goes through the unary path."""
    message_id = plain_id(TAG, PRODUCER, EPOCH, 0)
    entry = bytearray(
        encode_entries(
            [Draft("t", 0, b"x", f"UNIQ_KEY\x01{message_id}\x02{name}\x01v\x02".encode(), 1)]
        ).data
    )
    entry[67] = 1
    with pytest.raises(BadFrame) as bad:
        read_frame("t", TAG, PRODUCER, EPOCH, 0, struct.pack("<I", len(entry)), entry, **LIMITS)
    assert (bad.value.position, bad.value.code) == (0, code)


def sealed(frame: Frame, first_index: int = 40) -> Range:
    place = {"first_index": first_index, "term": 3, "pos": 4096, "prev_chain": 9}
    seal(
        frame.batch,
        queue_offsets=np.arange(len(frame)),
        store_ms=BORN_MS,
        store_host=bytes(8),
        **place,
    )
    return make_range(frame.batch, 0, len(frame), **place)


@given(TOPICS, MESSAGES, st.sampled_from(Compression))
def test_consumers_read_the_sent_fields_of_a_frame(
    topic: str, messages: list[Any], compression: Compression
) -> None:
    """Bodies, ids, tags, keys and properties come back, compressed or not."""
    messages = [(body * 40, *rest) for body, *rest in messages]
    frame = built(topic, 5, messages, compression, 200)
    got = read(topic, frame)
    entries = sealed(got)
    assert verify_range(entries.data, 40, 3, 4096, 9).last_chain == entries.last_chain
    columns = read_entries(frame.sizes, entries.data)
    bodies = [body for body, *_ in messages]
    assert len(columns) == len(messages) and columns.bodies() == bodies
    joined, offsets = columns.joined_bodies()
    assert [joined[a:b] for a, b in pairwise(offsets)] == bodies
    assert columns.indexes.tolist() == list(range(40, 40 + len(messages))) and set(
        columns.terms.tolist()
    ) == {3}
    assert columns.queue_offsets.tolist() == list(
        range(len(messages))
    ) and columns.queues.tolist() == [queue for *_, queue in messages]
    assert set(columns.store_ms.tolist()) == {BORN_MS} == set(columns.born_ms.tolist())
    assert columns.message_ids() == [
        plain_id(TAG, PRODUCER, EPOCH, 5 + i) for i in range(len(messages))
    ]
    assert columns.tags() == [tag for _, tag, *_ in messages]
    assert columns.topics[0] == (topic,) and not columns.topics[1].any()
    for row, (_, tag, keys, user, _) in enumerate(messages):
        wanted = said(5 + row, tag, keys, user)
        assert columns.fields(row) == Fields(wanted.message_id, tag, tuple(wanted.keys), user=user)
        assert columns.keys()[row] == tuple(wanted.keys)


@given(MESSAGES, st.data())
def test_entries_with_a_changed_byte_are_refused(messages: list[Any], data: st.DataObject) -> None:
    """A consumer that verifies takes no record of which a byte is another one, and reads nothing
    outside the bytes in any case."""
    frame = built("t", 5, messages)
    entries = bytearray(sealed(read("t", frame)).data)
    at = data.draw(st.integers(0, len(entries) - 1))
    entries[at] ^= data.draw(st.integers(1, 255))
    inside = at - max(
        start for start in np.cumsum([0, *map(len, entries_of(frame))]).tolist() if start <= at
    )
    try:
        columns = read_entries(frame.sizes, entries)
    except BadEntries:
        return
    assert 8 <= inside < 40, (
        "only index, term, position, channel and chain CRC are not covered by the body CRC"
    )
    columns.bodies()


@given(st.binary(max_size=40), st.binary(max_size=600), st.booleans())
def test_garbage_is_bad_entries(sizes: bytes, entries: bytes, fitting: bool) -> None:
    """Whatever a node sends."""
    if fitting and entries:
        sizes = struct.pack("<I", len(entries))
    if not sizes and not entries:
        assert len(read_entries(sizes, entries)) == 0
        return
    with pytest.raises(BadEntries):
        read_entries(sizes, entries, verify=False)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=6
    ),
    st.data(),
)
def test_runs_are_the_frames_of_a_range(
    parts: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    """Frames of several producers, messages of the unary path between them, and a range that begins
    and ends inside a frame."""
    pieces, wanted, rows = [], [], 0
    for count, producer, native in parts:
        bodies = [b"x"] * count
        if native:
            batch = FrameBuilder("t", TAG, producer, 0).encode(rows, 0, bodies, born_ms=1)
            pieces += entries_of(batch)
            wanted.append((rows, count, producer))
        else:
            ids = [plain_id(TAG, producer, 0, rows + i) for i in range(count)]
            unary = encode_entries(drafts("t", bodies, born_ms=1, message_ids=ids))
            pieces += [
                bytes(unary.data[a : a + s])
                for a, s in zip(unary.starts.tolist(), unary.sizes.tolist(), strict=True)
            ]
        rows += count
    low = data.draw(st.integers(0, rows - 1))
    high = data.draw(st.integers(low + 1, rows))
    sizes = np.array([len(piece) for piece in pieces[low:high]])
    entries = Range(
        0,
        high - low - 1,
        1,
        0,
        memoryview(b"".join(pieces[low:high])),
        np.cumsum(sizes) - sizes,
        sizes.astype(np.int32),
        0,
        0,
    )
    expected = []
    for at, count, producer in wanted:
        begin, end = max(at, low), min(at + count, high)
        if begin < end:
            expected.append(Run(begin - low, end - begin, TAG, producer, 0, begin, begin - at))
    assert native_runs(entries) == expected
    assert native_runs(entries, layout.record_columns(entries).flags) == expected


def test_native_run_with_inconsistent_ids_is_an_error() -> None:
    """A flag without the id is no frame: nothing that was checked looks so."""
    frame = FrameBuilder("t", TAG, 1, 0).encode(0, 0, [b"x"] * 3, born_ms=1)
    for sequence in (b"9", b"\x02"):
        broken = bytearray(frame.entries)
        broken[-2:-1] = sequence
        sizes = np.frombuffer(frame.sizes, "<u4").astype(np.int32)
        entries = Range(
            0, 2, 1, 0, memoryview(broken), np.cumsum(sizes, dtype=np.int64) - sizes, sizes, 0, 0
        )
        with pytest.raises(ValueError, match=r"of the range"):
            native_runs(entries)


@given(MESSAGES)
def test_columns_make_the_same_frame(messages: list[Any]) -> None:
    """Arrow's layout and sequences of objects give the same bytes."""
    messages = [
        (body, tag, "".join(keys or "").strip() or None, user, queue)
        for body, tag, keys, user, queue in messages
    ]

    def column(values: list[str | bytes | None]) -> Column:
        raw = [value.encode() if isinstance(value, str) else value or b"" for value in values]
        valid = np.array([value is not None for value in values])
        return Column(b"".join(raw), np.cumsum([0, *map(len, raw)]), valid)

    bodies, tags, keys, users, queues = (list(part) for part in zip(*messages, strict=True))
    frame = FrameBuilder("t", TAG, PRODUCER, EPOCH).encode_columns(
        3,
        np.array(queues, np.int32),
        column(bodies),
        born_ms=BORN_MS,
        tags=column(tags),
        keys=column(keys),
        properties={
            name: column([user.get(name) for user in users])
            for name in sorted({name for user in users for name in user})
        },
    )
    assert frame == built("t", 3, messages)
