"""The common part of repairs and installations: the exchange of packets with the group's other
members.

This module has the received facts, the packets to send, and the time of the next request.
`repair.py`, `range_repair.py` and `installation.py` decide what to request and how to use it;
`windowed_fetch.py` fetches a stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.consensus.replica_wire import BadPacket
from ledgermq.node.replica.shipping.shipping_wire import (
    FactsWanted,
    ShippingMessage,
    decode,
    is_shipping,
)
from ledgermq.node.replica.shipping.windowed_fetch import (
    EntryStream,
    Requester,
    SnapshotStream,
    serial,
)
from ledgermq.proto.types import Identity
from ledgermq.raft.config import MS
from ledgermq.storage.repair.log_source import Facts

FACTS_EVERY_NS = 500 * MS
AGAIN_NS = 1_000 * MS
"""Delay before peers that could not help are asked again."""
NEVER_NS = 1 << 62


class PeerFetch:
    """Asks the other members for facts, entries and a snapshot. `session`: a random number for this
    attempt."""

    def __init__(self, found: Identity, others: Sequence[str], session: int, now_ns: int) -> None:
        self._identity = found
        self._others = tuple(node for node in others if node != found.replica)
        self._requester = Requester(found.replica, found.log_id, serial(session))
        self._out: list[tuple[str, PeerPacket]] = []
        self._facts: dict[str, Facts] = {}
        self._facts_due_ns = now_ns
        self._stream: EntryStream | None = None
        self._snapshot: SnapshotStream | None = None
        self._refused: str | None = None
        self._again_ns = NEVER_NS

    def _hear(self, packets: Sequence[tuple[str, PeerPacket]], now_ns: int) -> None:
        """Take packets; invalid and foreign ones are ignored."""
        for sender, packet in packets:
            if sender in self._others and is_shipping(packet):
                try:
                    self._take(decode(packet, sender), now_ns)
                except BadPacket:
                    continue

    def _take(self, message: ShippingMessage, now_ns: int) -> None:
        if message.log_id != self._identity.log_id:
            return
        if isinstance(message.content, Facts):
            self._facts[message.sender] = message.content
        if self._stream is not None:
            self._stream.take(message, now_ns)
        if self._snapshot is not None:
            self._snapshot.take(message, now_ns)

    def _ask_facts(self, now_ns: int, places: tuple[tuple[int, int], ...] = ()) -> None:
        """Ask all other members, twice a second. `places`: (index, position or −1) of entries whose
        term and chain CRC are wanted too."""
        if now_ns >= self._facts_due_ns:
            self._facts_due_ns = now_ns + FACTS_EVERY_NS
            session = self._requester.number()
            self._out += [
                self._requester.packet(peer, session, FactsWanted(places)) for peer in self._others
            ]

    def _sent(self) -> tuple[tuple[str, PeerPacket], ...]:
        out, self._out = tuple(self._out), []
        return out

    def _ask_again_at_ns(self, now_ns: int) -> int:
        waits = [self._facts_due_ns, self._again_ns]
        waits += [
            stream.wake_at_ns for stream in (self._stream, self._snapshot) if stream is not None
        ]
        return max(now_ns, min(waits))
