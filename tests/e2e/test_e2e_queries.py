"""Queries, lag and resets against a real three-node cluster with two broker groups, through the
command line."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from tests import cluster as real
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with real.running(tmp_path_factory.mktemp("queries"), groups=("g1", "g2")) as running:
        yield running


@pytest.fixture
def cli(cluster: LocalCluster) -> CommandLine:
    return CommandLine.of(cluster)


@pytest.fixture
def topic(cli: CommandLine) -> str:
    """A normal topic of its own with four queues over both broker groups."""
    name = f"q-{uuid.uuid4().hex[:8]}"
    cli.ok("topic", "create", name, "--queues", "4")
    return name


def offsets(found: dict[str, Any]) -> int:
    return sum(queue["cursor"] for topic in found["topics"] for queue in topic["queues"])


def test_sent_message_is_found_by_key_id_and_time_on_every_node(
    cluster: LocalCluster, cli: CommandLine, topic: str
) -> None:
    """Each node gives the same answer; the id leads to three equal copies and the fate of the
    message."""
    cli.send_lines(topic, [f"m{k}" for k in range(40)], "--key", "many")
    about = ("--key", "k 1", "--key", "k2", "--property", "colour=red", "--tag", "x")
    sent = cli.ok("send", "--topic", topic, "--body", "the one", *about, "--json").json
    cli.send_lines(topic, [f"n{k}" for k in range(10)])
    found = []
    for node in cluster.nodes:
        one = CommandLine(real.target(cluster, node))
        (message,) = one.ok("query", "--topic", topic, "--key", "k 1", "--json").lines
        assert (
            message["body"] == "the one"
            and message["keys"] == ["k 1", "k2"]
            and message["properties"] == {"colour": "red"}
        )
        assert one.ok("query", "--topic", topic, "--key", "k2", "--json").lines == [message]
        assert one.ok("query", "--topic", topic, "--key", "absent").out == ""
        assert sorted(
            m["body"]
            for m in one.ok(
                "query", "--topic", topic, "--key", "many", "--max", "100", "--json"
            ).lines
        ) == sorted(f"m{k}" for k in range(40))
        assert {
            name: message[name] for name in ("message_id", "topic", "queue", "offset")
        }.items() <= sent.items()
        found.append(message)
    assert found[0] == found[1] == found[2]
    message = found[0]
    ranged = cli.ok(
        "query",
        "--topic",
        topic,
        "--time-range",
        f"{message['store_ms']}..",
        "--max",
        "100",
        "--json",
    ).lines
    assert message in ranged and {m["body"] for m in ranged} >= {f"n{k}" for k in range(10)}
    assert [m["store_ms"] for m in ranged] == sorted(m["store_ms"] for m in ranged)
    early = cli.ok(
        "query",
        "--topic",
        topic,
        "--time-range",
        f"-1h..{message['store_ms']}",
        "--max",
        "100",
        "--json",
    ).lines
    assert {m["body"] for m in early} <= {f"m{k}" for k in range(40)} and len(early) + len(
        ranged
    ) >= 51
    assert cli.run("query", "--topic", topic, "--id", "no-such-id").status == 4
    assert cli.run("query", "--topic", "no-such-topic", "--key", "k").status == 4

    cli.ok("consume", "--topic", topic, "--group", "reader", "--until-empty", "1s")
    real.wait_for(
        lambda: cli.run("status", "--strict").status == 0, 60, "followers level with their leaders"
    )
    (detail,) = cli.ok("query", "--topic", topic, "--id", message["message_id"], "--json").lines
    assert {key: detail[key] for key in message} == message
    assert [copy["node"] for copy in detail["replicas"]] == ["n1", "n2", "n3"]
    assert {copy["state"] for copy in detail["replicas"]} == {"present"}
    for name in ("position", "size", "index", "term", "chain_crc", "sha256"):
        assert len({copy[name] for copy in detail["replicas"]}) == 1, name
    assert detail["consumption"] == [
        {"namespace": "", "group": "reader", "state": "done", "attempt": None, "client": None}
    ]
    for copy in detail["replicas"]:
        data = (cluster.data(copy["node"]) / copy["file"]).read_bytes()
        inside = copy["position"] % len(data)
        assert b"the one" in data[inside : inside + copy["size"]]


def test_lag_and_resets(cli: CommandLine, topic: str) -> None:
    """Unconsumed messages are counted; after a reset to the beginning all messages are delivered
    again, after one to the end none."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    bodies = [f"m{k}" for k in range(60)]
    cli.send_lines(topic, bodies)
    assert cli.run("group", "lag", group).status == 4
    (waiting,) = cli.ok("group", "lag", group, "--topic", topic, "--json").json["topics"]
    assert waiting["lag"] == 60 and waiting["leased"] == 0 and waiting["oldest_age_ms"] >= 0
    assert sorted(cli.consume_all(topic, group)) == sorted(bodies)
    found = cli.ok("group", "lag", group, "--json").json
    assert [(t["topic"], t["lag"], t["leased"], t["oldest_age_ms"]) for t in found["topics"]] == [
        (topic, 0, 0, None)
    ]
    assert offsets(found) == 60

    assert cli.run("group", "reset", group, "--topic", topic, "--to", "earliest").status == 64
    back = cli.ok(
        "group", "reset", group, "--topic", topic, "--to", "earliest", "--yes", "--json"
    ).json
    assert [queue["cursor"] for queue in back["queues"]] == [0, 0, 0, 0]
    assert sorted(cli.consume_all(topic, group)) == sorted(bodies)
    cli.send_lines(topic, ["skipped-1", "skipped-2"])
    cli.ok("group", "reset", group, "--topic", topic, "--to", "latest", "--yes")
    assert cli.consume_all(topic, group) == []
    cli.send_lines(topic, ["new"])
    assert cli.consume_all(topic, group) == ["new"]
    cli.ok("group", "reset", group, "--topic", topic, "--queue", "0", "--to", "0", "--yes")
    again = cli.consume_all(topic, group)
    assert 0 < len(again) < 63
    assert (
        cli.run("group", "reset", "nobody", "--topic", topic, "--to", "latest", "--yes").status == 4
    )


def test_a_dead_replica_is_unknown_and_the_rest_is_told(cluster: LocalCluster, topic: str) -> None:
    """With one node down everything is still found; its copy is unknown, never called missing."""
    cli = CommandLine.of(cluster)
    cli.ok("send", "--topic", topic, "--body", "b", "--key", "k")
    # The copy that is acknowledged beside the leader's may be the victim's.
    cli.ok("status", "--wait", "60s", "--strict")
    victim = next(
        node
        for node in cluster.nodes
        if node not in {real.leader(cluster, "g1"), real.leader(cluster, "g2")}
    )
    cluster.kill(victim)
    try:
        others = ";".join(real.target(cluster, node) for node in cluster.nodes if node != victim)
        (found,) = (
            CommandLine(others)
            .ok("query", "--topic", topic, "--key", "k", "--detail", "--json")
            .lines
        )
        states = {copy["node"]: copy["state"] for copy in found["replicas"]}
        assert states.pop(victim) is None and set(states.values()) == {"present"}
    finally:
        cluster.start(victim)
        cluster.wait_ready()
