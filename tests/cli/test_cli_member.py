"""`ledgermq member` from argument to output, against a scripted node."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ledgermq import cli
from ledgermq.client.api import changes
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.status import Code
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes

Kind = pb.ChangeMemberRequest.Kind
FULL = pb.NodeAddresses(client="h:8081", peer="h:9081", controller="h:10081", http="h:11081")


def answer(
    done: bool, waits_for: str = "", lag: int | None = None, role: str = "learner"
) -> pb.ChangeMemberResponse:
    progress = pb.MemberProgress(broker_group="g1", node="n4", role=role, lag_entries=lag)
    return pb.ChangeMemberResponse(
        status=admin_status(),
        done=done,
        waits_for=waits_for,
        groups=[progress] if lag is not None else [],
    )


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(changes, "ASK_AGAIN_S", 0.01)
    with fake_nodes() as (found,):
        monkeypatch.setenv("LEDGERMQ_ENDPOINTS", found.endpoint)
        yield found


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
    [
        (
            ["add", "n4", "--address", "h:8081"],
            {"kind": Kind.ADD, "addresses": FULL},
            "n4 has joined",
        ),
        (
            ["add", "n4", "--address", "h:8081:9081:10081:11081"],
            {"kind": Kind.ADD, "addresses": FULL},
            "n4 has joined",
        ),
        (
            ["add", "n4", "--group", "g1", "--group", "g2"],
            {"kind": Kind.ADD, "broker_groups": ["g1", "g2"]},
            "n4 has joined",
        ),
        (["promote", "n4"], {"kind": Kind.PROMOTE}, "n4 votes"),
        (
            ["remove", "n4", "--group", "g2", "--yes"],
            {"kind": Kind.REMOVE, "broker_groups": ["g2"]},
            "n4 is removed",
        ),
        (
            ["set-address", "n4", "h:8081"],
            {"kind": Kind.SET_ADDRESS, "addresses": FULL},
            "n4 is at h:8081",
        ),
    ],
)
def test_each_command_asks_for_its_change(
    node: FakeNode,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    expected: dict[str, Any],
    said: str,
) -> None:
    """One line, or one object; addresses follow from the client port unless all four are given."""
    node.answers("ChangeMember", answer(True))
    assert cli.run(["member", *arguments]) == 0
    assert capfd.readouterr().out == said + "\n"
    assert node.requests["ChangeMember"] == [pb.ChangeMemberRequest(node="n4", **expected)]
    assert cli.run(["member", *arguments, "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "v": 1,
        "node": "n4",
        "done": True,
        "waits_for": None,
        "groups": [],
    }


def test_a_change_is_asked_for_until_it_is_done(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Progress is on stderr; the end is reported once."""
    node.answers(
        "ChangeMember",
        answer(False, "n4 lacks 500", 500),
        answer(False, "n4 lacks 20", 20),
        answer(True, lag=0),
    )
    assert cli.run(["member", "add", "n4", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["groups"] == [
        {"group": "g1", "role": "learner", "lag_entries": 0, "lag_ms": None}
    ]
    assert len(node.requests["ChangeMember"]) == 3


def test_no_wait_prints_the_pending_reason(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """The change is running, and the same command continues it."""
    node.answers("ChangeMember", answer(False, "n4 lacks 500 entries", 500))
    assert cli.run(["member", "add", "n4", "--no-wait"]) == 0
    assert capfd.readouterr().out == "n4: under way; waits for: n4 lacks 500 entries\n"
    assert len(node.requests["ChangeMember"]) == 1


def test_stuck_or_refused_member_change_exits_with_4(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the message of the refusal, or the reason for the wait."""
    node.answers("ChangeMember", answer(False, "node n4 does not answer at h:9081"))
    assert cli.run(["member", "add", "n4", "--timeout", "100ms"]) == 4
    assert (
        "no progress for 0.1 s; it waits for: node n4 does not answer at h:9081"
        in capfd.readouterr().err
    )
    status = pb.Status(
        code=Code.PRECONDITION_FAILED, message="the quorum would be lost: n2 and n3 are down"
    )
    node.answers("ChangeMember", pb.ChangeMemberResponse(status=status))
    assert cli.run(["member", "remove", "n1", "--yes"]) == 4
    assert "the quorum would be lost: n2 and n3 are down; " in capfd.readouterr().err
    status = pb.Status(code=Code.HA_NOT_AVAILABLE, message="no leader")
    node.answers("ChangeMember", pb.ChangeMemberResponse(status=status))
    assert cli.run(["member", "promote", "n4", "--timeout", "300ms"]) == 3


@pytest.mark.parametrize(
    "address", ["h", "h:x", "h:0", "h:64000", "h:1:2:3", "h:1:2:3:99999", ":1", "a:b:c"]
)
def test_invalid_member_address_is_a_usage_error(
    node: FakeNode, capfd: pytest.CaptureFixture[str], address: str
) -> None:
    """No request is sent; the error lists the accepted forms."""
    assert cli.run(["member", "set-address", "n4", address]) == 64
    assert (
        "HOST:CLIENT:PEER:CONTROLLER:HTTP" in capfd.readouterr().err
        and not node.requests["ChangeMember"]
    )


def test_a_worker_is_added_with_the_address_of_its_node(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own ports follow, whether all of the node's are given or one; ports that do not exist are
    refused before anything is asked."""
    node.answers("ChangeMember", answer(True))
    for address in ("h:8081", "h:8081:9081:10081:11081"):
        assert cli.run(["member", "add", "n4.3", "--address", address]) == 0
    third = pb.NodeAddresses(client="h:8081", peer="h:9101", controller="h:10101", http="h:11081")
    assert (
        node.requests["ChangeMember"]
        == [pb.ChangeMemberRequest(kind=Kind.ADD, node="n4.3", addresses=third)] * 2
    )
    assert cli.run(["member", "set-address", "n4.2", "[::1]:8081"]) == 0
    assert node.requests["ChangeMember"][-1].addresses.peer == "[::1]:9091"
    assert cli.run(["member", "add", "n4.2", "--address", "h:8081:9081:65530:11081"]) == 64
    assert (
        "n4.2 would have controller port 65540; " in capfd.readouterr().err
        and len(node.requests["ChangeMember"]) == 3
    )


def test_an_advertised_address_is_for_clients_only(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """Peers keep the node's own address, for a worker too; without that address, or in another
    form, nothing is asked."""
    node.answers("ChangeMember", answer(True))
    assert (
        cli.run(
            ["member", "add", "n4", "--address", "h:8081", "--advertised", "mq4.example.com:31081"]
        )
        == 0
    )
    full = pb.NodeAddresses(
        client="mq4.example.com:31081", peer="h:9081", controller="h:10081", http="h:11081"
    )
    assert node.requests["ChangeMember"] == [
        pb.ChangeMemberRequest(kind=Kind.ADD, node="n4", addresses=full)
    ]
    capfd.readouterr()
    assert (
        cli.run(
            ["member", "set-address", "n4.2", "h:8081", "--advertised", "mq4.example.com:31081"]
        )
        == 0
    )
    assert capfd.readouterr().out == "n4.2 is at mq4.example.com:31081\n"
    changed = node.requests["ChangeMember"][-1].addresses
    assert (changed.client, changed.peer, changed.http) == (
        "mq4.example.com:31081",
        "h:9091",
        "h:11081",
    )
    forms = (
        ["--address", "h:8081", "--advertised", text]
        for text in ("m", "m:0", "m:65536", "m:1:2:3:4")
    )
    for wrong in (["--advertised", "m:1"], *forms):
        assert cli.run(["member", "add", "n4", *wrong]) == 64
        assert "HOST:PORT" in capfd.readouterr().err
    assert len(node.requests["ChangeMember"]) == 2


def test_addresses_of_ipv6_hosts(node: FakeNode) -> None:
    """In brackets, as everywhere."""
    node.answers("ChangeMember", answer(True))
    assert cli.run(["member", "set-address", "n4", "[::1]:8081"]) == 0
    assert node.requests["ChangeMember"][0].addresses.peer == "[::1]:9081"


def test_the_list_shows_every_node(node: FakeNode, capfd: pytest.CaptureFixture[str]) -> None:
    """A line each; the object holds the addresses and what is not known as null."""
    told = pb.ListMembersResponse(status=admin_status())
    voter = pb.MemberProgress(broker_group="g1", role="voter")
    told.members.add(
        node="n1", addresses=FULL, state="member", up=True, controller=True, groups=[voter]
    )
    told.members.add(node="n4", addresses=pb.NodeAddresses(peer="p:1"), state="joining")
    node.answers("ListMembers", told)
    assert cli.run(["member", "list"]) == 0
    assert (
        capfd.readouterr().out == "n1 h:8081 member up controller g1=voter\nn4 - joining down - -\n"
    )
    assert cli.run(["member", "list", "--json"]) == 0
    first, second = json.loads(capfd.readouterr().out)["members"]
    assert (
        first["groups"] == [{"group": "g1", "role": "voter", "lag_entries": None, "lag_ms": None}]
        and first["controller"]
    )
    assert second["addresses"] == {"client": None, "peer": "p:1", "controller": None, "http": None}


def test_removing_insists_off_a_terminal(
    node: FakeNode, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like every command that takes something away: without --yes nothing is asked of the
    cluster."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for arguments, said in (
        ([], "removing n1 from the cluster"),
        (["--group", "g1"], "removing n1 from broker group g1"),
    ):
        assert cli.run(["member", "remove", "n1", *arguments]) == 64
        error = capfd.readouterr().err
        assert said in error and "--yes" in error and not node.requests


def test_show_prints_the_process_and_the_lines(
    node: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the node does not know is said; the lines follow as they are."""
    found = pb.DescribeNodeResponse(
        status=admin_status(),
        node="n1",
        version="1",
        pid=7,
        peers=["n2"],
        log=['{"event": "serving"}'],
    )
    node.answers("DescribeNode", found)
    assert cli.run(["member", "show", "n1"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines == [
        "node: n1, version 1, native none, pid 7",
        "resident memory: unknown",
        "open files: unknown of unknown",
        "connections of clients: not counted",
        "open streams: 0 telemetry, 0 native",
        "connected nodes: none (of n2)",
        '{"event": "serving"}',
    ]
    found.configuration, found.resident_bytes, found.client_connections, found.started_ms = (
        '{"node": "n1"}',
        64 << 20,
        5,
        1_000,
    )
    assert cli.run(["member", "show", "n1", "--log", "3", "--configuration", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["configuration"], shown["resident_bytes"], shown["client_connections"]) == (
        {"node": "n1"},
        64 << 20,
        5,
    )
    assert node.requests["DescribeNode"][1] == pb.DescribeNodeRequest(
        node="n1", log_lines=3, configuration=True
    )
    assert cli.run(["member", "show", "n1"]) == 0
    assert "resident memory: 64.0 MiB" in capfd.readouterr().out
