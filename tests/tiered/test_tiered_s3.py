"""The object store port over the S3 API: the conformance suite against a real server, errors, and
credentials that end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.storage.files.errors import Unusable
from ledgermq.storage.tiered import s3
from ledgermq.storage.tiered.ports import PART_BYTES, AccessDenied, StoreFailure
from ledgermq.storage.tiered.s3 import S3ObjectStore, S3Place
from tests.tiered.s3_servers import Server, program, serving, write_credentials
from tests.tiered.store_conformance import StoreConformance

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("s3")
    with serving(program(home), home) as running:
        yield running


class TestS3(StoreConformance):
    @pytest.fixture
    def store(self, server: Server) -> S3ObjectStore:
        """Every test has a prefix of its own."""
        return S3ObjectStore(server.place(uuid.uuid4().hex))


def test_wrong_keys_are_refused_and_renewed_ones_are_read(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that the store refuses are an AccessDenied that names no secret; the next request after
    their time reads the file again."""
    monkeypatch.setattr(s3, "CREDENTIALS_S", 0)
    file = write_credentials(tmp_path / "credentials", secret="another-secret")
    store = S3ObjectStore(
        S3Place("s3://ledger/renewed", server.endpoint, credentials_file=str(file))
    )
    with pytest.raises(AccessDenied) as refused:
        store.put("x", b"1")
    assert "another-secret" not in str(refused.value)
    write_credentials(file)
    store.put("x", b"2")
    assert store.get("x") == b"2"
    file.unlink()
    with pytest.raises(AccessDenied, match="cannot be read"):
        store.get("x")


def test_a_server_that_is_not_there_is_a_failure_within_its_time() -> None:
    """Nothing listens at port 9 of this machine."""
    store = S3ObjectStore(S3Place("s3://ledger/x", "http://127.0.0.1:9", timeout_s=0.5))
    with pytest.raises(StoreFailure):
        store.put("x", b"1")


def test_a_bucket_that_does_not_exist_is_an_error(server: Server) -> None:
    place = S3Place("s3://nowhere/x", server.endpoint, credentials_file=str(server.credentials))
    with pytest.raises(StoreFailure):
        S3ObjectStore(place).put_parts("x", iter([bytes(PART_BYTES + 1)]))


@pytest.mark.parametrize(
    "url", ["", "http://bucket/x", "s3://", "s3:/bucket", "bucket", "s3://b/x?y", "s3://b/x#y"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(Unusable, match="s3://bucket/prefix"):
        S3ObjectStore(S3Place(url))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no section"),
        ("[other]\naws_access_key_id = a\n", "no section"),
        ("[default]\naws_access_key_id = a\n", "lacks"),
        ("not ini", "no section"),
    ],
)
def test_unusable_credentials_are_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(text)
    with pytest.raises(AccessDenied, match=said):
        s3.read_credentials(str(path))


def test_credentials_may_be_temporary(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b%c\naws_session_token = t==\n"
    )
    assert s3.read_credentials(str(path)) == {
        "access_key_id": "a",
        "secret_access_key": "b%c",
        "token": "t==",
    }
