"""Everything a node may be told, in one frozen and validated value.

Here live the configuration model, its three sources (YAML file, environment, `--set`; the later wins), and the wording of what is wrong
with it. Units are part of the names: `…_ms` takes milliseconds or `500ms`, `10s`, `2m`; `…_bytes` takes bytes or `64KiB`, `64MiB`. Nothing
here opens anything but the configuration and secret files, and no other module reads the environment.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from uuid import UUID

import yaml
from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator

from ledgermq.node.config_types import NAME as NAME
from ledgermq.node.config_types import Bytes, Member, Milliseconds, Name, Port, Section
from ledgermq.node.config_types import parse_size_bytes as parse_size_bytes
from ledgermq.node.errors import ConfigError, FatalError
from ledgermq.node.security.settings import OPEN_TO_ALL, Access, PeerTls, Quotas, Tls
from ledgermq.proto.workers import WORKERS_MAX, node_of, together, worker_name
from ledgermq.storage.log_writer import POOL_BUFFER_BYTES, POOL_BUFFERS
from ledgermq.storage.thresholds import DISK_ALARM_PERCENT, DISK_WARN_PERCENT, SCRUB_BYTES_PER_S

ENV_PREFIX = "LEDGERMQ_"
# Variables of the client commands, of the audit and of the build; they are not settings of a node.
FOREIGN_ENV = frozenset({"ENDPOINTS", "ACCESS_KEY", "SECRET_KEY", "JAVA_HOME", "BASE_IMAGE", "CONFIG", "PARENT", "WORKER"})
LEAST_SECRET_BYTES = 16
LEAST_SECRET_BYTES_OPEN = 32
WORKER_PORT_STEP = 10
"""Between the peer ports, and between the controller ports, of a node's workers: nine nodes of `ledgermq up` fit between."""
PORT_KINDS = ("client_port", "peer_port", "controller_port", "http_port")
SHARED_PORTS = frozenset({"client_port", "http_port"})
"""A node has these once, however many workers it has."""
HA_SETTINGS = ("ack", "min_in_sync", "in_sync_lag_ms", "in_sync_lag_bytes", "transfer")
DEFAULT_MIN_IN_SYNC = 2


