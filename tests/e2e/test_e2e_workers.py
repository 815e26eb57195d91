"""Nodes of two worker processes each: clients of every kind through whichever worker, and what one
does to a worker done to the node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.client.native.consumers.sync_consumer import Consumer
from ledgermq.client.native.producers.sync_producer import Producer
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.status import ExitCode
from tests.cluster import create_topic, http, log_lines, prepare, running, target
from tests.contract.official import message, official
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow
GROUPS = ("g1", "g2", "g3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes, two workers each, three broker groups: g1 and g3 on the first workers, g2 on the
    second ones."""
    with running(tmp_path_factory.mktemp("workers"), nodes=3, workers=2, groups=GROUPS) as found:
        create_topic(found, "orders", queues=6)
        yield found


def workers_of(cluster: LocalCluster, node: str) -> dict[str, int]:
    """Process ids of a node's workers, as its log says."""
    found: dict[str, int] = {}
    for line in log_lines(cluster, node):
        if line.startswith("{") and (fields := json.loads(line)).get("event") == "starting":
            found[fields["node"]] = fields["pid"]
    return found


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists(), f"process {pid} is left"


def test_a_route_shows_the_nodes_and_no_workers(cluster: LocalCluster) -> None:
    """Three addresses, each good for every queue, whichever worker answers."""
    endpoints = pb.Endpoints(
        scheme=pb.IPv4,
        addresses=[pb.Address(host=at.host, port=at.client_port) for at in cluster.nodes.values()],
    )
    request = pb.QueryRouteRequest(topic=pb.Resource(name="orders"), endpoints=endpoints)
    for number in range(8):
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("a.number", number),
        ]
        with grpc.insecure_channel(target(cluster, "n1"), options=options) as channel:
            call = channel.unary_unary(
                "/apache.rocketmq.v2.MessagingService/QueryRoute",
                pb.QueryRouteRequest.SerializeToString,
                pb.QueryRouteResponse.FromString,
            )
            answer = call(request, metadata=(("x-mq-client-id", "c"),), timeout=20)
        assert {queue.broker.name for queue in answer.message_queues} == set(GROUPS)
        assert all(len(queue.broker.endpoints.addresses) == 3 for queue in answer.message_queues)


def test_status_and_pages_are_of_nodes(cluster: LocalCluster) -> None:
    told = CommandLine.of(cluster).ok("status", "--wait", "30s", "--strict", "--json").json
    assert [
        (node["node"], [worker["worker"] for worker in node["workers"]]) for node in told["nodes"]
    ] == [(node, [node, f"{node}.2"]) for node in ("n1", "n2", "n3")]
    assert {r["node"] for g in told["groups"] if g["group"] == "g2" for r in g["replicas"]} == {
        "n1.2",
        "n2.2",
        "n3.2",
    }
    assert http(cluster, "n2", "/healthz")[0] == http(cluster, "n2", "/readyz")[0] == 200
    page = http(cluster, "n2", "/metrics")[1]
    for worker, group in (("n2", "g1"), ("n2.2", "g2")):
        assert f'ledgermq_leader_known{{worker="{worker}",broker_group="{group}"}}' in page


def test_native_streams_reach_the_leader_behind_every_port(cluster: LocalCluster) -> None:
    """Many connections, dealt out as the system likes: all frames are stored, and every message is
    read once."""
    create_topic(cluster, "native", queues=6)
    bodies = {f"{number}/{k}".encode() for number in range(6) for k in range(50)}
    for number in range(6):
        with Producer(target(cluster, f"n{number % 3 + 1}"), "native", timeout_s=60) as producer:
            producer.flush()
            for k in range(50):
                producer.send(f"{number}/{k}".encode())
    found: list[bytes] = []
    with Consumer(target(cluster, "n2"), "native") as consumer:
        for batch in consumer.batches():
            found += [bytes(body) for body in batch.bodies()]
            if len(found) >= len(bodies):
                break
    assert sorted(found) == sorted(bodies)


def test_official_clients_work_through_one_endpoint(cluster: LocalCluster, tmp_path: Path) -> None:
    """Telemetry, sends, a push consumer and a simple one, whichever worker their connections land
    on."""
    create_topic(cluster, "official", queues=6)
    with official(cluster, tmp_path, ["n3"]) as client:
        client.do("producer", name="p", topics=["official"])
        client.do("push", name="c", group="g-push", topic="official", behaviour={}, options={})
        sent = {
            client.do("send", name="p", message=message("official", f"m{k}"))["id"]
            for k in range(30)
        }
        deadline = time.monotonic() + 60
        while {
            event["id"] for event in client.do("events", name="c")
        } != sent and time.monotonic() < deadline:
            time.sleep(0.2)
        assert {event["id"] for event in client.do("events", name="c")} == sent


