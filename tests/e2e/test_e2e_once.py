"""Effectively once on real processes: a deduplication window while the leader is killed, and what
the cluster says of a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import leader, running
from tests.e2e.command_line import CommandLine
from tests.e2e.test_e2e_failures import TOPIC, TOTAL, send_through

pytestmark = pytest.mark.slow


def test_a_killed_leader_makes_no_duplicates(tmp_path: Path) -> None:
    """Sends with an unknown outcome are repeated under their ids: every message is stored exactly
    once. An SQL filter then gets its matches, and the cluster reports that one message was
    filtered, and another acknowledged, with its events."""
    with running(tmp_path) as cluster:
        cli = CommandLine.of(cluster)
        cli.ok("topic", "create", TOPIC, "--dedup", "10m")
        first = leader(cluster)
        bodies = send_through(cli, cluster, lambda: cluster.kill(first))
        stored = cli.ok("peek", "--topic", TOPIC, "--max", str(2 * TOTAL), "--json").lines
        assert sorted(message["body"] for message in stored) == sorted(bodies)
        cluster.start(first)

        for amount in ("5", "50"):
            cli.ok(
                "send",
                "--topic",
                TOPIC,
                "--body",
                f"amount {amount}",
                "--property",
                f"amount={amount}",
            )
        wanted = cli.ok(
            "consume",
            "--topic",
            TOPIC,
            "--group",
            "g",
            "--filter",
            "sql:amount > 10",
            "--until-empty",
            "3s",
            "--json",
        ).lines
        assert [message["body"] for message in wanted] == ["amount 50"]
        why = cli.ok("why-not-delivered", wanted[0]["message_id"], "--group", "g", "--json").json
        assert why["reason"] == "acknowledged", why
        assert (
            cli.ok("why-not-delivered", stored[0]["message_id"], "--group", "g", "--json").json[
                "reason"
            ]
            == "filtered"
        )
        trace = cli.ok(
            "query", "--topic", TOPIC, "--id", wanted[0]["message_id"], "--trace", "--json"
        ).lines
        assert [event["event"] for event in trace] == ["stored", "leased", "acknowledged"]