class NodeAddress(Section):
    """Where one node is reached by the others and by its clients."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    client_port: Port = 8081
    peer_port: Port = 9081
    controller_port: Port = 10081
    http_port: Port = 11081
    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] = 1
    """How many processes the node's broker groups are spread over (docs/workers.md). The clients' port and the HTTP port are the node's;
    each further worker has the next peer port and controller port, ten higher."""

    def of_worker(self, number: int) -> NodeAddress:
        """Where one worker is reached. Raises ValueError when there are no such ports."""
        above = WORKER_PORT_STEP * (number - 1)
        ports = {"peer_port": self.peer_port + above, "controller_port": self.controller_port + above}
        if max(ports.values()) > 65535:
            raise ValueError(f"worker {number} would have port {max(ports.values())}; give the node lower ports or fewer workers")
        return self.model_copy(update=ports)


class BrokerGroup(Section):
    """One broker group as it is created: the file sizes are fixed then, because positions depend on them."""

    name: Name
    replicas: Annotated[tuple[Member, ...], Field(min_length=1)]
    """Nodes, or workers of nodes such as `n1.2`: at most one of each node."""
    data_file_bytes: Annotated[Bytes, Field(ge=64 << 10)] = 1 << 30
    index_file_bytes: Annotated[Bytes, Field(ge=32)] = 5 * 1024 * 1024 * 32
    consume_queue_file_bytes: Annotated[Bytes, Field(ge=20)] = 6_000_000
    key_index_slots: Annotated[int, Field(ge=1, le=1 << 27)] = 5_000_000
    """Of key index files that are made from now on; those that exist keep their size."""
    preferred_leader: Member | None = None
    """Gets leadership whenever it has kept up for a while; it may change at any restart."""
    key_index_units: Annotated[int, Field(ge=2, le=(1 << 31) // 20)] = 20_000_000
    created_ms: Annotated[int, Field(gt=0)] | None = None
    """When the group was begun, if later than its cluster; on all replicas the same. A group that was added at run time has it."""
    replication: Literal["raft", "ha"] = "raft"
    """How the group is made: by elections and majorities, or under a master that the controller quorum appoints (docs/ha.md). Afterwards
    the group's log knows better: `ledgermq replication`."""
    ack: Literal["async", "in-sync"] | None = None
    """What a send to an HA group waits for: the master alone, or every member of the in-sync set (the default)."""
    min_in_sync: Annotated[int, Field(ge=1)] | None = None
    """With `ack: in-sync`: so many members, the master among them, or sends are refused. Two by default."""
    in_sync_lag_ms: Annotated[Milliseconds, Field(ge=100)] | None = None
    """A slave that has lacked something for so long leaves the in-sync set. 10 s by default."""
    in_sync_lag_bytes: Annotated[Bytes, Field(ge=64 << 10)] | None = None
    """A slave that lacks more than this leaves the in-sync set. 64 MiB by default."""
    transfer: Literal["push", "pull"] | None = None
    """Whether the master of an HA group sends what is new unasked (the default), or a slave asks for it, as RocketMQ's slaves do."""

    follower_reads: bool = False
    """Replicas that do not lead may serve readers that allow it (docs/observers.md); it may change at any restart, as may the next two."""
    follower_read_age_ms: Annotated[Milliseconds, Field(ge=100)] = 2_000
    """Not when what they know is older than this."""
    follower_pull_bytes: Annotated[Bytes, Field(ge=0)] = 64 << 20
    """They also answer a pull of the official contract that begins so far behind the end of the log."""

    @model_validator(mode="after")
    def _check(self) -> BrokerGroup:
        self._check_ha()
        if self.name == "controller":
            raise ValueError("a broker group cannot be called controller: the node keeps its part of the quorum under that name")
        if len(set(self.replicas)) != len(self.replicas):
            raise ValueError("replicas must not name a node twice")
        if (pair := together(self.replicas)) is not None:
            what = f"replicas names {pair[0]} and {pair[1]}, which are workers of one node: one failure would take both"
            raise ValueError(f"{what}; name workers of different nodes")
        if self.preferred_leader is not None and self.preferred_leader not in self.replicas:
            raise ValueError(f"preferred_leader {self.preferred_leader!r} is none of the replicas {', '.join(self.replicas)}")
        if self.index_file_bytes % 32 or self.consume_queue_file_bytes % 20:
            raise ValueError("index_file_bytes must be a multiple of 32 and consume_queue_file_bytes a multiple of 20")
        return self

    def _check_ha(self) -> None:
        if self.replication == "raft":
            given = [name for name in HA_SETTINGS if getattr(self, name) is not None]
            if given:
                what = f"{given[0]} is a setting of HA groups, and this one has replication raft"
                raise ValueError(f"{what}: set replication: ha, or leave it out")
            return
        if len(self.replicas) < 2:
            raise ValueError("an HA group needs at least two replicas, a master and a slave: name another node, or set replication: raft")
        if self.min_in_sync is not None and self.ack == "async":
            raise ValueError("min_in_sync says how many members ack: in-sync waits for; with ack: async leave it out")
        if self.min_in_sync is not None and self.min_in_sync > len(self.replicas):
            what = f"min_in_sync is {self.min_in_sync}, and the group has {len(self.replicas)} replicas"
            raise ValueError(f"{what}: no send could ever be accepted; lower it, or name more replicas")

    @property
    def ack_async(self) -> bool:
        """Whether sends are acknowledged by the master alone."""
        return self.ack == "async"

    @property
    def least_in_sync(self) -> int:
        """The in-sync set must have so many members, or sends are refused."""
        if self.ack_async:
            return 1
        return self.min_in_sync if self.min_in_sync is not None else min(DEFAULT_MIN_IN_SYNC, len(self.replicas))


class Cluster(Section):
    """What makes nodes one cluster: its id, its broker groups at bootstrap, and the secret every peer must know."""

    id: UUID
    created_ms: Annotated[int, Field(gt=0)]
    groups: Annotated[tuple[BrokerGroup, ...], Field(min_length=1)]
    secret: SecretStr | None = None
    secret_file: Path | None = None
    former_secret_file: Path | None = None
    """The secret before the last change of it: users' secrets that were sealed under it stay readable."""

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError("two broker groups have the same name")
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("set secret or secret_file, not both")
        return self


class Raft(Section):
    """Timing and windows of replication. An election timeout is drawn from election_min_ms … election_max_ms."""

    heartbeat_ms: Annotated[Milliseconds, Field(ge=5)] = 100
    election_min_ms: Annotated[Milliseconds, Field(ge=20)] = 400
    election_max_ms: Annotated[Milliseconds, Field(ge=20)] = 800
    push_bytes: Annotated[Bytes, Field(ge=4 << 10)] = 1 << 20
    window_bytes: Annotated[Bytes, Field(ge=4 << 10)] = 8 << 20
    observer_bytes_per_s: Bytes = 0
    """At most so much is pushed to each observer of a broker group led here; 0: as much as its link carries."""
    open_batches: Annotated[int, Field(ge=1, le=64)] = 1
    """How many batches of calls may wait for their commit at once; more than one where the majority is tens of milliseconds away."""

    @model_validator(mode="after")
    def _check(self) -> Raft:
        if not self.heartbeat_ms * 2 <= self.election_min_ms < self.election_max_ms:
            raise ValueError("needed: 2 x heartbeat_ms <= election_min_ms < election_max_ms")
        return self


