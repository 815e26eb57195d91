"""Defensive decoding of values in a snapshot: JSON objects with exactly the required keys, and
columns of integers as base64 of deflated differences (docs/format.md §11). The audit's own decoder;
every error is a ValueError.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

ROWS_MAX = 1 << 26
"""No broker group holds this many rows: a column that claims more is damaged, and is not
unpacked."""
_WIDTHS: dict[str, np.dtype[Any]] = {"q": np.dtype("<i8"), "i": np.dtype("<i4")}


def table(value: Any, *keys: str) -> dict[str, Any]:
    """A JSON object; if `keys` are given, it has exactly these. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} is not an object")
    if keys and value.keys() != set(keys):
        raise ValueError(
            f"an object has the keys {', '.join(sorted(value)) or '(none)'} instead of"
            f" {', '.join(keys)}"
        )
    return value


def unpack(text: Any, letter: str) -> list[int]:
    """The numbers of a column of i64 (`q`) or i32 (`i`). Raises ValueError for a text that no
    writer produces."""
    if not isinstance(text, str):
        raise ValueError("a column must be text")
    width = _WIDTHS[letter]
    unpacker = zlib.decompressobj()
    try:
        # b64decode raises binascii.Error, which is a ValueError. It ignores the bits of the last
        # character that belong to no byte.
        packed = b64decode(text, validate=True)
        if b64encode(packed).decode() != text:
            raise ValueError("a column is no base64 that a writer produces")
        raw = unpacker.decompress(packed, ROWS_MAX * width.itemsize)
    except zlib.error as error:
        raise ValueError(f"a column cannot be unpacked: {error}") from error
    if not unpacker.eof or unpacker.unused_data or len(raw) % width.itemsize:
        raise ValueError("a column does not end where it should")
    numbers: list[int] = np.cumsum(np.frombuffer(raw, width), dtype=width).tolist()
    return numbers


def unpack_all(columns: Mapping[str, Any], letters: Mapping[str, str]) -> list[list[int]]:
    """Several columns of equal length, in the order of `letters`. Raises ValueError."""
    unpacked = [unpack(columns.get(name), letter) for name, letter in letters.items()]
    if len({len(column) for column in unpacked}) > 1:
        raise ValueError("columns that belong together differ in length")
    return unpacked
