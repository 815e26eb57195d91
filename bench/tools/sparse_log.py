"""A log of many large files that occupies little disk space: each file contains only its first and
last entries and their units.

The parts that a start is not supposed to read do not exist, so a start that reads more than it
should fails, or its reads are counted.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from bench.storage_append import BORN_MS, HOST, new_identity
from ledgermq.proto.entries.entry_encoding import encode_entries
from ledgermq.proto.entries.entry_sealing import seal
from ledgermq.proto.types import Draft, Identity, SyncedMark
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.log.entry_log import EntryLog
from ledgermq.storage.log.index_files import make_units
from ledgermq.storage.log.placing import make_blank
from ledgermq.storage.log.synced_mark import SyncedMarkFile

FILE_BYTES = 1 << 30
INDEX_FILE_BYTES = 167_772_160
ENTRIES_A_FILE = 1_000_000
BODY_BYTES = 100


_MESSAGE = Draft("t", 0, bytes(BODY_BYTES), b"", BORN_MS)
_ENTRY_BYTES = len(encode_entries([_MESSAGE]).data)


def make_sparse_log(
    directory: Path, files: int, *, term_every: int = 100, unmarked: int = 5
) -> Identity:
    """Create `files` full files and one more with a few entries. The last `unmarked` entries are
    above the mark; a new term begins every `term_every` files."""
    identity = new_identity(FILE_BYTES >> 20)
    assert (identity.data_file_bytes, identity.index_file_bytes) == (FILE_BYTES, INDEX_FILE_BYTES)
    disk = RealDisk()
    disk.mkdirs(str(directory))
    EntryLog.create(disk, str(directory), identity)
    index_bytes = (files + 1) * ENTRIES_A_FILE * 32
    for base in range(0, index_bytes, INDEX_FILE_BYTES):
        _make(directory / "index" / f"{base:020d}", INDEX_FILE_BYTES)
    chain = 0
    for number in range(files):
        base, first = number * FILE_BYTES, number * ENTRIES_A_FILE
        path = directory / "data" / f"{base:020d}"
        _make(path, FILE_BYTES)
        term = 1 + number // term_every
        last_pos = base + FILE_BYTES - 8 - _ENTRY_BYTES
        for index, pos in ((first, base), (first + ENTRIES_A_FILE - 1, last_pos)):
            chain = _put(directory, path, index, term, pos, chain=chain)
        with path.open("r+b") as file:
            file.seek(FILE_BYTES - 8)
            file.write(make_blank(8))
    base, first, term = files * FILE_BYTES, files * ENTRIES_A_FILE, 1 + files // term_every
    path = directory / "data" / f"{base:020d}"
    _make(path, FILE_BYTES)
    pos = base
    for index in range(first, first + 10 + unmarked):
        chain = _put(directory, path, index, term, pos, chain=chain)
        pos += _ENTRY_BYTES
        if index == first + 9:
            mark = SyncedMark(term, index, pos, chain)
    SyncedMarkFile.open(disk, f"{directory}/syncedmark", identity.log_id).write_and_sync(mark)
    return identity


def _make(path: Path, size: int) -> None:
    with path.open("xb") as file:
        os.ftruncate(file.fileno(), size)


def _put(directory: Path, path: Path, index: int, term: int, pos: int, chain: int) -> int:
    """Write one entry and its unit. Returns the entry's chain CRC."""
    batch = encode_entries([_MESSAGE])
    chain = seal(
        batch,
        first_index=index,
        term=term,
        pos=pos,
        queue_offsets=np.array([index]),
        store_ms=BORN_MS,
        store_host=HOST,
        prev_chain=chain,
    )
    with path.open("r+b") as file:
        file.seek(pos % FILE_BYTES)
        file.write(batch.data)
    at = index * 32
    with (directory / "index" / f"{at - at % INDEX_FILE_BYTES:020d}").open("r+b") as file:
        file.seek(at % INDEX_FILE_BYTES)
        file.write(make_units(index, term, np.array([pos]), batch.sizes).tobytes())
    return chain
