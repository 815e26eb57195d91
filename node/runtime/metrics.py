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
    "ledgermq_sync_batch_entries", "Entries one group commit made durable.", ["group"], buckets=_ENTRIES, registry=REGISTRY
)
SYNC_BYTES = Histogram(
    "ledgermq_sync_batch_bytes", "Bytes of entries one group commit made durable.", ["group"], buckets=_BYTES, registry=REGISTRY
)
SLOW_SYNCS = Counter(
    "ledgermq_slow_syncs_total", "Group commits above a threshold of storage/thresholds.py.", ["group", "severity"], registry=REGISTRY
)
TURN_SECONDS = Histogram("ledgermq_turn_seconds", "Duration of one turn of a broker group.", ["group"], buckets=_FAST, registry=REGISTRY)
FORWARDED_CALLS = Counter(
    "ledgermq_forwarded_calls_total", "Client calls this node sent to another leader, by result.", ["group", "result"], registry=REGISTRY
)
EXECUTED_CALLS = Counter(
    "ledgermq_executed_calls_total", "Client calls this node executed as leader for another node.", ["group"], registry=REGISTRY
)
PEER_PACKETS_DROPPED = Counter(
    "ledgermq_peer_packets_dropped_total", "Replication packets dropped because a peer's queue was full.", ["peer"], registry=REGISTRY
)
PEER_PACKETS_BARRED = Counter(
    "ledgermq_peer_packets_barred_total",
    "Replication packets not taken because the sender's data directory is not the one its broker group knows.",
    ["peer", "group"],
    registry=REGISTRY,
)
PEER_REFUSALS = Counter("ledgermq_peer_refusals_total", "Greetings refused on the peer port, by reason.", ["reason"], registry=REGISTRY)
PEER_CONNECTS = Counter("ledgermq_peer_connects_total", "Outgoing streams to a peer that were established.", ["peer"], registry=REGISTRY)
RECOVERY_SECONDS = Gauge(
    "ledgermq_recovery_seconds", "Duration of the last start of a broker group, by phase.", ["group", "phase"], registry=REGISTRY
)
GROUP_STATE = Gauge(
    "ledgermq_group_state",
    "1 for the state of a hosted broker group (node/replica/hosting/hosting.py).",
    ["group", "state"],
    registry=REGISTRY,
)
DAMAGED_RANGES = Counter(
    "ledgermq_damaged_ranges_total", "Committed ranges found damaged on this disk, at a start or by a read.", ["group"], registry=REGISTRY
)
SCRUBBED_BYTES = Counter(
    "ledgermq_scrubbed_bytes_total", "Bytes of the log read again and verified, at rest.", ["group"], registry=REGISTRY
)
AUDIT_READ_BYTES = Counter("ledgermq_audit_read_bytes_total", "Bytes read for audits of this running node.", ["group"], registry=REGISTRY)
SCRUBBED_FILES = Counter(
    "ledgermq_scrubbed_log_files_total", "Log files read again as a whole and found as they were written.", ["group"], registry=REGISTRY
)
REBUILT_BYTES = Counter(
    "ledgermq_rebuilt_bytes_total", "Bytes of a broker group fetched from peers, by kind.", ["group", "kind"], registry=REGISTRY
)
REBUILDS = Counter(
    "ledgermq_rebuilds_total", "Repairs and installations of a broker group that ended well, by kind.", ["group", "kind"], registry=REGISTRY
)
SHIPPING_DROPPED = Counter(
    "ledgermq_shipping_requests_dropped_total", "Requests of peers for files dropped because too many waited.", ["group"], registry=REGISTRY
)

