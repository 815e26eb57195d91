"""The console against a node with scripted answers, in one event loop, and a browser's part of
HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from ledgermq.client.api.connection import AsyncConnection
from ledgermq.client.console import auditing
from ledgermq.client.console.application import COOKIE, SERVED, make_application
from ledgermq.client.console.sessions import Cluster, Limits
from ledgermq.client.console.views import SESSIONS
from ledgermq.proto import admin_pb2 as pb
from tests.client.fake_cluster import FakeNode, admin_status, fake_nodes

SCRIPT = "<script>alert(1)</script>"


class Server(TestServer):
    """As the console is served: what a request began is not cut short when its browser leaves."""

    async def _make_runner(self, **options: Any) -> Any:
        return await super()._make_runner(**{**options, **SERVED, "handler_cancellation": False})


class Browser:
    """A browser without scripts: cookies, pages, and forms with their token."""

    def __init__(self, client: TestClient[Any, Any], node: FakeNode, records: list[Any]) -> None:
        self.client = client
        self.node = node
        self.records = records

    async def get(self, path: str, status: int = 200, **headers: str) -> str:
        async with self.client.get(path, headers=headers, allow_redirects=False) as answer:
            text = await answer.text()
            assert answer.status == status, (answer.status, text)
            return text

    async def post(
        self, path: str, status: int = 303, *, headers: dict[str, str] | None = None, **fields: str
    ) -> str:
        async with self.client.post(
            path, data=fields, headers=headers, allow_redirects=False
        ) as answer:
            text = await answer.text()
            assert answer.status == status, (answer.status, text)
            return text

    async def answer(self, path: str) -> ClientResponse:
        async with self.client.get(path) as answer:
            await answer.read()
            return answer

    async def token(self) -> str:
        """The token in the forms of this session."""
        match = re.search(
            r'name="csrf" value="([^"]+)"', await self.get("/confirm/delete-topic?topic=t")
        )
        assert match is not None
        return match[1]

    @property
    def sessions(self) -> Any:
        return self.client.server.app[SESSIONS]  # type: ignore[attr-defined]

    @property
    def audits(self) -> auditing.Audits:
        found: auditing.Audits = self.sessions.cluster.audits
        return found

    async def audit_ended(self) -> None:
        """Wait for the end of the audit that runs."""
        assert self.audits._task is not None
        await self.audits._task

    @property
    def session(self) -> Any:
        """The only session."""
        (found,) = self.sessions._known.values()
        return found

    @property
    def session_watch(self) -> Any:
        """What all sessions without a user share."""
        return self.sessions._open

    @property
    def cookie(self) -> Any:
        return next(one for one in self.client.session.cookie_jar if one.key == COOKIE)

    def calls(self) -> int:
        return sum(map(len, self.node.requests.values()))


def cluster_status(topics: int = 2, **more: Any) -> pb.ClusterStatusResponse:
    """Three nodes and one broker group."""
    answer = pb.ClusterStatusResponse(status=admin_status(), cluster_id="c1", health="ok", **more)
    for name in ("n1", "n2", "n3"):
        answer.nodes.add(
            node=name, endpoint="127.0.0.1:1", up=True, version="0.2.0", disk_free_bytes=1 << 40
        )
    group = answer.groups.add(
        group="g1", leader="n1", term=3, commit_index=99, voters=["n1", "n2", "n3"]
    )
    for name in ("n1", "n2", "n3"):
        group.replicas.add(
            node=name,
            role="leader" if name == "n1" else "follower",
            state="running",
            end_index=100,
            commit_index=99,
        )
    for number in range(topics):
        answer.topics.add(
            topic=pb.Name(name=f"t{number:04}"),
            kind="normal",
            queues=8,
            permission="rw",
            messages=number,
        )
    return answer


def script_cluster(node: FakeNode, topics: int = 2, groups: int = 2) -> None:
    """Answers for the pages of a healthy cluster."""
    node.answers("ClusterStatus", cluster_status(topics))
    found = [
        pb.ConsumerGroupInfo(group=pb.Name(name=f"c{number:03}"), max_attempts=17)
        for number in range(groups)
    ]
    node.answers("ListGroups", pb.ListGroupsResponse(status=admin_status(), groups=found))
    lag = pb.TopicLag(topic=pb.Name(name="t0000"), lag=5)
    node.answers("GroupLag", pb.GroupLagResponse(status=admin_status(), topics=[lag]))
    node.answers("ListMembers", pb.ListMembersResponse(status=admin_status()))
    detail = {
        "version": "0.2.0",
        "pid": 7,
        "resident_bytes": 1 << 26,
        "client_connections": 5,
        "configuration": "{}",
    }
    node.answers(
        "DescribeNode",
        lambda asked: pb.DescribeNodeResponse(status=admin_status(), node=asked.node, **detail),
    )
    node.answers("ListClients", pb.ListClientsResponse(status=admin_status()))
    node.answers("ListBrokerGroups", pb.ListBrokerGroupsResponse(status=admin_status()))
    node.answers("PlanRebalance", pb.PlanRebalanceResponse(status=admin_status()))
    node.answers("ListUsers", pb.ListUsersResponse(status=admin_status()))
    node.answers("CountDeadLetters", pb.CountDeadLettersResponse(status=admin_status()))
    node.answers(
        "LeadershipHistory",
        pb.LeadershipHistoryResponse(
            status=admin_status(), answer="It never moved.", reason="first"
        ),
    )


@asynccontextmanager
async def console(
    node: FakeNode,
    limits: Limits | None = None,
    timeout_s: float = 1.0,
    audit: Sequence[str] = auditing.COMMAND,
    longest_s: float = auditing.LONGEST_S,
) -> AsyncIterator[Browser]:
    """`audit`: the program that is run as an audit."""
    records: list[Any] = []
    audits = auditing.Audits(records.append, command=audit, longest_s=longest_s)

    def connect(credentials: Any) -> AsyncConnection:
        return AsyncConnection(node.endpoint, credentials=credentials, timeout_s=timeout_s)

    application = make_application(
        Cluster(connect, records.append, audits), limits or Limits(), (), secure=False
    )
    async with TestClient(Server(application)) as client:
        yield Browser(client, node, records)


@asynccontextmanager
async def browsing(
    *, limits: Limits | None = None, topics: int = 2, groups: int = 2, **more: Any
) -> AsyncIterator[Browser]:
    """A browser of a console of a healthy cluster. `more`: further arguments of the console."""
    with fake_nodes() as (node,):
        script_cluster(node, topics, groups)
        async with console(node, limits, **more) as browser:
            yield browser
