"""Paths computed from a file: for every entry of files of every small size they lead to the root,
and a changed file has no proof."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.proto.proofs.log_tree import FileLeaf, inclusion_path
from ledgermq.storage.files.errors import LogDamaged
from ledgermq.storage.log import entry_proof
from ledgermq.storage.log.entry_proof import prove_entry
from tests.proto.test_entries_tree import entry, plain_root

FIRST, BASE = 100, 5000


@dataclass
class Reader:
    """As much of a `LogReader` as a proof needs, over one file in memory."""

    entries: list[bytes]
    gone: bool = False

    def read(self, index: int, _: int) -> Any:
        return (
            None
            if self.gone
            else SimpleNamespace(pos=BASE + sum(map(len, self.entries[: index - FIRST])))
        )

    def record_bytes(self, pos: int, length: int) -> bytes | None:
        return None if self.gone else b"".join(self.entries)[pos - BASE : pos - BASE + length]


def made(count: int) -> tuple[Any, FileLeaf]:
    entries = [entry(number, 139 + number % 7) for number in range(count)]
    return Reader(entries), FileLeaf(
        BASE, FIRST, count, BASE + sum(map(len, entries)), plain_root(entries)
    )


@pytest.mark.parametrize("count", [*range(1, 18), 31, 32, 33])
def test_every_entry_of_a_file(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry and the path are those of the definition, however the file is cut into chunks."""
    monkeypatch.setattr(entry_proof, "CHUNK_BYTES", 100 + count)
    reader, leaf = made(count)
    hashes = [sha256(b"\x00" + one).digest() for one in reader.entries]
    for number in range(count):
        found = prove_entry(reader, leaf, FIRST + number)
        assert (
            found is not None
            and found.entry == reader.entries[number]
            and list(found.path) == inclusion_path(hashes, number)
        )


def test_a_file_that_is_not_the_sealed_one_has_no_proof() -> None:
    """Damage of any kind, wherever it is; and a file that was trimmed meanwhile."""
    reader, leaf = made(9)
    for number in range(9):
        changed = Reader(list(reader.entries))
        changed.entries[number] = changed.entries[number][:-1] + b"x"
        with pytest.raises(LogDamaged, match="is not the one that was sealed"):
            prove_entry(changed, leaf, FIRST + 4)  # type: ignore[arg-type]
    torn = Reader([*reader.entries[:3], b"\x00" * len(reader.entries[3]), *reader.entries[4:]])
    with pytest.raises(LogDamaged, match="is damaged"):
        prove_entry(torn, leaf, FIRST + 6)  # type: ignore[arg-type]
    short = Reader(reader.entries[:8])
    with pytest.raises(LogDamaged, match="is damaged"):
        prove_entry(short, leaf, FIRST + 1)  # type: ignore[arg-type]
    assert prove_entry(Reader(reader.entries, gone=True), leaf, FIRST) is None  # type: ignore[arg-type]
