"""The encoder against the plain one, columns, and one record back into its fields."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.entries import layout
from ledgermq.proto.entries.entry_checking import verify_range
from ledgermq.proto.entries.entry_encoding import (
    encode_entries,
    entry_bytes,
    host_bytes,
)
from ledgermq.proto.entries.entry_sealing import chain_seed, make_range, seal
from ledgermq.proto.entries.message_record import decode_record
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.status import LedgerError
from ledgermq.proto.types import Draft, UnsealedBatch
from tests.proto.plain_entry import PlainMessage, plain_entries

pytestmark = pytest.mark.usefixtures("way")
SEED = chain_seed("6f9619ff-8b86-d011-b42d-00cf4fc964ff")
HOST = "192.168.1.10:10911"
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
TOPICS = st.sampled_from(
    ["flights", "ns@flights", "%DLQ%g", "t" * 127, "n" * 100 + "@" + "t" * 100]
)
DRAFTS = st.builds(
    lambda topic, queue, body, tag, key, mid, born, channel, origin, sysflag: Draft(
        topic,
        queue,
        body,
        properties := encode(Fields(message_id=mid, tag=tag, keys=(key,) if key else ())),
        born,
        layout.tags_code(properties),
        channel,
        origin=origin,
        sysflag=sysflag,
    ),
    TOPICS,
    st.integers(0, 2**31 - 1),
    st.binary(max_size=300),
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | st.just("0" * 34) | TEXT,
    st.integers(0, 2**62),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([0, 0, 1, 2**40]),
    st.sampled_from([0, 0, 0x101, 0x201]),
)


def plain(d: Draft, queue_offset: int, store_ms: int) -> PlainMessage:
    said = d.stored_topic, d.queue, d.body, d.properties, d.born_ms
    return PlainMessage(*said, queue_offset, store_ms, HOST, d.channel, d.origin, 0, d.sysflag)


def sealed(batch: UnsealedBatch, **changes: object) -> int:
    place: dict[str, object] = {
        "first_index": 7,
        "term": 3,
        "pos": 4096,
        "queue_offsets": np.arange(100, 100 + len(batch)),
        "store_ms": 1_700_000_000_123,
        "store_host": host_bytes("192.168.1.10", 10911),
        "prev_chain": SEED,
    }
    return seal(batch, **{**place, **changes})  # type: ignore[arg-type]


@given(st.lists(DRAFTS, min_size=1, max_size=12))
def test_the_encoder_equals_the_plain_one(drafts: list[Draft]) -> None:
    """Encoding and sealing gives byte for byte what the slow encoder gives, and verifying it gives
    the columns back."""
    batch = encode_entries(drafts)
    last = sealed(batch)
    messages = [plain(d, 100 + i, 1_700_000_000_123) for i, d in enumerate(drafts)]
    expected, chain = plain_entries(messages, first_index=7, term=3, pos=4096, prev_chain=SEED)
    assert bytes(batch.data) == expected and last == chain
    entries = verify_range(bytes(batch.data), 7, 3, 4096, SEED)
    assert (entries.first_index, entries.last_index, entries.last_chain) == (
        7,
        6 + len(drafts),
        chain,
    )
    assert (
        entries.starts.tolist() == batch.starts.tolist()
        and entries.sizes.tolist() == batch.sizes.tolist()
    )


@given(st.lists(DRAFTS, min_size=1, max_size=30))
def test_columns_equal_the_drafts(drafts: list[Draft]) -> None:
    """What the dispatcher reads out of the bytes is what the encoder was given."""
    batch = encode_entries(drafts)
    sealed(batch)
    columns = layout.record_columns(verify_range(batch.data, 7, 3, 4096, SEED))
    assert [columns.topics[i] for i in columns.topic_of] == [d.stored_topic for d in drafts]
    assert [batch.topics[i] for i in batch.topic_of] == [d.stored_topic for d in drafts]
    assert columns.queues.tolist() == batch.queues.tolist() == [d.queue for d in drafts]
    assert columns.tags_codes.tolist() == [d.tags_code for d in drafts]
    assert columns.queue_offsets.tolist() == list(range(100, 100 + len(drafts)))
    assert columns.physical_offsets.tolist() == (4096 + 48 + batch.starts).tolist()
    assert columns.sizes.tolist() == (batch.sizes - 48).tolist()
    assert columns.origins.tolist() == [d.origin for d in drafts]


@given(st.lists(DRAFTS, min_size=1, max_size=4))
def test_records_come_back(drafts: list[Draft]) -> None:
    """One record gives its fields, from bytes and from a view."""
    batch = encode_entries(drafts)
    sealed(batch)
    for i, d in enumerate(drafts):
        at, size = int(batch.starts[i]), int(batch.sizes[i])
        record = decode_record(memoryview(batch.data)[at + 48 : at + size])
        assert record == decode_record(bytes(batch.data[at + 48 : at + size]))
        place = d.stored_topic, d.queue, 100 + i, 4096 + at + 48, d.born_ms, 1_700_000_000_123, HOST
        assert record == (*place, d.body, d.properties, d.sysflag)
        assert entry_bytes(d.stored_topic, len(d.body), len(d.properties)) == size


def test_unsealed_entries_are_zero_where_the_server_writes() -> None:
    """Before sealing, header and server fields are zero (format §4); sealing twice leaves no trace
    of the first time."""
    draft = Draft("t", 5, b"body", b"TAGS\x01x\x02", 9, 0)
    batch = encode_entries([draft])
    assert (
        not any(batch.data[:48])
        and not any(batch.data[60:64])
        and not any(batch.data[68:84])
        and not any(batch.data[104:120])
    )
    first = bytes(batch.data)
    sealed(batch, first_index=99, term=88, pos=77, store_ms=66)
    sealed(batch)
    again = encode_entries([draft])
    assert bytes(again.data) == first
    sealed(again)
    assert batch.data == again.data


def test_positions_may_jump() -> None:
    """A batch that continues in the next log file is sealed in one go; its parts become ranges with
    their own positions and chain."""
    drafts = [Draft("t", 0, bytes([i]) * 20, b"", 0) for i in range(4)]
    batch = encode_entries(drafts)
    positions = batch.starts + np.array([500, 500, 9000, 9000])
    sealed(batch, pos=positions)
    cut = int(batch.starts[2])
    left = make_range(batch, 0, 2, first_index=7, term=3, pos=500, prev_chain=SEED)
    right = make_range(
        batch, 2, 4, first_index=9, term=3, pos=9000 + cut, prev_chain=left.last_chain
    )
    for part in (left, right):
        checked = verify_range(part.data, part.first_index, 3, part.pos, part.prev_chain)
        assert (
            checked.last_chain == part.last_chain
            and checked.starts.tolist() == part.starts.tolist()
        )
    assert left.end_pos == 500 + cut and right.last_index == 10


def test_an_empty_batch() -> None:
    """Nothing to encode is an empty batch; sealing it leaves the chain where it was."""
    batch = encode_entries([])
    assert (
        len(batch) == 0
        and batch.data == b""
        and sealed(batch, queue_offsets=np.zeros(0, np.int64)) == SEED
    )


def test_properties_beyond_the_length_field_are_refused() -> None:
    """Properties of 32,767 bytes are written, one more is an error instead of a wrapped length."""
    fits = encode_entries([Draft("t", 0, b"x", b"p" * 32767, 0)])
    sealed(fits)
    assert len(decode_record(fits.data[48:]).properties) == 32767
    with pytest.raises(LedgerError):
        encode_entries([Draft("t", 0, b"x", b"p" * 32768, 0)])


@pytest.mark.parametrize(
    ("topics", "tags"),
    [(1, 1), (3, 40), (30, 3), (300, 300)],
)
def test_many_distinct_topics_and_tags(topics: int, tags: int) -> None:
    """The columns stay right when topics and tags are too many, too long or too odd for the fast
    path."""
    drafts = []
    for i in range(300):
        fields = Fields(
            message_id=f"{i:034d}" if i % 5 else f"odd-{i}",
            tag=None
            if i % 7 == 0
            else f"tag-{i % tags}" + "ä" * (i % 3) + "x" * (20 * (i % 11 == 0)),
            keys=(f"k{i}",) if i % 2 else (),
            user={"TAGS": "forged", "z": "\x7f"},
        )
        properties = encode(fields)
        body = b"\x02TAGS\x01not me\x02" * (i % 3)
        drafts.append(
            Draft(
                f"topic{i % topics}",
                i,
                body,
                properties,
                0,
                layout.java_hash(fields.tag) if fields.tag else 0,
                origin=i % 3,
            )
        )
    batch = encode_entries(drafts)
    sealed(batch)
    columns = layout.record_columns(verify_range(batch.data, 7, 3, 4096, SEED))
    assert columns.tags_codes.tolist() == [d.tags_code for d in drafts]
    assert columns.origins.tolist() == [d.origin for d in drafts]
    assert [columns.topics[i] for i in columns.topic_of] == [d.stored_topic for d in drafts]
    assert len(columns.topics) == topics


def test_a_tag_ends_with_its_record() -> None:
    """A property string without its final 0x02, as older writers leave it, does not run on into the
    next entry."""
    drafts = [
        Draft(
            "t", 0, b"", b"UNIQ_KEY\x01" + b"0" * 34 + b"\x02TAGS\x01ab", 0, layout.java_hash("ab")
        )
    ] * 20
    batch = encode_entries(drafts)
    sealed(batch, first_index=0x0202020202020202, pos=0)
    columns = layout.record_columns(verify_range(batch.data, 0x0202020202020202, 3, 0, SEED))
    assert columns.tags_codes.tolist() == [layout.java_hash("ab")] * 20


def test_only_an_id_has_no_tag_unseen() -> None:
    """Property strings with the length of a usual id alone: a tag in one is still found."""
    alone = b"UNIQ_KEY\x01" + b"0" * 34 + b"\x02"
    tagged = b"UNIQ_KEY\x01" + b"0" * 20 + b"\x02TAGS\x01" + b"a" * 8 + b"\x02"
    first = b"TAGS\x01" + b"a" * 38 + b"\x02"
    other = b"K\x01" + b"0" * 28 + b"\x02TAGS\x01" + b"a" * 7 + b"\x02"
    strings = [alone, tagged, alone, first, other] * 5
    assert {len(string) for string in strings} == {44}
    batch = encode_entries(
        [Draft("t", 0, b"b", string, 0, layout.tags_code(string)) for string in strings]
    )
    sealed(batch)
    columns = layout.record_columns(verify_range(batch.data, 7, 3, 4096, SEED))
    assert columns.tags_codes.tolist() == [layout.tags_code(string) for string in strings]
    assert (columns.tags_codes == 0).sum() == 10


def reference_hash(text: str) -> int:
    raw = text.encode("utf-16-be")
    total = sum(
        int.from_bytes(raw[i : i + 2], "big") * 31 ** (len(raw) // 2 - 1 - i // 2)
        for i in range(0, len(raw), 2)
    )
    return (total + 2**31) % 2**32 - 2**31


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_java_hash(text: str) -> None:
    """The hash is the polynomial over UTF-16 units modulo 2^32, surrogate pairs counting twice."""
    assert layout.java_hash(text) == reference_hash(text)


def test_hosts() -> None:
    """Only IPv4 addresses are written; everything else is 0.0.0.0 with its port."""
    assert host_bytes("192.168.1.10", 10911).hex() == "c0a8010a00002a9f"
    assert (
        host_bytes("::1", 8081)
        == host_bytes("broker.example", 8081)
        == bytes(4) + (8081).to_bytes(4, "big")
    )


@pytest.mark.parametrize("cut", [0, 1, 90, 91, 120])
def test_decode_record_refuses_malformed_records(cut: int) -> None:
    """A short, long or foreign record is a ValueError, never another exception or a wrong
    answer."""
    batch = encode_entries([Draft("topic", 0, b"body", b"TAGS\x01x\x02", 0)])
    sealed(batch)
    record = bytes(batch.data[48:])
    assert decode_record(record).topic == "topic"
    shorter = record[:cut] if cut < len(record) else record[:-1]
    for bad in (shorter, record + b"\0", bytes(4) + record[4:], record[:4] + bytes(4) + record[8:]):
        with pytest.raises(ValueError):
            decode_record(bad)
