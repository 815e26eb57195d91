"""Raft messages as packets: the only module that converts `raft.messages` values to packet headers
and back (docs/format.md §19).

A header is one struct of fixed width for its kind of message, then the names, then a CRC-32C of
both. A header is not covered by the chain of the log, so it carries its own check: what it says
about chains can fence a replica.

The decoder checks the shape of everything that arrives: the checksum, the fields of the message,
and the relations between numbers that the core relies on. It passes the bytes of a range on unread;
`proto.entries.entry_checking` verifies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError

from crc32c import crc32c

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.proto.types import Range
from ledgermq.raft.messages import (
    NO_INDEX,
    Append,
    AppendReply,
    Extent,
    LeftBehind,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from ledgermq.raft.transfer import HANDOVERS, Cause

WIRE_VERSION = 2
"""The version of packets that a greeting states. Version 1, which greetings did not state, had
protobuf headers. Raise it with every change of a header that the former version would not decode to
the same message."""
TERM_MAX = 1 << 62
"""No correct peer reaches this term. From a higher one, the receiver's next campaign could exceed
the 64 bits of the wire and disk format."""
CRC_BYTES = 4
NAMES_KEPT = 256
"""More pairs of names than a node exchanges packets under; each is encoded and decoded once."""
NAMES_BYTES_MAX = 3 * 256
_NO_RANGE = (-1, -1, -1)

# The first byte of a header is its kind, the second has its flags, and the term follows. Kind 7 is
# file shipping (`shipping_wire.py`).
VOTE_REQUEST, VOTE_REPLY, APPEND, APPEND_REPLY, TIMEOUT_NOW, LEFT_BEHIND = range(1, 7)
_VOTE_REQUEST = Struct(">BBqqq")
_VOTE_REPLY = Struct(">BBq")
_APPEND = Struct(">BBqqqqIqqqqq")
_APPEND_REPLY = Struct(">BBqqQqqq")
_TIMEOUT_NOW = Struct(">BBqqqB")
_LEFT_BEHIND = Struct(">BBqq")
_LAYOUTS = {
    VOTE_REQUEST: (_VOTE_REQUEST, 3, 3),
    VOTE_REPLY: (_VOTE_REPLY, 3, 2),
    APPEND: (_APPEND, 7, 2),
    APPEND_REPLY: (_APPEND_REPLY, 31, 2),
    TIMEOUT_NOW: (_TIMEOUT_NOW, 0, 2),
    LEFT_BEHIND: (_LEFT_BEHIND, 0, 2),
}
"""Of every kind: its struct, all of its flags, and how many names follow."""
_OF_LEADER = (bytes((APPEND,)), bytes((LEFT_BEHIND,)))


class BadPacket(Exception):
    """A packet that a correct peer never sends; it is dropped and counted under `kind`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


@dataclass(slots=True, kw_only=True)
class Arrived:
    """A decoded packet. `prev_chain` and `pos` belong to an `Append`; `pos` is −1 without a
    payload."""

    message: Message
    payload: bytes | memoryview
    prev_chain: int = 0
    pos: int = -1


def encode_append(message: Append, prev_chain: int, entries: Range | None) -> PeerPacket:
    """Encode an `Append` with the chain CRC before its range, and the range as payload."""
    payload: bytes | memoryview = b""
    last_index, term, pos = _NO_RANGE
    if entries is not None:
        last_index, term, pos, payload = entries.last_index, entries.term, entries.pos, entries.data
    head = _APPEND.pack(
        APPEND,
        message.lazy | message.early << 1 | message.quiet << 2,
        message.term,
        message.round,
        message.prev_index,
        message.prev_term,
        prev_chain,
        message.commit_index,
        message.end_index,
        last_index,
        term,
        pos,
    )
    return PeerPacket(seal(head + _names_bytes(message.sender, message.to)), payload)


