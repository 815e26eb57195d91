"""Endpoints and the retry rule of every call."""

from __future__ import annotations

import asyncio
import gc
import socket
from threading import Event
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.client.api import connection as connections
from ledgermq.client.api.admin import Admin, AsyncAdmin
from ledgermq.client.api.connection import Address, AsyncConnection, Connection, parse_endpoints
from ledgermq.client.api.talks import Pause
from ledgermq.client.errors import BadArgument, Refused, Unreachable, refusal
from ledgermq.proto import admin_pb2
from tests.client.fake_cluster import admin_status, endpoints, fake_nodes

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def topics(code: int = 20000, message: str = "") -> admin_pb2.ListTopicsResponse:
    return admin_pb2.ListTopicsResponse(status=admin_status(code, message))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8081", [Address("127.0.0.1", 8081)]),
        ("a:1;b.example:65535", [Address("a", 1), Address("b.example", 65535)]),
        (" a:1 ; b:2 ", [Address("a", 1), Address("b", 2)]),
        ("[::1]:8081", [Address("::1", 8081)]),
    ],
)
def test_endpoints_are_understood(text: str, expected: list[Address]) -> None:
    """Several endpoints, spaces around them, and IPv6 in brackets."""
    assert list(parse_endpoints(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "a:1;", "a:1,b:2"]
)
def test_invalid_endpoint_is_refused_as_usage(text: str) -> None:
    """The message repeats the part and says what is accepted; the exit status is that of usage."""
    with pytest.raises(BadArgument, match="host:port;host:port") as found:
        parse_endpoints(text)
    assert found.value.exit_code == 64


def test_an_address_is_written_as_it_is_read() -> None:
    """IPv6 keeps its brackets, or gRPC could not dial it."""
    for text in ("h:1", "[::1]:8081"):
        assert str(parse_endpoints(text)[0]) == text


def test_a_dead_endpoint_leads_to_the_next_one() -> None:
    """A port that refuses connections costs one try; the endpoint that answered stays in use."""
    with fake_nodes(2) as (dead, alive):
        alive.answers("ListTopics", topics())
        dead.stop()
        with Connection(endpoints([dead, alive])) as connection:
            assert Admin(connection).topics() == ()
            assert connection.address.port == alive.port
            Admin(connection).topics()
        assert len(alive.requests["ListTopics"]) == 2


def test_an_unavailable_node_leads_to_the_next_one_and_round_again() -> None:
    """UNAVAILABLE moves on; after the last endpoint comes the first."""
    with fake_nodes(2) as nodes:
        nodes[0].answers("ListTopics", UNAVAILABLE, topics())
        nodes[1].answers("ListTopics", UNAVAILABLE)
        with Connection(endpoints(nodes)) as connection:
            Admin(connection).topics()
        assert [len(node.requests["ListTopics"]) for node in nodes] == [2, 1]


def test_a_retryable_status_is_asked_again_at_the_next_node() -> None:
    """A node that is cut off, or was removed from the cluster, answers "no quorum" for as long as
    it is asked; another node has one."""
    with fake_nodes(2) as nodes:
        nodes[0].answers(
            "ListTopics",
            topics(50002, "no quorum"),
            topics(50002, "no quorum"),
            topics(50002, "no quorum"),
        )
        nodes[1].answers("ListTopics", topics(42900, "busy"), topics())
        with Connection(endpoints(nodes)) as connection:
            Admin(connection).topics()
        assert [len(node.requests["ListTopics"]) for node in nodes] == [2, 2]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_only_endpoint_is_asked_again_over_a_new_connection(asynchronous: bool) -> None:
    """The name of a Service leads to several nodes, and each connection to one of them. A node that
    was removed from the cluster answers as long as it runs, so the next try must not meet it
    again."""
    with fake_nodes() as (node,):
        first: list[str] = []

        def answer(_: Any) -> admin_pb2.ListTopicsResponse:
            first.append(node.peer)
            return topics(50002, "removed") if node.peer == first[0] else topics()

        node.answers("ListTopics", answer)
        if asynchronous:

            async def ask() -> None:
                async with AsyncConnection(node.endpoint, timeout_s=5) as connection:
                    await AsyncAdmin(connection).topics()

            asyncio.run(ask())
        else:
            with Connection(node.endpoint, timeout_s=5) as connection:
                Admin(connection).topics()
        assert len(first) == 2


def test_a_call_that_waits_outlives_the_new_connection_of_another_one() -> None:
    """One call is answered with a status that is retried over a new connection, while the first
    connection has another call."""
    with fake_nodes() as (node,):
        began, end = Event(), Event()

        def held(_: Any) -> admin_pb2.ListGroupsResponse:
            began.set()
            assert end.wait(30)
            return admin_pb2.ListGroupsResponse(status=admin_status())

        node.answers("ListGroups", held)
        node.answers("ListTopics", topics(50002, "no quorum"), topics())

        async def ask() -> None:
            async with AsyncConnection(node.endpoint, timeout_s=30) as connection:
                admin = AsyncAdmin(connection)
                waiting = asyncio.create_task(admin.groups())
                assert await asyncio.to_thread(began.wait, 30)
                await admin.topics()
                gc.collect()
                end.set()
                assert await waiting == ()

        try:
            asyncio.run(ask())
        finally:
            end.set()
        assert len(node.requests["ListGroups"]) == 1


