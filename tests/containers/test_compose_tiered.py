"""The profile `tiered` of compose.yaml for real: sealed log files reach the store, and the audit of
volumes and store passes.

Needs a container engine; `.ci/with-engine` provides one and a base image (BASE_IMAGE). Needs also a
Go distribution, from which the test makes the image that builds the store.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import wait_for
from tests.containers.engine import NODES, OPENER, Project, built, docker, engine_missing

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(1800)]

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
GO_IMAGE = "ledgermq-test-go"
FILE_BYTES = 64 << 20
LINES, LINE_BYTES = 100, 1 << 20
READ = 'direction="read"'
STORE = ("--store", "s3://ledger/compose", "--store-endpoint", "http://store:7070")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """Nodes and store, as the comment in compose.yaml starts them, and a topic of which more than
    one log file was sent."""
    reason = engine_missing()
    if reason is not None:
        pytest.skip(reason)
    go, base = shutil.which("go"), os.environ.get("BASE_IMAGE")
    if go is None or base is None or not CERTIFICATES.is_file():
        pytest.skip("needs a Go distribution, BASE_IMAGE, and the certificates of a Debian")
    root = subprocess.run(
        [go, "env", "GOROOT"], capture_output=True, text=True, check=True
    ).stdout.strip()
    context = tmp_path / "go"
    shutil.copytree(
        root, context / "go", symlinks=True, ignore=shutil.ignore_patterns("test", "doc")
    )
    shutil.copy(CERTIFICATES, context / "certificates.crt")
    (context / "Dockerfile").write_text(
        f"FROM {base}\nCOPY certificates.crt {CERTIFICATES}\nCOPY go /usr/local/go\nENV"
        " PATH=/usr/local/go/bin:/usr/bin:/bin\n"
    )
    docker("build", "--tag", GO_IMAGE, str(context))
    with built(Project({"LEDGERMQ_CONFIG": "node-tiered.yaml", "GO_IMAGE": GO_IMAGE})) as project:
        project.run("--profile", "tiered", "up", "--build", "-d", timeout=1200)
        project.ledgermq("status", "--wait", "60s", "--strict")
        project.ledgermq("topic", "create", "orders", "--queues", "1")
        lines = tmp_path / "lines"
        lines.write_text("".join(f"order {n} {'x' * LINE_BYTES}\n" for n in range(LINES)))
        sent = json.loads(
            project.ledgermq("send", "--topic", "orders", "--file", str(lines), "--json")
        )
        assert sent["acknowledged"] == LINES
        yield project


def read_back(node: str) -> float:
    """The bytes of log files that a node has read from the store."""
    with OPENER.open(f"http://127.0.0.1:{NODES[node][1]}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("ledgermq_tiered_bytes_total{") and READ in line
    )


def test_sealed_files_reach_the_store_and_the_audit_of_volumes_and_store_passes(
    project: Project,
) -> None:
    """Every node has read the stored file back; the messages come from the nodes as ever; the audit
    compares the store with the volumes. A consumer whose connection breaks gets what it did not
    commit once more."""
    wait_for(
        lambda: all(read_back(node) >= FILE_BYTES for node in NODES), 180, "a file in the store"
    )
    bodies = project.ledgermq(
        "consume", "--topic", "orders", "--group", "shipping", "--until-empty", "3s"
    ).splitlines()
    assert {int(body.split()[1]) for body in bodies} == set(range(LINES))
    project.run("stop", *NODES)
    audit = project.run(
        "--profile",
        "audit",
        "run",
        "--rm",
        "audit",
        "audit",
        "--volumes",
        "--engine",
        "local",
        *STORE,
        "--json",
    )
    found = json.loads(audit.stdout)
    assert found["verdict"] == "PASS", found["reasons"]
    assert [
        stored
        for stored in found["stored"]
        if stored["compared"]["manifests"] == [[0, stored["files"] * FILE_BYTES]]
    ]
