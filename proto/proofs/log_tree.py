"""Merkle trees of the log: the tree of a file's entries, the tree of a log's files, and proofs
about both (docs/format.md).

The hash is that of RFC 6962, section 2.1, with SHA-256: a leaf is hashed with the prefix 0x00, an
inner node with 0x01, and a tree of n leaves splits at the largest power of two below n. Paths are
those of RFC 9162, sections 2.1.3 and 2.1.4. Pure functions over hashes of 32 bytes: callers read
entries and files.

Two trees are in use. The leaves of an *entries tree* are the entries of one sealed log file in
index order, each with header and record as stored. The leaves of a *log tree* are the sealed files
of a broker group (`FileLeaf`), in order, trimmed files included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()
"""The root of a tree without leaves."""
_LEAF = Struct(">8sQQQQ32s")
_MAGIC = b"LMQTREE1"


@dataclass(frozen=True, slots=True)
class FileLeaf:
    """A leaf of a log tree: a sealed log file. `base` is the position of its first byte, `first`
    the index of its first entry, `entries` the number of its entries, `end` the position behind the
    last entry, `root` the root of its entries tree."""

    base: int
    first: int
    entries: int
    end: int
    root: bytes

    def to_bytes(self) -> bytes:
        """The leaf data: 72 bytes, big-endian."""
        return _LEAF.pack(_MAGIC, self.base, self.first, self.entries, self.end, self.root)

    def hash(self) -> bytes:
        """The leaf's hash in the log tree."""
        return leaf_hash(self.to_bytes())


def leaf_hash(data: bytes | memoryview) -> bytes:
    """The hash of one leaf."""
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return sha256(b"\x01" + left + right).digest()


def tree_root(hashes: Sequence[bytes]) -> bytes:
    """The root of the tree with these leaf hashes."""
    level = list(hashes)
    while len(level) > 1:
        level = _parents(level)
    return level[0] if level else EMPTY_ROOT


def _parents(level: list[bytes]) -> list[bytes]:
    """The next level up; a last node without a sibling rises unchanged."""
    pairs = [node_hash(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
    return pairs + level[-1:] if len(level) % 2 else pairs


def inclusion_path(hashes: Sequence[bytes], index: int) -> list[bytes]:
    """The siblings from leaf `index` (from 0) up to the root. Raises ValueError if there is no such
    leaf."""
    if not 0 <= index < len(hashes):
        raise ValueError(f"a tree of {len(hashes)} leaves has no leaf {index}")
    level, path = list(hashes), []
    while len(level) > 1:
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        level, index = _parents(level), index // 2
    return path


def root_of_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root of a tree of `size` leaves whose leaf `index` has the hash `leaf`, according to the
    path. The caller compares it with a root that it trusts. Raises ValueError if no such tree has a
    path of this shape."""
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    _check_hashes(leaf, *path)
    siblings, node, last, root = iter(path), index, size - 1, leaf
    try:
        while last:
            if node % 2:
                root = node_hash(next(siblings), root)
            elif node < last:
                root = node_hash(root, next(siblings))
            node, last = node // 2, last // 2
    except StopIteration:
        raise ValueError(
            f"the path of leaf {index} in a tree of {size} is too short: {len(path)} hashes"
        ) from None
    if next(siblings, None) is not None:
        raise ValueError(
            f"the path of leaf {index} in a tree of {size} is too long: {len(path)} hashes"
        )
    return root


def consistency_path(hashes: Sequence[bytes], old_size: int) -> list[bytes]:
    """The hashes that prove that the tree of the first `old_size` leaves is a prefix of the tree of
    all. Raises ValueError for a size that the tree never had."""
    if not 0 <= old_size <= len(hashes):
        raise ValueError(f"a tree of {len(hashes)} leaves does not continue one of {old_size}")
    return _subproof(hashes, old_size, True) if old_size else []


def _subproof(hashes: Sequence[bytes], old_size: int, whole: bool) -> list[bytes]:
    """SUBPROOF of RFC 9162, section 2.1.4.1. `whole`: the verifier knows the root of these
    leaves."""
    if old_size == len(hashes):
        return [] if whole else [tree_root(hashes)]
    split = 1 << (len(hashes) - 1).bit_length() - 1
    if old_size <= split:
        return [*_subproof(hashes[:split], old_size, whole), tree_root(hashes[split:])]
    return [*_subproof(hashes[split:], old_size - split, False), tree_root(hashes[:split])]


def check_consistency(
    old_size: int, old_root: bytes, new_size: int, new_root: bytes, path: Sequence[bytes]
) -> None:
    """Check that a tree of `new_size` leaves with `new_root` continues the one of `old_size` leaves
    with `old_root`. Raises ValueError with the reason if the path does not prove it."""
    _check_hashes(old_root, new_root, *path)
    if not 0 <= old_size <= new_size:
        raise ValueError(f"a tree of {new_size} leaves does not continue one of {old_size}")
    if old_size in (0, new_size):
        if path:
            raise ValueError(
                f"the path from {old_size} to {new_size} leaves must be empty, and has {len(path)}"
                " hashes"
            )
        if old_root != (new_root if old_size else EMPTY_ROOT):
            raise ValueError(f"two trees of {old_size} leaves have different roots")
        return
    old, new = _roots_of_consistency(old_size, old_root, new_size, path)
    if old != old_root:
        raise ValueError(
            f"the path from {old_size} to {new_size} leaves leads to another root of {old_size}"
            " leaves"
        )
    if new != new_root:
        raise ValueError(
            f"the tree of {new_size} leaves does not continue that of {old_size}: the path leads to"
            " another root"
        )


def _roots_of_consistency(
    old_size: int, old_root: bytes, new_size: int, path: Sequence[bytes]
) -> tuple[bytes, bytes]:
    """Both roots according to the path (RFC 9162, section 2.1.4.2), for 0 < old_size < new_size."""
    wrong = ValueError(
        f"the path from {old_size} to {new_size} leaves has a wrong number of hashes: {len(path)}"
    )
    steps = iter(path if old_size & old_size - 1 else [old_root, *path])
    node, last = old_size - 1, new_size - 1
    while node % 2:
        node, last = node // 2, last // 2
    try:
        old = new = next(steps)
        while last:
            if node % 2:
                sibling = next(steps)
                old, new = node_hash(sibling, old), node_hash(sibling, new)
            elif node < last:
                new = node_hash(new, next(steps))
            node, last = node // 2, last // 2
    except StopIteration:
        raise wrong from None
    if next(steps, None) is not None:
        raise wrong
    return old, new


def _check_hashes(*hashes: bytes) -> None:
    for each in hashes:
        if len(each) != HASH_BYTES:
            raise ValueError(f"a hash has {HASH_BYTES} bytes, not {len(each)}")
