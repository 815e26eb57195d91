"""The whole configuration of a node as one frozen, validated value: the rules between its sections,
and what follows from them.

Nothing here opens files other than secret files. `config_loading.py` reads the sources and words
the errors; the sections themselves are in `config_sections.py`, `config_cluster.py` and
`security_sections.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ledgermq.node.runtime.config_cluster import BrokerGroup, Cluster, NodeAddress
from ledgermq.node.runtime.config_sections import (
    Agreement,
    Audit,
    Clock,
    Delivery,
    Flush,
    Limits,
    Metrics,
    Raft,
    Retention,
    Scrub,
    Storage,
    Tiered,
    Tracing,
)
from ledgermq.node.runtime.config_types import Host, Member, Name, Section
from ledgermq.node.runtime.errors import FatalError
from ledgermq.node.runtime.security_sections import (
    OPEN_TO_ALL,
    Access,
    PeerTls,
    Quotas,
    Tls,
    objection_to_secret,
)
from ledgermq.proto.host_port import is_loopback, joined
from ledgermq.proto.status import ExitCode
from ledgermq.proto.workers import node_of, worker_name

LEAST_SECRET_BYTES = 16
LEAST_SECRET_BYTES_OPEN = 32
PORT_KINDS = ("client_port", "peer_port", "controller_port", "http_port")
SHARED_PORTS = frozenset({"client_port", "http_port", "advertised_host", "advertised_port"})
"""A node has one of each, however many workers it has."""


class NodeConfig(Section):
    """The whole configuration of one node."""

    node: Member
    """The name of this node; in the process of a worker, the name of that worker."""
    data: Path
    listen_host: Host = "127.0.0.1"
    """Where every port listens: `0.0.0.0` for all IPv4 addresses of this machine, `::` for all
    addresses of both families."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cluster: Cluster
    nodes: Annotated[dict[Name, NodeAddress], Field(min_length=1)]
    """Seed addresses of the nodes. Addresses that the cluster learns later (`ledgermq member`) are
    stored in the data directory and win."""
    join: bool | Literal["spare"] | tuple[Name, ...] = False
    """Set on a node that did not exist when its broker groups were created (all of them, or those
    named). The node then creates no log and no controller quorum, but waits until the cluster adds
    it. `spare`: it keeps no replica until one is moved here or a group is added. The setting may
    stay in place afterwards."""
    raft: Raft = Raft()
    clock: Clock = Clock()
    delivery: Delivery = Delivery()
    limits: Limits = Limits()
    retention: Retention = Retention()
    tiered: Tiered = Tiered()
    agreement: Agreement = Agreement()
    scrub: Scrub = Scrub()
    flush: Flush = Flush()
    storage: Storage = Storage()
    access: Access = Access()
    tls: Tls = Tls()
    peer_tls: PeerTls = PeerTls()
    quotas: Quotas = Quotas()
    tracing: Tracing = Tracing()
    metrics: Metrics = Metrics()
    audit: Audit = Audit()

    @model_validator(mode="after")
    def _check(self) -> NodeConfig:
        members = self.members
        if self.node not in members:
            raise ValueError(
                f"nodes has no entry for this node, {self.node!r}; known:"
                f" {', '.join(sorted(self.nodes))}"
            )
        for group in self.cluster.groups:
            for replica in () if self.joins(group.name) else group.replicas:
                if replica not in members:
                    raise ValueError(
                        f"broker group {group.name!r} names the replica {replica!r},"
                        f" {self._no_such(replica)}"
                    )
        known = {group.name: None for group in self.cluster.groups}
        for stranger in self.join if isinstance(self.join, tuple) else ():
            if stranger not in known:
                raise ValueError(
                    f"join names {stranger!r}, which is not a broker group; known:"
                    f" {', '.join(known)}"
                )
        if self.join and len(self.nodes) == 1:
            raise ValueError(
                "join needs the nodes of the cluster that this node joins; nodes lists only"
                " this one"
            )
        for section, overrides in (
            ("retention", self.retention.groups.keys()),
            ("flush", self.flush.groups.keys()),
        ):
            for stranger in sorted(overrides - known.keys()):
                raise ValueError(
                    f"{section}.groups names {stranger!r}, which is not a broker group; known:"
                    f" {', '.join(known)}"
                )
        durable = [
            group.name
            for worker in self.workers
            for group in self.hosted_by(worker)
            if self.flush.of(group.name) != "memory"
        ]
        if self.storage.append == "pool" and durable:
            policy = self.flush.of(durable[0])
            remedy = "set flush.policy to memory, or storage.append to pwrite or map"
            raise ValueError(
                "storage.append pool needs the flush policy memory, but broker group"
                f" {durable[0]!r} has {policy}: {remedy}"
            )
        self._check_ports(members)
        return self

    def _no_such(self, member: str) -> str:
        """Why a member is unknown, as the end of a sentence."""
        node = node_of(member)
        return (
            "which nodes does not list"
            if node not in self.nodes
            else f"but nodes.{node}.workers is {self.nodes[node].workers}"
        )

    @staticmethod
    def _check_ports(members: Mapping[str, NodeAddress]) -> None:
        """Every (host, port) is used once, except that the workers of a node share its client port
        and its HTTP port. What is advertised to clients names one node too: a client that is sent
        to the leader must reach it."""
        taken: dict[tuple[str, int], tuple[str, str]] = {}
        for name, address in members.items():
            places = {kind: (address.host, getattr(address, kind)) for kind in PORT_KINDS}
            if address.advertised != places["client_port"]:
                places[
                    "advertised_port" if address.advertised_port is not None else "advertised_host"
                ] = address.advertised
            for kind, where in places.items():
                other, its = taken.setdefault(where, (name, kind))
                shared = kind == its and kind in SHARED_PORTS and node_of(name) == node_of(other)
                if (other, its) != (name, kind) and not shared:
                    raise ValueError(
                        f"nodes.{name}.{kind} uses {joined(*where)}, as does nodes.{other}.{its}"
                    )

    @property
    def members(self) -> dict[str, NodeAddress]:
        """Every configured member of the cluster by name: the nodes, and the further workers of
        nodes that have more than one."""
        return {
            worker_name(node, number): address.of_worker(number)
            for node, address in self.nodes.items()
            for number in range(1, address.workers + 1)
        }

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of all workers of this node, whichever of them this process is; the node's own name
        if it runs as one process."""
        node = node_of(self.node)
        return tuple(worker_name(node, number) for number in range(1, self.nodes[node].workers + 1))

    @property
    def address(self) -> NodeAddress:
        """The address of this member."""
        return self.members[self.node]

    @property
    def hosted_groups(self) -> tuple[BrokerGroup, ...]:
        """The broker groups of which this member keeps a replica, or is meant to keep one."""
        return self.hosted_by(self.node)

    def hosted_by(self, member: str) -> tuple[BrokerGroup, ...]:
        """The broker groups of one of this node's workers. Joined groups that name none of this
        node's workers are spread over them by position. A node never has two replicas of one
        group."""
        workers = self.workers
        found = []
        for place, group in enumerate(self.cluster.groups):
            named = [worker for worker in workers if worker in group.replicas]
            if not named and self.joins(group.name):
                named = [workers[place % len(workers)]]
            if member in named:
                found.append(group)
        return tuple(found)

    def begun_ms(self, group: BrokerGroup) -> int:
        """When a broker group was created, in milliseconds since the epoch; part of its first
        entry."""
        return self.cluster.created_ms if group.created_ms is None else group.created_ms

    def keeping(self, group: BrokerGroup, *, joins: bool) -> NodeConfig:
        """This configuration extended by a broker group of which the node keeps a replica although
        the file does not say so: a group that was added at run time, or a replica that was moved
        here. `joins`: the group's log exists elsewhere."""
        others = tuple(known for known in self.cluster.groups if known.name != group.name)
        cluster = self.cluster.model_copy(update={"groups": (*others, group)})
        named = {known.name for known in others if self.joins(known.name)} | (
            {group.name} if joins else set()
        )
        return self.model_copy(update={"cluster": cluster, "join": tuple(sorted(named))})

    def joins(self, group: str) -> bool:
        """Whether this node must not begin the group's log when it creates the group's directory,
        because other nodes have begun it."""
        return self.join is True or (isinstance(self.join, tuple) and group in self.join)

    @property
    def cluster_id(self) -> str:
        return str(self.cluster.id)

    def secret(self) -> bytes:
        """The cluster secret. Raises FatalError (exit 77) if there is none, or if it is too short
        for the listen address."""
        secret = self._read_secret()
        if len(secret) < LEAST_SECRET_BYTES:
            what = f"the cluster secret has {len(secret)} bytes"
            raise FatalError(
                ExitCode.UNSAFE, what, "make a longer one: ledgermq config secret FILE"
            )
        if len(secret) < LEAST_SECRET_BYTES_OPEN and not is_loopback(self.listen_host):
            what = (
                f"listen_host {self.listen_host} is reachable from other machines and the cluster"
                f" secret has only {len(secret)} bytes"
            )
            raise FatalError(
                ExitCode.UNSAFE,
                what,
                f"use a secret of at least {LEAST_SECRET_BYTES_OPEN} bytes or listen on 127.0.0.1",
            )
        return secret

    def former_secrets(self) -> tuple[bytes, ...]:
        """Earlier cluster secrets, which may still seal the secrets of some users."""
        path = self.cluster.former_secret_file
        return () if path is None else (_read_secret_file(path, "cluster.former_secret_file"),)

    def check_store_credentials(self) -> None:
        """Raises FatalError (exit 77) if other users of this machine can read the credentials of
        the object store, or if there are none."""
        if (path := self.tiered.credentials_file) is not None:
            remedy = f"write the keys into {path} in the format of AWS's shared credentials"
            _read_secret_file(path, "tiered.credentials_file", remedy)

    def bootstrap_user(self) -> tuple[str, str] | None:
        """Name and secret of the administrator that a cluster without users gets; None if there is
        to be none. Raises FatalError (exit 77)."""
        name, path = self.access.bootstrap_user, self.access.bootstrap_secret_file
        if name is None or path is None:
            return None
        secret = _read_secret_file(path, "access.bootstrap_secret_file")
        if (why := objection_to_secret(secret)) is not None:
            raise FatalError(
                ExitCode.UNSAFE,
                f"the file {path} holds no secret of a user: {why}",
                "write a longer one, in plain text",
            )
        return name, secret.decode()

    def _read_secret(self) -> bytes:
        if self.cluster.secret is not None:
            return self.cluster.secret.get_secret_value().encode()
        if self.cluster.secret_file is None:
            remedy = "set cluster.secret_file or the variable LEDGERMQ_CLUSTER__SECRET"
            raise FatalError(ExitCode.UNSAFE, "no cluster secret is configured", remedy)
        return _read_secret_file(self.cluster.secret_file, "cluster.secret_file")

    def check_exposure(self) -> None:
        """Raises FatalError (exit 77) if other machines can reach the client port and clients are
        not authenticated."""
        closed = self.access.authentication == "required" or self.tls.proves_clients
        if is_loopback(self.listen_host) or closed or self.access.allow_unauthenticated:
            return
        what = (
            f"listen_host {self.listen_host} is reachable from other machines and authentication"
            " is off"
        )
        words = f'access.allow_unauthenticated: "{OPEN_TO_ALL}"'
        raise FatalError(
            ExitCode.UNSAFE,
            what,
            "set access.authentication to required, or listen on 127.0.0.1, or allow it by"
            f" {words}",
        )

    @property
    def opens_http(self) -> bool:
        """Whether the HTTP port tells everything to every caller. If not, callers from other
        machines, and those that call this one by a foreign name, learn only whether the node works
        and whether it is ready."""
        return bool(self.access.allow_unauthenticated or self.access.allow_open_http)

    @property
    def http_hosts(self) -> tuple[str, ...]:
        """Where the HTTP port listens: at `listen_host`, and always where this machine can ask for
        everything."""
        everywhere = (
            self.opens_http
            or is_loopback(self.listen_host)
            or self.listen_host in ("0.0.0.0", "::")
        )
        return (
            (self.listen_host,)
            if everywhere
            else (self.listen_host, "::1" if ":" in self.listen_host else "127.0.0.1")
        )


def _read_secret_file(path: Path, key: str, remedy: str = "") -> bytes:
    try:
        if path.stat().st_mode & 0o007:
            raise FatalError(
                ExitCode.UNSAFE,
                f"the secret file {path} is open to every user of this machine",
                f"chmod 600 {path}",
            )
        return path.read_bytes().strip()
    except FileNotFoundError as error:
        what = f"the secret file {path} does not exist"
        create = remedy or f"create it with ledgermq config secret {path}"
        raise FatalError(ExitCode.UNSAFE, what, f"{create}, or correct {key}") from error
    except OSError as error:
        raise FatalError(
            ExitCode.UNSAFE,
            f"the secret file {path} cannot be read ({error.strerror})",
            f"check {key}",
        ) from error
