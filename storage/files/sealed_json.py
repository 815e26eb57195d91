"""Small checksummed JSON files (format §9): one object, sorted keys, no insignificant space, ASCII,
plus its own `crc32c`.

This module does not know the meaning of any key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ledgermq.proto.json_checksum import BadChecksum, canonical, opened, sealed
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.files.ports import Disk


def encode(value: Mapping[str, Any]) -> bytes:
    """The text of `value` with its checksum."""
    return canonical(sealed(value))


def decode(data: bytes, path: str) -> dict[str, Any]:
    """The object without its checksum. Raises Damaged; `path` is for the message."""
    try:
        return opened(json.loads(data))
    except BadChecksum as error:
        raise Damaged(
            f"{path} does not have the checksum it claims: it was damaged or edited by hand"
        ) from error
    except ValueError as error:
        raise Damaged(f"{path} is not JSON ({error}): it was damaged or edited by hand") from error


def read(disk: Disk, path: str) -> dict[str, Any]:
    """Raises FileNotFoundError, Damaged."""
    return decode(disk.read_file(path), path)


def write(disk: Disk, path: str, value: Mapping[str, Any]) -> None:
    """Replace the file atomically and durably."""
    disk.replace_file(path, encode(value))
