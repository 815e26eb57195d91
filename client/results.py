"""What the cluster answers, as plain frozen values: one class for each kind of thing.

A value that nobody knows is None, never 0 or -1. Names of topics and consumer groups are `name`, or `namespace@name`. Moments are datetimes
in UTC. Nothing here calls or converts anything; `reading.py` makes these from the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ledgermq.proto.types import Backoff

OF = "of"


def _of(name: str) -> Mapping[str, str]:
    """Of a value that is called otherwise in admin.proto."""
    return {OF: name}


@dataclass(frozen=True, slots=True)
class Queue:
    """One message queue of a topic. `queue` counts over all broker groups, `group_queue` within its own."""

    queue: int
    broker_group: str
    group_queue: int
    min_offset: int | None
    max_offset: int | None
    """The offset the next message will get."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its settings, and how many messages it holds."""

    name: str = field(metadata=_of("topic"))
    kind: str
    queues: int
    permission: str
    durability: str | None
    """high, memory or hybrid; None: as the broker groups have it."""
    dedup_ms: int
    messages: int | None
    queue_list: tuple[Queue, ...]
    """Only `topic()` tells them."""


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """How far a consumer group is in one queue."""

    topic: str
    broker_group: str
    group_queue: int
    cursor: int | None
    """The next offset never leased."""
    leased: int | None
    lag: int | None
    max_offset: int | None


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group. `configured`: it was created, not just used."""

    name: str = field(metadata=_of("group"))
    max_attempts: int
    fifo: bool
    broadcast: bool
    configured: bool
    backoff: Backoff | None
    """None: the steps of the contract."""
    lite_topic: str | None
    clients: int | None
    queues: tuple[GroupQueue, ...]


@dataclass(frozen=True, slots=True)
class QueueLag:
    """What waits in one queue. The numbers of one broker group come from one applied state."""

    queue: int
    broker_group: str
    group_queue: int
    cursor: int | None
    end: int | None
    lag: int | None
    """Never leased."""
    leased: int | None
    """Leased and not acknowledged."""
    oldest_age_ms: int | None
    """None also when nothing waits."""


@dataclass(frozen=True, slots=True)
class PartLag:
    """What one client of a broadcasting group has not got, or what waits in one lite topic."""

    client: str | None
    lite_topic: str | None
    lag: int
    leased: int
    oldest_age_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicLag:
    """What waits in one topic: sums, None while one of the queues is unknown."""

    topic: str
    lag: int | None
    leased: int | None
    oldest_age_ms: int | None
    queues: tuple[QueueLag, ...]
    parts: tuple[PartLag, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a consumer group reads on in one queue."""

    queue: int
    broker_group: str
    group_queue: int
    cursor: int


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the cluster."""

    node: str
    endpoint: str | None
    up: bool
    version: str | None
    disk_used_bytes: int | None
    disk_free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Why a replica does not run, and how far its repair is."""

    reason: str
    source: str | None
    done_bytes: int | None
    total_bytes: int | None
    remaining_ms: int | None


@dataclass(frozen=True, slots=True)
class CatchUp:
    """How a follower comes on, as its leader sees it."""

    state: str
    behind_entries: int | None
    behind_bytes: int | None
    entries_per_s: float | None
    bytes_per_s: float | None
    seconds_left: float | None
    restarts: int
    silent_ms: int | None
    note: str | None
    lag_ms: int | None
    """Of a learner or observer: how long ago the first entry was stored that it lacks; 0: it lacks none."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One node's copy of a broker group's log."""

    node: str
    role: str | None
    state: str | None
    begin_index: int | None
    end_index: int | None
    durable_index: int | None
    commit_index: int | None
    lag_entries: int | None
    fenced: str | None
    disk_bytes: Mapping[str, int]
    rebuild: Rebuild | None
    catch_up: CatchUp | None
    differing_files: tuple[int, ...]
    """Sealed log files, by their first position, whose bytes here are not what a majority sealed."""
    unverified_ms: int | None
    """How long ago the byte that waits longest was last read and verified."""


