"""Writes the Grafana dashboards: `python deploy/grafana/dashboards.py` writes
`deploy/grafana/dashboards/*.json` from the tables below.

Change the tables, not the files: a test compares both, and checks every metric and label against
the declarations of `docs/metrics.md`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).with_name("dashboards")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, ACROSS = 8, 8, 3


class Panel(NamedTuple):
    """One diagram: expression → legend. `kind` is a Grafana panel type."""

    title: str
    unit: str
    lines: dict[str, str]
    kind: str = "timeseries"


class Dashboard(NamedTuple):
    """`choices`: label → a metric that has all of its values; the user chooses among them at the
    top of the dashboard."""

    title: str
    choices: dict[str, str]
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "", where: str = "") -> str:
    """The rate per second of a counter, added up by these labels."""
    return (
        f"sum{f' by ({by})' if by else ''}"
        f" (rate({metric}{f'{{{where}}}' if where else ''}[$__rate_interval]))"
    )


def quantile(part: float, metric: str, by: str, where: str = "") -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({part}, {rate(f'{metric}_bucket', f'{by}, le', where)})"


GROUP = 'broker_group=~"$broker_group"'
TOPIC = 'topic=~"$topic"'
CONSUMER = f'consumer_group=~"$consumer_group",{TOPIC}'
NODE = 'instance=~"$instance"'
PAIR = "{{consumer_group}} {{topic}}"
REPLICA = "{{broker_group}} {{instance}}"

DASHBOARDS: dict[str, Dashboard] = {
    "cluster": Dashboard(
        "LedgerMQ cluster",
        {},
        (
            Panel(
                "Nodes that answer",
                "none",
                {'sum(up{job="ledgermq"})': "up", 'count(up{job="ledgermq"})': "known"},
                "stat",
            ),
            Panel(
                "Broker groups without a leader",
                "none",
                {
                    "count(max by (broker_group) (ledgermq_leader_known) == 0) or vector(0)": (
                        "no leader"
                    )
                },
                "stat",
            ),
            Panel(
                "Alerts that fire",
                "none",
                {
                    'sum by (alertname) (ALERTS{alertstate="firing",alertname=~"LedgerMQ.*"})': (
                        "{{alertname}}"
                    )
                },
                "bargauge",
            ),
            Panel(
                "Messages per second",
                "cps",
                {
                    rate("rocketmq_messages_in_total"): "in",
                    rate("rocketmq_messages_out_total"): "out",
                },
            ),
            Panel(
                "Bytes per second",
                "Bps",
                {
                    rate("rocketmq_throughput_in_total"): "in",
                    rate("rocketmq_throughput_out_total"): "out",
                },
            ),
            Panel(
                "Messages to native readers",
                "cps",
                {rate("ledgermq_fetched_messages_total", "source"): "{{source}}"},
            ),
            Panel(
                "Largest lags",
                "none",
                {"topk(10, sum by (consumer_group, topic) (rocketmq_consumer_lag_messages))": PAIR},
            ),
            Panel(
                "Oldest unfinished messages",
                "ms",
                {
                    "topk(10, max by (consumer_group, topic) (rocketmq_consumer_lag_latency_milliseconds))": (
                        PAIR
                    )
                },
            ),
            Panel(
                "Leaders by node",
                "none",
                {'sum by (instance) (ledgermq_role{role="leader"})': "{{instance}}"},
            ),
            Panel("Calls by status", "cps", {rate("ledgermq_calls_total", "code"): "{{code}}"}),
            Panel(
                "Time of calls, 99 %",
                "s",
                {quantile(0.99, "ledgermq_call_seconds", "method"): "{{method}}"},
            ),
            Panel(
                "Disk level", "none", {"max by (instance) (ledgermq_disk_level)": "{{instance}}"}
            ),
        ),
    ),
    "broker-group": Dashboard(
        "LedgerMQ broker group",
        {"broker_group": "ledgermq_term"},
        (
            Panel("Leader", "none", {f'ledgermq_role{{role="leader",{GROUP}}} == 1': REPLICA}),
            Panel(
                "State of replicas",
                "none",
                {f"ledgermq_broker_group_state{{{GROUP}}} == 1": REPLICA + " {{state}}"},
            ),
            Panel(
                "Term",
                "none",
                {f"max by (broker_group) (ledgermq_term{{{GROUP}}})": "{{broker_group}}"},
            ),
            Panel(
                "Committed entries per second",
                "cps",
                {
                    f"max by (broker_group) (deriv(ledgermq_commit_index{{{GROUP}}}[$__rate_interval]))": (
                        "{{broker_group}}"
                    )
                },
            ),
            Panel(
                "Messages per second",
                "cps",
                {
                    rate(
                        "ledgermq_broker_group_messages_produced_total", "broker_group", GROUP
                    ): "{{broker_group}} sent",
                    rate(
                        "ledgermq_broker_group_frame_messages_total", "broker_group", GROUP
                    ): "{{broker_group}} sent natively",
                    rate(
                        "ledgermq_broker_group_messages_leased_total", "broker_group", GROUP
                    ): "{{broker_group}} leased",
                    rate(
                        "ledgermq_broker_group_messages_acknowledged_total", "broker_group", GROUP
                    ): "{{broker_group}} acknowledged",
                },
            ),
            Panel(
                "Messages at consumers",
                "none",
                {
                    f"sum by (broker_group) (ledgermq_broker_group_messages_in_flight{{{GROUP}}})": (
                        "{{broker_group}} in flight"
                    ),
                    f"sum by (broker_group) (ledgermq_broker_group_messages_visible_again{{{GROUP}}})": (
                        "{{broker_group}} visible again"
                    ),
                },
            ),
            Panel(
                "Followers behind",
                "bytes",
                {
                    f"max by (broker_group, follower) (ledgermq_follower_behind_bytes{{{GROUP}}})": (
                        "{{broker_group}} {{follower}}"
                    )
                },
            ),
            Panel(
                "In-sync replicas of HA groups",
                "none",
                {
                    f"max by (broker_group) (ledgermq_broker_group_in_sync{{{GROUP}}})": (
                        "{{broker_group}} in sync"
                    ),
                    f"max by (broker_group) (ledgermq_broker_group_in_sync_missing{{{GROUP}}})": (
                        "{{broker_group}} missing"
                    ),
                },
            ),
            Panel(
                "Refuses writes",
                "none",
                {
                    f"max by (broker_group) (ledgermq_broker_group_writes_refused{{{GROUP}}})": (
                        "{{broker_group}}"
                    )
                },
            ),
            Panel(
                "Time of a sync",
                "s",
                {
                    quantile(
                        0.5, "ledgermq_sync_seconds", "instance", GROUP
                    ): "{{instance}} median",
                    quantile(0.99, "ledgermq_sync_seconds", "instance", GROUP): "{{instance}} 99 %",
                },
            ),
            Panel(
                "Entries per sync",
                "none",
                {
                    " / ".join(
                        rate(f"ledgermq_sync_batch_entries_{part}", "instance", GROUP)
                        for part in ("sum", "count")
                    ): "{{instance}}"
                },
            ),
            Panel(
                "Time of a turn, 99 %",
                "s",
                {quantile(0.99, "ledgermq_turn_seconds", "instance", GROUP): "{{instance}}"},
            ),
            Panel(
                "Waiting",
                "none",
                {
                    f"sum by (broker_group) (ledgermq_broker_group_polls_waiting{{{GROUP}}})": (
                        "{{broker_group}} receives"
                    ),
                    f"max by (broker_group) (ledgermq_broker_group_timers_pending{{{GROUP}}})": (
                        "{{broker_group}} delayed messages"
                    ),
                    f"max by (broker_group) (ledgermq_broker_group_transactions_undecided{{{GROUP}}})": (
                        "{{broker_group}} transactions"
                    ),
                },
            ),
            Panel(
                "Lengthened election time",
                "s",
                {f"ledgermq_broker_group_election_slack_seconds{{{GROUP}}}": REPLICA},
            ),
            Panel(
                "Log on disk",
                "bytes",
                {f"sum by (broker_group, instance) (ledgermq_disk_bytes{{{GROUP}}})": REPLICA},
            ),
        ),
    ),
    "topic": Dashboard(
        "LedgerMQ topic",
        {"topic": "rocketmq_messages_in_total"},
        (
            Panel(
                "Messages in per second",
                "cps",
                {rate("rocketmq_messages_in_total", "topic", TOPIC): "{{topic}}"},
            ),
            Panel(
                "Bytes in per second",
                "Bps",
                {rate("rocketmq_throughput_in_total", "topic", TOPIC): "{{topic}}"},
            ),
            Panel(
                "Messages in by broker group",
                "cps",
                {rate("rocketmq_messages_in_total", "broker_group", TOPIC): "{{broker_group}}"},
            ),
            Panel(
                "Messages out per second",
                "cps",
                {rate("rocketmq_messages_out_total", "topic, consumer_group", TOPIC): PAIR},
            ),
            Panel(
                "Bytes out per second",
                "Bps",
                {rate("rocketmq_throughput_out_total", "topic, consumer_group", TOPIC): PAIR},
            ),
            Panel(
                "Lag",
                "none",
                {
                    f"sum by (topic, consumer_group) (rocketmq_consumer_lag_messages{{{TOPIC}}})": (
                        PAIR
                    )
                },
            ),
            Panel(
                "Oldest unfinished message",
                "ms",
                {
                    f"max by (topic, consumer_group) (rocketmq_consumer_lag_latency_milliseconds{{{TOPIC}}})": (
                        PAIR
                    )
                },
            ),
            Panel(
                "Delivered again per second",
                "cps",
                {rate("ledgermq_redelivered_messages_total", "topic, consumer_group", TOPIC): PAIR},
            ),
            Panel(
                "Dead letters per second",
                "cps",
                {rate("rocketmq_send_to_dlq_messages_total", "topic, consumer_group", TOPIC): PAIR},
            ),
        ),
    ),
    "consumer-group": Dashboard(
        "LedgerMQ consumer group",
        {"consumer_group": "rocketmq_messages_out_total", "topic": "rocketmq_messages_out_total"},
        (
            Panel(
                "Ready",
                "none",
                {
                    f"sum by (consumer_group, topic) (rocketmq_consumer_ready_messages{{{CONSUMER}}})": (
                        PAIR
                    )
                },
            ),
            Panel(
                "In flight",
                "none",
                {
                    f"sum by (consumer_group, topic) (rocketmq_consumer_inflight_messages{{{CONSUMER}}})": (
                        PAIR
                    )
                },
            ),
            Panel(
                "Lag",
                "none",
                {
                    f"sum by (consumer_group, topic) (rocketmq_consumer_lag_messages{{{CONSUMER}}})": (
                        PAIR
                    )
                },
            ),
            Panel(
                "Age of the oldest message that is ready",
                "ms",
                {
                    f"max by (consumer_group, topic) (rocketmq_consumer_queueing_latency_milliseconds{{{CONSUMER}}})": (
                        PAIR
                    )
                },
            ),
            Panel(
                "Age of the oldest unfinished message",
                "ms",
                {
                    f"max by (consumer_group, topic) (rocketmq_consumer_lag_latency_milliseconds{{{CONSUMER}}})": (
                        PAIR
                    )
                },
            ),
            Panel(
                "Lag by broker group",
                "none",
                {
                    f"sum by (broker_group) (rocketmq_consumer_lag_messages{{{CONSUMER}}})": (
                        "{{broker_group}}"
                    )
                },
            ),
            Panel(
                "Messages per second",
                "cps",
                {rate("rocketmq_messages_out_total", "consumer_group, topic", CONSUMER): PAIR},
            ),
            Panel(
                "Delivered again per second",
                "cps",
                {
                    rate(
                        "ledgermq_redelivered_messages_total", "consumer_group, topic", CONSUMER
                    ): PAIR
                },
            ),
            Panel(
                "Dead letters per second",
                "cps",
                {
                    rate(
                        "rocketmq_send_to_dlq_messages_total", "consumer_group, topic", CONSUMER
                    ): PAIR
                },
            ),
        ),
    ),
    "node": Dashboard(
        "LedgerMQ node",
        {"instance": "ledgermq_node_info"},
        (
            Panel(
                "Version", "none", {f"ledgermq_node_info{{{NODE}}}": "{{node}} {{version}}"}, "stat"
            ),
            Panel(
                "Processor time",
                "percentunit",
                {rate("process_cpu_seconds_total", "instance", NODE): "{{instance}}"},
            ),
            Panel(
                "Memory",
                "bytes",
                {f"sum by (instance) (process_resident_memory_bytes{{{NODE}}})": "{{instance}}"},
            ),
            Panel(
                "Open files",
                "none",
                {f"sum by (instance) (process_open_fds{{{NODE}}})": "{{instance}}"},
            ),
            Panel(
                "Disk by kind",
                "bytes",
                {
                    f"sum by (instance, kind) (ledgermq_disk_bytes{{{NODE}}})": (
                        "{{instance}} {{kind}}"
                    )
                },
            ),
            Panel(
                "Disk level",
                "none",
                {f"max by (instance) (ledgermq_disk_level{{{NODE}}})": "{{instance}}"},
            ),
            Panel(
                "Slow syncs per second",
                "cps",
                {
                    rate(
                        "ledgermq_slow_syncs_total", "instance, severity", NODE
                    ): "{{instance}} {{severity}}"
                },
            ),
            Panel(
                "Calls per second",
                "cps",
                {rate("ledgermq_calls_total", "method", NODE): "{{method}}"},
            ),
            Panel(
                "Time of calls, 99 %",
                "s",
                {quantile(0.99, "ledgermq_call_seconds", "method", NODE): "{{method}}"},
            ),
            Panel(
                "Connections and calls",
                "none",
                {
                    f"sum by (instance) (ledgermq_front_connections{{{NODE}}})": (
                        "{{instance}} connections"
                    ),
                    f"sum by (instance) (ledgermq_open_calls{{{NODE}}})": "{{instance}} open calls",
                },
            ),
            Panel(
                "Calls forwarded and executed",
                "cps",
                {
                    rate(
                        "ledgermq_forwarded_calls_total", "instance", NODE
                    ): "{{instance}} forwarded",
                    rate(
                        "ledgermq_executed_calls_total", "instance", NODE
                    ): "{{instance}} executed for others",
                },
            ),
            Panel(
                "Refused callers",
                "cps",
                {
                    rate(
                        "ledgermq_authentication_failures_total", "instance", NODE
                    ): "{{instance}} not authenticated",
                    rate(
                        "ledgermq_permissions_denied_total", "instance", NODE
                    ): "{{instance}} without permission",
                    rate("ledgermq_over_quota_total", "instance", NODE): "{{instance}} over quota",
                    rate(
                        "ledgermq_connections_refused_total", "instance", NODE
                    ): "{{instance}} connections",
                    rate(
                        "ledgermq_calls_refused_total", "instance", NODE
                    ): "{{instance}} for want of memory",
                },
            ),
            Panel(
                "Memory of calls",
                "bytes",
                {
                    f"sum by (instance) (ledgermq_answer_bytes{{{NODE}}})": (
                        "{{instance}} answers with messages"
                    ),
                    f"sum by (instance) (ledgermq_front_buffered_bytes{{{NODE}}})": (
                        "{{instance}} in the front"
                    ),
                    f"sum by (instance) (ledgermq_front_unsent_bytes{{{NODE}}})": (
                        "{{instance}} not taken by sockets"
                    ),
                },
            ),
            Panel(
                "Bytes waiting for peers",
                "bytes",
                {
                    f"sum by (instance, peer) (ledgermq_peer_queue_bytes{{{NODE}}})": (
                        "{{instance}} to {{peer}}"
                    )
                },
            ),
            Panel(
                "Peer packets dropped",
                "cps",
                {
                    rate(
                        "ledgermq_peer_packets_dropped_total", "instance, peer", NODE
                    ): "{{instance}} to {{peer}}"
                },
            ),
            Panel(
                "Series left out",
                "none",
                {
                    f"sum by (instance, kind) (ledgermq_series_left_out{{{NODE}}})": (
                        "{{instance}} {{kind}}"
                    )
                },
            ),
        ),
    ),
    "audit": Dashboard(
        "LedgerMQ audit",
        {"broker_group": "ledgermq_term"},
        (
            Panel(
                "Files that differ from the majority",
                "none",
                {
                    f"sum by (broker_group, instance) (ledgermq_digest_mismatches{{{GROUP}}})": (
                        REPLICA
                    )
                },
                "stat",
            ),
            Panel(
                "Files without a majority",
                "none",
                {
                    f"sum by (broker_group) (ledgermq_disputed_log_files{{{GROUP}}})": (
                        "{{broker_group}}"
                    )
                },
                "stat",
            ),
            Panel(
                "Damaged ranges found",
                "none",
                {
                    f"sum by (broker_group, instance) (ledgermq_damaged_ranges_total{{{GROUP}}})": (
                        REPLICA
                    )
                },
                "stat",
            ),
            Panel(
                "Longest time without verification",
                "s",
                {
                    f"max by (broker_group, instance) (ledgermq_oldest_unverified_seconds{{{GROUP}}})": (
                        REPLICA
                    )
                },
            ),
            Panel(
                "Bytes verified per second",
                "Bps",
                {rate("ledgermq_scrubbed_bytes_total", "broker_group, instance", GROUP): REPLICA},
            ),
            Panel(
                "Bytes read for audits",
                "Bps",
                {rate("ledgermq_audit_read_bytes_total", "broker_group, instance", GROUP): REPLICA},
            ),
            Panel(
                "Time to a majority digest, 99 %",
                "s",
                {
                    quantile(
                        0.99, "ledgermq_agreement_seconds", "broker_group", GROUP
                    ): "{{broker_group}}"
                },
            ),
            Panel(
                "Digests that failed",
                "cps",
                {rate("ledgermq_digest_failures_total", "broker_group, instance", GROUP): REPLICA},
            ),
            Panel(
                "Bytes fetched for repairs",
                "Bps",
                {
                    rate(
                        "ledgermq_rebuilt_bytes_total", "broker_group, kind", GROUP
                    ): "{{broker_group}} {{kind}}"
                },
            ),
            Panel(
                "Repairs",
                "none",
                {
                    f"sum by (broker_group, kind) (ledgermq_rebuilds_total{{{GROUP}}})": (
                        "{{broker_group}} {{kind}}"
                    )
                },
            ),
            Panel(
                "Log files kept, by reason",
                "none",
                {
                    f"max by (broker_group, reason) (ledgermq_log_files_kept{{{GROUP}}})": (
                        "{{broker_group}} {{reason}}"
                    )
                },
            ),
            Panel(
                "Log files removed",
                "cps",
                {
                    rate(
                        "ledgermq_log_files_trimmed_total", "broker_group, instance", GROUP
                    ): REPLICA
                },
            ),
        ),
    ),
}
"""By file name."""


def built(name: str) -> dict[str, Any]:
    """A dashboard as Grafana reads it."""
    dashboard = DASHBOARDS[name]
    source = {"name": "datasource", "label": "source", "type": "datasource", "query": "prometheus"}
    choices = [
        {
            "name": label,
            "type": "query",
            "datasource": SOURCE,
            "query": f"label_values({metric}, {label})",
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }
        for label, metric in dashboard.choices.items()
    ]
    return {
        "uid": f"ledgermq-{name}",
        "title": dashboard.title,
        "tags": ["ledgermq"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "title": "LedgerMQ",
                "type": "dashboards",
                "tags": ["ledgermq"],
                "asDropdown": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [source, *choices]},
        "panels": [_panel(at, panel) for at, panel in enumerate(dashboard.panels)],
    }


def _panel(at: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(at, ACROSS)
    return {
        "id": at + 1,
        "type": panel.kind,
        "title": panel.title,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + k), "expr": expression, "legendFormat": legend}
            for k, (expression, legend) in enumerate(panel.lines.items())
        ],
    }


def text(name: str) -> str:
    """The content of the file of a dashboard."""
    return json.dumps(built(name), indent=1) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(text(each))
