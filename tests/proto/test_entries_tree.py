"""The tree over the entries of a file: the definition of RFC 6962 on golden files, any cut into
chunks, and the kernel against its twin."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto import kernels
from ledgermq.proto.entries.layout import ENTRY_MIN_BYTES
from ledgermq.proto.proofs import entries_tree
from ledgermq.proto.proofs.entries_tree import EntriesTree, grow
from ledgermq.proto.proofs.log_tree import FileLeaf, tree_root
from tests.proto.ways import NOT_BUILT

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
TREES: dict[str, Any] = json.loads((GOLDEN / "trees.json").read_text())
ENTRIES: dict[str, Any] = json.loads((GOLDEN / "entries.json").read_text())


def plain_root(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, as it is written there."""
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0]).digest()
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha256(b"\x01" + plain_root(leaves[:split]) + plain_root(leaves[split:])).digest()


def entry(number: int, size: int = ENTRY_MIN_BYTES) -> bytes:
    return (
        (1).to_bytes(4, "big")
        + size.to_bytes(4, "big")
        + number.to_bytes(8, "big")
        + bytes(size - 16)
    )


SIZES = st.lists(st.integers(ENTRY_MIN_BYTES, ENTRY_MIN_BYTES + 300), min_size=1, max_size=70)


def test_the_golden_files() -> None:
    """Each file of the golden log: its entries without the blank, its leaf in the log tree, and the
    tree of both."""
    entries = [bytes.fromhex(one["entry_hex"]) for one in ENTRIES["entries"]]
    hashes = []
    for number, told in enumerate(TREES["files"]):
        base = number * ENTRIES["data_file_bytes"]
        places = [facts["pos"] - base for facts in ENTRIES["entries"]]
        held = [
            one
            for one, place in zip(entries, places, strict=True)
            if 0 <= place < ENTRIES["data_file_bytes"]
        ]
        data = bytes.fromhex(ENTRIES["files"][number]["hex"])
        tree = EntriesTree()
        tree.add(data[: told["end"] - base])
        assert (tree.count, tree.root().hex()) == (len(held), told["root"]) and plain_root(
            held
        ) == tree.root()
        leaf = FileLeaf(base, told["first"], len(held), told["end"], tree.root())
        assert (leaf.to_bytes().hex(), leaf.hash().hex()) == (told["leaf_hex"], told["leaf_hash"])
        hashes.append(leaf.hash())
    assert (
        tree_root(hashes).hex()
        == TREES["log_root"]
        == sha256(b"\x01" + hashes[0] + hashes[1]).hexdigest()
    )


@given(SIZES, st.lists(st.integers(1, 900), max_size=40))
def test_a_file_in_any_chunks(sizes: list[int], cuts: list[int]) -> None:
    entries = [entry(number, size) for number, size in enumerate(sizes)]
    data, tree = b"".join(entries), EntriesTree()
    for cut in cuts:
        tree.add(data[:cut])
        data = data[cut:]
    tree.add(data)
    assert tree.count == len(entries) and tree.root() == plain_root(entries)


@pytest.mark.parametrize("count", range(1, 70))
def test_every_small_number_of_entries(count: int) -> None:
    entries = [entry(number) for number in range(count)]
    tree = EntriesTree()
    tree.add(b"".join(entries))
    assert tree.root() == plain_root(entries)


@NOT_BUILT
@given(SIZES, SIZES, st.integers(0, 400), st.integers(0, 1 << 16))
def test_the_kernel_is_equal_to_its_twin(
    before: list[int], sizes: list[int], cut: int, flip: int
) -> None:
    """From any tree, over whole and cut data; and where a byte is wrong, both refuse or both go on
    alike."""
    _, count, peaks = entries_tree._grow(0, b"", b"".join(map(entry, range(len(before)), before)))
    data = bytearray(b"".join(entry(number, size) for number, size in enumerate(sizes)))
    for given_data in (bytes(data), bytes(data[: len(data) - min(cut, len(data))])):
        assert kernels.entries.grow_tree(count, peaks, given_data) == entries_tree._grow(
            count, peaks, given_data
        )
    data[flip % len(data)] ^= 1 + flip % 255
    try:
        told: object = entries_tree._grow(count, peaks, bytes(data))
    except ValueError:
        told = None
    assert kernels.entries.grow_tree(count, peaks, bytes(data)) == told


@pytest.mark.parametrize("peaks", [b"", bytes(31), bytes(64)], ids=["none", "short", "two"])
def test_peaks_that_no_tree_has(peaks: bytes) -> None:
    if kernels.NATIVE:
        assert kernels.entries.grow_tree(1, peaks, entry(0)) is None
    with pytest.raises(ValueError, match="a tree of 1 leaves has 1 peaks"):
        grow(1, peaks, entry(0))


def test_malformed_entries_have_no_root() -> None:
    """Nothing, half an entry, a blank among the entries, and a size that no entry has."""
    with pytest.raises(ValueError, match="there is no entry"):
        EntriesTree().root()
    tree = EntriesTree()
    tree.add(entry(0) + entry(1)[:-1])
    with pytest.raises(ValueError, match="cut short, behind 1 whole ones"):
        tree.root()
    for wrong in (b"\xff" * 4, b"\x00" * 4):
        with pytest.raises(ValueError, match="no entry begins at byte 0"):
            EntriesTree().add(wrong + entry(0)[4:])
    for size in (ENTRY_MIN_BYTES - 1, (64 << 20) + 1, 1 << 31):
        with pytest.raises(ValueError, match="no entry begins at byte 0"):
            EntriesTree().add(entry(0)[:4] + size.to_bytes(4, "big") + entry(0)[8:])
