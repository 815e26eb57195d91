"""Audits of a real cluster while it works: producers, consumers, seals, trims, a change of leadership, a killed node; here and on Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgermq.client.native.sync_producer import Producer
from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_group, create_topic, leader, running, target
from tests.e2e.command_line import CommandLine, Outcome

pytestmark = pytest.mark.slow

FILE_BYTES = 256 << 10
PACE_S = 0.1
"""Between two batches: an audit under as much load as there can be takes as long as it likes."""
BUSY = {"retention": {"hours": 72, "max_bytes": "1MiB", "check_ms": 200, "reserve_bytes": "1MiB"}}


@contextmanager
def load(endpoints: str) -> Iterator[None]:
    """A client that sends all the time, and a client that reads and commits."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def send() -> None:
        try:
            with Producer(endpoints, "t", timeout_s=60) as producer:
                while not stop.wait(PACE_S):
                    producer.send_batch([b"x" * 700] * 40, keys=[["k"]] * 40).result()
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        cli = CommandLine(endpoints)
        while not stop.wait(PACE_S):
            cli.run("consume", "--topic", "t", "--group", "g", "--max", "200", "--until-empty", "1s")

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
    """Files are sealed, trimmed and replaced meanwhile, leadership moves, and nothing of it is a finding. A killed node makes it
    INCOMPLETE, by name; when it is back the cluster passes again."""
    with running(tmp_path, log_file_bytes=FILE_BYTES, extra=BUSY) as cluster:
        create_topic(cluster, "t")
        create_group(cluster, "g")
        endpoints, cli = all_of(cluster), CommandLine.of(cluster)
        with load(endpoints):
            outcome = audit(endpoints)
            assert outcome.status == 0, outcome.out + outcome.err
            cli.ok("transfer", "g1", "--to", next(node for node in cluster.nodes if node != leader(cluster)), "--timeout", "60s")
            outcome = audit(endpoints, "--deep")
            assert outcome.status == 0, outcome.out + outcome.err
        cluster.kill("n3")
        outcome = audit(target(cluster, "n1"))
        assert outcome.status == 2 and "replica n3 could not be read" in outcome.out, outcome.out + outcome.err
        cluster.start("n3")
        cli.ok("status", "--wait", "60s", "--strict")
        assert audit(target(cluster, "n3")).status == 0
    rest = cli.run("audit", "--engine", "local", *(cluster.data(node) for node in cluster.nodes), timeout_s=300)
    assert rest.status == 0, rest.out + rest.err


@pytest.mark.verify
def test_spark_reads_running_nodes(tmp_path: Path) -> None:
    """Tasks sign in by themselves over TLS: the options of the command are available to Spark's driver and workers."""
    with running(tmp_path, log_file_bytes=FILE_BYTES, tls=True) as cluster:
        create_topic(cluster, "t")
        endpoints = all_of(cluster)
        authority = tmp_path / "cluster" / "tls" / "ca.pem"
        assert authority.exists(), sorted(path.name for path in (tmp_path / "cluster").rglob("*.pem"))
        outcome = audit(endpoints, "--tls", "--ca", str(authority), "--master", "local[2]", engine="spark")
        assert outcome.status == 0 and outcome.out.splitlines()[-1] == "audit: PASS", outcome.out + outcome.err
