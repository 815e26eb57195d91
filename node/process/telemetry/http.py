"""The HTTP port: `/healthz` (the process works), `/readyz` (it can serve), `/metrics` (Prometheus).
No authentication, no secrets.

Probes and load balancers ask from other machines, also where clients must authenticate: they get
the verdict, and neither names nor reasons. Those, and `/metrics`, are for callers on this machine,
unless the configuration opens them (`NodeConfig.opens_http`). A browser on this machine is such a
caller for every page that it shows; a page of another site can reach this port, by a name of its
own that resolves to this machine, but only under that name (DNS rebinding). So a caller must also
name this node as the configuration does.

Callers without a proof hold little: a connection without a request in it ends after `IDLE_S`, and
the number of connections is bounded.

A node is ready if every broker group hosted here has a known leader, the peers take what this
replica sends, it has applied everything it knows to be committed, a leader on this node serves, and
the controller knows the broker groups, so that topics can be created. Both health answers come from
the loop, between two turns of the groups, so a node whose turns stand still does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ledgermq import __version__
from ledgermq.node.process.telemetry.node_pages import WorkerPages, merged_metrics
from ledgermq.node.process.telemetry.topic_figures import TopicFigures
from ledgermq.node.replica.consensus.catch_up import STATES
from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.node.runtime import metrics, mirrored, sockets
from ledgermq.node.runtime.answer_budget import ANSWERS
from ledgermq.proto import kernels
from ledgermq.proto.host_port import is_address, is_loopback, split
from ledgermq.proto.types import ReplicaStatus, Role

ANSWER_WITHIN_S = 5.0
PAGES_AT_ONCE = 4
"""How many pages of metrics, which may have some MiB, are in memory at a time. Further readers
wait."""
IDLE_S = 20.0
"""A connection is closed when it has been without a complete request for so long. Collectors that
ask every 15 s keep theirs."""
CONNECTIONS_MAX = 256
"""Above this number, the oldest connections without a request in hand make room: strangers who hold
connections keep no probe out."""
BACKLOG = 128
PAGE_WITHIN_S = 30.0
"""A reader that has not taken its page by then loses its connection."""
Siblings = Mapping[str, Mapping[str, Any] | None]
"""What the other workers of the node answered; None: nothing."""
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """The node's health and readiness, for the HTTP pages and the gRPC health service."""

    def __init__(
        self,
        engine: Engine,
        unknown_groups: Callable[[], Sequence[str]],
        obstacles: Callable[[str], Sequence[str]] = lambda group: (),
        warnings: Callable[[], Sequence[str]] = tuple,
        unheard: Callable[[str], Sequence[str]] = lambda group: (),
    ) -> None:
        """`obstacles` returns what may keep a broker group from having a leader, as far as this
        node can know; `warnings` what an operator must know although the node can serve: load
        balancers must not leave a majority because of a peer that it does not need; `unheard` why
        peers ignore what the replica here sends."""
        self.warnings = warnings
        self._engine = engine
        self._unknown_groups = unknown_groups
        self._obstacles = obstacles
        self._unheard = unheard
        self.draining = False

    async def statuses(self) -> dict[str, ReplicaStatus]:
        """The status of every replica here. Raises TimeoutError if the engine does not answer."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            groups = self._engine.groups
            found = await asyncio.gather(*(self._engine.status(group) for group in groups))
        return dict(zip(groups, found, strict=True))

    async def why_not_ready(self) -> list[str]:
        """One sentence for each reason; empty if the node is ready."""
        if self.draining:
            return ["this node is stopping"]
        try:
            statuses = await self.statuses()
        except TimeoutError:
            return ["the engine does not answer"]
        reasons = [
            reason
            for group, status in statuses.items()
            for reason in self._group_reasons(group, status)
        ]
        return reasons + [
            f"broker group {group} is not known to the controller yet"
            for group in self._unknown_groups()
        ]

    def _group_reasons(self, group: str, status: ReplicaStatus) -> Iterator[str]:
        view = self._engine.views.get(group)
        if status.rebuild is not None:
            yield f"broker group {group} is {status.state}: {status.rebuild.reason}"
        elif view is None or status.leader is None:
            yield f"broker group {group} has no known leader"
            yield from self._obstacles(group)
        elif not status.extra.get("admitted", 1):
            yield (
                f"broker group {group}: this replica takes no part yet: the group does not know its"
                " data directory"
            )
            yield from self._obstacles(group)
        elif view.members is not None and status.node in view.members.returning:
            yield (
                f"broker group {group}: this replica lost its data directory, copies the log, and"
                " is a voter again when it has caught up"
            )
        elif unheard := self._unheard(group):
            yield f"broker group {group}: this replica does not count"
            yield from unheard
        elif status.role is Role.LEADER and not view.serving:
            yield f"broker group {group}: this node leads but does not serve yet"
            if view.short:
                yield view.short
        elif status.applied_index < status.commit_index:
            yield (
                f"broker group {group}: applied {status.applied_index} of {status.commit_index}"
                " committed entries"
            )
        elif status.commit_index < 0:
            yield f"broker group {group}: the leader's commit index is not known yet"


class StateCollector(Collector):
    """The mirrored families (`mirrored.py`) at the moment of a scrape."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        queued_bytes: Callable[[], Mapping[str, int]],
        figures: TopicFigures,
        calls: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        """`calls`: the metric families of the client methods."""
        self._node = node
        self._figures = figures
        self._engine = engine
        self._queued_bytes = queued_bytes
        self._calls = calls
        self.statuses: Mapping[str, ReplicaStatus] = {}

    async def refresh(self, health: Health) -> None:
        """Read what `collect` and `series` expose. If the groups have ended or do not answer in
        time, the node's own numbers are still useful."""
        try:
            self.statuses = await health.statuses()
        except TimeoutError:
            self.statuses = {}
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await self._figures.refresh()
        except TimeoutError:
            self._figures.groups = {}

    def page(self) -> bytes:
        """All metrics of this process, as of the last `refresh`."""
        return generate_latest(metrics.REGISTRY) + self._figures.page().encode()

    def series(self) -> Iterator[tuple[Sequence[metrics.Declared], Sequence[str], Sequence[int]]]:
        """The metrics by topic and consumer group, which `metrics.REGISTRY` does not have, as of
        the last `refresh`. From any thread."""
        return self._figures.series()

    def collect(self) -> Iterator[Metric]:
        node = mirrored.NODE_INFO.gauge()
        node.add_metric([self._node, __version__, kernels.VERSION or ""], 1)
        yield node
        calls = mirrored.OPEN_CALLS.gauge()
        calls.add_metric([], self._engine.open_calls)
        yield calls
        answers = mirrored.ANSWER_BYTES.gauge()
        answers.add_metric([], ANSWERS.held_bytes)
        yield answers
        queued = mirrored.PEER_QUEUE_BYTES.gauge()
        for peer, size in self._queued_bytes().items():
            queued.add_metric([peer], size)
        yield queued
        yield from self._replicas()
        yield from self._followers()
        yield from self._statistics()
        yield from self._calls()

    def _replicas(self) -> Iterator[Metric]:
        roles, leader_known = mirrored.ROLE.gauge(), mirrored.LEADER_KNOWN.gauge()
        positions = {field: family.gauge() for field, family in mirrored.POSITIONS.items()}
        for group, status in self.statuses.items():
            for role in Role:
                roles.add_metric([group, role.value], float(status.role is role))
            leader_known.add_metric([group], float(status.leader is not None))
            for field, gauge in positions.items():
                gauge.add_metric([group], getattr(status, field))
        yield roles
        yield leader_known
        yield from positions.values()

    def _followers(self) -> Iterator[Metric]:
        """The progress of the followers of groups led here; unknown values are left out."""
        for field, declared in mirrored.FOLLOWERS.items():
            family = declared.gauge()
            for group, status in self.statuses.items():
                for peer in status.peers:
                    if (value := getattr(peer, field)) is not None:
                        family.add_metric([group, peer.node], value)
            yield family
        states = mirrored.FOLLOWER_STATE.gauge()
        for group, status in self.statuses.items():
            for peer in status.peers:
                for state in STATES:
                    states.add_metric([group, peer.node, state], float(peer.state == state))
        yield states

    def _statistics(self) -> Iterator[Metric]:
        families = {declared: declared.number() for declared in mirrored.STATISTICS.values()}
        for group, status in self.statuses.items():
            for key, value in status.extra.items():
                declared, labels = mirrored.statistic(key)
                families[declared].add_metric([group, *labels], value * declared.scale)
        yield from families.values()


