"""A running cluster as a source of replicas: an audit marker in every log, and each node's replica up to that marker.

Finds the nodes, prevents their files from being trimmed during the audit, and gives a sentence for every replica that could not be read, or
whose content does not count. Reads no file and judges none.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import Message

from ledgermq.audit.checks.opening import open_running
from ledgermq.audit.checks.replica import Point, Replica
from ledgermq.audit.reading.node_paths import NodeLost, authorities_of, node_path
from ledgermq.audit.reading.remote import call, require
from ledgermq.client.connection import Connection
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
    """A replica being audited: the address and the incarnation of its node, and the pin that keeps its files."""

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
    """A cluster during its audit. `open` it once; `close` releases its files."""

    connection: Connection
    within_s: float
    """Time limit for writing a marker, and for each replica to reach it."""
    now_s: Callable[[], float] = time.monotonic
    lost: Lost = field(default_factory=dict)
    _held: dict[tuple[str, str], _Held] = field(default_factory=dict)

    def ask(self) -> admin_pb2.ClusterStatusResponse:
        """The status of the cluster. Raises ClusterError if no node answers."""
        return self.connection.ask(f"{ADMIN}ClusterStatus", admin_pb2.ClusterStatusRequest(), admin_pb2.ClusterStatusResponse)

    def open(self) -> list[Replica]:
        """Mark every log and describe every replica. Replicas that cannot be read are in `lost`. Raises ClusterError if no node answers, if
        a group has no leader, or if the marker is refused."""
        status = self.ask()
        groups = {info.group: self._members(info) for info in status.groups}
        authorities = {**authorities_of(status.nodes), **self._reached(groups, [info.node for info in status.nodes])}
        for group, nodes in groups.items():
            for node in nodes:
                self._pin(group, node, authorities.get(node, ""))
        replicas = []
        for group, nodes in groups.items():
            marker = self._mark(group)
            for node in nodes:
                replica = self._described(group, node, marker)
                replicas += [] if replica is None else [replica]
        return replicas

    @staticmethod
    def _members(info: admin_pb2.BrokerGroupInfo) -> list[str]:
        """The replicas of a group; those of the configuration if no replica has answered."""
        return sorted({*info.voters, *info.learners}) or sorted(replica.node for replica in info.replicas)

    def _reached(self, groups: dict[str, list[str]], members: list[str]) -> dict[str, str]:
        """The nodes behind the given endpoints. These addresses are known to be reachable from here, so they take precedence over those
        that the cluster reports. All workers of the answering node are behind an address."""
        found: dict[str, str] = {}
        for address in map(str, self.connection.addresses) if len(self.connection.addresses) > 1 else ():
            for group in groups:
                try:
                    told = self._describe(address, group, None)
                except NodeLost:
                    break
                if told.node:
                    workers = [name for name in members if node_of(name) == node_of(told.node)]
                    found |= {name: f"{name}@{address}" for name in workers} if len(workers) > 1 else {told.node: address}
                    break
        return found

    # -- one replica

    def _pin(self, group: str, node: str, authority: str) -> None:
        request = admin_pb2.TakePinRequest(broker_group=group, reason="an audit reads the files", ttl_ms=PIN_TTL_S * 1000)
        try:
            taken = _admin(authority, "TakePin", request, admin_pb2.TakePinResponse)
        except NodeLost as lost:
            self._lose(group, node, f"could not be read: {lost}; start it, or make it reachable from here, and audit again")
            return
        self._held[group, node] = _Held(authority, group, node, taken.pin, self.now_s())

    def _mark(self, group: str) -> audit_pb2.EntryPoint:
        request = audit_pb2.MarkRequest(broker_group=group, id=f"audit-{uuid.uuid4().hex[:12]}", within_ms=round(1000 * self.within_s))
        return self.connection.ask(f"{REPLICAS}Mark", request, audit_pb2.MarkResponse).point

    def _described(self, group: str, node: str, marker: audit_pb2.EntryPoint) -> Replica | None:
        held = self._held.get((group, node))
        if held is None:
            return None
        try:
            told = self._describe(held.authority, group, marker.index)
            late = told.status.code == NOT_IN_TIME
            if late:
                # The replica lags; its entries are compared with the others all the same.
                told = self._describe(held.authority, group, None)
            require(held.authority, node, told.status)
            if told.node != node:
                self._lose(group, node, f"could not be read: {held.authority} is node {told.node}; give every node's own endpoint")
                return None
            if told.state != RUNNING:
                self._lose(group, node, f"is not running on its node ({told.state}: {told.reason}); wait until it runs, and audit again")
                return None
            held.life = told.life
            end = told.end
            replica = open_running(node_path(held.authority), group, Point(end.index, end.end_pos, end.term, end.chain))
            replica.awaited = marker.index if late and end.index < marker.index else None
            return replica
        except (NodeLost, OSError) as error:
            self._lose(group, node, f"could not be read: {error}; audit again")
            return None

    def _describe(self, authority: str, group: str, index: int | None) -> audit_pb2.DescribeReplicaResponse:
        request = audit_pb2.DescribeReplicaRequest(broker_group=group, index=index, within_ms=round(1000 * self.within_s))
        return call(authority, f"{REPLICAS}Describe", request, audit_pb2.DescribeReplicaResponse, self.within_s + 5)

    def _lose(self, group: str, node: str, why: str) -> None:
        self.lost.setdefault(group, {})[node] = why

    # -- while it is read

    def keep(self) -> None:
        """Called regularly during the audit: renews the pins in time."""
        for held in self._held.values():
            if self.now_s() - held.renewed_s < RENEW_AFTER_S or held.ended:
                continue
            held.renewed_s = self.now_s()
            request = admin_pb2.RenewPinRequest(broker_group=held.group, pin=held.pin, ttl_ms=PIN_TTL_S * 1000)
            try:
                held.ended = not _admin(held.authority, "RenewPin", request, admin_pb2.RenewPinResponse).held
            except NodeLost:
                # Retried at the next call; whether the pin lasted is checked at the end.
                held.renewed_s -= RENEW_AFTER_S / 2

    def moved(self, replica: Replica) -> str | None:
        """Called after everything was read: why the content read from a replica does not count; None if it does."""
        held = next(held for held in self._held.values() if held.root == replica.root)
        again = "audit again"
        try:
            told = self._describe(held.authority, replica.group, None)
            require(held.authority, replica.name, told.status)
        except (NodeLost, OSError) as error:
            return f"was lost while it was audited ({error}); {again}"
        if told.life != held.life:
            return f"was started again, repaired or installed while it was audited (now {told.state}); {again}"
        if told.begin.index + 1 != replica.begin.index or held.ended:
            return f"was trimmed while it was audited; {again}"
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


def _admin(authority: str, method: str, request: Message, response: type[M]) -> M:
    """One answer of one node's admin service. Raises NodeLost for any error."""
    answer: Any = call(authority, f"{ADMIN}{method}", request, response)
    try:
        require(authority, method, answer.status)
    except OSError as error:
        raise NodeLost(authority, str(error.strerror)) from error
    found: M = answer
    return found
