"""What works on the log files of a node beside the turns: digests, retention, the object store."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from ledgermq.node.frontend.routing.tier_fetches import TierFetches
from ledgermq.node.frontend.routing.tier_reads import TierReads
from ledgermq.node.process.replica_side import ReplicaSide
from ledgermq.node.replica.maintenance.digest_exchange import DigestExchange
from ledgermq.node.replica.maintenance.retention_loop import Retainer
from ledgermq.node.replica.maintenance.tiering import Tiering
from ledgermq.node.replica.ports import PeerCaller
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.tiered.ports import ObjectStore


class MaintenanceSide:
    """The digest exchange, retention, and with an object store what goes there and is read from
    there."""

    def __init__(
        self,
        config: NodeConfig,
        disk: RealDisk,
        store: ObjectStore | None,
        replicas: ReplicaSide,
        forwarder: PeerCaller,
    ) -> None:
        engine, groups, now_ms = replicas.engine, replicas.groups, replicas.clock.now_ms
        self.digest_exchange = DigestExchange(
            config,
            disk,
            hosted=groups,
            engine=engine,
            forwarder=forwarder,
            executor=lambda name: ThreadPoolExecutor(1, thread_name_prefix=name),
        )
        self.retainer = Retainer(
            config,
            disk,
            hosted=groups,
            engine=engine,
            forwarder=forwarder,
            digest_exchange=self.digest_exchange,
            now_ms=now_ms,
        )
        self.tiering: Tiering | None = None
        self.tier: TierReads | None = None
        self.tier_fetches: TierFetches | None = None
        if store is not None:
            self.tiering = Tiering(
                config, disk, hosted=groups, engine=engine, store=store, now_ms=now_ms
            )
            self.tier = TierReads(engine, self.tiering.reader, time.monotonic)
            self.tier_fetches = TierFetches(engine, self.tier)

    def start(self) -> None:
        """Begin with the checks of all groups."""
        self.digest_exchange.start()
        self.retainer.start()
        if self.tiering is not None:
            self.tiering.start()

    async def stop(self) -> None:
        """End the checks. Messages are still read from the store for clients."""
        if self.tiering is not None:
            await self.tiering.stop()
        await self.retainer.stop()
        await self.digest_exchange.stop()

    async def stop_fetches(self) -> None:
        """End the reads from the store, after the last turn that may begin one."""
        if self.tier_fetches is not None:
            await self.tier_fetches.stop()

    def take_in(self, group: str) -> None:
        """Begin with a group that was opened while this node runs. Retention looks at all groups
        that are there."""
        self.digest_exchange.take_in(group)
        if self.tiering is not None:
            self.tiering.take_in(group)

    async def let_go(self, group: str) -> None:
        """End what works on a group that leaves this node."""
        await self.digest_exchange.let_go(group)
        if self.tiering is not None:
            await self.tiering.let_go(group)
