"""The configuration shared by all nodes of a cluster: node addresses, broker groups as they are
created, and the cluster secret.

The rules within one section are here; the rules between sections are in `config.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field, SecretStr, model_validator

from ledgermq.node.runtime.config_types import (
    Bytes,
    Host,
    Member,
    Milliseconds,
    Name,
    Port,
    Section,
)
from ledgermq.proto.workers import WORKER_PORT_STEP, WORKERS_MAX, together

HA_SETTINGS = ("ack", "min_in_sync", "in_sync_lag_ms", "in_sync_lag_bytes", "transfer")
DEFAULT_MIN_IN_SYNC = 2


class NodeAddress(Section):
    """Where peers and clients reach one node."""

    host: Host = "127.0.0.1"
    client_port: Port = 8081
    peer_port: Port = 9081
    controller_port: Port = 10081
    http_port: Port = 11081
    advertised_host: Host | None = None
    """The host that clients are told, if they reach the node under another one than its peers do;
    by default `host`."""
    advertised_port: Port | None = None
    """The port that clients are told; by default `client_port`."""
    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] = 1
    """The number of processes that share the node's broker groups (docs/workers.md). All workers
    use the node's client port and HTTP port; each further worker has its own peer port and
    controller port, ten above those of the worker before it."""

    @property
    def advertised(self) -> tuple[str, int]:
        """The host and the port under which clients reach the node."""
        return self.advertised_host or self.host, self.advertised_port or self.client_port

    def of_worker(self, number: int) -> NodeAddress:
        """The address of one worker, counted from 1. Raises ValueError if its ports would exceed
        65535."""
        above = WORKER_PORT_STEP * (number - 1)
        ports = {
            "peer_port": self.peer_port + above,
            "controller_port": self.controller_port + above,
        }
        if max(ports.values()) > 65535:
            raise ValueError(
                f"worker {number} would have port {max(ports.values())}; give the node lower ports"
                " or fewer workers"
            )
        return self.model_copy(update=ports)


class BrokerGroup(Section):
    """One broker group as it is created. Its file sizes are fixed from then on, because positions
    depend on them."""

    name: Name
    replicas: Annotated[tuple[Member, ...], Field(min_length=1)]
    """Nodes, or workers of nodes such as `n1.2`; at most one worker of each node."""
    data_file_bytes: Annotated[Bytes, Field(ge=64 << 10)] = 1 << 30
    index_file_bytes: Annotated[Bytes, Field(ge=32)] = 5 * 1024 * 1024 * 32
    consume_queue_file_bytes: Annotated[Bytes, Field(ge=20)] = 6_000_000
    key_index_slots: Annotated[int, Field(ge=1, le=1 << 27)] = 5_000_000
    """Applies to key index files that are created from now on; existing files keep their size."""
    preferred_leader: Member | None = None
    """This replica gets leadership whenever it has kept up for a while. The setting may change at
    any restart."""
    key_index_units: Annotated[int, Field(ge=2, le=(1 << 31) // 20)] = 20_000_000
    created_ms: Annotated[int, Field(gt=0)] | None = None
    """When the group was created, if later than its cluster; the same on all replicas. Set for
    groups that were added at run time."""
    replication: Literal["raft", "ha"] = "raft"
    """How the group starts: with elections and majorities (`raft`), or with a master that the
    controller quorum appoints (`ha`, docs/ha.md). Later changes (`ledgermq replication`) are
    recorded in the group's log, which then overrides this setting."""
    ack: Literal["async", "in-sync"] | None = None
    """What a send to an HA group waits for: the master alone (`async`), or every member of the
    in-sync set (`in-sync`, the default)."""
    min_in_sync: Annotated[int, Field(ge=1)] | None = None
    """With `ack: in-sync`: the group refuses sends while fewer members than this, master included,
    are in sync. Two by default. A number that `ledgermq replication --min-in-sync` recorded in the
    group's log overrides it."""
    in_sync_lag_ms: Annotated[Milliseconds, Field(ge=100)] | None = None
    """A slave that has lacked entries for this long leaves the in-sync set. 10 s by default."""
    in_sync_lag_bytes: Annotated[Bytes, Field(ge=64 << 10)] | None = None
    """A slave that lacks more bytes than this leaves the in-sync set. 64 MiB by default."""
    transfer: Literal["push", "pull"] | None = None
    """`push` (the default): the master of an HA group sends new entries by itself. `pull`: slaves
    ask for them, as RocketMQ's slaves do."""

    follower_reads: bool = False
    """Replicas that do not lead may serve readers that allow it (docs/observers.md). This and the
    next two may change at any restart."""
    follower_read_age_ms: Annotated[Milliseconds, Field(ge=100)] = 2_000
    """Such a replica refuses a read if its knowledge of the leader's commit index is older than
    this."""
    follower_pull_bytes: Annotated[Bytes, Field(ge=0)] = 64 << 20
    """Such a replica also answers a pull of the official contract that begins at least this many
    bytes before the end of the log."""

    @model_validator(mode="after")
    def _check(self) -> BrokerGroup:
        self._check_ha()
        if self.name == "controller":
            raise ValueError(
                "a broker group cannot be called controller: the node keeps its part of the quorum"
                " under that name"
            )
        if len(set(self.replicas)) != len(self.replicas):
            raise ValueError("replicas must not name a node twice")
        if (pair := together(self.replicas)) is not None:
            what = (
                f"replicas names {pair[0]} and {pair[1]}, which are workers of one node: one"
                " failure would take both"
            )
            raise ValueError(f"{what}; name workers of different nodes")
        if self.preferred_leader is not None and self.preferred_leader not in self.replicas:
            raise ValueError(
                f"preferred_leader {self.preferred_leader!r} is not one of the replicas"
                f" {', '.join(self.replicas)}"
            )
        if self.index_file_bytes % 32 or self.consume_queue_file_bytes % 20:
            raise ValueError(
                "index_file_bytes must be a multiple of 32 and consume_queue_file_bytes a multiple"
                " of 20"
            )
        return self

    def _check_ha(self) -> None:
        if self.replication == "raft":
            given = [name for name in HA_SETTINGS if getattr(self, name) is not None]
            if given:
                what = f"{given[0]} is a setting of HA groups, and this one has replication raft"
                raise ValueError(f"{what}: set replication: ha, or leave it out")
            return
        if len(self.replicas) < 2:
            raise ValueError(
                "an HA group needs at least two replicas, a master and a slave: name another node,"
                " or set replication: raft"
            )
        if self.min_in_sync is not None and self.ack == "async":
            raise ValueError(
                "min_in_sync says how many members ack: in-sync waits for; with ack: async leave"
                " it out"
            )
        if self.min_in_sync is not None and self.min_in_sync > len(self.replicas):
            what = (
                f"min_in_sync is {self.min_in_sync}, and the group has {len(self.replicas)}"
                " replicas"
            )
            raise ValueError(
                f"{what}: no send could ever be accepted; lower it, or name more replicas"
            )

    @property
    def ack_async(self) -> bool:
        """Whether the master alone acknowledges sends."""
        return self.ack == "async"

    @property
    def least_in_sync(self) -> int:
        """The group refuses sends while the in-sync set has fewer members than this."""
        if self.ack_async:
            return 1
        return (
            self.min_in_sync
            if self.min_in_sync is not None
            else min(DEFAULT_MIN_IN_SYNC, len(self.replicas))
        )


class Cluster(Section):
    """What makes nodes one cluster: its id, its broker groups at bootstrap, and the secret that
    every peer must know."""

    id: UUID
    created_ms: Annotated[int, Field(gt=0)]
    groups: Annotated[tuple[BrokerGroup, ...], Field(min_length=1)]
    secret: SecretStr | None = None
    secret_file: Path | None = None
    former_secret_file: Path | None = None
    """The previous cluster secret: users' secrets that were sealed under it stay readable."""

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError("two broker groups have the same name")
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("set secret or secret_file, not both")
        return self
