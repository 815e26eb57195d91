"""Packs columns of numbers into JSON strings (format §11): base64 of the deflated differences,
little-endian.

Reading or writing a million numbers one by one in JSON blocks the interpreter for all that time.
Deflating releases it to other threads, and neighbouring values in a column are mostly similar.
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
    """Packs a column into text; `letter` is the type code of the module `array`, `q` or `i`."""
    wide = np.ascontiguousarray(column, _WIDTHS[letter])
    # Differences may wrap around; adding them up wraps back.
    return b64encode(
        zlib.compress(np.diff(wide, prepend=wide.dtype.type(0)).tobytes(), _LEVEL)
    ).decode("ascii")


def unpack(text: str, letter: str) -> NDArray[Any]:
    """The column that was packed."""
    differences = np.frombuffer(zlib.decompress(b64decode(text, validate=True)), _WIDTHS[letter])
    return np.cumsum(differences, dtype=differences.dtype)