def encode(message: VoteRequest | VoteReply | AppendReply | TimeoutNow | LeftBehind) -> PeerPacket:
    """Encode a message that needs nothing from the log."""
    names = _names_bytes(message.sender, message.to)
    if isinstance(message, AppendReply):
        flags = (
            message.rejected
            | message.leaving << 1
            | message.provisional << 2
            | message.fetch << 3
            | message.watched << 4
        )
        head = _APPEND_REPLY.pack(
            APPEND_REPLY,
            flags,
            message.term,
            message.round,
            message.boot_id,
            message.received,
            message.durable,
            message.hint_term,
        )
    elif isinstance(message, VoteRequest):
        flags = message.pre | message.transfer << 1
        head = _VOTE_REQUEST.pack(
            VOTE_REQUEST, flags, message.term, message.last_index, message.last_term
        )
        names = _names_bytes(message.sender, message.to, message.incarnation)
    elif isinstance(message, VoteReply):
        head = _VOTE_REPLY.pack(VOTE_REPLY, message.pre | message.granted << 1, message.term)
    elif isinstance(message, TimeoutNow):
        head = _TIMEOUT_NOW.pack(
            TIMEOUT_NOW, 0, message.term, message.last_index, message.last_term, message.cause
        )
    else:
        head = _LEFT_BEHIND.pack(LEFT_BEHIND, 0, message.term, message.begin_index)
    return PeerPacket(seal(head + names))


def decode(packet: PeerPacket, sender: str) -> Arrived:
    """Decode a packet. `sender` is the name that the transport authenticated. Raises BadPacket."""
    data = unseal(packet.header)
    layout = _LAYOUTS.get(data[0]) if data else None
    if layout is None:
        raise BadPacket("shape", f"a message of unknown kind {data[:1].hex()}")
    struct, flags_max, names_count = layout
    try:
        fields = struct.unpack_from(data)
        names = _names(data[struct.size :])
    except (StructError, UnicodeDecodeError) as error:
        raise BadPacket("shape", str(error)) from error
    if len(names) != names_count:
        raise BadPacket("shape", f"{len(names)} names instead of {names_count}")
    if names[0] != sender:
        raise BadPacket("stranger", f"{sender} sent a packet in the name of {names[0]!r}")
    kind, flags, term = fields[:3]
    if not (sender and names[1]):
        raise BadPacket("shape", "sender or receiver without a name")
    if not 0 <= term <= TERM_MAX:
        raise BadPacket("shape", f"term {term} is out of bounds")
    if flags > flags_max:
        raise BadPacket("shape", f"unknown flags {flags:#x}")
    if kind == APPEND:
        return _append(names, fields, packet.payload)
    if len(packet.payload):
        raise BadPacket("shape", f"a message of kind {kind} with a payload")
    return Arrived(message=_plain(names, fields), payload=b"")


def is_of_leader(packet: PeerPacket) -> bool:
    """Whether only the leader of a term sends this packet: a part of its log, or the notice that it
    has trimmed what the receiver lacks. A follower may accept these from any directory of an
    elected leader, because they are not counted as votes and replies are. A receiver whose log ends
    before the record of the leader's directory has no other way to get that record. `decode`
    refuses a header whose kind was changed on the way."""
    return packet.header[:1] in _OF_LEADER


def seal(data: bytes) -> bytes:
    """Append the CRC-32C that ends every header of a packet."""
    return data + int(crc32c(data)).to_bytes(CRC_BYTES)


def unseal(header: bytes) -> bytes:
    """A header without its CRC-32C. Raises BadPacket if the CRC does not match."""
    data = header[:-CRC_BYTES]
    if crc32c(data) != int.from_bytes(header[-CRC_BYTES:]):
        raise BadPacket("checksum", "header was changed on the way")
    return data


@lru_cache(NAMES_KEPT)
def _names_bytes(*names: str) -> bytes:
    """Names as UTF-8, each after its length in one byte."""
    return b"".join(len(name).to_bytes() + name for name in map(str.encode, names))