def test_a_refusal_is_final() -> None:
    """An answer that is no is asked once and carries code, text and remedy."""
    with fake_nodes() as nodes:
        nodes[0].answers("ListTopics", topics(40402, "topic x does not exist"))
        with Connection(endpoints(nodes)) as connection, pytest.raises(Refused) as found:
            Admin(connection).topics()
    assert (found.value.code, found.value.exit_code, found.value.what) == (
        40402,
        4,
        "topic x does not exist",
    )
    assert "topic create" in found.value.remedy
    assert len(nodes[0].requests["ListTopics"]) == 1


def test_a_call_the_node_does_not_know_is_final() -> None:
    """UNIMPLEMENTED is not cured by another endpoint."""
    with (
        fake_nodes() as nodes,
        Connection(endpoints(nodes)) as connection,
        pytest.raises(Refused, match="UNIMPLEMENTED"),
    ):
        Admin(connection).topics()


@pytest.mark.parametrize("answer", [UNAVAILABLE, topics(50002, "no leader in sight")])
def test_time_runs_out(answer: object) -> None:
    """Whatever is repeated ends with the time-out, exit status 3, and the last reason."""
    with fake_nodes() as nodes:
        nodes[0].answers("ListTopics", answer)
        with (
            Connection(endpoints(nodes), timeout_s=1.0) as connection,
            pytest.raises(Unreachable) as found,
        ):
            Admin(connection).topics()
    assert found.value.exit_code == 3 and nodes[0].endpoint in found.value.what
    assert "UNAVAILABLE" in found.value.what or "no leader in sight" in found.value.what


def failed(code: grpc.StatusCode) -> grpc.RpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


@pytest.mark.parametrize(
    ("second_s", "said"), [(20.0, "answers UNAVAILABLE"), (14.0, "does not answer in time")]
)
def test_a_try_that_the_end_cuts_short_does_not_hide_the_reason(
    monkeypatch: pytest.MonkeyPatch, second_s: float, said: str
) -> None:
    """After a failure that says why, a try without an answer counts only if it had its full share
    of the time: 15 of 30 s."""
    now_s = 0.0
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now_s))
    with Connection("a:1", timeout_s=30.0) as connection:
        talk = connection.asking("/x", admin_pb2.ListTopicsRequest(), admin_pb2.ListTopicsResponse)
        next(talk)
        now_s = second_s
        assert isinstance(talk.throw(failed(grpc.StatusCode.UNAVAILABLE)), Pause)
        next(talk)
        now_s = 30.0
        with pytest.raises(Unreachable, match=said):
            assert isinstance(talk.throw(failed(grpc.StatusCode.DEADLINE_EXCEEDED)), Pause)
            next(talk)


def test_a_node_that_hangs_costs_a_part_of_the_time_only() -> None:
    """An endpoint that accepts connections and says nothing is left for the next one within the
    time-out."""
    with socket.create_server(("127.0.0.1", 0)) as silent, fake_nodes() as nodes:
        nodes[0].answers("ListTopics", topics())
        hanging = f"127.0.0.1:{silent.getsockname()[1]}"
        with Connection(f"{hanging};{nodes[0].endpoint}", timeout_s=3.0) as connection:
            assert Admin(connection).topics() == ()


def test_many_failures_of_one_endpoint_move_on_once() -> None:
    """When a window of calls to one endpoint fails together, the connection switches to the next
    endpoint only once."""
    with Connection("a:1;b:2;c:3") as connection:
        failed = connection.address
        for _ in range(64):
            connection.fail_over(failed)
        assert str(connection.address) == "b:2"


def test_a_web_proxy_in_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy set by http_proxy is ignored, so a cluster on loopback stays reachable."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with fake_nodes() as nodes:
        nodes[0].answers("ListTopics", topics())
        with Connection(endpoints(nodes), timeout_s=3.0) as connection:
            Admin(connection).topics()


@pytest.mark.parametrize(
    ("code", "message", "what", "remedy"),
    [
        (
            40402,
            "no topic x; create it with: topic create x",
            "no topic x",
            "create it with: topic create x",
        ),
        (
            40402,
            "no topic x",
            "no topic x",
            "check the name (ledgermq topic list), or create it: ledgermq topic create NAME",
        ),
        (
            40300,
            "",
            "the topic does not permit this",
            "see its permission: ledgermq topic describe NAME",
        ),
        (49999, "odd", "odd", "see the node's log if the reason is not clear"),
    ],
)
def test_refusal_carries_the_remedy_of_server_or_code(
    code: int, message: str, what: str, remedy: str
) -> None:
    """The server's own remedy wins; without one the code's; an empty text is replaced by the code's
    meaning."""
    problem = refusal(code, message)
    assert (problem.what, problem.remedy) == (what, remedy)


def test_metadata_names_the_client() -> None:
    """Every client call names its client, language and protocol."""
    with Connection("a:1") as connection, Connection("a:1") as other:
        found = dict(connection.metadata)
        assert found.keys() == {"x-mq-client-id", "x-mq-language", "x-mq-protocol"}
        assert found["x-mq-client-id"] != dict(other.metadata)["x-mq-client-id"]
