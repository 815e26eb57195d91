"""The administration of a node: one object for each noun, and the service that they make up."""

from __future__ import annotations

import time

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
from ledgermq.node.frontend.admin.service import AdminService
from ledgermq.node.frontend.admin.topics.consumer_group_admin import ConsumerGroups
from ledgermq.node.frontend.admin.topics.topic_admin import Topics
from ledgermq.node.frontend.native.keys import ReceiptKeys
from ledgermq.node.frontend.native.service import LogService
from ledgermq.node.frontend.ports import CallServer
from ledgermq.node.frontend.proofs.checkpoints import Checkpoints
from ledgermq.node.frontend.proofs.signing_key import load_or_make
from ledgermq.node.frontend.rocketmq.messaging import MessagingService
from ledgermq.node.frontend.security.sealing import Sealer
from ledgermq.node.process.controller_side import ControllerSide
from ledgermq.node.process.maintenance_side import MaintenanceSide
from ledgermq.node.process.replica_side import ReplicaSide
from ledgermq.node.runtime.config import NodeConfig


class AdminSide:
    """The nouns that other parts of the node ask too, and the service."""

    def __init__(
        self,
        config: NodeConfig,
        replicas: ReplicaSide,
        quorum: ControllerSide,
        maintenance: MaintenanceSide,
        server: CallServer,
        messaging: MessagingService,
        native: LogService,
        receipt_keys: ReceiptKeys,
        sealer: Sealer,
    ) -> None:
        node, engine, links, roster = config.node, replicas.engine, replicas.links, replicas.roster
        controller, forwarder, tier = quorum.controller, quorum.forwarder, maintenance.tier
        self.overview = Overview(
            config,
            engine,
            links,
            roster,
            quorum.placement,
            clock=replicas.clock.standing,
            unheard=replicas.peer_identities.unheard,
            storage=maintenance.retainer,
            digests=maintenance.digest_exchange,
            tiering=maintenance.tiering,
        )
        self.leadership = Leadership(node, engine, forwarder, controller, quorum.placement)
        self.upgrades = Upgrades(engine, forwarder, controller, self.overview)
        self.members = Members(
            node,
            engine,
            forwarder,
            controller,
            roster,
            links=links,
            peer_identities=replicas.peer_identities,
        )
        self.users = UserAdmin(controller, sealer)
        key = load_or_make(
            config.data.absolute(), node, config.cluster_id, time.time_ns() // 1_000_000
        )
        self.checkpoints = Checkpoints(
            node, config.cluster_id, engine, forwarder, controller, links=links, key=key
        )
        through = ReadThrough(engine, tier)
        local = GroupQueries(node, engine, through, now_ms=replicas.clock.now_ms)
        queries = Queries(forwarder, controller, local)
        clients = ClientList(node, messaging, native.streams, forwarder, links)
        self.service = AdminService(
            (
                ClusterStatus(controller, self.overview),
                NodeDetails(
                    config,
                    forwarder,
                    links,
                    server.connections,
                    telemetry_streams=messaging.streams,
                    native_streams=native.streams,
                ),
                Topics(engine, controller, self.overview, tier),
                ConsumerGroups(engine, controller, queries, clients),
                Peeks(engine, forwarder, controller, through),
                queries,
                DeadLetters(queries, controller),
                WaitingMessages(queries, controller),
                LogFiles(engine, controller, maintenance.retainer),
                self.leadership,
                Replication(node, engine, forwarder, controller, self.overview),
                self.members,
                BrokerGroups(
                    config,
                    controller,
                    self.members,
                    self.leadership,
                    leaders=forwarder,
                    roster=roster,
                    links=links,
                ),
                self.upgrades,
                self.checkpoints,
                clients,
                self.users,
                receipt_keys,
            )
        )
