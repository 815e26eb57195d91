"""Columns of numbers as JSON values (format §11): base64 of the deflated differences, little-endian.

A list of a million numbers in JSON holds the interpreter for as long as it takes to write and read them one by one; deflating lets others
run, and what lies beside each other in a column is mostly alike.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WIDTHS = {"q": "<i8", "i": "<i4"}
_LEVEL = 1


def pack(column: NDArray[Any], letter: str) -> str:
    """The text of a column; `letter` as the module `array` knows it."""
    wide = np.ascontiguousarray(column, _WIDTHS[letter])
    # Differences wrap around where they must, and back when they are added up.
    return b64encode(zlib.compress(np.diff(wide, prepend=wide.dtype.type(0)).tobytes(), _LEVEL)).decode("ascii")


def unpack(text: str, letter: str) -> NDArray[Any]:
    """What was packed."""
    differences = np.frombuffer(zlib.decompress(b64decode(text, validate=True)), _WIDTHS[letter])
    return np.cumsum(differences, dtype=differences.dtype)
