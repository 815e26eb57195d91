"""What the commands about users and certificates refuse before they ask anybody, and what they leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, stdout, and the error line."""
    status = cli.run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err.strip().splitlines()[-1] if err.strip() else ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["user", "create", "a", "--endpoints", "10.0.0.1:8081"], "would travel to 10.0.0.1 unencrypted; use --tls"),
        (["user", "rotate", "a", "--endpoints", "localhost:8081;mq.example.com:8081"], "to mq.example.com unencrypted"),
        (["user", "create", "a", "--role-only", "--secret-file", "x"], "a role has no secret"),
        (["user", "create", "a", "--secret-file", "/nowhere/secret"], "/nowhere/secret cannot be read"),
        (["user", "create", "a", "--cluster-secret", "/nowhere/secret"], "/nowhere/secret cannot be read"),
        (["user", "grant", "a"], "there is nothing to change"),
        (["user", "rotate", "a", "--end", "--secret-file", "x"], "--end does not set a new secret"),
        (["user", "delete", "a"], "cannot be undone; confirm with --yes"),
        (["status", "--ca", "x"], "--ca has no meaning without --tls"),
        (["status", "--tls", "--ca", "/nowhere/ca.pem"], "/nowhere/ca.pem cannot be read"),
        (["status", "--certificate", "x", "--certificate-key", "y"], "--certificate has no meaning without --tls"),
        (["status", "--tls", "--certificate", "x"], "only one of --certificate and --certificate-key"),
        (["certificates", "tls", "n1"], "is not NODE=HOST"),
        (["certificates", "tls", "n1=a,,b"], "is not NODE=HOST"),
        (["certificates", "tls", "../n1=a"], "is not NODE=HOST"),
    ],
)
def test_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], words: str
) -> None:
    """Exit 64 and what to do; nothing was written."""
    monkeypatch.chdir(tmp_path)
    status, out, error = run(capsys, *arguments)
    assert (status, out) == (64, "") and words in error and not list(tmp_path.iterdir())


def test_half_of_the_credentials_is_a_mistake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable without the other is forgotten, not meant."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "alice")
    monkeypatch.delenv("LEDGERMQ_SECRET_KEY", raising=False)
    assert run(capsys, "status")[0] == 64


def test_certificates_are_made_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The first run makes, the second keeps; a new node gets one of the same authority."""
    assert run(capsys, "certificates", tmp_path / "tls", "n1=localhost")[1] == f"made: {tmp_path}/tls/n1.pem\n"
    kept = run(capsys, "certificates", tmp_path / "tls", "n1=localhost", "n2=10.0.0.2,mq2")[1]
    assert kept == f"kept: {tmp_path}/tls/n1.pem\nmade: {tmp_path}/tls/n2.pem\n"
