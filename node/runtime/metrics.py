"""The metric families of a node, declared once: name, type, help and labels. `docs/metrics.md` is
generated from them.

Names end in their unit, and those of counters in `_total`. The label `broker_group` names a broker
group, `consumer_group` a consumer group; no family has a label `group`. The code that does the work
updates the metrics of this module. Families that repeat numbers kept elsewhere are declared in
`mirrored.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

# A time of creation for every series of a counter would double the page.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
PROCESS = ProcessCollector(registry=REGISTRY)


class Declared(NamedTuple):
    """One family, as `docs/metrics.md` lists it. `name` is that of its samples, for a histogram
    without their endings."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


DECLARED: list[Declared] = []


def declare(kind: str, name: str, text: str, labels: Sequence[str]) -> Declared:
    """Add a family to `DECLARED`."""
    declared = Declared(name, kind, text, tuple(labels))
    DECLARED.append(declared)
    return declared


def _counter(name: str, text: str, *labels: str) -> Counter:
    declare("counter", name, text, labels)
    return Counter(name, text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    declare("gauge", name, text, labels)
    return Gauge(name, text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
    declare("histogram", name, text, labels)
    return Histogram(name, text, labels, buckets=buckets, registry=REGISTRY)


_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_AGREEMENT = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)

_ENTRIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000)
_BYTES = (
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
)

