"""Audits of a real cluster while it works: producers, consumers, seals, trims, a change of
leadership, a killed node; here and on Spark."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgermq.client.native.producers.sync_producer import Producer
from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_group, create_topic, leader, running, target
from tests.e2e.command_line import LEDGERMQ, CommandLine, Outcome, environment

pytestmark = pytest.mark.slow

FILE_BYTES = 256 << 10
PACE_S = 0.1
"""Between two batches: an audit under as much load as there can be takes as long as it likes."""
BUSY = {"retention": {"hours": 72, "max_bytes": "1MiB", "check_ms": 200, "reserve_bytes": "1MiB"}}


@contextmanager
def load(endpoints: str, *, pace_s: float = PACE_S, at_once: int = 1) -> Iterator[None]:
    """A client that sends all the time, so many batches at once, and a client that reads and
    commits."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def send() -> None:
        try:
            with Producer(endpoints, "t", timeout_s=60) as producer:
                while not stop.wait(pace_s):
                    for sent in [
                        producer.send_batch([b"x" * 700] * 40, keys=[["k"]] * 40)
                        for _ in range(at_once)
                    ]:
                        sent.result()
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        cli = CommandLine(endpoints)
        while not stop.wait(PACE_S):
            cli.run(
                "consume", "--topic", "t", "--group", "g", "--max", "200", "--until-empty", "1s"
            )

    threads = [threading.Thread(target=work) for work in (send, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def audit(endpoints: str, *options: str, engine: str = "local") -> Outcome:
    more = ("--endpoints", endpoints, "--engine", engine, "--timeout", "30s", *options)
    return CommandLine(endpoints).run("audit", *more, timeout_s=300)


def all_of(cluster: LocalCluster) -> str:
    return ";".join(target(cluster, node) for node in cluster.nodes)


def test_a_busy_cluster_passes_and_a_missing_node_is_said(tmp_path: Path) -> None:
    """Files are sealed, trimmed and replaced meanwhile, leadership moves, and nothing of it is a
    finding. A killed node makes it INCOMPLETE, by name; when it is back the cluster passes
    again."""
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=BUSY) as cluster:
        create_topic(cluster, "t")
        create_group(cluster, "g")
        endpoints, cli = all_of(cluster), CommandLine.of(cluster)
        with load(endpoints):
            outcome = audit(endpoints)
            assert outcome.status == 0, outcome.out + outcome.err
            cli.ok(
                "transfer",
                "g1",
                "--to",
                next(node for node in cluster.nodes if node != leader(cluster)),
                "--timeout",
                "60s",
            )
            outcome = audit(endpoints, "--deep")
            assert outcome.status == 0, outcome.out + outcome.err
        cluster.kill("n3")
        outcome = audit(target(cluster, "n1"))
        assert outcome.status == 2 and "replica n3 could not be read" in outcome.out, (
            outcome.out + outcome.err
        )
        cluster.start("n3")
        cli.ok("status", "--wait", "60s", "--strict")
        assert audit(target(cluster, "n3")).status == 0
    rest = cli.run(
        "audit", "--engine", "local", *(cluster.data(node) for node in cluster.nodes), timeout_s=300
    )
    assert rest.status == 0, rest.out + rest.err


@contextmanager
def leaders_change(cluster: LocalCluster) -> Iterator[None]:
    """Leadership goes round."""
    stop = threading.Event()

    def change() -> None:
        cli, names = CommandLine.of(cluster), list(cluster.nodes)
        while not stop.wait(1.0):
            # Refused while the former change is not complete.
            cli.run(
                "transfer",
                "g1",
                "--to",
                next(name for name in names if name != leader(cluster)),
                "--timeout",
                "20s",
            )

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.verify
@pytest.mark.quiet
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pure", ["0", "1"], ids=["compiled", "python"])
def test_audits_pass_under_full_load(tmp_path: Path, pure: str) -> None:
    """As fast as the nodes take it: every few moments a file begins, is sealed and goes, both
    snapshots are replaced for that, the key index moves on, and another node leads."""
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=BUSY) as cluster:
        create_topic(cluster, "t")
        create_group(cluster, "g")
        endpoints = all_of(cluster)
        command = [
            *LEDGERMQ,
            "audit",
            "--endpoints",
            endpoints,
            "--engine",
            "local",
            "--timeout",
            "30s",
        ]
        environ = {**environment(endpoints), "LEDGERMQ_PURE": pure}
        with load(endpoints, pace_s=0.0, at_once=6), leaders_change(cluster):
            for more in ([], ["--deep"]):
                ran = subprocess.run(
                    [*command, *more],
                    env=environ,
                    capture_output=True,
                    text=True,
                    timeout=800,
                    check=False,
                )
                assert ran.returncode == 0 and ran.stdout.splitlines()[-1] == "audit: PASS", (
                    ran.stdout + ran.stderr
                )
                by_python = any(
                    "python" in line for line in ran.stdout.splitlines() if "scan" in line
                )
                assert by_python == (pure == "1"), ran.stdout


@pytest.mark.verify
def test_spark_reads_running_nodes(tmp_path: Path) -> None:
    """Tasks sign in by themselves over TLS: the options of the command are available to Spark's
    driver and workers."""
    with running(tmp_path, log_file_bytes=FILE_BYTES, tls=True) as cluster:
        create_topic(cluster, "t")
        endpoints = all_of(cluster)
        authority = tmp_path / "cluster" / "tls" / "ca.pem"
        assert authority.exists(), sorted(
            path.name for path in (tmp_path / "cluster").rglob("*.pem")
        )
        outcome = audit(
            endpoints, "--tls", "--ca", str(authority), "--master", "local[2]", engine="spark"
        )
        assert outcome.status == 0 and outcome.out.splitlines()[-1] == "audit: PASS", (
            outcome.out + outcome.err
        )
