"""Serves a replica's files to peers that lack bytes: facts about the log, its entries, and the
snapshot.

It works from the files alone (`storage/repair/log_source.py`), so that a replica whose own group is
damaged can serve its intact parts. It knows nothing of roles and decides nothing. Every peer has at
most one stream at a time, limited by what the peer allowed and by a budget per turn, so nothing
here grows with the number of requests. The requester handles lost packets: it begins a new session
at the position it reached.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.consensus.replica_wire import BadPacket
from ledgermq.node.replica.shipping.shipping_wire import (
    EntriesSent,
    EntriesWanted,
    FactsWanted,
    Sent,
    ShippingMessage,
    SnapshotSent,
    SnapshotWanted,
    decode,
    encode,
    is_shipping,
)
from ledgermq.proto.types import Range
from ledgermq.storage.files.errors import StorageError
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.repair.log_source import LogSource, Missing, Why

PACKET_BYTES = 1 << 20
"""Maximum size of a payload, except for a single larger entry."""
TURN_BYTES = 4 << 20
"""At least this much is read and verified before a turn ends with work left."""
ALLOWED_BYTES = 16 << 20
"""No peer gets more than this ahead of what was sent, whatever it allows: bytes that a peer does
not take would wait in memory."""
PEERS_MAX = 16
"""Maximum number of streams; beyond it the least recently used one ends."""


@dataclass(frozen=True, slots=True)
class ShipperOutput:
    """Packets to send, and when to call again without new input: at once while a stream can
    continue, else −1 (never)."""

    packets: tuple[tuple[str, PeerPacket], ...]
    wake_at_ns: int


@dataclass(slots=True)
class _Stream:
    """The stream to one peer: entries from `point` on, or bytes of a snapshot from `offset` on."""

    session: int
    end: int
    allowed: int
    point: Point | None = None
    offset: int = 0
    snapshot: bytes = b""
    checksum: int = 0
    applied_index: int = -1
    stopped: bool = False
    """The end of the stream, or an entry that does not verify, was reached and reported."""

    @property
    def at(self) -> int:
        return self.offset if self.point is None else self.point.pos

    @property
    def due(self) -> bool:
        return not self.stopped and self.at < min(self.end, self.allowed)


class Shipper:
    """Serves the files of one group's directory `root` (`<data>/<group>`) for the node `node`. Used
    by one thread."""

    def __init__(self, group: str, node: str, disk: Disk, root: str) -> None:
        self.group = group
        self.node = node
        self.refused: Counter[str] = Counter()
        """Packets dropped, by reason."""
        self.sent_bytes = 0
        self._source = LogSource(disk, root)
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._out: list[tuple[str, PeerPacket]] = []

    def turn(self, now_ns: int, packets: Sequence[tuple[str, PeerPacket]]) -> ShipperOutput:
        """Take requests and send what may be sent. Answers and packets of Raft are ignored, invalid
        ones counted. A disk error becomes a refusal: this replica does not have what it cannot
        read."""
        for sender, packet in packets:
            if is_shipping(packet):
                try:
                    self._take(decode(packet, sender))
                except BadPacket as bad:
                    self.refused[bad.kind] += 1
        budget = TURN_BYTES
        while budget > 0 and (
            due := [peer for peer, stream in self._streams.items() if stream.due]
        ):
            for peer in due:
                budget -= self._send(peer, self._streams[peer])
        out, self._out = tuple(self._out), []
        more = any(stream.due for stream in self._streams.values())
        if not more:
            # A repair of this replica may replace the file.
            self._source.close()
        return ShipperOutput(out, now_ns if more else -1)

    def close(self) -> None:
        self._streams.clear()
        self._source.close()

    # Requests

    def _take(self, message: ShippingMessage) -> None:
        wanted = message.content
        if not isinstance(wanted, FactsWanted | EntriesWanted | SnapshotWanted):
            return
        try:
            identity = self._source.identity()
            if identity is None or identity.log_id != message.log_id:
                raise _Refusal(
                    Missing(
                        why=Why.OTHER_LOG,
                        index=0,
                        pos=0,
                        text=f"this replica's log is {identity.log_id if identity else 'not there'}",
                    )
                )
            if isinstance(wanted, FactsWanted):
                self._answer(message, self._source.facts(wanted.places))
            else:
                self._open(message, wanted)
        except _Refusal as refusal:
            self._answer(message, refusal.missing)
        except (OSError, StorageError) as error:
            self._answer(message, Missing(why=Why.DAMAGED, index=0, pos=0, text=str(error)))

    def _open(self, message: ShippingMessage, wanted: EntriesWanted | SnapshotWanted) -> None:
        """Begin a stream, or raise the allowance of the one in progress."""
        allowed = wanted.allowed_pos if isinstance(wanted, EntriesWanted) else wanted.allowed_offset
        stream = self._streams.get(message.sender)
        if stream is not None and stream.session == message.session:
            stream.allowed = max(stream.allowed, min(allowed, stream.at + ALLOWED_BYTES))
            self._streams.move_to_end(message.sender)
            return
        if isinstance(wanted, EntriesWanted):
            fresh = _Stream(
                message.session,
                wanted.end_pos,
                min(allowed, wanted.point.pos + ALLOWED_BYTES),
                wanted.point,
            )
        else:
            found = self._source.snapshot()
            if found is None:
                raise _Refusal(
                    Missing(why=Why.NO_SNAPSHOT, index=0, pos=0, text="there is no snapshot here")
                )
            applied_index, data = found
            allowed = min(allowed, wanted.offset + ALLOWED_BYTES)
            fresh = _Stream(
                session=message.session,
                end=len(data),
                allowed=allowed,
                point=None,
                offset=wanted.offset,
                snapshot=data,
                checksum=crc32c.crc32c(data),
                applied_index=applied_index,
            )
        self._streams[message.sender] = fresh
        self._streams.move_to_end(message.sender)
        while len(self._streams) > PEERS_MAX:
            self._streams.popitem(last=False)

    # Answers

    def _send(self, peer: str, stream: _Stream) -> int:
        """Send one packet of a stream. Returns the number of bytes read for it, at least 1, so that
        a turn ends."""
        log_id = self._source.log_id
        if stream.point is None:
            piece = memoryview(stream.snapshot)[stream.offset : stream.offset + PACKET_BYTES]
            sent = SnapshotSent(
                offset=stream.offset,
                total_bytes=len(stream.snapshot),
                checksum=stream.checksum,
                applied_index=stream.applied_index,
            )
            self._out.append(
                (
                    peer,
                    encode(
                        sender=self.node,
                        to=peer,
                        log_id=log_id,
                        session=stream.session,
                        content=sent,
                        payload=piece,
                    ),
                )
            )
            stream.offset += len(piece)
            self.sent_bytes += len(piece)
            return max(1, len(piece))
        try:
            found: Range | Missing = self._source.entries(stream.point, stream.end, PACKET_BYTES)
        except (OSError, StorageError) as error:
            found = Missing(
                why=Why.DAMAGED, index=stream.point.index, pos=stream.point.pos, text=str(error)
            )
        if isinstance(found, Missing):
            stream.stopped = True
            self._out.append((peer, encode(self.node, peer, log_id, stream.session, found)))
            return 1
        header = EntriesSent(
            index=found.first_index, last_index=found.last_index, term=found.term, pos=found.pos
        )
        self._out.append(
            (
                peer,
                encode(
                    sender=self.node,
                    to=peer,
                    log_id=log_id,
                    session=stream.session,
                    content=header,
                    payload=found.data,
                ),
            )
        )
        stream.point = Point(
            pos=found.end_pos, index=found.last_index + 1, term=found.term, chain=found.last_chain
        )
        self.sent_bytes += len(found.data)
        return len(found.data)

    def _answer(self, message: ShippingMessage, content: Sent) -> None:
        self._out.append(
            (
                message.sender,
                encode(self.node, message.sender, message.log_id, message.session, content),
            )
        )


class _Refusal(Exception):
    def __init__(self, missing: Missing) -> None:
        super().__init__(missing.text)
        self.missing = missing
