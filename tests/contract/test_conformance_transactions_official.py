"""Transactions with the unmodified official Python client against three real nodes: statements 87
to 89 of the contract's checklist.

Checks are configured to be early and frequent; the server's times in its log show that they are not
too early.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from ledgermq.proto import messaging_pb2 as pb
from ledgermq.proto.entries.properties import parse
from tests import cluster as real
from tests.contract.official import (
    ClientError,
    Official,
    control_records,
    late,
    message,
    official,
    receive,
    receive_some,
    records,
    simple,
    text,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHECK_S, INTERVAL_S, CHECKS = 1.0, 0.3, 30
"""A transaction is given up after the last check. So there are enough of them for a client that is
slow to decide."""
FAST = {
    "delivery": {
        "transaction_check_ms": int(CHECK_S * 1000),
        "transaction_interval_ms": int(INTERVAL_S * 1000),
        "transaction_checks": CHECKS,
        "min_invisible_ms": 100,
    }
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes for all tests of this module."""
    with real.running(
        tmp_path_factory.mktemp("transactions"), log_file_bytes=16 << 20, extra=FAST
    ) as found:
        yield found


_numbers = itertools.count(1)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"X{next(_numbers)}"
    real.create_topic(cluster, name, "transaction")
    return name


@pytest.fixture
def client(cluster: LocalCluster, tmp_path: Path) -> Iterator[Official]:
    with official(cluster, tmp_path / "home") as found:
        yield found


def begin(client: Official, topic: str, body: str, name: str = "p") -> dict[str, Any]:
    receipt: dict[str, Any] = client.do(
        "begin", name=name, message=message(topic, body, tag="tagA", properties={"k": "v"})
    )
    return receipt


def checks(
    client: Official, count: int, name: str = "p", within_s: float = late(CHECK_S)
) -> list[dict[str, Any]]:
    """Wait until the checker was called this many times. Returns the calls."""
    return real.wait_for(
        lambda: found if len(found := client.do("checks", name=name)) >= count else None,
        within_s,
        f"{count} checks",
    )


def half_of(cluster: LocalCluster, identity: str) -> tuple[int, int]:
    """(half offset, store time) of the half message of this id, as the leader's log says."""
    halves = [
        r for r in records(cluster, real.leader(cluster)) if r.topic == "rmq_sys_ledgermq_half"
    ]
    return next(
        (r.queue_offset, r.store_ms) for r in halves if parse(r.properties)["UNIQ_KEY"] == identity
    )


def rows(cluster: LocalCluster, field: str, half: int) -> list[tuple[int, Any]]:
    """(store time, what it says) of every row about a half in this field of the transaction
    records."""
    found = [
        (at, fields[field])
        for kind, at, fields in control_records(cluster, real.leader(cluster))
        if kind == "transaction"
    ]
    return [(at, said) for at, said_of in found for offset, said in said_of if offset == half]


def test_statement_087_half_message_is_invisible_before_commit_and_after_rollback(
    client: Official, topic: str
) -> None:
    """After commit() it is delivered with the id of the receipt and all its fields, once; after
    rollback() never."""
    client.do("checked_producer", name="p", topics=[topic], answers=["unknown"])
    simple(client, topic)
    kept, gone = begin(client, topic, "kept"), begin(client, topic, "gone")
    assert kept["transaction_id"] and gone["transaction_id"] and len(kept["id"]) == 34
    assert receive(client) == []
    client.do("decide", id=gone["id"], how="rollback")
    client.do("decide", id=kept["id"], how="commit")
    (got,) = receive_some(client)
    assert (got["id"], text(got), got["tag"], got["attempt"]) == (kept["id"], "kept", "tagA", 1)
    assert got["properties"] == {"k": "v", "__transactionId__": kept["id"]}
    # On a slow machine, the producer is checked before it decides. Decided transactions are not
    # checked.
    asked = client.do("checks", name="p")
    client.do("ack", name="c", id=got["id"])
    client.do("decide", id=kept["id"], how="commit")
    with pytest.raises(ClientError):
        client.do("decide", id=kept["id"], how="rollback")
    assert receive(client) == []
    assert client.do("checks", name="p") == asked


