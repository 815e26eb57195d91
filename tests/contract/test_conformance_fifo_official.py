"""FIFO groups and dead letters with the unmodified official Python client against three real nodes:
statements 66, 76 and 80."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from ledgermq.proto import admin_pb2
from tests import cluster as real
from tests.contract.official import (
    Official,
    events,
    message,
    official,
    push,
    receive_some,
    send,
    simple,
    text,
    until_done,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes for all tests of this module."""
    extra = {"delivery": {"min_invisible_ms": 100}}
    with real.running(
        tmp_path_factory.mktemp("fifo"), log_file_bytes=16 << 20, extra=extra
    ) as found:
        yield found


@pytest.fixture
def client(cluster: LocalCluster, tmp_path: Path) -> Iterator[Official]:
    with official(cluster, tmp_path / "home") as found:
        yield found


def create_group(cluster: LocalCluster, name: str, **settings: Any) -> None:
    """Create a consumer group whose messages are redelivered after one second."""
    request = admin_pb2.CreateGroupRequest(
        group=admin_pb2.Name(name=name), backoff=admin_pb2.Backoff(steps_ms=[1000]), **settings
    )
    answer = real.admin(cluster, next(iter(cluster.nodes)), "CreateGroup", request)
    assert answer.status.code == 20000, answer.status.message


def letters(cluster: LocalCluster, client: Official, group: str) -> list[dict[str, Any]]:
    """What a simple consumer finds in a group's dead-letter topic, once it is there."""
    name = f"%DLQ%{group}"

    def known() -> bool:
        return any(
            found.topic.name == name
            for found in real.status(cluster, next(iter(cluster.nodes))).topics
        )

    real.wait_for(known, 30, f"the topic {name}")
    simple(client, name, name="letters", group=f"{group}_readers")
    return receive_some(client, "letters")


def test_statement_066_a_listener_that_always_fails_ends_in_the_dead_letter_topic(
    client: Official, cluster: LocalCluster
) -> None:
    """As often as the group allows, each time after its step, then never again; the copy has
    everything the message had."""
    real.create_topic(cluster, "T66")
    create_group(cluster, "G66", max_attempts=3)
    client.do("producer", name="p", topics=["T66"])
    push(client, "T66", group="G66", behaviour={"bad_attempts": 99, "mode": "fail"})
    sent = client.do(
        "send",
        name="p",
        message=message("T66", "poison", tag="tagA", keys="order-1", properties={"run": "7"}),
    )
    assert [got["attempt"] for got in events(client, 3)] == [1, 2, 3]
    (letter,) = letters(cluster, client, "G66")
    assert (letter["id"], text(letter), letter["tag"], letter["keys"]) == (
        sent["id"],
        "poison",
        "tagA",
        ["order-1"],
    )
    assert letter["properties"] == {"run": "7"} and letter["topic"] == "%DLQ%G66"
    assert len(client.do("events", name="push")) == 3


def test_statement_076_each_message_group_comes_in_order(
    client: Official, cluster: LocalCluster
) -> None:
    """20 messages in 3 groups, sent in turn: the listener sees every group in its order, each
    message once."""
    real.create_topic(cluster, "F76", "fifo")
    create_group(cluster, "G76", fifo=True)
    client.do("producer", name="p", topics=["F76"])
    for i in range(20):
        send(client, "F76", f"{i % 3} {i}", message_group=f"grp-{i % 3}")
    push(client, "F76", group="G76")
    order: dict[str, list[int]] = {}
    for got in events(client, 20):
        group, number = text(got).split()
        order.setdefault(group, []).append(int(number))
    assert order == {str(group): list(range(group, 20, 3)) for group in range(3)}
    assert until_done(cluster, "G76", "F76", 20).once


def test_statement_080_a_message_that_always_fails_is_forwarded_and_the_next_follow(
    client: Official, cluster: LocalCluster
) -> None:
    """As many local calls as Settings say, one dead letter, and the messages behind it in their
    order."""
    real.create_topic(cluster, "F80", "fifo", queues=1)
    create_group(cluster, "G80", fifo=True, max_attempts=2)
    client.do("producer", name="p", topics=["F80"])
    for i in range(4):
        send(client, "F80", str(i), message_group="grp")
    push(
        client,
        "F80",
        group="G80",
        behaviour={"bad_attempts": 99, "mode": "fail", "bad_body": b"1".hex()},
    )
    assert [text(got) for got in events(client, 5)] == ["0", "1", "1", "2", "3"]
    (letter,) = letters(cluster, client, "G80")
    assert text(letter) == "1"
    assert len(client.do("events", name="push")) == 5
