"""Composes one node from its parts, starts them in order, passes changes to them, and stops them in
order.

Start order, on recovered broker groups: the engine, the controller, the ports (peers, clients,
HTTP), then the links to the peers. A stop is the reverse: leadership goes to other nodes, new calls
are refused, running calls finish within the drain time, everything is flushed. A fatal failure ends
the process from the thread that noticed it, before anything more can be acknowledged (invariant
I9).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ledgermq import __version__
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.member_calls import Prefer, Returned
from ledgermq.node.broker.calls.outcome import Refused as Unanswered
from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.controller.broker_groups import spec_settings
from ledgermq.node.controller.controller import Controller
from ledgermq.node.controller.ha_control import HaControl
from ledgermq.node.controller.placement import Placement
from ledgermq.node.controller.reconcile import Reconciler
from ledgermq.node.controller.roster import Roster
from ledgermq.node.controller.state import State
from ledgermq.node.frontend.admin.admin_port import SERVICE as ADMIN
from ledgermq.node.frontend.admin.admin_port import admin_methods
from ledgermq.node.frontend.admin.cluster.broker_group_admin import BrokerGroups
from ledgermq.node.frontend.admin.cluster.client_list import ClientList
from ledgermq.node.frontend.admin.cluster.cluster_status import ClusterStatus
from ledgermq.node.frontend.admin.cluster.leadership_admin import Leadership
from ledgermq.node.frontend.admin.cluster.log_files import LogFiles
from ledgermq.node.frontend.admin.cluster.member_admin import Members
from ledgermq.node.frontend.admin.cluster.node_details import NodeDetails
from ledgermq.node.frontend.admin.cluster.overview import Overview
from ledgermq.node.frontend.admin.cluster.replication_admin import Replication
from ledgermq.node.frontend.admin.cluster.upgrade_admin import Upgrades
from ledgermq.node.frontend.admin.cluster.user_admin import UserAdmin
from ledgermq.node.frontend.admin.messages.group_queries import GroupQueries
from ledgermq.node.frontend.admin.messages.group_reads import ReadThrough
from ledgermq.node.frontend.admin.messages.letters_admin import DeadLetters
from ledgermq.node.frontend.admin.messages.peeks import Peeks
from ledgermq.node.frontend.admin.messages.queries import Queries
from ledgermq.node.frontend.admin.messages.waiting_admin import WaitingMessages
from ledgermq.node.frontend.admin.service import ADMIN_PREFIX, AdminService
from ledgermq.node.frontend.admin.topics.consumer_group_admin import ConsumerGroups
from ledgermq.node.frontend.admin.topics.topic_admin import Topics
from ledgermq.node.frontend.audits.replicas_service import PREFIX as REPLICAS_PREFIX
from ledgermq.node.frontend.audits.replicas_service import SERVICE as REPLICAS
from ledgermq.node.frontend.audits.replicas_service import Replicas
from ledgermq.node.frontend.native.callers import Callers
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.native.leaders import Leaders
from ledgermq.node.frontend.native.producing import Hosted as HostedLog
from ledgermq.node.frontend.native.service import LOG_PREFIX, LogService, Parts
from ledgermq.node.frontend.native.service import SERVICE as LOG
from ledgermq.node.frontend.proofs.checkpoints import Checkpoints
from ledgermq.node.frontend.proofs.signing_key import load_or_make
from ledgermq.node.frontend.rocketmq.access_control import AccessControl
from ledgermq.node.frontend.rocketmq.messaging import SERVICE as MESSAGING
from ledgermq.node.frontend.rocketmq.messaging import MessagingService
from ledgermq.node.frontend.rocketmq.service_config import ServiceConfig
from ledgermq.node.frontend.routing.forwarder import Forwarder
from ledgermq.node.frontend.routing.local_reads import LocalReads
from ledgermq.node.frontend.routing.local_reads import Rules as ReadRules
from ledgermq.node.frontend.routing.tier_fetches import TierFetches
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.frontend.routing.worker_proxy import WorkerProxy
from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry
from ledgermq.node.frontend.security.authority import Authority
from ledgermq.node.frontend.security.quotas import Quotas
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.process.addresses import addresses_of, controller_config
from ledgermq.node.process.client_port import call_server, listening
from ledgermq.node.process.health_service import SERVICE as HEALTH
from ledgermq.node.process.health_service import HealthService
from ledgermq.node.process.http import Health, HttpServer, StateCollector
from ledgermq.node.process.node_clock import NodeClock
from ledgermq.node.process.node_pages import WorkerPages
from ledgermq.node.process.otlp_metrics import exporter_of
from ledgermq.node.process.peer_side import PeerSide
from ledgermq.node.process.process import end_process, spare_the_collector
from ledgermq.node.process.store_access import store_of
from ledgermq.node.process.topic_figures import TopicFigures
from ledgermq.node.process.tracing import spans_of
from ledgermq.node.replica.hosting.assignment_watcher import AssignmentWatcher
from ledgermq.node.replica.hosting.engine import Engine, as_fatal
from ledgermq.node.replica.hosting.hosted_groups import Hosted, open_one
from ledgermq.node.replica.hosting.opening import controller_directory
from ledgermq.node.replica.hosting.replica_assignments import (
    AgreedGroups,
    Assignment,
    AssignmentFile,
    assignments_of,
)
from ledgermq.node.replica.maintenance.digest_exchange import DigestExchange
from ledgermq.node.replica.maintenance.retention_loop import Retainer
from ledgermq.node.replica.maintenance.tiering import Tiering
from ledgermq.node.replica.peers.formation_check import FormationCheck
from ledgermq.node.replica.peers.greeting import Greeter
from ledgermq.node.replica.peers.peer_identities import PeerIdentities, Refused
from ledgermq.node.replica.peers.peer_wire import peer_wire
from ledgermq.node.replica.peers.peers import Peers
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.answer_budget import ANSWERS
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto import kernels
from ledgermq.proto.host_port import joined
from ledgermq.proto.levels import LEVEL_MAX
from ledgermq.proto.signature import operator_of
from ledgermq.proto.status import ExitCode, LedgerError
from ledgermq.proto.workers import is_first
from ledgermq.storage.files.errors import StorageError, is_no_space
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state import identity as identity_files

HEALTH_EVERY_S = 0.5
ANNOUNCE_RETRY_S = 1.0
RETURNS_EVERY_S = 1.0
LEADERS_EVERY_S = 1.0
CLOCK_EVERY_S = 1.0
# How long calls forwarded by peers may take to finish, after this node's own clients have been
# drained.
ENGINE_DRAIN_S = 0.5

log = logs.get_logger()


class Node:
    """All parts of a running node."""

    def __init__(
        self,
        config: NodeConfig,
        secret: bytes,
        disk: RealDisk,
        hosted: Mapping[str, Hosted],
        workers: WorkerRegistry | None,
        assigned: Mapping[str, Assignment] | None = None,
        agreed: AgreedGroups | None = None,
    ) -> None:
        """`workers`: the workers of this node, if it has several. `assigned`: the assignments of
        the groups in `hosted`, from the `agreed` groups that this node remembers; by default from
        the configuration."""
        self.config = config
        self._disk = disk
        self._secret = secret
        self._first_user = config.bootstrap_user()
        self._boot_id = uuid.uuid4().hex
        self._workers = workers
        self._hosted = dict(hosted)
        self._groups = {name: item.group for name, item in hosted.items()}
        self._identities = {name: item.identity for name, item in hosted.items()}
        self._founders = {
            name: item.others for name, item in hosted.items() if item.others is not None
        }
        self.clock = NodeClock(config.node, config.clock.max_offset_ms)
        self._side = PeerSide(self.clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._admitting: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._save_lock = asyncio.Lock()
        self._views: dict[str, GroupView] = {}
        self._preferred: dict[str, tuple[int, str | None]] = {}
        """Group led here → the term, and the preferred leader that the group was last told."""
        self._build_replica()
        self._forms_cluster = bool(hosted) and not any(map(self._formation_check.vouched, hosted))
        """Whether no replica here took part in its group before this process began."""
        self._build_controller()
        self._build_maintenance(
            assignments_of(config, AgreedGroups())[0] if assigned is None else assigned,
            agreed or AgreedGroups(),
        )
        self._build_frontend()
        side = self._side
        side.engine, side.forwarder, side.overview, side.link_up = (
            self.engine,
            self.forwarder,
            self.overview,
            self._admit,
        )

    def _build_replica(self) -> None:
        """Build what runs replicas: the addresses and identities of peers, the streams to them, and
        the engine."""
        config, hosted = self.config, self._hosted
        self.roster = Roster(
            config.node, addresses_of(config), self._disk, controller_directory(config)
        )
        if lost := self.roster.load():
            log.warning(
                "the remembered addresses are lost; the configured ones apply until the quorum"
                " reports its own",
                reason=lost,
            )
        known = PeerIdentities(
            self._disk, {name: item.state_directory for name, item in hosted.items()}, end_process
        )
        known.load()
        known.members.update({name: item.members for name, item in hosted.items()})
        self._peer_identities = known
        self._formation_check = FormationCheck(config.node, self._founders, self.roster, known)
        self._boots = {
            name: identity_files.note_boot(self._disk, item.state_directory, self._boot_id)
            for name, item in hosted.items()
        }
        self._greeter = Greeter(
            *(config.cluster_id, config.node, self._boot_id, __version__, self._secret),
            *(self.roster, self._identities, known, self._boots),
            wall_ns=self.clock.wall_ns,
        )
        self.clock.expect(self.roster.nodes)
        self.peers = Peers(
            self.roster.peers(),
            self._greeter,
            self._side,
            config.limits.peer_queue_bytes,
            peer_wire(config.peer_tls),
        )
        self.engine = Engine(
            self._groups,
            send_packets=self.peers.send_packets,
            on_fatal=end_process,
            max_calls=config.limits.max_calls,
            open_batches=config.raft.open_batches,
            now_ms=self.clock.now_ms,
        )
        ANSWERS.set_limits(config.limits.buffered_bytes // 2, config.limits.connection_bytes)
        ANSWERS.on_room(self.engine.turn_all)

    def _build_controller(self) -> None:
        """Build the metadata quorum and what depends on it: the placement of replicas, the
        forwarder, the reconciler and HA control."""
        config = self.config
        self.controller = Controller(controller_config(config, self._secret, self.roster))
        configured = {group.name: group.replicas for group in config.cluster.groups}
        self._placement = Placement(
            configured, lambda: self.controller.state.broker_groups, self.engine.views
        )
        self.forwarder = Forwarder(
            config.node, self._placement, self.engine, self.peers.links, time.monotonic_ns
        )
        self.reconciler = Reconciler(config.node, self.engine, self.controller, self._groups)
        self.ha_control = HaControl(self.engine, self.controller, self._groups)

    def _build_maintenance(self, assigned: Mapping[str, Assignment], agreed: AgreedGroups) -> None:
        """Build what works beside the turns: the digest exchange, retention, and the arrival and
        removal of replicas."""
        config, disk = self.config, self._disk
        self.digest_exchange = DigestExchange(
            config, disk, self._groups, self.engine, self.forwarder
        )
        now_ms = self.clock.now_ms
        self.retainer = Retainer(
            config, disk, self._groups, self.engine, self.forwarder, self.digest_exchange, now_ms
        )
        store = store_of(config)
        self._tiering = (
            None
            if store is None
            else Tiering(config, disk, self._groups, self.engine, store, now_ms)
        )
        self._tier = (
            None
            if self._tiering is None
            else TierReads(self.engine, self._tiering.reader, time.monotonic)
        )
        self._tier_fetches = None if self._tier is None else TierFetches(self.engine, self._tier)
        self._assignment_watcher = AssignmentWatcher(
            config,
            self._greeter,
            AssignmentFile(disk, controller_directory(config)),
            self.forwarder,
            self,
            lambda changed, assignment: open_one(changed, assignment.group, disk, store),
            assigned,
            agreed,
        )
        self._side.assignment_watcher = self._assignment_watcher

    def _build_frontend(self) -> None:
        """Build the services for clients and operators: both client services, the administration,
        and HTTP."""
        config = self.config
        self._worker_proxy = None if self._workers is None else WorkerProxy(self._workers)
        unix = None if self._workers is None else self._workers.calls(config.node)
        self._listening = listening(config, shared=self._workers is not None, unix=unix)
        self._call_server = call_server(
            None if self._worker_proxy is None else self._worker_proxy.divert
        )
        sealer = Sealer((self._secret, *config.former_secrets()), config.cluster_id)
        self.authority = Authority(
            lambda: self.controller.state.users,
            self._catch_up,
            sealer,
            operator_of(self._secret),
            required=config.access.authentication == "required",
            common_names=config.tls.users,
            whence=self._call_server.address_of,
        )
        quotas, namespaces = Quotas(config.quotas), not config.access.ignore_namespaces
        callers = Callers(self.authority, quotas, namespaces=namespaces)
        receipt_keys = ReceiptKeys(self.controller, sealer, self.clock.now_ms)
        self._spans = spans_of(config.tracing, config.node, config.address)
        rules = {
            group.name: ReadRules(group.follower_read_age_ms, group.follower_pull_bytes)
            for group in config.cluster.groups
            if group.follower_reads
        }
        self._local = LocalReads(config.node, rules, self.engine.views, self._age_ns)
        host, port = config.address.advertised
        service = ServiceConfig(
            node=config.node,
            host=host,
            port=port,
            secret=self._secret,
            delivery=config.delivery,
            limits=config.limits,
            namespaces=namespaces,
            now_ms=self.clock.now_ms,
        )
        access = AccessControl(self.authority, quotas)
        self.service = MessagingService(
            self.engine,
            self.forwarder,
            self.controller,
            service,
            access=access,
            local=self._local,
            tier=self._tier,
        )
        self._leaders = Leaders(
            config.node,
            self.engine,
            self.forwarder.leader,
            lambda node: self.roster.address(node, "client"),
        )
        self.log_service = LogService(
            Parts(
                node=config.node,
                cluster_id=config.cluster_id,
                engine=self.engine,
                forwarder=self.forwarder,
                metadata=self.controller,
                leaders=self._leaders,
                callers=callers,
                meters=self.service.meters,
                hosted={
                    name: HostedLog(identity.log_id, identity.data_file_bytes)
                    for name, identity in self._identities.items()
                },
                keys=receipt_keys,
                limits=config.limits,
                local=self._local,
                member_liveness_ms=config.delivery.member_liveness_ms,
                spans=self._spans,
                tier=self._tier,
            )
        )
        self.replicas = Replicas(
            config,
            self._boot_id,
            self._boots_of,
            self.engine,
            self.forwarder,
            self.retainer,
            callers,
        )
        self._users = UserAdmin(self.controller, sealer)
        self._build_admin(receipt_keys)
        self.health = Health(
            self.engine,
            self._unknown_groups,
            self._obstacles,
            self._peer_failures,
            self._peer_identities.unheard,
        )
        figures = TopicFigures(
            config.cluster_id,
            config.node,
            self.engine,
            self.clock.now_ms,
            config.metrics.series_max,
        )
        collector = StateCollector(
            config.node, self.engine, self._queued_bytes, figures, self.service.meters.families
        )
        speaks_for = (
            None
            if self._workers is None or not is_first(config.node)
            else WorkerPages(self._workers)
        )
        at = config.address
        names = (config.listen_host, at.host, at.advertised[0])
        self.http = HttpServer(
            config.cluster_id,
            config.node,
            self.health,
            collector,
            speaks_for,
            opened=config.opens_http,
            names=names,
        )
        own = {} if self._workers is None else {"worker": config.node}
        self._metrics_exporter = exporter_of(
            config.metrics, config.node, collector, self.health, own
        )
        self._health_service = HealthService(MESSAGING, LOG)

    def _age_ns(self, group: str) -> int | None:
        """The staleness in ns of the replica here; None if it is unknown, or if the replica is just
        leaving."""
        found = self._groups.get(group)
        return None if found is None else found.age_ns(time.monotonic_ns())

    def _boots_of(self, group: str) -> int:
        """How often the replica here was opened in this process."""
        return self._groups[group].boots

    def _build_admin(self, receipt_keys: ReceiptKeys) -> None:
        config, engine, forwarder, controller, links = (
            self.config,
            self.engine,
            self.forwarder,
            self.controller,
            self.peers.links,
        )
        self.overview = Overview(config, engine, links, self.roster, self._placement)
        self.overview.clock, self.overview.unheard = (
            self.clock.standing,
            self._peer_identities.unheard,
        )
        self.overview.storage, self.overview.digest_exchange, self.overview.tiering = (
            self.retainer,
            self.digest_exchange,
            self._tiering,
        )
        self.leadership = Leadership(config.node, engine, forwarder, controller, self._placement)
        self.upgrades = Upgrades(engine, forwarder, controller, self.overview)
        self.reconciler.raise_level = self.upgrades.raise_local
        self._members = Members(
            config.node, engine, forwarder, controller, self.roster, links, self._peer_identities
        )
        key = load_or_make(
            config.data.absolute(), config.node, config.cluster_id, time.time_ns() // 1_000_000
        )
        self._checkpoints = Checkpoints(
            config.node, config.cluster_id, engine, forwarder, controller, links, key
        )
        through = ReadThrough(engine, self._tier)
        clients = ClientList(config.node, self.service, self.log_service.streams, forwarder, links)
        queries = Queries(
            forwarder,
            controller,
            GroupQueries(config.node, engine, through, now_ms=self.clock.now_ms),
        )
        self.admin = AdminService(
            (
                ClusterStatus(controller, self.overview),
                NodeDetails(
                    config,
                    forwarder,
                    links,
                    self._call_server.connections,
                    self.service.streams,
                    self.log_service.streams,
                ),
                Topics(engine, controller, self.overview, self._tier),
                ConsumerGroups(engine, controller, queries, clients),
                Peeks(engine, forwarder, controller, through),
                queries,
                DeadLetters(queries, controller),
                WaitingMessages(queries, controller),
                LogFiles(engine, controller, self.retainer),
                self.leadership,
                Replication(config.node, engine, forwarder, controller, self.overview),
                self._members,
                BrokerGroups(
                    config,
                    controller,
                    self._members,
                    self.leadership,
                    forwarder,
                    self.roster,
                    links,
                ),
                self.upgrades,
                self._checkpoints,
                clients,
                self._users,
                receipt_keys,
            )
        )

    async def start(self) -> None:
        """Start all parts. Raises FatalError."""
        self.engine.on_view(self._view_changed)
        self.engine.on_hidden(self._view_hidden)
        for name, item in self._hosted.items():
            item.group.connect(functools.partial(self.engine.wake, name), self._sender(name))
        if self._tier_fetches is not None:
            self.engine.fetch = self._tier_fetches.start
        self.controller.on_change(self._intent_changed)
        self.controller.on_failure(end_process)
        self.engine.start()
        await self.controller.start()
        # Election requests made before this were not sent to the quorum; the core repeats them.
        self.engine.on_wishes(self.ha_control.wished)
        self.forwarder.start(self._execute)
        self.reconciler.start()
        self._assignment_watcher.start()
        self.digest_exchange.start()
        self.retainer.start()
        if self._tiering is not None:
            self._tiering.start()
        host, address = self.config.listen_host, self.config.address
        await self._listen(
            "peer_port",
            address.peer_port,
            lambda: self.peers.listen(joined(host, address.peer_port)),
        )
        await self._listen("client_port", address.client_port, self._listen_clients)
        if is_first(self.config.node):
            await self._listen(
                "http_port",
                address.http_port,
                lambda: self.http.listen(self.config.http_hosts, address.http_port),
            )
        elif self._workers is not None:
            await self.http.listen_for_siblings(self._workers.pages(self.config.node))
        self.peers.dial()
        own = (
            self._announce(),
            self._bootstrap_user(),
            self._publish_health(),
            self._notify_returns(),
            self._know_leaders(),
        )
        exporting = () if self._metrics_exporter is None else (self._metrics_exporter.run(),)
        works = (
            *own,
            self._keep_clock(),
            self._checkpoints.register(),
            self.service.checker.run(),
            self.log_service.run(),
            *exporting,
        )
        self._tasks = [asyncio.create_task(work) for work in works]
        spare_the_collector()

    async def stop(self) -> None:
        """Drain, flush and close."""
        self.health.draining = True
        self._health_service.drain()
        for task in [*self._tasks, *([self._admitting] if self._admitting is not None else [])]:
            task.cancel()
        if self._metrics_exporter is not None:
            self._metrics_exporter.close()
        await self._assignment_watcher.stop()
        self.reconciler.stop()
        if self._tiering is not None:
            await self._tiering.stop()
        await self.retainer.stop()
        await self.digest_exchange.stop()
        # Everything still works: new calls wait for the next leader and are forwarded to it.
        await self.leadership.leave()
        self.service.drain()
        self.log_service.drain()
        await self._call_server.stop(self.config.limits.drain_ms / 1000)
        if self._worker_proxy is not None:
            await self._worker_proxy.close()
        self.forwarder.stop()
        self.replicas.stop()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)
        await self.engine.stop(ENGINE_DRAIN_S)
        if self._tier_fetches is not None:
            await self._tier_fetches.stop()
        await self.ha_control.stop()
        await self.peers.stop()
        await self.controller.stop()
        await self.http.stop()

    async def _catch_up(self) -> None:
        """Catch up with everything agreed so far, if the quorum answers."""
        with contextlib.suppress(LedgerError):
            await self.controller.barrier()

    def _intent_changed(self, state: State) -> None:
        self.ha_control.changed()
        self.reconciler.changed()
        self.service.on_state(state)
        self._assignment_watcher.on_agreed(AgreedGroups(state.broker_groups, state.specs))
        for group in self.engine.views:
            self._prefer(group)
        changed = self.roster.on_addresses(
            state.revision,
            state.nodes,
            state.removed_nodes,
            current=self.controller.health.caught_up,
        )
        if changed:
            self.peers.set_peers(self.roster.peers())
            self.clock.expect(self.roster.nodes)
            self.controller.move(self.roster.controllers())
            self._saving = asyncio.create_task(self._save_roster())

    # -- broker groups that come and go

    async def take_in(self, group: str, hosted: Hosted) -> None:
        """A broker group was opened while this node runs: add it to every part, the engine last."""
        self._peer_identities.arrived(group, hosted.state_directory, hosted.members)
        try:
            self._boots[group] = await asyncio.to_thread(
                identity_files.note_boot, self._disk, hosted.state_directory, self._boot_id
            )
        except (OSError, StorageError) as error:
            end_process(as_fatal(error))
        if hosted.others is not None:
            self._founders[group] = hosted.others
        self._identities[group] = hosted.identity
        self._hosted[group], self._groups[group] = hosted, hosted.group
        self.log_service.take_in(
            group, HostedLog(hosted.identity.log_id, hosted.identity.data_file_bytes)
        )
        hosted.group.connect(functools.partial(self.engine.wake, group), self._sender(group))
        self.engine.take_in(group, hosted.group)
        self.reconciler.take_in(group)
        self.digest_exchange.take_in(group)
        if self._tiering is not None:
            self._tiering.take_in(group)
        self.ha_control.opened(group)
        self.forwarder.changed()

    async def let_go(self, group: str) -> None:
        """A replica has moved away: remove it from every part; its files stay."""
        self.reconciler.let_go(group)
        await self.digest_exchange.let_go(group)
        if self._tiering is not None:
            await self._tiering.let_go(group)
        self._groups.pop(group)
        self.log_service.let_go(group)
        hosted = self._hosted.pop(group).group
        await self.engine.take_out(group)
        gone = Unanswered("unknown-outcome", detail=f"broker group {group} has left this node")
        self.engine.give_up(hosted.open_calls, gone)
        self._identities.pop(group)
        self._founders.pop(group, None)
        self._boots.pop(group, None)
        self._peer_identities.left(group)
        try:
            await asyncio.to_thread(hosted.close)
        # a store that cannot be closed cleanly ends the process, as in the engine (invariant I9)
        except Exception as error:
            end_process(as_fatal(error))
        self.forwarder.changed()

    def met(self) -> None:
        """A peer now knows the directories of this node."""
        self._admit()

    def _prefer(self, group: str) -> None:
        """Tell a group led here its preferred leader; this node's configuration takes precedence
        over the cluster's, and wrong clocks over both."""
        spec, view = self.controller.state.specs.get(group), self.engine.views.get(group)
        configured = {own.name: own.preferred_leader for own in self.config.cluster.groups}
        preferred = configured.get(group) or (None if spec is None else spec.leader_wanted)
        if view is None or view.leader != self.config.node:
            return
        wanted = (
            view.term,
            self.clock.leader_instead(
                preferred, () if view.members is None else view.members.voters
            ),
        )
        if self._preferred.get(group) != wanted:
            self._preferred[group] = wanted
            self.retainer.hurry()
            self.engine.notify(group, Prefer(wanted[1]))

    async def _keep_clock(self) -> None:
        """Exchange clocks with the peers. If a clock is off now, or right again, another leader may
        be preferred."""
        while True:
            self.clock.ask(self.peers.links.values())
            self.clock.look()
            for group in self.engine.views:
                self._prefer(group)
            await asyncio.sleep(CLOCK_EVERY_S)

    async def _know_leaders(self) -> None:
        """Track the leaders of broker groups without a replica here, because clients are redirected
        to them."""
        while True:
            groups, follows = self.controller.state.broker_groups, self.forwarder.follows
            await asyncio.gather(
                *(self._members.leader_answers(group) for group in groups if not follows(group))
            )
            await asyncio.sleep(LEADERS_EVERY_S)

    async def _save_roster(self) -> None:
        try:
            async with self._save_lock:
                await asyncio.to_thread(self.roster.save)
        except OSError as error:
            if not is_no_space(error):
                what = f"the addresses of the nodes could not be written ({error})"
                end_process(
                    FatalError(
                        ExitCode.SYNC_FAILED, what, "check the disk, then start the node again"
                    )
                )
            log.warning("the addresses of the nodes could not be written: the disk is full")

    def _view_changed(self, group: str, view: GroupView) -> None:
        """Pass a new view to the parts. Most views only report messages; calls and the reconciler
        wait for leaders, topics and groups."""
        former, self._views[group] = self._views.get(group), view
        if former is None:
            self.ha_control.opened(group)
        self._peer_identities.levels[group] = view.level
        if former is None or (former.in_effect, former.incarnations) != (
            view.in_effect,
            view.incarnations,
        ):
            self._peer_identities.name(group, view.in_effect, view.incarnations)
            # A voter of the controller quorum is never a listener, whatever is passed here.
            self.controller.listen(
                any(self.config.node in known.in_effect for known in self._views.values())
            )
        if former is None or _outline(former) != _outline(view):
            self.forwarder.changed()
            self.reconciler.changed()
            self._leaders.changed()
            self._prefer(group)
            if not view.serving:
                self.log_service.led_elsewhere(group)

    def _sender(self, group: str) -> Callable[[Sequence[tuple[str, PeerPacket]]], None]:
        """A function that sends packets of a group from any thread."""
        loop = asyncio.get_running_loop()

        def send(packets: Sequence[tuple[str, PeerPacket]]) -> None:
            loop.call_soon_threadsafe(lambda: self.peers.send_packets(group, packets))

        return send

    def _view_hidden(self, group: str) -> None:
        """The group no longer runs here: calls go to other nodes."""
        self._views.pop(group, None)
        self.forwarder.changed()
        self.reconciler.changed()
        self._leaders.changed()
        self.log_service.led_elsewhere(group)

    async def _execute(
        self, group: str, method: str, metadata: Mapping[str, str], request: bytes, deadline: float
    ) -> Sequence[bytes]:
        if method.startswith(ADMIN_PREFIX):
            return await self.admin.execute(group, method, request)
        if method.startswith(REPLICAS_PREFIX):
            return await self.replicas.execute(group, method, request)
        if method.startswith(LOG_PREFIX):
            return await self.log_service.execute(group, method, request)
        return await self.service.execute(group, method, metadata, request, deadline)

    async def _listen(self, key: str, port: int, open_port: Callable[[], Any]) -> None:
        try:
            await open_port()
        except (OSError, RuntimeError) as error:
            where = joined(self.config.listen_host, port)
            remedy = f"stop what uses it, or set nodes.{self.config.node}.{key} to another port"
            what = f"{key} {where} cannot be opened: it is taken, or not an address of this machine"
            raise FatalError(ExitCode.PORT_TAKEN, what, remedy) from error

    async def _listen_clients(self) -> None:
        server, methods = self._call_server, self.service.methods()
        server.add_service(
            MESSAGING, methods if self._spans is None else self._spans.traced(methods)
        )
        server.add_service(LOG, self.log_service.methods())
        server.add_service(REPLICAS, self.replicas.methods())
        server.add_service(ADMIN, admin_methods(self.admin.methods, self.authority))
        server.add_service(HEALTH, self._health_service.methods())
        await server.listen(self._listening)
        log.info("client port open", server=type(server).__name__, native=kernels.described())

    async def _announce(self) -> None:
        """Announce this node to the controller quorum; this may wait until a majority of the nodes
        has started."""
        nodes = addresses_of(self.config)
        groups = {group.name: group.replicas for group in self.config.cluster.groups}
        specs = {group.name: spec_settings(group) for group in self.config.cluster.groups}
        while True:
            try:
                if (own := self.roster.moved) is not None:
                    await self.controller.set_node(self.config.node, own)
                    self.roster.has_moved()
                    await self._save_roster()
                # The configuration of a joining node may be incomplete or outdated for the rest of
                # the cluster.
                if not self.config.join:
                    await self._begin_at_newest_level()
                    await self.controller.announce(nodes, groups, specs)
                return
            except LedgerError as error:
                log.warning("not announced to the controller yet", reason=str(error))
                await asyncio.sleep(ANNOUNCE_RETRY_S)

    async def _begin_at_newest_level(self) -> None:
        """Give a cluster that is being formed the newest feature level: there is no former release
        to go back to. A node whose program reads less cannot take part in it. Raises
        LedgerError."""
        if self._forms_cluster:
            await self.controller.barrier()
            while (
                not self.controller.state.broker_groups and self.controller.state.level < LEVEL_MAX
            ):
                await self.controller.raise_level(self.controller.state.level + 1)
                await self.controller.barrier()

    async def _bootstrap_user(self) -> None:
        """Give a cluster without users its first one, as soon as the controller quorum answers."""
        while self._first_user is not None:
            try:
                if await self._users.bootstrap(*self._first_user):
                    log.info("first user created", user=self._first_user[0])
                return
            except LedgerError as error:
                log.warning("first user not created yet", reason=str(error))
                await asyncio.sleep(ANNOUNCE_RETRY_S)

    async def _notify_returns(self) -> None:
        """Repeatedly tell each group of peers that returned with another directory: its leader adds
        them again."""
        said: set[str] = set()
        while True:
            reasons = {
                *self._peer_identities.barred.values(),
                *self._peer_identities.objections.values(),
            }
            for reason in sorted(reasons - said):
                log.error("packets are refused", reason=reason)
            said = reasons
            for group in list(self._hosted):
                for node, incarnation in self._peer_identities.returned(group).items():
                    self.engine.notify(group, Returned(node, incarnation))
            await asyncio.sleep(RETURNS_EVERY_S)

    async def _publish_health(self) -> None:
        """Keep the gRPC health service equal to the readiness."""
        former: bool | None = None
        while True:
            reasons = await self.health.why_not_ready()
            ready = not reasons
            if ready != former:
                former = ready
                log.info("ready" if ready else "not ready", reasons=reasons)
                self._health_service.publish(serving=ready)
            await asyncio.sleep(HEALTH_EVERY_S)

    def _unknown_groups(self) -> list[str]:
        known = self.controller.state.broker_groups
        return [group for group in self._hosted if group not in known]

    def _admit(self) -> None:
        """A peer has accepted this node: if it was the last one missing, the replica takes part
        from now on."""
        if all(self._formation_check.vouched(group) for group in self._hosted):
            return
        former = self._admitting

        async def admit() -> None:
            if former is not None:
                await asyncio.gather(former, return_exceptions=True)
            for group in list(self._hosted):
                # If a full disk prevents writing the note, it is tried again when a peer connects.
                with contextlib.suppress(Refused):
                    if await asyncio.to_thread(self._formation_check.finds, group):
                        self.engine.admit(group)

        self._admitting = asyncio.create_task(admit(), name="admit")

    def _obstacles(self, group: str) -> list[str]:
        waits = self._formation_check.obstacles(group)
        waits += self._peer_failures()
        barred = sorted(self._peer_identities.barred.items())
        return (
            waits
            + [f"not heard: {why}" for (name, _), why in barred if name == group]
            + self._peer_identities.unheard(group)
        )

    def _peer_failures(self) -> list[str]:
        """Why there is no connection to a peer, where that does not end by itself."""
        return [
            f"peer {name}: {link.refusal}"
            for name, link in sorted(self.peers.links.items())
            if link.refusal is not None
        ]

    def _queued_bytes(self) -> dict[str, int]:
        return {name: link.queued_bytes for name, link in self.peers.links.items()}


def _outline(view: GroupView) -> tuple[object, ...]:
    """The parts of a view that change seldom; topics and groups are replaced when they change,
    never altered in place."""
    return view.leader, view.term, view.serving, id(view.topics), id(view.groups)
