"""The declarations of the metric families: their form, and that they are exactly the families that
a node exposes."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ledgermq.node.frontend.rocketmq.wire.meters import Meters
from ledgermq.node.process.telemetry.http import StateCollector
from ledgermq.node.process.telemetry.topic_figures import TopicFigures
from ledgermq.node.runtime import metrics, metrics_page, mirrored
from ledgermq.proto.types import PeerProgress, ReplicaStatus, Role
from tests.node_core.core_fakes import Bench

ROOT = Path(__file__).resolve().parents[2]
HEAD = re.compile(r"^# (HELP|TYPE) (\S+) (.*)$", re.MULTILINE)


def heads(page: str) -> dict[str, tuple[str, str]]:
    """Family → (type, help) of a page of metrics."""
    found: dict[str, dict[str, str]] = {}
    for what, name, text in HEAD.findall(page):
        found.setdefault(name, {})[what] = text
    return {name: (lines["TYPE"], lines["HELP"]) for name, lines in found.items()}


def collector(statuses: dict[str, ReplicaStatus]) -> StateCollector:
    engine: Any = SimpleNamespace(open_calls=3)
    found = StateCollector(
        "n1",
        engine,
        lambda: {"n2": 5},
        TopicFigures("c", "n1", engine, lambda: 0, 100),
        Meters().families,
    )
    found.statuses = statuses
    return found


def status(extra: dict[str, int], **fields: Any) -> ReplicaStatus:
    return ReplicaStatus("g1", "n1", Role.LEADER, 3, "n1", 0, 9, 9, 8, 7, extra=extra, **fields)


def page(statuses: dict[str, ReplicaStatus]) -> str:
    registry = CollectorRegistry()
    found = collector(statuses)
    registry.register(found)
    return generate_latest(registry).decode() + found._figures.page()


def test_every_declaration_is_well_formed() -> None:
    """Names are unique, only counters end in `_total`, a help is a sentence, and no label is called
    `group`."""
    assert len(metrics.DECLARED) > 100
    assert not [
        name for name, count in Counter(one.name for one in metrics.DECLARED).items() if count > 1
    ]
    for one in metrics.DECLARED:
        assert one.kind in ("counter", "gauge", "histogram"), one
        assert one.name.endswith("_total") is (one.kind == "counter"), one
        assert (
            one.help[0] == one.help[0].upper()
            and one.help.endswith(".")
            and len(one.help.split()) >= 4
        ), one
        assert "group" not in one.labels and len(set(one.labels)) == len(one.labels), one


def test_a_node_exposes_exactly_the_declared_families() -> None:
    """Those that the code updates and those that are mirrored, with type and help; also before
    anything has happened."""
    declared = {one.name: (one.kind, one.help) for one in metrics.DECLARED}
    found = {**heads(generate_latest(metrics.REGISTRY).decode()), **heads(page({}))}
    assert found == declared


def test_a_status_fills_the_mirrored_families() -> None:
    """Roles, positions, followers and statistics, each with the label of its broker group."""
    follower = PeerProgress("n2", Role.FOLLOWER, 4, 4, state="catching-up", behind_entries=5)
    text = page(
        {
            "g1": status(
                {
                    "produced": 4,
                    "in_flight": 2,
                    "election-slack-ms": 1500,
                    "needs-snapshot:n2": 1,
                    "dropped-shape": 6,
                },
                peers=(follower,),
            )
        }
    )
    samples = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    g1 = ("broker_group", "g1")
    assert samples["ledgermq_role", (g1, ("role", "leader"))] == 1
    assert samples["ledgermq_applied_index", (g1,)] == 7
    assert samples["ledgermq_follower_behind_entries", (g1, ("follower", "n2"))] == 5
    assert samples["ledgermq_broker_group_messages_produced_total", (g1,)] == 4
    assert samples["ledgermq_broker_group_messages_in_flight", (g1,)] == 2
    assert samples["ledgermq_broker_group_election_slack_seconds", (g1,)] == 1.5
    assert samples["ledgermq_broker_group_follower_needs_snapshot", (g1, ("follower", "n2"))] == 1
    assert (
        samples["ledgermq_broker_group_peer_packets_rejected_total", (g1, ("reason", "shape"))] == 6
    )


def test_every_statistic_is_declared() -> None:
    """Those of a broker group, and those that a replica counts under names in its source; a
    statistic without a declaration is an error."""
    source = (ROOT / "node/replica/consensus/raft_replica.py").read_text()
    counted = re.findall(r'_counts\[f?"([^"]+)"\]', source) + re.findall(
        r'f?"([a-z-]+(?::|-)\{[^"]*)": ', source
    )
    assert {"stale-term", "needs-snapshot:{peer.node}", "refused-{reason}"} <= set(counted)
    running = (ROOT / "node/replica/hosting/running.py").read_text()
    memory = re.findall(r'"([a-z-]+-bytes)": ', running)
    assert len(memory) == 2
    for key in (
        *Bench().group.statistics(),
        "in_sync",
        "in_sync_short",
        "admitted",
        "election-slack-ms",
        *counted,
        *memory,
    ):
        declared, labels = mirrored.statistic(key)
        assert len(declared.declared.labels) == 1 + len(labels), key
    with pytest.raises(KeyError):
        mirrored.statistic("unheard-of")


def test_the_page_of_metrics_is_up_to_date() -> None:
    """`docs/metrics.md` is what the declarations generate, and names every family once."""
    written = (ROOT / "docs/metrics.md").read_text()
    assert written == metrics_page.page(), "write it again, as its second paragraph says"
    assert sorted(re.findall(r"^\| `([a-z_]+)` \|", written, re.MULTILINE)) == sorted(
        one.name for one in metrics.DECLARED
    )


def test_programs_and_pages_name_metrics_that_exist() -> None:
    """A metric that a page, a test, a bench or a rule names is declared; an older name stays only
    in the changelog."""
    endings = {"counter": ("",), "gauge": ("",), "histogram": ("", "_bucket", "_sum", "_count")}
    known = {one.name + ending for one in metrics.DECLARED for ending in endings[one.kind]}
    command = [
        "git",
        "grep",
        "-noE",
        r"\bledgermq_[a-z_]+(_total|_seconds|_bytes|_entries|_index|_files|_state|_known)\b",
        "--",
    ]
    listing = subprocess.run(
        [*command, "docs", "bench", "tests", "examples", "deploy", "README.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert listing.returncode == 0
    lines = [
        line for line in listing.stdout.splitlines() if not line.startswith("docs/track-record.md")
    ]
    assert len(lines) > 50
    assert [line for line in lines if line.rpartition(":")[2] not in known] == []


def test_no_program_reads_a_metric_by_the_label_group() -> None:
    """It would find nothing: the labels are `broker_group` and `consumer_group`."""
    pattern = r"(ledgermq|rocketmq)_[a-z_]+\{.*[,{]group="
    assert re.search(pattern, 'ledgermq_leader_known{{worker="{worker}",' + 'group="{group}"}}')
    command = [
        "git",
        "grep",
        "-nE",
        pattern,
        "--",
        "docs",
        "bench",
        "tests",
        "examples",
        "deploy",
        "README.md",
    ]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (listing.returncode, listing.stdout) == (1, "")