def test_audits_of_the_running_cluster_see_every_worker(cluster: LocalCluster) -> None:
    outcome = CommandLine.of(cluster).ok(
        "audit", "--endpoints", cluster.endpoints, "--engine", "local", "--json", timeout_s=200
    )
    assert {replica["replica"] for replica in outcome.json["replicas"]} == {
        f"n{k}{more}" for k in (1, 2, 3) for more in ("", ".2")
    }
    assert outcome.json["verdict"] == "PASS"


@pytest.mark.verify
def test_killed_worker_ends_its_node_and_no_other(tmp_path: Path) -> None:
    """The node exits with 128 + 9, its other worker cleanly; the other nodes continue, it returns,
    and the replicas agree in every tool."""
    with running(tmp_path, nodes=3, workers=2) as cluster:
        create_topic(cluster, "t", queues=4)
        cli = CommandLine.of(cluster)
        assert cli.send_lines("t", [f"a{k}" for k in range(40)])["acknowledged"] == 40
        # The first workers of the others have no replica of g2: all that they know is who led it
        # last.
        cli.ok("transfer", "g2", "--to", "n2.2", "--timeout", "60s")
        workers = workers_of(cluster, "n2")
        os.kill(workers["n2.2"], signal.SIGKILL)
        assert cluster.children["n2"].wait(60) == 137
        assert "worker n2.2 was ended by SIGKILL" in cluster.last_error("n2")
        wait_gone(workers["n2"])
        assert not (cluster.data("n2") / "g1" / "abort").exists(), (
            "the other worker stopped cleanly"
        )
        assert cli.send_lines("t", [f"b{k}" for k in range(40)])["acknowledged"] == 40
        # A send whose answer was lost with its leader may be stored twice.
        sent = {f"{letter}{k}" for letter in "ab" for k in range(40)}
        assert set(cli.consume_all("t", "meanwhile")) == sent
        cluster.start("n2")
        cluster.wait_ready(90)
        cli.ok("status", "--wait", "60s", "--strict", "--json")
        assert set(cli.consume_all("t", "c")) == sent
    directories = [cluster.data(node) for node in cluster.nodes]
    told = cli.ok("audit", *directories, "--engine", "local", "--json", timeout_s=200).json
    assert told["verdict"] == "PASS" and len(told["replicas"]) == 6
    found = cli.run("doctor", directories[0], "--json", timeout_s=200).json
    assert {group["group"] for group in found["node"]["groups"]} == {"g1", "g2"}
    made = cli.ok("backup", "--data", directories[0], "--to", tmp_path / "copy", "--json").json
    assert [made["node"], *(worker["node"] for worker in made["workers"])] == ["n1", "n1.2"]
    back = cli.ok(
        "restore",
        "--from",
        tmp_path / "copy",
        "--data",
        tmp_path / "back",
        "--node",
        "n3",
        "--json",
    ).json
    assert [back["node"], *(worker["node"] for worker in back["workers"])] == ["n3", "n3.2"]


@pytest.mark.verify
def test_a_node_ends_whole_and_begins_only_whole(tmp_path: Path) -> None:
    """A killed supervisor leaves no worker; a port in use is status 72, also for another node with
    workers; too few workers is 71."""
    cluster = prepare(tmp_path, nodes=1, workers=2)
    cluster.start("n1")
    cluster.wait_ready(90)
    workers = workers_of(cluster, "n1")
    rival = prepare(tmp_path / "rival", nodes=1, workers=2, addresses=[cluster.nodes["n1"]])
    rival.start("n1")
    assert rival.children["n1"].wait(60) == ExitCode.PORT_TAKEN
    assert str(cluster.nodes["n1"].client_port) in rival.last_error("n1")
    cluster.children["n1"].signal(signal.SIGKILL)
    cluster.children["n1"].wait(30)
    for pid in workers.values():
        wait_gone(pid)
    cluster.start("n1")
    cluster.wait_ready(90)
    assert cluster.terminate("n1") == 0
    command = [sys.executable, "-m", "ledgermq", "serve", "--config", str(cluster.config_file)]
    settings = [
        "node=n1",
        f"data={cluster.data('n1')}",
        "nodes.n1.workers=1",
        "cluster.groups.0.replicas=[n1]",
    ]
    one = {"name": "g1", "replicas": ["n1"], "data_file_bytes": cluster.groups[0].data_file_bytes}
    settings[-1] = f"cluster.groups=[{json.dumps(one)}]"
    command += [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (
        done.returncode == ExitCode.DATA_UNUSABLE
        and "holds the data of worker n1.2" in done.stderr.splitlines()[-1]
    )