@lru_cache(NAMES_KEPT)
def _names(data: bytes) -> tuple[str, ...]:
    """What `_names_bytes` encoded. Raises BadPacket or UnicodeDecodeError."""
    if len(data) > NAMES_BYTES_MAX:
        raise BadPacket("shape", f"names of {len(data)} bytes")
    names: list[str] = []
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        names.append(data[at + 1 : end].decode())
        at = end
    if at > len(data):
        raise BadPacket("shape", "a name that is cut off")
    return tuple(names)


def _append(
    names: tuple[str, ...], fields: tuple[int, ...], payload: bytes | memoryview
) -> Arrived:
    (
        _,
        flags,
        term,
        sent_round,
        prev_index,
        prev_term,
        prev_chain,
        commit_index,
        end_index,
        last_index,
        range_term,
        pos,
    ) = fields
    if prev_index < NO_INDEX or prev_term > term:
        raise BadPacket("shape", "entry before the range")
    if end_index < NO_INDEX:
        raise BadPacket("shape", "a log that ends before it begins")
    extent, size = None, len(payload)
    if size:
        if pos < 0:
            raise BadPacket("shape", "payload without a range")
        if last_index <= prev_index:
            raise BadPacket("shape", "range ends before it begins")
        if range_term < 0 or not prev_term <= range_term <= term:
            raise BadPacket("shape", "terms fall along the range")
        extent = Extent(
            first_index=prev_index + 1, last_index=last_index, term=range_term, size=size
        )
    elif (last_index, range_term, pos) != _NO_RANGE:
        raise BadPacket("shape", "range without bytes")
    sender, to = names
    message = Append(
        sender=sender,
        to=to,
        term=term,
        round=sent_round,
        prev_index=prev_index,
        prev_term=prev_term,
        commit_index=commit_index,
        extent=extent,
        lazy=flags & 1 > 0,
        early=flags & 2 > 0,
        end_index=end_index,
        quiet=flags & 4 > 0,
    )
    return Arrived(message=message, payload=payload, prev_chain=prev_chain, pos=pos)


def _plain(names: tuple[str, ...], fields: tuple[int, ...]) -> Message:
    sender, to = names[:2]
    kind, flags, term = fields[:3]
    if kind == APPEND_REPLY:
        sent_round, boot_id, received, durable, hint_term = fields[3:]
        if not NO_INDEX <= durable <= received:
            raise BadPacket("shape", "durable above received")
        return AppendReply(
            sender=sender,
            to=to,
            term=term,
            round=sent_round,
            boot_id=boot_id,
            rejected=flags & 1 > 0,
            received=received,
            durable=durable,
            hint_term=hint_term,
            leaving=flags & 2 > 0,
            provisional=flags & 4 > 0,
            fetch=flags & 8 > 0,
            watched=flags & 16 > 0,
        )
    if kind == VOTE_REQUEST:
        _demand(flags != 3, "a pre-vote for a handover")
        return VoteRequest(
            sender=sender,
            to=to,
            term=term,
            pre=flags & 1 > 0,
            last_index=fields[3],
            last_term=fields[4],
            transfer=flags & 2 > 0,
            incarnation=names[2],
        )
    if kind == VOTE_REPLY:
        return VoteReply(sender=sender, to=to, term=term, pre=flags & 1 > 0, granted=flags & 2 > 0)
    if kind == TIMEOUT_NOW:
        last_index, last_term, cause = fields[3:]
        _demand(last_index >= 0 and 0 <= last_term <= term, "a handover without a last entry")
        _demand(cause in HANDOVERS, "a handover for no known reason")
        return TimeoutNow(
            sender=sender,
            to=to,
            term=term,
            last_index=last_index,
            last_term=last_term,
            cause=Cause(cause),
        )
    _demand(fields[3] > 0, "left behind by a log that still has its first entry")
    return LeftBehind(sender=sender, to=to, term=term, begin_index=fields[3])


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise BadPacket("shape", what)
