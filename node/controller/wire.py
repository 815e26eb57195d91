"""The network side of the controller quorum: the message format and the checks on peers (invariant
I12).

It adds three things to the library. Messages are JSON, never pickle, from any sender. A connection
that has not yet proven knowledge of the cluster secret gets limited bytes, time and number. And no
message leaves before the journal is durable.

The library authenticates every frame (Fernet: AES-CBC and HMAC-SHA256 over the whole frame, checked
before anything is decoded). It binds each direction of a connection to a random key of the other
side, so frames of other connections cannot be replayed.
"""

from __future__ import annotations

import base64
import errno
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from pysyncobj.node import Node, TCPNode
from pysyncobj.poller import POLL_EVENT_TYPE
from pysyncobj.tcp_connection import CONNECTION_STATE
from pysyncobj.tcp_server import SERVER_STATE, TcpServer
from pysyncobj.transport import TCPTransport

from ledgermq.node.runtime import sockets
from ledgermq.node.runtime.errors import ConfigError, FatalError
from ledgermq.proto.host_port import joined, split
from ledgermq.proto.status import ExitCode
from ledgermq.proto.workers import WORKER_NAME, node_of

logger = logging.getLogger(__name__)

BYTES_KEY = "b64"
UNPROVEN_BYTES = 16 << 10
"""Bytes that a connection may send before its first valid frame; a greeting has a few hundred."""
UNPROVEN_SECONDS = 5.0
UNPROVEN_CONNECTIONS = 64
BACKLOG = 64
REBIND_SECONDS = 1.0
LISTENER = "listener "
"""A node that only listens puts this before its name in the greeting."""
READ_ONLY = "readonly"
"""The greeting of such a node in the library, which has no names for them."""
SAID_BY_LISTENERS = frozenset({"next_node_idx", "apply_command"})
ALIVE = "alive"
"""The type of a message without content. Two nodes that do not lead exchange no messages, so
without it a connection that died silently would be noticed only when a vote has to use it."""
ALIVE_PARTS = 3
"""Number of these messages within the time after which a silent connection is closed."""
STRANGER_EVERY_S = 60.0
"""A node that was not added yet, or was removed, tries to connect twice a second; it is logged at
most once in this time."""


class JsonCodec:
    """Replaces the pickle module in the library: `dumps` and `loads` messages as JSON with tagged
    bytes."""

    @staticmethod
    def dumps(message: Any) -> bytes:
        return json.dumps(message, separators=(",", ":"), default=_tagged).encode("ascii")

    @staticmethod
    def loads(data: bytes) -> Any:
        return json.loads(data, object_hook=_untagged)


def _tagged(value: Any) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} cannot be sent between controllers")
    return {BYTES_KEY: base64.b64encode(value).decode("ascii")}


def _untagged(tree: dict[str, Any]) -> Any:
    return base64.b64decode(tree[BYTES_KEY], validate=True) if tree.keys() == {BYTES_KEY} else tree


class Sentinel:
    """The encryptor of one incoming connection. It records whether an authentic frame arrived, and
    logs which peer failed."""

    def __init__(self, encryptor: Any, peer: str) -> None:
        self._encryptor = encryptor
        self._peer = peer
        self.proven = False

    def encrypt_at_time(self, data: bytes, now: int) -> bytes:
        sealed: bytes = self._encryptor.encrypt_at_time(data, now)
        return sealed

    def extract_timestamp(self, frame: bytes) -> int:
        """The library calls this first for every frame, and closes the connection if it raises."""
        try:
            stamp: int = self._encryptor.extract_timestamp(frame)
        # a stranger's bytes can fail in any way; the library closes the connection in every case
        except Exception:
            logger.warning(
                "controller: %s does not know the cluster secret; connection closed (is it a node"
                " of this cluster?)",
                self._peer,
            )
            raise
        self.proven = True
        return stamp

    def decrypt(self, frame: bytes) -> bytes:
        plain: bytes = self._encryptor.decrypt(frame)
        return plain


class RationedSocket:
    """A socket that closes the connection if a peer sends too many bytes before its first valid
    frame."""

    def __init__(self, plain: socket.socket, sentinel: Sentinel) -> None:
        self._plain = plain
        self._sentinel = sentinel
        self._received = 0

    def recv(self, most: int) -> bytes:
        data = self._plain.recv(most)
        self._received += len(data)
        if self._received > UNPROVEN_BYTES and not self._sentinel.proven:
            raise ConnectionResetError(
                errno.ECONNRESET, "too many bytes before the first valid frame"
            )
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


