"""The replicas of a node, and what their peers must be told and must prove: addresses, identities,
greetings, the engine that gives the replicas their turns.

The first of the four sides of a node (`server.py`): it needs nothing of the others. The streams to
the peers are opened by `server.py` when there is somebody to deliver to; here are the links, which
everything that sends holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from ledgermq import __version__
from ledgermq.node.broker.calls.group_view import GroupView
from ledgermq.node.broker.calls.member_calls import Returned
from ledgermq.node.broker.calls.outcome import Refused as Unanswered
from ledgermq.node.broker.ports import PeerPacket
from ledgermq.node.controller.roster import Roster
from ledgermq.node.process.addresses import addresses_of
from ledgermq.node.process.node_clock import NodeClock
from ledgermq.node.process.process import end_process
from ledgermq.node.replica.hosting.engine import Engine, as_fatal
from ledgermq.node.replica.hosting.hosted_groups import Hosted
from ledgermq.node.replica.hosting.opening import controller_directory
from ledgermq.node.replica.peers.formation_check import FormationCheck
from ledgermq.node.replica.peers.greeting import Greeter
from ledgermq.node.replica.peers.links import Links
from ledgermq.node.replica.peers.peer_identities import PeerIdentities, Refused
from ledgermq.node.runtime import logs
from ledgermq.node.runtime.answer_budget import ANSWERS
from ledgermq.node.runtime.config import NodeConfig
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.status import ExitCode
from ledgermq.storage.files.errors import StorageError, is_no_space
from ledgermq.storage.files.real_disk import RealDisk
from ledgermq.storage.state import identity as identity_files

RETURNS_EVERY_S = 1.0
# How long calls forwarded by peers may take to finish, after this node's own clients have been
# drained.
ENGINE_DRAIN_S = 0.5

log = logs.get_logger()


class ReplicaSide:
    """Runs the replicas of one node. `groups` and `identities` change in place when groups come
    and go."""

    def __init__(
        self, config: NodeConfig, secret: bytes, disk: RealDisk, hosted: Mapping[str, Hosted]
    ) -> None:
        self._disk = disk
        self.boot_id = uuid.uuid4().hex
        self.hosted = dict(hosted)
        self.groups = {name: item.group for name, item in hosted.items()}
        self.identities = {name: item.identity for name, item in hosted.items()}
        self._founders = {
            name: item.others for name, item in hosted.items() if item.others is not None
        }
        self.clock = NodeClock(config.node, config.clock.max_offset_ms)
        self.roster = _roster(config, disk)
        self._saving = asyncio.Lock()
        self._admitting: asyncio.Task[None] | None = None
        self.peer_identities = PeerIdentities(
            disk, {name: item.state_directory for name, item in hosted.items()}, end_process
        )
        self.peer_identities.load()
        self.peer_identities.members.update({name: item.members for name, item in hosted.items()})
        self._formation_check = FormationCheck(
            config.node, self._founders, self.roster, self.peer_identities
        )
        self.forms_cluster = bool(hosted) and not any(map(self._formation_check.vouched, hosted))
        """Whether no replica here took part in its group before this process began."""
        self._boots = {
            name: identity_files.note_boot(disk, item.state_directory, self.boot_id)
            for name, item in hosted.items()
        }
        self.greeter = Greeter(
            cluster_id=config.cluster_id,
            node=config.node,
            boot_id=self.boot_id,
            version=__version__,
            secret=secret,
            roll=self.roster,
            identities=self.identities,
            peer_identities=self.peer_identities,
            boots=self._boots,
            wall_ns=self.clock.wall_ns,
        )
        self.clock.expect(self.roster.nodes)
        self.links = Links()
        self.engine = Engine(
            self.groups,
            send_packets=self.links.send_packets,
            on_fatal=end_process,
            max_calls=config.limits.max_calls,
            open_batches=config.raft.open_batches,
            now_ms=self.clock.now_ms,
        )
        ANSWERS.set_limits(config.limits.buffered_bytes // 2, config.limits.connection_bytes)
        ANSWERS.on_room(self.engine.turn_all)

    def start(self) -> None:
        """Give the replicas their turns."""
        for name in self.hosted:
            self._connect(name)
        self.engine.start()

    def works(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What runs beside the turns until the node stops."""
        return (self._notify_returns(),)

    def stop_admitting(self) -> None:
        """No replica begins to take part any more."""
        if self._admitting is not None:
            self._admitting.cancel()

    async def stop(self) -> None:
        """End the turns, flush and close the replicas."""
        await self.engine.stop(ENGINE_DRAIN_S)

    # -- groups that come and go

    async def take_in(self, group: str, hosted: Hosted) -> None:
        """Record a replica that was opened while this node runs; `begin` gives it its turns."""
        self.peer_identities.arrived(group, hosted.state_directory, hosted.members)
        try:
            self._boots[group] = await asyncio.to_thread(
                identity_files.note_boot, self._disk, hosted.state_directory, self.boot_id
            )
        except (OSError, StorageError) as error:
            end_process(as_fatal(error))
        if hosted.others is not None:
            self._founders[group] = hosted.others
        self.identities[group] = hosted.identity
        self.hosted[group], self.groups[group] = hosted, hosted.group

    def begin(self, group: str) -> None:
        """Give a replica that was taken in its turns."""
        self._connect(group)
        self.engine.take_in(group, self.groups[group])

    async def let_go(self, group: str) -> None:
        """A replica has moved away: no more turns; its files stay."""
        self.groups.pop(group)
        hosted = self.hosted.pop(group).group
        await self.engine.take_out(group)
        gone = Unanswered("unknown-outcome", detail=f"broker group {group} has left this node")
        self.engine.give_up(hosted.open_calls, gone)
        self.identities.pop(group)
        self._founders.pop(group, None)
        self._boots.pop(group, None)
        self.peer_identities.left(group)
        try:
            await asyncio.to_thread(hosted.close)
        # a store that cannot be closed cleanly ends the process, as in the engine (invariant I9)
        except Exception as error:
            end_process(as_fatal(error))

    def note_members(self, former: GroupView | None, group: str, view: GroupView) -> bool:
        """Tell the identities what a new view says of the group's members. Returns whether they
        changed."""
        self.peer_identities.levels[group] = view.level
        if former is not None and (former.in_effect, former.incarnations) == (
            view.in_effect,
            view.incarnations,
        ):
            return False
        self.peer_identities.name(group, view.in_effect, view.incarnations)
        return True

    def _connect(self, group: str) -> None:
        self.groups[group].connect(functools.partial(self.engine.wake, group), self._sender(group))

    def _sender(self, group: str) -> Callable[[Sequence[tuple[str, PeerPacket]]], None]:
        """A function that sends packets of a group from any thread."""
        loop = asyncio.get_running_loop()

        def send(packets: Sequence[tuple[str, PeerPacket]]) -> None:
            loop.call_soon_threadsafe(lambda: self.links.send_packets(group, packets))

        return send

    # -- peers

    def admit(self) -> None:
        """A peer has accepted this node: if it was the last one missing, the replica takes part
        from now on."""
        if all(self._formation_check.vouched(group) for group in self.hosted):
            return
        former = self._admitting

        async def admit() -> None:
            if former is not None:
                await asyncio.gather(former, return_exceptions=True)
            for group in list(self.hosted):
                # If a full disk prevents writing the note, it is tried again when a peer connects.
                with contextlib.suppress(Refused):
                    if await asyncio.to_thread(self._formation_check.finds, group):
                        self.engine.admit(group)

        self._admitting = asyncio.create_task(admit(), name="admit")

    async def _notify_returns(self) -> None:
        """Repeatedly tell each group of peers that returned with another directory: its leader adds
        them again."""
        said: set[str] = set()
        while True:
            reasons = {
                *self.peer_identities.barred.values(),
                *self.peer_identities.objections.values(),
            }
            for reason in sorted(reasons - said):
                log.error("packets are refused", reason=reason)
            said = reasons
            for group in list(self.hosted):
                for node, incarnation in self.peer_identities.returned(group).items():
                    self.engine.notify(group, Returned(node, incarnation))
            await asyncio.sleep(RETURNS_EVERY_S)

    async def save_roster(self) -> None:
        """Store the addresses of the nodes. A failure other than a full disk ends the process."""
        try:
            async with self._saving:
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

    # -- what others ask

    def age_ns(self, group: str) -> int | None:
        """The staleness in ns of the replica here; None if it is unknown, or if the replica is just
        leaving."""
        found = self.groups.get(group)
        return None if found is None else found.age_ns(time.monotonic_ns())

    def boots_of(self, group: str) -> int:
        """How often the replica here was opened in this process."""
        return self.groups[group].boots

    def obstacles(self, group: str) -> list[str]:
        """Why the replica here does not take part, or is not heard."""
        waits = self._formation_check.obstacles(group)
        waits += self.peer_failures()
        barred = sorted(self.peer_identities.barred.items())
        return (
            waits
            + [f"not heard: {why}" for (name, _), why in barred if name == group]
            + self.peer_identities.unheard(group)
        )

    def peer_failures(self) -> list[str]:
        """Why there is no connection to a peer, where that does not end by itself."""
        return [
            f"peer {name}: {link.refusal}"
            for name, link in sorted(self.links.items())
            if link.refusal is not None
        ]

    def queued_bytes(self) -> dict[str, int]:
        """Peer → bytes that wait to be sent to it."""
        return {name: link.queued_bytes for name, link in self.links.items()}


def _roster(config: NodeConfig, disk: RealDisk) -> Roster:
    roster = Roster(config.node, addresses_of(config), disk, controller_directory(config))
    if lost := roster.load():
        log.warning(
            "the remembered addresses are lost; the configured ones apply until the quorum"
            " reports its own",
            reason=lost,
        )
    return roster
