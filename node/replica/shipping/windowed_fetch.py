"""Fetches the bytes of a stream from a peer, in order, over a transport that loses and reorders
packets: go-back-N with a window.

A stream is one attempt with one peer. It keeps packets that arrived too early, up to a number of
bytes. Missing packets are requested again after a while, under a new session, from the position
reached. A peer that does not answer ends the stream. The result is in order but not verified.

Law: a packet is never dropped in favour of one behind it. So the next packet always has room, and
every answer that arrives makes progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Generic, TypeVar

import crc32c

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.shipping.shipping_wire import (
    EntriesSent,
    EntriesWanted,
    ShippingMessage,
    SnapshotSent,
    SnapshotWanted,
    encode,
)
from ledgermq.raft.config import MS
from ledgermq.storage.log.log_scan import Point
from ledgermq.storage.repair.log_source import Missing, Why

WINDOW_BYTES = 8 << 20
"""Maximum number of bytes in flight."""
FIRST_BYTES = 64 << 10
"""The same limit at the beginning of a stream: most damage is small."""
EARLY_BYTES = 2 * WINDOW_BYTES
"""Packets kept until those before them arrive have at most this many bytes, except for a single
larger one. A peer that sends no more than it was allowed sends less, even with an entry at the end
that is larger than a packet."""
EARLY_PACKETS = 4096
"""The maximum number of them: empty ones need memory too."""
RESEND_NS = 300 * MS
TRIES = 4

Packet = TypeVar("Packet")
Number = Callable[[], int]
"""Returns a session number that was not used before."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The requesting node: its name, its log, and its source of session numbers."""

    node: str
    log_id: str
    number: Number

    def packet(self, to: str, session: int, content: object) -> tuple[str, PeerPacket]:
        return to, encode(self.node, to, self.log_id, session, content)  # type: ignore[arg-type]


def serial(first: int) -> Number:
    """Consecutive numbers from `first` on, which must be random."""
    return partial(next, count(first))


class _Early(Generic[Packet]):
    """The packets that arrived, by the place where each begins. Beyond the bounds those that are
    farthest ahead are dropped."""

    def __init__(self) -> None:
        self._packets: dict[int, tuple[Packet, int]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._packets)

    def put(self, at: int, packet: Packet, size: int) -> None:
        self.pop(at)
        self._packets[at] = packet, size
        self._bytes += size
        while len(self._packets) > 1 and (
            self._bytes > EARLY_BYTES or len(self._packets) > EARLY_PACKETS
        ):
            self.pop(max(self._packets))

    def pop(self, at: int) -> Packet | None:
        packet, size = self._packets.pop(at, (None, 0))
        self._bytes -= size
        return packet

    def drop_below(self, at: int) -> None:
        for place in [place for place in self._packets if place < at]:
            self.pop(place)

    def clear(self) -> None:
        self._packets.clear()
        self._bytes = 0


