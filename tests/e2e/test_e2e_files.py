"""File permissions: whatever the umask of the shell, no file or directory of any command is
accessible to other users."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command_line import LEDGERMQ, CommandLine
from tests.e2e.test_e2e_import import store_root
from tests.e2e.test_e2e_up import base_port, up

pytestmark = pytest.mark.slow

TOO_MUCH = stat.S_IWGRP | stat.S_IRWXO


@pytest.fixture
def lax() -> Iterator[None]:
    """A shell with an umask of 0, which commands inherit."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.verify
def test_files_of_commands_are_closed_to_other_users(tmp_path: Path, lax: None) -> None:
    """Nodes with their logs and controller journals, copies of messages, receipts, reports,
    findings of both engines, backups, repairs."""
    made, given = tmp_path / "made", tmp_path / "given"
    made.mkdir(mode=0o750)
    given.mkdir()
    (given / "rows.jsonl").write_text(
        "".join(json.dumps({"body": f"message {k}"}) + "\n" for k in range(300))
    )
    data, nodes = made / "data", [made / "data" / f"n{k}" for k in (1, 2, 3)]
    with up(data, base_port(), "--tls") as (process, endpoints):
        cli = CommandLine(endpoints, "--tls", "--ca", data / "tls" / "ca.pem")
        cli.ok("topic", "create", "t")
        cli.ok(
            "send",
            "--topic",
            "t",
            "--file",
            given / "rows.jsonl",
            "--receipts",
            made / "receipts.parquet",
        )
        for kind in ("jsonl", "csv", "parquet"):
            cli.ok(
                "consume",
                "--topic",
                "t",
                "--group",
                kind,
                "--to",
                made / f"copy.{kind}",
                "--until-empty",
                "1s",
            )
        cli.ok(
            "audit",
            "--endpoints",
            endpoints,
            "--engine",
            "local",
            "--html",
            made / "running.html",
            "--findings",
            made / "running",
        )
        bare = CommandLine(endpoints)
        bare.ok("backup", "--data", nodes[0], "--to", made / "backup")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    bare.ok("restore", "--from", made / "backup", "--data", made / "restored", "--node", "n1")
    for engine in ("local", "spark"):
        bare.ok(
            "audit",
            "--engine",
            engine,
            *nodes,
            "--html",
            made / f"{engine}.html",
            "--findings",
            made / engine,
            timeout_s=240,
        )
    _damage(nodes[1])
    assert (
        bare.run("audit", "--engine", "local", *nodes, "--findings", made / "damaged").status == 1
    )
    bare.ok("repair", "--from-findings", made / "damaged")
    bare.ok("certificates", made / "certificates", "n1=localhost")
    store = store_root(given / "store", "commitlog")
    subprocess.run(
        [
            *LEDGERMQ,
            "import",
            "--from",
            store.path,
            "--data",
            made / "imported",
            "--log-file-size",
            "1MiB",
        ],
        check=True,
    )
    found = [path for path in made.rglob("*") if not path.is_symlink()]
    assert len(found) > 200, "the commands wrote little of what they are meant to"
    assert any("journal" in str(path) for path in found) and any(
        path.name == "node.log" for path in found
    )
    assert {
        str(path.relative_to(made)): oct(path.stat().st_mode)
        for path in found
        if path.stat().st_mode & TOO_MUCH
    } == {}


def _damage(node: Path) -> None:
    path = next(
        found
        for found in sorted(node.glob("*/dledger-*/data/*"))
        if b"message 17" in found.read_bytes()
    )
    stored = path.read_bytes()
    path.write_bytes(stored.replace(b"message 17", b"message 71", 1))
