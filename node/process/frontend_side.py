"""What clients, operators and probes of a node see: the client port with its services, and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from ledgermq.node.frontend.admin.admin_port import SERVICE as ADMIN
from ledgermq.node.frontend.admin.admin_port import admin_methods
from ledgermq.node.frontend.admin.service import ADMIN_PREFIX
from ledgermq.node.frontend.audits.replicas_service import PREFIX as REPLICAS_PREFIX
from ledgermq.node.frontend.audits.replicas_service import SERVICE as REPLICAS
from ledgermq.node.frontend.audits.replicas_service import Replicas
from ledgermq.node.frontend.native.callers import Callers
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.native.producing import Hosted as HostedLog
from ledgermq.node.frontend.native.service import LOG_PREFIX, LogService, Parts
from ledgermq.node.frontend.native.service import SERVICE as LOG
from ledgermq.node.frontend.rocketmq.access_control import AccessControl
from ledgermq.node.frontend.rocketmq.messaging import SERVICE as MESSAGING
from ledgermq.node.frontend.rocketmq.messaging import MessagingService
from ledgermq.node.frontend.rocketmq.service_config import ServiceConfig
from ledgermq.node.frontend.routing.local_reads import LocalReads
from ledgermq.node.frontend.routing.local_reads import Rules as ReadRules
from ledgermq.node.frontend.routing.worker_proxy import WorkerProxy
from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.frontend.security.quotas import Quotas
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.process.admin_side import AdminSide
from ledgermq.node.process.client_port import call_server, listening
from ledgermq.node.process.controller_side import ControllerSide
from ledgermq.node.process.maintenance_side import MaintenanceSide
from ledgermq.node.process.replica_side import ReplicaSide
from ledgermq.node.process.telemetry.health_service import SERVICE as HEALTH
from ledgermq.node.process.telemetry.health_service import HealthService
from ledgermq.node.process.telemetry.http import Health, HttpServer, StateCollector
from ledgermq.node.process.telemetry.node_pages import WorkerPages
from ledgermq.node.process.telemetry.otlp_metrics import exporter_of
from ledgermq.node.process.telemetry.topic_figures import TopicFigures
from ledgermq.node.process.telemetry.tracing import spans_of
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.proto import kernels
from ledgermq.proto.signature import operator_of
from ledgermq.proto.status import LedgerError
from ledgermq.proto.workers import is_first

HEALTH_EVERY_S = 0.5
LEADERS_EVERY_S = 1.0
BOOTSTRAP_RETRY_S = 1.0

log = logs.get_logger()


class FrontendSide:
    """The services of one node. `workers`: the workers of this node, if it has several."""

    def __init__(
        self,
        config: NodeConfig,
        secret: bytes,
        workers: WorkerRegistry | None,
        replicas: ReplicaSide,
        quorum: ControllerSide,
        maintenance: MaintenanceSide,
    ) -> None:
        self._config = config
        self._first_user = config.bootstrap_user()
        self._workers = workers
        self._quorum = quorum
        engine, forwarder, now_ms = replicas.engine, quorum.forwarder, replicas.clock.now_ms
        self._worker_proxy = None if workers is None else WorkerProxy(workers)
        unix = None if workers is None else workers.calls(config.node)
        self._listening = listening(config, shared=workers is not None, unix=unix)
        self._server = call_server(
            None if self._worker_proxy is None else self._worker_proxy.divert
        )
        sealer = Sealer((secret, *config.former_secrets()), config.cluster_id)
        self._authority = Authority(
            lambda: quorum.controller.state.users,
            quorum.catch_up,
            sealer,
            operator_of(secret),
            required=config.access.authentication == "required",
            common_names=config.tls.users,
            whence=self._server.address_of,
        )
        quotas, namespaces = Quotas(config.quotas), not config.access.ignore_namespaces
        callers = Callers(self._authority, quotas, namespaces=namespaces)
        receipt_keys = ReceiptKeys(quorum.controller, sealer, now_ms)
        self._spans = spans_of(config.tracing, config.node, config.address)
        rules = {
            group.name: ReadRules(group.follower_read_age_ms, group.follower_pull_bytes)
            for group in config.cluster.groups
            if group.follower_reads
        }
        self._local = LocalReads(config.node, rules, engine.views, replicas.age_ns)
        host, port = config.address.advertised
        self.messaging = MessagingService(
            engine,
            forwarder,
            quorum.controller,
            ServiceConfig(
                node=config.node,
                host=host,
                port=port,
                secret=secret,
                delivery=config.delivery,
                limits=config.limits,
                namespaces=namespaces,
                now_ms=now_ms,
            ),
            access=AccessControl(self._authority, quotas),
            local=self._local,
            tier=maintenance.tier,
        )
        self.leaders = Leaders(
            config.node,
            engine,
            forwarder.leader,
            lambda node: replicas.roster.address(node, "client"),
        )
        self.native = LogService(
            Parts(
                node=config.node,
                cluster_id=config.cluster_id,
                engine=engine,
                forwarder=forwarder,
                metadata=quorum.controller,
                leaders=self.leaders,
                callers=callers,
                meters=self.messaging.meters,
                hosted={
                    name: HostedLog(identity.log_id, identity.data_file_bytes)
                    for name, identity in replicas.identities.items()
                },
                keys=receipt_keys,
                limits=config.limits,
                local=self._local,
                member_liveness_ms=config.delivery.member_liveness_ms,
                spans=self._spans,
                tier=maintenance.tier,
            )
        )
        self._audits = Replicas(
            config,
            replicas.boot_id,
            boots=replicas.boots_of,
            engine=engine,
            forwarder=forwarder,
            storage=maintenance.retainer,
            callers=callers,
        )
        self.admin = AdminSide(
            config,
            replicas,
            quorum,
            maintenance,
            self._server,
            messaging=self.messaging,
            native=self.native,
            receipt_keys=receipt_keys,
            sealer=sealer,
        )
        self._health = Health(
            engine,
            quorum.unknown_groups,
            replicas.obstacles,
            replicas.peer_failures,
            replicas.peer_identities.unheard,
        )
        self._health_service = HealthService(MESSAGING, LOG)
        figures = TopicFigures(
            config.cluster_id, config.node, engine, now_ms, config.metrics.series_max
        )
        collector = StateCollector(
            config.node, engine, replicas.queued_bytes, figures, self.messaging.meters.families
        )
        speaks_for = None if workers is None or not is_first(config.node) else WorkerPages(workers)
        at = config.address
        self._http = HttpServer(
            config.cluster_id,
            config.node,
            self._health,
            collector,
            speaks_for,
            opened=config.opens_http,
            names=(config.listen_host, at.host, at.advertised[0]),
        )
        own = {} if workers is None else {"worker": config.node}
        self._metrics_exporter = exporter_of(
            config.metrics, config.node, collector, self._health, own
        )

    # -- opening

    async def listen_clients(self) -> None:
        """Open the client port. Raises OSError, RuntimeError if it is taken."""
        server, methods = self._server, self.messaging.methods()
        server.add_service(
            MESSAGING, methods if self._spans is None else self._spans.traced(methods)
        )
        server.add_service(LOG, self.native.methods())
        server.add_service(REPLICAS, self._audits.methods())
        server.add_service(ADMIN, admin_methods(self.admin.service.methods, self._authority))
        server.add_service(HEALTH, self._health_service.methods())
        await server.listen(self._listening)
        log.info("client port open", server=type(server).__name__, native=kernels.described())

    async def listen_http(self) -> None:
        """Open the HTTP port. Raises OSError if it is taken."""
        await self._http.listen(self._config.http_hosts, self._config.address.http_port)

    async def listen_for_siblings(self) -> None:
        """Answer the first worker of this node, which has the HTTP port."""
        if self._workers is not None:
            await self._http.listen_for_siblings(self._workers.pages(self._config.node))

    def works(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What runs beside the calls until the node stops."""
        exporter = self._metrics_exporter
        return (
            self._bootstrap_user(),
            self._publish_health(),
            self._track_leaders(),
            self.admin.checkpoints.register(),
            self.messaging.checker.run(),
            self.native.run(),
            *(() if exporter is None else (exporter.run(),)),
        )

    async def execute(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Sequence[bytes]:
        """Execute a call that was forwarded to this node. Raises CallRefused, LedgerError."""
        if method.startswith(ADMIN_PREFIX):
            return await self.admin.service.execute(group, method, request)
        if method.startswith(REPLICAS_PREFIX):
            return await self._audits.execute(group, method, request)
        if method.startswith(LOG_PREFIX):
            return await self.native.execute(group, method, request)
        return await self.messaging.execute(group, method, metadata, request, deadline)

    # -- closing

    def stop_being_ready(self) -> None:
        """From now on probes and load balancers hear that this node leaves."""
        self._health.draining = True
        self._health_service.drain()

    def stop_exporting(self) -> None:
        """Export no more metrics, after the last export has been cancelled."""
        if self._metrics_exporter is not None:
            self._metrics_exporter.close()

    async def drain(self) -> None:
        """Hand leadership over, refuse new calls, and give running ones the drain time."""
        # Everything still works: new calls wait for the next leader and are forwarded to it.
        await self.admin.leadership.leave()
        self.messaging.drain()
        self.native.drain()
        await self._server.stop(self._config.limits.drain_ms / 1000)
        if self._worker_proxy is not None:
            await self._worker_proxy.close()

    async def close(self) -> None:
        """End what served calls, after the last one of peers was refused."""
        self._audits.stop()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    async def close_http(self) -> None:
        """Close the HTTP port: the last thing, so that probes hear of the stop."""
        await self._http.stop()

    # -- what runs beside the calls

    async def _bootstrap_user(self) -> None:
        """Give a cluster without users its first one, as soon as the controller quorum answers."""
        while self._first_user is not None:
            try:
                if await self.admin.users.bootstrap(*self._first_user):
                    log.info("first user created", user=self._first_user[0])
                return
            except LedgerError as error:
                log.warning("first user not created yet", reason=str(error))
                await asyncio.sleep(BOOTSTRAP_RETRY_S)

    async def _publish_health(self) -> None:
        """Keep the gRPC health service equal to the readiness."""
        former: bool | None = None
        while True:
            reasons = await self._health.why_not_ready()
            ready = not reasons
            if ready != former:
                former = ready
                log.info("ready" if ready else "not ready", reasons=reasons)
                self._health_service.publish(serving=ready)
            await asyncio.sleep(HEALTH_EVERY_S)

    async def _track_leaders(self) -> None:
        """Track the leaders of broker groups without a replica here, because clients are redirected
        to them."""
        while True:
            groups = self._quorum.controller.state.broker_groups
            follows, leader_answers = (
                self._quorum.forwarder.follows,
                self.admin.members.leader_answers,
            )
            await asyncio.gather(*(leader_answers(group) for group in groups if not follows(group)))
            await asyncio.sleep(LEADERS_EVERY_S)
