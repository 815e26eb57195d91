"""The audit of a real store on Spark, in one process and on a standalone cluster: findings of the
store and of clients as without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.stored_spark import cluster
from ledgermq.storage.tiered.s3 import S3ObjectStore
from tests.audit.client_cases import write_clients
from tests.tiered import test_tiered_clients
from tests.tiered.fake_store import FakeStore
from tests.tiered.s3_servers import BUCKET, Server, program, serving
from tests.tiered.stored_objects import Case, Stored
from tests.tiered.test_tiered_carrying import SIZE

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1200)]


def audit(directories: Sequence[str], server: Server, *options: str) -> tuple[int, Any]:
    where = [
        "--store",
        f"s3://{BUCKET}/p",
        "--store-endpoint",
        server.endpoint,
        "--store-credentials",
        str(server.credentials),
    ]
    command = [sys.executable, "-m", "ledgermq", "audit", *directories, "--json", *where, *options]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=600,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def fill(server: Server, fake: FakeStore) -> None:
    store = S3ObjectStore(server.place("p"))
    for key, data in fake.objects.items():
        store.put(key, data)


def test_spark_audit_of_a_store_equals_the_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped bit in a file that no replica has any more: exit status and the whole report are
    equal."""
    (tmp_path / "made").mkdir()
    case = Case(Stored(tmp_path / "made"), tmp_path / "case", monkeypatch)
    case.flip(case.key(".log", SIZE), 9000)
    home = tmp_path / "server"
    home.mkdir()
    with serving(program(home), home) as server:
        fill(server, case.store)
        status, alone = audit([str(case.directory)], server, "--engine", "local")
        there = audit([str(case.directory)], server, "--master", "local[2]")
        with cluster(tmp_path, 2) as master:
            apart = audit([str(case.directory)], server, "--master", master)
    assert there == apart == (status, alone) and status == 1
    [finding] = alone["findings"]
    assert (finding["rule"], finding["replica"]) == ("stored.digest", "store") and finding[
        "byte_from"
    ] <= 9000 < finding["byte_to"]
    assert alone["stored"][0]["compared"]["manifests"] == [[0, case.end]]


def test_spark_compares_clients_with_stored_messages_as_one_process_does(tmp_path: Path) -> None:
    """Receipts and deliveries of messages that only the store holds, one of each kind a lie. The
    worker gets the credentials of the store with its tasks."""
    clients = write_clients(tmp_path / "nodes", leave_out=2)
    row = clients.deliveries[5]
    clients.deliveries.append({**row, "delivered_ms": row["acknowledged_ms"] + 1, "attempt": 2})
    case = test_tiered_clients.Case(clients)
    receipts, acks = clients.write()
    given = ["--receipts", receipts, "--acks", acks]
    home = tmp_path / "server"
    home.mkdir()
    with serving(program(home), home) as server:
        fill(server, case.store)
        status, alone = audit(clients.directories, server, *given, "--engine", "local")
        with cluster(tmp_path, 1) as master:
            apart = audit(clients.directories, server, *given, "--master", master)
    assert apart == (status, alone) and status == 1
    assert (
        case.whole.clients is not None and alone["clients"]["windows"] == case.whole.clients.windows
    )
    assert {"client.lost", "client.redelivered"} <= {
        finding["rule"] for finding in alone["findings"]
    }
    assert (
        alone["clients"]["messages"]["trimmed"] == alone["clients"]["messages"]["unreadable"] == 0
    )
