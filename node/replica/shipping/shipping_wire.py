"""File shipping as packets: requests and answers as values, and their form as headers
(docs/format.md §19).

It checks the shape of everything that arrives: checksum, sender, and bounds of numbers. Payloads
are passed on unread, and the requester verifies them. Raft never sees these packets: their header
begins with another byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.consensus.replica_wire import TERM_MAX, BadPacket, seal, unseal
from ledgermq.proto import shipping_pb2
from ledgermq.proto.shipping_pb2 import EntryPlace, Fetched, FetchRefused, LogPoint
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.repair.log_source import Facts, Missing, Why

PAYLOAD_BYTES_MAX = 64 << 20
"""No correct answer has a larger payload: an entry never exceeds a log file, and packets of several
entries are cut at 1 MiB."""
PLACES_MAX = 64
POS_MAX = 1 << 62
_REASONS = {
    Why.UNKNOWN: FetchRefused.UNKNOWN,
    Why.DAMAGED: FetchRefused.DAMAGED,
    Why.DIFFERS: FetchRefused.DIFFERS,
    Why.TRIMMED: FetchRefused.TRIMMED,
    Why.BEYOND: FetchRefused.BEYOND,
    Why.OTHER_LOG: FetchRefused.OTHER_LOG,
    Why.NO_SNAPSHOT: FetchRefused.NO_SNAPSHOT,
}
SHIPPING = b"\x07"
"""The first byte of a header; no Raft message has this kind (`replica_wire.py`)."""


@dataclass(frozen=True, slots=True)
class FactsWanted:
    """A request for facts about the log. `places`: (index, position or −1) of entries whose term
    and chain CRC are wanted."""

    places: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesWanted:
    """A request for entries from `point` on that begin before `end_pos`. Entries at or behind
    `allowed_pos` must not be sent yet."""

    point: Point
    end_pos: int
    allowed_pos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWanted:
    """A request for bytes of the newest snapshot from `offset` on. Bytes at or behind
    `allowed_offset` must not be sent yet."""

    offset: int
    allowed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesSent:
    """The payload is the entries `index` … `last_index`, all of `term`, starting at `pos`."""

    index: int
    last_index: int
    term: int
    pos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSent:
    """The payload is the part from `offset` on of a snapshot of `total_bytes` bytes with this
    CRC-32C."""

    offset: int
    total_bytes: int
    checksum: int
    applied_index: int


Wanted = FactsWanted | EntriesWanted | SnapshotWanted
Sent = Facts | EntriesSent | SnapshotSent | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippingMessage:
    """One decoded shipping packet."""

    sender: str
    log_id: str
    session: int
    content: Wanted | Sent
    payload: bytes | memoryview = b""


def is_shipping(packet: PeerPacket) -> bool:
    """Whether a packet of a group belongs to file shipping and not to Raft."""
    return packet.header[:1] == SHIPPING


def encode(
    sender: str,
    to: str,
    log_id: str,
    session: int,
    content: Wanted | Sent,
    payload: bytes | memoryview = b"",
) -> PeerPacket:
    """Encode one packet. Only `EntriesSent` and `SnapshotSent` have a `payload`."""
    message = shipping_pb2.ShippingMessage(sender=sender, to=to, log_id=log_id, session=session)
    if isinstance(content, FactsWanted):
        message.fetch.facts.places.extend(
            EntryPlace(index=index, pos=pos) for index, pos in content.places
        )
        message.fetch.facts.SetInParent()
    elif isinstance(content, EntriesWanted):
        wanted, point = message.fetch.entries, content.point
        wanted.index, wanted.pos, wanted.prev_term, wanted.prev_chain = (
            point.index,
            point.pos,
            point.term,
            point.chain,
        )
        wanted.end_pos, wanted.allowed_pos = content.end_pos, content.allowed_pos
    elif isinstance(content, SnapshotWanted):
        message.fetch.snapshot.offset, message.fetch.snapshot.allowed_offset = (
            content.offset,
            content.allowed_offset,
        )
        message.fetch.snapshot.SetInParent()
    else:
        _put_answer(message.fetched, content)
    return PeerPacket(seal(SHIPPING + message.SerializeToString()), payload)


def _put_answer(fetched: Fetched, content: Sent) -> None:
    if isinstance(content, Facts):
        facts = fetched.facts
        facts.data_file_bytes, facts.index_file_bytes = (
            content.data_file_bytes,
            content.index_file_bytes,
        )
        facts.begin.CopyFrom(_log_point(content.begin))
        facts.synced.CopyFrom(_log_point(content.synced))
        facts.committed_index, facts.committed_pos = content.committed_index, content.committed_pos
        facts.committed_term = content.committed_term
        facts.snapshot_index, facts.snapshot_bytes = content.snapshot_index, content.snapshot_bytes
        facts.points.extend(_log_point(point) for point in content.points)
    elif isinstance(content, EntriesSent):
        sent = fetched.entries
        sent.index, sent.last_index, sent.term, sent.pos = (
            content.index,
            content.last_index,
            content.term,
            content.pos,
        )
        sent.SetInParent()
    elif isinstance(content, SnapshotSent):
        piece = fetched.snapshot
        piece.offset, piece.total_bytes, piece.checksum = (
            content.offset,
            content.total_bytes,
            content.checksum,
        )
        piece.applied_index = content.applied_index
        piece.SetInParent()
    else:
        refused = fetched.refused
        refused.reason = _REASONS[content.why]
        refused.index, refused.pos, refused.text = content.index, content.pos, content.text


def decode(packet: PeerPacket, sender: str) -> ShippingMessage:
    """Decode a packet. `sender` is the name that the transport authenticated. Raises BadPacket."""
    data = unseal(packet.header)
    _demand(data[:1] == SHIPPING, "not a shipping packet")
    try:
        message = shipping_pb2.ShippingMessage.FromString(data[1:])
    except DecodeError as error:
        raise BadPacket("shape", str(error)) from error
    if message.sender != sender:
        raise BadPacket("stranger", f"{sender} sent a packet in the name of {message.sender!r}")
    kind = message.WhichOneof("content")
    content = (
        _wanted(message)
        if kind == "fetch"
        else _sent(message, len(packet.payload))
        if kind == "fetched"
        else None
    )
    if content is None:
        raise BadPacket("shape", "a shipping packet without content")
    carries = isinstance(content, EntriesSent | SnapshotSent)
    if len(packet.payload) and not carries:
        raise BadPacket("shape", f"{kind} with a payload")
    if len(packet.payload) > PAYLOAD_BYTES_MAX:
        raise BadPacket("shape", f"a payload of {len(packet.payload)} bytes")
    return ShippingMessage(
        sender=sender,
        log_id=message.log_id,
        session=message.session,
        content=content,
        payload=packet.payload,
    )


def _wanted(message: shipping_pb2.ShippingMessage) -> Wanted | None:
    fetch = message.fetch
    kind = fetch.WhichOneof("wanted")
    if kind == "facts":
        _demand(len(fetch.facts.places) <= PLACES_MAX, "too many places")
        for place in fetch.facts.places:
            _demand(place.index >= 0 and -1 <= place.pos <= POS_MAX, "a place out of bounds")
        return FactsWanted(tuple((place.index, place.pos) for place in fetch.facts.places))
    if kind == "entries":
        wanted = fetch.entries
        _demand(
            0 <= wanted.index <= POS_MAX
            and 0 <= wanted.pos <= POS_MAX
            and -1 <= wanted.prev_term <= TERM_MAX,
            "a point out of bounds",
        )
        _demand(
            wanted.pos <= wanted.end_pos <= POS_MAX and 0 <= wanted.allowed_pos <= POS_MAX,
            "a range that ends before it begins",
        )
        point = Point(
            pos=wanted.pos, index=wanted.index, term=wanted.prev_term, chain=wanted.prev_chain
        )
        return EntriesWanted(point=point, end_pos=wanted.end_pos, allowed_pos=wanted.allowed_pos)
    if kind == "snapshot":
        _demand(
            0 <= fetch.snapshot.offset <= fetch.snapshot.allowed_offset <= POS_MAX,
            "a snapshot offset out of bounds",
        )
        return SnapshotWanted(
            offset=fetch.snapshot.offset, allowed_offset=fetch.snapshot.allowed_offset
        )
    return None


def _sent(message: shipping_pb2.ShippingMessage, size: int) -> Sent | None:
    fetched = message.fetched
    kind = fetched.WhichOneof("content")
    if kind == "facts":
        facts = fetched.facts
        _demand(
            0 < facts.data_file_bytes <= POS_MAX and 0 < facts.index_file_bytes <= POS_MAX,
            "files without a length",
        )
        _demand(
            -1 <= facts.committed_index <= POS_MAX and -1 <= facts.committed_pos <= POS_MAX,
            "a commit index out of bounds",
        )
        _demand(0 <= facts.committed_term <= TERM_MAX, "a term out of bounds")
        _demand(
            -1 <= facts.snapshot_index <= POS_MAX and 0 <= facts.snapshot_bytes <= POS_MAX,
            "a snapshot index or size out of bounds",
        )
        _demand(len(facts.points) <= PLACES_MAX, "too many points")
        return Facts(
            data_file_bytes=facts.data_file_bytes,
            index_file_bytes=facts.index_file_bytes,
            begin=_point(facts.begin),
            synced=_point(facts.synced),
            committed_index=facts.committed_index,
            committed_pos=facts.committed_pos,
            committed_term=facts.committed_term,
            snapshot_index=facts.snapshot_index,
            snapshot_bytes=facts.snapshot_bytes,
            points=tuple(_point(point) for point in facts.points),
        )
    if kind == "entries":
        sent = fetched.entries
        _demand(
            0 <= sent.index <= sent.last_index <= POS_MAX and 0 <= sent.pos <= POS_MAX and size > 0,
            "an invalid range of entries",
        )
        _demand(0 <= sent.term <= TERM_MAX, "a term out of bounds")
        return EntriesSent(
            index=sent.index, last_index=sent.last_index, term=sent.term, pos=sent.pos
        )
    if kind == "snapshot":
        piece = fetched.snapshot
        fits = 0 <= piece.offset < piece.offset + size <= piece.total_bytes <= POS_MAX
        _demand(fits, "a piece outside of its snapshot")
        _demand(-1 <= piece.applied_index <= POS_MAX, "a snapshot index out of bounds")
        return SnapshotSent(
            offset=piece.offset,
            total_bytes=piece.total_bytes,
            checksum=piece.checksum,
            applied_index=piece.applied_index,
        )
    if kind == "refused":
        refused = fetched.refused
        why = next(
            (why for why, reason in _REASONS.items() if reason == refused.reason), Why.UNKNOWN
        )
        return Missing(why=why, index=refused.index, pos=refused.pos, text=refused.text)
    return None


def _log_point(point: Point) -> LogPoint:
    return LogPoint(index=point.index, pos=point.pos, term=point.term, chain=point.chain)


def _point(point: LogPoint) -> Point:
    _demand(
        0 <= point.index <= POS_MAX and 0 <= point.pos <= POS_MAX and -1 <= point.term <= TERM_MAX,
        "a point out of bounds",
    )
    return Point(pos=point.pos, index=point.index, term=point.term, chain=point.chain)


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise BadPacket("shape", what)