class Delivery(Section):
    """Periods of leases and of client liveness (contract §5)."""

    min_invisible_ms: Milliseconds = 1_000
    max_invisible_ms: Milliseconds = 12 * 3_600_000
    auto_renew_max_ms: Milliseconds = 3 * 3_600_000
    liveness_ms: Annotated[Milliseconds, Field(ge=100)] = 65_000
    gone_grace_ms: Milliseconds = 1_000
    member_liveness_ms: Annotated[Milliseconds, Field(ge=100)] = 10_000
    """After how long a silent member of a native consumer group loses its queues."""
    long_poll_max_ms: Annotated[Milliseconds, Field(ge=100)] = 20_000
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 17
    transaction_check_ms: Annotated[Milliseconds, Field(ge=100)] = 6_000
    """How long an undecided transaction is left alone before a producer of its topic is asked about it."""
    transaction_interval_ms: Annotated[Milliseconds, Field(ge=100)] = 30_000
    transaction_checks: Annotated[int, Field(ge=1, le=1000)] = 15
    transaction_keep_ms: Annotated[Milliseconds, Field(ge=1_000)] = 72 * 3_600_000
    """A transaction that no producer could be asked about is dropped after so long: it keeps the log from being trimmed."""
    transactions_max: Annotated[int, Field(ge=1, le=1_000_000)] = 100_000
    """Undecided transactions of a broker group."""

    @model_validator(mode="after")
    def _check(self) -> Delivery:
        if self.min_invisible_ms > self.max_invisible_ms:
            raise ValueError("min_invisible_ms must not exceed max_invisible_ms")
        return self


class Limits(Section):
    """Upper bounds on what one caller or one peer may make a node hold."""

    max_body_bytes: Annotated[Bytes, Field(ge=1, le=4 << 20)] = 4 << 20
    max_frame_bytes: Annotated[Bytes, Field(ge=64 << 10, le=16 << 20)] = 1 << 20
    """Bytes of entries in a native frame; never more than a quarter of a log file."""
    max_properties_bytes: Annotated[Bytes, Field(ge=256, le=16 << 10)] = 16 << 10
    max_user_properties: Annotated[int, Field(ge=0, le=128)] = 128
    max_receive_batch: Annotated[int, Field(ge=1, le=32)] = 32
    max_delay_ms: Annotated[Milliseconds, Field(ge=1_000, le=3650 * 86_400_000)] = 24 * 3_600_000
    """How far ahead the delivery time of a message may lie. A message that waits keeps the log from being trimmed, for up to three days."""
    max_lite_topics: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    max_lite_subscriptions: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    max_calls: Annotated[int, Field(ge=16)] = 20_000
    peer_queue_bytes: Annotated[Bytes, Field(ge=1 << 20)] = 64 << 20
    drain_ms: Milliseconds = 2_000


FlushPolicyName = Literal["durable", "memory", "hybrid"]


class Storage(Section):
    """How appended bytes reach the log files, and what of them is kept in memory.

    `pwrite` copies into the kernel's cache, `map` stores through the mapped file, `pool` goes through buffers that a commit thread empties:
    only where the flush policy is `memory`. `lock_memory` locks the file being written, the one ahead of it and the pool.
    """

    append: Literal["pwrite", "map", "pool"] = "pwrite"
    lock_memory: bool = False
    pool_buffers: Annotated[int, Field(ge=1, le=1024)] = POOL_BUFFERS
    pool_buffer_bytes: Annotated[Bytes, Field(ge=64 << 10, le=1 << 30)] = POOL_BUFFER_BYTES


class Flush(Section):
    """What an acknowledgement of a send waits for, and how long bytes may lie unsynced that nobody waits for (design §4).

    Not part of a group's identity: it may change at any restart. A topic's own `durability` stands above it.
    """

    policy: FlushPolicyName = "durable"
    groups: dict[Name, FlushPolicyName] = Field(default_factory=dict)
    interval_ms: Annotated[Milliseconds, Field(ge=1)] = 500
    least_pages: Annotated[int, Field(ge=1, le=1 << 20)] = 4
    thorough_ms: Annotated[Milliseconds, Field(ge=1)] = 10_000

    @model_validator(mode="after")
    def _check(self) -> Flush:
        if self.interval_ms > self.thorough_ms:
            raise ValueError("interval_ms must not exceed thorough_ms")
        return self

    def of(self, group: str) -> FlushPolicyName:
        """The policy of one broker group."""
        return self.groups.get(group, self.policy)


