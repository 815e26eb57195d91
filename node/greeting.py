"""Who may speak on the peer port: the mutual proof of the cluster secret and the comparison of identities (design §3, §7).

Pure apart from the file in which incarnations of peers are remembered. Every refusal is one sentence that says what to do. The proof is
HMAC-SHA256 over a label that differs by direction, the other side's nonce, and the greeting without its `mac`: nothing can be reflected,
replayed or carried over to another greeting.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ledgermq.node.errors import EXIT_SYNC, FatalError
from ledgermq.proto import peer_pb2
from ledgermq.proto.types import Identity
from ledgermq.storage import identity as identity_files
from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import is_no_space

NONCE_BYTES = 32
_HELLO = b"ledgermq peer hello 1\x00"
_REPLY = b"ledgermq peer reply 1\x00"


class Refused(Exception):
    """The other side may not speak; the text goes to its log and to ours. `reason` is a short word for metrics."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(slots=True)
class PeerBook:
    """Per broker group, durably (format §9, state/peers.json): the incarnations of the peers, and which peers have recorded ours.

    That we know a peer does not say that it knows us: a peer that refuses our new directory has proved to us who it is all the same.
    """

    disk: Disk
    directories: Mapping[str, str]
    """Broker group → its `state` directory."""
    on_fatal: Callable[[FatalError], None]
    """Ends the node: a disk that fails to keep this file is not asked again (invariant I9)."""
    known: dict[str, dict[str, str]] = field(default_factory=dict)
    met_by: dict[str, frozenset[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> None:
        for group, directory in self.directories.items():
            self.known[group] = identity_files.read_peers(self.disk, directory)
            self.met_by[group] = identity_files.read_met_by(self.disk, directory)

    def remember(self, group: str, node: str, incarnation: str, *, knows_us: bool = False) -> bool:
        """Durable when it returns True. False: another incarnation was first, maybe in this moment. Raises Refused on a full disk."""
        with self._lock:  # greetings run on threads of their own, because this writes
            known = self.known[group].get(node)
            if known not in (None, incarnation):
                return False
            met_by = self.met_by.get(group, frozenset())
            if known is None or (knows_us and node not in met_by):
                self._write(group, {**self.known[group], node: incarnation}, met_by | {node} if knows_us else met_by)
            return True

    def _write(self, group: str, peers: dict[str, str], met_by: frozenset[str]) -> None:
        try:
            self.disk.mkdirs(self.directories[group])
            identity_files.write_peers(self.disk, self.directories[group], peers, met_by)
        except OSError as error:
            if is_no_space(error):
                raise Refused("space", f"no space to remember the peers of broker group {group}; free disk space on that node") from error
            what = f"the file that remembers the peers of broker group {group} cannot be written ({error})"
            self.on_fatal(FatalError(EXIT_SYNC, what, "check the disk, then start the node again"))
            raise
        self.known[group] = peers
        self.met_by[group] = met_by


@dataclass(frozen=True, slots=True)
class Greeter:
    """One node's side of the greeting."""

    cluster_id: str
    node: str
    boot_id: str
    version: str
    secret: bytes
    peers: frozenset[str]
    identities: Mapping[str, Identity]
    book: PeerBook

    def hello(self, challenge: bytes, nonce: bytes) -> peer_pb2.Hello:
        """What the opening side answers to a challenge."""
        message = peer_pb2.Hello(cluster_id=self.cluster_id, node=self.node, boot_id=self.boot_id, nonce=nonce, version=self.version)
        message.groups.extend(self._groups())
        message.mac = _mac(self.secret, _HELLO, challenge, message)
        return message

    def reply(self, nonce: bytes) -> peer_pb2.HelloReply:
        """What the accepting side answers to a good hello."""
        message = peer_pb2.HelloReply(cluster_id=self.cluster_id, node=self.node, boot_id=self.boot_id, version=self.version)
        message.groups.extend(self._groups())
        message.mac = _mac(self.secret, _REPLY, nonce, message)
        return message

    def check_hello(self, challenge: bytes, message: peer_pb2.Hello) -> None:
        """Raise Refused unless the opening side knows the secret and is a peer of ours; remember it. May sync a small file."""
        self._check_mac(_HELLO, challenge, message)
        if len(message.nonce) < NONCE_BYTES:
            raise Refused("nonce", "the greeting's nonce is too short; use the same version of LedgerMQ on all nodes")
        self._check(message, knows_us=False)

    def check_reply(self, nonce: bytes, message: peer_pb2.HelloReply, expected: str) -> None:
        """The same for the accepting side, which must be the node that was dialled. It replies only after it has recorded who we are."""
        self._check_mac(_REPLY, nonce, message)
        if message.node != expected:
            raise Refused("node", f"the address of node {expected} leads to node {message.node}; correct `nodes` in the configuration")
        self._check(message, knows_us=True)

    def _groups(self) -> Iterable[peer_pb2.GroupIdentity]:
        for group, own in sorted(self.identities.items()):
            yield peer_pb2.GroupIdentity(
                group=group,
                log_id=own.log_id,
                replica=own.replica,
                incarnation=own.incarnation,
                data_file_bytes=own.data_file_bytes,
                format_version=own.format_version,
            )

    def _check_mac(self, label: bytes, nonce: bytes, message: peer_pb2.Hello | peer_pb2.HelloReply) -> None:
        bare = type(message).FromString(message.SerializeToString())
        bare.mac = b""
        if not hmac.compare_digest(_mac(self.secret, label, nonce, bare), message.mac):
            raise Refused("secret", "the cluster secret differs; give every node the same secret")

    def _check(self, message: peer_pb2.Hello | peer_pb2.HelloReply, *, knows_us: bool) -> None:
        if message.cluster_id != self.cluster_id:
            raise Refused(
                "cluster", f"node {message.node} belongs to cluster {message.cluster_id}, not {self.cluster_id}; check cluster.id"
            )
        if message.node not in self.peers:
            raise Refused("node", f"node {message.node!r} is not among the peers of {self.node}; check `nodes` in the configuration")
        shared = [(theirs, self.identities[theirs.group]) for theirs in message.groups if theirs.group in self.identities]
        for theirs, ours in shared:
            self._check_group(message.node, theirs, ours)
        for theirs, _ in shared:
            if not self.book.remember(theirs.group, message.node, theirs.incarnation, knows_us=knows_us):
                raise self._replaced(message.node, theirs)

    def _check_group(self, node: str, theirs: peer_pb2.GroupIdentity, ours: Identity) -> None:
        where = f"broker group {ours.group}: node {node}"
        if theirs.format_version != ours.format_version:
            raise Refused("format", f"{where} writes format version {theirs.format_version}, not {ours.format_version}; upgrade it")
        if theirs.log_id != ours.log_id:
            raise Refused("log", f"{where} has log {theirs.log_id}, not {ours.log_id}; one of the data directories is foreign")
        if theirs.data_file_bytes != ours.data_file_bytes:
            raise Refused("size", f"{where} has log files of {theirs.data_file_bytes} bytes, not {ours.data_file_bytes}; create it anew")
        if theirs.replica != node:
            raise Refused("replica", f"{where} runs on the data directory of {theirs.replica}; give it its own directory")
        if self.book.known[ours.group].get(node, theirs.incarnation) != theirs.incarnation:
            raise self._replaced(node, theirs)

    def _replaced(self, node: str, theirs: peer_pb2.GroupIdentity) -> Refused:
        known = self.book.known[theirs.group][node]
        what = f"broker group {theirs.group}: node {node}: data directory replaced (incarnation {theirs.incarnation}, known {known})"
        return Refused("incarnation", f"{what}; restore the former directory")


def _mac(secret: bytes, label: bytes, nonce: bytes, message: peer_pb2.Hello | peer_pb2.HelloReply) -> bytes:
    return hmac.digest(secret, label + len(nonce).to_bytes(4, "big") + nonce + message.SerializeToString(deterministic=True), "sha256")
