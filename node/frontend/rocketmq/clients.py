"""The clients that this node knows: their Settings, their session, and when each was last heard.

A session names a client as this process knows it (node/broker/calls/consumer_calls.py): its
self-renewing leases live as long as the session shows signs of life. If leases may exist of which
neither the client nor this node knows (the answer of a leader was lost), or which could not be
given back, the client gets a new session. The leases of the old session are no longer renewed, by
the next leaders neither, so their messages come again after the liveness limit.

Two processes can have one client id: official clients make it of host name and process id, which
containers can have in common. A client uses one connection to a node for its Receives, and never
goes back to one that it left, so Receives that come on one connection, another one, and the first
again are of two processes. From then on each connection has a session of its own: neither process
renews leases of the other, and the goodbye of one ends no lease of the other.

The registry is local and forgets: it holds nothing that a client did not send itself. After a
restart every call works without it (§2.4). The forwarder sends signs of life to the leaders, in
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zlib import crc32

from ledgermq.node.broker.calls.consumer_calls import session_of
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.runtime import metrics
from ledgermq.node.runtime.logs import get_logger
from ledgermq.proto import messaging_pb2 as pb

log = get_logger()
# A client that is silent for this many liveness periods is forgotten.
FORGET_AFTER = 3


@dataclass(slots=True)
class _Client:
    seen: float
    settings: pb.Settings | None = None
    doubts: int = 0
    """How often leases may have been lost on their way to the client."""
    receives: tuple[str, str] = ("", "")
    """The connections of its last Receives: the newest, and the one before that."""
    shared: bool = False
    """Several processes have this id."""


class Clients:
    """The clients of one node. Times are those of `now`, in seconds."""

    def __init__(
        self, forwarder: Forwarder, node_boot: str, liveness_s: float, now: Callable[[], float]
    ) -> None:
        self._forwarder = forwarder
        self._node_boot = node_boot
        self._forget_s = FORGET_AFTER * liveness_s
        self._now = now
        self._clients: dict[str, _Client] = {}
        self._next_look = 0.0

    def __len__(self) -> int:
        return len(self._clients)

    def on_contact(self, client_id: str, peer: str) -> str:
        """Record a sign of life on a connection, which every call is. Returns the client's
        session."""
        node_boot = self._node_boot
        client = self._clients.get(client_id)
        if client is not None:
            client.seen = self._now()
            if client.doubts:
                node_boot = f"{node_boot}.{client.doubts}"
            if client.shared:
                node_boot = f"{node_boot}.{crc32(peer.encode()):08x}"
        session = session_of(client_id, node_boot)
        self._forwarder.on_contact(session)
        return session

    def on_receive(self, client_id: str, peer: str) -> None:
        """Look whether another process has this client id. Only clients that sent Settings are
        looked at."""
        client = self._clients.get(client_id)
        if client is None or client.receives[0] == peer:
            return
        if client.receives[1] == peer and not client.shared:
            client.shared = True
            metrics.SHARED_CLIENT_IDS.inc()
            log.warning("client_id_shared", client=client_id, connections=sorted(client.receives))
        client.receives = peer, client.receives[0]

    def remember(self, client_id: str, settings: pb.Settings) -> None:
        """Store the client's Settings; they replace older ones."""
        self._client(client_id).settings = settings

    def doubt(self, client_id: str) -> None:
        """Start a new session: leases of the present one may not be known to this client, and are
        not given back."""
        self._client(client_id).doubts += 1

    def _client(self, client_id: str) -> _Client:
        client = self._clients.get(client_id)
        if client is None:
            self._forget_silent()
            client = self._clients[client_id] = _Client(self._now())
        return client

    def settings(self, client_id: str) -> pb.Settings | None:
        """The client's last Settings, unchanged."""
        client = self._clients.get(client_id)
        return None if client is None else client.settings

    def terminate(self, client_id: str) -> bool:
        """The client leaves. Returns whether it was known. The leaders are told anyway: its leases
        may be older than this process. Of several processes with one id the others stay: the leases
        of the one that leaves end when its session was silent for long."""
        client = self._clients.get(client_id)
        if client is not None and client.shared:
            return True
        self._forwarder.client_gone(client_id)
        self._clients.pop(client_id, None)
        return client is not None and client.settings is not None

    def still_open(self, client_id: str, peer: str) -> None:
        """Record a sign of life for an open Telemetry stream, unless the client has left."""
        if client_id in self._clients:
            self.on_contact(client_id, peer)

    def known(self) -> Iterator[tuple[str, pb.Settings | None, float, bool]]:
        """(client id, last Settings, seconds since the last contact, whether several processes have
        the id) of every known client."""
        now = self._now()
        for client_id, client in sorted(self._clients.items()):
            yield client_id, client.settings, now - client.seen, client.shared

    def _forget_silent(self) -> None:
        """Forget silent clients. Runs when a client comes, at most once in a while: the registry
        holds only clients of the last minutes."""
        now = self._now()
        if now < self._next_look:
            return
        self._next_look = now + self._forget_s / 4
        for client_id in [
            name for name, client in self._clients.items() if client.seen < now - self._forget_s
        ]:
            del self._clients[client_id]
