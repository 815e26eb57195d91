"""The key with which a node signs checkpoints: made once, readable by its owner alone, and never
replaced without an operator."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.proofs.ed25519 import verified
from ledgermq.node.frontend.proofs.signing_key import FILE, SigningKey, load_or_make
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode
from ledgermq.storage.files import sealed_json


def loaded(directory: Path, node: str = "n1", cluster: str = "c1", now_ms: int = 5) -> SigningKey:
    return load_or_make(directory, node, cluster, now_ms)


def test_the_key_is_made_once_and_signs(tmp_path: Path) -> None:
    key, again = loaded(tmp_path), loaded(tmp_path, now_ms=9)
    assert (
        again.verifier_key == key.verifier_key
        and again.created_ms == 5
        and key.verifier_key.name == "n1.c1"
    )
    assert verified(key.verifier_key.public, again.sign(b"text"), b"text")
    assert not verified(key.verifier_key.public, key.sign(b"text"), b"other")
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600 and [
        path.name for path in tmp_path.iterdir()
    ] == [FILE]


def test_without_the_file_there_is_another_key(tmp_path: Path) -> None:
    key = loaded(tmp_path)
    (tmp_path / FILE).unlink()
    assert loaded(tmp_path).verifier_key != key.verifier_key


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (None, ExitCode.DAMAGED, "cannot be read"),
        ({"node": "n2"}, ExitCode.DATA_UNUSABLE, "belongs to node n2 of cluster c1"),
        ({"cluster_id": "c2"}, ExitCode.DATA_UNUSABLE, "belongs to node n1 of cluster c2"),
        ({"v": 2}, ExitCode.WRONG_VERSION, "has version 2"),
        ({"private": "ab"}, ExitCode.DAMAGED, "cannot be read"),
    ],
    ids=["flipped", "node", "cluster", "version", "short"],
)
def test_a_file_that_is_not_this_nodes_key_ends_the_start(
    tmp_path: Path, changes: dict[str, Any] | None, code: ExitCode, said: str
) -> None:
    """It stays as it is: an operator decides whether the key is given up."""
    loaded(tmp_path)
    path = tmp_path / FILE
    text = path.read_bytes()
    if changes is None:
        path.write_bytes(text.replace(b'"created_ms":5', b'"created_ms":6'))
    else:
        value = json.loads(text)
        del value["crc32c"]
        path.write_bytes(sealed_json.encode({**value, **changes}))
    before = path.read_bytes()
    with pytest.raises(FatalError, match=said) as ended:
        loaded(tmp_path)
    assert ended.value.exit_code == code and path.read_bytes() == before
