"""The checksum in small JSON files (docs/format.md §9): under the key `crc32c` that of the object's
other keys, written as ASCII with sorted keys and without insignificant space. How the file itself
is laid out does not matter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import crc32c

CHECKSUM = "crc32c"


class BadChecksum(ValueError):
    """The object does not have the checksum it claims."""


def canonical(value: Mapping[str, Any]) -> bytes:
    """The text that is summed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its checksum."""
    assert CHECKSUM not in value, f"the key {CHECKSUM} is the checksum's own"
    return {**value, CHECKSUM: crc32c.crc32c(canonical(value))}


def opened(value: object, *, required: bool = True) -> dict[str, Any]:
    """The object without its checksum. Not `required`: files of former versions have none. Raises
    ValueError, which is BadChecksum for an object."""
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    rest = {key: field for key, field in value.items() if key != CHECKSUM}
    if (CHECKSUM in value or required) and value.get(CHECKSUM) != crc32c.crc32c(canonical(rest)):
        raise BadChecksum(
            "it does not have the checksum it claims: it was damaged or edited by hand"
        )
    return rest
