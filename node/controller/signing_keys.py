"""The keys that sign receipts, and the public keys with which nodes sign checkpoints, as agreed by
the controller quorum. Pure, like `metadata.py`.

Receipt keys arrive sealed (`security/sealing.py`) and are never part of an answer. The newest key
signs and all of them verify, so a receipt can be verified as long as its key is kept. Of checkpoint
keys the quorum knows the public half only; a node signs with its newest one
(`frontend/proofs/signing_key.py`), and former ones stay listed, so that old checkpoints can be
verified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ledgermq.proto.proofs.signed_notes import PUBLIC_BYTES

Json = dict[str, Any]

RECEIPT_KEYS_MAX = 256
"""Enough for twenty years of monthly changes. Beyond that the oldest key is dropped, and its
receipts can no longer be verified."""
CHECKPOINT_KEYS_MAX = 1024
"""Beyond that the oldest key is forgotten."""


@dataclass(frozen=True, slots=True)
class ReceiptKey:
    """`sealed` is the key as sealed hexadecimal text."""

    key_id: str
    sealed: str = field(repr=False)
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """`public`: the Ed25519 key, 32 bytes in hexadecimal."""

    node: str
    public: str
    created_ms: int


ReceiptKeys = tuple[ReceiptKey, ...]
"""The newest last."""
CheckpointKeys = tuple[CheckpointKey, ...]
"""The newest last."""


def with_receipt_key(keys: ReceiptKeys, command: Json) -> tuple[ReceiptKeys, Json]:
    """Append a key if `after` is still the id of the newest key; otherwise another node was first.
    Either way the answer names the newest key. So only one key is kept when several nodes make one
    at the same time. Raises ValueError."""
    key_id, sealed, created_ms = (
        command.get("key_id"),
        command.get("secret"),
        command.get("created_ms"),
    )
    if (
        not isinstance(key_id, str)
        or not key_id
        or not isinstance(sealed, str)
        or not sealed
        or type(created_ms) is not int
    ):
        raise ValueError("a receipt key has an id, a sealed key and the time when it was made")
    if command.get("after", "") == (keys[-1].key_id if keys else ""):
        if any(known.key_id == key_id for known in keys):
            raise ValueError(f"there is a receipt key {key_id} already")
        keys = (*keys, ReceiptKey(key_id, sealed, created_ms))[-RECEIPT_KEYS_MAX:]
    return keys, {"key_id": keys[-1].key_id, "keys": len(keys)}


def with_checkpoint_key(keys: CheckpointKeys, command: Json) -> CheckpointKeys:
    """Append a node's key; no change if it is the newest one of the node. Raises ValueError."""
    node, public, created_ms = command.get("node"), command.get("public"), command.get("created_ms")
    if (
        not isinstance(node, str)
        or not node
        or not isinstance(public, str)
        or type(created_ms) is not int
    ):
        raise ValueError("a checkpoint key has a node, a public key and the time when it was made")
    if len(bytes.fromhex(public)) != PUBLIC_BYTES:
        raise ValueError(f"a public key has {PUBLIC_BYTES} bytes")
    if signs_with(keys, node) == public:
        return keys
    return (*keys, CheckpointKey(node, public, created_ms))[-CHECKPOINT_KEYS_MAX:]


def signs_with(keys: CheckpointKeys, node: str) -> str | None:
    """The public key that a node signs checkpoints with; None if none is known."""
    return next((key.public for key in reversed(keys) if key.node == node), None)


def export_receipt_keys(keys: ReceiptKeys) -> list[list[Any]]:
    return [[key.key_id, key.sealed, key.created_ms] for key in keys]


def restore_receipt_keys(tree: Iterable[list[Any]]) -> ReceiptKeys:
    return tuple(
        ReceiptKey(key_id=key_id, sealed=sealed, created_ms=created_ms)
        for key_id, sealed, created_ms in tree
    )


def export_checkpoint_keys(keys: CheckpointKeys) -> list[list[Any]]:
    return [[key.node, key.public, key.created_ms] for key in keys]


def restore_checkpoint_keys(tree: Iterable[list[Any]]) -> CheckpointKeys:
    return tuple(
        CheckpointKey(node=node, public=public, created_ms=created_ms)
        for node, public, created_ms in tree
    )
