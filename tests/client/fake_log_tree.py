"""A cluster of nodes that sign checkpoints, as far as a client sees it.

Logs of plain entries in memory, a key for each node, and the answers of the calls. Trees are
computed by the recursive definition of RFC
6962. A node can be made to lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.proofs.log_tree import FileLeaf, consistency_path, inclusion_path
from ledgermq.proto.proofs.signed_notes import (
    ED25519,
    Checkpoint,
    LogName,
    Note,
    VerifierKey,
    format_note,
    sign,
)
from tests.client.fake_cluster import FakeNode, admin_status
from tests.proto.naive_tree import naive_root
from tests.proto.plain_entry import PlainMessage, plain_entry

FILE_BYTES = 1 << 12
LOG = LogName("7d444840", "g1", "19c2e7d0")
NODES = ("n1", "n2", "n3")


@dataclass
class FakeLog:
    """Sealed files of a log: their entries, leaves and leaf hashes."""

    files: list[list[bytes]] = field(default_factory=list)
    leaves: list[FileLeaf] = field(default_factory=list)
    index: int = 0
    chain: int = 0

    def seal(self, *bodies: bytes) -> None:
        """Append a sealed file with these messages."""
        base, position, entries = len(self.files) * FILE_BYTES, len(self.files) * FILE_BYTES, []
        first = self.index
        for body in bodies:
            properties = f"UNIQ_KEY\x01id-{self.index}\x02".encode()
            message = PlainMessage(
                "orders",
                self.index % 2,
                body,
                properties,
                1,
                self.index // 2,
                1_700_000_000_000 + self.index,
            )
            entry, self.chain = plain_entry(message, self.index, 1, position, self.chain)
            position, self.index = position + len(entry), self.index + 1
            entries.append(entry)
        root = naive_root([hashlib.sha256(b"\0" + entry).digest() for entry in entries])
        self.files.append(entries)
        self.leaves.append(FileLeaf(base, first, len(entries), position, root))

    def hashes(self, size: int) -> list[bytes]:
        return [leaf.hash() for leaf in self.leaves[:size]]

    def checkpoint(self, size: int) -> Checkpoint:
        return Checkpoint(LOG, size, naive_root(self.hashes(size)))


def log_of(files: int, *, changed: Sequence[int] = ()) -> FakeLog:
    """A log of files with 3, 4, 5 … messages; the bodies in the files that are named differ from
    those of other logs."""
    log = FakeLog()
    for number in range(files):
        kind = "other" if number in changed else "body"
        log.seal(*(f"{kind} {number}.{row}".encode() for row in range(3 + number)))
    return log


def private_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def key_of(node: str) -> VerifierKey:
    return VerifierKey(
        f"{node}.{LOG.cluster_id}", ED25519, private_key(node).public_key().public_bytes_raw()
    )


def key_file(*nodes: str) -> str:
    return "# keys\n" + "".join(f"{key_of(node)}\n" for node in nodes or NODES)


def signed(checkpoint: Checkpoint, *nodes: str) -> Note:
    """The checkpoint as these nodes sign it."""
    text = checkpoint.text()
    return Note(
        text, tuple(sign(text, key_of(node), private_key(node).sign) for node in nodes or NODES)
    )


@dataclass
class FakeReplica:
    """What one node says: its log, and how many files of it it shows. None: it does not answer."""

    log: FakeLog
    size: int | None = None

    def shown(self) -> int:
        return len(self.log.leaves) if self.size is None else self.size


@dataclass
class FakeTreeCluster:
    """The nodes' answers, given by one fake node. `answers` names the node whose log proofs come
    from."""

    node: FakeNode
    replicas: dict[str, FakeReplica]
    answering: str = "n1"
    commit_index: int = 0

    def __post_init__(self) -> None:
        self.node.answers("ClusterStatus", lambda _: self.status())
        self.node.answers("GetCheckpoint", self.get_checkpoint)
        self.node.answers("ProveEntry", self.prove_entry)
        self.node.answers("ProveConsistency", self.prove_consistency)
        self.node.answers("ListCheckpointKeys", lambda _: self.keys())

    def status(self) -> pb.ClusterStatusResponse:
        found = pb.ClusterStatusResponse(
            status=admin_status(), cluster_id=LOG.cluster_id, health="ok"
        )
        found.groups.add(
            group=LOG.broker_group, voters=sorted(self.replicas), commit_index=self.commit_index
        )
        return found

    def keys(self) -> pb.ListCheckpointKeysResponse:
        keys = [
            pb.CheckpointKey(node=node, verifier_key=str(key_of(node)), created_ms=1)
            for node in NODES
        ]
        keys.append(
            pb.CheckpointKey(node="n1", verifier_key=str(key_of("old")), created_ms=0, retired=True)
        )
        return pb.ListCheckpointKeysResponse(status=admin_status(), keys=keys)

    def get_checkpoint(self, request: pb.GetCheckpointRequest) -> pb.GetCheckpointResponse:
        replica = self.replicas.get(request.node)
        if replica is None:
            return pb.GetCheckpointResponse(
                status=admin_status(40400, f"node {request.node} does not answer; start it")
            )
        if not replica.shown():
            return pb.GetCheckpointResponse(
                status=admin_status(40400, "no file of the log is sealed yet; send more messages")
            )
        note = signed(replica.log.checkpoint(replica.shown()), request.node)
        return pb.GetCheckpointResponse(status=admin_status(), note=format_note(note))

    def prove_entry(self, request: pb.ProveEntryRequest) -> pb.ProveEntryResponse:
        log = self.replicas[self.answering].log
        size = request.size or self.replicas[self.answering].shown()
        for number, leaf in enumerate(log.leaves[:size]):
            if leaf.first <= request.index < leaf.first + leaf.entries:
                row = request.index - leaf.first
                entries = log.files[number]
                return pb.ProveEntryResponse(
                    status=admin_status(),
                    leaf=pb.SealedFileLeaf(
                        base=leaf.base,
                        first_index=leaf.first,
                        entries=leaf.entries,
                        end_pos=leaf.end,
                        entries_root=leaf.root,
                    ),
                    entry=entries[row],
                    entry_path=inclusion_path(
                        [hashlib.sha256(b"\0" + entry).digest() for entry in entries], row
                    ),
                    file_number=number,
                    log_path=inclusion_path(log.hashes(size), number),
                    note=format_note(signed(log.checkpoint(size), self.answering)),
                )
        return pb.ProveEntryResponse(
            status=admin_status(
                40400, f"entry {request.index} is in no sealed log file yet; try again later"
            )
        )

    def prove_consistency(self, request: pb.ProveConsistencyRequest) -> pb.ProveConsistencyResponse:
        log = self.replicas[self.answering].log
        size = request.new_size or self.replicas[self.answering].shown()
        if size > len(log.leaves):
            return pb.ProveConsistencyResponse(
                status=admin_status(40400, f"the tree has {len(log.leaves)} files")
            )
        return pb.ProveConsistencyResponse(
            status=admin_status(), path=consistency_path(log.hashes(size), request.old_size)
        )


def cluster_of(node: FakeNode, log: FakeLog, **sizes: int) -> FakeTreeCluster:
    """Three nodes with the same log, each of which shows all of it or the number of files that is
    given."""
    return FakeTreeCluster(node, {name: FakeReplica(log, sizes.get(name)) for name in NODES})


def proof_fields(log: FakeLog, index: int, size: int) -> dict[str, Any]:
    """The fields of a proof of an entry up to the tree of `size` files, but for the checkpoint."""
    number = next(
        at for at, leaf in enumerate(log.leaves) if leaf.first <= index < leaf.first + leaf.entries
    )
    leaf, entries = log.leaves[number], log.files[number]
    hashes = [hashlib.sha256(b"\0" + entry).digest() for entry in entries]
    return {
        "file_number": number,
        "leaf": leaf,
        "entry": entries[index - leaf.first],
        "entry_path": tuple(inclusion_path(hashes, index - leaf.first)),
        "log_path": tuple(inclusion_path(log.hashes(size), number)),
    }
