"""The keys that sign receipts, as agreed by the controller quorum. Pure, like `metadata.py`.

Keys arrive sealed (`security/sealing.py`) and are never part of an answer. The newest key signs and all of them verify, so a receipt can be
verified as long as its key is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

MAX_KEYS = 256
"""Enough for twenty years of monthly changes. Beyond that the oldest key is dropped, and its receipts can no longer be verified."""


@dataclass(frozen=True, slots=True)
class ReceiptKey:
    """`sealed` is the key as sealed hexadecimal text."""

    key_id: str
    sealed: str = field(repr=False)
    created_ms: int = 0


Keys = tuple[ReceiptKey, ...]
"""The newest last."""


def add(keys: Keys, command: Json) -> tuple[Keys, Json]:
    """Append a key if `after` is still the id of the newest key; otherwise another node was first. Either way the answer names the newest
    key. So only one key is kept when several nodes make one at the same time. Raises ValueError."""
    key_id, sealed, created_ms = command.get("key_id"), command.get("secret"), command.get("created_ms")
    if not isinstance(key_id, str) or not key_id or not isinstance(sealed, str) or not sealed or type(created_ms) is not int:
        raise ValueError("a receipt key has an id, a sealed key and the time when it was made")
    if command.get("after", "") == (keys[-1].key_id if keys else ""):
        if any(known.key_id == key_id for known in keys):
            raise ValueError(f"there is a receipt key {key_id} already")
        keys = (*keys, ReceiptKey(key_id, sealed, created_ms))[-MAX_KEYS:]
    return keys, {"key_id": keys[-1].key_id, "keys": len(keys)}


def export(keys: Keys) -> list[list[Any]]:
    return [[key.key_id, key.sealed, key.created_ms] for key in keys]


def restore(tree: Iterable[list[Any]]) -> Keys:
    return tuple(ReceiptKey(*fields) for fields in tree)
