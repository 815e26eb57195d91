"""The whole demo as `make demo` starts it, small; and interrupted in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("rocketmq", reason="the demo's dependencies are not installed")

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def demo(temporary: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The demo with its work directory under `temporary`."""
    command = [sys.executable, "-m", "examples.flights", "--messages", "600", *more]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            for pid in processes_of(temporary):
                os.kill(pid, signal.SIGKILL)


def processes_of(directory: Path) -> list[int]:
    """All processes whose command line or home is in the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in told:
                found.append(int(entry.name))
    return found


@pytest.mark.timeout(600)
def test_small_demo_passes(tmp_path: Path) -> None:
    """Every flight arrives, a leader dies, the audit passes, and the last line reports this; no
    process or data remains."""
    with demo(tmp_path) as process:
        out, err = process.communicate()
        assert (process.returncode, out.splitlines()[-1]) == (0, "demo: PASS"), out + err
        assert "demo:" not in err and "killed the leader" in err
        for row in (
            "acknowledged",
            "consumed",
            "duplicates",
            "lost",
            "time without a leader",
            "audit n1",
            "audit n2",
            "audit n3",
        ):
            assert row in out
        assert processes_of(tmp_path) == []
        assert list(tmp_path.glob("ledgermq-demo-*")) == []


@pytest.mark.timeout(300)
def test_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    """SIGINT while flights are published: FAIL as the last line, the status of an interrupt, the
    data kept, no process."""
    with demo(tmp_path) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "publishing" in line:
                break
        assert processes_of(tmp_path)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
        assert (process.returncode, out.splitlines()[-1]) == (130, "demo: FAIL: interrupted")
        assert processes_of(tmp_path) == []
        assert len(list(tmp_path.glob("ledgermq-demo-*"))) == 1


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_the_demo_with_a_console_stays_until_it_is_interrupted(tmp_path: Path) -> None:
    """The console answers after the audit, with the running nodes; Ctrl-C ends everything, and the
    demo has passed."""
    pytest.importorskip("jinja2")
    with demo(tmp_path, "--console") as process:
        assert process.stderr is not None
        said = ""
        while "until Ctrl-C" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line.strip() + " "
        address = re.findall(r"console: (http://127\.0\.0\.1:\d+/)", said)[-1]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(address, timeout=30) as answer:
            assert "3 of 3 nodes up" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
        assert (process.returncode, out.splitlines()[-1]) == (0, "demo: PASS"), out
        assert processes_of(tmp_path) == []
