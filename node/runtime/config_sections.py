"""The behaviour of a node, in its configuration: one frozen section for each area, with the rules
that hold within the section.

Names carry their units: `…_ms` takes milliseconds or `500ms`, `10s`, `2m`; `…_bytes` takes bytes or
`64KiB`, `64MiB`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from ledgermq.node.runtime.config_types import Bytes, Milliseconds, Name, Section
from ledgermq.storage.files.thresholds import (
    DISK_ALARM_PERCENT,
    DISK_WARN_PERCENT,
    SCRUB_BYTES_PER_S,
)
from ledgermq.storage.log.log_writer import POOL_BUFFER_BYTES, POOL_BUFFERS


class Raft(Section):
    """Timing and windows of replication. Each election timeout is random between election_min_ms
    and election_max_ms. If the leader's heartbeats arrive late, a replica lengthens its timeout, by
    at most four times election_max_ms."""

    heartbeat_ms: Annotated[Milliseconds, Field(ge=5)] = 100
    election_min_ms: Annotated[Milliseconds, Field(ge=20)] = 400
    election_max_ms: Annotated[Milliseconds, Field(ge=20)] = 800
    push_bytes: Annotated[Bytes, Field(ge=4 << 10)] = 1 << 20
    window_bytes: Annotated[Bytes, Field(ge=4 << 10)] = 8 << 20
    observer_bytes_per_s: Bytes = 0
    """Limit for each observer of a broker group led here; 0: no limit."""
    open_batches: Annotated[int, Field(ge=1, le=64)] = 1
    """How many batches of calls may wait for their commit at once. Use more than one if the
    majority is tens of milliseconds away."""

    @model_validator(mode="after")
    def _check(self) -> Raft:
        if not self.heartbeat_ms * 2 <= self.election_min_ms < self.election_max_ms:
            raise ValueError("required: 2 x heartbeat_ms <= election_min_ms < election_max_ms")
        return self


class Clock(Section):
    """By which time a node goes: by its wall clock while a majority of the nodes has the same time,
    otherwise steadily on."""

    max_offset_ms: Annotated[Milliseconds, Field(ge=50, le=3_600_000)] = 1_000
    """Clocks that are further apart do not agree."""


class Delivery(Section):
    """Durations of leases, client liveness and transaction checks (contract §5)."""

    min_invisible_ms: Milliseconds = 1_000
    max_invisible_ms: Milliseconds = 12 * 3_600_000
    auto_renew_max_ms: Milliseconds = 3 * 3_600_000
    liveness_ms: Annotated[Milliseconds, Field(ge=100)] = 65_000
    gone_grace_ms: Milliseconds = 1_000
    member_liveness_ms: Annotated[Milliseconds, Field(ge=100)] = 10_000
    """A member of a native consumer group loses its queues when it has been silent for this
    long."""
    long_poll_max_ms: Annotated[Milliseconds, Field(ge=100)] = 20_000
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 17
    transaction_check_ms: Annotated[Milliseconds, Field(ge=100)] = 6_000
    """A transaction stays undecided for this long before the node asks a producer of its topic
    about it."""
    transaction_interval_ms: Annotated[Milliseconds, Field(ge=100)] = 30_000
    transaction_checks: Annotated[int, Field(ge=1, le=1000)] = 15
    transaction_keep_ms: Annotated[Milliseconds, Field(ge=1_000)] = 72 * 3_600_000
    """A transaction is dropped at this age if no producer could be asked about it, because it keeps
    the log from being trimmed."""
    transactions_max: Annotated[int, Field(ge=1, le=1_000_000)] = 100_000
    """Limit of undecided transactions of a broker group."""

    @model_validator(mode="after")
    def _check(self) -> Delivery:
        if self.min_invisible_ms > self.max_invisible_ms:
            raise ValueError("min_invisible_ms must not exceed max_invisible_ms")
        return self


class Limits(Section):
    """Limits on what one caller or one peer may make a node hold."""

    max_body_bytes: Annotated[Bytes, Field(ge=1, le=4 << 20)] = 4 << 20
    max_frame_bytes: Annotated[Bytes, Field(ge=64 << 10, le=16 << 20)] = 1 << 20
    """Limit of the entries in a native frame, in bytes; never more than a quarter of a log file."""
    max_properties_bytes: Annotated[Bytes, Field(ge=256, le=16 << 10)] = 16 << 10
    max_user_properties: Annotated[int, Field(ge=0, le=128)] = 128
    max_receive_batch: Annotated[int, Field(ge=1, le=32)] = 32
    max_delay_ms: Annotated[Milliseconds, Field(ge=1_000, le=3650 * 86_400_000)] = 24 * 3_600_000
    """How far ahead the delivery time of a message may lie. A delayed message keeps the log from
    being trimmed, for up to three days."""
    max_lite_topics: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    max_lite_subscriptions: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    max_calls: Annotated[int, Field(ge=16)] = 20_000
    buffered_bytes: Annotated[Bytes, Field(ge=192 << 20)] = 512 << 20
    """The most memory that requests and answers of clients take, of each worker. Half of it is for
    answers with messages."""
    connection_bytes: Annotated[Bytes, Field(ge=1 << 20)] = 64 << 20
    """The most memory of answers that the client of one connection has not taken; its further calls
    wait."""
    unread_ms: Annotated[Milliseconds, Field(ge=1_000)] = 60_000
    """A connection that takes nothing for so long, while an answer waits for it, is closed."""
    peer_queue_bytes: Annotated[Bytes, Field(ge=1 << 20)] = 64 << 20
    drain_ms: Milliseconds = 2_000

    @model_validator(mode="after")
    def _check(self) -> Limits:
        if self.connection_bytes > self.buffered_bytes // 2:
            raise ValueError("connection_bytes must not exceed half of buffered_bytes")
        return self


FlushPolicyName = Literal["durable", "memory", "hybrid"]


class Storage(Section):
    """How appended bytes reach the log files, and which of them are locked in memory.

    `pwrite` copies into the kernel's page cache. `map` writes through the mapped file. `pool`
    writes to buffers that a commit thread empties; it needs the flush policy `memory`.
    `lock_memory` locks the current log file, the next one and the pool.
    """

    append: Literal["pwrite", "map", "pool"] = "pwrite"
    lock_memory: bool = False
    pool_buffers: Annotated[int, Field(ge=1, le=1024)] = POOL_BUFFERS
    pool_buffer_bytes: Annotated[Bytes, Field(ge=64 << 10, le=1 << 30)] = POOL_BUFFER_BYTES


class Flush(Section):
    """What the acknowledgement of a send waits for, and how long bytes that no caller waits for may
    stay unsynced. See docs/architecture.md, Durability.

    The settings are not part of a group's identity and may change at any restart. A topic's own
    `durability` overrides them.
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
        """The flush policy of one broker group."""
        return self.groups.get(group, self.policy)


