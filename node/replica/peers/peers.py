"""All streams between a node and its peers, and its peer port; the set of peers may change while
the node runs.

`links.py` has one outgoing stream, `peer_server.py` the accepted streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ledgermq.node.replica.peers.greeting import Greeter
from ledgermq.node.replica.peers.links import Link, Links
from ledgermq.node.replica.peers.peer_server import PeerServer
from ledgermq.node.replica.peers.peer_wire import PeerWire
from ledgermq.node.replica.ports import PeerHandler
from ledgermq.node.runtime.logs import get_logger

log = get_logger()


class Peers:
    """All links of a node and its peer server. `links`, empty at first, is the same mapping for
    ever, so its holders see peers come and go; what the handler needs may hold it already."""

    def __init__(
        self,
        addresses: Mapping[str, Sequence[str]],
        greeter: Greeter,
        handler: PeerHandler,
        limit_bytes: int,
        wire: PeerWire | None = None,
        links: Links | None = None,
    ) -> None:
        self._greeter = greeter
        self._wire = wire or PeerWire()
        self._handler = handler
        self._limit_bytes = limit_bytes
        self.links = Links() if links is None else links
        self.links.update({peer: self._link(peer, where) for peer, where in addresses.items()})
        self._server = PeerServer(greeter, handler, limit_bytes, self._wire)
        self._dialling = False
        self._ending: set[asyncio.Task[None]] = set()

    async def listen(self, address: str) -> int:
        """Open the peer port; returns the bound port number. Raises OSError if the address cannot
        be used."""
        return await self._server.listen(address)

    def dial(self) -> None:
        self._dialling = True
        for link in self.links.values():
            link.start()

    def set_peers(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Set the peers and their addresses, the most likely first. New peers are connected, moved
        peers are connected again, and the streams of all others end in both directions."""
        for peer in self.links.keys() - addresses.keys():
            ending = asyncio.create_task(self.links.pop(peer).stop(), name=f"unlink-{peer}")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            self._server.end(peer)
            log.info("peer removed", peer=peer)
        for peer, where in addresses.items():
            if peer in self.links:
                self.links[peer].move(where)
            else:
                self.links[peer] = self._link(peer, where)
                log.info("new peer", peer=peer, address=where[0])
                if self._dialling:
                    self.links[peer].start()

    def _link(self, peer: str, addresses: Sequence[str]) -> Link:
        return Link(
            peer, addresses, self._greeter, self._handler, self._limit_bytes, wire=self._wire
        )

    async def stop(self) -> None:
        await asyncio.gather(*(link.stop() for link in self.links.values()), *self._ending)
        await self._server.stop()
