"""The tree hash and the paths of RFC 6962, section 2.1, by their recursive definitions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def naive_root(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256().digest()
    split = split_of(len(leaves))
    return hashlib.sha256(b"\1" + naive_root(leaves[:split]) + naive_root(leaves[split:])).digest()


def naive_path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """PATH of RFC 6962."""
    if len(leaves) == 1:
        return []
    split = split_of(len(leaves))
    if index < split:
        return [*naive_path(leaves[:split], index), naive_root(leaves[split:])]
    return [*naive_path(leaves[split:], index - split), naive_root(leaves[:split])]


def split_of(size: int) -> int:
    power = 1
    while power * 2 < size:
        power *= 2
    return power
