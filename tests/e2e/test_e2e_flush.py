"""The three flush policies in one real cluster: what an acknowledgement calls itself, whichever
node was asked, and that nothing stalls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgermq.client.api.connection import Connection
from ledgermq.client.messages.sending import Outgoing, Sender
from ledgermq.node.process.local import LocalCluster
from tests.cluster import leader, running, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow
LAZY = {"policy": "memory", "interval_ms": 60_000, "thorough_ms": 60_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """No flush timer expires within a test: every sync was requested."""
    with running(tmp_path_factory.mktemp("flush"), extra={"flush": LAZY}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cli(cluster: LocalCluster) -> CommandLine:
    return CommandLine.of(cluster)


def classes(cluster: LocalCluster, topic: str, **properties: str) -> set[str | None]:
    """What a send through each node, leader or not, is acknowledged for."""
    found = set()
    for address in cluster.nodes.values():
        with Connection(f"{address.host}:{address.client_port}") as connection:
            summary = Sender(connection).send_all([Outgoing(topic, b"x", properties=properties)])
        assert summary.acknowledged == 1, summary.first_error
        found.add(summary.durability)
    return found


def test_every_acknowledgement_names_its_class(cluster: LocalCluster, cli: CommandLine) -> None:
    """The group's policy, a topic above it, the priority of a message: the same words through the
    leader and through any other node."""
    cli.ok("topic", "create", "plain")
    assert classes(cluster, "plain") == {"memory"}
    for durability, expected in (("high", "durable"), ("memory", "memory"), ("hybrid", "memory")):
        cli.ok("topic", "create", f"t-{durability}", "--durability", durability)
        assert (
            cli.ok("topic", "describe", f"t-{durability}", "--json").json["durability"]
            == durability
        )
        assert classes(cluster, f"t-{durability}") == {expected}
    assert classes(cluster, "t-hybrid", PRIORITY="4") == {"durable"}
    assert classes(cluster, "t-hybrid", PRIORITY="3") == {"memory"}


def test_the_durability_of_a_topic_may_change(cluster: LocalCluster, cli: CommandLine) -> None:
    """An update is in force when the command returns; `group` gives the topic back to its broker
    group."""
    cli.ok("topic", "create", "changing")
    cli.ok("topic", "update", "changing", "--durability", "high")
    assert classes(cluster, "changing") == {"durable"}
    cli.ok("topic", "update", "changing", "--durability", "group")
    assert cli.ok("topic", "describe", "changing", "--json").json["durability"] == "group"
    assert classes(cluster, "changing") == {"memory"}


def test_a_consumer_does_not_wait_for_a_timer(cli: CommandLine) -> None:
    """Messages acknowledged from memory are committed as soon as a Receive waits for them."""
    cli.ok("topic", "create", "fresh")
    assert (
        cli.ok("send", "--topic", "fresh", "--body", "hello", "--json").json["durability"]
        == "memory"
    )
    assert (
        cli.ok(
            "consume", "--topic", "fresh", "--group", "g", "--max", "1", "--until-empty", "20s"
        ).out
        == "hello\n"
    )


def test_messages_in_memory_outlive_a_killed_leader(
    cluster: LocalCluster, cli: CommandLine
) -> None:
    """A majority holds them, so the next leader has them all, though no disk was synced for
    them."""
    cli.ok("topic", "create", "survivors")
    with Connection(cluster.endpoints) as connection:
        summary = Sender(connection).send_all(
            Outgoing("survivors", f"m{k}".encode()) for k in range(200)
        )
    assert (summary.acknowledged, summary.durability) == (200, "memory")
    killed = leader(cluster)
    cluster.kill(killed)
    wait_for(lambda: leader(cluster) != killed, 30, "another leader")
    bodies = cli.consume_all("survivors", "g")
    cluster.start(killed)
    cluster.wait_ready()
    assert sorted(bodies) == sorted(f"m{k}" for k in range(200))