class GroupRetention(Section):
    """What one broker group keeps differently; what is not set is as for all."""

    hours: Annotated[float, Field(ge=0, le=1e6)] | None = None
    max_bytes: Bytes | None = None
    ignore_groups: bool | None = None


class Retention(Section):
    """When log files go (whole files, oldest first), and what happens as the disk fills up. 0 hours or bytes: no such limit.

    A watermark is crossed only while less than `ample_bytes` are free as well. Configured consumer groups keep what they have not read,
    however old, unless `ignore_groups`. A follower that lacks entries keeps them until it was silent for `follower_hours` (0: for ever), or
    until the disk needs the room. An observer keeps no more than `observer_bytes` of what it lacks: beyond that it is brought files.
    """

    hours: Annotated[float, Field(ge=0, le=1e6)] = 72
    max_bytes: Bytes = 0
    ignore_groups: bool = False
    follower_hours: Annotated[float, Field(ge=0, le=1e6)] = 1
    observer_bytes: Bytes = 1 << 30
    warn_percent: Annotated[int, Field(ge=1, le=100)] = DISK_WARN_PERCENT
    delete_percent: Annotated[int, Field(ge=1, le=100)] = 85
    refuse_percent: Annotated[int, Field(ge=1, le=100)] = DISK_ALARM_PERCENT
    ample_bytes: Bytes = 20 << 30
    reserve_bytes: Bytes = 8 << 20
    check_ms: Annotated[Milliseconds, Field(ge=50)] = 10_000
    digest_bytes_per_s: Annotated[Bytes, Field(ge=1 << 20)] = 512 << 20
    """At most: the digest of a file that was just sealed gives way to everything else."""
    groups: dict[Name, GroupRetention] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Retention:
        if not self.warn_percent < self.delete_percent < self.refuse_percent:
            raise ValueError("needed: warn_percent < delete_percent < refuse_percent")
        return self

    def of(self, group: str) -> GroupRetention:
        """The limits of one broker group, all set."""
        own = self.groups.get(group, GroupRetention())
        return GroupRetention(
            hours=self.hours if own.hours is None else own.hours,
            max_bytes=self.max_bytes if own.max_bytes is None else own.max_bytes,
            ignore_groups=self.ignore_groups if own.ignore_groups is None else own.ignore_groups,
        )


class Audit(Section):
    """What audits of this running node may cost it (`ledgermq audit --endpoints`)."""

    bytes_per_s: Annotated[Bytes, Field(ge=1 << 20)] = 128 << 20
    """All audits together may read so much; less while the node is busy."""


class Agreement(Section):
    """How often replicas compare the digests of log files that were sealed meanwhile (`node/agreement.py`)."""

    check_ms: Annotated[Milliseconds, Field(ge=50, le=86_400_000)] = 500


class Scrub(Section):
    """How fast this node reads its logs again to find rot (`node/scrubbing.py`). Broker groups share the budget evenly.

    At the default a pass over 9 TiB takes a week; it is a twentieth of a disk that reads 320 MiB a second.
    """

    bytes_per_s: Annotated[Bytes, Field(ge=64 << 10)] = SCRUB_BYTES_PER_S
    again_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 24
    """A file that was read as a whole rests for so long; the one that waits longest is next."""


class Tracing(Section):
    """Where OpenTelemetry spans of clients' calls go (`node/tracing.py`). Nothing is exported without an endpoint."""

    otlp_endpoint: Annotated[str, Field(pattern=r"^$|^https?://[^/\s]+$")] = ""
    """Of a collector that speaks OTLP over gRPC, as `http://host:4317`."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of the calls whose caller has not decided already."""


