"""The public keys with which nodes sign checkpoints, as agreed by the controller quorum. Pure, like `metadata.py`.

A node's newest key is the one that it signs with; former keys stay listed, so that old checkpoints can be verified. Private keys never
leave their node (`frontend/proofs/signing_key.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ledgermq.proto.signed_notes import PUBLIC_BYTES

Json = dict[str, Any]
MAX_KEYS = 1024
"""Beyond that the oldest key is forgotten."""


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """`public`: the Ed25519 key, 32 bytes in hexadecimal."""

    node: str
    public: str
    created_ms: int


Keys = tuple[CheckpointKey, ...]
"""The newest last."""


def add(keys: Keys, command: Json) -> Keys:
    """Append a node's key; no change if it is the newest one of the node. Raises ValueError."""
    node, public, created_ms = command.get("node"), command.get("public"), command.get("created_ms")
    if not isinstance(node, str) or not node or not isinstance(public, str) or type(created_ms) is not int:
        raise ValueError("a checkpoint key has a node, a public key and the time when it was made")
    if len(bytes.fromhex(public)) != PUBLIC_BYTES:
        raise ValueError(f"a public key has {PUBLIC_BYTES} bytes")
    if newest(keys, node) == public:
        return keys
    return (*keys, CheckpointKey(node, public, created_ms))[-MAX_KEYS:]


def newest(keys: Keys, node: str) -> str | None:
    """The public key that a node signs with; None if none is known."""
    return next((key.public for key in reversed(keys) if key.node == node), None)


def export(keys: Keys) -> list[list[Any]]:
    return [[key.node, key.public, key.created_ms] for key in keys]


def restore(tree: Iterable[list[Any]]) -> Keys:
    return tuple(CheckpointKey(*fields) for fields in tree)
