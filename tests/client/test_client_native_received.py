"""Batches as columns, messages and Arrow, against the same entries read one by one; and Fetch
responses read out of their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import propagate
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from ledgermq.client.errors import BadArgument
from ledgermq.client.native.consumers import arrow
from ledgermq.client.native.consumers.positions import Entries, Place, Run
from ledgermq.client.native.consumers.received import Batch
from ledgermq.client.native.consumers.wire import fetch_response
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.entries.compression import Expansion
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import seal
from ledgermq.proto.entries.properties import Fields, encode
from ledgermq.proto.frames import BadEntries, Compression, compress
from ledgermq.proto.types import Draft


def entries_of(
    rows: Sequence[tuple[bytes, Fields]], first: int = 0, sysflags: Sequence[int] = ()
) -> tuple[bytes, bytes]:
    """Sizes and bytes of sealed entries of topic ns@t, queue 2."""
    batch = encode_entries(
        [Draft("ns@t", 2, body, encode(fields), 1000 + k) for k, (body, fields) in enumerate(rows)]
    )
    for start, flag in zip(batch.starts.tolist(), sysflags, strict=False):
        batch.data[start + 84 : start + 88] = flag.to_bytes(4, "big")
    offsets = np.arange(first, first + len(rows))
    seal(
        batch,
        first_index=9,
        term=1,
        pos=0,
        queue_offsets=offsets,
        store_ms=2000,
        store_host=bytes(8),
        prev_chain=1,
    )
    return batch.sizes.astype("<u4").tobytes(), bytes(batch.data)


def batch_of(
    rows: Sequence[tuple[bytes, Fields]], *, begin: int = 0, stop: int | None = None, **options: Any
) -> Batch:
    sizes, data = entries_of(rows, first=5, **options)
    run = Run(
        Place("g1", 2),
        1,
        5,
        begin,
        len(rows) if stop is None else stop,
        0,
        memoryview(sizes),
        memoryview(data),
    )
    return Batch.read(run, 7, True)


TEXT = st.text(
    st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8
)
FIELDS = st.builds(
    Fields,
    message_id=st.none() | TEXT | st.just("4C" + "0" * 32),
    tag=st.none() | st.sampled_from(["a", "ab", "b", "é"]),
    keys=st.lists(st.sampled_from(["k", "k 2", "", "kk"]), max_size=3).map(tuple),
    user=st.dictionaries(st.sampled_from(["p", "TAGSX", "KEYS", "q q"]), TEXT, max_size=2),
)
ROWS = st.lists(st.tuples(st.binary(max_size=40), FIELDS), min_size=1, max_size=30)


@given(ROWS, st.data())
def test_columns_agree_with_messages(rows: list[tuple[bytes, Fields]], data: st.DataObject) -> None:
    """Whatever lengths and properties the messages have, and whichever part of a run is wanted."""
    begin = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(begin + 1, len(rows)))
    batch = batch_of(rows, begin=begin, stop=stop)
    rows = rows[begin:stop]
    assert batch.bodies() == [body for body, _ in rows]
    assert (
        batch.offsets.tolist() == list(range(5 + begin, 5 + stop)) and batch.next_offset == 5 + stop
    )
    assert batch.message_ids() == [fields.message_id for _, fields in rows]
    assert batch.tags() == [fields.tag for _, fields in rows]
    assert batch.keys() == [tuple(fields.keys) for _, fields in rows]
    assert batch.properties() == [fields.user for _, fields in rows]
    found = list(batch)
    assert [(m.body, m.message_id, m.tag, m.keys, m.properties) for m in found] == [
        (body, fields.message_id, fields.tag, tuple(fields.keys), fields.user)
        for body, fields in rows
    ]
    assert {(m.topic, m.queue, m.group_queue, m.broker_group) for m in found} == {
        ("ns@t", 7, 2, "g1")
    }
    wanted = data.draw(st.sets(st.sampled_from(["a", "ab", "b", "é", "zz"])))
    assert batch.with_tags(wanted).bodies() == [
        body for body, fields in rows if fields.tag in wanted
    ]
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.to_pylist() == [
        {
            "queue": 7,
            "offset": 5 + begin + k,
            "store_ms": 2000,
            "born_ms": 1000 + begin + k,
            "message_id": fields.message_id,
            "tag": fields.tag,
            "keys": list(fields.keys),
            "properties": sorted(fields.user.items()),
            "body": body,
        }
        for k, (body, fields) in enumerate(rows)
    ]


def test_a_trace_context_comes_from_the_producer_to_the_consumer() -> None:
    """In the user property in which OpenTelemetry puts it, or in the field of an official client,
    which comes first."""
    trace_id, span_id = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
    sent = NonRecordingSpan(SpanContext(trace_id, span_id, False, TraceFlags(1)))
    injected: dict[str, str] = {}
    propagate.inject(injected, set_span_in_context(sent))
    other = Fields(user={"TRACE_CONTEXT": "a user's"})
    official = Fields(trace_context="00-1", user=injected)
    rows = [Fields(user=injected), other, official, Fields(trace_context="00-2")]
    found = batch_of([(b"", fields) for fields in rows]).trace_contexts()
    assert found == [injected["traceparent"], None, "00-1", "00-2"]
    extracted = get_current_span(
        propagate.extract({"traceparent": str(found[0])})
    ).get_span_context()
    assert (extracted.trace_id, extracted.span_id) == (trace_id, span_id)


def test_an_arrow_batch_has_the_columns_that_are_asked_for() -> None:
    """Columns are returned in the requested order; an unknown column is an error of the caller."""
    batch = batch_of([(b"x", Fields(tag="a")), (b"yy", Fields())])
    assert batch.to_arrow(["body", "tag"]).to_pydict() == {
        "body": [b"x", b"yy"],
        "tag": ["a", None],
    }
    assert batch.to_arrow().schema.names == list(arrow.COLUMNS)
    with pytest.raises(BadArgument, match="no column 'bodies'"):
        batch.to_arrow(["bodies"])


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
def test_compressed_bodies_come_as_they_were_sent(kind: Compression) -> None:
    """Also beside bodies that are not."""
    rows = [(compress(b"a" * 1000, kind), Fields()), (b"plain", Fields())]
    batch = batch_of(rows, sysflags=(kind.value, 0))
    assert batch.bodies() == [b"a" * 1000, b"plain"]
    assert batch.to_arrow(["body"]).column(0).to_pylist() == [b"a" * 1000, b"plain"]


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
def test_a_body_that_cannot_be_decompressed_comes_as_it_is_stored_with_a_mark(
    kind: Compression,
) -> None:
    """One that is not what it says, and one that becomes too large: neither keeps its readers from
    the messages behind it, and each kind of reader sees which it is."""
    bomb, good = compress(bytes((4 << 20) + 1), kind), compress(b"good", kind)
    fields = Fields(tag="t", user={"k": "v"})
    batch = batch_of(
        [(b"broken", Fields()), (bomb, fields), (good, fields), (b"plain", Fields())],
        sysflags=(kind.value,) * 3,
    )
    stored = [b"broken", bomb, b"good", b"plain"]
    mark = {"__LMQ.UNDECODED": kind.name.lower()}
    marks = [mark, {"k": "v", **mark}, {"k": "v"}, {}]
    assert batch.bodies() == stored and batch.properties() == marks
    assert [(message.body, message.properties, message.tag) for message in batch] == [
        (body, user, tag)
        for body, user, tag in zip(stored, marks, [None, "t", "t", None], strict=True)
    ]
    table = batch.to_arrow(["body", "properties"]).to_pydict()
    assert table["body"] == stored and [dict(found) for found in table["properties"]] == marks
    assert batch.rows(np.array([1, 2])).properties() == marks[1:3]


def test_expansion_ratio_leaves_excessive_bodies_undecoded() -> None:
    """By the stored length of each body."""
    kind = Compression.ZSTD
    sizes, data = entries_of(
        [(compress(bytes(100_000), kind), Fields()), (compress(b"ab" * 9, kind), Fields())],
        5,
        (kind.value,) * 2,
    )
    run = Run(Place("g1", 2), 1, 5, 0, 2, 0, memoryview(sizes), memoryview(data))
    found = Batch.read(run, 7, True, expansion=Expansion(ratio=100))
    assert list(found.columns.undecoded) == [0] and found.bodies()[1] == b"ab" * 9
    assert list(found.rows(np.array([0])).columns.undecoded) == [0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0x101, 0x201]), st.sampled_from([b"", b"x"]), st.integers(1, 400)
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 900),
    st.data(),
)
def test_run_is_cut_into_batches_by_unpacked_bodies(
    messages: list[tuple[int, bytes, int]], body_bytes: int, data: st.DataObject
) -> None:
    """Each message once and in order, each batch within the limit or of one message, each position
    that of its last message, and skipped messages told once."""
    bodies = [b"a" * size for _, _, size in messages]
    rows = [
        (compress(body, Compression(flag)) + junk, Fields())
        for body, (flag, junk, _) in zip(bodies, messages, strict=True)
    ]
    sizes, raw = entries_of(rows, first=5, sysflags=[flag for flag, _, _ in messages])
    begin = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(begin + 1, len(rows)))
    run: Run | None = Run(Place("g1", 2), 1, 5, begin, stop, 3, memoryview(sizes), memoryview(raw))
    whole, found, offset = Batch.read(run, 7, True, 1 << 30).bodies(), [], 5 + begin
    while run is not None:
        assert run.offset == offset and (run.after is None) == (offset == 5 + begin)
        batch = Batch.read(run, 7, True, body_bytes)
        lengths = [len(body) for body in batch.bodies()]
        assert len(batch) == 1 or sum(lengths) <= body_bytes
        assert (
            batch.skipped == (3 if offset == 5 + begin else 0) and int(batch.offsets[0]) == offset
        )
        found += batch.bodies()
        offset += len(batch)
        assert batch.next_offset == offset == int(batch.offsets[-1]) + 1
        run, last = batch.rest(run), batch.last
        assert run is None or run.after == last
    assert found == whole and offset == 5 + stop


def test_times_are_moments_in_utc() -> None:
    """As administration shows them."""
    (message,) = batch_of([(b"x", Fields(message_group="g", gzip=True))])
    assert (message.born, message.stored) == (
        datetime.fromtimestamp(1, UTC),
        datetime.fromtimestamp(2, UTC),
    )
    assert (message.message_group, message.body_encoding, message.attempt) == ("g", "GZIP", None)


def test_entries_of_another_place_are_refused() -> None:
    """A batch is of one queue, and its offsets are those that were announced."""
    sizes, data = entries_of([(b"x", Fields()), (b"y", Fields())], first=5)
    for place, first in ((Place("g1", 2), 6), (Place("g1", 3), 5)):
        with pytest.raises(BadEntries):
            Batch.read(Run(place, 1, first, 0, 2, 0, memoryview(sizes), memoryview(data)), 0, True)


# -- Fetch responses


@given(
    st.builds(
        pb.Entries,
        queue=st.sampled_from([-1, 0, 1, 300]),
        first_offset=st.integers(0, 1 << 62),
        sizes=st.binary(max_size=9),
        entries=st.binary(max_size=300),
        end_offset=st.integers(0, 1 << 62),
        skipped=st.sampled_from([0, 7]),
    )
)
def test_entries_are_read_where_they_lie(message: pb.Entries) -> None:
    """Every field as the generated code reads it."""
    found = fetch_response(pb.FetchResponse(entries=message).SerializeToString())
    assert isinstance(found, Entries)
    assert (found.queue, found.first_offset, found.end_offset, found.skipped) == (
        *(message.queue, message.first_offset, message.end_offset, message.skipped),
    )
    assert (bytes(found.sizes), bytes(found.entries)) == (message.sizes, message.entries)


def test_other_responses_are_parsed_by_generated_code() -> None:
    """Also entries in a form that nodes never send: in two parts, or before an unknown field."""
    caught_up = pb.FetchResponse(caught_up=pb.CaughtUp(commit_index=3))
    assert fetch_response(caught_up.SerializeToString()) == caught_up
    first, second = (
        pb.FetchResponse(entries=pb.Entries(**part)) for part in ({"queue": 3}, {"entries": b"x"})
    )
    both = fetch_response(first.SerializeToString() + second.SerializeToString())
    assert isinstance(both, Entries) and (both.queue, bytes(both.entries)) == (3, b"x")


@given(st.binary(max_size=40), st.integers(0, 200))
def test_damaged_response_raises_value_error_at_most(noise: bytes, cut: int) -> None:
    """Cut anywhere, or made of noise."""
    whole = pb.FetchResponse(
        entries=pb.Entries(queue=1, first_offset=1 << 40, sizes=b"1234", entries=b"x" * 99)
    ).SerializeToString()
    for data in (whole[:cut], b"\x12" + bytes([len(noise)]) + noise, noise):
        with suppress(ValueError):
            fetch_response(data)
