"""Raft messages as packets: the only module that converts `raft.messages` values to headers of `proto/raft.proto` and back.

It checks the shape of everything that arrives: the checksum, the fields of the message, and the relations between numbers that the core
relies on. It passes the bytes of a range on unread; `proto.entry_checking` verifies them.
"""

from __future__ import annotations

from dataclasses import dataclass

import crc32c
from google.protobuf.message import DecodeError

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.proto.raft_pb2 import RaftAppend, RaftMessage, RaftPacket
from ledgermq.proto.types import Range
from ledgermq.raft.messages import NO_INDEX, Append, AppendReply, Extent, LeftBehind, Message, TimeoutNow, VoteReply, VoteRequest
from ledgermq.raft.transfer import HANDOVERS, Cause

TERM_MAX = 1 << 62
"""No correct peer reaches this term. From a higher one, the receiver's next campaign could exceed the 64 bits of the wire and disk
format."""


class BadPacket(Exception):
    """A packet that a correct peer never sends; it is dropped and counted under `kind`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Arrived:
    """A decoded packet. `prev_chain` and `pos` belong to an `Append`; `pos` is −1 without a payload."""

    message: Message
    payload: bytes | memoryview
    prev_chain: int = 0
    pos: int = -1


def encode_append(message: Append, prev_chain: int, entries: Range | None) -> PeerPacket:
    """Encode an `Append` with the chain CRC before its range, and the range as payload."""
    header = RaftMessage(sender=message.sender, to=message.to, term=message.term)
    append = header.append
    append.round, append.commit_index = message.round, message.commit_index
    append.prev_index, append.prev_term, append.prev_chain = message.prev_index, message.prev_term, prev_chain
    append.lazy, append.early = message.lazy, message.early
    if message.end_index != NO_INDEX:
        append.end_index = message.end_index
    if entries is None:
        return _seal(header, b"")
    append.range.last_index, append.range.term, append.range.pos = entries.last_index, entries.term, entries.pos
    return _seal(header, entries.data)


def encode(message: VoteRequest | VoteReply | AppendReply | TimeoutNow | LeftBehind) -> PeerPacket:
    """Encode a message that needs nothing from the log."""
    header = RaftMessage(sender=message.sender, to=message.to, term=message.term)
    if isinstance(message, VoteRequest):
        request = header.vote_request
        request.pre, request.last_index, request.last_term = message.pre, message.last_index, message.last_term
        request.transfer, request.incarnation = message.transfer, message.incarnation
    elif isinstance(message, VoteReply):
        header.vote_reply.pre, header.vote_reply.granted = message.pre, message.granted
    elif isinstance(message, TimeoutNow):
        now = header.timeout_now
        now.last_index, now.last_term, now.cause = message.last_index, message.last_term, message.cause
    elif isinstance(message, LeftBehind):
        header.left_behind.begin_index = message.begin_index
    else:
        reply = header.append_reply
        reply.round, reply.boot_id, reply.rejected = message.round, message.boot_id, message.rejected
        reply.received, reply.durable, reply.hint_term = message.received, message.durable, message.hint_term
        reply.leaving, reply.provisional, reply.fetch = message.leaving, message.provisional, message.fetch
    return _seal(header, b"")


def _seal(header: RaftMessage, payload: bytes | memoryview) -> PeerPacket:
    message = header.SerializeToString()
    return PeerPacket(RaftPacket(message=message, checksum=crc32c.crc32c(message)).SerializeToString(), payload)


def decode(packet: PeerPacket, sender: str) -> Arrived:
    """Decode a packet. `sender` is the name that the transport authenticated. Raises BadPacket."""
    header = _open(packet)
    if header.sender != sender:
        raise BadPacket("stranger", f"{sender} sent a packet in the name of {header.sender!r}")
    _demand(bool(header.sender and header.to), "sender or receiver without a name")
    _demand(0 <= header.term <= TERM_MAX, f"term {header.term} is out of bounds")
    kind = header.WhichOneof("content")
    if kind == "append":
        return _append(header, packet.payload)
    if len(packet.payload):
        raise BadPacket("shape", f"{kind} with a payload")
    return Arrived(_plain(header, kind), b"")


def is_of_leader(packet: PeerPacket) -> bool:
    """Whether only the leader of a term sends this packet: a part of its log, or the notice that it has trimmed what the receiver lacks. A
    follower may accept these from any directory of an elected leader, because they are not counted as votes and replies are. A receiver
    whose log ends before the record of the leader's directory has no other way to get that record."""
    try:
        return _open(packet).WhichOneof("content") in ("append", "left_behind")
    except BadPacket:
        return False


