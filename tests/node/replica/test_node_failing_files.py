"""EIO of each small file of a node, at its start and while it runs: an enumerated exit status and
one sentence, never a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.cluster import prepare, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

PROGRAM = """
import errno, sys
from ledgermq.cli import main
from ledgermq.storage.files.real_disk import RealDisk

method, part, *arguments = sys.argv[1:]
real = getattr(RealDisk, method)

def failing(self, path, *rest, **more):
    if part in path:
        raise OSError(errno.EIO, "Input/output error", path)
    return real(self, path, *rest, **more)

setattr(RealDisk, method, failing)
sys.argv = ["ledgermq", *arguments]
main()
"""


def started(cluster: LocalCluster, method: str, part: str) -> subprocess.Popen[bytes]:
    """The node, on a disk that answers EIO when `method` is called for a path with `part` in it."""
    settings = [
        word
        for setting in ("node=n1", f"data={cluster.data('n1')}", *cluster.settings)
        for word in ("--set", setting)
    ]
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        method,
        part,
        "serve",
        "--config",
        str(cluster.config_file),
        *settings,
    ]
    own = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
    return subprocess.Popen(
        command,
        env=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def said(process: subprocess.Popen[bytes]) -> str:
    """What it wrote until its end, without a trace and without a bug."""
    _, errors = process.communicate(timeout=60)
    text = errors.decode()
    assert "Traceback" not in text and "this is a bug" not in text, text
    return text.splitlines()[-1]


@pytest.mark.verify
def test_failing_file_at_start_exits_with_73(tmp_path: Path) -> None:
    """The files of the controller and the record of the starts, which lie outside of what opening a
    group explains."""
    cluster = prepare(tmp_path, nodes=1)
    cluster.start_all()
    cluster.wait_ready()
    # A node is ready before the controller has agreed on everything that it keeps in these files.
    wait_for(
        lambda: all(
            (cluster.data("n1") / "controller" / name).exists()
            for name in ("groups.json", "nodes.json")
        ),
        60,
        "both files",
    )
    assert set(cluster.stop().values()) == {0}
    for method, part in (
        ("read_file", "controller/journal"),
        ("read_file", "controller/groups.json"),
        ("read_file", "controller/nodes.json"),
        ("listdir", "/controller"),
        ("read_file", "state/boots.json"),
        ("replace_file", "state/boots.json"),
    ):
        process = started(cluster, method, part)
        line = said(process)
        assert (process.returncode, line.startswith("error: ")) == (73, True), (method, part, line)
        assert "Input/output error" in line and "disk" in line, (method, part, line)


def test_unrecorded_start_of_a_group_exits_with_73(tmp_path: Path) -> None:
    """Before, the task that opens groups was gone without a word, and no group was opened or closed
    any more."""
    cluster = prepare(tmp_path, nodes=1)
    process = started(cluster, "replace_file", "g2/state/boots.json")
    try:
        wait_for(lambda: cluster.ready("n1") or process.poll(), 60, "a node")
        CommandLine.of(cluster).run(
            "broker-group", "add", "g2", "--replicas", "n1", "--timeout", "5s"
        )
        wait_for(lambda: process.poll() is not None, 30, "the end of the node")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    line = said(process)
    assert (process.returncode, "g2/state/boots.json" in line) == (73, True), line
