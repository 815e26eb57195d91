"""The controller's files of a node as one object, which whoever may write to the store may have
written."""

from __future__ import annotations

import base64
import zlib

import pytest

from ledgermq.storage.files import sealed_json
from ledgermq.storage.files.errors import Damaged
from ledgermq.storage.tiered import controller_files
from ledgermq.storage.tiered.controller_files import ControllerFiles, pack, unpack

HELD = ControllerFiles("c", "n1", 7, {"state.json": b"{}" * 50, "journal": b""})


def test_files_come_back() -> None:
    assert unpack(pack(HELD), "key") == HELD


@pytest.mark.parametrize(
    "packed",
    [zlib.compress(bytes(101)), zlib.compress(b"x")[:-1], zlib.compress(b"x") + b"y", b"x"],
)
def test_a_file_that_is_no_stream_or_becomes_too_large_is_damage(
    packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not decompressed beyond the limit, whatever the object's checksum."""
    monkeypatch.setattr(controller_files, "FILE_BYTES_MAX", 100)
    tree = {
        "v": 1,
        "cluster_id": "c",
        "node": "n1",
        "made_ms": 7,
        "files": {"a": base64.b64encode(packed).decode()},
    }
    with pytest.raises(Damaged, match="key lacks fields"):
        unpack(sealed_json.encode(tree), "key")
    assert unpack(pack(HELD), "key") == HELD
