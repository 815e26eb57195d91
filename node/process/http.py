"""The HTTP port: `/healthz` (the process works), `/readyz` (it can serve), `/metrics` (Prometheus). No authentication, no secrets.

Probes and load balancers ask from other machines, also where clients must authenticate: they get the verdict, and neither names nor
reasons. Those, and `/metrics`, are for callers on this machine, unless the configuration opens them (`NodeConfig.opens_http`).

A node is ready if every broker group hosted here has a known leader, the peers take what this replica sends, it has applied everything it
knows to be committed, a leader on this node serves, and the controller knows the broker groups, so that topics can be created. Both health
answers come from the loop, between two turns of the groups, so a node whose turns stand still does not answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ledgermq import __version__
from ledgermq.node.process.node_pages import WorkerPages, merged_metrics
from ledgermq.node.process.topic_figures import TopicFigures
from ledgermq.node.replica.consensus.catch_up import STATES
from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.node.runtime import metrics, mirrored
from ledgermq.node.runtime.answer_budget import ANSWERS
from ledgermq.proto import kernels
from ledgermq.proto.types import ReplicaStatus, Role

ANSWER_WITHIN_S = 5.0
PAGES_AT_ONCE = 4
"""How many pages of metrics, which may have some MiB, are in memory at a time. Further readers wait."""
PAGE_WITHIN_S = 30.0
"""A reader that has not taken its page by then loses its connection."""
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """The node's health and readiness, for the HTTP pages and the gRPC health service."""

    def __init__(
        self,
        engine: Engine,
        unknown_groups: Callable[[], Sequence[str]],
        obstacles: Callable[[str], Sequence[str]] = lambda group: (),
        unheard: Callable[[str], Sequence[str]] = lambda group: (),
    ) -> None:
        """`obstacles` returns what may keep a broker group from having a leader, as far as this node can know; `unheard` why peers ignore
        what the replica here sends."""
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
        reasons = [reason for group, status in statuses.items() for reason in self._group_reasons(group, status)]
        return reasons + [f"broker group {group} is not known to the controller yet" for group in self._unknown_groups()]

    def _group_reasons(self, group: str, status: ReplicaStatus) -> Iterator[str]:
        view = self._engine.views.get(group)
        if status.rebuild is not None:
            yield f"broker group {group} is {status.state}: {status.rebuild.reason}"
        elif view is None or status.leader is None:
            yield f"broker group {group} has no known leader"
            yield from self._obstacles(group)
        elif not status.extra.get("admitted", 1):
            yield f"broker group {group}: this replica takes no part yet: the group does not know its data directory"
            yield from self._obstacles(group)
        elif view.members is not None and status.node in view.members.returning:
            yield f"broker group {group}: this replica lost its data directory, copies the log, and is a voter again when it has caught up"
        elif unheard := self._unheard(group):
            yield f"broker group {group}: this replica does not count"
            yield from unheard
        elif status.role is Role.LEADER and not view.serving:
            yield f"broker group {group}: this node leads but does not serve yet"
            if view.short:
                yield view.short
        elif status.applied_index < status.commit_index:
            yield f"broker group {group}: applied {status.applied_index} of {status.commit_index} committed entries"
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
        """Read what `collect` and `series` expose. If the groups have ended or do not answer in time, the node's own numbers are still
        useful."""
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
        """The metrics by topic and consumer group, which `metrics.REGISTRY` does not have, as of the last `refresh`. From any thread."""
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
    ) -> None:
        """`workers`: asks the other workers of this node, if this worker answers for the node. `opened`: other machines may read all pages;
        otherwise they get the verdicts of the probes only."""
        self._own = {"cluster": cluster_id, "node": node}
        self._opened = opened
        self._node = node
        self._workers = workers
        self._health = health
        self._collector = collector
        self._runner: web.AppRunner | None = None
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)

    async def listen(self, hosts: Sequence[str], port: int) -> None:
        """Listen on TCP. Raises OSError if the port is taken."""
        runner = await self._prepared()
        for host in hosts:
            await web.TCPSite(runner, host, port, reuse_address=True).start()

    async def listen_for_siblings(self, path: str) -> None:
        """Listen on a Unix socket for the worker that answers for the node, and that decides what a caller may read. Raises OSError."""
        self._opened = True
        await web.UnixSite(await self._prepared(), path).start()

    async def _prepared(self) -> web.AppRunner:
        app = web.Application(client_max_size=1024)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
        await self._runner.setup()
        metrics.REGISTRY.register(self._collector)
        return self._runner

    async def stop(self) -> None:
        if self._runner is not None:
            metrics.REGISTRY.unregister(self._collector)
            await self._runner.cleanup()

    def _trusts(self, request: web.Request) -> bool:
        """Whether the caller may read names, reasons and metrics."""
        return self._opened or _on_this_machine(request.remote or "")

    async def _healthz(self, request: web.Request) -> web.Response:
        try:
            await self._health.statuses()
        except TimeoutError:
            return web.json_response({"status": "stalled"}, status=503)
        others = {} if self._workers is None else await self._workers.json("/healthz")
        stalled = sorted(worker for worker, answer in others.items() if answer is None or answer.get("status") != "ok")
        if stalled:
            return web.json_response({"status": "stalled", **({"workers": stalled} if self._trusts(request) else {})}, status=503)
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = [*await self._health.why_not_ready(), *await self._why_siblings_are_not_ready()]
        # Names the answering node: if a node of another cluster took the port, a watcher must not take its answer for this node's.
        details = {"reasons": reasons, **self._own} if self._trusts(request) else {}
        return web.json_response({"status": "not ready" if reasons else "ready", **details}, status=503 if reasons else 200)

    async def _why_siblings_are_not_ready(self) -> list[str]:
        found = []
        for worker, answer in ({} if self._workers is None else await self._workers.json("/readyz")).items():
            reasons = ["it does not answer yet"] if answer is None else answer.get("reasons", ())
            found += [f"worker {worker}: {reason}" for reason in reasons]
        return found

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        if not self._trusts(request):
            what = "metrics are for callers on this machine; access.allow_open_http opens them (docs/security.md)\n"
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
    response = web.StreamResponse(headers={"Content-Type": PROMETHEUS_TEXT, "Content-Length": str(len(page))})
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


def _on_this_machine(remote: str) -> bool:
    """Whether a peer's address is one that only this machine has."""
    try:
        address = ipaddress.ip_address(remote)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
