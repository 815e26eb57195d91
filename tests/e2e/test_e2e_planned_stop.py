"""A planned stop as a pre-stop hook does it, and clients that reach the nodes under other addresses
than the nodes each other."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import grpc
import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from tests import cluster as real
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
ROUTE = "/apache.rocketmq.v2.MessagingService/QueryRoute"
OK = 20000


class Sender:
    """Sends through one node until the end, and notes what failed."""

    def __init__(self, cluster: LocalCluster, node: str) -> None:
        self._target = real.target(cluster, node)
        self.sent = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with grpc.insecure_channel(
            self._target, options=[("grpc.enable_http_proxy", 0)]
        ) as channel:
            call = channel.unary_unary(
                SEND, pb.SendMessageRequest.SerializeToString, pb.SendMessageResponse.FromString
            )
            for number in itertools.count():
                if self._stop.is_set():
                    return
                message = pb.Message(topic=pb.Resource(name="t"), body=b"x")
                message.system_properties.message_id = f"m{number:06}"
                message.system_properties.message_type = pb.NORMAL
                try:
                    answer = call(
                        pb.SendMessageRequest(messages=[message]),
                        metadata=(("x-mq-client-id", "s"),),
                        timeout=20,
                    )
                except grpc.RpcError as error:
                    self.failures.append(str(error))
                    continue
                self.sent += 1
                if answer.status.code != OK:
                    self.failures.append(answer.status.message)


@pytest.mark.verify
def test_a_drained_node_stops_without_a_failed_send(tmp_path: Path) -> None:
    """While one node is down, another one cannot be drained: the exit status is 4 until the first
    is back."""
    with real.running(tmp_path) as cluster:
        run, secret = CommandLine(cluster.endpoints), cluster.directory / "secret"
        real.create_topic(cluster, "t")
        leader = real.status(cluster, "n1").groups[0].leader
        other, last = sorted(set(cluster.nodes) - {leader})
        with Sender(cluster, last) as sender:
            drained = run.run(
                "member",
                "drain",
                leader,
                "--timeout",
                "60s",
                "--cluster-secret",
                str(secret),
                "--json",
            ).json
            assert [row["group"] for row in drained["transfers"]] == [
                real.status(cluster, last).groups[0].group
            ]
            assert drained["losses"] == []
            assert cluster.terminate(leader) == 0
            before = sender.sent
            real.wait_for(lambda: sender.sent > before, 30, "a send without the former leader")
            # The time limit also bounds each call, so a short one would measure the machine.
            refused = CommandLine(real.target(cluster, last)).run(
                "member", "drain", other, "--timeout", "10s"
            )
            assert refused.status == 4 and f"{leader} is down" in refused.error
            cluster.start(leader)
            cluster.wait_ready(60, [leader])
            outcome = run.run("member", "drain", other, "--timeout", "60s")
            assert outcome.status == 0 and outcome.out.endswith(f"{other} can stop\n"), outcome.err
        assert not sender.failures


def test_a_changed_advertised_address_reaches_the_cluster(tmp_path: Path) -> None:
    """Clients are told it by every node, and the nodes go on reaching each other at their own
    addresses."""
    with real.running(tmp_path) as cluster:
        real.create_topic(cluster, "t")
        real.wait_for(
            lambda: all(
                (cluster.data(node) / "controller" / "nodes.json").exists()
                for node in cluster.nodes
            ),
            30,
            "remembered addresses",
        )
        assert cluster.terminate("n2") == 0
        cluster.settings = [
            *cluster.settings,
            "nodes.n2.advertised_host=mq2.example.com",
            "nodes.n2.advertised_port=31082",
        ]
        cluster.start("n2")
        cluster.wait_ready(60)
        run = CommandLine(real.target(cluster, "n1"))

        def told() -> bool:
            found = {
                row["node"]: row for row in run.run("member", "list", "--json").json["members"]
            }
            return bool(
                found["n2"]["addresses"]["client"] == "mq2.example.com:31082"
                and all(row["up"] for row in found.values())
            )

        real.wait_for(told, 30, "the changed address")
        nodes = {info.node: info.endpoint for info in real.status(cluster, "n3").nodes}
        assert nodes["n2"] == "mq2.example.com:31082" and nodes["n3"] == real.target(cluster, "n3")
        with grpc.insecure_channel(
            real.target(cluster, "n2"), options=[("grpc.enable_http_proxy", 0)]
        ) as channel:
            call = channel.unary_unary(
                ROUTE, pb.QueryRouteRequest.SerializeToString, pb.QueryRouteResponse.FromString
            )
            route = call(
                pb.QueryRouteRequest(topic=pb.Resource(name="t")),
                metadata=(("x-mq-client-id", "s"),),
                timeout=20,
            )
        addresses = {
            (at.host, at.port)
            for queue in route.message_queues
            for at in queue.broker.endpoints.addresses
        }
        assert addresses == {("mq2.example.com", 31082)}
