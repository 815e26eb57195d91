"""The HTTP port: `/healthz` (the process works), `/readyz` (it can serve), `/metrics` (Prometheus). No authentication, no secrets.

A node is ready if every broker group hosted here has a known leader, this replica has applied everything it knows to be committed, a leader
on this node serves, and the controller knows the broker groups, so that topics can be created. Both health answers ask the engine itself,
so a stalled engine is neither healthy nor ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from ledgermq import __version__
from ledgermq.node.process.node_pages import WorkerPages, merged_metrics
from ledgermq.node.replica.consensus.catch_up import STATES
from ledgermq.node.replica.hosting.engine import Engine
from ledgermq.node.runtime import metrics
from ledgermq.proto.types import ReplicaStatus, Role

ANSWER_WITHIN_S = 5.0
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """The node's health and readiness, for the HTTP pages and the gRPC health service."""

    def __init__(
        self, engine: Engine, unknown_groups: Callable[[], Sequence[str]], obstacles: Callable[[str], Sequence[str]] = lambda group: ()
    ) -> None:
        """`obstacles` returns what may keep a broker group from having a leader, as far as this node can know."""
        self._engine = engine
        self._unknown_groups = unknown_groups
        self._obstacles = obstacles
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
        elif status.role is Role.LEADER and not view.serving:
            yield f"broker group {group}: this node leads but does not serve yet"
        elif status.applied_index < status.commit_index:
            yield f"broker group {group}: applied {status.applied_index} of {status.commit_index} committed entries"
        elif status.commit_index < 0:
            yield f"broker group {group}: the leader's commit index is not known yet"


class StateCollector(Collector):
    """Gauges of the replicas' state at the moment of a scrape."""

    def __init__(
        self, node: str, engine: Engine, queued_bytes: Callable[[], Mapping[str, int]], calls: Callable[[], Iterable[Any]] = tuple
    ) -> None:
        """`calls`: the metric families of the client methods."""
        self._node = node
        self._engine = engine
        self._queued_bytes = queued_bytes
        self._calls = calls
        self.statuses: Mapping[str, ReplicaStatus] = {}

    def collect(self) -> Iterator[Any]:
        yield InfoMetricFamily("ledgermq_node", "This node.", value={"node": self._node, "version": __version__})
        calls = GaugeMetricFamily("ledgermq_open_calls", "Client calls that wait for the engine.")
        calls.add_metric([], self._engine.open_calls)
        yield calls
        queued = GaugeMetricFamily("ledgermq_peer_queue_bytes", "Bytes waiting to be sent to a peer.", labels=["peer"])
        for peer, size in self._queued_bytes().items():
            queued.add_metric([peer], size)
        yield queued
        yield from self._replicas()
        yield from self._followers()
        yield from self._statistics()
        yield from self._calls()

    def _replicas(self) -> Iterator[Any]:
        roles = GaugeMetricFamily("ledgermq_role", "1 for the role of this replica.", labels=["group", "role"])
        gauges = {
            "term": GaugeMetricFamily("ledgermq_term", "Current term.", labels=["group"]),
            "begin_index": GaugeMetricFamily("ledgermq_begin_index", "First retained entry.", labels=["group"]),
            "end_index": GaugeMetricFamily("ledgermq_end_index", "Last entry of the log.", labels=["group"]),
            "durable_index": GaugeMetricFamily("ledgermq_durable_index", "Last entry synced here.", labels=["group"]),
            "commit_index": GaugeMetricFamily("ledgermq_commit_index", "Last entry known to be committed.", labels=["group"]),
            "applied_index": GaugeMetricFamily("ledgermq_applied_index", "Last entry applied.", labels=["group"]),
        }
        leader_known = GaugeMetricFamily("ledgermq_leader_known", "1 when this replica knows a leader.", labels=["group"])
        for group, status in self.statuses.items():
            for role in Role:
                roles.add_metric([group, role.value], float(status.role is role))
            leader_known.add_metric([group], float(status.leader is not None))
            for name, gauge in gauges.items():
                gauge.add_metric([group], getattr(status, name))
        yield roles
        yield leader_known
        yield from gauges.values()

    def _followers(self) -> Iterator[Any]:
        """The progress of the followers of groups led here; unknown values are left out."""
        told = {
            "behind_entries": ("ledgermq_follower_behind_entries", "Entries that a follower has not received, as its leader knows."),
            "behind_bytes": ("ledgermq_follower_behind_bytes", "Bytes of the log that a follower has not received."),
            "bytes_per_s": ("ledgermq_follower_bytes_per_second", "Bytes per second that a follower receives, over the last ten seconds."),
            "seconds_left": ("ledgermq_follower_seconds_left", "Estimated seconds until a follower has caught up."),
        }
        for field, (name, text) in told.items():
            family = GaugeMetricFamily(name, text, labels=["group", "follower"])
            for group, status in self.statuses.items():
                for peer in status.peers:
                    if (value := getattr(peer, field)) is not None:
                        family.add_metric([group, peer.node], value)
            yield family
        states = GaugeMetricFamily("ledgermq_follower_state", "1 for the state of a follower.", labels=["group", "follower", "state"])
        for group, status in self.statuses.items():
            for peer in status.peers:
                for state in STATES:
                    states.add_metric([group, peer.node, state], float(peer.state == state))
        yield states

    def _statistics(self) -> Iterator[Any]:
        families: dict[str, GaugeMetricFamily] = {}
        for group in self._engine.groups:
            view = self._engine.views.get(group)
            numbers = dict(self.statuses[group].extra) if group in self.statuses else {}
            numbers.update(view.statistics if view is not None else {})
            for name, value in numbers.items():
                if isinstance(value, int | float):
                    # A name of the form `name:node` concerns one peer.
                    name, _, peer = name.partition(":")
                    metric = f"ledgermq_group_{name.replace('-', '_')}"
                    family = GaugeMetricFamily(metric, f"Counter or gauge {name} of a replica.", labels=["group", "peer"][: 1 + bool(peer)])
                    families.setdefault(name, family).add_metric([group, peer] if peer else [group], value)
        yield from families.values()


