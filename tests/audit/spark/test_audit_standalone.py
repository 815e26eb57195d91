"""The same audit on a Spark cluster: a standalone master and a worker as processes of this machine,
made from the installed packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark import cloudpickle

from ledgermq.audit.spark import standalone
from ledgermq.audit.spark.source import VIEWS, WorkReader
from ledgermq.audit.spark.views.view import struct_of
from ledgermq.node.process.local import free_ports
from tests.audit.damage_cases import NODES, flip, history, write_cluster

ON_LOOPBACK = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}


def test_standalone_command_starts_the_spark_role_with_our_java_and_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the Java that the audit uses, this Python for its tasks, and everything else as it was
    given."""
    words, environment = standalone.command("worker", ["spark://here:7077", "--cores", "3"])
    assert words[1] == "org.apache.spark.deploy.worker.Worker" and words[-3:] == [
        "spark://here:7077",
        "--cores",
        "3",
    ]
    assert (
        environment["PYSPARK_PYTHON"] == sys.executable
        and Path(environment["JAVA_HOME"], "bin", "java").exists()
    )
    assert "--work-dir" not in standalone.command("master", [])[0]


def test_an_unknown_role_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ledgermq.audit.spark.standalone", "driver"],
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 1 and "master|worker" in done.stderr and "Traceback" not in done.stderr
    )


def test_a_task_is_sent_its_own_work_only() -> None:
    """What every task of an audit receives does not grow with the number of tasks: else a large log
    costs the square of its files."""
    columns = VIEWS["segments"].columns
    works = [json.dumps({"n": number}) for number in range(10_000)]
    sent = []
    for count in (1, len(works)):
        reader = WorkReader(struct_of(columns, list(columns)), works[:count])
        assert [share.work for share in reader.partitions()] == works[:count]
        sent.append(len(cloudpickle.dumps(reader.read)))
    assert sent[1] < sent[0] + 100, sent


@contextmanager
def part(role: str, until: str, *arguments: str) -> Iterator[None]:
    """A part of the cluster, once it has said `until`."""
    command = [sys.executable, "-m", "ledgermq.audit.spark.standalone", role, *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ON_LOOPBACK,
        umask=0,
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if until in line:
                break
        else:
            raise AssertionError(f"{role} ended: {''.join(said)[-2000:]}")
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.verify
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_standalone_cluster_gives_the_verdict_of_one_process(tmp_path: Path) -> None:
    """Damage on one of three replicas: the same object from both, to the last finding; Spark's own
    files are closed to other users."""
    writers = write_cluster(tmp_path / "data", history(1))
    entry = writers[1].entries[20]
    flip(writers[1].log / "data" / f"{entry.pos - entry.pos % 8192:020d}", entry.pos % 8192 + 100)
    directories = [str(tmp_path / "data" / name) for name in NODES]
    port = str(free_ports(1)[0].client_port)
    master, work = f"spark://127.0.0.1:{port}", tmp_path / "work"
    own = (
        "--cores",
        "2",
        "--memory",
        "1g",
        "--host",
        "127.0.0.1",
        "--webui-port",
        "0",
        "--work-dir",
        str(work),
    )
    with (
        part(
            "master",
            "I have been elected leader",
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--webui-port",
            "0",
        ),
        part("worker", "Successfully registered", master, *own),
    ):
        there = audit(*directories, "--master", master)
    assert there == audit(*directories, "--engine", "local") and there["verdict"] == "FAIL"
    written = list(work.rglob("*"))
    assert written and [path for path in written if path.stat().st_mode & 0o027] == []


def audit(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "ledgermq", "audit", *arguments, "--json"],
        capture_output=True,
        text=True,
        env=ON_LOOPBACK,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout)
    return found