class HttpServer:
    """The HTTP port of a node."""

    def __init__(
        self,
        cluster_id: str,
        node: str,
        health: Health,
        collector: StateCollector,
        workers: WorkerPages | None = None,
        *,
        opened: bool = True,
        names: Collection[str] = (),
    ) -> None:
        """`workers`: asks the other workers of this node, if this worker answers for the node.
        `opened`: everyone may read all pages; otherwise only callers on this machine, under its
        addresses, `localhost` or one of `names`, get more than the verdicts of the probes."""
        self._own = {"cluster": cluster_id, "node": node}
        self._opened = opened
        self._names = frozenset(name.lower() for name in ("localhost", *names))
        self._node = node
        self._workers = workers
        self._health = health
        self._collector = collector
        self._runner: web.AppRunner | None = None
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)
        self._answering: set[web.RequestHandler] = set()
        self._listeners: list[asyncio.Server] = []

    async def listen(self, hosts: Sequence[str], port: int) -> None:
        """Listen on TCP. Raises OSError if the port is taken."""
        server, loop = (await self._prepared()).server, asyncio.get_running_loop()
        assert server is not None

        def connection() -> web.RequestHandler:
            self._make_room(server)
            return server()

        for host in hosts:
            for place in await asyncio.to_thread(sockets.places, host, port):
                self._listeners.append(
                    await loop.create_server(connection, sock=sockets.listener(place, BACKLOG))
                )

    @property
    def port(self) -> int:
        """The port that was opened first."""
        return int(self._listeners[0].sockets[0].getsockname()[1])

    def _make_room(self, server: web.Server) -> None:
        # A closed connection loses its transport at once, and leaves the list later.
        held = [connection for connection in server.connections if connection.transport is not None]
        idle_first = sorted(held, key=self._answering.__contains__)
        for connection in idle_first[: max(0, len(held) - CONNECTIONS_MAX + 1)]:
            metrics.HTTP_CROWDED_OUT.inc()
            connection.force_close()

    async def listen_for_siblings(self, path: str) -> None:
        """Listen on a Unix socket for the worker that answers for the node, and that decides what a
        caller may read. Raises OSError."""
        self._opened = True
        await web.UnixSite(await self._prepared(), path).start()

    async def _prepared(self) -> web.AppRunner:
        app = web.Application(client_max_size=1024, middlewares=[self._answered])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=0.5,
            keepalive_timeout=IDLE_S,
            auto_decompress=False,
        )
        await self._runner.setup()
        metrics.REGISTRY.register(self._collector)
        return self._runner

    async def stop(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._runner is not None:
            metrics.REGISTRY.unregister(self._collector)
            await self._runner.cleanup()

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._answering.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._answering.discard(request.protocol)

    def _trusts(self, request: web.Request) -> bool:
        """Whether the caller may read names, reasons and metrics."""
        return self._opened or (
            is_loopback(request.remote or "") and self._is_called(request.headers.get("Host"))
        )

    def _is_called(self, host: str | None) -> bool:
        """Whether this node is called that, with or without a port. Browsers always say what they
        called it."""
        try:
            name = None if host is None else split(host, 0)[0]
        except ValueError:
            return False
        return name is None or is_address(name) or name.lower() in self._names

    async def _healthz(self, request: web.Request) -> web.Response:
        try:
            await self._health.statuses()
        except TimeoutError:
            return web.json_response({"status": "stalled"}, status=503)
        others = {} if self._workers is None else await self._workers.json("/healthz")
        stalled = sorted(
            worker
            for worker, answer in others.items()
            if answer is None or answer.get("status") != "ok"
        )
        if stalled:
            return web.json_response(
                {"status": "stalled", **({"workers": stalled} if self._trusts(request) else {})},
                status=503,
            )
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        siblings = {} if self._workers is None else await self._workers.json("/readyz")
        reasons = [*await self._health.why_not_ready(), *self._why_siblings_are_not_ready(siblings)]
        # Names the answering node: if a node of another cluster took the port, a watcher must not
        # take its answer for this node's.
        told = {
            "reasons": reasons,
            "warnings": [*self._health.warnings(), *self._warnings_of(siblings)],
        }
        details = {**told, **self._own} if self._trusts(request) else {}
        return web.json_response(
            {"status": "not ready" if reasons else "ready", **details},
            status=503 if reasons else 200,
        )

    @staticmethod
    def _why_siblings_are_not_ready(siblings: Siblings) -> list[str]:
        found = []
        for worker, answer in siblings.items():
            reasons = ["it does not answer yet"] if answer is None else answer.get("reasons", ())
            found += [f"worker {worker}: {reason}" for reason in reasons]
        return found

    @staticmethod
    def _warnings_of(siblings: Siblings) -> list[str]:
        return [
            f"worker {worker}: {warning}"
            for worker, answer in siblings.items()
            if answer
            for warning in answer.get("warnings", ())
        ]

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if not self._trusts(request):
            what = (
                "metrics are for callers on this machine, by an address or a configured name;"
                " access.allow_open_http opens them"
            )
            what += " (docs/security.md)\n"
            return web.Response(text=what, status=403)
        async with self._pages:
            await self._collector.refresh(self._health)
            page = self._collector.page()
            if self._workers is not None:
                pages = {self._node: page.decode(), **await self._workers.text("/metrics")}
                page = (await asyncio.to_thread(merged_metrics, pages)).encode()
            return await _taken(request, page)


async def _taken(request: web.Request, page: bytes) -> web.StreamResponse:
    """Answer with a page of metrics, and wait until the reader has taken it."""
    response = web.StreamResponse(
        headers={"Content-Type": PROMETHEUS_TEXT, "Content-Length": str(len(page))}
    )
    try:
        async with asyncio.timeout(PAGE_WITHIN_S):
            await response.prepare(request)
            if request.method != "HEAD":
                await response.write(page)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return response