HA_WISHES = Counter(
    "ledgermq_ha_wishes_total",
    "What replicas of HA groups on this node asked of the controller quorum: `elect` or `alter`, granted, refused or unanswered.",
    ["group", "kind", "outcome"],
    registry=REGISTRY,
)
FOLLOWER_RESTARTS = Counter(
    "ledgermq_follower_restarts_total",
    "Followers that answered this leader, made no progress, and whose place in the log was looked for anew.",
    ["group", "follower"],
    registry=REGISTRY,
)
DIGEST_FAILURES = Counter(
    "ledgermq_digest_failures_total", "Sealed log files of this node that could not be read for their digest.", ["group"], registry=REGISTRY
)
DIGEST_MISMATCHES = Gauge(
    "ledgermq_digest_mismatches",
    "Sealed log files of this node whose content differs from what a majority sealed.",
    ["group"],
    registry=REGISTRY,
)
DISPUTED_FILES = Gauge(
    "ledgermq_disputed_log_files",
    "Sealed log files of which the replicas have different digests and no majority the same. Told by the node that leads the group.",
    ["group"],
    registry=REGISTRY,
)
AGREEMENT_SECONDS = Histogram(
    "ledgermq_agreement_seconds",
    "From the sealing of a log file, as its leader notices it, to the record of the digest that a majority reported.",
    ["group"],
    buckets=(0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0),
    registry=REGISTRY,
)
UNVERIFIED_SECONDS = Gauge(
    "ledgermq_oldest_unverified_seconds",
    "Age of the byte of the log on this disk that waits longest to be read again: since it was verified, or written.",
    ["group"],
    registry=REGISTRY,
)
FILES_TRIMMED = Counter(
    "ledgermq_log_files_trimmed_total", "Log files that retention removed from this disk.", ["group"], registry=REGISTRY
)
FILES_KEPT = Gauge(
    "ledgermq_log_files_kept",
    "Log files by what keeps them; a due file counts once per reason. Told by the node that leads the group.",
    ["group", "reason"],
    registry=REGISTRY,
)
DISK_BYTES = Gauge("ledgermq_disk_bytes", "Bytes of allocated blocks of a broker group on this disk.", ["group", "kind"], registry=REGISTRY)
DISK_LEVEL = Gauge(
    "ledgermq_disk_level", "Watermark of this disk that is crossed: 0 none, 1 warn, 2 files go early, 3 writes refused.", registry=REGISTRY
)
TRANSACTION_CHECKS = Counter(
    "ledgermq_transaction_checks_total",
    "Checks of undecided transactions: sent, lost on the way, or not possible without a connected producer of the topic.",
    ["group", "result"],
    registry=REGISTRY,
)
TRANSACTIONS_DROPPED = Counter(
    "ledgermq_transactions_dropped_total", "Transactions that ended undecided, by reason.", ["group", "reason"], registry=REGISTRY
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
    "ledgermq_authentication_failures_total", "Calls whose caller could not be told, by reason.", ["reason"], registry=REGISTRY
)
CALLS_LEFT = Counter(
    "ledgermq_calls_left_total", "Calls whose client was gone before all of the answer was written.", registry=REGISTRY
)
PERMISSIONS_DENIED = Counter("ledgermq_permissions_denied_total", "Calls of users that lack the permission.", registry=REGISTRY)
OVER_QUOTA = Counter(
    "ledgermq_over_quota_total", "Calls answered with TOO_MANY_REQUESTS for a quota, by its kind.", ["kind"], registry=REGISTRY
)
FRONT_CONNECTIONS = Gauge(
    "ledgermq_front_connections", "Open connections of clients, where the front of the port counts them.", registry=REGISTRY
)
FETCH_STREAMS = Gauge("ledgermq_fetch_streams", "Native readers of a broker group led here.", ["group"], registry=REGISTRY)
JOIN_STREAMS = Gauge("ledgermq_join_streams", "Members of native consumer groups that this node coordinates.", registry=REGISTRY)
FETCHED_BYTES = Counter(
    "ledgermq_fetched_bytes_total",
    "Bytes of entries sent to native readers, by where they were found: recent (memory), waiting (the turns), cold (files).",
    ["group", "source"],
    registry=REGISTRY,
)
FETCHED_MESSAGES = Counter(
    "ledgermq_fetched_messages_total", "Entries sent to native readers, by where they were found.", ["group", "source"], registry=REGISTRY
)
FETCH_SKIPPED = Counter(
    "ledgermq_fetch_skipped_total", "Messages that retention took before a native reader came to them.", ["group"], registry=REGISTRY
)
FETCH_CREDIT_WAITS = Counter(
    "ledgermq_fetch_credit_waits_total", "How often a native reader had given no more credit.", ["group"], registry=REGISTRY
)
CONNECTIONS_REFUSED = Counter(
    "ledgermq_connections_refused_total",
    "Connections of clients that the front of the port closed, by reason.",
    ["reason"],
    registry=REGISTRY,
)

UNREADABLE_BODIES = Counter(
    "ledgermq_unreadable_bodies_total",
    "Compressed bodies that are not what their record says, handed out as they are stored.",
    registry=REGISTRY,
)
NATIVE_STREAMS = Gauge("ledgermq_native_streams", "Streams of the Log service that are open, by method.", ["method"], registry=REGISTRY)
NATIVE_FRAMES = Counter("ledgermq_native_frames_total", "Native frames stored and acknowledged.", ["group"], registry=REGISTRY)
NATIVE_MESSAGES = Counter("ledgermq_native_messages_total", "Messages of those frames.", ["group"], registry=REGISTRY)
NATIVE_BYTES = Counter("ledgermq_native_bytes_total", "Bytes of the entries of those frames.", ["group"], registry=REGISTRY)
NATIVE_DUPLICATES = Counter(
    "ledgermq_native_duplicates_total", "Native frames that were sent again and had been stored before.", ["group"], registry=REGISTRY
)
NATIVE_REJECTIONS = Counter(
    "ledgermq_native_rejections_total", "Native frames of which nothing was stored, by reason.", ["group", "reason"], registry=REGISTRY
)
NATIVE_FRAME_SECONDS = Histogram(
    "ledgermq_native_frame_seconds", "From the arrival of a native frame to its answer.", ["group"], buckets=_FAST, registry=REGISTRY
)
