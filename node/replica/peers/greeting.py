"""Decides which nodes may speak on the peer port: mutual proof of the cluster secret, and
comparison of identities (docs/architecture.md, The log).

Pure apart from what is remembered of peers (`peer_identities.py`). Every refusal is one sentence
with a remedy. The proof is HMAC-SHA256 over a label that differs by direction, the other side's
nonce, and the greeting without its `mac`: a proof cannot be reflected, replayed or used for another
greeting.

A wrong directory, cluster, format or wire version, a removed node, and a second living process with
the same name are refused completely. A directory that is not the one a broker group knows
(replaced, or an old copy) concerns only that group: the stream is accepted, the group's packets
from there are not, and both sides know the reason.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ledgermq.node.replica.consensus.replica_wire import WIRE_VERSION
from ledgermq.node.replica.peers.peer_identities import Boots, PeerIdentities, Refused
from ledgermq.node.replica.ports import NodeRoster
from ledgermq.proto import peer_pb2
from ledgermq.proto.levels import FIRST_LEVEL, LEVEL_MAX
from ledgermq.proto.types import Identity
from ledgermq.storage.state.identity import FORMAT_MAX

__all__ = ["ALIVE", "NONCE_BYTES", "REMOVED", "Greeter", "PeerIdentities", "Refused"]

NONCE_BYTES = 32
REMOVED = "removed"
ALIVE = "alive"
"""The reason of a refusal that may be over after a moment."""
_HELLO = b"ledgermq peer hello 1\x00"
_REPLY = b"ledgermq peer reply 1\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeter:
    """One node's side of the greeting."""

    cluster_id: str
    node: str
    boot_id: str
    version: str
    secret: bytes
    roll: NodeRoster
    identities: Mapping[str, Identity]
    peer_identities: PeerIdentities
    boots: Mapping[str, Boots] = field(default_factory=dict)
    """Broker group → the starts on its directory, the present one last."""
    format_max: int = FORMAT_MAX
    wire_version: int = WIRE_VERSION
    level_max: int = LEVEL_MAX
    wall_ns: Callable[[], int] | None = None
    """The wall clock that replies tell; None: they tell none."""

    def hello(self, challenge: bytes, nonce: bytes) -> peer_pb2.Hello:
        """The opening side's answer to a challenge."""
        message = peer_pb2.Hello(
            cluster_id=self.cluster_id,
            node=self.node,
            boot_id=self.boot_id,
            nonce=nonce,
            version=self.version,
        )
        message.format_max, message.wire_version, message.level_max = (
            self.format_max,
            self.wire_version,
            self.level_max,
        )
        message.groups.extend(self._groups(None))
        message.mac = _mac(self.secret, _HELLO, challenge, message)
        return message

    def reply(self, hello: peer_pb2.Hello) -> peer_pb2.HelloReply:
        """The accepting side's answer to a valid hello."""
        message = peer_pb2.HelloReply(
            cluster_id=self.cluster_id, node=self.node, boot_id=self.boot_id, version=self.version
        )
        message.format_max, message.wire_version, message.level_max = (
            self.format_max,
            self.wire_version,
            self.level_max,
        )
        message.groups.extend(self._groups(hello.node))
        if self.wall_ns is not None:
            message.wall_ns = self.wall_ns()
        message.mac = _mac(self.secret, _REPLY, hello.nonce, message)
        return message

    def check_hello(
        self, challenge: bytes, message: peer_pb2.Hello, alive: str | None = None
    ) -> None:
        """Raise Refused unless the opening side knows the secret and is a peer; remember its
        directories. May sync a small file.

        `alive`: the boot id of a process that spoke as this node a moment ago."""
        self._check_mac(_HELLO, challenge, message)
        if len(message.nonce) < NONCE_BYTES:
            raise Refused(
                "nonce",
                "the greeting's nonce is too short; use the same version of LedgerMQ on all nodes",
            )
        if alive not in (None, message.boot_id):
            what = (
                f"another process speaks as node {message.node} at this moment (boot {alive}, not"
                f" {message.boot_id})"
            )
            raise Refused(
                ALIVE, f"{what}; one of them runs on a copy of the other's data directory: stop it"
            )
        self._check(message)

    def check_reply(self, nonce: bytes, message: peer_pb2.HelloReply, expected: str) -> None:
        """The same for the accepting side, which must be the node `expected`. What it claims to
        have recorded is durable there."""
        self._check_mac(_REPLY, nonce, message)
        if message.node != expected:
            what = f"the address of node {expected} leads to node {message.node}"
            raise Refused(
                "node", f"{what}; correct it with: ledgermq member set-address {expected} HOST:PORT"
            )
        self._take_reply(message)

    def heard_hello(self, message: peer_pb2.Hello, sender: str) -> None:
        """Handle a greeting over an existing stream, from a peer that has opened another broker
        group since; the stream has proven who the peer is. Raises Refused. May sync a small
        file."""
        if message.node != sender:
            raise Refused("node", f"node {sender} speaks as node {message.node}")
        self._check(message)

    def heard_reply(self, message: peer_pb2.HelloReply, sender: str) -> None:
        """Handle the answer to such a greeting. Raises Refused. May sync a small file."""
        if message.node != sender:
            raise Refused("node", f"node {sender} speaks as node {message.node}")
        self._take_reply(message)

    def others(self) -> list[str]:
        """The nodes to greet."""
        return [node for node in self.roll.nodes if node != self.node]

    def _take_reply(self, message: peer_pb2.HelloReply) -> None:
        for theirs, ours in self._check(message):
            # A version that does not report what it recorded refuses every directory that it does
            # not know.
            recorded = theirs.recorded_incarnation if message.format_max else ours.incarnation
            if (
                recorded == ours.incarnation
                and (theirs.group, message.node) not in self.peer_identities.barred
            ):
                self.peer_identities.note_met_by(theirs.group, message.node)
            self.peer_identities.note_objection(theirs.group, message.node, theirs.objection)
        shared = (theirs for theirs in message.groups if theirs.group in self.identities)
        self.peer_identities.note_answer(
            message.node, {theirs.group: theirs.members for theirs in shared}
        )

    def _groups(self, peer: str | None) -> Iterable[peer_pb2.GroupIdentity]:
        for group, own in sorted(self.identities.items()):
            found = peer_pb2.GroupIdentity(
                group=group,
                log_id=own.log_id,
                replica=own.replica,
                incarnation=own.incarnation,
                data_file_bytes=own.data_file_bytes,
                format_version=own.format_version,
            )
            if group in self.boots:
                found.generation = self.boots[group].generation
                found.boots.extend(self.boots[group].words)
            found.members.extend(self.peer_identities.members.get(group, ()))
            if peer is not None:
                found.recorded_incarnation = self.peer_identities.known.get(group, {}).get(peer, "")
                found.objection = self.peer_identities.barred.get((group, peer), "")
            yield found

    def _check_mac(
        self, label: bytes, nonce: bytes, message: peer_pb2.Hello | peer_pb2.HelloReply
    ) -> None:
        bare = type(message).FromString(message.SerializeToString())
        bare.mac = b""
        if not hmac.compare_digest(_mac(self.secret, label, nonce, bare), message.mac):
            raise Refused("secret", "the cluster secret differs; give every node the same secret")

    def _check(
        self, message: peer_pb2.Hello | peer_pb2.HelloReply
    ) -> list[tuple[peer_pb2.GroupIdentity, Identity]]:
        """Check the sender and its groups, and remember its directories. Returns the broker groups
        that both sides have a replica of."""
        node = message.node
        if message.cluster_id != self.cluster_id:
            raise Refused(
                "cluster",
                f"node {node} belongs to cluster {message.cluster_id}, not {self.cluster_id}; check"
                " cluster.id",
            )
        if self.roll.removed(node):
            what = f"node {node} was removed from this cluster"
            raise Refused(
                REMOVED,
                f"{what}; stop it, or let it in again: ledgermq member add {node} --address"
                " HOST:PORT",
            )
        if not self.roll.knows(node):
            what = f"node {node!r} is not among the peers of {self.node}"
            raise Refused(
                "node",
                f"{what}; check `nodes` in the configuration, or add it: ledgermq member add {node}"
                " --address HOST:PORT",
            )
        wire_version = message.wire_version or 1
        if wire_version != self.wire_version:
            what = (
                f"node {node} (LedgerMQ {message.version}) sends packets of version {wire_version}"
            )
            what += f", {self.node} (LedgerMQ {self.version}) of version {self.wire_version}"
            raise Refused(
                "wire",
                f"{what}; stop all nodes of the cluster and start them with one version of"
                " LedgerMQ",
            )
        # The loop may add and remove groups at the same time.
        found = ((theirs, self.identities.get(theirs.group)) for theirs in message.groups)
        shared = [(theirs, ours) for theirs, ours in found if ours is not None]
        for theirs, ours in shared:
            self._check_group(node, theirs, ours, message.format_max)
            self._check_level(message, ours.group)
        self.peer_identities.level_max[node] = message.level_max or FIRST_LEVEL
        for theirs, _ in shared:
            boots = Boots(theirs.generation, tuple(theirs.boots)) if theirs.generation else None
            self.peer_identities.greeted(theirs.group, node, theirs.incarnation, boots)
        return shared

    def _check_group(
        self, node: str, theirs: peer_pb2.GroupIdentity, ours: Identity, format_max: int
    ) -> None:
        where = f"broker group {ours.group}: node {node}"
        newest = max(theirs.format_version, ours.format_version)
        if newest > self.format_max:
            what = (
                f"{where} writes format version {newest}, {self.node} reads up to {self.format_max}"
            )
            raise Refused("format", f"{what}; upgrade {self.node}")
        if newest > max(format_max, theirs.format_version):
            reads = max(format_max, theirs.format_version)
            raise Refused(
                "format",
                f"{where} reads up to format version {reads}, the group is written in {newest};"
                f" upgrade {node}",
            )
        if abs(theirs.format_version - ours.format_version) > 1:
            what = (
                f"{where} has format version {theirs.format_version}, {self.node}"
                f" {ours.format_version}"
            )
            raise Refused("format", f"{what}: more than one apart; upgrade one version at a time")
        if theirs.log_id != ours.log_id:
            raise Refused(
                "log",
                f"{where} has log {theirs.log_id}, not {ours.log_id}; one of the data directories"
                " is foreign",
            )
        if theirs.data_file_bytes != ours.data_file_bytes:
            raise Refused(
                "size",
                f"{where} has log files of {theirs.data_file_bytes} bytes, not"
                f" {ours.data_file_bytes}; create it anew",
            )
        if theirs.replica != node:
            raise Refused(
                "replica",
                f"{where} runs on the data directory of {theirs.replica}; give it its own"
                " directory",
            )

    def _check_level(self, message: peer_pb2.Hello | peer_pb2.HelloReply, group: str) -> None:
        """A program that reads less than the level of a group would stop at the group's records,
        and must not be counted on before."""
        level, level_max = (
            self.peer_identities.levels.get(group, FIRST_LEVEL),
            message.level_max or FIRST_LEVEL,
        )
        if level > level_max:
            what = (
                f"broker group {group}: node {message.node} (LedgerMQ {message.version}) reads up"
                f" to feature level {level_max}"
            )
            raise Refused("level", f"{what}, the group has level {level}; upgrade {message.node}")


def _mac(
    secret: bytes, label: bytes, nonce: bytes, message: peer_pb2.Hello | peer_pb2.HelloReply
) -> bytes:
    return hmac.digest(
        secret,
        label
        + len(nonce).to_bytes(4, "big")
        + nonce
        + message.SerializeToString(deterministic=True),
        "sha256",
    )
