"""The path from one entry to the root of its file's entries tree, computed from the file
(docs/format.md §11).

Reads the file once, with memory for the path alone, through a `LogReader`; so any thread may do it.
The time is that of hashing the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.proto.proofs.entries_tree import EntriesTree
from ledgermq.proto.proofs.log_tree import FileLeaf, leaf_hash, root_of_inclusion
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.log.log_reader import LogReader

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EntryProof:
    """An entry as stored, and its siblings from the leaf up to the root of its file."""

    entry: bytes
    path: tuple[bytes, ...]


def prove_entry(reader: LogReader, leaf: FileLeaf, index: int) -> EntryProof | None:
    """The proof for an entry of a sealed file. None if the file was trimmed meanwhile. Raises
    OSError, and LogDamaged if the file no longer has the root that was sealed."""
    number = index - leaf.first
    assert 0 <= number < leaf.entries, f"entry {index} is not in the file of entry {leaf.first}"
    try:
        entry = _bytes(reader, leaf, number, number + 1)
        path = _path(reader, leaf, number)
    except _Gone:
        return None
    except ValueError as error:
        raise LogDamaged(
            f"the log file at {leaf.base} is damaged ({error}): ledgermq audit --deep names the"
            " entry"
        ) from error
    if root_of_inclusion(leaf_hash(entry), number, leaf.entries, path) != leaf.root:
        raise LogDamaged(
            f"the log file at {leaf.base} is not the one that was sealed: ledgermq audit --deep"
            " names what differs"
        )
    return EntryProof(entry, tuple(path))


class _Gone(Exception):
    """The file was trimmed."""


def _path(reader: LogReader, leaf: FileLeaf, number: int) -> list[bytes]:
    """The siblings, bottom up. The left ones are the peaks of the tree of all entries before; each
    right one is a tree of its own."""
    left = _tree(reader, leaf, 0, number).peaks
    path = []
    for height in range((leaf.entries - 1).bit_length()):
        node = number >> height
        begin = node + 1 << height
        if node % 2:
            path.append(left.pop())
        elif begin < leaf.entries:
            path.append(_tree(reader, leaf, begin, min(begin + (1 << height), leaf.entries)).root())
    return path


def _tree(reader: LogReader, leaf: FileLeaf, begin: int, end: int) -> EntriesTree:
    """The tree over entries `begin` to `end` of the file, exclusive."""
    tree = EntriesTree()
    pos, limit = _position(reader, leaf, begin), _position(reader, leaf, end)
    while pos < limit:
        chunk = _read(reader, pos, min(CHUNK_BYTES, limit - pos))
        tree.add(chunk)
        pos += len(chunk)
    return tree


def _bytes(reader: LogReader, leaf: FileLeaf, begin: int, end: int) -> bytes:
    pos = _position(reader, leaf, begin)
    return _read(reader, pos, _position(reader, leaf, end) - pos)


def _read(reader: LogReader, pos: int, length: int) -> bytes:
    data = reader.record_bytes(pos, length)
    if data is None:
        raise _Gone
    if len(data) != length:
        raise ValueError(f"it ends at {pos + len(data)}")
    return data


def _position(reader: LogReader, leaf: FileLeaf, number: int) -> int:
    """Where an entry of the file begins; behind the last one, where that ends."""
    if number == leaf.entries:
        return leaf.end
    piece = reader.read(leaf.first + number, 1)
    if piece is None:
        raise _Gone
    return piece.pos
