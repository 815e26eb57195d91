"""Finding one entry by its index through the index files: a hint that the caller verifies with the
log. Nothing here judges."""

from __future__ import annotations

import numpy as np

from ledgermq.audit.reading.decode import (
    HEADER,
    HEADER_BYTES,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    read_space,
)
from ledgermq.audit.reading.walk import LogFile


def header_at(task: LogFile, index: int) -> tuple[int, tuple[int, ...]] | None:
    """Position and header fields of an entry, found through the index files; None if they do not
    lead to it."""
    if task.key:
        return None
    try:
        data = read_space(
            task.index_directory,
            task.index_file_bytes,
            index * INDEX_UNIT_BYTES,
            (index + 1) * INDEX_UNIT_BYTES,
        )
        if len(data) < INDEX_UNIT_BYTES:
            return None
        unit = np.frombuffer(data, INDEX_UNIT)[0]
        pos = int(unit["pos"])
        if pos < 0:
            return None
        raw = read_space(
            f"{task.root}/{task.log_folder}/data", task.data_file_bytes, pos, pos + HEADER_BYTES
        )
    except OSError:
        return None
    if len(raw) < HEADER_BYTES:
        return None
    fields = HEADER.unpack(raw)
    return (pos, fields) if fields[2] == index and fields[4] == pos else None


def stored_chain(task: LogFile, index: int) -> int | None:
    """The chain CRC word of an entry, found through the index files."""
    header = header_at(task, index)
    return None if header is None else header[1][6]
