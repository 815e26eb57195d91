"""The audit of a real store on Spark, in one process and on a standalone cluster: verdict, findings and coverage of the local engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.stored_spark import cluster
from ledgermq.storage.tiered.s3 import S3ObjectStore
from tests.tiered.s3_servers import BUCKET, Server, program, serving
from tests.tiered.stored_objects import Case, Stored
from tests.tiered.test_tiered_carrying import SIZE

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1200)]


def audit(case: Case, server: Server, *engine: str) -> tuple[int, Any]:
    where = ["--store", f"s3://{BUCKET}/p", "--store-endpoint", server.endpoint, "--store-credentials", str(server.credentials)]
    command = [sys.executable, "-m", "ledgermq", "audit", str(case.directory), "--json", *where, *engine]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, timeout=600)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_spark_finds_in_the_store_what_one_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped bit in a file that no replica has any more: exit status and the whole report are equal."""
    (tmp_path / "made").mkdir()
    case = Case(Stored(tmp_path / "made"), tmp_path / "case", monkeypatch)
    case.flip(case.key(".log", SIZE), 9000)
    home = tmp_path / "server"
    home.mkdir()
    with serving(program(home), home) as server:
        store = S3ObjectStore(server.place("p"))
        for key, data in case.store.objects.items():
            store.put(key, data)
        status, alone = audit(case, server, "--engine", "local")
        there = audit(case, server, "--master", "local[2]")
        with cluster(tmp_path, 2) as master:
            apart = audit(case, server, "--master", master)
    assert there == apart == (status, alone) and status == 1
    [finding] = alone["findings"]
    assert (finding["rule"], finding["replica"]) == ("stored.digest", "store") and finding["byte_from"] <= 9000 < finding["byte_to"]
    assert alone["stored"][0]["compared"]["manifests"] == [[0, case.end]]