class GroupRetention(Section):
    """Retention settings of one broker group that override the common ones; None: the common
    setting applies."""

    hours: Annotated[float, Field(ge=0, le=1e6)] | None = None
    max_bytes: Bytes | None = None
    ignore_groups: bool | None = None


class Retention(Section):
    """When log files are removed (whole files, oldest first), and what happens as the disk fills
    up. 0 hours or bytes: no such limit.

    A watermark counts as crossed only while less than `ample_bytes` are free as well. Above
    `delete_percent` a node asks for space, and files go early as far as a majority of a group's
    replicas asks; above `refuse_percent` it takes no messages and should not lead. Configured
    consumer groups keep the messages that they have not read, however old, unless `ignore_groups`
    is set or the object store has them (`tiered`). A follower keeps the entries that it lacks until
    it has been silent for `follower_hours` (0: for ever), or until the disks need the space. An
    observer keeps at most `observer_bytes` of the entries that it lacks; beyond that it is
    installed from files.
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
    """Limit for computing the digests of newly sealed files, which gives way to all other work."""
    groups: dict[Name, GroupRetention] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Retention:
        if not self.warn_percent < self.delete_percent < self.refuse_percent:
            raise ValueError("required: warn_percent < delete_percent < refuse_percent")
        return self

    def of(self, group: str) -> GroupRetention:
        """The limits of one broker group, with the common settings filled in."""
        own = self.groups.get(group, GroupRetention())
        return GroupRetention(
            hours=self.hours if own.hours is None else own.hours,
            max_bytes=self.max_bytes if own.max_bytes is None else own.max_bytes,
            ignore_groups=self.ignore_groups if own.ignore_groups is None else own.ignore_groups,
        )


class TotalRetention(Section):
    """What the object store keeps of each broker group's log; 0 hours or bytes: no such limit. What
    local disks hold never goes."""

    hours: Annotated[float, Field(ge=0, le=1e6)] = 0
    max_bytes: Bytes = 0


class Tiered(Section):
    """Where sealed log files go besides this disk (docs/tiered-storage.md): an object store with
    the S3 API. Without `url`, nowhere.

    The section must be the same on all nodes. `credentials_file` has the format of AWS's shared
    credentials and is read again when it changes; without it the credentials come from the
    environment or from the machine's role. A local file stays until this node has verified its copy
    in the store.
    """

    url: Annotated[
        str, Field(pattern=r"^$|^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?$")
    ] = ""
    """`s3://bucket/prefix`; the prefix belongs to one cluster."""
    endpoint: Annotated[str, Field(pattern=r"^$|^https?://[^/\s]+$")] = ""
    """`http://host:port` or `https://host:port` of a server other than AWS's."""
    region: Annotated[str, Field(min_length=1)] = "us-east-1"
    credentials_file: Path | None = None
    ca_file: Path | None = None
    """PEM file of the authorities that signed the server's certificate, besides those that this
    machine trusts. Read at start."""
    bytes_per_s: Annotated[Bytes, Field(ge=64 << 10)] = 64 << 20
    """Limit of this node's reads from the disk for uploads, and of its reads from the store."""
    check_ms: Annotated[Milliseconds, Field(ge=50)] = 1_000
    retry_ms: Annotated[Milliseconds, Field(ge=50)] = 10_000
    """Pause after the store failed or held something wrong."""
    timeout_ms: Annotated[Milliseconds, Field(ge=100)] = 15_000
    """Limit of one request of at most 8 MiB. A node that stops waits for the request under way."""
    cache_bytes: Annotated[Bytes, Field(ge=16 << 20)] = 1 << 30
    """Limit of the files on this disk in which the node keeps what readers need of older data. They
    are removed at the next start."""
    retention: TotalRetention = Field(default_factory=TotalRetention)

    @model_validator(mode="after")
    def _check(self) -> Tiered:
        # A configuration that was read and written again names every default.
        if not self.url and vars(self) != vars(Tiered.model_construct()):
            raise ValueError(
                "tiered needs url, the place in the object store, as s3://bucket/prefix"
            )
        prefix = urlsplit(self.url).path.strip("/")
        if prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/")):
            raise ValueError(
                "the prefix in tiered.url has an empty name, . or .. between its slashes"
            )
        return self