class HttpServer:
    """The HTTP port of a node."""

    def __init__(
        self, cluster_id: str, node: str, health: Health, collector: StateCollector, workers: WorkerPages | None = None
    ) -> None:
        """`workers`: asks the other workers of this node, if this worker answers for the node."""
        self._own = {"cluster": cluster_id, "node": node}
        self._node = node
        self._workers = workers
        self._health = health
        self._collector = collector
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> None:
        """Listen on TCP. Raises OSError if the port is taken."""
        await web.TCPSite(await self._prepared(), host, port, reuse_address=True).start()

    async def listen_for_siblings(self, path: str) -> None:
        """Listen on a Unix socket for the worker that answers for the node. Raises OSError."""
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

    async def _healthz(self, _: web.Request) -> web.Response:
        try:
            await self._health.statuses()
        except TimeoutError:
            return web.json_response({"status": "stalled"}, status=503)
        others = {} if self._workers is None else await self._workers.json("/healthz")
        stalled = sorted(worker for worker, answer in others.items() if answer is None or answer.get("status") != "ok")
        if stalled:
            return web.json_response({"status": "stalled", "workers": stalled}, status=503)
        return web.json_response({"status": "ok"})

    async def _readyz(self, _: web.Request) -> web.Response:
        reasons = [*await self._health.why_not_ready(), *await self._why_siblings_are_not_ready()]
        # Names the answering node: if a node of another cluster took the port, a watcher must not take its answer for this node's.
        answer = {"status": "not ready" if reasons else "ready", "reasons": reasons, **self._own}
        return web.json_response(answer, status=503 if reasons else 200)

    async def _why_siblings_are_not_ready(self) -> list[str]:
        found = []
        for worker, answer in ({} if self._workers is None else await self._workers.json("/readyz")).items():
            reasons = ["it does not answer yet"] if answer is None else answer.get("reasons", ())
            found += [f"worker {worker}: {reason}" for reason in reasons]
        return found

    async def _metrics(self, _: web.Request) -> web.Response:
        try:
            self._collector.statuses = await self._health.statuses()
        except TimeoutError:
            # The counters are still useful; the missing gauges show that the engine is stalled.
            self._collector.statuses = {}
        page = generate_latest(metrics.REGISTRY)
        if self._workers is not None:
            pages = {self._node: page.decode(), **await self._workers.text("/metrics")}
            page = (await asyncio.to_thread(merged_metrics, pages)).encode()
        return web.Response(body=page, headers={"Content-Type": PROMETHEUS_TEXT})
