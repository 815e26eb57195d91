"""A majority is lost for good: one survivor is begun anew, and two empty machines become voters
again. The documented way, step by step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster import create_topic, running, target, wait_for
from tests.e2e.audit.test_e2e_repair import passes, replica
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow


def bodies(first: int, count: int) -> list[str]:
    return [f"{number:06d}".ljust(500, ".") for number in range(first, first + count)]


def test_from_one_survivor_back_to_three_voters(tmp_path: Path) -> None:
    """What the survivor had is read afterwards, what is sent later needs two of three, and the
    audit proves all three logs."""
    with running(tmp_path, log_file_bytes=256 << 10) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        sent = bodies(0, 100)
        assert cli.send_lines("t", sent)["acknowledged"] == 100
        assert cli.ok("status", "--wait", "30s", "--strict")
        assert set(cluster.stop().values()) <= {0}
        for node in ("n2", "n3"):
            shutil.rmtree(cluster.data(node))
        note = cli.ok(
            "recover", "--force-new-cluster", "--data", cluster.data("n1"), "--yes", "--json"
        ).json["groups"]["g1"]
        assert note["state"] == "done" and note["loss"]["given_up"] == ["n2", "n3"]
        copy = tmp_path / "copy"
        cli.ok("backup", "--data", cluster.data("n1"), "--to", copy)
        for node in ("n2", "n3"):
            cli.ok("restore", "--from", copy, "--data", cluster.data(node), "--node", node)
        cluster.start_all()
        survivor = CommandLine(target(cluster, "n1"))
        assert survivor.send_lines("t", ["alone"], "--timeout", "30s")["acknowledged"] == 1
        for node in ("n2", "n3"):
            survivor.ok("member", "add", node, "--timeout", "40s")
            assert (
                survivor.ok("member", "promote", node, "--timeout", "40s").out == f"{node} votes\n"
            )
        wait_for(lambda: cli.run("status", "--strict").status == 0, 40, "three voters")
        assert {replica(cli, node)["role"] for node in cluster.nodes} == {"leader", "follower"}
        # Two of three are enough, and the survivor is not needed.
        assert cluster.terminate("n1") == 0
        more = bodies(100, 20)
        assert (
            CommandLine(target(cluster, "n2")).send_lines("t", more, "--timeout", "30s")[
                "acknowledged"
            ]
            == 20
        )
        cluster.start("n1")
        assert cli.ok("status", "--wait", "40s", "--strict")
        found = {
            message["body"]
            for message in cli.ok("peek", "--topic", "t", "--max", "10000", "--json").lines
        }
        assert found == {*sent, "alone", *more}
    passes(cli, cluster)
