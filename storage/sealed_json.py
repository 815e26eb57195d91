"""Small checksummed JSON files (format §9): one object, sorted keys, no insignificant space, ASCII, plus its own `crc32c`.

This module does not know the meaning of any key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import crc32c

from ledgermq.storage.disk import Disk
from ledgermq.storage.errors import Damaged

CHECKSUM = "crc32c"


def encode(value: Mapping[str, Any]) -> bytes:
    """The text of `value` with its checksum."""
    assert CHECKSUM not in value, f"the key {CHECKSUM} is the checksum's own"
    return _text({**value, CHECKSUM: crc32c.crc32c(_text(value))})


def decode(data: bytes, path: str) -> dict[str, Any]:
    """The object without its checksum. Raises Damaged; `path` is for the message."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise Damaged(f"{path} is not JSON ({error}): it was damaged or edited by hand") from error
    if not isinstance(value, dict) or value.pop(CHECKSUM, None) != crc32c.crc32c(_text(value)):
        raise Damaged(f"{path} does not have the checksum it claims: it was damaged or edited by hand")
    return value


def read(disk: Disk, path: str) -> dict[str, Any]:
    """Raises FileNotFoundError, Damaged."""
    return decode(disk.read_file(path), path)


def write(disk: Disk, path: str, value: Mapping[str, Any]) -> None:
    """Replace the file atomically and durably."""
    disk.replace_file(path, encode(value))


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
