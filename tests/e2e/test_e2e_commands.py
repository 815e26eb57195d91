"""The command line against a real three-node cluster: every command of this part, its JSON and its
exit status."""

from __future__ import annotations

import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq import __version__
from tests.cluster import running, wait_for
from tests.e2e.command_line import CommandLine, described

pytestmark = pytest.mark.slow

MESSAGE_KEYS = [
    "v",
    "message_id",
    "topic",
    "queue",
    "offset",
    "tag",
    "keys",
    "message_group",
    "properties",
    "body",
    "attempt",
    "born_ms",
    "store_ms",
]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with running(tmp_path_factory.mktemp("e2e")) as cluster:
        yield CommandLine.of(cluster)


@pytest.fixture
def topic(cli: CommandLine) -> str:
    """A normal topic of its own with four queues."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cli.ok("topic", "create", name, "--queues", "4")
    return name


def test_status_json_has_the_published_shape(cli: CommandLine, topic: str) -> None:
    """`status --json` holds exactly the keys of the command line's page; a cluster at rest is
    strict-healthy."""

    def whole() -> dict[str, Any] | None:
        """A status with the answers of all nodes: what a node did not tell in time is null."""
        told = cli.run("status", "--wait", "60s", "--strict", "--json")
        return (
            told.json
            if told.status == 0 and all(t["messages"] is not None for t in told.json["topics"])
            else None
        )

    found = wait_for(whole, 60, "a whole status")
    assert list(found) == ["v", "cluster_id", "health", "nodes", "groups", "topics"]
    assert found["health"] == "ok" and found["cluster_id"]
    keys = [
        "node",
        "endpoint",
        "up",
        "version",
        "native",
        "disk_used_bytes",
        "clock",
        "clock_offset_ms",
        "disk",
        "peer_failures",
    ]
    assert [list(node) for node in found["nodes"]] == [keys] * 3
    assert all(
        node["clock"] == "agreed" and node["clock_offset_ms"] == 0 for node in found["nodes"]
    )
    assert [node["node"] for node in found["nodes"]] == ["n1", "n2", "n3"] and all(
        node["up"] for node in found["nodes"]
    )
    assert all(
        node["version"] == __version__ and node["disk_used_bytes"] > 0 for node in found["nodes"]
    )
    assert ";".join(node["endpoint"] for node in found["nodes"]) == cli.endpoints
    (group,) = found["groups"]
    assert list(group) == [
        "group",
        "leader",
        "term",
        "commit_index",
        "replicas",
        "disputed_files",
        "replication",
        "ha",
    ]
    assert (group["disputed_files"], group["replication"], group["ha"]) == ([], "raft", None)
    assert (
        group["group"] == "g1"
        and group["leader"] in ("n1", "n2", "n3")
        and group["term"] >= 1
        and group["commit_index"] >= 0
    )
    keys = [
        "node",
        "role",
        "end_index",
        "durable_index",
        "commit_index",
        "lag_entries",
        "state",
        "rebuild",
        "catch_up",
    ]
    keys += ["differing_files", "unverified_ms", "tiered"]
    assert [list(replica) for replica in group["replicas"]] == [keys] * 3
    assert sorted(replica["role"] for replica in group["replicas"]) == [
        "follower",
        "follower",
        "leader",
    ]
    assert all(
        (replica["catch_up"] is None) == (replica["role"] == "leader")
        for replica in group["replicas"]
    )
    followers = [replica["catch_up"] for replica in group["replicas"] if replica["catch_up"]]
    assert all(
        {"state", "behind_entries", "behind_bytes", "seconds_left"} <= follower.keys()
        for follower in followers
    )
    (own,) = [t for t in found["topics"] if t["topic"] == topic]
    assert own == {"namespace": "", "topic": topic, "kind": "normal", "queues": 4, "messages": 0}
    assert cli.ok("status").out.startswith(f"cluster {found['cluster_id']}: ok\n")


def test_commands_without_an_answer_exit_with_3_and_name_the_endpoints() -> None:
    """A command whose endpoints are all dead ends within its time-out."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{held.getsockname()[1]}"
        for arguments in (
            ("status",),
            ("send", "--topic", "t", "--body", "b"),
            ("consume", "--topic", "t", "--group", "g"),
        ):
            outcome = CommandLine(dead).run(*arguments, "--timeout", "1s")
            assert outcome.status == 3 and dead in outcome.error