class Member(TCPNode):  # type: ignore[misc]  # the library has no types
    """A node of the quorum, identified by its name for ever; its address is looked up at every
    connection attempt.

    `directory.addresses` gives the addresses (host:port) of every name, and `directory.resolver`
    resolves their hosts; each attempt uses the next one. The library's `address` is the name that a
    node gives in a greeting.
    """

    def __init__(self, name: str, directory: Any) -> None:
        Node.__init__(self, name)
        self._directory = directory
        self._attempts = 0
        self._port = 0

    @property
    def address(self) -> str:
        return str(self.id)

    @property
    def known(self) -> bool:
        """Whether this node has an address to try."""
        return bool(self._directory.addresses.get(self.id))

    @property
    def ip(self) -> str | None:
        """The IP address of the next attempt; None if it is not known or not resolved yet. The
        library reads this once per attempt, and then the port."""
        places = self._directory.addresses.get(self.id) or ("",)
        rounds, place = divmod(self._attempts, len(places))
        self._attempts += 1
        try:
            host, self._port = split(places[place])
        except ValueError:
            return None
        found: tuple[str, ...] = self._directory.resolver.resolve(host)
        return found[rounds % len(found)] if found else None

    @property
    def port(self) -> int:
        return self._port

    def __repr__(self) -> str:
        return f"Member({self.id})"


class Listener(TcpServer):  # type: ignore[misc]  # the library has no types
    """The library's server, on a socket that was made as those of the other ports."""

    def __init__(
        self, poller: Any, place: sockets.Place, on_connection: Callable[[Any], None], conf: Any
    ) -> None:
        host, port = place[1]
        buffers = {"sendBufferSize": conf.sendBufferSize, "recvBufferSize": conf.recvBufferSize}
        super().__init__(
            poller, host, port, on_connection, connectionTimeout=conf.connectionTimeout, **buffers
        )
        self._place = place

    def bind(self) -> None:
        """Raises OSError."""
        made = sockets.listener(self._place, BACKLOG)
        self._TcpServer__socket, self._TcpServer__fileno = made, made.fileno()
        self._TcpServer__poller.subscribe(
            made.fileno(),
            self._TcpServer__onNewConnection,
            POLL_EVENT_TYPE.READ | POLL_EVENT_TYPE.ERROR,
        )
        self._TcpServer__state = SERVER_STATE.BINDED