class NodeConfig(Section):
    """The whole configuration of one node."""

    node: Member
    """This node; a worker's own name in the processes that a node starts for its workers."""
    data: Path
    listen_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cluster: Cluster
    nodes: Annotated[dict[Name, NodeAddress], Field(min_length=1)]
    """Seeds: where the nodes are reached. What the cluster was told since (`ledgermq member`) is remembered beside the data, and wins."""
    join: bool | Literal["spare"] | tuple[Name, ...] = False
    """This node was not there when its broker groups were created (all of them, or those named): it begins no log and no quorum, but waits
    until it is added. `spare`: it keeps no replica until one is moved here or a group is added. It may stay set for ever."""
    raft: Raft = Raft()
    delivery: Delivery = Delivery()
    limits: Limits = Limits()
    retention: Retention = Retention()
    agreement: Agreement = Agreement()
    scrub: Scrub = Scrub()
    flush: Flush = Flush()
    storage: Storage = Storage()
    access: Access = Access()
    tls: Tls = Tls()
    peer_tls: PeerTls = PeerTls()
    quotas: Quotas = Quotas()
    tracing: Tracing = Tracing()
    audit: Audit = Audit()

    @model_validator(mode="after")
    def _check(self) -> NodeConfig:
        members = self.members
        if self.node not in members:
            raise ValueError(f"nodes has no entry for this node, {self.node!r}; known: {', '.join(sorted(self.nodes))}")
        for group in self.cluster.groups:
            for replica in () if self.joins(group.name) else group.replicas:
                if replica not in members:
                    raise ValueError(f"broker group {group.name!r} names the replica {replica!r}, {self._no_such(replica)}")
        known = {group.name: None for group in self.cluster.groups}
        for stranger in self.join if isinstance(self.join, tuple) else ():
            if stranger not in known:
                raise ValueError(f"join names {stranger!r}, which is no broker group; known: {', '.join(known)}")
        if self.join and len(self.nodes) == 1:
            raise ValueError("join needs the nodes of the cluster that this node joins; nodes lists only this one")
        for section, overrides in (("retention", self.retention.groups.keys()), ("flush", self.flush.groups.keys())):
            for stranger in sorted(overrides - known.keys()):
                raise ValueError(f"{section}.groups names {stranger!r}, which is no broker group; known: {', '.join(known)}")
        durable = [group.name for worker in self.workers for group in self.hosted_by(worker) if self.flush.of(group.name) != "memory"]
        if self.storage.append == "pool" and durable:
            policy = self.flush.of(durable[0])
            remedy = "set flush.policy to memory, or storage.append to pwrite or map"
            raise ValueError(f"storage.append pool needs the flush policy memory, but broker group {durable[0]!r} has {policy}: {remedy}")
        self._check_ports(members)
        return self

    def _no_such(self, member: str) -> str:
        """Why a member is unknown, as the end of a sentence."""
        node = node_of(member)
        return "which nodes does not list" if node not in self.nodes else f"but nodes.{node}.workers is {self.nodes[node].workers}"

    @staticmethod
    def _check_ports(members: Mapping[str, NodeAddress]) -> None:
        """No two listen at one place. The workers of a node share its clients' port and its HTTP port."""
        taken: dict[tuple[str, int], tuple[str, str]] = {}
        for name, address in members.items():
            for kind in PORT_KINDS:
                where = (address.host, getattr(address, kind))
                other, its = taken.setdefault(where, (name, kind))
                shared = kind == its and kind in SHARED_PORTS and node_of(name) == node_of(other)
                if (other, its) != (name, kind) and not shared:
                    raise ValueError(f"nodes.{name}.{kind} uses {where[0]}:{where[1]}, as does nodes.{other}.{its}")

    @property
    def members(self) -> dict[str, NodeAddress]:
        """Every member of the cluster by name, as far as it is configured: the nodes, and the further workers of those that have any."""
        return {
            worker_name(node, number): address.of_worker(number)
            for node, address in self.nodes.items()
            for number in range(1, address.workers + 1)
        }

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers of this node by name, whichever of them this process is; the node itself, when it runs as one process."""
        node = node_of(self.node)
        return tuple(worker_name(node, number) for number in range(1, self.nodes[node].workers + 1))

    @property
    def address(self) -> NodeAddress:
        """Where this node itself is reached."""
        return self.members[self.node]

    @property
    def hosted_groups(self) -> tuple[BrokerGroup, ...]:
        """The broker groups of which this node keeps a replica, or is meant to."""
        return self.hosted_by(self.node)

    def hosted_by(self, member: str) -> tuple[BrokerGroup, ...]:
        """The broker groups of one of this node's workers. A joining node has those that it joins on the workers they name, and what names
        none of them spread over all by position: never two replicas of one group."""
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
        """When a broker group was begun: part of its first entry."""
        return self.cluster.created_ms if group.created_ms is None else group.created_ms

    def keeping(self, group: BrokerGroup, *, joins: bool) -> NodeConfig:
        """The same, for a node that keeps a replica of this broker group, whatever the file says: one that was added, or moved here."""
        others = tuple(known for known in self.cluster.groups if known.name != group.name)
        cluster = self.cluster.model_copy(update={"groups": (*others, group)})
        named = {known.name for known in others if self.joins(known.name)} | ({group.name} if joins else set())
        return self.model_copy(update={"cluster": cluster, "join": tuple(sorted(named))})

    def joins(self, group: str) -> bool:
        """Whether a directory of this broker group that is made here must not begin the group's log: others have begun it."""
        return self.join is True or (isinstance(self.join, tuple) and group in self.join)

    @property
    def cluster_id(self) -> str:
        return str(self.cluster.id)

    def secret(self) -> bytes:
        """The cluster secret; stops the node (exit 77) when there is none, or too short a one for the address."""
        secret = self._read_secret()
        if len(secret) < LEAST_SECRET_BYTES:
            raise FatalError(77, f"the cluster secret has {len(secret)} bytes", "make a longer one: openssl rand -hex 32")
        if len(secret) < LEAST_SECRET_BYTES_OPEN and not is_loopback(self.listen_host):
            what = f"listen_host {self.listen_host} is reachable from other machines and the cluster secret has only {len(secret)} bytes"
            raise FatalError(77, what, f"use a secret of at least {LEAST_SECRET_BYTES_OPEN} bytes or listen on 127.0.0.1")
        return secret

    def former_secrets(self) -> tuple[bytes, ...]:
        """Secrets under which users' secrets may still be sealed."""
        path = self.cluster.former_secret_file
        return () if path is None else (_read_secret_file(path, "cluster.former_secret_file"),)

    def _read_secret(self) -> bytes:
        if self.cluster.secret is not None:
            return self.cluster.secret.get_secret_value().encode()
        if self.cluster.secret_file is None:
            raise FatalError(77, "no cluster secret is configured", "set cluster.secret_file or the variable LEDGERMQ_CLUSTER__SECRET")
        return _read_secret_file(self.cluster.secret_file, "cluster.secret_file")

    def check_exposure(self) -> None:
        """Stops the node (exit 77) when other machines could reach the clients' port and nobody is asked who they are."""
        closed = self.access.authentication == "required" or self.tls.proves_clients
        if is_loopback(self.listen_host) or closed or self.access.allow_unauthenticated:
            return
        what = f"listen_host {self.listen_host} is reachable from other machines and authentication is off"
        words = f'access.allow_unauthenticated: "{OPEN_TO_ALL}"'
        raise FatalError(77, what, f"set access.authentication to required, or listen on 127.0.0.1, or say in words: {words}")

    @property
    def http_host(self) -> str:
        """Health and metrics ask nobody who they are: outside this machine only where the configuration says so."""
        said = self.access.allow_unauthenticated or self.access.allow_open_http
        return self.listen_host if said or is_loopback(self.listen_host) else "127.0.0.1"


