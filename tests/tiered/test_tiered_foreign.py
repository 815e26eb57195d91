"""A place in an object store that others use too: their objects, and what a server answers when it
refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from ledgermq.audit.reading import objects
from ledgermq.node.frontend.security import minting
from ledgermq.storage.files.errors import Unusable
from ledgermq.storage.tiered import manifests
from ledgermq.storage.tiered.ports import AccessDenied, Answered, ObjectMissing, StoreFailure
from ledgermq.storage.tiered.s3 import S3ObjectStore, S3Place, split_url
from tests.tiered.scripted_s3 import ScriptedS3, refusal, scripted_s3

OURS = [
    "controller/n1.json",
    "g1/log/00000000000000000000.json",
    "g1/log/begins/00000000000000065536",
    "g1/log/log.json",
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ScriptedS3]:
    with scripted_s3(tmp_path) as running:
        running.objects = {f"cluster/{key}": key.encode() for key in OURS}
        yield running


@pytest.mark.parametrize(
    "foreign",
    [
        ("old//x",),
        ("/x",),
        ("//",),
        ("old/./x", "old/../x", "older//"),
        ("g1//x",),
        ("g1/log/begins//x", "old//x"),
        ("g1/log//x", "controller/../n1.json"),
    ],
)
def test_a_foreign_key_that_is_no_path_hides_no_object(
    server: ScriptedS3, foreign: tuple[str, ...]
) -> None:
    """With an empty name, `.` or `..`: no path of a file system, and a legal key."""
    server.objects |= {f"cluster/{key}": b"foreign" for key in foreign}
    store = server.store("cluster")
    objects.use(
        objects.StoreAccess(
            "s3://ledger/cluster",
            server.endpoint,
            credentials=str(server.directory / "credentials"),
        )
    )
    assert (
        [key for key in store.list("") if key in OURS]
        == OURS
        == [key for key in sorted(objects.listing()) if key in OURS]
    )
    assert store.list("controller") == ["controller/n1.json"]
    assert store.list("g1/log") == OURS[1:]
    assert store.list("g1/log/begins") == ["g1/log/begins/00000000000000065536"]


def test_a_manifest_has_its_key_and_no_other() -> None:
    """Nor a name without its ending, nor a copy elsewhere."""
    key = manifests.manifest_key("g1/log", 65536)
    others = [
        key.removesuffix(".json"),
        key.removeprefix("g1/log/"),
        f"g1/log/old/{key.rpartition('/')[2]}",
        f"{key}.json",
        "g1/log/65536.json",
    ]
    assert [manifests.base_of_manifest("g1/log", each) for each in (key, *others)] == [
        65536,
        *[None] * 5,
    ]


def test_an_answer_that_is_too_short_is_no_object(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that begins in an object and ends behind it: a server sends what it has."""
    store = server.store("cluster")

    class Short:
        def to_bytes(self) -> bytes:
            return b"abc"

    monkeypatch.setattr(obstore, "get_range", lambda *_, **__: Short())
    assert store.read("g1/x", 5, 3) == b"abc"
    with pytest.raises(ObjectMissing, match="g1/x ends at byte 8"):
        store.read("g1/x", 5, 4)


def test_unlistable_foreign_key_is_named(server: ScriptedS3) -> None:
    """A folder with such a key, and one more further below: nothing is left out in silence."""
    server.objects |= {"cluster/g1/log//x": b"", "cluster/g1/log/begins//x": b""}
    with pytest.raises(
        StoreFailure, match=r"a foreign object has a key that is no path; remove it .*begins//x"
    ):
        server.store("cluster").list("g1/log")


def test_an_empty_object_for_a_folder_is_not_listed_below_it(server: ScriptedS3) -> None:
    """As web consoles make it."""
    server.objects |= {"cluster/": b"", "cluster/controller/": b"", "cluster/g1/log/": b""}
    store = server.store("cluster")
    assert store.list("controller") == ["controller/n1.json"]
    assert store.list("g1/log") == OURS[1:]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "RequestTimeTooSkewed", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (401, "AccountProblem", AccessDenied),
        (403, "InvalidObjectState", Answered),
        (400, "ExpiredToken", Answered),
        (501, "NotImplemented", StoreFailure),
        (416, "InvalidRange", ObjectMissing),
        (416, "Unsatisfiable", ObjectMissing),
        (400, "InvalidRange", ObjectMissing),
    ],
)
def test_error_code_and_message_of_the_server_are_raised(
    server: ScriptedS3, status: int, code: str, kind: type[Exception]
) -> None:
    """The code and the sentence of the server, however long the key is: a clock that is off, a
    wrong key, and an archived object."""
    server.instead = lambda key: refusal(status, code, f"the sentence for {code}")
    store = server.store("production/cluster-a")
    key = f"g1/23eeaed1-6e89-58b6-abc8-78f3ae7c60dc/00000000000000262144-{'ee8e7509' * 8}.log"
    for ask in (lambda: store.get(key), lambda: store.list("g1")):
        with pytest.raises(StoreFailure) as raised:
            ask()
        assert type(raised.value) is kind
        assert kind is ObjectMissing or f"{status} {code}: the sentence for {code}" in str(
            raised.value
        )
    objects.use(
        objects.StoreAccess(
            "s3://ledger/production",
            server.endpoint,
            credentials=str(server.directory / "credentials"),
        )
    )
    if status != 416:
        with pytest.raises(objects.StoreLost, match=f"{status} {code}: the sentence for {code}"):
            objects.read_object(key)


def test_an_answer_that_is_no_error_of_the_api_is_told_as_it_is(server: ScriptedS3) -> None:
    server.instead = lambda key: (403, b"<html>the proxy does not like you</html>")
    with pytest.raises(AccessDenied, match="403 Forbidden: <html>the proxy does not like you"):
        server.store("x").get("y")


@pytest.mark.parametrize("prefix", ["a//b", "a/./b", "a/../b", ".", "a/.."])
def test_a_prefix_is_a_path(prefix: str) -> None:
    with pytest.raises(Unusable, match="between its slashes"):
        split_url(f"s3://bucket/{prefix}")
    with pytest.raises(objects.BadStore, match="between its slashes"):
        objects.StoreAccess(f"s3://bucket/{prefix}").open()
    assert split_url("s3://bucket/a/b/") == ("bucket", "a/b") and split_url("s3://bucket//") == (
        "bucket",
        "",
    )


def test_a_server_with_an_authority_of_its_own(tmp_path: Path) -> None:
    """The setting adds it to those that the machine trusts; without it the server is not
    believed."""
    minting.ensure(tmp_path / "tls", {"store": ["127.0.0.1"]})
    ca = tmp_path / "tls/ca.pem"
    with scripted_s3(tmp_path, (tmp_path / "tls/store.pem", tmp_path / "tls/store.key")) as server:
        server.objects["x/y"] = b"1"
        with pytest.raises(StoreFailure):
            server.store("x").get("y")
        assert server.store("x", str(ca)).get("y") == b"1"
        objects.use(
            objects.StoreAccess(
                "s3://ledger/x",
                server.endpoint,
                credentials=str(tmp_path / "credentials"),
                ca=ca.read_text(),
            )
        )
        assert objects.read_object("y") == b"1"
    for content, said in ((None, "cannot be read"), (b"", "no certificate in PEM")):
        path = tmp_path / "wrong"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(Unusable, match=said):
            S3ObjectStore(S3Place("s3://ledger/x", "https://127.0.0.1:9", ca_file=str(path)))
    with pytest.raises(objects.BadStore, match="no certificate in PEM"):
        objects.StoreAccess("s3://ledger/x", ca="x").open()