class QuorumTransport(TCPTransport):  # type: ignore[misc]  # the library has no types
    """The library's transport with the additions of this module. Only this module and quorum.py use
    private names of 0.3.17."""

    _ready: bool
    _lastBindAttemptTime: float

    def __init__(self, quorum: Any, self_node: Any, other_nodes: Any) -> None:
        self._quorum = quorum
        self._arrived: dict[Any, float] = {}
        self._listens_since: float | None = None
        self._strangers: dict[str, float] = {}
        self._said_alive = 0.0
        super().__init__(quorum, self_node, other_nodes)

    # -- sending
    # ------------------------------------------------------------------------------------------------------------------

    def send(self, node: Any, message: Any) -> bool:
        """Send to a known node, after everything that the message promises is durable."""
        self._quorum.make_durable()
        if message["type"] == "next_node_idx":
            # The library's replies to a leader do not contain the term in which they were given;
            # see `_onMessageReceived`.
            message["term"] = self._quorum.raftCurrentTerm
        try:
            sent: bool = super().send(node, message)
        except KeyError:
            if node in self._connections:
                raise
            # The connection ended during the send. A listener's entry is removed with its
            # connection, and the library looks it up again.
            return False
        return sent

    # -- receiving
    # ----------------------------------------------------------------------------------------------------------------

    def _shouldConnect(self, node: Any) -> bool:
        """A listener connects to every voter, because voters do not connect to listeners."""
        dials = (
            node in self._nodes and node not in self._preventConnectNodes
            if self._quorum.listens
            else super()._shouldConnect(node)
        )
        return bool(dials) and node.known

    def _connectIfNecessarySingle(self, node: Any) -> bool:
        if node in self._nodes and node not in self._connections and self._shouldConnect(node):
            # Its address was unknown when it was added. The library creates the connection object
            # only then, and relies on it later.
            self.addNode(node)
        self._give_up_silent(node)
        return bool(super()._connectIfNecessarySingle(node))

    def _give_up_silent(self, node: Any) -> None:
        """End an attempt that did not lead to a greeting in time, so that the next one uses the
        next address. The library would wait as long as the system tries to connect (two minutes),
        and for ever for a connection without a greeting."""
        conn = self._connections.get(node)
        if (
            conn is None
            or conn.state == CONNECTION_STATE.DISCONNECTED
            or self._quorum.isNodeConnected(node)
        ):
            return
        if (
            time.monotonic()
            > self._lastConnectAttempt.get(node, 0.0) + self._quorum.conf.connectionTimeout
        ):
            conn.disconnect()

    def _say_alive(self) -> None:
        """Send a sign of life to every peer that has greeted. When the library sends, it closes a
        connection that has received nothing for too long."""
        now = time.monotonic()
        if now < self._said_alive + self._quorum.conf.connectionTimeout / ALIVE_PARTS:
            return
        self._said_alive = now
        for node in [node for node in self._connections if self._quorum.isNodeConnected(node)]:
            self.send(node, {"type": ALIVE})

    def _sendSelfAddress(self, conn: Any) -> None:
        if self._quorum.listens:
            conn.send(LISTENER + self._selfNode.address)
        else:
            super()._sendSelfAddress(conn)

    def _onMessageReceived(self, node: Any, message: Any) -> None:
        kind = message["type"]
        if kind == ALIVE:
            return
        if node not in self._nodes and not (
            node in self._readonlyNodes and kind in SAID_BY_LISTENERS
        ):
            # the node was removed while this message was on its way, or listeners may not send this
            # kind
            return
        if kind == "request_vote" and not self._quorum.voters:
            # this node is joining, or its journal is new: it does not know whether it voted before
            return
        if kind == "next_node_idx" and message["term"] != self._quorum.raftCurrentTerm:
            # an answer to a message of another term says nothing about this node's present log
            return
        reply = (
            self._known_already(message)
            if kind == "append_entries" and message["term"] >= self._quorum.raftCurrentTerm
            else None
        )
        super()._onMessageReceived(node, message)
        if reply is not None:
            self.send(node, reply)

    def _known_already(self, message: Any) -> Any:
        """Keep the library from cutting entries off and appending the same ones again: in between
        it would have forgotten what it acknowledged. Removes leading entries that the journal has
        from the message. If the journal has all of them, the message keeps only the leader's
        heartbeat, and the return value is the reply that the library would have given for the
        entries."""
        entries = message.get("entries")
        if not entries or message.get("prevLogIdx") is None:
            return None
        journal = self._quorum.journal
        first = journal[0][1]
        known = message["prevLogIdx"]
        if not self._agree(journal, known - first, message["prevLogTerm"]):
            return None
        while entries and self._agree(journal, entries[0][1] - first, entries[0][2]):
            _, known, message["prevLogTerm"] = entries.pop(0)
        message["prevLogIdx"] = known
        if entries or known == journal[-1][1]:
            return None
        del message["prevLogIdx"], message["prevLogTerm"]
        message["commit_index"] = min(message["commit_index"], known)
        return {
            "type": "next_node_idx",
            "next_node_idx": known + 1,
            "reset": False,
            "success": True,
        }

    @staticmethod
    def _agree(journal: Any, place: int, term: int) -> bool:
        return 0 <= place < len(journal) and journal[place][2] == term

    # -- strangers
    # ----------------------------------------------------------------------------------------------------------------

    def _onNewIncomingConnection(self, conn: Any) -> None:
        super()._onNewIncomingConnection(conn)
        plain = conn._TcpConnection__socket
        conn.encryptor = Sentinel(conn.encryptor, _peer_name(plain))
        conn._TcpConnection__socket = RationedSocket(plain, conn.encryptor)
        self._arrived[conn] = time.monotonic()
        if len(self._unknownConnections) > UNPROVEN_CONNECTIONS:
            self._dismiss(
                min(self._unknownConnections, key=self._arrived.__getitem__),
                "too many connections wait to greet",
            )

    def _onIncomingMessageReceived(self, conn: Any, message: Any) -> None:
        """Handle the greeting of an authenticated peer: first its random key, then its name, or the
        statement that it only listens (a node that was added and has no vote). The library would
        accept administration commands here; they are refused."""
        if (
            conn.sendRandKey
            and isinstance(message, str)
            and message.startswith(LISTENER)
            and self._may_listen(message[len(LISTENER) :])
        ):
            message = READ_ONLY
        elif conn.sendRandKey and not (
            isinstance(message, str) and message in self._nodeAddrToNode
        ):
            told = (
                f"it calls itself {message!r}, which has no vote here; was it removed, or not added"
                " yet?"
            )
            self._dismiss(conn, told, quiet=self._heard_lately(str(message)[:100]))
            return
        before = dict(self._connections)
        super()._onIncomingMessageReceived(conn, message)
        for node, old in before.items():
            # Bytes left in an abandoned connection are older than those of the new one.
            if self._connections.get(node) is conn and old is not conn:
                old.disconnect()

    def _may_listen(self, name: str) -> bool:
        """Whether a node may listen: a node that was added, or another worker of a voter's node,
        which exists from the cluster's start."""
        return name in self._quorum.state.nodes or bool(
            WORKER_NAME(name) and node_of(name) in self._quorum.voters
        )

    def _onDisconnected(self, conn: Any) -> None:
        listener = self._connToNode(conn)
        super()._onDisconnected(conn)
        if listener is not None and listener not in self._nodes:
            # The library would keep an entry for every listener that ever connected.
            self._connections.pop(listener, None)

    def _heard_lately(self, name: str) -> bool:
        now = time.monotonic()
        lately = now < self._strangers.get(name, -STRANGER_EVERY_S) + STRANGER_EVERY_S
        if not lately:
            if len(self._strangers) >= UNPROVEN_CONNECTIONS:
                self._strangers.clear()
            self._strangers[name] = now
        return lately

    def _dismiss(self, conn: Any, why: str, *, quiet: bool = False) -> None:
        logger.log(
            logging.DEBUG if quiet else logging.WARNING, "controller: connection closed: %s", why
        )
        conn.disconnect()
        self._unknownConnections.discard(conn)
        self._arrived.pop(conn, None)

    def _onTick(self) -> None:
        super()._onTick()
        self._say_alive()
        if self._arrived:
            self._arrived = {
                conn: at for conn, at in self._arrived.items() if conn in self._unknownConnections
            }
            late = time.monotonic() - UNPROVEN_SECONDS
            for conn in [conn for conn, at in self._arrived.items() if at < late]:
                self._dismiss(conn, f"no greeting within {UNPROVEN_SECONDS:.0f} s")
        if self._ready and self._server is not None and self._server._TcpServer__fileno is None:
            # The library stops listening for good when one accept fails, for instance because of a
            # lack of file descriptors.
            self._ready = False

    def _createServer(self) -> None:
        """The library's server would know IPv6 addresses only without a name server, and by their
        text."""
        listen = self._quorum.conf.bindAddress
        try:
            place = sockets.places(*split(listen))[0]
        except (OSError, ValueError) as error:
            what = f"the controller's listen address {listen} cannot be resolved ({error})"
            raise ConfigError(what, "set listen_host to an address of this machine") from error
        self._server = Listener(
            self._quorum._poller, place, self._onNewIncomingConnection, self._quorum.conf
        )

    def _maybeBind(self) -> None:
        """Bind the port. A failure of the first attempt raises FatalError; a later one is logged
        and tried again."""
        now = time.monotonic()
        if self._ready or (
            self._listens_since is not None and now < self._lastBindAttemptTime + REBIND_SECONDS
        ):
            return
        self._lastBindAttemptTime = now
        try:
            self._server.bind()
        except OSError as error:
            self._server.unbind()
            if self._listens_since is None:
                # Its own text names the address once more.
                why = os.strerror(error.errno) if error.errno else error
                what = (
                    f"the controller address {self._quorum.conf.bindAddress} cannot be used ({why})"
                )
                raise FatalError(
                    ExitCode.PORT_TAKEN,
                    what,
                    "stop the process that uses it or choose another controller_port",
                ) from error
            logger.warning(
                "controller: cannot listen again on %s (%s); trying again",
                self._quorum.conf.bindAddress,
                error.strerror,
            )
            return
        self._listens_since = now
        self._ready = True
        self._bindOverEvent.set()


def _peer_name(plain: socket.socket) -> str:
    try:
        return joined(*plain.getpeername()[:2])
    except OSError:
        return "a disconnected peer"
