"""All streams of a node to its peers and from them, on a port of their own: which there are changes while it runs.

Here live the set of links and the peer port; one link is `links.py`, one accepted stream `peer_server.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.replica.peers.greeting import Greeter
from ledgermq.node.replica.peers.links import Link
from ledgermq.node.replica.peers.peer_server import PeerServer
from ledgermq.node.replica.peers.peer_wire import PeerWire
from ledgermq.node.replica.ports import PeerHandler
from ledgermq.node.runtime.logs import get_logger

log = get_logger()


class Peers:
    """All links of a node and its peer server. `links` is one dictionary for ever: its holders see peers come and go."""

    def __init__(
        self,
        addresses: Mapping[str, Sequence[str]],
        greeter: Greeter,
        handler: PeerHandler,
        limit_bytes: int,
        wire: PeerWire | None = None,
    ) -> None:
        self._greeter = greeter
        self._wire = wire or PeerWire()
        self._handler = handler
        self._limit_bytes = limit_bytes
        self.links = {peer: self._link(peer, where) for peer, where in addresses.items()}
        self._server = PeerServer(greeter, handler, limit_bytes, self._wire)
        self._dialling = False
        self._ending: set[asyncio.Task[None]] = set()

    async def listen(self, address: str) -> int:
        """Open the peer port; the bound port. Raises OSError when it cannot be had."""
        return await self._server.listen(address)

    def dial(self) -> None:
        self._dialling = True
        for link in self.links.values():
            link.start()

    def set_peers(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """From now on these are the peers, each at the first of its addresses that answers: new ones are dialled, those that moved dialled
        again, the others' streams end in both directions."""
        for peer in self.links.keys() - addresses.keys():
            ending = asyncio.create_task(self.links.pop(peer).stop(), name=f"unlink-{peer}")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            self._server.end(peer)
            log.info("no peer any more", peer=peer)
        for peer, where in addresses.items():
            if peer in self.links:
                self.links[peer].move(where)
            else:
                self.links[peer] = self._link(peer, where)
                log.info("new peer", peer=peer, address=where[0])
                if self._dialling:
                    self.links[peer].start()

    def _link(self, peer: str, addresses: Sequence[str]) -> Link:
        return Link(peer, addresses, self._greeter, self._handler, self._limit_bytes, self._wire)

    async def stop(self) -> None:
        await asyncio.gather(*(link.stop() for link in self.links.values()), *self._ending)
        await self._server.stop()

    def send_packets(self, group: str, packets: Sequence[tuple[str, PeerPacket]]) -> None:
        for peer, packet in packets:
            link = self.links.get(peer)
            if link is not None:
                link.send_packet(group, packet)
