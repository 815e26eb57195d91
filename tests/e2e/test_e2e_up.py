"""`up` as a process: it resumes its directory and stops without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import base_port
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