SYNC_SECONDS = _histogram(
    "ledgermq_sync_seconds",
    "Duration of one group commit (fdatasync).",
    "broker_group",
    buckets=_FAST,
)
SYNC_ENTRIES = _histogram(
    "ledgermq_sync_batch_entries",
    "Entries that one group commit made durable.",
    "broker_group",
    buckets=_ENTRIES,
)
SYNC_BYTES = _histogram(
    "ledgermq_sync_batch_bytes",
    "Bytes of entries that one group commit made durable.",
    "broker_group",
    buckets=_BYTES,
)
SLOW_SYNCS = _counter(
    "ledgermq_slow_syncs_total",
    "Group commits that exceeded a threshold of duration, by severity.",
    "broker_group",
    "severity",
)
TURN_SECONDS = _histogram(
    "ledgermq_turn_seconds",
    "Duration of one turn of a broker group.",
    "broker_group",
    buckets=_FAST,
)
FORWARDED_CALLS = _counter(
    "ledgermq_forwarded_calls_total",
    "Client calls that this node forwarded to another leader, by result.",
    "broker_group",
    "result",
)
EXECUTED_CALLS = _counter(
    "ledgermq_executed_calls_total",
    "Client calls that this node executed as leader for another node.",
    "broker_group",
)
PEER_PACKETS_DROPPED = _counter(
    "ledgermq_peer_packets_dropped_total",
    "Replication packets dropped because a peer's queue was full.",
    "peer",
)
PEER_PACKETS_BARRED = _counter(
    "ledgermq_peer_packets_barred_total",
    "Replication packets refused because the sender's data directory is not the one that its broker"
    " group knows, or an old copy of it.",
    "peer",
    "broker_group",
)
PEER_REFUSALS = _counter(
    "ledgermq_peer_refusals_total",
    "Peer connections refused during the greeting, by reason.",
    "reason",
)
PEER_TLS_FAILURES = _counter(
    "ledgermq_peer_tls_failures_total",
    "Connections between nodes that failed by TLS, by the peer that was called (empty: a caller)"
    " and by reason: expired, authority, name, certificate, missing, protocol or refused (by the"
    " peer).",
    "peer",
    "reason",
)
PEER_CONNECTS = _counter(
    "ledgermq_peer_connects_total", "Established outgoing streams to a peer.", "peer"
)
CLOCK_STATE = _gauge(
    "ledgermq_clock_state",
    "1 for what this node knows of its wall clock: agreed (with a majority of the nodes),"
    " uncertain, off, or divided (no majority).",
    "state",
)
CLOCK_OFFSET = _gauge(
    "ledgermq_clock_offset_seconds", "This node's wall clock less the time that the node goes by."
)
CLOCKS_HEARD = _gauge(
    "ledgermq_clocks_heard", "Nodes whose clock this node knows, itself included."
)
CLOCK_STEPS = _counter(
    "ledgermq_clock_steps_total",
    "Times that wall clock and steady clock of this node went apart by more than"
    " clock.max_offset_ms.",
)
RECOVERY_SECONDS = _gauge(
    "ledgermq_recovery_seconds",
    "Duration of the last start of a broker group, by phase.",
    "broker_group",
    "phase",
)
GROUP_STATE = _gauge(
    "ledgermq_broker_group_state",
    "1 for the current state of a hosted broker group.",
    "broker_group",
    "state",
)
DAMAGED_RANGES = _counter(
    "ledgermq_damaged_ranges_total",
    "Committed ranges found damaged on this disk, at a start or by a read.",
    "broker_group",
)
SCRUBBED_BYTES = _counter(
    "ledgermq_scrubbed_bytes_total",
    "Bytes of the log at rest that were reread and verified.",
    "broker_group",
)
AUDIT_READ_BYTES = _counter(
    "ledgermq_audit_read_bytes_total", "Bytes read for audits of this running node.", "broker_group"
)
SCRUBBED_FILES = _counter(
    "ledgermq_scrubbed_log_files_total",
    "Log files that were reread completely and found intact.",
    "broker_group",
)
REBUILT_BYTES = _counter(
    "ledgermq_rebuilt_bytes_total",
    "Bytes of a broker group fetched from peers, by kind.",
    "broker_group",
    "kind",
)
REBUILDS = _counter(
    "ledgermq_rebuilds_total",
    "Successful repairs and installations of a broker group, by kind.",
    "broker_group",
    "kind",
)
SHIPPING_DROPPED = _counter(
    "ledgermq_shipping_requests_dropped_total",
    "Peers' requests for files dropped because too many were waiting.",
    "broker_group",
)
HA_REQUESTS = _counter(
    "ledgermq_ha_requests_total",
    "Requests of this node's HA replicas to the controller quorum (`elect` or `alter`): granted,"
    " refused or unanswered.",
    "broker_group",
    "kind",
    "outcome",
)
FOLLOWER_RESTARTS = _counter(
    "ledgermq_follower_restarts_total",
    "Followers that answered this leader without making progress, so that the leader searched for"
    " their log position again.",
    "broker_group",
    "follower",
)
DIGEST_FAILURES = _counter(
    "ledgermq_digest_failures_total",
    "Sealed log files of this node that could not be read to compute their digest.",
    "broker_group",
)
DIGEST_MISMATCHES = _gauge(
    "ledgermq_digest_mismatches",
    "Sealed log files of this node whose digest differs from the majority's.",
    "broker_group",
)
DISPUTED_FILES = _gauge(
    "ledgermq_disputed_log_files",
    "Sealed log files for which no majority of the replicas has the same digest. Reported by the"
    " group's leader.",
    "broker_group",
)
AGREEMENT_SECONDS = _histogram(
    "ledgermq_agreement_seconds",
    "Time from the leader's detection of a sealed log file to the record of its majority digest.",
    "broker_group",
    buckets=_AGREEMENT,
)
UNVERIFIED_SECONDS = _gauge(
    "ledgermq_oldest_unverified_seconds",
    "Age of the least recently verified byte of the log on this disk, since it was verified or"
    " written.",
    "broker_group",
)
FILES_TRIMMED = _counter(
    "ledgermq_log_files_trimmed_total",
    "Log files that retention removed from this disk.",
    "broker_group",
)
FILES_KEPT = _gauge(
    "ledgermq_log_files_kept",
    "Log files by the reason why they are kept; a due file counts once per reason. Reported by the"
    " group's leader.",
    "broker_group",
    "reason",
)
INSTALLED_BYTES = _counter(
    "ledgermq_installed_bytes_total",
    "Bytes received to install a replica: from its peers, or from the object store of tiered"
    " storage.",
    "broker_group",
    "source",
)
TIERED_WAITING_BYTES = _gauge(
    "ledgermq_tiered_waiting_bytes",
    "Bytes of complete log files here that this node has not verified in the object store.",
    "broker_group",
)
TIERED_WAITING_SECONDS = _gauge(
    "ledgermq_tiered_waiting_seconds",
    "Time for which the same log file waits until it is verified in the object store.",
    "broker_group",
)
TIERED_BYTES = _counter(
    "ledgermq_tiered_bytes_total",
    "Bytes of log files written to the object store, read back, and fetched for readers: written,"
    " read or served.",
    "broker_group",
    "direction",
)
TIERED_WRONG = _counter(
    "ledgermq_tiered_wrong_objects_total",
    "Objects in the store that were missing or had other bytes than the log.",
    "broker_group",
)
TIERED_FAILURES = _counter(
    "ledgermq_tiered_failures_total",
    "Attempts to carry a log file into the object store that failed, by kind.",
    "broker_group",
    "kind",
)
DISK_BYTES = _gauge(
    "ledgermq_disk_bytes",
    "Allocated disk blocks of a broker group, in bytes.",
    "broker_group",
    "kind",
)
DISK_LEVEL = _gauge(
    "ledgermq_disk_level",
    "Crossed watermark of this disk: 0 none, 1 warn, 2 log files should go, 3 takes no messages.",
)
DISK_OTHER_BYTES = _gauge(
    "ledgermq_disk_other_bytes",
    "Bytes in use on this disk that do not belong to broker groups of this process.",
)
TRANSACTION_CHECKS = _counter(
    "ledgermq_transaction_checks_total",
    "Checks of undecided transactions: sent, lost, or impossible because no producer of the topic"
    " is connected.",
    "broker_group",
    "result",
)
TRANSACTIONS_DROPPED = _counter(
    "ledgermq_transactions_dropped_total",
    "Transactions dropped without a decision of the producer, by reason.",
    "broker_group",
    "reason",
)
KEY_INDEX_LAG_ENTRIES = _gauge(
    "ledgermq_key_index_lag_entries",
    "Applied entries that a search by key does not find yet.",
    "broker_group",
)
KEY_INDEX_LAG_SECONDS = _gauge(
    "ledgermq_key_index_lag_seconds",
    "Store time between the last applied and the last indexed entry.",
    "broker_group",
)
LOOKUP_SECONDS = _histogram(
    "ledgermq_lookup_seconds",
    "Duration of one search by key in the key index and the log.",
    "broker_group",
    buckets=_FAST,
)
AUTHENTICATION_FAILURES = _counter(
    "ledgermq_authentication_failures_total",
    "Calls whose caller could not be authenticated, by reason.",
    "reason",
)
CALLS_LEFT = _counter(
    "ledgermq_calls_left_total", "Calls whose client left before it had taken the whole answer."
)
RECEIVES_GIVEN_BACK = _counter(
    "ledgermq_receives_given_back_total",
    "Answers to a Receive that their client has not provably taken, and whose messages were given"
    " back, by reason.",
    "reason",
)
SHARED_CLIENT_IDS = _counter(
    "ledgermq_shared_client_ids_total",
    "Client ids that were found to be those of several processes, whose leases are kept apart"
    " since.",
)
PERMISSIONS_DENIED = _counter(
    "ledgermq_permissions_denied_total", "Calls of users without the required permission."
)
OVER_QUOTA = _counter(
    "ledgermq_over_quota_total",
    "Calls answered with TOO_MANY_REQUESTS because of a quota, by kind of quota.",
    "kind",
)
HTTP_CROWDED_OUT = _counter(
    "ledgermq_http_crowded_out_total",
    "Connections of the HTTP port that were closed to make room for others; idle ones go first.",
)
FRONT_CONNECTIONS = _gauge(
    "ledgermq_front_connections", "Open client connections, if the port's front end counts them."
)
FRONT_BUFFERED_BYTES = _gauge(
    "ledgermq_front_buffered_bytes",
    "Memory of requests and answers in the port's front end, at most half of"
    " limits.buffered_bytes.",
)
FRONT_UNSENT_BYTES = _gauge(
    "ledgermq_front_unsent_bytes",
    "The part of it that answers hold until the sockets of clients have taken them.",
)
FETCH_STREAMS = _gauge(
    "ledgermq_fetch_streams", "Native readers of a broker group led here.", "broker_group"
)
JOIN_STREAMS = _gauge(
    "ledgermq_join_streams", "Members of native consumer groups that this node coordinates."
)
FETCHED_BYTES = _counter(
    "ledgermq_fetched_bytes_total",
    "Bytes of entries sent to native readers, by source: recent (memory), waiting (the turns), cold"
    " (files).",
    "broker_group",
    "source",
)
FETCHED_MESSAGES = _counter(
    "ledgermq_fetched_messages_total",
    "Entries sent to native readers, by source.",
    "broker_group",
    "source",
)
FETCH_SKIPPED = _counter(
    "ledgermq_fetch_skipped_total",
    "Messages that retention removed before a native reader reached them.",
    "broker_group",
)
FETCH_CREDIT_WAITS = _counter(
    "ledgermq_fetch_credit_waits_total",
    "Times that a native reader was out of credit.",
    "broker_group",
)
CONNECTIONS_REFUSED = _counter(
    "ledgermq_connections_refused_total",
    "Client connections that the port's front end closed, by reason.",
    "reason",
)
CALLS_REFUSED = _counter(
    "ledgermq_calls_refused_total",
    "Calls that a bound on memory ended, by reason: buffers, too-large, unread (the port's front"
    " end), answers, requests.",
    "reason",
)
for _reason in ("buffers", "too-large", "unread", "answers", "requests"):
    # Known from the start, so that the first one is an increase.
    CALLS_REFUSED.labels(_reason)
