"""Streams from a peer whose packets arrive in any order and number: the packets in front are never
lost to those behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.node.replica.shipping.shipping_wire import (
    EntriesSent,
    ShippingMessage,
    SnapshotSent,
    decode,
)
from ledgermq.node.replica.shipping.windowed_fetch import (
    EARLY_BYTES,
    EARLY_PACKETS,
    RESEND_NS,
    WINDOW_BYTES,
    EntryStream,
    Requester,
    SnapshotStream,
    serial,
)
from ledgermq.storage.log.log_scan import Point

SMALL = 64 << 10
"""The bytes of a small log file: a packet ends where its file ends."""
ORDERS: dict[str, Callable[[list[int]], Sequence[int]]] = {
    "in order": lambda places: places,
    "last first": lambda places: places[::-1],
    "mixed": lambda places: Random(7).sample(places, len(places)),
}


def requester() -> Requester:
    return Requester("n1", "log", serial(1))


def session_of(stream: EntryStream | SnapshotStream, now_ns: int) -> int:
    (_, packet), *_ = stream.ask(now_ns)
    return decode(packet, "n1").session


def entries(packets: int) -> EntryStream:
    return EntryStream(
        requester(),
        "n2",
        Point(pos=0, index=0, term=-1, chain=0),
        packets * SMALL,
        0,
        window=WINDOW_BYTES,
    )


def give(stream: EntryStream, session: int, place: int, size: int = SMALL) -> None:
    message = ShippingMessage(
        sender="n2",
        log_id="log",
        session=session,
        content=EntriesSent(index=place, last_index=place, term=1, pos=place * SMALL),
        payload=bytes(size),
    )
    stream.take(message, 0)


def taken(stream: EntryStream) -> list[int]:
    """The packets that the owner can take now."""
    found = []
    while (piece := stream.next()) is not None:
        found.append(piece[0].index)
        stream.advance(
            Point(pos=(piece[0].index + 1) * SMALL, index=piece[0].index + 1, term=1, chain=0)
        )
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_window_of_small_packets_is_taken_whole_in_any_order(order: str) -> None:
    packets = WINDOW_BYTES // SMALL
    stream = entries(packets)
    session = session_of(stream, 0)
    for place in ORDERS[order](list(range(packets))):
        give(stream, session, place)
    assert taken(stream) == list(range(packets))


@given(
    order=st.permutations(range(40)),
    size=st.sampled_from([EARLY_BYTES // 8, EARLY_BYTES // 3, EARLY_BYTES, 2 * EARLY_BYTES]),
)
def test_of_too_many_bytes_those_farthest_ahead_are_dropped(order: list[int], size: int) -> None:
    """A peer that sends more than it was allowed: memory is bounded, and what is kept begins with
    the next packet."""
    stream = entries(40)
    session = session_of(stream, 0)
    payload = bytes(size)
    for place in order:
        stream.take(
            ShippingMessage(
                sender="n2",
                log_id="log",
                session=session,
                content=EntriesSent(index=place, last_index=place, term=1, pos=place * SMALL),
                payload=payload,
            ),
            0,
        )
    assert taken(stream) == list(range(max(1, EARLY_BYTES // size)))


def test_empty_packets_are_bounded_by_their_number() -> None:
    stream = entries(2 * EARLY_PACKETS)
    session = session_of(stream, 0)
    for place in range(2 * EARLY_PACKETS):
        give(stream, session, place, 0)
    assert len(taken(stream)) == EARLY_PACKETS


def test_a_repeated_packet_counts_once() -> None:
    stream = entries(4)
    session = session_of(stream, 0)
    for place in (3, 2, 1, *([3] * (EARLY_BYTES // SMALL)), 0):
        give(stream, session, place)
    assert taken(stream) == [0, 1, 2, 3]


def test_packets_of_a_former_request_are_not_taken() -> None:
    stream = entries(4)
    former = session_of(stream, 0)
    session = session_of(stream, RESEND_NS)
    give(stream, former, 0)
    assert taken(stream) == []
    give(stream, session, 0)
    assert taken(stream) == [0]


@pytest.mark.parametrize("order", ORDERS)
def test_a_snapshot_is_put_together_from_pieces_in_any_order(order: str) -> None:
    whole = Random(3).randbytes(100 * 1000)
    stream = SnapshotStream(requester(), "n2", 0)
    session = session_of(stream, 0)
    for place in ORDERS[order](list(range(0, len(whole), 1000))):
        sent = SnapshotSent(
            offset=place, total_bytes=len(whole), checksum=crc32c.crc32c(whole), applied_index=9
        )
        stream.take(
            ShippingMessage(
                sender="n2",
                log_id="log",
                session=session,
                content=sent,
                payload=whole[place : place + 1000],
            ),
            0,
        )
    assert stream.data == whole
