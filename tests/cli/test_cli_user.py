"""What the commands about users and certificates refuse before they ask anybody, and what they
leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from ledgermq import cli
from ledgermq.proto import admin_pb2 as pb
from tests.client.fake_cluster import admin_status, fake_nodes


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, stdout, and the error line."""
    status = cli.run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err.strip().splitlines()[-1] if err.strip() else ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["user", "create", "a", "--endpoints", "10.0.0.1:8081"],
            "would travel to 10.0.0.1 unencrypted; use --tls",
        ),
        (
            ["user", "rotate", "a", "--endpoints", "localhost:8081;mq.example.com:8081"],
            "to mq.example.com unencrypted",
        ),
        (["user", "create", "a", "--role-only", "--secret-file", "x"], "a role has no secret"),
        (
            ["user", "create", "a", "--secret-file", "/nowhere/secret"],
            "/nowhere/secret cannot be read",
        ),
        (
            ["user", "create", "a", "--cluster-secret", "/nowhere/secret"],
            "/nowhere/secret cannot be read",
        ),
        (["user", "grant", "a"], "there is nothing to change"),
        (["user", "rotate", "a", "--end", "--secret-file", "x"], "--end does not set a new secret"),
        (["user", "delete", "a"], "cannot be undone; confirm with --yes"),
        (["status", "--ca", "x"], "--ca has no meaning without --tls"),
        (["status", "--tls", "--ca", "/nowhere/ca.pem"], "/nowhere/ca.pem cannot be read"),
        (
            ["status", "--certificate", "x", "--certificate-key", "y"],
            "--certificate has no meaning without --tls",
        ),
        (
            ["status", "--tls", "--certificate", "x"],
            "only one of --certificate and --certificate-key",
        ),
        (["certificates", "tls", "n1"], "is not NODE=HOST"),
        (["certificates", "tls", "n1=a,,b"], "is not NODE=HOST"),
        (["certificates", "tls", "n1=a:8081"], "is not NODE=HOST"),
        (["certificates", "tls", "n1=[::1"], "is not NODE=HOST"),
        (["certificates", "tls", "../n1=a"], "is not NODE=HOST"),
    ],
)
def test_refused_user_command_sends_no_call_and_writes_no_file(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    """Exit 64 and what to do; nothing was written."""
    monkeypatch.chdir(tmp_path)
    status, out, error = run(capsys, *arguments)
    assert (status, out) == (64, "") and words in error and not list(tmp_path.iterdir())


def test_half_of_the_credentials_is_a_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One variable without the other is forgotten, not meant."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "alice")
    monkeypatch.delenv("LEDGERMQ_SECRET_KEY", raising=False)
    assert run(capsys, "status")[0] == 64


def test_certificates_are_made_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The first run makes, the second keeps; a new node gets one of the same authority."""
    assert (
        run(capsys, "certificates", tmp_path / "tls", "n1=localhost")[1]
        == f"made: {tmp_path}/tls/n1.pem\n"
    )
    kept = run(capsys, "certificates", tmp_path / "tls", "n1=localhost", "n2=10.0.0.2,mq2")[1]
    assert kept == f"kept: {tmp_path}/tls/n1.pem\nmade: {tmp_path}/tls/n2.pem\n"


def test_certificates_of_an_interrupted_run_are_completed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The run had written the authority's key and no certificate. A key that is missing is an
    error: no certificate could replace it."""
    assert run(capsys, "certificates", tmp_path, "n1=localhost")[0] == 0
    (tmp_path / "ca.pem").unlink()
    key = (tmp_path / "ca.key").read_bytes()
    assert run(capsys, "certificates", tmp_path, "n1=localhost", "n2=localhost")[0] == 0
    assert (tmp_path / "ca.key").read_bytes() == key
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    for name in ("n1", "n2"):
        x509.load_pem_x509_certificate(
            (tmp_path / f"{name}.pem").read_bytes()
        ).verify_directly_issued_by(authority)
    (tmp_path / "ca.key").unlink()
    status, _, error = run(capsys, "certificates", tmp_path, "n1=localhost")
    assert status == 64 and "ca.pem without ca.key; restore the key" in error


@pytest.mark.parametrize(("unsigned", "noted"), [(20000, True), (40100, False), (40300, False)])
def test_creating_a_user_says_that_authentication_is_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, unsigned: int, noted: bool
) -> None:
    """Otherwise the user looks like protection. The result on stdout stays the same; the question
    is asked without a signature."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", "secret-of-root-0123")
    with fake_nodes() as (node,):
        answer = pb.CreateUserResponse(
            status=admin_status(), created=True, user=pb.UserInfo(name="billing", secrets=1)
        )
        node.answers("CreateUser", answer)
        node.answers(
            "ListUsers",
            pb.ListUsersResponse(status=admin_status(unsigned, "no"), users=[answer.user]),
        )
        assert cli.run(["user", "create", "billing", "--endpoints", node.endpoint]) == 0
        assert "authorization" not in dict(node.metadata)
    out, err = capsys.readouterr()
    assert out.startswith("created: user billing\naccess key: billing\nsecret key: ")
    assert ("authentication is off" in err) is noted
