"""The Prometheus metrics of a node, declared in one place with their meaning.

The code that does the work updates histograms and counters. Gauges that mirror the state of groups are collected when `/metrics` is read
(`http.py`). Names end in their unit.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_ENTRIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000)
_BYTES = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)

SYNC_SECONDS = Histogram("ledgermq_sync_seconds", "Duration of one group commit (fdatasync).", ["group"], buckets=_FAST, registry=REGISTRY)
SYNC_ENTRIES = Histogram(
    "ledgermq_sync_batch_entries", "Entries that one group commit made durable.", ["group"], buckets=_ENTRIES, registry=REGISTRY
)
SYNC_BYTES = Histogram(
    "ledgermq_sync_batch_bytes", "Bytes of entries that one group commit made durable.", ["group"], buckets=_BYTES, registry=REGISTRY
)
SLOW_SYNCS = Counter(
    "ledgermq_slow_syncs_total", "Group commits slower than a threshold of storage/thresholds.py.", ["group", "severity"], registry=REGISTRY
)
TURN_SECONDS = Histogram("ledgermq_turn_seconds", "Duration of one turn of a broker group.", ["group"], buckets=_FAST, registry=REGISTRY)
FORWARDED_CALLS = Counter(
    "ledgermq_forwarded_calls_total",
    "Client calls that this node forwarded to another leader, by result.",
    ["group", "result"],
    registry=REGISTRY,
)
EXECUTED_CALLS = Counter(
    "ledgermq_executed_calls_total", "Client calls that this node executed as leader for another node.", ["group"], registry=REGISTRY
)
PEER_PACKETS_DROPPED = Counter(
    "ledgermq_peer_packets_dropped_total", "Replication packets dropped because a peer's queue was full.", ["peer"], registry=REGISTRY
)
PEER_PACKETS_BARRED = Counter(
    "ledgermq_peer_packets_barred_total",
    "Replication packets refused because the sender's data directory is not the one that its broker group knows.",
    ["peer", "group"],
    registry=REGISTRY,
)
PEER_REFUSALS = Counter(
    "ledgermq_peer_refusals_total", "Peer connections refused during the greeting, by reason.", ["reason"], registry=REGISTRY
)
PEER_CONNECTS = Counter("ledgermq_peer_connects_total", "Established outgoing streams to a peer.", ["peer"], registry=REGISTRY)
RECOVERY_SECONDS = Gauge(
    "ledgermq_recovery_seconds", "Duration of the last start of a broker group, by phase.", ["group", "phase"], registry=REGISTRY
)
GROUP_STATE = Gauge(
    "ledgermq_group_state",
    "1 for the current state of a hosted broker group (node/replica/hosting/hosting.py).",
    ["group", "state"],
    registry=REGISTRY,
)
DAMAGED_RANGES = Counter(
    "ledgermq_damaged_ranges_total", "Committed ranges found damaged on this disk, at a start or by a read.", ["group"], registry=REGISTRY
)
SCRUBBED_BYTES = Counter(
    "ledgermq_scrubbed_bytes_total", "Bytes of the log at rest that were reread and verified.", ["group"], registry=REGISTRY
)
AUDIT_READ_BYTES = Counter("ledgermq_audit_read_bytes_total", "Bytes read for audits of this running node.", ["group"], registry=REGISTRY)
SCRUBBED_FILES = Counter(
    "ledgermq_scrubbed_log_files_total", "Log files that were reread completely and found intact.", ["group"], registry=REGISTRY
)
REBUILT_BYTES = Counter(
    "ledgermq_rebuilt_bytes_total", "Bytes of a broker group fetched from peers, by kind.", ["group", "kind"], registry=REGISTRY
)
REBUILDS = Counter(
    "ledgermq_rebuilds_total", "Successful repairs and installations of a broker group, by kind.", ["group", "kind"], registry=REGISTRY
)
SHIPPING_DROPPED = Counter(
    "ledgermq_shipping_requests_dropped_total",
    "Peers' requests for files dropped because too many were waiting.",
    ["group"],
    registry=REGISTRY,
)

HA_WISHES = Counter(
    "ledgermq_ha_wishes_total",
    "Requests of this node's HA replicas to the controller quorum (`elect` or `alter`): granted, refused or unanswered.",
    ["group", "kind", "outcome"],
    registry=REGISTRY,
)
FOLLOWER_RESTARTS = Counter(
    "ledgermq_follower_restarts_total",
    "Followers that answered this leader without making progress, so that the leader searched for their log position again.",
    ["group", "follower"],
    registry=REGISTRY,
)
DIGEST_FAILURES = Counter(
    "ledgermq_digest_failures_total",
    "Sealed log files of this node that could not be read to compute their digest.",
    ["group"],
    registry=REGISTRY,
)
DIGEST_MISMATCHES = Gauge(
    "ledgermq_digest_mismatches",
    "Sealed log files of this node whose digest differs from the majority's.",
    ["group"],
    registry=REGISTRY,
)
DISPUTED_FILES = Gauge(
    "ledgermq_disputed_log_files",
    "Sealed log files for which no majority of the replicas has the same digest. Reported by the group's leader.",
    ["group"],
    registry=REGISTRY,
)
AGREEMENT_SECONDS = Histogram(
    "ledgermq_agreement_seconds",
    "Time from the leader's detection of a sealed log file to the record of its majority digest.",
    ["group"],
    buckets=(0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0),
    registry=REGISTRY,
)
UNVERIFIED_SECONDS = Gauge(
    "ledgermq_oldest_unverified_seconds",
    "Age of the least recently verified byte of the log on this disk, since it was verified or written.",
    ["group"],
    registry=REGISTRY,
)
FILES_TRIMMED = Counter(
    "ledgermq_log_files_trimmed_total", "Log files that retention removed from this disk.", ["group"], registry=REGISTRY
)
FILES_KEPT = Gauge(
    "ledgermq_log_files_kept",
    "Log files by the reason why they are kept; a due file counts once per reason. Reported by the group's leader.",
    ["group", "reason"],
    registry=REGISTRY,
)
DISK_BYTES = Gauge("ledgermq_disk_bytes", "Allocated disk blocks of a broker group, in bytes.", ["group", "kind"], registry=REGISTRY)
DISK_LEVEL = Gauge(
    "ledgermq_disk_level", "Crossed watermark of this disk: 0 none, 1 warn, 2 files removed early, 3 writes refused.", registry=REGISTRY
)
TRANSACTION_CHECKS = Counter(
    "ledgermq_transaction_checks_total",
    "Checks of undecided transactions: sent, lost, or impossible because no producer of the topic is connected.",
    ["group", "result"],
    registry=REGISTRY,
)
TRANSACTIONS_DROPPED = Counter(
    "ledgermq_transactions_dropped_total",
    "Transactions dropped without a decision of the producer, by reason.",
    ["group", "reason"],
    registry=REGISTRY,
)
KEY_INDEX_LAG_ENTRIES = Gauge(
    "ledgermq_key_index_lag_entries", "Applied entries that a search by key does not find yet.", ["group"], registry=REGISTRY
)
KEY_INDEX_LAG_SECONDS = Gauge(
    "ledgermq_key_index_lag_seconds", "Store time between the last applied and the last indexed entry.", ["group"], registry=REGISTRY
)
LOOKUP_SECONDS = Histogram(
    "ledgermq_lookup_seconds", "Duration of one search by key in the key index and the log.", ["group"], buckets=_FAST, registry=REGISTRY
)

AUTHENTICATION_FAILURES = Counter(
    "ledgermq_authentication_failures_total", "Calls whose caller could not be authenticated, by reason.", ["reason"], registry=REGISTRY
)
CALLS_LEFT = Counter("ledgermq_calls_left_total", "Calls whose client disconnected before the whole answer was written.", registry=REGISTRY)
PERMISSIONS_DENIED = Counter("ledgermq_permissions_denied_total", "Calls of users without the required permission.", registry=REGISTRY)
OVER_QUOTA = Counter(
    "ledgermq_over_quota_total", "Calls answered with TOO_MANY_REQUESTS because of a quota, by kind of quota.", ["kind"], registry=REGISTRY
)
FRONT_CONNECTIONS = Gauge("ledgermq_front_connections", "Open client connections, if the port's front end counts them.", registry=REGISTRY)
FETCH_STREAMS = Gauge("ledgermq_fetch_streams", "Native readers of a broker group led here.", ["group"], registry=REGISTRY)
JOIN_STREAMS = Gauge("ledgermq_join_streams", "Members of native consumer groups that this node coordinates.", registry=REGISTRY)
FETCHED_BYTES = Counter(
    "ledgermq_fetched_bytes_total",
    "Bytes of entries sent to native readers, by source: recent (memory), waiting (the turns), cold (files).",
    ["group", "source"],
    registry=REGISTRY,
)
FETCHED_MESSAGES = Counter(
    "ledgermq_fetched_messages_total", "Entries sent to native readers, by source.", ["group", "source"], registry=REGISTRY
)
FETCH_SKIPPED = Counter(
    "ledgermq_fetch_skipped_total", "Messages that retention removed before a native reader reached them.", ["group"], registry=REGISTRY
)
FETCH_CREDIT_WAITS = Counter(
    "ledgermq_fetch_credit_waits_total", "How often a native reader was out of credit.", ["group"], registry=REGISTRY
)
CONNECTIONS_REFUSED = Counter(
    "ledgermq_connections_refused_total",
    "Client connections that the port's front end closed, by reason.",
    ["reason"],
    registry=REGISTRY,
)

UNREADABLE_BODIES = Counter(
    "ledgermq_unreadable_bodies_total",
    "Compressed bodies that contradict their record and were delivered as stored.",
    registry=REGISTRY,
)
NATIVE_STREAMS = Gauge("ledgermq_native_streams", "Open streams of the Log service, by method.", ["method"], registry=REGISTRY)
NATIVE_FRAMES = Counter("ledgermq_native_frames_total", "Native frames stored and acknowledged.", ["group"], registry=REGISTRY)
NATIVE_MESSAGES = Counter("ledgermq_native_messages_total", "Messages of those frames.", ["group"], registry=REGISTRY)
NATIVE_BYTES = Counter("ledgermq_native_bytes_total", "Bytes of the entries of those frames.", ["group"], registry=REGISTRY)
NATIVE_DUPLICATES = Counter(
    "ledgermq_native_duplicates_total", "Native frames that were sent again after they had been stored.", ["group"], registry=REGISTRY
)
NATIVE_REJECTIONS = Counter(
    "ledgermq_native_rejections_total",
    "Native frames rejected without storing anything, by reason.",
    ["group", "reason"],
    registry=REGISTRY,
)
NATIVE_FRAME_SECONDS = Histogram(
    "ledgermq_native_frame_seconds", "Time from the arrival of a native frame to its answer.", ["group"], buckets=_FAST, registry=REGISTRY
)