ANSWER_WAITS = _counter(
    "ledgermq_answer_waits_total",
    "Reads of Fetch and of the administration that waited until clients had taken earlier answers.",
)
UNREADABLE_BODIES = _counter(
    "ledgermq_unreadable_bodies_total",
    "Compressed bodies that contradict their record and were delivered as stored.",
)
NATIVE_STREAMS = _gauge(
    "ledgermq_native_streams", "Open streams of the Log service, by method.", "method"
)
NATIVE_FRAMES = _counter(
    "ledgermq_native_frames_total", "Native frames stored and acknowledged.", "broker_group"
)
NATIVE_MESSAGES = _counter(
    "ledgermq_native_messages_total",
    "Messages in the native frames that were stored and acknowledged.",
    "broker_group",
)
NATIVE_BYTES = _counter(
    "ledgermq_native_bytes_total",
    "Bytes of the entries of the native frames that were stored and acknowledged.",
    "broker_group",
)
NATIVE_DUPLICATES = _counter(
    "ledgermq_native_duplicates_total",
    "Native frames that were sent again after they had been stored.",
    "broker_group",
)
NATIVE_REJECTIONS = _counter(
    "ledgermq_native_rejections_total",
    "Native frames rejected without storing anything, by reason.",
    "broker_group",
    "reason",
)
NATIVE_FRAME_SECONDS = _histogram(
    "ledgermq_native_frame_seconds",
    "Time from the arrival of a native frame to its answer.",
    "broker_group",
    buckets=_FAST,
)