def _read_secret_file(path: Path, key: str) -> bytes:
    try:
        if path.stat().st_mode & 0o007:
            raise FatalError(77, f"the secret file {path} is open to every user of this machine", f"chmod 600 {path}")
        return path.read_bytes().strip()
    except OSError as error:
        raise FatalError(77, f"the secret file {path} cannot be read ({error.strerror})", f"check {key}") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load(path: Path | None, settings: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> NodeConfig:
    """The configuration from file, environment and `--set`; raises ConfigError with every fault found."""
    tree = _read_file(path) if path is not None else {}
    variables = os.environ if environment is None else environment
    for name, value in sorted(variables.items()):
        if name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX) not in FOREIGN_ENV:
            _assign(tree, name.removeprefix(ENV_PREFIX).lower().split("__"), _scalar(value), f"the variable {name}")
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {setting!r} is not KEY=VALUE", "write for instance --set delivery.liveness_ms=5s")
        _assign(tree, key.split("."), _scalar(value), f"--set {key}")
    return validate(tree)


def validate(tree: Mapping[str, Any]) -> NodeConfig:
    """The configuration from a plain mapping; raises ConfigError with every fault found."""
    try:
        return NodeConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(tree, item) for item in error.errors()), "see: ledgermq config example") from None


def masked(config: NodeConfig) -> dict[str, Any]:
    """Plain values for showing; a secret is replaced by stars."""
    shown: dict[str, Any] = config.model_dump(mode="json")
    if config.cluster.secret is not None:
        shown["cluster"]["secret"] = "********"
    return shown


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the configuration file {path} cannot be read ({reason})", "give the path of a YAML file") from error
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML ({' '.join(str(error).split())})", "see: ledgermq config example") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}, not keys and values", "see: ledgermq config example")
    return tree


