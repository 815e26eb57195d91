"""The Ed25519 key with which this node signs checkpoints: made at its first start, and kept in its
data directory (docs/format.md §9).

The private key never leaves the node; the controller quorum knows the public one. Without the file,
which a backup does not contain, the node makes another key, and the former one is retired. A
damaged file ends the start: an operator decides whether the key is given up.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.proofs.signed_notes import ED25519, VerifierKey
from ledgermq.proto.status import ExitCode
from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.real_disk import replace_file

FILE = "checkpoint-key.json"
VERSION = 1
MODE = 0o600


class SigningKey:
    """A node's key. `created_ms`: when it was made, in ms since 1970."""

    def __init__(
        self, private: Ed25519PrivateKey, node: str, cluster_id: str, created_ms: int
    ) -> None:
        self._private = private
        public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.verifier_key = key_of(node, cluster_id, public)
        self.created_ms = created_ms

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def key_of(node: str, cluster_id: str, public: bytes) -> VerifierKey:
    """The verifier key of a node of a cluster."""
    return VerifierKey(f"{node}.{cluster_id}", ED25519, public)


def load_or_make(directory: Path, node: str, cluster_id: str, now_ms: int) -> SigningKey:
    """The node's key; made, and durable on return, if there is none. Raises FatalError for a file
    that cannot be used, OSError."""
    path = directory / FILE
    try:
        value = sealed_json.decode(path.read_bytes(), str(path))
        if value.get("v") != VERSION:
            problem = f"{path} has version {value.get('v')}, this program reads {VERSION}"
            raise FatalError(ExitCode.WRONG_VERSION, problem, "start the program that wrote it")
        if (value["cluster_id"], value["node"]) != (cluster_id, node):
            problem = f"{path} belongs to node {value['node']} of cluster {value['cluster_id']}"
            raise FatalError(
                ExitCode.DATA_UNUSABLE,
                problem,
                "each node has a key of its own: remove the copy, and this node makes one",
            )
        private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(value["private"]))
        return SigningKey(private, node, cluster_id, int(value["created_ms"]))
    except FileNotFoundError:
        private = Ed25519PrivateKey.generate()
        raw = private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        value = {
            "v": VERSION,
            "cluster_id": cluster_id,
            "node": node,
            "private": raw.hex(),
            "created_ms": now_ms,
        }
        replace_file(str(path), sealed_json.encode(value), MODE)
        return SigningKey(private, node, cluster_id, now_ms)
    except (Damaged, KeyError, TypeError, ValueError) as error:
        remedy = (
            "restore the file; or remove it, and the node makes another key (checkpoints that it"
            " signed stay valid)"
        )
        raise FatalError(ExitCode.DAMAGED, f"{path} cannot be read ({error})", remedy) from error
