"""The JSON objects of the command line, key by key, and the tables for people."""

from __future__ import annotations

import json
from functools import partial

import pytest
from rich.console import Console

from ledgermq.client import render, results
from ledgermq.client.api.reading import read
from ledgermq.proto import admin_pb2, messaging_pb2, units

MESSAGE_KEYS = [
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


def test_status_knows_and_does_not_know() -> None:
    """Known values as they are, zero included; what the node left out is null."""
    status = admin_pb2.ClusterStatusResponse(health="degraded", cluster_id="c")
    status.nodes.add(
        node="n1", endpoint="h:1", up=True, version="0.1.0", native="0.1.0", disk_used_bytes=0
    )
    status.nodes.add(node="n2")
    group = status.groups.add(group="g1", leader="n1", term=3, commit_index=0)
    group.replicas.add(
        node="n1", role="leader", end_index=5, durable_index=4, commit_index=3, lag_entries=0
    )
    group.replicas.add(node="n2")
    status.groups.add(group="g2")
    status.topics.add(
        topic=admin_pb2.Name(namespace="ns", name="t"), kind="fifo", queues=8, messages=0
    )
    status.topics.add(topic=admin_pb2.Name(name="u"), kind="normal", queues=1)
    unknown = (
        "role",
        "end_index",
        "durable_index",
        "commit_index",
        "lag_entries",
        "state",
        "rebuild",
        "catch_up",
        "unverified_ms",
    )
    nothing: dict[str, object] = {**dict.fromkeys(unknown), "differing_files": [], "tiered": None}
    first = {
        **nothing,
        "node": "n1",
        "role": "leader",
        "end_index": 5,
        "durable_index": 4,
        "commit_index": 3,
        "lag_entries": 0,
    }
    undisputed: dict[str, object] = {"disputed_files": [], "replication": None, "ha": None}
    clock = {"clock": None, "clock_offset_ms": None, "disk": None, "peer_failures": []}
    found = render.status_json(status)
    assert found == {
        "cluster_id": "c",
        "health": "degraded",
        "nodes": [
            {
                "node": "n1",
                "endpoint": "h:1",
                "up": True,
                "version": "0.1.0",
                "native": "0.1.0",
                "disk_used_bytes": 0,
                **clock,
            },
            {
                "node": "n2",
                "endpoint": None,
                "up": False,
                "version": None,
                "native": None,
                "disk_used_bytes": None,
                **clock,
            },
        ],
        "groups": [
            {
                **undisputed,
                "group": "g1",
                "leader": "n1",
                "term": 3,
                "commit_index": 0,
                "replicas": [first, {"node": "n2", **nothing}],
            },
            {
                **undisputed,
                "group": "g2",
                "leader": None,
                "term": None,
                "commit_index": None,
                "replicas": [],
            },
        ],
        "topics": [
            {"namespace": "ns", "topic": "t", "kind": "fifo", "queues": 8, "messages": 0},
            {"namespace": "", "topic": "u", "kind": "normal", "queues": 1, "messages": None},
        ],
    }
    assert list(found) == ["cluster_id", "health", "nodes", "groups", "topics"]


def test_a_node_without_the_compiled_package_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """`none`; of a node that does not answer nothing is known."""
    status = admin_pb2.ClusterStatusResponse(health="degraded")
    status.nodes.add(node="n1", endpoint="h:1", up=True, version="0.1.0", native="0.1.0")
    status.nodes.add(node="n2", endpoint="h:2", up=True, version="0.1.0")
    status.nodes.add(node="n3", endpoint="h:3")
    render.status_text(status, exact=True)
    rows = {
        cells[1].strip(): cells[5].strip()
        for line in capsys.readouterr().out.splitlines()
        if len(cells := line.split("│")) == 8
    }
    assert rows == {"n1": "0.1.0", "n2": "none", "n3": "?"}


def test_status_tells_of_a_replica_that_is_being_rebuilt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """State, what is damaged, where the bytes come from, how far it is and how long it will take;
    and a sentence for people."""
    status = admin_pb2.ClusterStatusResponse(health="degraded")
    replica = status.groups.add(group="g1").replicas.add(node="n2", state="repairing")
    told = admin_pb2.RebuildInfo(
        reason="entry 7 is damaged", source="n1", done_bytes=5, total_bytes=20, remaining_ms=3000
    )
    replica.rebuild.CopyFrom(told)
    (found,) = render.status_json(status)["groups"][0]["replicas"]
    rebuild = {
        "reason": "entry 7 is damaged",
        "source": "n1",
        "done_bytes": 5,
        "total_bytes": 20,
        "remaining_ms": 3000,
    }
    assert (found["role"], found["state"], found["rebuild"]) == (None, "repairing", rebuild)
    render.status_text(status, True)
    assert (
        "g1 on n2 is repairing: entry 7 is damaged (5 of 20 bytes from n1, about 3 s left)"
        in capsys.readouterr().out
    )


def test_status_tells_how_a_follower_comes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has what the leader knows, or null; the table shows only lagging followers."""
    status = admin_pb2.ClusterStatusResponse(health="ok")
    group = status.groups.add(group="g1")
    late = group.replicas.add(node="n2").catch_up
    late.CopyFrom(
        admin_pb2.CatchUp(
            state="flowing",
            behind_entries=9,
            behind_bytes=900,
            bytes_per_s=50.0,
            seconds_left=18.0,
            note="alone",
        )
    )
    group.replicas.add(node="n3").catch_up.CopyFrom(
        admin_pb2.CatchUp(state="flowing", behind_entries=0, behind_bytes=0)
    )
    late_json, level_json = (
        replica["catch_up"] for replica in render.status_json(status)["groups"][0]["replicas"]
    )
    assert (
        late_json["state"],
        late_json["behind_bytes"],
        late_json["seconds_left"],
        late_json["note"],
    ) == ("flowing", 900, 18.0, "alone")
    assert (
        late_json["entries_per_s"] is None
        and level_json["seconds_left"] is None
        and level_json["restarts"] == 0
    )
    render.status_text(status, True)
    shown = capsys.readouterr().out
    assert "alone" in shown and len([line for line in shown.splitlines() if "flowing" in line]) == 1


def test_a_line_is_one_versioned_object() -> None:
    """`v` comes first, text stays readable, nothing breaks the line."""
    line = render.json_line(body="ü\n", n=None)
    assert line == '{"v":1,"body":"ü\\n","n":null}' and json.loads(line)["body"] == "ü\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", {"body": ""}),
        ("ünï".encode(), {"body": "ünï"}),
        (b"\xff\x00", {"body_base64": "/wA="}),
        (b"\x00", {"body": "\x00"}),
        ("\ud800".encode("utf-8", "surrogatepass"), {"body_base64": "7aCA"}),
    ],
)
def test_bodies_are_text_or_base64(body: bytes, expected: dict[str, str]) -> None:
    """Bytes that are not UTF-8 are never replaced or dropped."""
    assert render.body_fields(body) == expected


def test_a_peeked_message() -> None:
    """The keys of the page in their order; a message only looked at has no attempt."""
    message = admin_pb2.PeekedMessage(
        queue=2, offset=0, keys=["k"], properties={"p": "1"}, body=b"b", born_ms=5, store_ms=6
    )
    message.topic.name = "t"
    found = render.peeked_json(message)
    assert list(found) == MESSAGE_KEYS
    assert found == {
        "message_id": None,
        "topic": "t",
        "queue": 2,
        "offset": 0,
        "tag": None,
        "keys": ["k"],
        "message_group": None,
        "properties": {"p": "1"},
        "body": "b",
        "attempt": None,
        "born_ms": 5,
        "store_ms": 6,
    }


def test_a_received_message() -> None:
    """The same keys; absent times are null, the attempt is the server's."""
    message = messaging_pb2.Message(
        body=b"\xff", user_properties={"p": "1", "__SHARDINGKEY": "g", "__transactionId__": "ID"}
    )
    message.topic.name = "t"
    system = message.system_properties
    system.message_id, system.queue_id, system.queue_offset, system.delivery_attempt = "ID", 3, 0, 2
    system.tag, system.message_group = "a", "g"
    system.keys.append("k")
    system.store_timestamp.FromMilliseconds(1_700_000_000_123)
    found = render.received_json(message)
    assert list(found) == [key if key != "body" else "body_base64" for key in MESSAGE_KEYS]
    assert (found["offset"], found["attempt"], found["tag"], found["message_group"]) == (
        0,
        2,
        "a",
        "g",
    )
    assert (found["born_ms"], found["store_ms"]) == (None, 1_700_000_000_123)
    assert found["properties"] == {"p": "1"}, "the message group and the id have keys of their own"


def test_a_topic_in_detail() -> None:
    """Queues with their places; unknown offsets are null."""
    topic = admin_pb2.TopicInfo(
        topic=admin_pb2.Name(name="t"), kind="normal", queues=1, permission="rw"
    )
    topic.queue_list.add(queue=0, broker_group="g1", group_queue=0, max_offset=0)
    found = render.topic_detail_json(topic)
    assert list(found) == [
        "namespace",
        "topic",
        "kind",
        "queues",
        "messages",
        "permission",
        "durability",
        "dedup_ms",
        "queue_list",
    ]
    assert found["durability"] == "group"
    offsets = {"min_offset": None, "max_offset": 0, "stored_offset": None}
    assert found["queue_list"] == [{"queue": 0, "broker_group": "g1", "group_queue": 0, **offsets}]


def test_the_object_store_of_a_replica() -> None:
    """What it lacks, what it holds, and why this node cannot read it."""
    tiered = admin_pb2.TieredInfo(
        verified_pos=9,
        stored_files=2,
        stored_bytes=2 << 30,
        stored_from_index=7,
        unreadable="the store is away",
    )
    found = render.tiered_json(tiered)
    assert (found["waits_for"], found["stored_from_index"], found["unreadable"]) == (
        None,
        7,
        "the store is away",
    )
    assert render._tiered(tiered, exact=False) == (
        "every sealed log file is verified in the object store; it holds 2.00 GiB from entry 7 on; "
        "older entries cannot be read through this node: the store is away"
    )


def test_a_consumer_group() -> None:
    """Progress per queue; what is not known is null."""
    group = admin_pb2.ConsumerGroupInfo(
        group=admin_pb2.Name(name="g"), max_attempts=17, configured=True
    )
    group.queues.add(
        topic=admin_pb2.Name(name="t"), broker_group="g1", group_queue=1, cursor=0, lag=4, queue=5
    )
    found = render.group_json(read(results.ConsumerGroup, group))
    assert (
        found["group"],
        found["max_attempts"],
        found["fifo"],
        found["configured"],
        found["clients"],
    ) == ("g", 17, False, True, None)
    queue = {
        "topic": "t",
        "broker_group": "g1",
        "group_queue": 1,
        "queue": 5,
        "cursor": 0,
        "leased": None,
        "lag": 4,
        "max_offset": None,
    }
    assert found["queues"] == [queue]


def test_tables_are_not_cut_off_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A long name stays whole where there is no terminal; unknown is a question mark."""
    render.print_table("things", ["name", "n"], [["x" * 300, 1], ["y", None]])
    out = capsys.readouterr().out
    assert "x" * 300 in out and "?" in out and "…" not in out


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10_239, "10.0 KiB"),
        (102_399, "100 KiB"),
        (1_048_063, "1023 KiB"),
        (1_048_575, "1.00 MiB"),
        (3 << 30, "3.00 GiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_sizes_for_people(count: int, words: str) -> None:
    """Three digits, and never 1024 of a unit that has a larger one."""
    assert units.size_words(count) == words


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1999, "1 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (3_605_000, "1 h"),
        (190_000_000, "2 d 4 h"),
    ],
)
def test_ages_for_people(ms: int, words: str) -> None:
    """The two largest units, and no zero."""
    assert units.duration_words(ms) == words


@pytest.mark.parametrize(
    ("exact", "disk", "oldest"), [(False, "1.00 KiB", "3 min 20 s"), (True, "1024", "200000")]
)
def test_sizes_and_ages_are_rounded_unless_exact_ones_are_wanted(
    capsys: pytest.CaptureFixture[str], exact: bool, disk: str, oldest: str
) -> None:
    """`--bytes` shows the numbers of --json."""
    status = admin_pb2.ClusterStatusResponse(health="ok", cluster_id="c")
    status.nodes.add(node="n1", endpoint="h:1", up=True, disk_used_bytes=1024)
    lag = admin_pb2.GroupLagResponse()
    topic = lag.topics.add(topic=admin_pb2.Name(name="t"), lag=1, oldest_age_ms=200_000)
    topic.queues.add(queue=0, broker_group="g1", lag=1, oldest_age_ms=200_000)
    render.status_text(status, exact)
    assert f" {disk} " in capsys.readouterr().out
    render.lag_text(lag, exact)
    assert capsys.readouterr().out.count(f" {oldest} ") == 2


def test_offsets_of_clocks_for_people() -> None:
    assert [units.offset_words(ms) for ms in (0, -999, 999, 1499, -1500)] == [
        "0 ms ahead",
        "999 ms behind",
        "999 ms ahead",
        "1 s ahead",
        "2 s behind",
    ]
    assert units.offset_words(400 * 86_400_000 - 1) == "400 d ahead"


@pytest.mark.parametrize(
    ("state", "offset_ms", "said"),
    [
        ("agreed", 900, ""),
        ("uncertain", 5000, ""),
        ("off", 400 * 86_400_000, "clock 400 d ahead"),
        ("divided", -3000, "clock 3 s behind"),
    ],
)
def test_status_says_which_clock_is_not_followed(
    capsys: pytest.CaptureFixture[str], state: str, offset_ms: int, said: str
) -> None:
    status = admin_pb2.ClusterStatusResponse(health="ok", cluster_id="c")
    status.nodes.add(node="n1", endpoint="h:1", up=True, clock=state, clock_offset_ms=offset_ms)
    assert render.status_json(status)["nodes"][0]["clock_offset_ms"] == offset_ms
    render.status_text(status, False)
    out = capsys.readouterr().out
    assert "clock" not in out if not said else said in out


@pytest.mark.parametrize(
    ("disks", "known", "said"),
    [
        (("fine",), "fine", False),
        (("delete",), "delete", False),
        (("full",), "full", True),
        (("",), None, False),
        (("fine", "full"), "full", True),
        (("fine", "a word of a later version"), "a word of a later version", False),
    ],
)
def test_status_shows_the_fullest_disk_of_a_node(
    capsys: pytest.CaptureFixture[str], disks: tuple[str, ...], known: str | None, said: bool
) -> None:
    """Of a node with several workers, the worst."""
    status = admin_pb2.ClusterStatusResponse(health="ok", cluster_id="c")
    for number, disk in enumerate(disks):
        status.nodes.add(
            node="n1" if not number else f"n1.{number + 1}",
            endpoint="h:1",
            up=True,
            disk=disk or None,
        )
    assert render.status_json(status)["nodes"][0]["disk"] == known
    render.status_text(status, False)
    assert ("disk full" in capsys.readouterr().out) is said


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(
        render, "Console", partial(Console, force_terminal=True, width=width, color_system=None)
    )


def test_narrow_terminal_wraps_text_and_keeps_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Large numbers, and names that do not fit, in 80 columns: numbers are whole, and text
    continues below itself."""
    on_a_terminal(monkeypatch, 80)
    numbers = [123_456_789, 1_234_567_890, 1_234_567_891, 1_234_567_892, 0]
    columns = ["group", "node", "role", "term", "begin", "end", "durable", "commit", "lag"]
    render.print_table(
        "replicas", columns, [["g1", f"n{k}", "follower", 12, *numbers] for k in (1, 2, 3)]
    )
    topic = ["shop", "orders-of-the-whole-world", "transaction", 8, "rw", "high", "-", 1_234_567]
    render.print_table(
        "topics",
        ["namespace", "topic", "kind", "queues", "permission", "durability", "dedup", "messages"],
        [topic],
    )
    out = capsys.readouterr().out
    assert "…" not in out and max(map(len, map(str.rstrip, out.splitlines()))) <= 80, out
    assert [line.split() for line in out.splitlines()][3] == [
        "g1",
        "n1",
        "follower",
        "12",
        *map(str, numbers),
    ]
    body = out[out.index("\nshop") + 1 :].splitlines()
    at = [line[body[0].index("orders") :].split(" ")[0] for line in body]
    assert "".join(at) == "orders-of-the-whole-world" and "1234567" in out


def test_a_wide_terminal_has_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As before."""
    on_a_terminal(monkeypatch, 40)
    render.print_table("t", ["name", "number"], [["a", 1], ["b", None]])
    assert "│ a    │      1 │" in capsys.readouterr().out


def test_a_table_that_is_too_wide_has_a_line_for_each_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a number would be another one."""
    on_a_terminal(monkeypatch, 20)
    render.print_table("t", ["one", "two", "three"], [[10**11, 10**11 + 1, None], [1, 2, 3]])
    assert (
        capsys.readouterr().out
        == "t\none: 100000000000\n  two: 100000000001\n  three: ?\none: 1\n  two: 2\n  three: 3\n"
    )


@pytest.mark.parametrize("width", [40, 43, 44])
def test_a_message_id_stays_whole(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the table needs every column of the terminal."""
    on_a_terminal(monkeypatch, width)
    message_id = "0102FC0000000114910B1E105F00000003"
    render.print_table("t", ["id", "state"], [[message_id, "waiting"]])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= width
    assert (f"id: {message_id}" in lines) is (width < 44) and any(
        message_id in line for line in lines
    )
