"""`up` and `serve` as processes: resuming, stopping without a trace, and the refusals to start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster, free_ports
from tests.cluster import base_port, prepare, running, wait_for
from tests.e2e.command_line import LEDGERMQ, CommandLine, environment

pytestmark = pytest.mark.slow


@contextmanager
def up(data: Path, base: int, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A running `up` and the endpoints it printed; whatever is left of it is killed at the end."""
    command = [
        *LEDGERMQ,
        "up",
        "--data",
        str(data),
        "--base-port",
        str(base),
        "--log-file-size",
        "4MiB",
        *more,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment("")
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline().decode()
        assert line.startswith("ready: endpoints="), process.stderr.read().decode()
        yield process, line.removeprefix("ready: endpoints=").strip()
    finally:
        for pid in [*children_of(data), process.pid]:
            if pid != process.pid or process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def children_of(data: Path) -> list[int]:
    """Every `serve` process that runs on this cluster directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in words and any(str(data).encode() in word for word in words):
                found.append(int(entry.name))
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_resumes_its_directory_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Messages survive a stop by Ctrl-C or SIGTERM, which ends with 0, no process and no abort
    file."""
    data, base = tmp_path / "data", base_port()
    for round_ in range(2):
        with up(data, base) as (process, endpoints):
            assert endpoints == ";".join(f"127.0.0.1:{base + k}" for k in range(3))
            cli = CommandLine(endpoints)
            if round_ == 0:
                cli.ok("topic", "create", "t")
                assert cli.send_lines("t", [f"m{k}" for k in range(50)])["acknowledged"] == 50
            else:
                assert sorted(cli.consume_all("t", "g")) == sorted(f"m{k}" for k in range(50))
            assert len(children_of(data)) == 3
            process.send_signal(number)
            assert process.wait(60) == 0
            assert process.stderr is not None and "error" not in process.stderr.read().decode()
            assert children_of(data) == [] and list(data.glob("*/*/abort")) == []
    other = subprocess.run(
        [*LEDGERMQ, "up", "--data", str(data), "--nodes", "5"], capture_output=True, check=False
    )
    assert other.returncode == 4 and b"--nodes 3" in other.stderr.splitlines()[-1]


@pytest.mark.verify
def test_nodes_end_with_an_up_that_was_killed(tmp_path: Path) -> None:
    """SIGKILL of `up` leaves no node behind: each notices that its supervisor is gone."""
    data = tmp_path / "data"
    with up(data, base_port()) as (process, _):
        assert len(children_of(data)) == 3
        process.kill()
        process.wait()
        wait_for(lambda: not children_of(data), 30, "the end of the nodes")


def serve(cluster: LocalCluster, node: str, *settings: str) -> subprocess.CompletedProcess[str]:
    """A `serve` that must end by itself."""
    command = [sys.executable, "-m", "ledgermq", "serve", "--config", str(cluster.config_file)]
    for setting in (f"node={node}", f"data={cluster.data(node)}", *settings):
        command += ["--set", setting]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(""), timeout=60, check=False
    )


def last_line(outcome: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in outcome.stderr
    return outcome.stderr.splitlines()[-1]


def test_taken_port_is_72_and_foreign_directories_are_71(tmp_path: Path) -> None:
    """A second server on a port, on a directory in use, and on another node's directory: one error
    line each, and no other node is affected."""
    with running(tmp_path) as cluster:
        alone = cluster.nodes["n1"]
        mine = tmp_path / "mine"
        ports = free_ports(1)[0]
        others = (
            f"data={mine}",
            f"nodes.n1.peer_port={ports.peer_port}",
            f"nodes.n1.controller_port={ports.controller_port}",
        )
        taken = serve(cluster, "n1", *others)
        assert taken.returncode == 72, taken.stderr
        assert last_line(taken).startswith("error: ") and str(alone.client_port) in last_line(taken)
        in_use = serve(cluster, "n1")
        assert in_use.returncode == 71, in_use.stderr
        assert last_line(in_use).startswith("error: ")
        assert CommandLine.of(cluster).ok("status", "--wait", "60s", "--strict")


def test_directory_of_another_node_is_71(tmp_path: Path) -> None:
    """A node refuses data that belongs to another one, and says whose it is."""
    with running(tmp_path) as cluster:
        assert cluster.terminate("n1") == 0
        assert cluster.terminate("n2") == 0
        foreign = serve(cluster, "n1", f"data={cluster.data('n2')}")
        assert foreign.returncode == 71, foreign.stderr
        assert last_line(foreign).startswith("error: ") and "n2" in last_line(foreign)


def test_unusable_data_directory_is_71(tmp_path: Path) -> None:
    """A path that is a file is named with what to do."""
    cluster = prepare(tmp_path)
    blocker = tmp_path / "file"
    blocker.write_text("")
    unusable = serve(cluster, "n1", f"data={blocker}/n1")
    assert unusable.returncode == 71 and str(blocker) in last_line(unusable)