@pytest.mark.verify
def test_statement_088_checks_until_an_answer_and_no_more_than_allowed(
    cluster: LocalCluster, client: Official, topic: str
) -> None:
    """Checks are not sent before the configured time and are repeated while the answer is open;
    COMMIT delivers, ROLLBACK drops, and after the last check the message is dropped with a
    record."""
    other = f"{topic}b"
    real.create_topic(cluster, other, "transaction")
    client.do(
        "checked_producer", name="p", topics=[topic], answers=["unknown", "unknown", "commit"]
    )
    client.do("checked_producer", name="never", topics=[other], answers=["unknown"])
    simple(client, topic)
    receipt, open_ = begin(client, topic, "asked"), begin(client, other, "open", "never")
    calls = checks(client, 3)
    assert (
        {call["id"] for call in calls} == {receipt["id"]}
        and text(calls[0]) == "asked"
        and not calls[0]["corrupted"]
    )
    (got,) = receive_some(client)
    assert (got["id"], text(got)) == (receipt["id"], "asked")
    client.do("ack", name="c", id=got["id"])
    half, stored_ms = half_of(cluster, receipt["id"])
    counted = rows(cluster, "c", half)
    # A producer whose decision takes longer than the interval is asked once more.
    asked = [number for _, number in counted]
    assert (
        asked == list(range(1, len(asked) + 1))
        and len(asked) >= 3
        and counted[0][0] - stored_ms >= CHECK_S * 1000
    )
    calls = checks(client, CHECKS, "never", late(CHECK_S + CHECKS * (INTERVAL_S + 1)))
    half, _ = half_of(cluster, open_["id"])
    ends = real.wait_for(
        lambda: rows(cluster, "e", half), late(INTERVAL_S + 1), "the end of the transaction"
    )
    assert [how for _, how in ends] == ["checks"]
    assert [call["id"] for call in client.do("checks", name="never")] == [open_["id"]] * CHECKS
    assert len(client.do("checks", name="p")) == len(asked)
    with pytest.raises(ClientError):
        client.do("decide", id=open_["id"], how="commit")


def test_statement_088_089_check_survives_death_of_sender_and_leader(
    cluster: LocalCluster, tmp_path: Path, topic: str
) -> None:
    """The sender's process is killed, then the leader. A producer that lists the topic, connected
    to one follower, gets the checks of the next leader, wherever that is; COMMIT there delivers it
    once, ROLLBACK drops it."""
    first = real.leader(cluster)
    follower = next(node for node in cluster.nodes if node != first)
    with ExitStack() as stack:
        sender = stack.enter_context(official(cluster, tmp_path / "sender"))
        sender.do("checked_producer", name="p", topics=[topic], answers=["unknown"])
        receipts = [begin(sender, topic, "orphan"), begin(sender, topic, "orphan too")]
        sender.kill()
        cluster.kill(first)
        other = stack.enter_context(official(cluster, tmp_path / "other", [follower]))
        other.do("checked_producer", name="p", topics=[topic], answers=["unknown", "commit"])
        simple(other, topic)
        calls = checks(other, 4, within_s=late(10))
        assert {call["id"] for call in calls} == {receipt["id"] for receipt in receipts}
        got: dict[str, str] = {}
        real.wait_for(
            lambda: got.update({m["id"]: text(m) for m in receive(other)}) or len(got) == 2 or None,
            late(5),
            "both messages",
        )
        assert got == {receipts[0]["id"]: "orphan", receipts[1]["id"]: "orphan too"}
        for identity in got:
            other.do("ack", name="c", id=identity)
        assert receive(other) == []
    cluster.start(first)
    cluster.wait_ready()


def test_clients_are_listed_and_told_of_other_settings_at_any_node(
    cluster: LocalCluster, client: Official, topic: str
) -> None:
    """`ListClients` at any node knows the clients of all; an open stream brings Settings again when
    its group changes elsewhere."""
    client.do("checked_producer", name="p", topics=[topic], answers=["unknown"])
    for node in cluster.nodes:

        def listed(node: str = node) -> list[admin_pb2.ClientInfo] | None:
            """The producers of the topic, in a list with the answers of all nodes in it. The client
            may have started before its stream has reached its node."""
            answer: admin_pb2.ListClientsResponse = real.admin(
                cluster, node, "ListClients", admin_pb2.ListClientsRequest()
            )
            return (
                None
                if answer.unreachable
                else [c for c in answer.clients if c.connected and topic in c.topics]
            )

        (producer,) = real.wait_for(listed, 30, f"the list of {node}")
        assert (producer.type, producer.language) == ("producer", "python")
    group = admin_pb2.Name(name=f"G-{topic}")
    real.admin(
        cluster, "n1", "CreateGroup", admin_pb2.CreateGroupRequest(group=group, max_attempts=5)
    )
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name = group.name
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc.insecure_channel(
        real.target(cluster, "n2"), options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        stub = channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            pb.TelemetryCommand.SerializeToString,
            pb.TelemetryCommand.FromString,
        )
        requests.put(pb.TelemetryCommand(settings=settings))
        answers = stub(iter(requests.get, None), metadata=(("x-mq-client-id", "raw"),), timeout=30)
        assert next(answers).settings.backoff_policy.max_attempts == 5
        real.admin(
            cluster, "n3", "UpdateGroup", admin_pb2.UpdateGroupRequest(group=group, max_attempts=9)
        )
        assert (
            next(
                answer for answer in answers if answer.settings.backoff_policy.max_attempts != 5
            ).settings.backoff_policy.max_attempts
            == 9
        )
        requests.put(None)