@dataclass(frozen=True, slots=True)
class HaGroup:
    """What an HA group has besides. `ack`: async or in-sync; `transfer`: push or pull; `in_sync` is empty while nobody knows."""

    epoch: int | None
    in_sync: tuple[str, ...]
    min_in_sync: int
    ack: str
    transfer: str
    short: str | None
    """Why nothing can be committed while so few are in sync, and what to do."""


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """One replicated log and who holds it."""

    name: str = field(metadata=_of("group"))
    leader: str | None
    term: int | None
    commit_index: int | None
    replicas: tuple[Replica, ...]
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    observers: tuple[str, ...]
    """Those learners that never vote."""
    files_kept: Mapping[str, int]
    disputed_files: tuple[int, ...]
    """Sealed log files, by their first position, that the replicas hold differently without a majority for any."""
    replication: str | None
    """raft or ha, or what it is changing to, as `raft to ha`."""
    ha: HaGroup | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Everything at a glance. `health`: ok, degraded (something is missing) or down (some group has no leader)."""

    cluster_id: str | None
    health: str
    nodes: tuple[Node, ...]
    groups: tuple[BrokerGroup, ...]
    topics: tuple[Topic, ...]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a node is reached, each as host:port."""

    client: str
    peer: str
    controller: str
    http: str


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """A node's replica in one broker group. `role`: voter, learner or observer; None: none yet, or none any more. `lag_ms`: of the last
    two, how long ago the first entry was stored that it lacks."""

    broker_group: str
    node: str | None
    role: str | None
    lag_entries: int | None
    seconds_left: float | None
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A node as part of the cluster."""

    node: str
    addresses: Addresses
    state: str
    up: bool
    controller: bool
    """It votes in the controller quorum."""
    groups: tuple[MemberProgress, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was looked at, not consumed."""

    message_id: str | None
    topic: str
    queue: int
    offset: int
    tag: str | None
    keys: tuple[str, ...]
    message_group: str | None
    properties: Mapping[str, str]
    body: bytes
    body_encoding: str | None
    attempt: int | None
    born: datetime | None = field(metadata=_of("born_ms"))
    stored: datetime | None = field(metadata=_of("store_ms"))
    broker_group: str
    group_queue: int
    delayed_until: datetime | None = field(metadata=_of("delayed_until_ms"))
    """Set while it is not visible yet; its queue and offset are not known then."""


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How far the key index of a broker group is behind what was applied."""

    broker_group: str
    indexed_to: int
    applied_to: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a query found. While `lagging` is not empty the newest messages may be missing."""

    messages: tuple[Message, ...]
    lagging: tuple[IndexProgress, ...]


@dataclass(frozen=True, slots=True)
class ReplicaCopy:
    """A message on one replica. `state`: present, missing or different; None: the node did not answer."""

    node: str
    state: str | None
    file: str | None
    position: int | None
    size: int | None
    index: int | None
    term: int | None
    chain_crc: int | None
    sha256: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Consumption:
    """What one consumer group has done with a message."""

    group: str
    state: str | None
    attempt: int | None
    client: str | None


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """Where a message lies, and what became of it."""

    copies: tuple[ReplicaCopy, ...]
    consumption: tuple[Consumption, ...]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened to a message, as a record of the log says: stored, leased, acknowledged, …"""

    broker_group: str
    index: int
    stored: datetime = field(metadata=_of("store_ms"))
    kind: str
    group: str | None
    attempt: int | None
    client: str | None
    duration_ms: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why something is as it is: a sentence, the reason as a word, and what it is known from."""

    answer: str
    reason: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class User:
    """A user, or a role (which has no secret)."""

    name: str
    role: bool
    grants: tuple[str, ...]
    roles: tuple[str, ...]
    secrets: int
    """How many are valid: two while the secret is being changed."""
    grants_of_roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Client:
    """A producer or consumer as one node knows it."""

    client_id: str
    node: str
    connected: bool
    type: str | None
    group: str | None
    topics: tuple[str, ...]
    language: str | None
    version: str | None
    hostname: str | None
    silent_ms: int


@dataclass(frozen=True, slots=True)
class Clients:
    """Who uses the cluster. `unreachable`: nodes whose clients are not among them."""

    clients: tuple[Client, ...]
    unreachable: tuple[str, ...]
