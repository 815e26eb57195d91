"""A running cluster as a source of replicas: an audit marker in every log, and each node's replica
up to that marker.

Finds the nodes, prevents their files from being trimmed during the audit, and gives a sentence for
every replica that could not be read, or whose content does not count. Judges no file. docs/audit.md
(Running nodes) lists everything that is read of a node, when, and why it goes together with the
marker; the order of `open`, `mark` and the looks is that of the list.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import Message

from ledgermq.audit.checks.opening import limit, open_running
from ledgermq.audit.checks.replica import Point, Replica
from ledgermq.audit.reading.node_paths import NodeLost, authorities_of, node_path
from ledgermq.audit.reading.remote import call, require
from ledgermq.client.api.connection import Connection
from ledgermq.proto import admin_pb2, audit_pb2
from ledgermq.proto.workers import node_of

M = TypeVar("M", bound=Message)
ADMIN, REPLICAS = "/ledgermq.v1.Admin/", "/ledgermq.v1.Replicas/"
OK, NOT_IN_TIME = 20000, 50400
PIN_TTL_S = 1800
RENEW_AFTER_S = PIN_TTL_S / 3
RUNNING = "running"

Lost = dict[str, dict[str, str]]
"""Broker group → replica → why it could not be read."""


@dataclass(slots=True)
class _Held:
    """A replica being audited: the address and the incarnation of its node, and the pin that keeps
    its files."""

    authority: str
    group: str
    node: str
    pin: str
    renewed_s: float
    life: str = ""
    ended: bool = False
    """The pin expired, so files may have been removed."""

    @property
    def root(self) -> str:
        return f"{node_path(self.authority)}/{self.group}"


@dataclass(slots=True)
class RunningCluster:
    """A cluster during its audit. `open` it once, then `mark` it; `close` releases its files."""

    connection: Connection
    within_s: float
    """Time limit for writing a marker, and for each replica to reach it."""
    now_s: Callable[[], float] = time.monotonic
    lost: Lost = field(default_factory=dict)
    _groups: list[str] = field(default_factory=list)
    _held: dict[tuple[str, str], _Held] = field(default_factory=dict)

    def ask(self) -> admin_pb2.ClusterStatusResponse:
        """The status of the cluster. Raises ClusterError if no node answers."""
        return self.connection.ask(
            f"{ADMIN}ClusterStatus",
            admin_pb2.ClusterStatusRequest(),
            admin_pb2.ClusterStatusResponse,
        )

    def open(self) -> list[Replica]:
        """Read what every replica notes of entries that it has applied, before there is a marker.
        Replicas that cannot be read are in `lost`. Raises ClusterError if no node answers."""
        status = self.ask()
        groups = {info.group: self._members(info) for info in status.groups}
        authorities = {
            **authorities_of(status.nodes),
            **self._reached(groups, [info.node for info in status.nodes]),
        }
        for group, nodes in groups.items():
            for node in nodes:
                self._pin(group, node, authorities.get(node, ""))
        replicas = [self._opened(held) for held in self._held.values()]
        self._groups = list(groups)
        return [replica for replica in replicas if replica is not None]

    def mark(self, replicas: Iterable[Replica]) -> list[Replica]:
        """Mark every log, and limit the opened replicas to what their nodes have then applied.
        Returns those that can still be read. Raises ClusterError if a group has no leader, or if
        the marker is refused."""
        markers = {group: self._mark(group) for group in self._groups}
        return [replica for replica in replicas if self._limited(replica, markers[replica.group])]

    @staticmethod
    def _members(info: admin_pb2.BrokerGroupInfo) -> list[str]:
        """The replicas of a group; those of the configuration if no replica has answered."""
        return sorted({*info.voters, *info.learners}) or sorted(
            replica.node for replica in info.replicas
        )

    def _reached(self, groups: dict[str, list[str]], members: list[str]) -> dict[str, str]:
        """The nodes behind the given endpoints. These addresses are known to be reachable from
        here, so they take precedence over those that the cluster reports. All workers of the
        answering node are behind an address."""
        addresses: dict[str, str] = {}
        for address in (
            map(str, self.connection.addresses) if len(self.connection.addresses) > 1 else ()
        ):
            for group in groups:
                try:
                    description = self._describe(address, group, None)
                except NodeLost:
                    break
                if description.node:
                    workers = [
                        name for name in members if node_of(name) == node_of(description.node)
                    ]
                    addresses |= (
                        {name: f"{name}@{address}" for name in workers}
                        if len(workers) > 1
                        else {description.node: address}
                    )
                    break
        return addresses

    # -- one replica

    def _pin(self, group: str, node: str, authority: str) -> None:
        request = admin_pb2.TakePinRequest(
            broker_group=group, reason="an audit reads the files", ttl_ms=PIN_TTL_S * 1000
        )
        try:
            taken = _admin(authority, "TakePin", request, admin_pb2.TakePinResponse)
        except NodeLost as lost:
            self._lose(
                group,
                node,
                f"could not be read: {lost}; start it, or make it reachable from here, and audit"
                " again",
            )
            return
        self._held[group, node] = _Held(authority, group, node, taken.pin, self.now_s())

    def _mark(self, group: str) -> audit_pb2.EntryPoint:
        request = audit_pb2.MarkRequest(
            broker_group=group,
            id=f"audit-{uuid.uuid4().hex[:12]}",
            within_ms=round(1000 * self.within_s),
        )
        return self.connection.ask(f"{REPLICAS}Mark", request, audit_pb2.MarkResponse).point

    def _opened(self, held: _Held) -> Replica | None:
        try:
            description = self._describe(held.authority, held.group, None)
            require(held.authority, held.node, description.status)
            if description.node != held.node:
                problem = (
                    f"could not be read: {held.authority} is node {description.node}; give every"
                    " node's"
                    " own endpoint"
                )
            elif description.state != RUNNING:
                problem = (
                    f"is not running on its node ({description.state}: {description.reason}); wait"
                    " until it runs,"
                    " and audit again"
                )
            else:
                held.life = description.life
                return open_running(node_path(held.authority), held.group)
        except (NodeLost, OSError) as error:
            problem = f"could not be read: {error}; audit again"
        self._lose(held.group, held.node, problem)
        return None

    def _limited(self, replica: Replica, marker: audit_pb2.EntryPoint) -> bool:
        held = self._held_of(replica)
        try:
            description = self._describe(held.authority, held.group, marker.index)
            late = description.status.code == NOT_IN_TIME
            if late:
                # The replica lags; its entries are compared with the others all the same.
                description = self._describe(held.authority, held.group, None)
            if late and description.end.index >= marker.index:
                # It has caught up since, and all replicas are read up to the same entry.
                description, late = self._describe(held.authority, held.group, marker.index), False
            require(held.authority, held.node, description.status)
            if (description.life, description.state) != (held.life, RUNNING):
                self._lose(held.group, held.node, _restarted(description))
                return False
            end = description.end
            limit(replica, Point(end.index, end.end_pos, end.term, end.chain))
            replica.awaited = marker.index if late else None
        except (NodeLost, OSError) as error:
            self._lose(held.group, held.node, f"could not be read: {error}; audit again")
            return False
        return True

    def _held_of(self, replica: Replica) -> _Held:
        return next(held for held in self._held.values() if held.root == replica.root)

    def _describe(
        self, authority: str, group: str, index: int | None
    ) -> audit_pb2.DescribeReplicaResponse:
        request = audit_pb2.DescribeReplicaRequest(
            broker_group=group, index=index, within_ms=round(1000 * self.within_s)
        )
        return call(
            authority,
            f"{REPLICAS}Describe",
            request,
            audit_pb2.DescribeReplicaResponse,
            self.within_s + 5,
        )

    def _lose(self, group: str, node: str, why: str) -> None:
        self.lost.setdefault(group, {})[node] = why

    # -- while it is read

    def keep(self) -> None:
        """Called regularly during the audit: renews the pins in time."""
        for held in self._held.values():
            if self.now_s() - held.renewed_s < RENEW_AFTER_S or held.ended:
                continue
            held.renewed_s = self.now_s()
            request = admin_pb2.RenewPinRequest(
                broker_group=held.group, pin=held.pin, ttl_ms=PIN_TTL_S * 1000
            )
            try:
                held.ended = not _admin(
                    held.authority, "RenewPin", request, admin_pb2.RenewPinResponse
                ).held
            except NodeLost:
                # Retried at the next call; whether the pin lasted is checked at the end.
                held.renewed_s -= RENEW_AFTER_S / 2

    def moved(self, replica: Replica) -> str | None:
        """Called after everything was read: why the content read from a replica does not count;
        None if it does."""
        held = self._held_of(replica)
        try:
            description = self._describe(held.authority, replica.group, None)
            require(held.authority, replica.name, description.status)
        except (NodeLost, OSError) as error:
            return f"was lost while it was audited ({error}); audit again"
        if (description.life, description.state) != (held.life, RUNNING):
            return _restarted(description)
        if description.begin.index + 1 != replica.begin.index or held.ended:
            return "was trimmed while it was audited; audit again"
        return None

    def close(self) -> None:
        """Let the nodes trim again. Pins that cannot be released expire."""
        for held in self._held.values():
            try:
                request = admin_pb2.DropPinRequest(broker_group=held.group, pin=held.pin)
                _admin(held.authority, "DropPin", request, admin_pb2.DropPinResponse)
            except NodeLost:
                continue
        self._held.clear()


def _restarted(description: audit_pb2.DescribeReplicaResponse) -> str:
    return (
        f"was started again, repaired or installed while it was audited (now {description.state});"
        " audit"
        " again"
    )


def _admin(authority: str, method: str, request: Message, response: type[M]) -> M:
    """One answer of one node's admin service. Raises NodeLost for any error."""
    answer: Any = call(authority, f"{ADMIN}{method}", request, response)
    try:
        require(authority, method, answer.status)
    except OSError as error:
        raise NodeLost(authority, str(error.strerror)) from error
    typed: M = answer
    return typed