def _scalar(text: str) -> Any:
    """A value given as text: YAML for lists, maps, numbers and booleans, otherwise the text itself."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _assign(tree: dict[str, Any], path: Sequence[str], value: Any, origin: str) -> None:
    place = tree
    for part in path[:-1]:
        below = place.setdefault(part, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{origin}: {part!r} has no keys below it", "see: ledgermq config example")
        place = below
    place[path[-1]] = value


def _explain(tree: Mapping[str, Any], item: Any) -> str:
    """One fault in words: the key, the value it has, what would be accepted."""
    location = tuple(part for part in item["loc"] if part != "[key]")
    key = ".".join(str(part) for part in location) or "configuration"
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"accepted here: {', '.join(known)}"
        return f"unknown key {key!r}; {hint}"
    if kind == "missing":
        return f"the key {key!r} is missing"
    if kind == "value_error":
        text = str(context["error"])
        return f"{key}: {text}" if isinstance(item["input"], dict | BaseModel) else f"{key} = {item['input']!r}: {text}"
    value = "********" if location and location[-1] == "secret" else repr(item["input"])
    return f"{key} = {value}: {_accepted(kind, context, item['msg'])}"


def _accepted(kind: str, context: Mapping[str, Any], message: str) -> str:
    phrases = {
        "literal_error": "expected one of {expected}",
        "string_pattern_mismatch": "expected letters, digits, '_' and '-', at most 63, beginning with a letter or digit",
        "greater_than_equal": "expected at least {ge}",
        "less_than_equal": "expected at most {le}",
        "greater_than": "expected more than {gt}",
        "int_parsing": "expected a whole number",
        "int_type": "expected a whole number",
        "int_from_float": "expected a whole number",
        "uuid_parsing": "expected a UUID such as 6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
        "string_type": "expected a text",
        "too_short": "expected at least {min_length} entry",
        "dict_type": "expected keys and values",
        "tuple_type": "expected a list",
        "model_type": "expected keys and values",
        "model_attributes_type": "expected keys and values",
    }
    if kind not in phrases:
        return message[0].lower() + message[1:]
    return phrases[kind].format_map(dict(context))


def _known_keys(location: Iterable[Any]) -> list[str]:
    """The keys accepted at a place, found by walking the model along the location."""
    model: Any = NodeConfig
    for part in location:
        if isinstance(part, int):
            continue
        model = _below(model.model_fields[part].annotation if _is_section(model) and part in model.model_fields else model)
    return sorted(model.model_fields) if _is_section(model) else []


def _below(annotation: Any) -> Any:
    """The section a field leads to, through lists, maps and unions."""
    if _is_section(annotation):
        return annotation
    if get_origin(annotation) is not None:
        for argument in get_args(annotation):
            found = _below(argument)
            if _is_section(found):
                return found
    return annotation


def _is_section(model: Any) -> bool:
    return isinstance(model, type) and issubclass(model, Section)


EXAMPLE = """\
# A node of a three-node cluster. Every key may also be given as LEDGERMQ_<KEY> (levels joined by __, e.g.
# LEDGERMQ_DELIVERY__LIVENESS_MS=30s) or as --set key=value (e.g. --set delivery.liveness_ms=30s); the latter wins.
node: n1                       # this node; must be one of `nodes`
data: ./ledgermq-data/n1       # its directory; created when missing
listen_host: 127.0.0.1         # 0.0.0.0 to be reachable from other machines
log_level: info                # debug, info, warning, error
cluster:
  id: 6f9619ff-8b86-4d01-b42d-00cf4fc964ff   # the same on all nodes; mint one with: uuidgen
  created_ms: 1767225600000                  # the same on all nodes
  secret_file: ./ledgermq-data/secret        # the same content on all nodes, mode 0600; openssl rand -hex 32
  groups:                                    # broker groups as they are created
    - name: g1
      replicas: [n1, n2, n3]
      data_file_bytes: 1GiB                  # fixed when the group is created
      # preferred_leader: n1                 # leads whenever it has kept up for a while
      replication: raft                      # or ha: a master appointed by the controller quorum, with the settings below (docs/ha.md)
      # ack: in-sync                         # or async: the master alone
      # min_in_sync: 2                       # with in-sync: fewer members, and sends are refused
      # in_sync_lag_ms: 10s                  # a slave that lacks something for longer,
      # in_sync_lag_bytes: 64MiB             # or more than this, leaves the in-sync set
      # transfer: push                       # or pull: slaves ask for what is new
      # follower_reads: true                 # replicas that do not lead serve readers that allow it (docs/observers.md),
      # follower_read_age_ms: 2s             # unless what they know is older,
      # follower_pull_bytes: 64MiB           # and answer pulls of official clients that begin so far behind the end of the log