def test_topic_life(cli: CommandLine) -> None:
    """Create, again (0), other settings (4), list, describe, update, delete, and unknown after that
    (4)."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert (
        cli.ok("topic", "create", name, "--kind", "fifo", "--queues", "3", "--json").json["created"]
        is True
    )
    assert (
        cli.ok("topic", "create", name, "--kind", "fifo", "--queues", "3", "--json").json["created"]
        is False
    )
    for other in (
        ("--queues", "3"),
        ("--kind", "fifo", "--queues", "4"),
        ("--kind", "fifo", "--queues", "3", "--permission", "r"),
    ):
        refused = cli.run("topic", "create", name, *other)
        assert refused.status == 4 and name in refused.error
    assert name in [t["topic"] for t in cli.ok("topic", "list", "--json").json["topics"]]
    told = described(cli, name)
    assert (told["kind"], told["queues"], told["permission"], told["messages"]) == (
        "fifo",
        3,
        "rw",
        0,
    )
    assert [q["queue"] for q in told["queue_list"]] == [0, 1, 2] and {
        q["broker_group"] for q in told["queue_list"]
    } == {"g1"}
    assert (
        cli.ok("topic", "update", name, "--queues", "5", "--permission", "r", "--json").json[
            "queues"
        ]
        == 5
    )
    assert cli.ok("topic", "describe", name, "--json").json["permission"] == "r"
    assert cli.run("send", "--topic", name, "--body", "b", "--message-group", "g").status == 4
    unsure = cli.run("topic", "delete", name)
    assert unsure.status == 64 and "--yes" in unsure.error
    cli.ok("topic", "delete", name, "--yes")
    for command in (
        ("describe", name),
        ("update", name, "--queues", "6"),
        ("delete", name, "--yes"),
    ):
        unknown = cli.run("topic", *command)
        assert unknown.status == 4 and name in unknown.error


def test_consumer_group_life(cli: CommandLine) -> None:
    """The same for consumer groups; an unknown one is refused with 4."""
    name = f"g-{uuid.uuid4().hex[:8]}"
    assert cli.ok("group", "create", name, "--max-attempts", "5", "--json").json["created"] is True
    assert cli.ok("group", "create", name, "--max-attempts", "5", "--json").json["created"] is False
    other = cli.run("group", "create", name, "--max-attempts", "6")
    assert other.status == 4 and name in other.error
    assert name in [g["group"] for g in cli.ok("group", "list", "--json").json["groups"]]
    told = cli.ok("group", "describe", name, "--json").json
    assert (told["group"], told["max_attempts"], told["fifo"], told["configured"]) == (
        name,
        5,
        False,
        True,
    )
    unsure = cli.run("group", "delete", name)
    assert unsure.status == 64 and "--yes" in unsure.error
    cli.ok("group", "delete", name, "--yes")
    for command in (("describe", name), ("delete", name, "--yes")):
        unknown = cli.run("group", *command)
        assert unknown.status == 4 and name in unknown.error


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "no spaces"),
        ("send", "--topic", "never-made", "--body", "b"),
        ("consume", "--topic", "never-made", "--group", "g", "--until-empty", "1s"),
        ("peek", "--topic", "never-made"),
        ("group", "create", "no/slash"),
    ],
)
def test_refusals_are_4(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    """Unknown topics and illegal names: one line that says what and what to do."""
    refused = cli.run(*arguments)
    assert refused.status == 4 and refused.error


def test_wrong_kind_is_refused(cli: CommandLine, topic: str) -> None:
    """A message group on a normal topic is a mistake of the sender."""
    refused = cli.run("send", "--topic", topic, "--body", "b", "--message-group", "g", "--json")
    assert refused.status == 4 and "fifo" in refused.error
    assert (
        refused.json["acknowledged"] == 0
        and refused.json["failed"] == 1
        and refused.json["durability"] is None
    )


def test_send_file_consume_and_peek(cli: CommandLine, topic: str, tmp_path: Path) -> None:
    """What a file holds, line by line and byte by byte, is acknowledged, consumed once, and can be
    looked at."""
    bodies = [f"line {k} ünï".encode() for k in range(200)] + [b"\xff\x00 raw", b"  spaces \r"]
    source = tmp_path / "lines.txt"
    source.write_bytes(b"\n".join(bodies))
    about = ("--tag", "a", "--key", "k1", "--key", "k2", "--property", "p=q=r")
    summary = cli.ok("send", "--topic", topic, "--file", source, *about, "--json").json
    assert list(summary) == ["v", "sent", "acknowledged", "failed", "duration_ms", "durability"]
    assert (summary["sent"], summary["acknowledged"], summary["failed"], summary["durability"]) == (
        202,
        202,
        0,
        "durable",
    )
    target = tmp_path / "out.bin"
    consumed = cli.ok(
        "consume", "--topic", topic, "--group", "g-file", "--until-empty", "1s", "--to", target
    )
    assert consumed.out == "" and sorted(
        target.read_bytes().removesuffix(b"\n").split(b"\n")
    ) == sorted(bodies)
    assert cli.consume_all(topic, "g-file") == []
    peeked = cli.ok("peek", "--topic", topic, "--max", "1000", "--json").lines
    assert len(peeked) == 202 and len({(m["queue"], m["offset"]) for m in peeked}) == 202
    assert {m["tag"] for m in peeked} == {"a"} and all(
        m["keys"] == ["k1", "k2"] and m["properties"] == {"p": "q=r"} for m in peeked
    )
    assert [list(m) for m in peeked if "body" in m] == [MESSAGE_KEYS] * 201
    (raw,) = [m for m in peeked if "body_base64" in m]
    assert (
        raw["body_base64"] == "/wAgcmF3" and raw["attempt"] is None and raw["message_group"] is None
    )
    told = cli.ok("group", "describe", "g-file", "--json").json
    assert {(q["lag"], q["leased"]) for q in told["queues"]} == {(0, 0)}
    assert sum(q["max_offset"] for q in told["queues"]) == 202


def test_consume_json_max_and_no_ack(cli: CommandLine, topic: str) -> None:
    """`--max` bounds, `--no-ack` leaves messages leased, and JSON lines say which delivery it
    is."""
    assert cli.send_lines(topic, [f"m{k}" for k in range(10)])["acknowledged"] == 10
    kept = cli.ok(
        "consume", "--topic", topic, "--group", "g-kept", "--max", "3", "--no-ack", "--json"
    ).lines
    assert (
        len(kept) == 3
        and [list(m) for m in kept] == [MESSAGE_KEYS] * 3
        and {m["attempt"] for m in kept} == {1}
    )
    assert all(m["topic"] == topic and m["store_ms"] >= m["born_ms"] - 1000 for m in kept)
    others = cli.consume_all(topic, "g-kept")
    assert sorted(others + [m["body"] for m in kept]) == [f"m{k}" for k in range(10)]
    leased = cli.ok("group", "describe", "g-kept", "--json").json
    assert sum(q["leased"] for q in leased["queues"]) == 3
    assert sorted(cli.consume_all(topic, "g-other", "--max", "10")) == [f"m{k}" for k in range(10)]


def test_consume_filters_by_tag(cli: CommandLine, topic: str) -> None:
    """Only messages with a wanted tag arrive."""
    for tag in ("a", "b", "c"):
        assert (
            cli.send_lines(topic, [f"{tag}{k}" for k in range(5)], "--tag", tag)["acknowledged"]
            == 5
        )
    assert sorted(cli.consume_all(topic, "g-tags", "--filter", "a || c")) == [
        f"{tag}{k}" for tag in "ac" for k in range(5)
    ]


def test_peek_begins_where_asked(cli: CommandLine) -> None:
    """earliest, latest, an offset, a time, one queue, and a limit."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cli.ok("topic", "create", name, "--kind", "fifo", "--queues", "1")
    every = [f"m{k}" for k in range(20)]
    cli.send_lines(name, every[:12], "--message-group", "g")
    (last,) = cli.ok("peek", "--topic", name, "--from", "latest", "--max", "1", "--json").lines
    middle_ms = last["store_ms"] + 1
    cli.send_lines(name, every[12:], "--message-group", "g")

    def bodies(*arguments: str) -> list[str]:
        return [m["body"] for m in cli.ok("peek", "--topic", name, "--json", *arguments).lines]

    assert bodies() == every[:10]
    assert bodies("--from", "latest", "--max", "3") == every[-3:]
    assert bodies("--queue", "0", "--from", "15", "--max", "4") == every[15:19]
    assert bodies("--queue", "0", "--from", "20") == []
    assert bodies("--from", f"{middle_ms}ms", "--max", "100") == every[12:]
    wrong = cli.run("peek", "--topic", name, "--from", "yesterday")
    assert wrong.status == 64 and "earliest" in wrong.error
    assert cli.run("peek", "--topic", name, "--queue", "9").status == 4


