"""Messages that a native producer stored compressed, as unary consumers get them: decompressed,
whole, and never without bound."""

from __future__ import annotations

import hashlib
import os
from unittest.mock import patch

from ledgermq.node.broker.calls.read_calls import Peek, Peeked
from ledgermq.node.broker.calls.send_calls import Produce
from ledgermq.node.frontend.admin.messages import group_queries
from ledgermq.node.frontend.rocketmq import pulling
from ledgermq.node.frontend.rocketmq.wire.bodies import gain, plain
from ledgermq.node.runtime.answer_budget import ANSWERS
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.compression import Compression, compress
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.layout import HEADER_BYTES
from ledgermq.proto.entries.message_record import Record
from ledgermq.proto.types import Draft
from tests.contract.backend import EPOCH_MS, Backend, contract
from tests.contract.test_contract_pull import pull

LONG = b"the same again and again " * 1000


async def store(
    server: Backend, body: bytes, kind: Compression, stored: bytes | None = None
) -> None:
    """One message of queue 0, its body compressed."""
    packed = compress(body, kind) if stored is None else stored
    draft = Draft("T", 0, packed, b"UNIQ_KEY\x01id\x02", EPOCH_MS, sysflag=kind.value)
    await server.engine.call("g1", Produce(server.engine.new_token(), [draft]))


@contract()
async def test_bodies_are_delivered_as_their_producers_had_them(server: Backend) -> None:
    """To a Receive, with digest and encoding of the plain body, and to a pull."""
    for kind in (Compression.LZ4, Compression.ZSTD):
        await store(server, LONG, kind)
    received = await server.raw.receive()
    assert received.bodies == [LONG, LONG]
    for message in received.messages:
        assert (
            message.system_properties.body_digest.checksum == hashlib.md5(LONG).hexdigest().upper()
        )
        assert message.system_properties.body_encoding == pb.IDENTITY
    assert (await pull(server.raw, 0)).bodies == [LONG, LONG]


@contract()
async def test_body_with_a_wrong_encoding_is_delivered_as_stored(server: Backend) -> None:
    """It must not be redelivered endlessly, nor block later messages."""
    broken = b"\x28\xb5\x2f\xfd" + os.urandom(40)
    await store(server, b"", Compression.ZSTD, broken)
    await store(server, LONG, Compression.LZ4)
    received = await server.raw.receive()
    assert received.bodies == [broken, LONG]
    assert [dict(message.user_properties) for message in received.messages] == [
        {"__LMQ.UNDECODED": "zstd"},
        {},
    ]


@contract()
async def test_a_pull_ends_before_its_bodies_are_too_many(server: Backend) -> None:
    """A few kilobytes of log can contain mebibytes of messages; the next pull continues where this
    one ended."""
    large = bytes(4 << 20)
    for _ in range(6):
        await store(server, large, Compression.ZSTD)
    first = await pull(server.raw, 0)
    assert len(first.messages) == pulling.BATCH_BYTES // len(large) == first.next
    assert len((await pull(server.raw, first.next)).messages) == 2


def test_no_body_becomes_larger_than_the_largest_message() -> None:
    """Whatever its frame claims; and what is not compressed is left alone."""
    bomb = compress(bytes((4 << 20) + 1), Compression.ZSTD)
    record = Record("T", 0, 0, 0, 0, 0, "", bomb, b"", Compression.ZSTD.value)
    assert plain(record) is record
    assert plain(record._replace(sysflag=0)).body == bomb
    shown = plain(
        Record("T", 0, 0, 0, 0, 0, "", compress(LONG, Compression.LZ4), b"", Compression.LZ4.value)
    )
    assert (shown.body, shown.sysflag) == (LONG, 0)


def stored_record(body: bytes, kind: Compression) -> bytes:
    """A message record as the log has it."""
    return bytes(encode_entries([Draft("T", 0, body, b"", EPOCH_MS, sysflag=kind.value)]).data)[
        HEADER_BYTES:
    ]


def test_decompressed_size_is_taken_from_the_frames() -> None:
    """By what their frames state; what is not compressed, or is delivered as stored, gains
    nothing."""
    large = bytes(4 << 20)
    packed = compress(large, Compression.ZSTD)
    records = [stored_record(packed, Compression.ZSTD), stored_record(b"plain", Compression.NONE)]
    bomb = compress(large + b"x", Compression.ZSTD)
    assert gain(records) == len(large) - len(packed)
    assert (
        gain([stored_record(bomb, Compression.ZSTD), stored_record(b"garbage", Compression.LZ4)])
        == 0
        == gain([])
    )


@contract()
async def test_receives_and_pulls_ask_for_the_memory_of_decompressed_bodies(
    server: Backend,
) -> None:
    """Twice what they gain, until their calls end. Messages of a Receive that does not get it come
    again at once."""
    asked: list[int] = []
    full = False

    async def grow(size: int, until: float) -> None:
        asked.append(size)
        if full:
            raise ANSWERS.refusal()

    packed = compress(LONG, Compression.ZSTD)
    with patch.object(ANSWERS, "grow", grow):
        for _ in range(2):
            await store(server, LONG, Compression.ZSTD)
        await store(server, b"plain", Compression.NONE)
        full = True
        refused = await server.raw.receive()
        assert refused.bodies == [] and refused.status.code == pb.TOO_MANY_REQUESTS
        full = False
        received = await server.raw.receive()
        assert sorted(received.bodies) == sorted([LONG, LONG, b"plain"])
        assert (await pull(server.raw, 0)).bodies[:2] == [LONG, LONG]
    assert asked == [2 * 2 * (len(LONG) - len(packed))] * 3


@contract()
async def test_queries_show_plain_bodies(server: Backend) -> None:
    """As `peek` and `query` print them."""
    await store(server, LONG, Compression.LZ4)
    peeked = await server.engine.call("g1", Peek(server.engine.new_token(), "T", 0, 0, 1))
    assert isinstance(peeked, Peeked)
    assert group_queries.message_of(peeked.records[0], "", "T", 0, "g1", 0, 0).body == LONG
    broken = group_queries.message_of(
        stored_record(b"garbage", Compression.LZ4), "", "T", 0, "g1", 0, 0
    )
    assert (broken.body, dict(broken.properties)) == (b"garbage", {"__LMQ.UNDECODED": "lz4"})