class Audit(Section):
    """Limits for audits of this running node (`ledgermq audit --endpoints`)."""

    bytes_per_s: Annotated[Bytes, Field(ge=1 << 20)] = 128 << 20
    """Read rate of all audits together; they read more slowly while the node is busy."""


class Agreement(Section):
    """How often replicas compare the digests of newly sealed log files
    (`node/replica/maintenance/digest_exchange.py`)."""

    check_ms: Annotated[Milliseconds, Field(ge=50, le=86_400_000)] = 500


class Scrub(Section):
    """How fast this node rereads its logs to find rot (`node/replica/background/scrubbing.py`).
    Broker groups share the rate evenly.

    At the default rate a pass over 9 TiB takes a week and uses a twentieth of a disk that reads 320
    MiB/s.
    """

    bytes_per_s: Annotated[Bytes, Field(ge=64 << 10)] = SCRUB_BYTES_PER_S
    again_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 24
    """Pause after a file was completely verified. The file that was verified longest ago is
    next."""


Collector = Annotated[str, Field(pattern=r"^$|^https?://[^/\s]+$")]
"""A collector that speaks OTLP over gRPC, as `http://host:4317`; empty: nothing is exported."""


class Metrics(Section):
    """Bounds of the metrics by topic and consumer group (`node/process/telemetry/topic_figures.py`), and
    their export by OTLP (`node/process/telemetry/otlp_metrics.py`)."""

    series_max: Annotated[int, Field(ge=0, le=1_000_000)] = 20_000
    """How many series there are at most for topics and consumer groups. What does not fit is left
    out and counted."""
    otlp_endpoint: Collector = ""
    otlp_interval_ms: Annotated[Milliseconds, Field(ge=1_000)] = 60_000


class Tracing(Section):
    """Where OpenTelemetry spans of client calls go (`node/process/telemetry/tracing.py`)."""

    otlp_endpoint: Collector = ""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The sampled share of the calls whose caller has not decided about sampling."""