nodes:                         # where every node is reached; workers: 2 makes it two processes (docs/workers.md)
  n1: {host: 127.0.0.1, client_port: 8081, peer_port: 9081, controller_port: 10081, http_port: 11081}
  n2: {host: 127.0.0.1, client_port: 8082, peer_port: 9082, controller_port: 10082, http_port: 11082}
  n3: {host: 127.0.0.1, client_port: 8083, peer_port: 9083, controller_port: 10083, http_port: 11083}
# join: true                   # a node that is added later (ledgermq member add): `nodes` names the present ones and itself
# join: spare                  # the same without a replica of any group, until one is moved there (ledgermq rebalance)
raft:
  heartbeat_ms: 100ms
  election_min_ms: 400ms       # an election timeout is drawn between the two
  election_max_ms: 800ms
  # observer_bytes_per_s: 4MiB # pushed to each observer of a group led here, at most (docs/observers.md); 0: no limit
delivery:
  min_invisible_ms: 1s         # shortest lease a client may ask for
  liveness_ms: 65s             # a client silent for longer loses its automatically renewed leases
  long_poll_max_ms: 20s
limits:
  max_body_bytes: 4MiB
  max_frame_bytes: 1MiB        # entries in a native frame; never more than a quarter of a log file
access:                        # who may call (docs/security.md)
  authentication: none         # required: every call is signed by a user (ledgermq user create); none: only on loopback, unless
  # allow_unauthenticated: "anyone who reaches the port may read and write"
  # allow_open_http: "anyone who reaches the port may read health and metrics"
  ignore_namespaces: false     # true: as the reference server, which knows topics and groups by their plain names only
tls:
  mode: "off"                  # both: TLS and plaintext on the one client port; required: TLS only
  # certificate_file: ./tls/n1.pem     # read again when they change
  # key_file: ./tls/n1.key
  # client_ca_file: ./tls/ca.pem       # clients must have a certificate of it
  # users: {billing-service: billing}  # common name of a client's certificate: the user it stands for
peer_tls:
  mode: "off"                  # required: the nodes speak mutual TLS among each other (certificate_file, key_file, ca_file)
quotas:                        # on each node; 0 = no limit; what is too much is answered with TOO_MANY_REQUESTS
  client: {messages_per_s: 0, bytes_per_s: 0, calls: 0, receives: 0}
  topics: {}                   # by name or pattern, e.g. {"orders*": {messages_per_s: 1000}}; likewise users and groups
  connections: 0
  connections_per_address: 0
  new_connections_per_s: 0     # more than these wait for their turn
tracing:                       # OpenTelemetry spans of sends, receives and acknowledgements; needs: pip install 'ledgermq[tracing]'
  otlp_endpoint: ""            # such as http://127.0.0.1:4317; empty: nothing is exported
  sample_ratio: 1.0            # of the calls whose caller has not decided already
flush:
  policy: durable              # durable, memory or hybrid: what a send's acknowledgement waits for
  groups: {}                   # one broker group otherwise, e.g. {g1: memory}
  interval_ms: 500ms           # messages of the class memory wait this long for their sync when least_pages of 4 KiB are there,
  least_pages: 4
  thorough_ms: 10s             # and never longer than this
storage:
  append: pwrite               # how the log is written: pwrite, map (through the mapped file), pool (buffers; only with flush memory)
  lock_memory: false           # lock the file being written, the next one and the pool (needs a high limit on locked memory)
  pool_buffers: 5              # append: pool only; a broker group takes pool_buffers x pool_buffer_bytes of memory
  pool_buffer_bytes: 8MiB
retention:                     # whole log files go, oldest first; 0 = no such limit
  hours: 72                    # since the file's last message was stored
  max_bytes: 0                 # per broker group, complete files together
  warn_percent: 80             # of the file system: a warning in the log,
  delete_percent: 85           # files go before their time,
  refuse_percent: 90           # clients' messages are refused (all three only with less than ample_bytes free)
  ample_bytes: 20GiB
  reserve_bytes: 8MiB          # per broker group, kept for cleaning up when the disk is full
  follower_hours: 1            # a replica that lacks entries keeps their files until it was silent for so long; 0: for ever
  observer_bytes: 1GiB         # an observer at most so much of them; beyond that it is brought files
audit:
  bytes_per_s: 128MiB          # audits of the running node (ledgermq audit --endpoints) read no faster, and slower while it is busy
agreement:
  check_ms: 500ms              # how often replicas compare the digests of log files that were sealed meanwhile
scrub:                         # the logs are read again, for ever, to find rot
  bytes_per_s: 16MiB           # of all broker groups of this node together; see: ledgermq doctor
  again_hours: 24              # a file that was verified as a whole rests for so long
"""
