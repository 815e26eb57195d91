"""What a cluster can do, done on nodes of two workers: TLS, transactions, HA groups, rolling
restarts.

One cluster with certificates for all tests; each of them speaks TLS only, so that they may run in
any order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.native.consumers.sync_consumer import Consumer
from ledgermq.client.native.producers.sync_producer import Producer
from ledgermq.node.process.local import LocalCluster
from tests import cluster as real
from tests.contract.official import Official, message
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
NODES = ("n1", "n2", "n3")
SECOND = tuple(f"{node}.2" for node in NODES)
DELIVERY = {
    **real.DELIVERY,
    "transaction_check_ms": 1000,
    "transaction_interval_ms": 300,
    "transaction_checks": 15,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """g1 on the first workers; g2, and the HA group h2, on the second ones."""
    groups = ("g1", "g2", {"name": "h2", "replication": "ha", "replicas": SECOND})
    with real.running(
        tmp_path_factory.mktemp("features"),
        workers=2,
        groups=groups,
        extra={"delivery": DELIVERY},
        tls=True,
    ) as found:
        yield found


def of(cluster: LocalCluster) -> CommandLine:
    assert cluster.ca_file is not None
    return CommandLine(cluster.endpoints, "--tls", "--ca", cluster.ca_file)


def wire(cluster: LocalCluster, *, tls: bool = True) -> dict[str, Any]:
    assert cluster.ca_file is not None
    return {"tls": True, "ca": cluster.ca_file.read_bytes()} if tls else {}


@contextmanager
def official_over_tls(cluster: LocalCluster, home: Path, node: str) -> Iterator[Official]:
    own = {"CLIENT_TLS": "yes", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(cluster.ca_file)}
    client = Official(f"localhost:{cluster.nodes[node].client_port}", home, own)
    try:
        yield client
    finally:
        client.close()


def read(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(cluster.endpoints, topic, **wire(cluster)) as consumer:
        for batch in consumer.batches():
            found += [bytes(body) for body in batch.bodies()]
            if len(found) >= count:
                return found
    return found


class Stream:
    """A native producer that writes until it is asked to stop, and returns the acknowledged
    messages."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._producer = Producer(cluster.endpoints, topic, timeout_s=60, **wire(cluster))
        self.bodies: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stream:
        self._producer.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            body = f"s{len(self.bodies)}".encode()
            self._producer.send(body).result()
            self.bodies.append(body)


@pytest.mark.verify
def test_both_wires_and_a_rolling_restart_to_one_of_them(cluster: LocalCluster) -> None:
    """Streams and commands reach the leader behind every port, encrypted or not. The nodes are
    restarted with TLS only, one by one, while a producer writes: every message is stored once, and
    plaintext clients get an error within the timeout."""
    run = of(cluster)
    run.ok("topic", "create", "wires", "--queues", "6")
    sent = []
    for node in NODES:
        for tls in (True, False) if not cluster.settings else (True,):
            with Producer(
                real.target(cluster, node), "wires", timeout_s=60, **wire(cluster, tls=tls)
            ) as producer:
                for number in range(30):
                    sent.append(f"{node}-{tls}-{number}".encode())
                    producer.send(sent[-1])
    with Stream(cluster, "wires") as stream:
        cluster.settings = ["tls.mode=required"]
        for node in NODES:
            assert cluster.terminate(node, 60) == 0
            cluster.start(node)
            cluster.wait_ready(90, [node])
            run.ok("status", "--wait", "60s", "--strict")
    sent += stream.bodies
    assert stream.bodies and sorted(read(cluster, "wires", len(sent))) == sorted(sent)
    plain = CommandLine(cluster.endpoints, "--timeout", "2s").run(
        "send", "--topic", "wires", "--body", "x", timeout_s=30
    )
    # What the client learns before its time is over depends on how fast the port closes its
    # connection.
    assert plain.status == 3 and (
        "UNAVAILABLE" in plain.error or "closes the connection" in plain.error
    )


def test_transactions_are_checked_wherever_their_producer_is_connected(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The leaders of the groups are on both workers of one node, so that a producer of that node is
    at another one of them for some of its half messages: each is asked about and committed, and
    delivered once."""
    run = of(cluster)
    run.ok("topic", "create", "tx", "--kind", "transaction", "--queues", "6")
    run.ok("transfer", "g1", "--to", "n3", "--timeout", "60s")
    for group in ("g2", "h2"):
        run.ok("transfer", group, "--to", "n3.2", "--timeout", "60s")
    with official_over_tls(cluster, tmp_path / "home", "n3") as client:
        client.do("checked_producer", name="p", topics=["tx"], answers=["commit"])
        begun = {
            client.do("begin", name="p", message=message("tx", f"half{number}"))["id"]
            for number in range(9)
        }
        assert len(begun) == 9
        found: list[str] = []

        def delivered() -> bool:
            found.extend(run.consume_all("tx", "readers"))
            return len(found) >= 9

        real.wait_for(delivered, 90, "nine committed messages")
        asked = {check["id"] for check in client.do("checks", name="p")}
    assert sorted(found) == [f"half{number}" for number in range(9)] and asked == begun


def test_ha_group_of_workers_is_visible_to_operators(cluster: LocalCluster) -> None:
    """Its master moves between workers of different nodes; status, metrics, the doctor and the list
    of members know the workers."""
    run = of(cluster)
    run.ok("topic", "create", "ha", "--queues", "3")
    assert run.send_lines("ha", [f"a{number}" for number in range(30)])["acknowledged"] == 30
    told = {
        group["group"]: group
        for group in run.ok("status", "--wait", "60s", "--strict", "--json").json["groups"]
    }
    master = told["h2"]["leader"]
    assert master in SECOND and set(told["h2"]["ha"]["in_sync"]) == {
        r["node"] for r in told["g2"]["replicas"]
    } == set(SECOND)
    other = next(worker for worker in SECOND if worker != master)
    assert f"{other} leads h2" in run.ok("transfer", "h2", "--to", other, "--timeout", "60s").out
    assert run.send_lines("ha", [f"b{number}" for number in range(30)])["acknowledged"] == 30
    assert set(run.consume_all("ha", "readers")) == {
        f"{letter}{number}" for letter in "ab" for number in range(30)
    }
    page = real.http(cluster, "n1", "/metrics")[1]
    for worker, group in (("n1", "g1"), ("n1.2", "g2"), ("n1.2", "h2")):
        assert f'ledgermq_leader_known{{worker="{worker}",broker_group="{group}"}}' in page
    listed = {found["node"]: found for found in run.ok("member", "list", "--json").json["members"]}
    assert {*NODES, *SECOND} <= set(listed) and not any(
        listed[worker]["controller"] for worker in SECOND
    )
    assert {row["group"] for row in listed["n1.2"]["groups"]} == {"g2", "h2"}
