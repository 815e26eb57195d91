"""A log is sealed before its file is full: one message is proven seconds after it was sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import create_topic, running
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

FILE_BYTES = 24 << 20
"""So long that a blank is not written whole."""


def log_files(cluster_dir: Path) -> list[int]:
    return sorted(
        int(path.name) for path in cluster_dir.glob("dledger-*/data/*") if path.name.isdigit()
    )


@pytest.mark.parametrize("replication", ["raft", "ha"])
def test_one_message_is_proven_and_the_log_stays_sound(tmp_path: Path, replication: str) -> None:
    """A seal with nothing new ends no file; after a restart, and for the audit, the log is
    whole."""
    with running(
        tmp_path, log_file_bytes=FILE_BYTES, groups=({"name": "g1", "replication": replication},)
    ) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=1)
        cli.send_lines("t", ["hello"])
        too_early = cli.run(
            "prove",
            "--topic",
            "t",
            "--queue",
            "0",
            "--offset",
            "0",
            "--to",
            str(tmp_path / "early.proof"),
        )
        assert too_early.status == 4 and "ledgermq seal g1" in too_early.err
        sealed = cli.ok("seal", "g1", "--timeout", "60s", "--json").json
        assert sealed["size"] == 1 and sealed["next_index"] > sealed["through"] > 0
        (tmp_path / "keys").write_text(cli.ok("checkpoint", "keys").out)
        cli.ok(
            "prove",
            "--topic",
            "t",
            "--queue",
            "0",
            "--offset",
            "0",
            "--to",
            str(tmp_path / "t.proof"),
        )
        told = cli.ok(
            "verify-proof", str(tmp_path / "t.proof"), "--keys", str(tmp_path / "keys")
        ).out
        assert told.startswith("PROVEN: ")
        again = cli.ok("seal", "g1", "--timeout", "60s", "--json").json
        assert (again["size"], again["next_index"]) == (1, sealed["next_index"])
        for node in cluster.nodes:
            assert FILE_BYTES in log_files(
                cluster.data(node) / "g1"
            ) and 2 * FILE_BYTES not in log_files(cluster.data(node) / "g1")
        cli.send_lines("t", ["a second one"])
        assert cli.ok("seal", "g1", "--timeout", "60s", "--json").json["size"] == 2
        for node in cluster.nodes:
            assert cluster.terminate(node) == 0
        for node in cluster.nodes:
            cluster.start(node)
        cli.send_lines("t", ["a third one"])
        assert cli.ok("seal", "g1", "--timeout", "60s", "--json").json["size"] == 3
    verdict = cli.run(
        "audit",
        "--engine",
        "local",
        "--deep",
        *(cluster.data(node) for node in cluster.nodes),
        timeout_s=120,
    )
    assert verdict.status == 0, verdict.out + verdict.err
