"""Delayed messages with the unmodified official Python client against three real nodes: statements
83 and 85 of the contract's checklist. Also while their leader is killed, and over a restart of all.

"Not earlier than" is exact, in the server's own times as its log has them; "not later than" allows
for a busy machine.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from tests import cluster as real
from tests.contract.official import (
    ClientError,
    Official,
    late,
    message,
    official,
    receive,
    records,
    simple,
    text,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes for all tests of this module."""
    with real.running(tmp_path_factory.mktemp("delays"), log_file_bytes=16 << 20) as found:
        yield found


_numbers = itertools.count(1)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A fresh topic."""
    name = f"D{next(_numbers)}"
    real.create_topic(cluster, name, "delay")
    return name


@pytest.fixture
def client(cluster: LocalCluster, topic: str, tmp_path: Path) -> Iterator[Official]:
    with official(cluster, tmp_path / "home") as found:
        found.do("producer", name="p", topics=[topic])
        yield found


def send(client: Official, topic: str, body: str, after_s: int) -> dict[str, Any]:
    """This client sends whole seconds; `after_s` from the next one on."""
    deliver_s = int(time.time()) + 1 + after_s
    receipt: dict[str, Any] = client.do(
        "send", name="p", message=message(topic, body, tag="t", deliver_s=deliver_s)
    )
    return {**receipt, "deliver_s": deliver_s}


def stored_ms(cluster: LocalCluster, topic: str, body: str) -> list[int]:
    """When copies of a message were stored in its topic, by the log of a node that is there."""
    node = real.leader(cluster)
    return [
        record.store_ms
        for record in records(cluster, node)
        if record.topic == topic and record.body == body.encode()
    ]


def test_statement_083_delivered_at_its_time(
    cluster: LocalCluster, client: Official, topic: str
) -> None:
    """Not before, and soon after; in the past at once; the time comes back as it was sent."""
    simple(client, topic, group="at-its-time")
    receipts = {
        body: send(client, topic, body, after_s)
        for body, after_s in (("past", -600), ("later", 6), ("sooner", 3))
    }
    assert (
        all(receipt["recall_handle"] for body, receipt in receipts.items() if body != "past")
        and not receipts["past"]["recall_handle"]
    )
    got: list[dict[str, Any]] = []
    end = time.monotonic() + late(7)
    while len(got) < 3 and time.monotonic() < end:
        got += receive(client)
    assert [text(found) for found in got] == ["past", "sooner", "later"]
    for found in got:
        body, receipt = text(found), receipts[text(found)]
        assert (found["id"], found["deliver_at"], found["tag"]) == (
            receipt["id"],
            receipt["deliver_s"] * 1000,
            "t",
        )
        (at_ms,) = stored_ms(cluster, topic, body)
        assert at_ms >= receipt["deliver_s"] * 1000


def test_statement_085_recall(cluster: LocalCluster, client: Official, topic: str) -> None:
    """The id comes back, the message never; a second recall, and one of a delivered message, raise
    the client's exception."""
    simple(client, topic, group="recalls")
    gone, kept = send(client, topic, "gone", 5), send(client, topic, "kept", 5)
    assert client.do("recall", name="p", topic=topic, handle=gone["recall_handle"]) == gone["id"]
    for handle in (gone["recall_handle"], "garbage"):
        with pytest.raises(ClientError):
            client.do("recall", name="p", topic=topic, handle=handle)

    def came() -> bool:
        bodies.extend(text(found) for found in receive(client))
        return "kept" in bodies

    bodies: list[str] = []
    real.wait_for(came, late(6), "the message that was not recalled")
    with pytest.raises(ClientError):
        client.do("recall", name="p", topic=topic, handle=kept["recall_handle"])
    assert "gone" not in bodies and stored_ms(cluster, topic, "gone") == []


def test_delays_survive_a_killed_leader_and_a_restart_of_all(
    cluster: LocalCluster, client: Official, topic: str
) -> None:
    """Each message is in its topic once, and not before its time, whichever node led then."""
    receipts = {f"s{i}": send(client, topic, f"s{i}", 2 + i % 6) for i in range(24)}
    real.wait_for(lambda: stored_ms(cluster, topic, "s0") or None, late(4), "the first of them")
    killed = real.leader(cluster)
    cluster.kill(killed)
    cluster.start(killed)
    cluster.wait_ready()
    cluster.stop()
    cluster.start_all()
    cluster.wait_ready()
    real.wait_for(
        lambda: all(stored_ms(cluster, topic, body) for body in receipts) or None, 60, "all of them"
    )
    for body, receipt in receipts.items():
        (at_ms,) = stored_ms(cluster, topic, body)
        assert at_ms >= receipt["deliver_s"] * 1000