class EntryStream:
    """A stream of entries from one peer. The owner calls `advance` after it verified a piece."""

    def __init__(
        self,
        requester: Requester,
        source: str,
        point: Point,
        end_pos: int,
        now_ns: int,
        *,
        window: int = FIRST_BYTES,
    ) -> None:
        self.source = source
        self.point = point
        self.end_pos = end_pos
        self.missing: Missing | None = None
        """The peer's refusal, once everything before it was taken."""
        self._requester = requester
        self._window = window
        self._early: _Early[tuple[EntriesSent, bytes | memoryview]] = _Early()
        self._said: Missing | None = None
        self._tries = 0
        self._session = 0
        self._allowed = 0
        self._due_ns = now_ns

    def take(self, message: ShippingMessage, now_ns: int) -> None:
        """Take a packet of the present session; others are ignored."""
        if message.sender != self.source or message.session != self._session:
            return
        sent = message.content
        if isinstance(sent, EntriesSent) and sent.index >= self.point.index:
            self._early.put(sent.index, (sent, message.payload), len(message.payload))
            self._due_ns = now_ns + RESEND_NS
        elif isinstance(sent, Missing):
            self._said = sent
            self._due_ns = now_ns + RESEND_NS
        self._look()

    def next(self) -> tuple[EntriesSent, bytes | memoryview] | None:
        """The next piece, if it has arrived."""
        return self._early.pop(self.point.index)

    def advance(self, point: Point) -> None:
        """Note that the owner verified everything up to `point`."""
        self.point = point
        self._tries = 0
        self._window = min(WINDOW_BYTES, self._window * 2)
        self._early.drop_below(point.index)
        self._look()

    def ask(self, now_ns: int) -> list[tuple[str, PeerPacket]]:
        """Packets to send now: the first request, more allowance, or a repeated request. A peer
        that never answers becomes `missing`."""
        if self.missing is not None:
            return []
        if now_ns >= self._due_ns:
            if self._tries >= TRIES:
                self.missing = Missing(
                    why=Why.UNKNOWN, index=self.point.index, pos=self.point.pos, text="no answer"
                )
                return []
            self._tries += 1
            self._session = self._requester.number()
            self._early.clear()
            self._said = None
            self._due_ns = now_ns + RESEND_NS
        elif (
            self.point.pos + self._window - self._allowed < self._window // 4
            or self._allowed >= self.end_pos
        ):
            return []
        self._allowed = self.point.pos + self._window
        wanted = EntriesWanted(point=self.point, end_pos=self.end_pos, allowed_pos=self._allowed)
        return [self._requester.packet(self.source, self._session, wanted)]

    @property
    def wake_at_ns(self) -> int:
        return self._due_ns

    def _look(self) -> None:
        if self._said is not None and not self._early and self._said.index <= self.point.index:
            self.missing = self._said


class SnapshotStream:
    """A stream of one peer's newest snapshot. `data` is set once it is complete and its checksum
    matches."""

    def __init__(self, requester: Requester, source: str, now_ns: int) -> None:
        self.source = source
        self.data: bytes | None = None
        self.missing: Missing | None = None
        self.total_bytes = 0
        self._requester = requester
        self._pieces = bytearray()
        self._checksum: int | None = None
        self._early: _Early[bytes] = _Early()
        self._session = 0
        self._allowed = 0
        self._tries = 0
        self._due_ns = now_ns

    @property
    def done_bytes(self) -> int:
        return len(self._pieces)

    @property
    def wake_at_ns(self) -> int:
        return self._due_ns

    def take(self, message: ShippingMessage, now_ns: int) -> None:
        """Take a packet of the present session; others are ignored. A snapshot with a wrong
        checksum is requested again."""
        if (
            message.sender != self.source
            or message.session != self._session
            or self.data is not None
        ):
            return
        sent = message.content
        if isinstance(sent, Missing):
            self.missing = sent
        if not isinstance(sent, SnapshotSent):
            return
        if self._checksum != sent.checksum:
            # The peer has a newer snapshot, so start again.
            self._pieces.clear()
            self._early.clear()
            self._checksum, self.total_bytes = sent.checksum, sent.total_bytes
        if sent.offset >= len(self._pieces):
            self._early.put(sent.offset, bytes(message.payload), len(message.payload))
            self._due_ns = now_ns + RESEND_NS
        while (piece := self._early.pop(len(self._pieces))) is not None:
            self._pieces += piece
            self._tries = 0
        if len(self._pieces) == self.total_bytes:
            whole = bytes(self._pieces)
            if crc32c.crc32c(whole) == self._checksum:
                self.data = whole
            else:
                self._pieces.clear()
                self._due_ns = now_ns

    def ask(self, now_ns: int) -> list[tuple[str, PeerPacket]]:
        """Packets to send now, as `EntryStream.ask`."""
        if self.missing is not None or self.data is not None:
            return []
        if now_ns >= self._due_ns:
            if self._tries >= TRIES:
                self.missing = Missing(why=Why.UNKNOWN, index=0, pos=0, text="no answer")
                return []
            self._tries += 1
            self._session = self._requester.number()
            self._early.clear()
            self._due_ns = now_ns + RESEND_NS
        elif len(self._pieces) + WINDOW_BYTES - self._allowed < WINDOW_BYTES // 4:
            return []
        self._allowed = len(self._pieces) + WINDOW_BYTES
        return [
            self._requester.packet(
                self.source,
                self._session,
                SnapshotWanted(offset=len(self._pieces), allowed_offset=self._allowed),
            )
        ]
