"""The cluster's answers as plain frozen values: one class for each kind of object.

An unknown value is None, never 0 or -1. Names of topics and consumer groups are `name`, or
`namespace@name`. Moments are datetimes in UTC. Nothing here calls or converts anything;
`reading.py` builds these values from the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ledgermq.proto.types import Backoff

OF = "of"


def _of(name: str) -> Mapping[str, str]:
    """The metadata of a field that has another name in admin.proto."""
    return {OF: name}


@dataclass(frozen=True, slots=True)
class Queue:
    """One message queue of a topic. `queue` counts over all broker groups, `group_queue` within its
    own group."""

    queue: int
    broker_group: str
    group_queue: int
    min_offset: int | None
    """The first offset on the disks of the node that answered."""
    max_offset: int | None
    """The offset of the next message."""
    stored_offset: int | None = None
    """The first offset that can be read, from the object store; None without tiered storage, or if
    it could not be told."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its settings, and its number of messages."""

    name: str = field(metadata=_of("topic"))
    kind: str
    queues: int
    permission: str
    durability: str | None
    """high, memory or hybrid; None: the default of its broker groups."""
    dedup_ms: int
    messages: int | None
    queue_list: tuple[Queue, ...]
    """Empty in `status()` and `topics()`."""


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A consumer group's progress in one queue."""

    topic: str
    broker_group: str
    group_queue: int
    cursor: int | None
    """The lowest offset that was never leased."""
    leased: int | None
    lag: int | None
    max_offset: int | None
    queue: int | None
    """Its number over all broker groups; None if its topic was deleted."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group. `configured`: it was created explicitly, not by use."""

    name: str = field(metadata=_of("group"))
    max_attempts: int
    fifo: bool
    broadcast: bool
    configured: bool
    backoff: Backoff | None
    """None: the backoff steps of the contract."""
    lite_topic: str | None
    clients: int | None
    queues: tuple[GroupQueue, ...]


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The unconsumed messages of one queue. All numbers of one broker group are from the same
    applied state."""

    queue: int
    broker_group: str
    group_queue: int
    cursor: int | None
    end: int | None
    lag: int | None
    """Never leased."""
    leased: int | None
    """Leased but not acknowledged."""
    oldest_age_ms: int | None
    """None also when no message waits."""


@dataclass(frozen=True, slots=True)
class PartLag:
    """The unconsumed messages of one client of a broadcasting group, or of one lite topic."""

    client: str | None
    lite_topic: str | None
    lag: int
    leased: int
    oldest_age_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The unconsumed messages of one topic: sums, None while one of the queues is unknown."""

    topic: str
    lag: int | None
    leased: int | None
    oldest_age_ms: int | None
    queues: tuple[QueueLag, ...]
    parts: tuple[PartLag, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a consumer group continues in one queue."""

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
    native: str | None
    """The version of ledgermq-native, if the process uses it."""
    level_max: int | None
    """The highest feature level that its program reads; None for programs that read level 1
    only."""
    clock: str | None
    """What the node knows of its wall clock: `agreed` with a majority of the nodes, `uncertain`,
    `off` or `divided`; None in programs that do not compare clocks."""
    clock_offset_ms: int | None
    """Its wall clock less the time that the node goes by."""
    disk: str | None
    """`fine`, or its crossed watermark: `warn`, `delete`, or `full` if it takes no messages; None
    in programs that do not tell."""
    peer_failures: tuple[str, ...]
    """Why it has no connection to a peer, a sentence for each peer where somebody must change
    something."""


@dataclass(frozen=True, slots=True)
class FinishedUpgrade:
    """All broker groups and the cluster have a feature level."""

    level: int
    raised: tuple[str, ...]
    """The broker groups that this call raised, in order; empty if all of them had the level."""
    changed: bool
    """Whether this call raised anything, be it only the level of the cluster."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Why a replica does not run, and the progress of its repair."""

    reason: str
    source: str | None
    done_bytes: int | None
    total_bytes: int | None
    remaining_ms: int | None


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The catch-up progress of a follower, as seen by its leader."""

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
    """For a learner or observer: the age of the first entry that it lacks; 0: it lacks none."""


@dataclass(frozen=True, slots=True)
class Tiered:
    """What of a replica's sealed log files its node has not verified in the object store yet, and
    what it can read there."""

    verified_pos: int
    waiting_files: int
    waiting_bytes: int
    waits_for: str | None
    """What the first of them waits for; None while nothing waits."""
    stored_files: int
    stored_bytes: int
    stored_from_index: int | None
    """The first log entry that this node can read in the store."""
    unreadable: str | None
    """Why this node cannot read the store to its first file yet; None if it can."""
    not_removed: str | None
    """What the removal of old files from the store waits for; None if for nothing."""


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
    """Sealed log files, by first position, whose bytes on this replica differ from what a majority
    sealed."""
    unverified_ms: int | None
    """The longest time since a byte of the log was last read and verified."""
    tiered: Tiered | None
    """None without tiered storage."""


@dataclass(frozen=True, slots=True)
class HaGroup:
    """The additional state of an HA group. `ack`: async or in-sync; `transfer`: push or pull;
    `in_sync` is empty while unknown."""

    epoch: int | None
    in_sync: tuple[str, ...]
    min_in_sync: int
    ack: str
    transfer: str
    short: str | None
    """Why nothing can be committed with the current in-sync set, and what to do."""


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """One replicated log and its replicas."""

    name: str = field(metadata=_of("group"))
    leader: str | None
    term: int | None
    commit_index: int | None
    replicas: tuple[Replica, ...]
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    observers: tuple[str, ...]
    """The learners that never vote."""
    files_kept: Mapping[str, int]
    disputed_files: tuple[int, ...]
    """Sealed log files, by first position, that differ between the replicas without a majority for
    any version."""
    replication: str | None
    """raft or ha, or during a change for example `raft to ha`."""
    ha: HaGroup | None
    level: int | None
    """The feature level, as the newest replica that answers has applied it."""
    store_time_ahead_ms: int | None
    """How far the newest store time is ahead of the leader's clock, if by more than a minute."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A log of which everything that was committed is sealed: the last entry of that, the number of
    sealed files, and the first entry behind them."""

    through: int
    size: int
    next_index: int


@dataclass(frozen=True, slots=True)
class TimeEpoch:
    """A time epoch that began: the newest store time before, and that with which it began."""

    before: datetime = field(metadata=_of("before_ms"))
    began: datetime = field(metadata=_of("ms"))


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of the cluster. `health`: ok, degraded (something is missing) or down (a group has
    no leader)."""

    cluster_id: str | None
    health: str
    nodes: tuple[Node, ...]
    groups: tuple[BrokerGroup, ...]
    topics: tuple[Topic, ...]
    level: int | None
    """The feature level of the cluster; None from a node whose program reads level 1 only."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a node, each as host:port."""

    client: str
    peer: str
    controller: str
    http: str


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """A node's replica in one broker group. `role`: voter, learner or observer; None: not a member
    (yet, or any more). `lag_ms`, for a learner or observer: the age of the first entry that it
    lacks."""

    broker_group: str
    node: str | None
    role: str | None
    lag_entries: int | None
    seconds_left: float | None
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A node as member of the cluster."""

    node: str
    addresses: Addresses
    state: str
    up: bool
    controller: bool
    """Whether it votes in the controller quorum."""
    groups: tuple[MemberProgress, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was read without consuming it."""

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
    """Set while the message is not visible yet; then its queue and offset are not known."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a consumer group has given up."""

    message: Message
    """As it lies in the dead-letter topic: `stored` is when it was given up."""
    state: str
    """waiting, resent, purged, or orphaned: it cannot be resent, because the original message or
    the group's position is gone."""
    topic: str | None
    """The topic of the original message; None for a message that a client sent to the dead-letter
    topic."""
    group_queue: int
    offset: int
    client: str | None
    """The client of a broadcasting group that gave it up."""
    body_bytes: int
    tries: int
    """How often the group itself received it from the dead-letter topic and did not acknowledge it,
    as far as the cluster remembers."""
    queue: int | None
    """The number of the original message's queue over all broker groups; None if its topic was
    deleted."""


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """How many dead letters a consumer group has, as far as retention kept them."""

    group: str
    unsettled: int
    resent: int
    purged: int
    oldest: datetime | None = field(metadata=_of("oldest_ms"))
    """When the oldest one that is not settled was given up."""


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """Where a message waits."""

    broker_group: str
    fire_ms: int
    offset: int
    message_id: str


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A delayed message, or a half message of an undecided transaction."""

    message: Message
    place: WaitingPlace
    checks: int
    """How often a producer was asked about a half message."""


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How far a broker group's key index is behind the applied log."""

    broker_group: str
    indexed_to: int
    applied_to: int


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a query. While `lagging` is not empty, the newest messages may be missing."""

    messages: tuple[Message, ...]
    lagging: tuple[IndexProgress, ...]


@dataclass(frozen=True, slots=True)
class ReplicaCopy:
    """A message on one replica. `state`: present, missing or different; None: the node did not
    answer."""

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
    """One consumer group's progress with a message."""

    group: str
    state: str | None
    """`not delivered yet`, `waiting` (for an earlier message of its message group), `leased`,
    `visible again` or `done`: acknowledged, passed over by the filter, skipped or given up. `trace`
    tells which."""
    attempt: int | None
    client: str | None


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """Where a message is stored, and what each consumer group has done with it."""

    copies: tuple[ReplicaCopy, ...]
    consumption: tuple[Consumption, ...]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event of a message, from a record of the log: stored, leased, acknowledged, …"""

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
    """An explanation: a sentence, the reason as one word, and the evidence."""

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
    """The number of valid secrets: two while the secret is being changed."""
    grants_of_roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """A node, or a worker of a node, as it sees itself."""

    node: str
    version: str | None
    native: str | None
    """The version of ledgermq-native that it uses; None without it."""
    pid: int
    started: datetime | None = field(metadata=_of("started_ms"))
    resident_bytes: int | None
    open_files: int | None
    open_files_max: int | None
    client_connections: int | None
    """None: the server of its client port does not count them."""
    telemetry_streams: int
    native_streams: int
    peers: tuple[str, ...]
    connected_peers: tuple[str, ...]
    configuration: str | None
    """As JSON, with the secrets masked; None: not asked for."""
    log: tuple[str, ...]
    """Lines of JSON, the oldest first; long ones are cut."""


@dataclass(frozen=True, slots=True)
class Move:
    """A replica that is being moved."""

    from_node: str
    to_node: str


@dataclass(frozen=True, slots=True)
class BrokerGroupPlacement:
    """A broker group as it is meant to be: where its replicas are, who is meant to lead, and the
    move that is under way."""

    name: str = field(metadata=_of("broker_group"))
    replicas: tuple[str, ...]
    leader: str | None
    preferred: str | None
    replication: str
    queues: int
    move: Move | None


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """How far the move of a replica is. `step`: open, catch-up, promote, hand-over, remove or
    done."""

    done: bool
    step: str
    waits_for: str | None
    left_directory: str | None
    """What stays on the former node's disk."""


@dataclass(frozen=True, slots=True)
class RebalanceStep:
    """One step of a plan that balances the cluster. `kind`: move-replica, move-leader or
    add-queues."""

    kind: str
    broker_group: str
    from_node: str | None
    to_node: str | None
    topic: str | None
    queues: int
    """How many the topic has in the broker group afterwards."""
    reason: str


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """What would balance the cluster, in the order in which it is to be done. `notes`: what stays
    as it is, and why."""

    steps: tuple[RebalanceStep, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Client:
    """A producer or consumer, as known to one node."""

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
    shared: bool
    """Whether the node has met several processes with this client id."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of the cluster. `unreachable`: nodes whose clients are missing from the list."""

    clients: tuple[Client, ...]
    unreachable: tuple[str, ...]
