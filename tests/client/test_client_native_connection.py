"""The way to a leader: redirects, pauses, what is worth another try, and brokers that took too
long."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from concurrent import futures
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import pytest

from ledgermq.client.api.connection import Address
from ledgermq.client.errors import Refused, Unreachable
from ledgermq.client.native import log_connection as native
from ledgermq.client.native.log_connection import Latencies, LogConnection, Pauses
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc
from ledgermq.proto.signature import AUTHORIZATION, Credentials

R = TypeVar("R")


HANGS = object()
"""In a script: the call has no answer until the client ends it."""


class Node(log_pb2_grpc.LogServicer):
    """Answers single calls from a script; the last answer is repeated."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.asked = 0
        self.metadata: dict[str, str] = {}
        self._server = grpc.server(
            futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)]
        )
        log_pb2_grpc.add_LogServicer_to_server(self, self._server)
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def Locate(self, request: pb.LocateRequest, context: grpc.ServicerContext) -> Any:
        return self._answer(context)

    def Commit(self, request: pb.CommitRequest, context: grpc.ServicerContext) -> Any:
        return self._answer(context)

    def _answer(self, context: grpc.ServicerContext) -> Any:
        self.asked += 1
        self.metadata = {str(key): str(value) for key, value in context.invocation_metadata()}
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "scripted error")
        if answer is HANGS:
            ended = threading.Event()
            if context.add_callback(ended.set):
                ended.wait()
            context.abort(grpc.StatusCode.CANCELLED, "the client ended the call")
        return answer


@asynccontextmanager
async def connected(count: int, **options: Any) -> AsyncIterator[tuple[list[Node], LogConnection]]:
    nodes = [Node() for _ in range(count)]
    try:
        async with LogConnection(
            ";".join(node.endpoint for node in nodes), chance=random.Random(1), **options
        ) as connection:
            yield nodes, connection
    finally:
        for node in nodes:
            node.stop()


def redirect(to: str = "") -> pb.Redirect:
    return pb.Redirect(broker_group="g1", leader="n1" if to else "", endpoint=to)


async def test_a_redirect_is_followed_and_remembered() -> None:
    """The first node names the second; the next call goes there at once."""
    async with connected(2) as (nodes, connection):
        nodes[0].script = [pb.CommitResponse(redirect=redirect(nodes[1].endpoint))]
        nodes[1].script = [pb.CommitResponse()]
        for _ in range(3):
            await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)
        assert (nodes[0].asked, nodes[1].asked) == (1, 3)


async def test_nodes_that_name_each_other_are_asked_with_pauses_until_time_is_over() -> None:
    """A stale pair of redirects is no busy loop."""
    async with connected(2, timeout_s=1.0) as (nodes, connection):
        nodes[0].script = [pb.CommitResponse(redirect=redirect(nodes[1].endpoint))]
        nodes[1].script = [pb.CommitResponse(redirect=redirect(nodes[0].endpoint))]
        with pytest.raises(Unreachable, match="led elsewhere"):
            await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)
        assert nodes[0].asked + nodes[1].asked < 15


async def test_a_try_that_the_end_cuts_short_does_not_hide_the_reason() -> None:
    """The node said that its group has no leader; that it gives no answer in the rest of the time
    explains less."""
    async with connected(1, timeout_s=1.0) as (nodes, connection):
        nodes[0].script = [pb.CommitResponse(redirect=redirect()), HANGS]
        with pytest.raises(Unreachable, match="has no leader"):
            await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)
        assert nodes[0].asked == 2


async def test_a_leader_that_died_is_searched_at_the_other_endpoints() -> None:
    """What was known of the leader is forgotten with the connection to it."""
    async with connected(2) as (nodes, connection):
        nodes[0].script = [pb.CommitResponse()]
        nodes[1].script = [pb.CommitResponse(redirect=redirect()), pb.CommitResponse()]
        await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)
        nodes[0].stop()
        await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)
        assert str(connection.leader("g1")) == nodes[1].endpoint


async def test_unreachable_leader_address_is_searched_at_every_endpoint() -> None:
    """A follower names the leader by an address that only other nodes reach; the leader is the last
    of the given endpoints."""
    async with connected(3) as (nodes, connection):
        elsewhere = pb.CommitResponse(redirect=redirect("127.0.0.1:1"))
        nodes[0].script = nodes[1].script = [elsewhere]
        nodes[2].script = [pb.CommitResponse()]
        await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)
        assert [node.asked for node in nodes] == [1, 1, 1]


