"""The commands against a scripted node: what they ask, what they print, how they end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import grpc
import pytest
from click.testing import CliRunner
from rich.console import Console

from ledgermq import cli
from ledgermq.client.api import connection as connection_module
from ledgermq.client.cli import (
    admin_commands,
    commands,
    consume_commands,
    group_commands,
    leadership_commands,
    member_commands,
    message_commands,
    receipt_commands,
    replication_commands,
    sink_commands,
)
from ledgermq.client.cli import storage_commands as log_commands
from ledgermq.proto import admin_pb2, messaging_pb2
from ledgermq.storage.cli import backup_commands as storage_commands
from ledgermq.storage.cli import doctor_commands, recover_commands
from tests.client.fake_cluster import (
    FakeNode,
    acked,
    admin_status,
    delivered,
    route,
    sent,
    status,
    verdict,
)
from tests.terminal import Typed

Run = Callable[..., tuple[int, str, str]]
COMMANDS = [
    admin_commands.status,
    admin_commands.topic,
    group_commands.group,
    message_commands.send,
    consume_commands.consume,
    message_commands.peek,
    message_commands.query,
    receipt_commands.receipts,
    sink_commands.sink,
    log_commands.why_kept,
    leadership_commands.transfer,
    replication_commands.elect,
    replication_commands.replication,
    member_commands.member,
    leadership_commands.why_leader_moved,
    storage_commands.backup,
    storage_commands.restore,
    doctor_commands.doctor,
    recover_commands.recover,
]


@pytest.fixture
def run(node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`ledgermq …` in this process against the fake: exit status, stdout, stderr. Whatever fails
    ends with one error line."""
    monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)

    def command(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.run(list(arguments))
        out, err = capfd.readouterr()
        own = [line for line in err.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in out + err
        # `status` that found the cluster unwell has said so on stdout.
        assert len(own) == (0 if code == 0 or (code == 1 and arguments[0] == "status") else 1)
        if own:
            assert err.splitlines()[-1] == own[0] and "; " in own[0]
        return code, out, err

    return command


def topic_info(name: str = "t", queues: int = 2) -> admin_pb2.TopicInfo:
    info = admin_pb2.TopicInfo(
        topic=admin_pb2.Name(name=name), kind="normal", queues=queues, permission="rw", messages=0
    )
    for number in range(queues):
        info.queue_list.add(
            queue=number, broker_group="g1", group_queue=number, min_offset=0, max_offset=0
        )
    return info


def cluster(
    *, leader: str | None = "n1", health: str = "ok", lag: int | None = 0, up: bool = True
) -> admin_pb2.ClusterStatusResponse:
    found = admin_pb2.ClusterStatusResponse(status=admin_status(), health=health, cluster_id="c")
    found.nodes.add(node="n1", up=True)
    found.nodes.add(node="n2", up=up)
    group = found.groups.add(group="g1", leader=leader)
    group.replicas.add(node="n1", role="leader", lag_entries=0)
    group.replicas.add(node="n2", role="follower", lag_entries=lag)
    return found


# -- status


@pytest.mark.parametrize(
    ("answer", "plain", "strict"),
    [
        (cluster(), 0, 0),
        (cluster(up=False, health="degraded"), 0, 1),
        (cluster(lag=3), 0, 1),
        (cluster(lag=None), 0, 1),
        (cluster(health="degraded"), 0, 1),
        (cluster(leader=None), 1, 1),
        (cluster(health="down"), 1, 1),
        (admin_pb2.ClusterStatusResponse(status=admin_status(), health="ok"), 1, 1),
    ],
)
def test_status_ends_as_the_cluster_is(
    node: FakeNode, run: Run, answer: Any, plain: int, strict: int
) -> None:
    """A leader everywhere is 0; `--strict` also wants every node up and no lag; the object is
    printed in any case."""
    node.answers("ClusterStatus", answer)
    code, out, _ = run("status", "--json")
    assert code == plain and json.loads(out)["v"] == 1
    assert run("status", "--strict")[0] == strict


def test_status_waits_for_the_wanted_state(node: FakeNode, run: Run) -> None:
    """It asks again until the state is there."""
    node.answers("ClusterStatus", cluster(leader=None), cluster(lag=3), cluster())
    assert run("status", "--wait", "20s", "--strict", "--json")[0] == 0
    assert len(node.requests["ClusterStatus"]) == 3


def test_status_without_an_answer_exits_with_3(run: Run, node: FakeNode) -> None:
    """A dead endpoint is named, and with --wait how long it was waited for."""
    node.stop()
    code, out, err = run("status", "--timeout", "200ms", "--wait", "300ms")
    assert (
        (code, out) == (3, "")
        and node.endpoint in err
        and "no node answered within 0.3 s: no usable answer" in err
    )


def test_status_watches_until_ctrl_c(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer after answer, also after the cluster was not reachable for a while; Ctrl-C is the
    normal end."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(node.requests["ClusterStatus"]) >= 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(admin_commands.time, "sleep", pause)
    node.answers(
        "ClusterStatus", cluster(), cluster(leader=None), grpc.StatusCode.UNAVAILABLE, cluster()
    )
    monkeypatch.setattr(admin_commands, "SHORTEST_WATCH_S", 0.0)
    code, out, _ = run("status", "--watch", "--every", "0s", "--json")
    assert code == 0 and [json.loads(line)["groups"][0]["leader"] for line in out.splitlines()] == [
        "n1",
        None,
        "n1",
    ]


def test_status_goes_on_watching_a_cluster_that_does_not_answer(
    node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is on stderr each time, and stdout stays empty."""
    node.stop()
    turns = iter(range(2))

    def pause(_: float) -> None:
        if next(turns, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(connection_module, "PAUSE_S", 1.0)
    monkeypatch.setattr(
        admin_commands, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic)
    )
    assert cli.run(["status", "--watch", "--endpoints", node.endpoint, "--timeout", "50ms"]) == 0
    out, err = capfd.readouterr()
    assert out == "" and err.count("nothing listens at") == 3


# -- topic and group


def test_topic_create_reports_created_or_existing(node: FakeNode, run: Run) -> None:
    """Created, or there already with these settings; JSON holds the topic."""
    for created, words in ((True, "created: t"), (False, "exists already, with these settings: t")):
        node.answers(
            "CreateTopic",
            admin_pb2.CreateTopicResponse(
                status=admin_status(), topic=topic_info(), created=created
            ),
        )
        assert run("topic", "create", "t")[:2] == (0, f"{words} (normal, 8 queues, rw)\n")
        assert json.loads(run("topic", "create", "t", "--json")[1])["created"] is created
    request = node.requests["CreateTopic"][0]
    assert (request.kind, request.queues, request.permission, request.durability) == (
        "normal",
        8,
        "rw",
        "",
    )


def test_kind_and_deduplication_of_a_topic_are_passed_on(node: FakeNode, run: Run) -> None:
    """Every kind of the contract; `0s` turns deduplication off, an update without the option leaves
    it alone."""
    node.answers(
        "CreateTopic", admin_pb2.CreateTopicResponse(status=admin_status(), topic=topic_info())
    )
    node.answers(
        "UpdateTopic", admin_pb2.UpdateTopicResponse(status=admin_status(), topic=topic_info())
    )
    for kind in ("normal", "fifo", "delay", "transaction", "mixed", "priority", "lite"):
        assert run("topic", "create", "t", "--kind", kind, "--dedup", "2m")[0] == 0
        assert (
            node.requests["CreateTopic"][-1].kind,
            node.requests["CreateTopic"][-1].dedup_ms,
        ) == (kind, 120_000)
    for arguments in (("--dedup", "90s"), ("--dedup", "0s"), ("--permission", "r")):
        assert run("topic", "update", "t", *arguments)[0] == 0
    updates = node.requests["UpdateTopic"]
    assert [(u.HasField("dedup_ms"), u.dedup_ms) for u in updates] == [
        (True, 90_000),
        (True, 0),
        (False, 0),
    ]


def test_the_durability_of_a_topic_is_passed_on(node: FakeNode, run: Run) -> None:
    """`group` is the absence of one; an update without the option leaves it alone."""
    node.answers(
        "CreateTopic", admin_pb2.CreateTopicResponse(status=admin_status(), topic=topic_info())
    )
    node.answers(
        "UpdateTopic", admin_pb2.UpdateTopicResponse(status=admin_status(), topic=topic_info())
    )
    assert run("topic", "create", "t", "--durability", "hybrid")[0] == 0
    assert node.requests["CreateTopic"][0].durability == "hybrid"
    for arguments in (("--durability", "memory"), ("--durability", "group"), ("--permission", "r")):
        assert run("topic", "update", "t", *arguments)[0] == 0
    updates = node.requests["UpdateTopic"]
    assert [(u.HasField("durability"), u.durability) for u in updates] == [
        (True, "memory"),
        (True, ""),
        (False, ""),
    ]


@pytest.mark.parametrize(
    "arguments",
    [("topic", "create", "t"), ("topic", "describe", "t"), ("topic", "delete", "t", "--yes")],
)
def test_refusals_are_4_with_the_words_of_the_node(
    node: FakeNode, run: Run, arguments: tuple[str, ...]
) -> None:
    """Nothing on stdout; the node's text and remedy in the one error line."""
    for method in ("CreateTopic", "DescribeTopic", "DeleteTopic"):
        answer = getattr(admin_pb2, f"{method}Response")(
            status=admin_status(40402, "no topic t;\ncreate it")
        )
        node.answers(method, answer)
    code, out, err = run(*arguments)
    assert (code, out) == (4, "") and err.splitlines()[-1].startswith(
        "error: no topic t; create it"
    )


def test_update_without_a_change_is_usage(run: Run) -> None:
    """Nothing to do is 64, before any call."""
    assert run("topic", "update", "t")[0] == 64


@pytest.mark.parametrize("what", ["topic", "group"])
def test_deleting_insists_off_a_terminal(node: FakeNode, run: Run, what: str) -> None:
    """Without --yes nothing is asked of the cluster; with it the deletion happens."""
    code, _, err = run(what, "delete", "x")
    assert code == 64 and "--yes" in err and not node.requests
    method = "DeleteTopic" if what == "topic" else "DeleteGroup"
    node.answers(method, getattr(admin_pb2, f"{method}Response")(status=admin_status()))
    assert run(what, "delete", "x", "--yes")[:2] == (0, "deleted: x\n")


@pytest.mark.parametrize(
    "words",
    [
        "topic delete t",
        "group delete g",
        "group reset g --topic t --to latest",
        "dlq purge --group g",
        "waiting cancel --topic t --kind delayed --all",
        "user delete u",
        "member remove n1",
    ],
)
@pytest.mark.parametrize("answer", ["n", ""])
def test_declined_confirmation_sends_no_change(
    words: str,
    answer: str,
    node: FakeNode,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every command that asks says so, and ends with 1: neither an error nor an interruption. Just
    Enter is a no."""
    monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
    monkeypatch.setattr(sys, "stdin", Typed(answer + "\n"))
    node.answers("ListGroups", admin_pb2.ListGroupsResponse(status=admin_status()))
    assert cli.run(words.split()) == 1
    out, err = capfd.readouterr()
    assert out == "" and err.endswith("? [y/N]: nothing was changed\n"), err
    assert not [
        name
        for name in node.requests
        if name.startswith(("Delete", "Reset", "Settle", "Cancel", "Change"))
    ]


def test_deleting_a_topic_names_its_consumer_groups(
    node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its namespace that have read it, before the question; a script with --yes is not
    held up."""

    def lag(request: admin_pb2.GroupLagRequest) -> admin_pb2.GroupLagResponse:
        topics = {"billing": ("t", "u"), "shipping": ("u",), "books": ("t",)}[request.group.name]
        read = [admin_pb2.TopicLag(topic=admin_pb2.Name(name=topic)) for topic in topics]
        return admin_pb2.GroupLagResponse(status=admin_status(), topics=read)

    monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
    names = [admin_pb2.Name(name=name) for name in ("billing", "shipping", "books")] + [
        admin_pb2.Name(name="other", namespace="ns")
    ]
    groups = [admin_pb2.ConsumerGroupInfo(group=name) for name in names]
    node.answers("ListGroups", admin_pb2.ListGroupsResponse(status=admin_status(), groups=groups))
    node.answers("GroupLag", lag)
    node.answers("DeleteTopic", admin_pb2.DeleteTopicResponse(status=admin_status()))
    monkeypatch.setattr(sys, "stdin", Typed("y\n"))
    assert cli.run(["topic", "delete", "t"]) == 0
    out, err = capfd.readouterr()
    assert out == "deleted: t\n" and err.startswith(
        "consumer groups that lose their positions in it: billing, books\n"
    )
    node.requests.clear()
    assert cli.run(["topic", "delete", "t", "--yes"]) == 0 and list(node.requests) == [
        "DeleteTopic"
    ]


def test_a_misspelt_variable_is_named(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of nodes and the variables of Kubernetes are none of these commands' business."""
    node.answers("ListTopics", admin_pb2.ListTopicsResponse(status=admin_status()))
    for name in (
        "NODE",
        "TLS",
        "CONFIG",
        "STORE_KEY",
        "ACCESS__BOOTSTRAP_USER",
        "CLUSTER__SECRET",
        "PORT",
        "SERVICE_HOST",
        "LOG_LEVEL",
    ):
        monkeypatch.setenv(f"LEDGERMQ_{name}", "x")
    assert run("topic", "list", "--json")[2] == ""
    monkeypatch.setenv("LEDGERMQ_ENDPOINT", "elsewhere:1")
    monkeypatch.setenv("LEDGERMQ_ACCESSKEY", "me")
    said = run("topic", "list", "--json")[2].splitlines()
    assert sorted(said) == [
        "warning: no command reads LEDGERMQ_ACCESSKEY; did you mean LEDGERMQ_ACCESS_KEY?",
        "warning: no command reads LEDGERMQ_ENDPOINT; did you mean LEDGERMQ_ENDPOINTS?",
    ]


def test_a_yes_goes_on(
    node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with --yes."""
    monkeypatch.setenv("LEDGERMQ_ENDPOINTS", node.endpoint)
    monkeypatch.setattr(sys, "stdin", Typed("y\n"))
    node.answers("DeleteGroup", admin_pb2.DeleteGroupResponse(status=admin_status()))
    assert cli.run(["group", "delete", "g"]) == 0
    assert capfd.readouterr().out == "deleted: g\n"


def test_group_commands(node: FakeNode, run: Run) -> None:
    """Create, list and describe show the group."""
    info = admin_pb2.ConsumerGroupInfo(
        group=admin_pb2.Name(name="g"), max_attempts=5, configured=True
    )
    info.queues.add(topic=admin_pb2.Name(name="t"), broker_group="g1", cursor=4)
    node.answers(
        "CreateGroup",
        admin_pb2.CreateGroupResponse(status=admin_status(), group=info, created=True),
    )
    node.answers("ListGroups", admin_pb2.ListGroupsResponse(status=admin_status(), groups=[info]))
    node.answers(
        "DescribeGroup", admin_pb2.DescribeGroupResponse(status=admin_status(), group=info)
    )
    assert run("group", "create", "g", "--max-attempts", "5")[:2] == (
        0,
        "created: g (max attempts 5)\n",
    )
    assert node.requests["CreateGroup"][0].max_attempts == 5
    assert [g["group"] for g in json.loads(run("group", "list", "--json")[1])["groups"]] == ["g"]
    assert json.loads(run("group", "describe", "g", "--json")[1])["queues"][0]["cursor"] == 4
    for command in (("group", "list"), ("group", "describe", "g")):
        code, out, _ = run(*command)
        assert code == 0 and "g" in out and "?" in out


def test_group_settings(node: FakeNode, run: Run) -> None:
    """Create and update ask for what the options say; an update leaves everything else absent; a
    bad backoff is a usage error."""
    backoff = admin_pb2.Backoff(initial_ms=5000, max_ms=7_200_000, multiplier=2)
    info = admin_pb2.ConsumerGroupInfo(
        group=admin_pb2.Name(name="g"), max_attempts=3, fifo=True, configured=True, backoff=backoff
    )
    node.answers(
        "CreateGroup",
        admin_pb2.CreateGroupResponse(status=admin_status(), group=info, created=True),
    )
    node.answers("UpdateGroup", admin_pb2.UpdateGroupResponse(status=admin_status(), group=info))
    shown = "g (max attempts 3, fifo, backoff exponential:5s..2h*2)\n"
    asked = ("--max-attempts", "3", "--fifo", "--backoff", "exponential:5s..2h*2")
    assert run("group", "create", "g", *asked)[:2] == (0, f"created: {shown}")
    assert (node.requests["CreateGroup"][0].fifo, node.requests["CreateGroup"][0].backoff) == (
        True,
        backoff,
    )
    assert run("group", "update", "g", "--backoff", "1s,500ms", "--no-fifo")[:2] == (
        0,
        f"updated: {shown}",
    )
    group = admin_pb2.Name(name="g")
    assert node.requests["UpdateGroup"][0] == admin_pb2.UpdateGroupRequest(
        group=group, fifo=False, backoff=admin_pb2.Backoff(steps_ms=[1000, 500])
    )
    run("group", "update", "g", "--backoff", "default")
    assert node.requests["UpdateGroup"][1] == admin_pb2.UpdateGroupRequest(
        group=group, backoff=admin_pb2.Backoff()
    )
    for bad in (
        ("--backoff", "soon"),
        ("--backoff", "exponential:5s..1s*2"),
        ("--backoff", "exponential:5s..1h*x"),
        (),
    ):
        code, _, error = run("group", "update", "g", *bad)
        assert code == 64 and "error: " in error


# -- namespaces


def test_names_may_hold_their_namespace(node: FakeNode, run: Run) -> None:
    """As permissions and lists write them; for a group and a topic in one command, one of them is
    enough."""
    node.answers(
        "CreateTopic", admin_pb2.CreateTopicResponse(status=admin_status(), topic=topic_info())
    )
    node.answers("GroupLag", admin_pb2.GroupLagResponse(status=admin_status()))
    node.answers("SendMessage", sent)
    node.answers("QueryRoute", route(queues=1))
    node.answers("ReceiveMessage", [verdict(40401)])
    assert run("topic", "create", "shop@orders")[0] == 0
    assert node.requests["CreateTopic"][0].topic == admin_pb2.Name(namespace="shop", name="orders")
    for arguments in (
        ("shop@billing", "--topic", "orders"),
        ("billing", "--topic", "shop@orders", "--namespace", "shop"),
    ):
        assert run("group", "lag", *arguments)[0] == 0
        asked = node.requests["GroupLag"][-1]
        assert (asked.group, asked.topic) == (
            admin_pb2.Name(namespace="shop", name="billing"),
            admin_pb2.Name(namespace="shop", name="orders"),
        )
    assert run("send", "--topic", "shop@orders", "--body", "b")[0] == 0
    stored = node.requests["SendMessage"][0].messages[0].topic
    assert (stored.resource_namespace, stored.name) == ("shop", "orders")
    assert run("consume", "--topic", "shop@orders", "--group", "g", "--until-empty", "1ms")[0] == 0
    assert node.requests["ReceiveMessage"][0].group.resource_namespace == "shop"


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "shop@orders", "--namespace", "other"),
        ("group", "lag", "shop@billing", "--topic", "other@orders"),
        ("consume", "--topic", "a@t", "--group", "b@g"),
    ],
)
def test_two_namespaces_in_one_command_are_refused(
    node: FakeNode, run: Run, arguments: tuple[str, ...]
) -> None:
    """Before any call, and the name is in the error."""
    code, _, err = run(*arguments)
    assert code == 64 and "is not in the namespace" in err and not node.requests


# -- send


@pytest.mark.parametrize(
    ("stdin", "bodies"),
    [(b"a\nb\n", [b"a", b"b"]), (b"a\r\n\xff", [b"a\r", b"\xff"]), (b"\n", [b""]), (b"", [])],
)
def test_send_takes_a_message_a_line(
    node: FakeNode, run: Run, stdin: bytes, bodies: list[bytes]
) -> None:
    """Bytes without the newline, whatever they are; a last line without one counts."""
    node.answers("SendMessage", sent)
    code, out, _ = run("send", "--topic", "t", "--file", "-", "--json", stdin=stdin)
    assert code == 0 and json.loads(out)["acknowledged"] == len(bodies)
    assert sorted(request.messages[0].body for request in node.requests["SendMessage"]) == sorted(
        bodies
    )


PLACE = ["message_id", "topic", "queue", "offset"]


def test_send_summary(node: FakeNode, run: Run) -> None:
    """The published keys; durability as the node says, unknown otherwise."""
    node.answers("SendMessage", sent)
    code, out, err = run(
        "send",
        "--topic",
        "t",
        "--body",
        "b",
        "--tag",
        "a",
        "--key",
        "k",
        "--property",
        "p=1=2",
        "--message-group",
        "g",
        "--json",
    )
    assert (code, err) == (0, "") and list(json.loads(out)) == [
        "v",
        "sent",
        "acknowledged",
        "failed",
        "duration_ms",
        "durability",
        *PLACE,
    ]
    assert json.loads(out)["durability"] is None
    (message,) = node.requests["SendMessage"][0].messages
    assert (
        dict(message.user_properties) == {"p": "1=2"}
        and message.system_properties.message_group == "g"
    )
    node.trailing = (("x-ledgermq-durability", "durable"),)
    assert (
        json.loads(run("send", "--topic", "t", "--body", "b", "--json")[1])["durability"]
        == "durable"
    )
    assert (
        run("send", "--topic", "t", "--body", "b")[1]
        .splitlines()[1]
        .startswith("sent 1, acknowledged 1, failed 0 in ")
    )


def test_send_names_the_message_it_stored(node: FakeNode, run: Run) -> None:
    """`query --id`, `--trace` and `why-not-delivered` ask for the id, `peek` for the place: the
    offset is in the answer, the queue in its metadata. A node of an older release does not state
    the queue."""

    def stored(request: messaging_pb2.SendMessageRequest) -> messaging_pb2.SendMessageResponse:
        answer = sent(request)
        answer.entries[0].offset = 41
        return answer

    node.answers("SendMessage", stored)
    code, out, _ = run("send", "--topic", "t", "--body", "b")
    message_id = node.requests["SendMessage"][0].messages[0].system_properties.message_id
    assert code == 0 and out.splitlines()[0] == f"message {message_id}: topic t, offset 41"
    node.trailing = (("x-ledgermq-queue", "3"),)
    assert (
        run("send", "--topic", "ns@t", "--body", "b")[1]
        .splitlines()[0]
        .endswith(": topic ns@t, queue 3, offset 41")
    )
    found = json.loads(run("send", "--topic", "t", "--body", "b", "--json")[1])
    message_id = node.requests["SendMessage"][2].messages[0].system_properties.message_id
    assert [found[name] for name in PLACE] == [message_id, "t", 3, 41]


def test_a_delayed_message_has_no_offset_yet(node: FakeNode, run: Run) -> None:
    """The node answers 0 and a recall handle; 0 is not its place."""

    def delayed(request: messaging_pb2.SendMessageRequest) -> messaging_pb2.SendMessageResponse:
        answer = sent(request)
        answer.entries[0].recall_handle = "h"
        return answer

    node.answers("SendMessage", delayed)
    assert (
        json.loads(run("send", "--topic", "t", "--body", "b", "--delay", "1m", "--json")[1])[
            "offset"
        ]
        is None
    )


@pytest.mark.parametrize(
    ("arguments", "delay_ms"),
    [
        (("--delay", "10m"), 600_000),
        (("--delay-level", "3"), 10_000),
        (("--delay-level", "18"), 7_200_000),
    ],
)
def test_send_delayed(node: FakeNode, run: Run, arguments: tuple[str, ...], delay_ms: int) -> None:
    """A delay counts from when the message is sent; levels are those of RocketMQ 4."""
    node.answers("SendMessage", sent)
    before = time.time_ns() // 1_000_000
    assert run("send", "--topic", "t", "--body", "b", *arguments)[0] == 0
    system = node.requests["SendMessage"][0].messages[0].system_properties
    assert system.message_type == messaging_pb2.DELAY
    assert (
        before + delay_ms
        <= system.delivery_timestamp.ToMilliseconds()
        <= time.time_ns() // 1_000_000 + delay_ms
    )


def test_send_at_a_time_or_with_a_priority(node: FakeNode, run: Run) -> None:
    """A point in time as everywhere else; two times at once are refused."""
    node.answers("SendMessage", sent)
    assert (
        run("send", "--topic", "t", "--body", "b", "--deliver-at", "2036-11-21T10:00:00Z")[0] == 0
    )
    assert (
        node.requests["SendMessage"][0]
        .messages[0]
        .system_properties.delivery_timestamp.ToJsonString()
        == "2036-11-21T10:00:00Z"
    )
    assert run("send", "--topic", "t", "--body", "b", "--priority", "0")[0] == 0
    system = node.requests["SendMessage"][1].messages[0].system_properties
    assert (system.message_type, system.HasField("priority"), system.priority) == (
        messaging_pb2.PRIORITY,
        True,
        0,
    )
    assert (
        run("send", "--topic", "t", "--body", "b", "--delay", "1s", "--delay-level", "1")[0] == 64
    )


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([messaging_pb2.SendMessageResponse(status=status(40014, "wrong\nkind"))], 4),
        ([grpc.StatusCode.UNAVAILABLE], 3),
        ([messaging_pb2.SendMessageResponse(status=status(50002, "no leader"))], 3),
        ([sent, messaging_pb2.SendMessageResponse(status=status(40014, "wrong kind"))], 1),
    ],
)
def test_send_that_failed(node: FakeNode, run: Run, answers: list[Any], code: int) -> None:
    """Exit status 4 for refused, 3 for unreachable, 1 for partial failure; the summary is printed
    in all cases."""
    node.answers("SendMessage", *answers)
    got, out, err = run(
        "send", "--topic", "t", "--file", "-", "--json", "--timeout", "200ms", stdin=b"a\nb\n"
    )
    assert got == code and json.loads(out)["failed"] == 2 - (code == 1)
    assert "of 2 messages were not acknowledged" in err


@pytest.mark.parametrize("source", ["absent.jsonl", "present.jsonl"])
def test_a_send_that_failed_leaves_no_file_of_receipts(
    node: FakeNode, run: Run, tmp_path: Path, source: str
) -> None:
    """Neither a source that is not there nor a cluster that does not answer is in the way of the
    next attempt (track record)."""
    pytest.importorskip("pyarrow")
    (tmp_path / "present.jsonl").write_text('{"body": "b"}\n')
    node.answers("Locate", grpc.StatusCode.UNAVAILABLE)
    arguments = (
        "send",
        "--topic",
        "t",
        "--file",
        str(tmp_path / source),
        "--receipts",
        str(tmp_path / "r.parquet"),
        "--timeout",
        "200ms",
    )
    for _ in range(2):
        code, _, err = run(*arguments)
        assert code in (3, 64) and "exists" not in err
        assert [path.name for path in tmp_path.iterdir()] == ["present.jsonl"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("send", "--topic", "t"),
        ("send", "--topic", "t", "--body", "b", "--file", "-"),
        ("send", "--topic", "t", "--body", "b", "--property", "p"),
        ("send", "--topic", "t", "--body", "b", "--property", "=v"),
        ("send", "--topic", "t", "--file", "/nowhere/at/all"),
        ("send", "--body", "b"),
        ("send", "--topic", "t", "--body", "b", "--timeout", "10"),
        ("send", "--topic", "t", "--body", "b", "--endpoints", "nonsense"),
        ("consume", "--topic", "t", "--group", "g", "--max", "0"),
        ("peek", "--topic", "t", "--from", "yesterday"),
        ("query", "--topic", "t"),
        ("query", "--topic", "t", "--key", "k", "--id", "i"),
        ("query", "--topic", "t", "--time-range", ".."),
        ("query", "--topic", "t", "--time-range", "-1m"),
        ("query", "--topic", "t", "--time-range", "now..-1m"),
        ("query", "--topic", "t", "--time-range", "yesterday..now"),
        ("group", "reset", "g", "--topic", "t", "--to", "5", "--yes"),
        ("group", "reset", "g", "--topic", "t", "--to", "soon", "--yes"),
        ("topic", "create", "t", "--kind", "odd"),
        ("status", "--watch", "--wait", "1s"),
        ("status", "--watch", "--every", "1ms"),
    ],
)
def test_usage_is_64_before_any_call(node: FakeNode, run: Run, arguments: tuple[str, ...]) -> None:
    """Arguments that cannot be meant never reach the cluster."""
    assert run(*arguments)[0] == 64 and not node.requests


# -- consume


def test_consume_prints_a_body_a_line_and_acknowledges(node: FakeNode, run: Run) -> None:
    """Exactly the bytes, and every message is acknowledged once."""
    node.answers("QueryRoute", route(queues=1))
    node.answers(
        "ReceiveMessage",
        [delivered("ü".encode()), delivered(b"two", 1), verdict()],
        [verdict(40401)],
    )
    node.answers("AckMessage", acked)
    assert run("consume", "--topic", "t", "--group", "g", "--until-empty", "10ms") == (
        0,
        "ü\ntwo\n",
        "",
    )
    (request,) = node.requests["AckMessage"]
    assert [entry.receipt_handle for entry in request.entries] == ["handle-0", "handle-1"]


@pytest.mark.parametrize("stdout", [True, False])
def test_bodies_on_a_terminal_do_not_stand_behind_a_bar(
    stdout: bool, node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are progress enough; beside a pipe or a file the terminal shows the bar."""
    monkeypatch.setattr(
        commands, "Console", lambda **options: Console(**options, force_terminal=True, width=80)
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout, raising=False)
    node.answers("QueryRoute", route(queues=1))
    node.answers("ReceiveMessage", [delivered(b"one"), verdict()], [verdict(40401)])
    node.answers("AckMessage", acked)
    code, out, err = run("consume", "--topic", "t", "--group", "g", "--until-empty", "10ms")
    assert (code, out) == (0, "one\n") and ("consumed" in err) is not stdout


def test_consume_max_json_no_ack_and_to(node: FakeNode, run: Run, tmp_path: Path) -> None:
    """`--max` bounds the batch too, `--no-ack` acknowledges nothing, `--to` keeps stdout empty."""
    node.answers("QueryRoute", route(queues=1))
    node.answers("ReceiveMessage", [delivered(b"\xff"), verdict()])
    target = tmp_path / "out"
    code, out, _ = run(
        "consume",
        "--topic",
        "t",
        "--group",
        "g",
        "--max",
        "2",
        "--no-ack",
        "--json",
        "--to",
        str(target),
    )
    assert (code, out) == (0, "") and [
        request.batch_size for request in node.requests["ReceiveMessage"]
    ] == [2, 1]
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(line["v"], line["body_base64"]) for line in lines] == [
        (1, "/w==")
    ] * 2 and not node.requests["AckMessage"]


def test_consume_counts_queues_over_all_broker_groups(node: FakeNode, run: Run) -> None:
    """As `send`, `peek` and `topic describe` do; in an answer a queue has its number in its broker
    group."""
    given = set()

    def receive(
        request: messaging_pb2.ReceiveMessageRequest,
    ) -> list[messaging_pb2.ReceiveMessageResponse]:
        group = request.message_queue.broker.name
        answer = [verdict(40401)] if group in given else [delivered(group.encode()), verdict()]
        given.add(group)
        return answer

    node.answers("QueryRoute", route(brokers=("g1", "g2", "g3"), queues=4))
    node.answers("ReceiveMessage", receive)
    node.answers("AckMessage", acked)
    code, out, _ = run("consume", "--topic", "t", "--group", "g", "--until-empty", "10ms", "--json")
    assert code == 0 and {
        line["body"]: line["queue"] for line in map(json.loads, out.splitlines())
    } == {"g1": 1, "g2": 5, "g3": 9}


def test_messages_unread_from_a_pipe_are_not_acknowledged(node: FakeNode) -> None:
    """`| head -1` takes one message of a batch: that one is acknowledged, and the others come again
    at once."""
    node.answers("QueryRoute", route(queues=1))
    node.answers(
        "ReceiveMessage", [*(delivered(b"%d" % number, number) for number in range(32)), verdict()]
    )
    node.answers("AckMessage", acked)
    node.answers(
        "ChangeInvisibleDuration", messaging_pb2.ChangeInvisibleDurationResponse(status=status())
    )
    command = (
        f"{sys.executable} -m ledgermq consume --topic t --group g --endpoints {node.endpoint}"
    )
    for option, first in (("", "0\n"), ("--json", '{"v":1,')):
        node.requests.clear()
        script = f"{command} {option} | head -1"
        found = subprocess.run(
            ["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=False
        )
        assert (
            (found.returncode, found.stderr) == (0, "")
            and found.stdout.startswith(first)
            and found.stdout.count("\n") == 1
        )
        (request,) = node.requests["AckMessage"]
        assert [entry.receipt_handle for entry in request.entries] == ["handle-0"]
        given_back = node.requests["ChangeInvisibleDuration"]
        assert [one.receipt_handle for one in given_back] == [
            f"handle-{number}" for number in range(1, 32)
        ]
        assert not any(one.invisible_duration.ToMilliseconds() for one in given_back)


def test_consume_into_an_impossible_file_is_64(node: FakeNode, run: Run) -> None:
    """Nothing is leased for a file that cannot be written."""
    node.answers("QueryRoute", route())
    assert run("consume", "--topic", "t", "--group", "g", "--to", "/nowhere/at/all")[0] == 64
    assert not node.requests["ReceiveMessage"]


def test_consume_ends_well_with_ctrl_c(
    node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Following is ended by Ctrl-C: 0 and silence."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    node.answers("QueryRoute", route())
    monkeypatch.setattr(consume_commands, "consume_loop", interrupted)
    assert run("consume", "--topic", "t", "--group", "g") == (0, "", "")


# -- peek


class Log:
    """Two queues of 2,500 messages that are peeked at as a node does it: a page at a time."""

    def __call__(self, request: admin_pb2.PeekRequest) -> admin_pb2.PeekResponse:
        answer = admin_pb2.PeekResponse(status=admin_status())
        for queue in [request.queue] if request.HasField("queue") else [0, 1]:
            for offset in range(request.offset, 2500):
                if len(answer.messages) == min(request.max, 1000):
                    return answer
                answer.messages.add(
                    topic=admin_pb2.Name(name="t"), queue=queue, offset=offset, body=b"b"
                )
        return answer


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--max", "3"), [(0, 0), (0, 1), (0, 2)]),
        (("--queue", "1", "--from", "2498"), [(1, 2498), (1, 2499)]),
        (("--queue", "0", "--max", "2300"), [(0, k) for k in range(2300)]),
        (("--max", "4000"), [(0, k) for k in range(2500)] + [(1, k) for k in range(1500)]),
        (("--from", "2400", "--max", "10000"), [(q, k) for q in (0, 1) for k in range(2400, 2500)]),
    ],
)
def test_peek_reads_on_past_one_answer(
    node: FakeNode, run: Run, arguments: tuple[str, ...], expected: list[tuple[int, int]]
) -> None:
    """Every message once and in order, however many answers it takes."""
    node.answers("Peek", Log())
    node.answers(
        "DescribeTopic", admin_pb2.DescribeTopicResponse(status=admin_status(), topic=topic_info())
    )
    code, out, _ = run("peek", "--topic", "t", "--json", *arguments)
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [(m["queue"], m["offset"]) for m in found] == expected


@pytest.mark.parametrize(
    ("start", "which", "value"),
    [
        ("earliest", "earliest", True),
        ("latest", "latest", True),
        ("7", "offset", 7),
        ("1700000000000ms", "store_ms", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", "store_ms", 1_700_000_000_000),
        ("2023-11-14 23:13:20+01:00", "store_ms", 1_700_000_000_000),
    ],
)
def test_peek_from(node: FakeNode, run: Run, start: str, which: str, value: object) -> None:
    """Where to begin reaches the node as it was meant."""
    node.answers("Peek", admin_pb2.PeekResponse(status=admin_status()))
    assert run("peek", "--topic", "t", "--from", start)[:2] == (0, "")
    (request,) = node.requests["Peek"]
    assert request.WhichOneof("from") == which and getattr(request, which) == value


def test_peek_from_before_now(node: FakeNode, run: Run) -> None:
    """As `group reset --to` takes it."""
    node.answers("Peek", admin_pb2.PeekResponse(status=admin_status()))
    before = time.time() * 1000
    assert run("peek", "--topic", "t", "--from", "-1h")[:2] == (0, "")
    assert before <= node.requests["Peek"][0].store_ms + 3_600_001 <= time.time() * 1000 + 1


@pytest.mark.parametrize("start", ["yesterday", "-5", "7x", "٧", "9" * 19, "-", "2023-13-01"])
@pytest.mark.parametrize(
    "command", ["peek --topic t --from", "group reset g --topic t --queue 0 --yes --to"]
)
def test_invalid_start_position_is_a_usage_error(
    command: str, start: str, node: FakeNode, run: Run
) -> None:
    """One form for all commands; nothing is asked."""
    code, _, err = run(*command.split(), start)
    assert (
        code == 64
        and not node.requests
        and ("is no place in a topic; give earliest, latest" in err or "digits" in err)
    )


# -- the parts


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10.0), ("2m", 120.0), ("1.5h", 5400.0), ("3d", 259_200.0)],
)
def test_durations(text: str, seconds: float) -> None:
    """As the page writes them."""
    assert commands.DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["10", "s", "-1s", "1 week", "1.s", ""])
def test_no_durations(text: str) -> None:
    """A number without a unit is not guessed at."""
    with pytest.raises(click.UsageError, match="500ms, 10s, 2m or 1h"):
        commands.DURATION.convert(text, None, None)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_examples(command: click.Command) -> None:
    """Every command and subcommand shows how it is used."""
    own = command.commands.values() if isinstance(command, click.Group) else []
    for one in [command, *own]:
        outcome = CliRunner().invoke(one, ["--help"])
        assert (
            outcome.exit_code == 0 and "Example" in outcome.output and "ledgermq " in outcome.output
        ), one.name


def test_no_empty_line_of_the_library_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases 13 of rich print one when a bar stops, also a disabled one."""
    stopped: list[bool] = []
    monkeypatch.setattr(commands.Progress, "stop", lambda bar: stopped.append(bar.disable))
    with click.Context(click.Command("x")), commands.Meter("sent", None):
        pass
    assert not stopped


def test_progress_is_a_line_every_five_seconds_off_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quiet for shorter work, and nothing at all with -q."""
    now = [0.0]
    monkeypatch.setattr(commands.time, "monotonic", lambda: now[0])
    for quiet, lines in ((False, ["sent: 2"]), (True, [])):
        with (
            click.Context(click.Command("x"), obj={"quiet": quiet}),
            commands.Meter("sent", None) as meter,
        ):
            for second, done in ((1, 1), (5, 2), (6, 3)):
                now[0] += second
                meter.show(done)
                now[0] -= second
        assert capfd.readouterr().err.splitlines() == lines


def test_consume_by_sql_and_where_a_condition_is_wrong(node: FakeNode, run: Run) -> None:
    """`sql:` makes a SQL filter; a mistake in it is shown in its own lines, and the last line says
    what is wrong."""
    node.answers("QueryRoute", route(queues=1))
    node.answers(
        "ReceiveMessage",
        [
            verdict(
                40010, "the SQL filter is wrong at line 1, column 4: no value; really\na >\n   ^"
            )
        ],
    )
    code, out, err = run(
        "consume", "--topic", "t", "--group", "g", "--filter", "sql:a >", "--max", "1"
    )
    assert (code, out) == (4, "")
    assert err.splitlines()[-3:-1] == ["a >", "   ^"]
    assert err.splitlines()[-1].startswith(
        "error: the SQL filter is wrong at line 1, column 4: no value; "
    )
    (request,) = node.requests["ReceiveMessage"]
    assert (request.filter_expression.type, request.filter_expression.expression) == (
        messaging_pb2.SQL,
        "a >",
    )


def test_why_not_delivered_and_a_trace(node: FakeNode, run: Run) -> None:
    """One sentence, then evidence; JSON as the command line says; 4 when there is no such message.
    A trace comes page by page."""
    why = admin_pb2.WhyNotDeliveredResponse(
        status=admin_status(), answer="m is leased.", reason="leased", evidence=["stored (entry 5)"]
    )
    node.answers("WhyNotDelivered", why)
    assert run("why-not-delivered", "m", "--group", "g") == (
        0,
        "m is leased.\n  stored (entry 5)\n",
        "",
    )
    code, out, _ = run("why-not-delivered", "m", "--group", "g", "--topic", "t", "--json")
    assert code == 0
    assert json.loads(out) == {
        "v": 1,
        "answer": "m is leased.",
        "reason": "leased",
        "evidence": ["stored (entry 5)"],
    }
    assert [request.HasField("topic") for request in node.requests["WhyNotDelivered"]] == [
        False,
        True,
    ]
    node.answers(
        "WhyNotDelivered",
        admin_pb2.WhyNotDeliveredResponse(
            status=admin_status(), answer="No m.", reason="not-found"
        ),
    )
    assert run("why-not-delivered", "m", "--group", "g")[:2] == (4, "No m.\n")

    event = admin_pb2.TraceEvent(
        broker_group="g1",
        index=5,
        store_ms=1_700_000_000_000,
        kind="leased",
        attempt=2,
        client="c1",
    )
    event.detail = "for 5 ms"
    event.group.name = "g"
    pages = [
        admin_pb2.TraceMessageResponse(status=admin_status(), events=e, next=n)
        for e, n in (([event], b"more"), ([], b""))
    ]
    node.answers("TraceMessage", *pages)
    code, out, _ = run("query", "--topic", "t", "--id", "m", "--trace")
    assert (code, out) == (0, "2023-11-14T22:13:20.000+00:00  leased  g  2  c1  for 5 ms  g1\n")
    assert [request.after for request in node.requests["TraceMessage"]] == [b"", b"more"]
    node.answers("TraceMessage", *pages)
    found = json.loads(run("query", "--topic", "t", "--id", "m", "--trace", "--json")[1])
    assert (found["event"], found["attempt"], found["duration_ms"]) == ("leased", 2, None)
    assert run("query", "--topic", "t", "--key", "k", "--trace")[0] == 64


def test_send_one_way_never_repeats(node: FakeNode, run: Run) -> None:
    """A failure that a retry could mend is left alone, and nothing was promised: one request for
    each message, exit 0."""
    node.answers(
        "SendMessage", messaging_pb2.SendMessageResponse(status=status(50002, "no leader")), sent
    )
    code, out, err = run(
        "send", "--topic", "t", "--file", "-", "--one-way", "--json", stdin=b"a\nb\n"
    )
    assert (code, err, len(node.requests["SendMessage"])) == (0, "", 2)
    assert (json.loads(out)["acknowledged"], json.loads(out)["failed"]) == (1, 1)


def test_send_without_acknowledgements_ends_after_one_timeout(node: FakeNode, run: Run) -> None:
    """One timeout for a long input, the reason in the error line, and the number of unsent
    messages."""
    node.answers(
        "SendMessage",
        messaging_pb2.SendMessageResponse(status=status(50002, "broker group g2 has no leader")),
    )
    lines = b"".join(b"%d\n" % k for k in range(5_000))
    code, out, err = run(
        "send", "--topic", "t", "--file", "-", "--timeout", "300ms", "--json", stdin=lines
    )
    assert code == 3 and json.loads(out)["sent"] == json.loads(out)["failed"] < 5_000
    assert (
        "nothing was acknowledged for 0.3 s, the rest was not sent, first: broker group g2 has no"
        " leader" in err
    )
