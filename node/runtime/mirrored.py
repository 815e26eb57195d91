"""Declarations of the metric families that repeat numbers kept elsewhere. They are filled when
`/metrics` is read.

`node/process/telemetry/http.py` fills most of them from the status of the replicas, and
`node/frontend/rocketmq/wire/meters.py` those of the calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ledgermq.node.runtime.metrics import Declared, declare


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A declared family that is made anew, and filled, for each reading of `/metrics`. `scale`
    converts the mirrored number to the unit of the family."""

    declared: Declared
    scale: float = 1

    def counter(self) -> CounterMetricFamily:
        return CounterMetricFamily(
            self.declared.name, self.declared.help, labels=self.declared.labels
        )

    def gauge(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            self.declared.name, self.declared.help, labels=self.declared.labels
        )

    def histogram(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(
            self.declared.name, self.declared.help, labels=self.declared.labels
        )

    def number(self) -> CounterMetricFamily | GaugeMetricFamily:
        """The empty family of a counter or gauge."""
        return self.counter() if self.declared.kind == "counter" else self.gauge()


def _mirrored(kind: str, name: str, text: str, *labels: str, scale: float = 1) -> Mirrored:
    return Mirrored(declare(kind, name, text, labels), scale)


declare("gauge", "process_virtual_memory_bytes", "Virtual memory size in bytes.", ())
declare("gauge", "process_resident_memory_bytes", "Resident memory size in bytes.", ())
declare(
    "gauge",
    "process_start_time_seconds",
    "Start time of the process since unix epoch in seconds.",
    (),
)
declare(
    "counter", "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", ()
)
declare("gauge", "process_open_fds", "Number of open file descriptors.", ())
declare("gauge", "process_max_fds", "Maximum number of open file descriptors.", ())

NODE_INFO = _mirrored(
    "gauge",
    "ledgermq_node_info",
    "1; the labels are this node's name and the versions of LedgerMQ and of its compiled package.",
    "node",
    "version",
    "native",
)
OPEN_CALLS = _mirrored("gauge", "ledgermq_open_calls", "Client calls that wait for the engine.")
ANSWER_BYTES = _mirrored(
    "gauge",
    "ledgermq_answer_bytes",
    "Memory of answers with messages that clients have not taken yet.",
)
PEER_QUEUE_BYTES = _mirrored(
    "gauge", "ledgermq_peer_queue_bytes", "Bytes waiting to be sent to a peer.", "peer"
)
CALLS = _mirrored(
    "counter",
    "ledgermq_calls_total",
    "Client calls answered by this node, by status code; 0: no status.",
    "method",
    "code",
)
CALL_SECONDS = _mirrored(
    "histogram",
    "ledgermq_call_seconds",
    "Time from the arrival of a call to its answer, including the wait of a long poll.",
    "method",
)

ROLE = _mirrored(
    "gauge",
    "ledgermq_role",
    "1 for the current role of this replica of a broker group.",
    "broker_group",
    "role",
)
LEADER_KNOWN = _mirrored(
    "gauge",
    "ledgermq_leader_known",
    "1 if this replica knows a leader of its broker group.",
    "broker_group",
)
POSITIONS = {
    "term": _mirrored(
        "gauge", "ledgermq_term", "Current Raft term of this replica.", "broker_group"
    ),
    "begin_index": _mirrored(
        "gauge",
        "ledgermq_begin_index",
        "Index of the first retained entry of this replica's log.",
        "broker_group",
    ),
    "end_index": _mirrored(
        "gauge",
        "ledgermq_end_index",
        "Index of the last entry of this replica's log.",
        "broker_group",
    ),
    "durable_index": _mirrored(
        "gauge",
        "ledgermq_durable_index",
        "Index of the last entry that this replica has synced to disk.",
        "broker_group",
    ),
    "commit_index": _mirrored(
        "gauge",
        "ledgermq_commit_index",
        "Index of the last entry that this replica knows to be committed.",
        "broker_group",
    ),
    "applied_index": _mirrored(
        "gauge",
        "ledgermq_applied_index",
        "Index of the last entry that this replica has applied.",
        "broker_group",
    ),
}
"""By field of `ReplicaStatus`."""
FOLLOWERS = {
    "behind_entries": _mirrored(
        "gauge",
        "ledgermq_follower_behind_entries",
        "Entries that a follower has not received, as its leader knows.",
        "broker_group",
        "follower",
    ),
    "behind_bytes": _mirrored(
        "gauge",
        "ledgermq_follower_behind_bytes",
        "Bytes of the log that a follower has not received.",
        "broker_group",
        "follower",
    ),
    "bytes_per_s": _mirrored(
        "gauge",
        "ledgermq_follower_bytes_per_second",
        "Bytes per second that a follower receives, over the last ten seconds.",
        "broker_group",
        "follower",
    ),
    "seconds_left": _mirrored(
        "gauge",
        "ledgermq_follower_seconds_left",
        "Estimated seconds until a follower has caught up.",
        "broker_group",
        "follower",
    ),
}
"""By field of `PeerProgress`."""
FOLLOWER_STATE = _mirrored(
    "gauge",
    "ledgermq_follower_state",
    "1 for the current state of a follower.",
    "broker_group",
    "follower",
    "state",
)


def _statistic(kind: str, name: str, text: str, *labels: str, scale: float = 1) -> Mirrored:
    return _mirrored(
        kind, f"ledgermq_broker_group_{name}", text, "broker_group", *labels, scale=scale
    )


STATISTICS = {
    "produced": _statistic(
        "counter", "messages_produced_total", "Messages that Send calls appended to the log."
    ),
    "leased": _statistic(
        "counter",
        "messages_leased_total",
        "Messages leased to consumers, including repeated deliveries.",
    ),
    "leased_again": _statistic(
        "counter",
        "messages_leased_again_total",
        "Messages leased to consumers for the second time or later.",
    ),
    "dead_lettered": _statistic(
        "counter", "messages_dead_lettered_total", "Messages moved to a dead-letter topic."
    ),
    "acked": _statistic(
        "counter", "messages_acknowledged_total", "Messages acknowledged by consumers."
    ),
    "changed": _statistic(
        "counter", "leases_changed_total", "Leases whose duration a consumer changed."
    ),
    "handles_refused": _statistic(
        "counter",
        "handles_refused_total",
        "Receipt handles refused because they were unknown, expired or replaced.",
    ),
    "passed_over": _statistic(
        "counter",
        "messages_passed_over_total",
        "Messages skipped because they do not match the filter of a consumer group.",
    ),
    "lite_sets_changed": _statistic(
        "counter",
        "lite_sets_changed_total",
        "Changes of the set of lite topics that a client reads.",
    ),
    "lite_sets_dropped": _statistic(
        "counter",
        "lite_sets_dropped_total",
        "Sets of lite topics dropped because their client is gone.",
    ),
    "members_dropped": _statistic(
        "counter",
        "members_dropped_total",
        "Members of broadcasting consumer groups dropped because their client is gone.",
    ),
    "released": _statistic(
        "counter",
        "leases_released_total",
        "Leases given back because the answer did not reach its caller.",
    ),
    "reset": _statistic(
        "counter",
        "queues_reset_total",
        "Queue positions of consumer groups that an operator or client reset.",
    ),
    "duplicates": _statistic(
        "counter",
        "duplicates_total",
        "Messages not stored again because their id is in the topic's deduplication window.",
    ),
    "letters_ended": _statistic(
        "counter",
        "dead_letters_ended_total",
        "Dead letters that their own consumer group gave up in its dead-letter topic, where they"
        " stay.",
    ),
    "letters_purged": _statistic(
        "counter", "dead_letters_purged_total", "Dead letters purged by an operator."
    ),
    "letters_resent": _statistic(
        "counter",
        "dead_letters_resent_total",
        "Dead letters resent to their consumer group by an operator.",
    ),
    "messages_recalled": _statistic(
        "counter", "messages_recalled_total", "Delayed messages recalled before their time."
    ),
    "offsets_committed": _statistic(
        "counter", "offsets_committed_total", "Offsets committed by pulling consumers."
    ),
    "half_messages": _statistic(
        "counter", "half_messages_total", "Half messages of transactions appended to the log."
    ),
    "transactions_committed": _statistic(
        "counter", "transactions_committed_total", "Transactions committed by their producer."
    ),
    "transactions_rolled_back": _statistic(
        "counter", "transactions_rolled_back_total", "Transactions rolled back by their producer."
    ),
    "transaction_checks": _statistic(
        "counter",
        "transaction_checks_total",
        "Checks of undecided transactions recorded in the log.",
    ),
    "transactions_dropped": _statistic(
        "counter",
        "transactions_dropped_total",
        "Transactions ended without a decision of their producer.",
    ),
    "producers_opened": _statistic(
        "counter", "producers_opened_total", "Native producers registered by this leader."
    ),
    "producers_resumed": _statistic(
        "counter", "producers_resumed_total", "Native producers that continued an earlier session."
    ),
    "producers_dropped": _statistic(
        "counter", "producers_dropped_total", "Native producers forgotten to make room for others."
    ),
    "frames": _statistic("counter", "frames_total", "Native frames appended to the log."),
    "frame_messages": _statistic(
        "counter", "frame_messages_total", "Messages in the native frames appended to the log."
    ),
    "frame_duplicates": _statistic(
        "counter", "frame_duplicates_total", "Native frames that were in the log already."
    ),
    "frames_refused": _statistic(
        "counter", "frames_refused_total", "Native frames refused by this leader."
    ),
    "producers": _statistic("gauge", "producers", "Native producers known to this replica."),
    "frames_astray": _statistic(
        "counter",
        "frames_astray_total",
        "Native runs applied out of their producer's order, which no leader should append.",
    ),
    "message_ids": _statistic("gauge", "message_ids", "Message ids remembered for deduplication."),
    "message_ids_forgotten_early": _statistic(
        "counter",
        "message_ids_forgotten_early_total",
        "Message ids forgotten before their deduplication window ended, because of the limit of"
        " ids.",
    ),
    "polls_waiting": _statistic("gauge", "polls_waiting", "Receive calls that wait for messages."),
    "pulls_waiting": _statistic("gauge", "pulls_waiting", "Pull calls that wait for messages."),
    "in_flight": _statistic(
        "gauge",
        "messages_in_flight",
        "Messages leased and not done, including expired leases and messages that wait for an"
        " earlier one of their group.",
    ),
    "visible_again": _statistic(
        "gauge",
        "messages_visible_again",
        "Messages whose lease ended without an acknowledgement and that were not leased again.",
    ),
    "gone": _statistic(
        "counter",
        "messages_gone_total",
        "Messages passed over for a consumer group because total retention had removed them.",
    ),
    "tier_waiting": _statistic(
        "gauge",
        "tier_waiting",
        "Queues of consumer groups that wait for messages from the object store.",
    ),
    "tier_bytes": _statistic(
        "gauge",
        "tier_bytes",
        "Bytes of messages from the object store that the leader has at hand for consumers.",
    ),
    "tier_failures": _statistic(
        "counter",
        "tier_fetches_failed_total",
        "Fetches of messages from the object store for consumers that failed.",
    ),
    "transactions_undecided": _statistic(
        "gauge",
        "transactions_undecided",
        "Transactions that wait for a decision of their producer.",
    ),
    "store_ms": _statistic(
        "gauge",
        "newest_store_timestamp_seconds",
        "Store time of the last applied entry, in seconds since the Unix epoch.",
        scale=1e-3,
    ),
    "time_epochs": _statistic(
        "gauge",
        "time_epochs",
        "Time epochs that began in the log of this replica, as far as they are remembered.",
    ),
    "timers_pending": _statistic(
        "gauge", "timers_pending", "Delayed messages that wait for their time."
    ),
    "timers_stored": _statistic(
        "counter", "timers_stored_total", "Delayed messages applied by this replica."
    ),
    "timers_fired": _statistic(
        "counter",
        "timers_fired_total",
        "Delayed messages that were stored in their topic at their time.",
    ),
    "timers_rolled": _statistic(
        "counter",
        "timers_rolled_total",
        "Delayed messages that were stored again with the rest of their delay.",
    ),
    "timers_recalled": _statistic(
        "counter", "timers_recalled_total", "Recalls of delayed messages applied by this replica."
    ),
    "timers_dropped": _statistic(
        "counter",
        "timers_dropped_total",
        "Delayed messages dropped because their topic no longer exists.",
    ),
    "log_full": _statistic(
        "counter", "log_full_total", "Batches that the log refused because the disk is full."
    ),
    "dispatch_stalled": _statistic(
        "counter",
        "dispatch_stalled_total",
        "Times that committed entries could not be applied because the disk is full.",
    ),
    "writes_refused": _statistic(
        "gauge",
        "writes_refused",
        "1 while this leader refuses writes because its disk is full, or those of a majority are.",
    ),
    "in_sync": _statistic(
        "gauge", "in_sync", "Replicas in the in-sync set of an HA group, as this replica knows."
    ),
    "in_sync_short": _statistic(
        "gauge",
        "in_sync_missing",
        "Replicas that the in-sync set of an HA group lacks to its minimum, so that the master"
        " refuses writes.",
    ),
    "mapped-bytes": _statistic("gauge", "mapped_bytes", "Bytes of the log mapped into memory."),
    "locked-bytes": _statistic("gauge", "locked_bytes", "Bytes of the log locked in memory."),
    "admitted": _statistic(
        "gauge", "admitted", "1 if this replica may vote and acknowledge entries."
    ),
    "election-slack-ms": _statistic(
        "gauge",
        "election_slack_seconds",
        "Time added to the election timeout at the moment, because timers of this node were late.",
        scale=1e-3,
    ),
    "stale-term": _statistic(
        "counter", "stale_term_packets_total", "Peer packets of an earlier term."
    ),
    "truncations": _statistic(
        "counter",
        "truncations_total",
        "Times that this replica removed entries from the end of its log that the leader does not"
        " have.",
    ),
    "restarted-from-compare": _statistic(
        "counter",
        "comparisons_restarted_total",
        "Times that this leader searched a follower's log position again from the beginning.",
        "follower",
    ),
    "needs-snapshot": _statistic(
        "gauge",
        "follower_needs_snapshot",
        "1 for a follower that lacks entries which this leader has trimmed.",
        "follower",
    ),
    "refused": _statistic(
        "counter",
        "peer_messages_refused_total",
        "Raft messages that this replica did not process, by reason.",
        "reason",
    ),
    "dropped": _statistic(
        "counter",
        "peer_packets_rejected_total",
        "Peer packets that this replica rejected as invalid or foreign, by reason.",
        "reason",
    ),
}
"""By name of a statistic in `ReplicaStatus.extra`. `statistic` splits the names of those that have
another label."""
_REASONS = ("refused-", "dropped-")


def statistic(key: str) -> tuple[Mirrored, tuple[str, ...]]:
    """The family of a statistic, and its labels besides the broker group: `name:node` concerns a
    follower, `refused-reason` and `dropped-reason` have a reason. Raises KeyError for a statistic
    that is not declared."""
    for prefix in _REASONS:
        if key.startswith(prefix):
            return STATISTICS[prefix[:-1]], (key.removeprefix(prefix),)
    name, _, node = key.partition(":")
    return STATISTICS[name], ((node,) if node else ())


_TOPIC = ("cluster", "node_type", "node_id", "broker_group", "topic")
_CONSUMER = (*_TOPIC, "consumer_group")
MESSAGES_IN = _mirrored(
    "counter", "rocketmq_messages_in_total", "Messages stored in a topic.", *_TOPIC, "message_type"
)
THROUGHPUT_IN = _mirrored(
    "counter",
    "rocketmq_throughput_in_total",
    "Bytes of the messages stored in a topic.",
    *_TOPIC,
    "message_type",
)
MESSAGES_OUT = _mirrored(
    "counter", "rocketmq_messages_out_total", "Messages leased to a consumer group.", *_CONSUMER
)
THROUGHPUT_OUT = _mirrored(
    "counter",
    "rocketmq_throughput_out_total",
    "Bytes of the messages leased to a consumer group.",
    *_CONSUMER,
)
REDELIVERED = _mirrored(
    "counter",
    "ledgermq_redelivered_messages_total",
    "Messages leased to a consumer group for the second time or later.",
    *_CONSUMER,
)
DEAD_LETTERED = _mirrored(
    "counter",
    "rocketmq_send_to_dlq_messages_total",
    "Messages moved to the dead-letter topic of a consumer group.",
    *_CONSUMER,
)
READY = _mirrored(
    "gauge",
    "rocketmq_consumer_ready_messages",
    "Messages that a consumer group can receive: never leased, or visible again.",
    *_CONSUMER,
)
IN_FLIGHT = _mirrored(
    "gauge",
    "rocketmq_consumer_inflight_messages",
    "Messages leased to a consumer group and not done.",
    *_CONSUMER,
)
LAG = _mirrored(
    "gauge",
    "rocketmq_consumer_lag_messages",
    "Messages that a consumer group has not finished: ready, in flight, or behind an earlier one of"
    " their message group.",
    *_CONSUMER,
)
READY_AGE = _mirrored(
    "gauge",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "Age of the oldest message that a consumer group can receive; 0 if there is none.",
    *_CONSUMER,
)
LAG_AGE = _mirrored(
    "gauge",
    "rocketmq_consumer_lag_latency_milliseconds",
    "Age of the oldest message that a consumer group has not finished; 0 if there is none.",
    *_CONSUMER,
)
SERIES_LEFT_OUT = _mirrored(
    "gauge",
    "ledgermq_series_left_out",
    "Series of topics and consumer groups left out because of metrics.series_max, by kind.",
    "kind",
)
