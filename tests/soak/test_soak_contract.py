"""Statements 22, 23, 68, 71 and 72 of the contract's checklist at full length, with the shipped
periods, against three real nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import messaging_pb2 as pb
from tests import cluster as real
from tests.contract.official import (
    ClientError,
    Deliveries,
    Official,
    events,
    late,
    message,
    official,
    push,
    send,
    until_done,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
SHIPPED: dict[str, Any] = {"delivery": {}, "limits": {}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with real.running(tmp_path_factory.mktemp("soak"), extra=SHIPPED) as found:
        yield found


@pytest.fixture
def client(cluster: LocalCluster, tmp_path: Path) -> Iterator[Official]:
    with official(cluster, tmp_path / "home") as found:
        yield found


def started(cluster: LocalCluster, client: Official, topic: str) -> None:
    real.create_topic(cluster, topic)
    client.do("producer", name="p", topics=[topic])


def test_statement_022_telemetry_stays_open_for_ten_minutes(cluster: LocalCluster) -> None:
    """Nothing but Settings comes, and the stream is still open at the end."""
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.SetInParent()
    hang_up = threading.Event()

    def requests() -> Iterator[bytes]:
        yield pb.TelemetryCommand(settings=settings).SerializeToString()
        hang_up.wait()

    with grpc.insecure_channel(
        real.target(cluster, "n1"), options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        stub = channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        stream = stub(requests(), metadata=(("x-mq-client-id", "soak"),))
        commands: list[pb.TelemetryCommand] = []
        reader = threading.Thread(target=lambda: commands.extend(stream), daemon=True)
        reader.start()
        reader.join(600)
        assert reader.is_alive(), "the server ended the stream"
        assert commands and {command.WhichOneof("command") for command in commands} == {"settings"}
        hang_up.set()
        reader.join(30)
        assert stream.code() == grpc.StatusCode.OK


def test_statement_023_five_minutes_after_a_restart(tmp_path: Path) -> None:
    """For five minutes after all nodes were killed and started, the same clients send, receive and
    acknowledge."""
    with (
        real.running(tmp_path, extra=SHIPPED) as cluster,
        official(cluster, tmp_path / "home") as client,
    ):
        started(cluster, client, "T")
        push(client, "T")
        send(client, "T", "before")
        events(client, 1)
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.start_all()
        cluster.wait_ready()
        end = time.monotonic() + 300
        sent: list[str] = []
        failures = 0
        while time.monotonic() < end:
            try:
                sent.append(send(client, "T", str(len(sent)))["id"])
            except ClientError:
                failures += 1
                assert not sent, "a send failed after the first one had succeeded again"
            time.sleep(0.5)
        assert len(sent) > 300 and failures < 30
        real.wait_for(
            lambda: {got["id"] for got in client.do("events", name="push")} >= set(sent),
            late(15),
            "every message",
        )
        real.wait_for(
            lambda: Deliveries(cluster, "P", "T").done or None, 30, "every acknowledgement"
        )


def test_statement_068_consumed_messages_stay_done_for_seventy_seconds(
    cluster: LocalCluster, client: Official
) -> None:
    """100 messages are consumed once; more than a whole lease and liveness period later they still
    were consumed once."""
    started(cluster, client, "once")
    push(client, "once")
    client.do("send_many", name="p", messages=[message("once", str(i)) for i in range(100)])
    events(client, 100)
    until_done(cluster, "P", "once", 100)
    time.sleep(70)
    assert len(client.do("events", name="push")) == 100
    assert Deliveries(cluster, "P", "once").once


def test_statement_071_a_listener_of_ninety_seconds(
    cluster: LocalCluster, client: Official
) -> None:
    """One delivery, acknowledged with its original handle."""
    started(cluster, client, "slow")
    push(client, "slow", behaviour={"seconds": 90})
    send(client, "slow")
    events(client, 1)
    found = real.wait_for(
        lambda: d if (d := Deliveries(cluster, "P", "slow")).done else None,
        180,
        "the acknowledgement",
    )
    assert found.once and len(client.do("events", name="push")) == 1


def test_statement_072_a_killed_consumer(
    cluster: LocalCluster, client: Official, tmp_path: Path
) -> None:
    """Its message comes to another member not before, and soon after, the liveness limit, with
    attempt 2."""
    started(cluster, client, "orphan")
    with official(cluster, tmp_path / "victim") as victim:
        push(victim, "orphan", behaviour={"seconds": 3600})
        send(client, "orphan")
        events(victim, 1)
        victim.kill()
    push(client, "orphan")
    (got,) = events(client, 1, within_s=late(70))
    assert got["attempt"] == 2
    ((_, began), (_, again)) = next(iter(Deliveries(cluster, "P", "orphan").leases.values()))
    assert again - began >= 65_000