def _open(packet: PeerPacket) -> RaftMessage:
    try:
        outer = RaftPacket.FromString(packet.header)
        if crc32c.crc32c(outer.message) != outer.checksum:
            raise BadPacket("checksum", "header was changed on the way")
        return RaftMessage.FromString(outer.message)
    except DecodeError as error:
        raise BadPacket("shape", str(error)) from error


def _plain(header: RaftMessage, kind: str | None) -> Message:
    if kind == "vote_request":
        request = header.vote_request
        _demand(not (request.pre and request.transfer), "a pre-vote for a handover")
        last = (request.last_index, request.last_term, request.transfer, request.incarnation)
        return VoteRequest(header.sender, header.to, header.term, request.pre, *last)
    if kind == "vote_reply":
        return VoteReply(header.sender, header.to, header.term, header.vote_reply.pre, header.vote_reply.granted)
    if kind == "timeout_now":
        return _timeout_now(header)
    if kind == "left_behind":
        _demand(header.left_behind.begin_index > 0, "left behind by a log that still has its first entry")
        return LeftBehind(header.sender, header.to, header.term, header.left_behind.begin_index)
    if kind != "append_reply":
        raise BadPacket("shape", f"unknown content {kind}")
    reply = header.append_reply
    _demand(NO_INDEX <= reply.durable <= reply.received, "durable above received")
    said = (reply.rejected, reply.received, reply.durable, reply.hint_term, reply.leaving, reply.provisional, reply.fetch)
    return AppendReply(header.sender, header.to, header.term, reply.round, reply.boot_id, *said)


def _timeout_now(header: RaftMessage) -> TimeoutNow:
    now = header.timeout_now
    _demand(now.last_index >= 0 and 0 <= now.last_term <= header.term, "a handover without a last entry")
    _demand(now.cause in HANDOVERS, "a handover for no known reason")
    return TimeoutNow(header.sender, header.to, header.term, now.last_index, now.last_term, Cause(now.cause))


def _append(header: RaftMessage, payload: bytes | memoryview) -> Arrived:
    append = header.append
    _demand(append.prev_index >= NO_INDEX and append.prev_term <= header.term, "entry before the range")
    extent, pos = None, -1
    if append.HasField("range"):
        extent, pos = _extent(append, header.term, len(payload)), append.range.pos
    else:
        _demand(not len(payload), "payload without a range")
    place = (append.round, append.prev_index, append.prev_term, append.commit_index)
    end_index = append.end_index if append.HasField("end_index") else NO_INDEX
    _demand(end_index >= NO_INDEX, "a log that ends before it begins")
    message = Append(header.sender, header.to, header.term, *place, extent, append.lazy, append.early, end_index)
    return Arrived(message, payload, append.prev_chain, pos)


def _extent(append: RaftAppend, term: int, size: int) -> Extent:
    entries = append.range
    _demand(size > 0 and entries.pos >= 0, "range without bytes")
    _demand(entries.last_index > append.prev_index, "range ends before it begins")
    _demand(entries.term >= 0 and append.prev_term <= entries.term <= term, "terms fall along the range")
    return Extent(append.prev_index + 1, entries.last_index, entries.term, size)


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise BadPacket("shape", what)
