"""Composes one node from its four sides, starts them in order, passes changes to them, and stops
them in order.

**Order of building**, in which each side needs only the ones before it: the replicas
(`replica_side.py`), the controller quorum (`controller_side.py`), maintenance
(`maintenance_side.py`), the frontend (`frontend_side.py`). Last come what acts on the node as a
whole when something was agreed, and the streams to the peers, which deliver to all of it.

**Order of starting**, on recovered broker groups: the replicas get turns, then the controller, then
what forwards and reconciles, then maintenance, then the ports (peers, clients, HTTP), then the
streams to the peers. So whatever a message or call asks for is there before it can come.

**Order of stopping**: what only adds work ends first. Then leadership goes to other nodes while
everything still works, new calls are refused, and running ones finish within the drain time. Then
what served them ends, the replicas are flushed and closed, and last the peers, the controller and
HTTP. So no call is cut off by a part that it still needs, and no replica is closed before the last
call to it.

A fatal failure ends the process from the thread that noticed it, before anything more can be
acknowledged (invariant I9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.controller.reconcile import Reconciler
from ledgermq.node.controller.state import State
from ledgermq.node.frontend.native.producing import Hosted as HostedLog
from ledgermq.node.frontend.routing.worker_registry import WorkerRegistry
from ledgermq.node.process.controller_side import ControllerSide
from ledgermq.node.process.frontend_side import FrontendSide
from ledgermq.node.process.maintenance_side import MaintenanceSide
from ledgermq.node.process.peer_side import PeerSide
from ledgermq.node.process.preferred_leaders import PreferredLeaders
from ledgermq.node.process.process import end_process, spare_the_collector
from ledgermq.node.process.replica_side import ReplicaSide
from ledgermq.node.process.store_access import store_of
from ledgermq.node.replica.hosting.assignment_watcher import AssignmentWatcher
from ledgermq.node.replica.hosting.hosted_groups import Hosted, open_one
from ledgermq.node.replica.hosting.opening import controller_directory
from ledgermq.node.replica.hosting.replica_assignments import (
    AgreedGroups,
    Assignment,
    AssignmentFile,
    assignments_of,
)
from ledgermq.node.replica.peers.peer_wire import peer_wire
from ledgermq.node.replica.peers.peers import Peers
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.host_port import joined
from ledgermq.proto.status import ExitCode
from ledgermq.proto.workers import is_first
from ledgermq.storage.files.real_disk import RealDisk


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
        self._tasks: list[asyncio.Task[None]] = []
        self._saving: asyncio.Task[None] | None = None
        self._views: dict[str, GroupView] = {}
        store = store_of(config)
        self.replicas = ReplicaSide(config, secret, disk, hosted)
        self.quorum = ControllerSide(config, secret, self.replicas)
        engine, controller, forwarder = (
            self.replicas.engine,
            self.quorum.controller,
            self.quorum.forwarder,
        )
        self.maintenance = MaintenanceSide(config, disk, store, self.replicas, forwarder)
        self.frontend = FrontendSide(
            config, secret, workers, self.replicas, self.quorum, maintenance=self.maintenance
        )
        self._reconciler = Reconciler(
            config.node,
            engine,
            controller,
            self.replicas.groups,
            raise_level=self.frontend.admin.upgrades.raise_local,
        )
        self.preferred_leaders = PreferredLeaders(
            config, self.replicas.clock, engine, controller, self.maintenance.retainer.hurry
        )
        self._assignment_watcher = AssignmentWatcher(
            config,
            self.replicas.greeter,
            file=AssignmentFile(disk, controller_directory(config)),
            peer_caller=forwarder,
            parts=self,
            open_=lambda changed, assignment: open_one(changed, assignment.group, disk, store),
            assigned=assignments_of(config, AgreedGroups())[0] if assigned is None else assigned,
            agreed=agreed or AgreedGroups(),
        )
        receivers = PeerSide(
            self.replicas.clock,
            engine,
            forwarder,
            self.frontend.admin.overview,
            self._assignment_watcher,
            link_up=self.replicas.admit,
        )
        self._peers = Peers(
            self.replicas.roster.peers(),
            self.replicas.greeter,
            receivers,
            config.limits.peer_queue_bytes,
            peer_wire(config.peer_tls),
            links=self.replicas.links,
        )

    async def start(self) -> None:
        """Start all parts, in the order above. Raises FatalError."""
        engine, controller = self.replicas.engine, self.quorum.controller
        engine.on_view(self._view_changed)
        engine.on_hidden(self._view_hidden)
        if self.maintenance.tier_fetches is not None:
            engine.on_fetches(self.maintenance.tier_fetches.start)
        controller.on_change(self._intent_changed)
        controller.on_failure(end_process)
        self.replicas.start()
        await controller.start()
        # Election requests made before this were not sent to the quorum; the core repeats them.
        engine.on_wishes(self.quorum.ha_control.wished)
        self.quorum.forwarder.start(self.frontend.execute)
        self._reconciler.start()
        self._assignment_watcher.start()
        self.maintenance.start()
        host, at = self.config.listen_host, self.config.address
        peer_address = joined(host, at.peer_port)
        await self._listen("peer_port", at.peer_port, lambda: self._peers.listen(peer_address))
        await self._listen("client_port", at.client_port, self.frontend.listen_clients)
        if is_first(self.config.node):
            await self._listen("http_port", at.http_port, self.frontend.listen_http)
        else:
            await self.frontend.listen_for_siblings()
        self._peers.dial()
        works = (
            self.quorum.announce(),
            *self.replicas.works(),
            self.preferred_leaders.keep_clock(self.replicas.links),
            *self.frontend.works(),
        )
        self._tasks = [asyncio.create_task(work) for work in works]
        spare_the_collector()

    async def stop(self) -> None:
        """Drain, flush and close, in the order above."""
        self.frontend.stop_being_ready()
        for task in self._tasks:
            task.cancel()
        self.replicas.stop_admitting()
        self.frontend.stop_exporting()
        await self._assignment_watcher.stop()
        self._reconciler.stop()
        await self.maintenance.stop()
        await self.frontend.drain()
        self.quorum.forwarder.stop()
        await self.frontend.close()
        await self.replicas.stop()
        await self.maintenance.stop_fetches()
        await self.quorum.ha_control.stop()
        await self._peers.stop()
        await self.quorum.controller.stop()
        await self.frontend.close_http()

    async def _listen(self, key: str, port: int, open_port: Callable[[], Any]) -> None:
        try:
            await open_port()
        except (OSError, RuntimeError) as error:
            where = joined(self.config.listen_host, port)
            remedy = f"stop what uses it, or set nodes.{self.config.node}.{key} to another port"
            what = f"{key} {where} cannot be opened: it is taken, or not an address of this machine"
            raise FatalError(ExitCode.PORT_TAKEN, what, remedy) from error

    # -- what the quorum agrees on

    def _intent_changed(self, state: State) -> None:
        replicas = self.replicas
        self.quorum.ha_control.changed()
        self._reconciler.changed()
        self.frontend.messaging.on_state(state)
        self._assignment_watcher.on_agreed(AgreedGroups(state.broker_groups, state.specs))
        self.preferred_leaders.tell_all()
        changed = replicas.roster.on_addresses(
            state.revision,
            state.nodes,
            state.removed_nodes,
            current=self.quorum.controller.health.caught_up,
        )
        if changed:
            self._peers.set_peers(replicas.roster.peers())
            replicas.clock.expect(replicas.roster.nodes)
            self.quorum.controller.move(replicas.roster.controllers())
            self._saving = asyncio.create_task(replicas.save_roster())

    # -- broker groups that come and go

    async def take_in(self, group: str, hosted: Hosted) -> None:
        """A broker group was opened while this node runs: add it to every part, the engine before
        those that ask it."""
        await self.replicas.take_in(group, hosted)
        self.frontend.native.take_in(
            group, HostedLog(hosted.identity.log_id, hosted.identity.data_file_bytes)
        )
        self.replicas.begin(group)
        self._reconciler.take_in(group)
        self.maintenance.take_in(group)
        self.quorum.ha_control.opened(group)
        self.quorum.forwarder.changed()

    async def let_go(self, group: str) -> None:
        """A replica has moved away: remove it from every part; its files stay."""
        self._reconciler.let_go(group)
        await self.maintenance.let_go(group)
        self.frontend.native.let_go(group)
        await self.replicas.let_go(group)
        self.quorum.forwarder.changed()

    def met(self) -> None:
        """A peer now knows the directories of this node."""
        self.replicas.admit()

    # -- what the replicas publish

    def _view_changed(self, group: str, view: GroupView) -> None:
        """Pass a new view to the parts. Most views only report messages; calls and the reconciler
        wait for leaders, topics and groups."""
        former, self._views[group] = self._views.get(group), view
        if former is None:
            self.quorum.ha_control.opened(group)
        if self.replicas.note_members(former, group, view):
            # A voter of the controller quorum is never a listener, whatever is passed here.
            self.quorum.controller.listen(
                any(self.config.node in known.in_effect for known in self._views.values())
            )
        if former is None or _outline(former) != _outline(view):
            self._leadership_changed()
            self.preferred_leaders.tell(group)
            if not view.serving:
                self.frontend.native.led_elsewhere(group)

    def _view_hidden(self, group: str) -> None:
        """The group no longer runs here: calls go to other nodes."""
        self._views.pop(group, None)
        self._leadership_changed()
        self.frontend.native.led_elsewhere(group)

    def _leadership_changed(self) -> None:
        self.quorum.forwarder.changed()
        self._reconciler.changed()
        self.frontend.leaders.changed()


def _outline(view: GroupView) -> tuple[object, ...]:
    """The parts of a view that change seldom; topics and groups are replaced when they change,
    never altered in place."""
    return view.leader, view.term, view.serving, id(view.topics), id(view.groups)
