"""Trees and proofs against the recursive definition of RFC 6962, section 2.1, for all small sizes,
and against published vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto.proofs import log_tree
from ledgermq.proto.proofs.log_tree import (
    FileLeaf,
    check_consistency,
    consistency_path,
    inclusion_path,
    root_of_inclusion,
    tree_root,
)
from tests.proto.naive_tree import naive_path, naive_root

SIZES = range(71)
LEAVES = [log_tree.leaf_hash(b"leaf %d" % number) for number in range(max(SIZES))]

# The leaves and roots that implementations of Certificate Transparency publish as known answers,
# for sizes 0 to 8.
KNOWN_LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
KNOWN_ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leads_to(root: bytes, leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bool:
    """Whether the path proves the leaf at this index of the tree with this root."""
    try:
        return root_of_inclusion(leaf, index, size, path) == root
    except ValueError:
        return False


@pytest.mark.parametrize("size", range(9))
def test_published_roots(size: int) -> None:
    hashes = [log_tree.leaf_hash(leaf) for leaf in KNOWN_LEAVES[:size]]
    assert tree_root(hashes).hex() == KNOWN_ROOTS[size]


def test_published_paths() -> None:
    """Inclusion of leaf 5 in 8 and consistency of 6 with 8, of the same published vectors."""
    hashes = [log_tree.leaf_hash(leaf) for leaf in KNOWN_LEAVES]
    assert [each.hex()[:8] for each in inclusion_path(hashes, 5)] == [
        "bc1a0643",
        "ca854ea1",
        "d37ee418",
    ]
    assert [each.hex()[:8] for each in consistency_path(hashes, 6)] == [
        "0ebc5d34",
        "ca854ea1",
        "d37ee418",
    ]


@pytest.mark.parametrize("size", SIZES)
def test_roots_and_paths_are_those_of_the_definition(size: int) -> None:
    leaves = LEAVES[:size]
    root = naive_root(leaves)
    assert tree_root(leaves) == root
    for index in range(size):
        path = inclusion_path(leaves, index)
        assert path == naive_path(leaves, index)
        assert root_of_inclusion(leaves[index], index, size, path) == root


@pytest.mark.parametrize("size", SIZES)
def test_every_tree_continues_every_smaller_one(size: int) -> None:
    root = tree_root(LEAVES[:size])
    for old in range(size + 1):
        check_consistency(
            old, naive_root(LEAVES[:old]), size, root, consistency_path(LEAVES[:size], old)
        )


@pytest.mark.parametrize("size", range(2, 18))
def test_a_path_proves_no_other_index_and_has_one_length(size: int) -> None:
    root = tree_root(LEAVES[:size])
    for index in range(size):
        path = inclusion_path(LEAVES[:size], index)
        assert [
            other for other in range(size) if leads_to(root, LEAVES[index], other, size, path)
        ] == [index]
        for changed in (path[:-1], path[1:], [*path, path[-1]], [path[0], *path]):
            assert not leads_to(root, LEAVES[index], index, size, changed)


@pytest.mark.parametrize("size", range(1, 18))
def test_a_changed_history_is_never_consistent(size: int) -> None:
    """Whichever leaf of the old tree changed, no path of either history leads from the old root to
    the new one."""
    for old in range(1, size + 1):
        for changed in range(old):
            forked = [
                *LEAVES[:changed],
                log_tree.leaf_hash(b"another"),
                *LEAVES[changed + 1 : size],
            ]
            for path in (consistency_path(forked, old), consistency_path(LEAVES[:size], old)):
                with pytest.raises(ValueError):
                    check_consistency(old, tree_root(LEAVES[:old]), size, tree_root(forked), path)


@given(st.data())
def test_every_altered_consistency_proof_is_refused(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 40))
    old = data.draw(st.integers(1, size - 1))
    path = consistency_path(LEAVES[:size], old)
    roots = [tree_root(LEAVES[:old]), tree_root(LEAVES[:size])]
    what = data.draw(st.sampled_from(("drop", "add", "bit", "old root", "new root")))
    at = data.draw(st.integers(0, len(path) - 1))
    bit = 1 << data.draw(st.integers(0, 255))
    if what == "drop":
        path.pop(at)
    elif what == "add":
        path.insert(at, LEAVES[0])
    elif what == "bit":
        path[at] = (int.from_bytes(path[at], "big") ^ bit).to_bytes(32, "big")
    else:
        which = what == "new root"
        roots[which] = (int.from_bytes(roots[which], "big") ^ bit).to_bytes(32, "big")
    with pytest.raises(ValueError):
        check_consistency(old, roots[0], size, roots[1], path)


@pytest.mark.parametrize("sizes", [(3, 2), (-1, 2), (0, 2)])
def test_sizes_that_no_history_has(sizes: tuple[int, int]) -> None:
    old, new = sizes
    with pytest.raises(ValueError):
        check_consistency(old, tree_root(LEAVES[: max(old, 1)]), new, tree_root(LEAVES[:new]), [])


def test_wrong_arguments() -> None:
    for wrong in (
        lambda: inclusion_path(LEAVES[:3], 3),
        lambda: inclusion_path([], 0),
        lambda: root_of_inclusion(LEAVES[0], 1, 1, []),
        lambda: root_of_inclusion(b"short", 0, 1, []),
        lambda: consistency_path(LEAVES[:3], 4),
        lambda: check_consistency(1, b"short", 1, b"short", []),
        lambda: check_consistency(2, LEAVES[0], 2, LEAVES[1], []),
        lambda: check_consistency(2, LEAVES[0], 2, LEAVES[0], [LEAVES[0]]),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_the_bytes_of_a_file_leaf() -> None:
    leaf = FileLeaf(base=1 << 30, first=7, entries=5, end=(1 << 30) + 999, root=bytes(range(32)))
    head = bytes.fromhex(
        "4c4d515452454531 0000000040000000 0000000000000007 0000000000000005 00000000400003e7"
    )
    assert leaf.to_bytes() == head + bytes(range(32))
    assert leaf.hash() == hashlib.sha256(b"\0" + leaf.to_bytes()).digest()
