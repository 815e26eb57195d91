"""Two broker groups in one three-node cluster, and topics that lie over both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ledgermq.client.api.connection import Connection
from ledgermq.client.messages.sending import Outgoing, Sender
from tests.cluster import running
from tests.e2e.command_line import CommandLine, described

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with running(tmp_path_factory.mktemp("two"), groups=("g1", "g2")) as cluster:
        yield CommandLine.of(cluster)


def queues(cli: CommandLine, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli.ok("topic", "describe", topic, "--json").json["queue_list"]
    return found


def test_one_topic_over_both_groups(cli: CommandLine) -> None:
    """The queues are spread, sends land in both groups, and a consumer gets everything once from
    both."""
    status = cli.ok("status", "--wait", "60s", "--strict", "--json").json
    assert [group["group"] for group in status["groups"]] == ["g1", "g2"] and all(
        len(g["replicas"]) == 3 for g in status["groups"]
    )
    cli.ok("topic", "create", "both", "--queues", "7")
    spread = [(q["broker_group"], q["group_queue"]) for q in queues(cli, "both")]
    assert spread == [
        (group, k)
        for group in ("g1", "g2")
        for k in range(sum(owner == group for owner, _ in spread))
    ]
    assert {3, 4} == {sum(owner == group for owner, _ in spread) for group in ("g1", "g2")}
    bodies = [f"m{k}" for k in range(300)]
    assert cli.send_lines("both", bodies)["acknowledged"] == 300
    ends = described(cli, "both", 300)["queue_list"]
    landed = {
        group: sum(q["max_offset"] for q in ends if q["broker_group"] == group)
        for group in ("g1", "g2")
    }
    assert min(landed.values()) > 0 and sum(landed.values()) == 300
    peeked = cli.ok("peek", "--topic", "both", "--max", "1000", "--json").lines
    assert sorted(m["body"] for m in peeked) == sorted(bodies) and {
        m["queue"] for m in peeked
    } == set(range(7))
    assert sorted(cli.consume_all("both", "c")) == sorted(bodies)
    assert cli.consume_all("both", "c") == []
    progress = cli.ok("group", "describe", "c", "--json").json["queues"]
    assert {q["broker_group"] for q in progress} == {"g1", "g2"} and sum(
        q["cursor"] for q in progress
    ) == 300
    assert all(q["lag"] == q["leased"] == 0 for q in progress)


def test_fifo_message_groups_stay_in_one_queue_of_one_broker_group(cli: CommandLine) -> None:
    """Message groups are spread over both broker groups, each of them whole and in order in one
    queue."""
    cli.ok("topic", "create", "fifo", "--kind", "fifo", "--queues", "8")
    names = [f"plane-{k}" for k in range(8)]
    with Connection(cli.endpoints) as connection:
        lines = [
            Outgoing("fifo", f"{name}/{k}".encode(), message_group=name)
            for k in range(10)
            for name in names
        ]
        assert Sender(connection, window=1).send_all(lines).acknowledged == 80
    where = {q["queue"]: q["broker_group"] for q in queues(cli, "fifo")}
    peeked = cli.ok("peek", "--topic", "fifo", "--max", "1000", "--json").lines
    used = set()
    for name in names:
        own = [m for m in peeked if m["message_group"] == name]
        assert [m["body"] for m in own] == [f"{name}/{k}" for k in range(10)] and len(
            {m["queue"] for m in own}
        ) == 1
        used.add(where[own[0]["queue"]])
    assert used == {"g1", "g2"}
    assert sorted(cli.consume_all("fifo", "c-fifo")) == sorted(m["body"] for m in peeked)


def test_topic_grows_over_both_groups_and_is_deleted_in_both(cli: CommandLine) -> None:
    """More queues and the end of a topic take effect in every broker group."""
    cli.ok("topic", "create", "short", "--queues", "1")
    assert len(queues(cli, "short")) == 1
    cli.ok("topic", "update", "short", "--queues", "4")
    assert {q["broker_group"] for q in queues(cli, "short")} == {"g1", "g2"}
    assert cli.send_lines("short", [f"m{k}" for k in range(80)])["acknowledged"] == 80
    assert all(q["max_offset"] > 0 for q in described(cli, "short", 80)["queue_list"])
    cli.ok("topic", "delete", "short", "--yes")
    assert cli.run("send", "--topic", "short", "--body", "b").status == 4
    cli.ok("topic", "create", "short", "--queues", "4")
    assert cli.ok("peek", "--topic", "short").out == ""