async def test_retry_follows_the_retryable_flag_of_the_problem() -> None:
    """`retryable` of a Problem counts, not what its code usually means."""
    async with connected(1) as (nodes, connection):
        full = pb.Problem(code=50001, message="the disk is full; wait", retryable=True)
        gone = pb.Problem(code=50001, message="gone; look elsewhere", retryable=False)
        nodes[0].script = [pb.CommitResponse(problem=full), pb.CommitResponse(problem=gone)]
        with pytest.raises(Refused, match="gone") as found:
            await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)
        assert nodes[0].asked == 2 and found.value.remedy == "look elsewhere"
        nodes[0].script = [grpc.StatusCode.UNIMPLEMENTED]
        with pytest.raises(Refused, match="UNIMPLEMENTED"):
            await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)


async def test_locate_learns_queues_and_leaders_and_calls_are_signed() -> None:
    """Queues of both broker groups, numbered as administration does; a leader it names is where its
    broker group is asked first."""
    async with connected(2, credentials=Credentials("ann", "secret")) as (nodes, connection):
        answer = pb.LocateResponse(cluster_id="c", kind="normal")
        answer.broker_groups.add(name="g2", queues=[0, 1], log_id="l2")
        answer.broker_groups.add(
            name="g1", queues=[0, 1], log_id="l1", leader=redirect(nodes[1].endpoint)
        )
        nodes[0].script = [answer]
        nodes[1].script = [pb.CommitResponse()]
        located = await connection.locate("t")
        assert located.queues == (("g1", 0), ("g1", 1), ("g2", 0), ("g2", 1))
        assert "Credential=ann" in nodes[0].metadata[AUTHORIZATION]
        await connection.ask("Commit", "g1", pb.CommitRequest(), pb.CommitResponse)
        assert nodes[0].asked == 1
        assert connection.leader("g2") is None


def test_pauses_grow_to_a_bound_and_differ() -> None:
    """Doubling up to a second, each somewhere between half and all of its step."""
    pauses = Pauses(random.Random(5))
    steps = [pauses.next_s() for _ in range(12)]
    for number, step in enumerate(steps):
        whole = min(native.PAUSE_MAX_S, native.PAUSE_FIRST_S * 2**number)
        assert whole / 2 <= step <= whole
    assert len(set(steps)) == len(steps)
    pauses.reset()
    assert pauses.next_s() <= native.PAUSE_FIRST_S


@pytest.mark.parametrize(
    ("latency_ms", "away_s"),
    [
        (0, 0),
        (549, 0),
        (550, 30),
        (1000, 60),
        (1999, 60),
        (2000, 120),
        (3000, 180),
        (14999, 180),
        (15000, 600),
        (99999, 600),
    ],
)
def test_the_table_of_slow_brokers(latency_ms: float, away_s: float) -> None:
    """As the classic clients: so slow, so long not used."""
    now = [100.0]
    latencies = Latencies(lambda: now[0])
    latencies.took("a", latency_ms)
    now[0] += max(0, away_s - 0.1)
    assert ("a" in latencies.usable(["a", "b"])) == (away_s == 0)
    now[0] += 0.1
    assert latencies.usable(["a", "b"]) == ["a", "b"]


def test_of_slow_brokers_alone_the_first_to_recover_is_used() -> None:
    """Something is always used; a quick answer does not wipe out a slow one."""
    latencies = Latencies(lambda: 0.0)
    latencies.took("a", 3000)
    latencies.took("b", 600)
    latencies.took("a", 1)
    assert latencies.usable(["a", "b"]) == ["b"]
    assert latencies.usable(["a"]) == ["a"]


async def test_invalid_redirect_endpoint_leaves_the_leader_unknown() -> None:
    """A node without an advertised address, or a garbled one, leaves the leader unknown."""
    async with LogConnection("127.0.0.1:1") as connection:
        assert connection.redirected(redirect("127.0.0.1:5"))
        assert connection.leader("g1") == Address("127.0.0.1", 5, "n1")
        for bad in ("", "nowhere", "a:1;b:2"):
            assert not connection.redirected(redirect(bad))
            assert connection.leader("g1") is None
