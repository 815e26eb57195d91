"""A cluster over IPv6 alone: every port of every node is at an address of loopback that no IPv4
address leads to."""

from __future__ import annotations

import select
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.client.native.consumers.sync_consumer import Consumer
from ledgermq.client.native.producers.sync_producer import Producer
from ledgermq.node.process import local
from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.host_port import joined
from tests import cluster as real
from tests.e2e.command_line import CommandLine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.verify,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here"),
]

SETTINGS = {"listen_host": "::1", "delivery": {"min_invisible_ms": 100}}
PORTS = ("client_port", "peer_port", "controller_port", "http_port")


def prepared(directory: Path) -> LocalCluster:
    """Three nodes whose only address is ::1."""
    addresses = [at.model_copy(update={"host": "::1"}) for at in local.free_ports(3)]
    return real.prepare(directory, addresses=addresses, extra=SETTINGS, tls=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = prepared(tmp_path)
    found.start_all()
    try:
        found.wait_ready()
        yield found
    finally:
        real.end_all(found)


def test_a_cluster_over_ipv6_alone(cluster: LocalCluster) -> None:
    """Official contract and native streams, TLS on both ports, another leader, the command line,
    the pages, the console and an audit."""
    for node, at in cluster.nodes.items():
        for kind in PORTS:
            with socket.socket() as four:
                assert four.connect_ex(("127.0.0.1", getattr(at, kind))) != 0, (
                    f"{kind} of {node} answers over IPv4"
                )
    assert all(text.startswith("[::1]:") for text in cluster.endpoints.split(";"))
    ca = cluster.ca_file
    assert ca is not None
    cli = CommandLine(cluster.endpoints, "--tls", "--ca", ca)
    cli.ok("topic", "create", "t", "--queues", "4")
    assert cli.send_lines("t", [f"m{number}" for number in range(50)])["sent"] == 50
    wire = {"tls": True, "ca": ca.read_bytes()}
    with Producer(cluster.endpoints, "t", **wire) as producer:
        sent = [producer.send(b"n%d" % number) for number in range(50)]
    assert all(future.result(30) for future in sent)
    first = next(group["leader"] for group in cli.ok("status", "--json").json["groups"])
    cluster.kill(first)
    others = [node for node in cluster.nodes if node != first]
    real.wait_for(lambda: all(cluster.ready(node) for node in others), 60, "another leader")
    assert sorted(cli.consume_all("t", "g")) == sorted(
        [f"m{n}" for n in range(50)] + [f"n{n}" for n in range(50)]
    )
    with Consumer(cluster.endpoints, "t", start="earliest", **wire) as consumer:
        read = 0
        for batch in consumer.batches():
            read += len(batch)
            if read >= 100:
                break
    cluster.start(first)
    cluster.wait_ready()
    members = cli.ok("member", "list", "--json").json["members"]
    assert {member["addresses"]["peer"].rpartition(":")[0] for member in members} == {"[::1]"}
    assert cli.ok("audit", "--endpoints", cluster.endpoints, "--json").json["verdict"] == "PASS"
    official_routes(cluster, ca.read_bytes())
    console(cli)


def official_routes(cluster: LocalCluster, authority: bytes) -> None:
    """A client finds the queues at the addresses that it used, whether it puts them in brackets or
    not."""
    at = next(iter(cluster.nodes.values()))
    with grpc.secure_channel(
        joined("::1", at.client_port), grpc.ssl_channel_credentials(authority)
    ) as channel:
        ask = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/QueryRoute",
            request_serializer=pb.QueryRouteRequest.SerializeToString,
            response_deserializer=pb.QueryRouteResponse.FromString,
        )
        for host in ("::1", "[::1]", ""):
            request = pb.QueryRouteRequest(topic=pb.Resource(name="t"))
            if host:
                request.endpoints.addresses.add(host=host, port=at.client_port)
            answer = ask(request, metadata=(("x-mq-client-id", "c"),), timeout=10)
            (found,) = {
                queue.broker.endpoints.SerializeToString() for queue in answer.message_queues
            }
            endpoints = pb.Endpoints.FromString(found)
            assert (endpoints.scheme, endpoints.addresses[0].host) == (pb.IPv6, host or "::1")


def console(cli: CommandLine) -> None:
    """The pages at an IPv6 address; the line that says so can be opened."""
    pytest.importorskip("jinja2")
    process = cli.start("console", "--listen", "[::1]:0")
    try:
        assert process.stdout is not None and select.select([process.stdout], [], [], 60)[0]
        url = process.stdout.readline().decode().partition("console=")[2].strip()
        assert url.startswith("http://[::1]:")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            url, timeout=30
        ) as page:
            assert page.status == 200 and b"broker group" in page.read().lower()
    finally:
        process.terminate()
        process.communicate(timeout=60)
