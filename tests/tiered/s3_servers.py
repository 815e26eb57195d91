"""Servers with the S3 API for the tests: each runs on loopback, with one bucket `ledger` and one
pair of keys."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledgermq.node.process.local import free_ports
from ledgermq.storage.tiered.s3 import S3Place

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUCKET = "ledger"
KEY, SECRET = "tester", "tester-secret-0123456789"
BUILD_S = 900
STARTS_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `directory` holds its buckets as folders of plain files."""

    endpoint: str
    directory: Path
    credentials: Path

    def place(self, prefix: str = "") -> S3Place:
        return S3Place(
            f"s3://{BUCKET}/{prefix}",
            self.endpoint,
            credentials_file=str(self.credentials),
            timeout_s=5.0,
        )


def write_credentials(path: Path, key: str = KEY, secret: str = SECRET) -> Path:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    path.chmod(0o600)
    return path


def program(home: Path) -> Path:
    """versitygw, as `VERSITYGW` names it, or built from the proxy for modules of Go."""
    if found := os.environ.get("VERSITYGW"):
        return Path(found)
    if shutil.which("go") is None:
        pytest.skip("no go here")
    command, environment = ["go", "install", VERSITYGW], {**os.environ, "GOBIN": str(home)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return home / "versitygw"


def tiered_settings(home: Path, port: int) -> dict[str, str]:
    """The section `tiered` of nodes that use a server of `serving`."""
    return {
        "url": f"s3://{BUCKET}/cluster",
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials_file": str(write_credentials(home / "credentials")),
        "check_ms": "200ms",
        "timeout_ms": "5s",
    }


@contextmanager
def serving(program: Path, home: Path, port: int | None = None) -> Iterator[Server]:
    """A server whose buckets lie below `home`, at a free port unless one is given; it ends with the
    block."""
    if port is None:
        port = free_ports(1)[0].client_port
    buckets = home / "buckets"
    (buckets / BUCKET).mkdir(parents=True, exist_ok=True)
    credentials = write_credentials(home / "credentials")
    at = f"127.0.0.1:{port}"
    environment = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    with (home / "server.log").open("wb") as out:
        process = subprocess.Popen(
            [program, "--port", at, "posix", buckets], env=environment, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (
                home / "server.log"
            ).read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield Server(f"http://{at}", buckets / BUCKET, credentials)
    finally:
        process.kill()
        process.wait()
