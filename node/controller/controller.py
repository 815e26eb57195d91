"""The controller as the node uses it: an asyncio interface in front of the quorum, which runs on
its own thread.

This module has the calls (each with a deadline, each answered with the resulting configuration or a
`LedgerError`), the barrier read, the change notifications and the health status. `metadata` decides
what a command means; `quorum` replicates and stores it.

If the quorum may have lost a command, it is submitted again under the same request id, so it is
executed at most once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ledgermq.node.controller import ha, voters
from ledgermq.node.controller.broker_groups import GroupSpec, Move, restore_spec
from ledgermq.node.controller.journal import DEFAULT_FILE_BYTES
from ledgermq.node.controller.quorum import (
    NOT_TAKEN,
    SUCCESS,
    Place,
    Quorum,
    Timing,
    require_library,
)
from ledgermq.node.controller.state import Json, Outcome, State, Topic, restore_topic
from ledgermq.node.runtime.deadlines import within
from ledgermq.node.runtime.errors import FatalError
from ledgermq.proto.names import group_name
from ledgermq.proto.records.group_config import read_group
from ledgermq.proto.status import Code, ExitCode, LedgerError, fail
from ledgermq.proto.types import GroupConfig, Permission, TopicDurability, TopicKind
from ledgermq.proto.workers import is_first
from ledgermq.raft.ha_control import Appointment, HaRequest, from_json
from ledgermq.storage.files.errors import StorageError, concerns_files, explain
from ledgermq.storage.files.ports import Disk
from ledgermq.storage.files.real_disk import RealDisk

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 5.0
ATTEMPT_S = 1.5
"""A submission without an answer is repeated after this time: a message between nodes can be lost
with its connection."""
PAUSE_S = 0.05
"""Delay between submissions while there is no leader."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The members of the quorum and their addresses. `addresses` gives the addresses of the nodes'
    controllers (host:port, the most likely first); they may change (`Controller.move`).

    `first_voters`: the voters of a new quorum, the same on all of them. A joining node contacts all
    other nodes instead. Once the journal names the voters, the journal counts. Of the workers of a
    node only the first may vote; the others listen.
    """

    node: str
    addresses: Mapping[str, Sequence[str]]
    listen: str
    directory: str
    cluster_id: str
    secret: bytes = field(repr=False)
    timing: Timing = field(default_factory=Timing)
    file_bytes: int = DEFAULT_FILE_BYTES
    first_voters: tuple[str, ...] = ()
    """Empty: all of `addresses`."""
    joining: bool = False

    def __post_init__(self) -> None:
        if self.node not in self.addresses:
            raise ValueError(f"no controller address for this node, {self.node!r}")


@dataclass(frozen=True, slots=True)
class Health:
    """What readiness checks and status pages show. `has_quorum`: a leader is known and a majority
    is connected to this node."""

    node: str
    leader: str | None = None
    has_quorum: bool = False
    caught_up: bool = False
    """Everything that was committed when this node started is applied here."""
    term: int = 0
    applied_index: int = 0
    failed: str | None = None
    voters: tuple[str, ...] = ()
    reached: frozenset[str] = frozenset()
    """Nodes whose controllers are connected to this one, including this node."""

    @property
    def ready(self) -> bool:
        return self.has_quorum and self.caught_up and self.failed is None


def quorum_secret(secret: bytes, cluster_id: str) -> bytes:
    """Derive the controllers' secret of one cluster, so that nodes of two clusters with the same
    secret reject each other."""
    return (
        hmac.new(secret, b"ledgermq controller " + cluster_id.encode(), hashlib.sha256)
        .hexdigest()
        .encode()
    )


class Controller:
    """One node's member of the controller quorum. All coroutines and callbacks run on the loop that
    ran `start`."""

    def __init__(self, config: ControllerConfig, disk: Disk | None = None) -> None:
        self._config = config
        self._disk: Disk = RealDisk() if disk is None else disk
        self._quorum: Quorum | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._watchers: list[Callable[[State], None]] = []
        self._failure_watchers: list[Callable[[FatalError], None]] = []
        self._announced = State()
        self._health = Health(config.node)
        self._addresses: Mapping[str, Sequence[str]] = config.addresses
        self._barrier_waiters: list[tuple[asyncio.Future[None], float]] = []
        self._barrier_task: asyncio.Task[None] | None = None

    # -- lifecycle
    # ----------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, listen and join the quorum. Raises FatalError or StorageError, both with an exit
        code and a remedy."""
        if not self._config.secret:
            raise FatalError(
                ExitCode.UNSAFE, "the controller has no cluster secret", "set cluster.secret_file"
            )
        require_library()
        self._loop = asyncio.get_running_loop()
        self._quorum = await asyncio.to_thread(self._opened)
        self.listen(False)
        self._thread = threading.Thread(
            target=self._run,
            args=(self._quorum,),
            name=f"controller-{self._config.node}",
            daemon=True,
        )
        self._thread.start()
        logger.info(
            "controller: listening on %s, one of %d", self._config.listen, len(self._quorum.voters)
        )

    async def stop(self) -> None:
        """Leave the quorum and close its files. Everything acknowledged is on disk."""
        self._stopping.set()
        if self._quorum is not None:
            self._quorum.wake()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        if self._barrier_task is not None:
            self._barrier_task.cancel()
            await asyncio.gather(self._barrier_task, return_exceptions=True)

    def on_change(self, callback: Callable[[State], None]) -> None:
        """Call `callback` on the loop with every newer state; several changes may be reported as
        one."""
        self._watchers.append(callback)

    def on_failure(self, callback: Callable[[FatalError], None]) -> None:
        """Call `callback` on the loop when the controller cannot continue: the node should exit
        with the error's code."""
        self._failure_watchers.append(callback)

    @property
    def state(self) -> State:
        """The newest state applied here; immutable, readable from any thread."""
        return self._announced if self._quorum is None else self._quorum.state

    @property
    def health(self) -> Health:
        """Readable from any thread; at most a tick old."""
        return self._health

    def move(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Set the addresses of the other nodes' controllers. Existing connections stay; new ones
        use the new addresses. Call this on the loop's thread."""
        self._addresses = dict(addresses)
        if self._quorum is not None:
            self._quorum.addresses = self._addresses

    def listen(self, wanted: bool) -> None:
        """Set whether this node receives the quorum's entries while it has no vote, as the node of
        an observer does. A worker that is not the first of its node always listens. May be called
        from any thread."""
        if self._quorum is not None:
            self._quorum.listening = wanted or not is_first(self._config.node)

    # -- calls
    # --------------------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        namespace: str,
        name: str,
        kind: TopicKind = TopicKind.NORMAL,
        queues: int = 8,
        permission: Permission = Permission.READ_WRITE,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        durability: TopicDurability = TopicDurability.GROUP,
        dedup_ms: int = 0,
    ) -> tuple[Topic, bool]:
        """The topic, and whether this call created it; a repetition with the same settings
        succeeds. Raises Conflict, BadRequest, or see `submit`."""
        choices = {
            "kind": kind.value,
            "permission": permission.value,
            "durability": durability.value,
        }
        settings = {**choices, "queues": queues, "dedup_ms": dedup_ms}
        outcome = await self.submit(
            "create-topic", {"ns": namespace, "name": name, **settings}, timeout
        )
        return restore_topic(_value(outcome)), outcome.changed

    async def update_topic(
        self,
        namespace: str,
        name: str,
        *,
        queues: int | None = None,
        permission: Permission | None = None,
        durability: TopicDurability | None = None,
        dedup_ms: int | None = None,
        add_group: str | None = None,
        grow: Mapping[str, int] | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Topic:
        """Change the given settings, as `topics.update_topic` does. Raises NotFound, Conflict
        (fewer queues), BadRequest, or see `submit`."""
        given = {"permission": permission, "durability": durability}
        choices = {name: None if value is None else value.value for name, value in given.items()}
        settings = {
            "queues": queues,
            "dedup_ms": dedup_ms,
            "add_group": add_group,
            "grow": dict(grow or {}),
            **choices,
        }
        outcome = await self.submit(
            "update-topic", {"ns": namespace, "name": name, **settings}, timeout
        )
        return restore_topic(_value(outcome))

    async def delete_topic(
        self, namespace: str, name: str, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Topic:
        """Delete a topic; returns its last settings. Raises NotFound, or see `submit`."""
        return restore_topic(
            _value(await self.submit("delete-topic", {"ns": namespace, "name": name}, timeout))
        )

    async def adopt_topic(self, namespace: str, name: str, broker_group: str) -> None:
        """Record that a dead-letter topic exists in this broker group. Raises BadRequest, or see
        `submit`."""
        _value(
            await self.submit(
                "adopt-topic", {"ns": namespace, "name": name, "broker_group": broker_group}
            )
        )

    async def create_group(
        self,
        namespace: str,
        name: str,
        max_attempts: int = 17,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        **settings: Any,
    ) -> tuple[GroupConfig, bool]:
        """The consumer group, and whether this call created it. `settings`: fields of a `group`
        record. Raises ILLEGAL_CONSUMER_GROUP, Conflict, BadRequest, or see `submit`."""
        group_name(namespace, name)
        fields = {"ns": namespace, "name": name, "max_attempts": max_attempts, **settings}
        outcome = await self.submit("create-group", fields, timeout)
        return read_group(_value(outcome)), outcome.changed

    async def update_group(
        self, namespace: str, name: str, timeout: float = DEFAULT_TIMEOUT_S, **settings: Any
    ) -> GroupConfig:
        """The consumer group with these settings changed. Raises NotFound, BadRequest, or see
        `submit`."""
        return read_group(
            _value(
                await self.submit(
                    "update-group", {"ns": namespace, "name": name, **settings}, timeout
                )
            )
        )

    async def delete_group(
        self, namespace: str, name: str, timeout: float = DEFAULT_TIMEOUT_S
    ) -> GroupConfig:
        """Delete a consumer group; returns its last settings. Raises NotFound, or see `submit`."""
        return read_group(
            _value(await self.submit("delete-group", {"ns": namespace, "name": name}, timeout))
        )

    async def announce(
        self,
        nodes: Mapping[str, Mapping[str, str]],
        broker_groups: Mapping[str, Sequence[str]],
        specs: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Register nodes with their addresses, and broker groups with their replicas and `specs`
        (the settings they were created with). Every node does this when it starts; nothing is
        submitted if everything is known."""
        state, described = self.state, specs or {}
        known_nodes = all(
            state.nodes.get(name) == dict(addresses) for name, addresses in nodes.items()
        )
        known_groups = all(
            state.broker_groups.get(name) == tuple(replicas)
            for name, replicas in broker_groups.items()
        )
        if known_nodes and known_groups and described.keys() <= state.specs.keys():
            return
        told = {name: dict(addresses) for name, addresses in nodes.items()}
        groups = {name: list(replicas) for name, replicas in broker_groups.items()}
        begun = {name: dict(settings) for name, settings in described.items()}
        await self.submit(
            "set-cluster", {"nodes": told, "broker_groups": groups, "specs": begun}, timeout
        )

    async def add_broker_group(
        self, group: str, settings: Mapping[str, Any]
    ) -> tuple[GroupSpec, bool]:
        """The intended broker group, and whether this call created it. Raises Conflict, or see
        `submit`."""
        outcome = await self.submit(
            "add-broker-group", {"group": group, "settings": dict(settings)}
        )
        return restore_spec(_value(outcome)), outcome.changed

    async def begin_move(self, group: str, move: Move) -> None:
        """Begin to move a replica. Raises Conflict, or see `submit`."""
        await self.submit("begin-move", {"group": group, "from": move.source, "to": move.target})

    async def end_move(self, group: str, move: Move, *, done: bool) -> None:
        """End a move: the replica has moved (`done`), or the move is aborted. Raises Conflict, or
        see `submit`."""
        await self.submit(
            "end-move", {"group": group, "from": move.source, "to": move.target, "done": done}
        )

    async def prefer_leader(self, group: str, node: str) -> None:
        """Set the preferred leader of a broker group. Raises Conflict, or see `submit`."""
        await self.submit("prefer-leader", {"group": group, "node": node})

    async def set_node(
        self,
        node: str,
        addresses: Mapping[str, str],
        *,
        state: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Register a node, or change its addresses. `state` as in `nodes.set_node`. Raises
        Conflict, BadRequest, or see `submit`."""
        await self.submit(
            "set-node", {"node": node, "addresses": dict(addresses), "state": state}, timeout
        )

    async def remove_node(self, node: str) -> None:
        """Remove a node; the removal is recorded, so that an old configuration does not add it
        again. Raises Conflict while a broker group is meant to have a replica there, or see
        `submit`."""
        await self.submit("remove-node", {"node": node})

    async def place_replica(self, group: str, node: str, *, present: bool) -> None:
        """Record whether a broker group is meant to have a replica on a node; the group's own log
        decides its members. Raises BadRequest, Conflict, or see `submit`."""
        await self.submit("place-replica", {"group": group, "node": node, "present": present})

    async def appoint(
        self, group: str, wish: HaRequest, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Appointment:
        """Submit a replica's request to elect or force a master of an HA group, or to change its
        in-sync set. Raises Conflict if it is not granted, or see `submit`."""
        return from_json(_value(await self.submit(*ha.command_of(group, wish), timeout)))

    async def set_voter(
        self, node: str, *, present: bool, timeout: float = DEFAULT_TIMEOUT_S
    ) -> tuple[str, ...]:
        """Give a node a vote in this quorum, or take it away; returns the committed voters. Do not
        call this on the node that is to leave: it would not receive the answer. Raises Conflict
        with an explanation if the quorum would be lost, HA_NOT_AVAILABLE if the quorum did not
        change in time, or see `submit`."""
        assert self._quorum is not None and self._loop is not None, "start the controller first"
        timeout = within(timeout)
        quorum, until = self._quorum, self._loop.time() + timeout
        while True:
            # The voters in force here may come from an uncommitted entry. After a barrier they are
            # committed.
            await self.barrier(max(until - self._loop.time(), PAUSE_S))
            current = quorum.voters
            if (node in current) == present:
                return current
            wanted = {*current, node} if present else set(current) - {node}
            if reason := voters.would_lose_quorum(current, wanted, self._health.reached):
                raise fail(Code.PRECONDITION_FAILED, reason)
            left = until - self._loop.time()
            if left <= 0:
                # Only the leader knows why it refused.
                why = quorum.refusal or "its leader refuses the change, or is being replaced"
                raise fail(
                    Code.HA_NOT_AVAILABLE,
                    f"the controller quorum did not change within {timeout:.1f} s: {why}",
                )
            await self._one_attempt(
                partial(quorum.submit_voters, tuple(wanted)), min(left, ATTEMPT_S)
            )
            await asyncio.sleep(min(PAUSE_S, max(until - self._loop.time(), 0)))

    async def add_checkpoint_key(self, node: str, public: str, created_ms: int) -> None:
        """Register the public key with which a node signs checkpoints, in hexadecimal. Raises as
        `submit`."""
        await self.submit(
            "add-checkpoint-key", {"node": node, "public": public, "created_ms": created_ms}
        )

    async def raise_level(self, level: int, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Raise the feature level of the cluster by one, to `level`; no change if it has the level.
        Raises as `submit`."""
        await self.submit("raise-level", {"level": level}, timeout)

    async def name_voters(self, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Append an entry that names the present voters. The first entry of the journal of a joined
        node names no voters, so a node that only listens would not learn them before the next
        change. Raises HA_NOT_AVAILABLE on timeout."""
        assert self._quorum is not None and self._loop is not None, "start the controller first"
        timeout = within(timeout)
        quorum, until = self._quorum, self._loop.time() + timeout
        while (left := until - self._loop.time()) > 0:
            await self.barrier(left)
            outcome, _ = await self._one_attempt(
                partial(quorum.submit_voters, quorum.voters), min(max(left, PAUSE_S), ATTEMPT_S)
            )
            if outcome is not None:
                return
            await asyncio.sleep(PAUSE_S)
        raise fail(
            Code.HA_NOT_AVAILABLE,
            f"the controller quorum did not name its voters within {timeout:.1f} s; try again",
        )

    async def barrier(self, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """After this, `state` here contains every command that was answered on any node before the
        call. Concurrent callers share a round, but no caller joins a round that began before its
        call. Raises as `submit`."""
        assert self._loop is not None, "start the controller first"
        timeout = within(timeout)
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._barrier_waiters.append((waiter, self._loop.time() + timeout))
        if self._barrier_task is None or self._barrier_task.done():
            self._barrier_task = self._loop.create_task(self._barriers())
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            raise self._late(taken=False) from None

    async def _barriers(self) -> None:
        while self._barrier_waiters:
            round_, self._barrier_waiters = self._barrier_waiters, []
            assert self._loop is not None
            limit = max(until for _, until in round_) - self._loop.time()
            error: LedgerError | None = None
            try:
                # The round serves all waiters, so its deadline is the latest of theirs.
                await self._submitted("barrier", {}, max(limit, 0.001))
            except LedgerError as failure:
                error = failure
            for waiter, _ in round_:
                if not waiter.done():
                    if error is None:
                        waiter.set_result(None)
                    else:
                        waiter.set_exception(error)

    async def submit(
        self, operation: str, arguments: Json, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Outcome:
        """Execute one command. Raises LedgerError: the refusal of the state machine;
        HA_NOT_AVAILABLE if there is no quorum and nothing was changed; PROXY_TIMEOUT if the command
        may still be executed. `within` shortens `timeout` to the caller's own deadline."""
        return await self._submitted(operation, arguments, within(timeout))

    async def _submitted(self, operation: str, arguments: Json, timeout: float) -> Outcome:
        assert self._quorum is not None and self._loop is not None, "start the controller first"
        command = {"op": operation, **arguments}
        if operation != "barrier":
            command["id"] = uuid.uuid4().hex
        until = self._loop.time() + timeout
        taken = False
        while True:
            left = until - self._loop.time()
            if left <= 0:
                raise self._late(taken=taken)
            outcome, failure = await self._attempt(command, min(left, ATTEMPT_S))
            if outcome is not None:
                if outcome.code != Code.OK:
                    raise fail(outcome.code, outcome.detail)
                return outcome
            taken = taken or failure not in NOT_TAKEN
            await asyncio.sleep(min(PAUSE_S, max(until - self._loop.time(), 0)))

    async def _attempt(self, command: Json, limit: float) -> tuple[Outcome | None, int | None]:
        """The outcome of one submission, or None and the reason for the failure (None if there was
        no answer)."""
        assert self._quorum is not None
        quorum = self._quorum
        try:
            return await self._one_attempt(partial(quorum.submit, command), limit)
        except ValueError as error:
            raise fail(Code.BAD_REQUEST, str(error)) from error

    async def _one_attempt(
        self, submit: Callable[[Callable[[Outcome | None, int], None]], None], limit: float
    ) -> tuple[Outcome | None, int | None]:
        assert self._loop is not None
        loop = self._loop
        answered: asyncio.Future[tuple[Outcome | None, int | None]] = loop.create_future()

        def settle(outcome: Outcome | None, failure: int) -> None:
            if not answered.done():
                answered.set_result((outcome if failure == SUCCESS else None, failure))

        def answer(outcome: Outcome | None, failure: int) -> None:
            self._post(settle, outcome, failure)

        submit(answer)
        try:
            async with asyncio.timeout(limit):
                return await answered
        except TimeoutError:
            return None, None

    def _late(self, *, taken: bool) -> LedgerError:
        if self._health.failed is not None:
            return fail(
                Code.HA_NOT_AVAILABLE,
                f"the controller of node {self._config.node} has stopped: {self._health.failed}",
            )
        if taken:
            text = (
                "the controller quorum did not confirm in time and may still do so; look at the"
                " result, then try again"
            )
            return fail(Code.PROXY_TIMEOUT, text)
        names = ", ".join(sorted(self._health.voters or self._config.addresses))
        text = (
            f"there is no controller quorum, nothing was changed; check that a majority of {names}"
            " runs, then try again"
        )
        return fail(Code.HA_NOT_AVAILABLE, text)

    # -- the quorum's thread
    # ------------------------------------------------------------------------------------------------------

    def _opened(self) -> Quorum:
        config = self._config
        secret = quorum_secret(config.secret, config.cluster_id)
        others = tuple(name for name in config.addresses if name != config.node and is_first(name))
        seeds = (
            others
            if config.joining
            else config.first_voters or tuple(filter(is_first, config.addresses))
        )
        # A single voter with followers keeps the normal timing: its short heartbeat would reach the
        # followers a hundred times a second.
        followers = sum(not is_first(name) for name in config.addresses)
        timing = config.timing.for_nodes(len(seeds) + config.joining + followers)
        place = Place(config.node, seeds, config.listen, config.directory, config.joining)
        return Quorum(
            place, self._addresses, secret, self._disk, timing, file_bytes=config.file_bytes
        )

    def _run(self, quorum: Quorum) -> None:
        try:
            while not self._stopping.is_set():
                quorum.tick()
                self._publish(quorum)
        # the library may have stopped in the middle of a change, so the controller must not
        # continue
        except Exception as error:
            self._fail(error)
        finally:
            try:
                quorum.destroy()
            except (OSError, StorageError) as error:
                self._fail(error)

    def _publish(self, quorum: Quorum) -> None:
        leader = quorum._getLeader()
        health = Health(
            node=self._config.node,
            leader=None if leader is None else leader.id,
            has_quorum=leader is not None and quorum.hasQuorum,
            caught_up=quorum.isReady(),
            term=quorum.raftCurrentTerm,
            applied_index=quorum.raftLastApplied,
            voters=quorum.voters,
            reached=quorum.reached(),
        )
        if (health.leader, health.has_quorum) != (self._health.leader, self._health.has_quorum):
            logger.info(
                "controller: leader %s, quorum %s, term %d",
                health.leader,
                "yes" if health.has_quorum else "no",
                health.term,
            )
        self._health = health
        if quorum.state.revision != self._announced.revision:
            self._announced = quorum.state
            self._post(self._notify, quorum.state)

    def _notify(self, state: State) -> None:
        for watcher in self._watchers:
            watcher(state)

    def _fail(self, error: Exception) -> None:
        fatal = error if isinstance(error, FatalError) else self._as_fatal(error)
        if self._health.failed is None:
            self._health = replace(self._health, leader=None, has_quorum=False, failed=str(fatal))
            self._post(lambda: [watcher(fatal) for watcher in self._failure_watchers])

    def _as_fatal(self, error: Exception) -> FatalError:
        """A known file error keeps its exit code and remedy; any other error is a bug, and its
        traceback is logged."""
        stopped = f"the controller of node {self._config.node} stopped"
        if isinstance(error, OSError) and concerns_files(error):
            error = explain(self._config.directory, error)
        exit_code = getattr(error, "exit_code", None)
        if isinstance(exit_code, int):
            what, _, remedy = str(error).partition(": ")
            return FatalError(exit_code, f"{stopped}, {what}", remedy or "start the node again")
        fatal = FatalError(
            ExitCode.BUG,
            f"{stopped}, {type(error).__name__}: {error}",
            "this is a bug: report it with the node's log",
        )
        fatal.__cause__ = error
        return fatal

    def _post(self, callback: Callable[..., Any], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is closed, so no callback can run.
            logger.debug("controller: the event loop is gone")


def _value(outcome: Outcome) -> Json:
    assert outcome.value is not None, "a successful command on a topic or group names the result"
    return outcome.value
