"""The alert rules for Prometheus: they name metrics that exist, and each alert fires when it should
and ends afterwards."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.promql import labels_left

RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus/alerts.yaml"
G1 = 'broker_group="g1",instance="n1"'
CONSUMER = 'broker_group="g1",instance="n1",topic="t",consumer_group="g"'
CASES: dict[str, tuple[tuple[str, str], str, str, str]] = {
    "LedgerMQNodeDown": (('up{job="ledgermq",instance="n1"}', "1x4 0x5 1x30"), "4m", "7m", "12m"),
    "LedgerMQNoLeader": ((f"ledgermq_leader_known{{{G1}}}", "1x4 0x5 1x30"), "4m", "7m", "12m"),
    "LedgerMQReplicaNotRunning": (
        (f'ledgermq_broker_group_state{{{G1},state="repairing"}}', "0x4 1x15 0x30"),
        "10m",
        "17m",
        "23m",
    ),
    "LedgerMQFollowerBehind": (
        (f'ledgermq_follower_behind_bytes{{{G1},follower="n2"}}', "0x4 99999999x15 0x30"),
        "10m",
        "17m",
        "23m",
    ),
    "LedgerMQInSyncSetTooSmall": (
        (f"ledgermq_broker_group_in_sync_missing{{{G1}}}", "0x4 1x5 0x30"),
        "4m",
        "7m",
        "12m",
    ),
    "LedgerMQReplicasDiffer": (
        (f"ledgermq_digest_mismatches{{{G1}}}", "0x4 1x5 0x30"),
        "4m",
        "7m",
        "12m",
    ),
    "LedgerMQDamageFound": (
        (f"ledgermq_damaged_ranges_total{{{G1}}}", "_x4 1x200"),
        "3m",
        "7m",
        "90m",
    ),
    "LedgerMQLogNotVerified": (
        (f"ledgermq_oldest_unverified_seconds{{{G1}}}", "604700+60x90 0x60"),
        "30m",
        "80m",
        "95m",
    ),
    "LedgerMQNotInObjectStore": (
        (f"ledgermq_tiered_waiting_seconds{{{G1}}}", "0x4 960x15 0x30"),
        "7m",
        "12m",
        "23m",
    ),
    "LedgerMQStoreTimesAhead": (
        (f"ledgermq_broker_group_newest_store_timestamp_seconds{{{G1}}}", "0x4 1200x40"),
        "5m",
        "12m",
        "21m",
    ),
    "LedgerMQDiskFillsUp": (
        ('ledgermq_disk_level{instance="n1"}', "0x4 1x10 0x30"),
        "7m",
        "12m",
        "17m",
    ),
    "LedgerMQDiskFull": (
        ('ledgermq_disk_level{instance="n1"}', "0x4 3x10 0x30"),
        "4m",
        "7m",
        "17m",
    ),
    "LedgerMQWritesRefused": (
        (f"ledgermq_broker_group_writes_refused{{{G1}}}", "0x4 1x5 0x30"),
        "4m",
        "7m",
        "12m",
    ),
    "LedgerMQSlowDisk": (
        (f'ledgermq_slow_syncs_total{{{G1},severity="alarm"}}', "0x4 1+1x15 16x30"),
        "7m",
        "17m",
        "30m",
    ),
    "LedgerMQClockOff": (
        ('ledgermq_clock_state{instance="n1",state="off"}', "0x4 1x10 0x30"),
        "4m",
        "8m",
        "17m",
    ),
    "LedgerMQPeerTls": (
        (
            'ledgermq_peer_tls_failures_total{instance="n1",peer="n2",reason="expired"}',
            "0x4 1+1x8 9x40",
        ),
        "4m",
        "8m",
        "25m",
    ),
    "LedgerMQStrangeDirectory": (
        (f'ledgermq_peer_packets_barred_total{{{G1},peer="n2"}}', "0x4 1+1x5 6x40"),
        "4m",
        "8m",
        "25m",
    ),
    "LedgerMQConsumersBehind": (
        (f"rocketmq_consumer_queueing_latency_milliseconds{{{CONSUMER}}}", "0+60000x30 0x30"),
        "18m",
        "25m",
        "33m",
    ),
    "LedgerMQDeadLetters": (
        (f"rocketmq_send_to_dlq_messages_total{{{CONSUMER}}}", "0x4 1x60"),
        "4m",
        "7m",
        "20m",
    ),
    "LedgerMQAnswersNotTaken": (
        ('ledgermq_calls_refused_total{instance="n1",reason="unread"}', "0x4 1+1x5 6x40"),
        "4m",
        "8m",
        "25m",
    ),
    "LedgerMQSeriesLeftOut": (
        ('ledgermq_series_left_out{instance="n1",kind="topic"}', "0x4 8x30 0x30"),
        "15m",
        "25m",
        "40m",
    ),
}
"""Alert → its series minute by minute, and when it does not fire yet, fires, and has ended."""
FURTHER = {
    "LedgerMQDamageFound": (
        (f"ledgermq_damaged_ranges_total{{{G1}}}", "0x4 2x200"),
        "4m",
        "7m",
        "90m",
    ),
    "LedgerMQClockOff": (
        ('ledgermq_clock_state{instance="n1",state="divided"}', "0x4 1x10 0x30"),
        "4m",
        "8m",
        "17m",
    ),
    "LedgerMQReplicasDiffer": (
        (f"ledgermq_disputed_log_files{{{G1}}}", "0x4 1x5 0x30"),
        "4m",
        "7m",
        "12m",
    ),
    "LedgerMQDeadLetters": (
        (f"rocketmq_send_to_dlq_messages_total{{{CONSUMER}}}", "_x4 1x60"),
        "3m",
        "7m",
        "20m",
    ),
}


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def test_alert_rules_name_declared_metrics_and_a_remedy() -> None:
    """Every metric and label is declared, and the sentences name labels that the alert has; summary
    and remedy are sentences."""
    for rule in rules():
        left = labels_left(rule["expr"])
        assert set(re.findall(r"\$labels\.([a-z_]+)", str(rule["annotations"]))) <= left, rule[
            "alert"
        ]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "remedy"} and all(
            text.endswith((".", ").", "}}.")) for text in rule["annotations"].values()
        )


def test_every_alert_has_its_case() -> None:
    assert [rule["alert"] for rule in rules()] == list(CASES)


def test_the_page_lists_every_alert() -> None:
    page = (RULES.parents[2] / "docs/monitoring.md").read_text()
    assert re.findall(r"^\| `(LedgerMQ\w+)` \|", page, re.MULTILINE) == [
        rule["alert"] for rule in rules()
    ]


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)


def expecting(alert: str, at: str, firing: int) -> dict[str, Any]:
    samples = [{"labels": "{}", "value": firing}] if firing else []
    return {
        "expr": f'count(ALERTS{{alertstate="firing",alertname="{alert}"}})',
        "eval_time": at,
        "exp_samples": samples,
    }


def test_the_rules_are_valid() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_when_it_should_and_ends(tmp_path: Path) -> None:
    """Each case in a store of its own: silent at first, firing while the condition holds, and
    silent again; no other alert fires."""
    tests = []
    for alert, ((series, values), before, during, after) in [*CASES.items(), *FURTHER.items()]:
        expected = [
            expecting(alert, before, 0),
            expecting(alert, during, 1),
            expecting(alert, after, 0),
        ]
        others = {
            "expr": f'count(ALERTS{{alertstate="firing",alertname!="{alert}"}})',
            "eval_time": during,
            "exp_samples": [],
        }
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": values}],
                "promql_expr_test": [*expected, others],
            }
        )
    path = tmp_path / "cases.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests})
    )
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