def test_fifo_messages_keep_their_order(cli: CommandLine) -> None:
    """A message group is in one queue and is delivered in the order of its sends."""
    name = f"f-{uuid.uuid4().hex[:8]}"
    cli.ok("topic", "create", name, "--kind", "fifo", "--queues", "4")
    for group in ("x", "y", "z"):
        assert (
            cli.send_lines(name, [f"{group}{k}" for k in range(20)], "--message-group", group)[
                "acknowledged"
            ]
            == 20
        )
    peeked: list[dict[str, Any]] = cli.ok("peek", "--topic", name, "--max", "100", "--json").lines
    for group in ("x", "y", "z"):
        own = [m for m in peeked if m["message_group"] == group]
        assert len({m["queue"] for m in own}) == 1 and [m["body"] for m in own] == [
            f"{group}{k}" for k in range(20)
        ]
    consumed = cli.consume_all(name, "g-fifo")
    assert sorted(consumed) == sorted(f"{group}{k}" for group in "xyz" for k in range(20))


def test_consume_follows_until_ctrl_c(cli: CommandLine, topic: str) -> None:
    """Unbounded, it prints what arrives and ends with 0 and silence on SIGINT."""
    follower = cli.start("consume", "--topic", topic, "--group", "g-follow", "-q")
    assert follower.stdout is not None and follower.stderr is not None
    with follower:
        cli.send_lines(topic, ["first"])
        assert follower.stdout.readline() == b"first\n"
        cli.send_lines(topic, ["second"])
        assert follower.stdout.readline() == b"second\n"
        follower.send_signal(signal.SIGINT)
        assert (follower.wait(60), follower.stdout.read(), follower.stderr.read()) == (0, b"", b"")
