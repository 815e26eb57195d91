"""bench/peers: every row says what durability it was measured with, a peer that cannot be had gives
its reason, servers are gone after."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as suite
from bench import peers
from bench.peers import common, rocketmq
from bench.tools import report

RESULT = {"messages_per_s": 1234.5, "p50_ms": 1.5, "p99_ms": 250.0, "total": 10.0}


def row(
    durability_class: str, system: str = "system", rate: float = 1234.5, kind: str = common.SINGLES
) -> dict[str, Any]:
    result = {**RESULT, "messages_per_s": rate}
    return common.Row(
        system, "v1", durability_class, "in words", "a client", "alone", result, 100, kind=kind
    ).document()


def table(rows: list[dict[str, Any]]) -> list[str]:
    return peers.table(
        {"seconds": 10.0, "warm_up_s": 30.0, "rows": rows, "skipped": {"other": "no such tool"}}
    ).splitlines()


def test_every_row_of_the_table_says_its_durability_class() -> None:
    lines = table([row(common.MEMORY), row(common.DURABLE)])
    assert lines[0] == "Every load ran for 30 s before the 10 s that were measured."
    titles, rows = lines[2].split("|"), lines[4:6]
    assert titles[2].strip() == "durability"
    assert [line.split("|")[2].split(":")[0].strip(" *") for line in rows] == [
        common.DURABLE,
        common.MEMORY,
    ]
    assert lines[6:] == ["", "other was skipped: no such tool."]


def test_ratios_begin_with_those_that_we_lose() -> None:
    """Each row against our fastest one of its class and kind; a row of a weaker class against our
    weakest; no counterpart, no ratio."""
    rows = [
        row(common.DURABLE, "fast", 400, common.BATCHES),
        row(common.DURABLE, "slow", 50),
        row(common.WEAKER, "careless", 600, common.OFFICIAL),
        row(common.MEMORY, "slow", 300, common.BATCHES),
        row(common.DURABLE, "LedgerMQ, one way", 100),
        row(common.DURABLE, "LedgerMQ, another way", 200),
        row(common.DURABLE, "LedgerMQ, batches", 300, common.BATCHES),
        row(common.MEMORY, "LedgerMQ, its client", 150, common.OFFICIAL),
    ]
    found = [(ratio, ours["system"], other["system"]) for ratio, ours, other in peers.ratios(rows)]
    assert found == [
        (0.25, "LedgerMQ, its client", "careless"),
        (0.75, "LedgerMQ, batches", "fast"),
        (4.0, "LedgerMQ, another way", "slow"),
    ]
    first = next(line for line in table(rows) if line.startswith("| **0.25**"))
    kept = f"{common.WEAKER} (LedgerMQ: {common.MEMORY})"
    assert first == f"| **0.25** | careless | {kept} | {common.OFFICIAL} | 600 | 150 |"
    assert [line.split("**")[1] for line in table(rows) if line.startswith("| **")] == [
        "0.25",
        "0.75",
        "4",
    ]


def test_published_loads_are_warmed_up_for_half_a_minute() -> None:
    assert inspect.signature(peers.run).parameters["warm_up_s"].default >= 30
    assert peers.SHORT.keys() <= inspect.signature(peers.run).parameters.keys()


def test_a_missing_tool_skips_the_peer_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*_: object) -> object:
        yield common.tool("no-such-tool-here")

    monkeypatch.setattr(sys, "argv", ["peer"])
    common.main("peer", rows)  # type: ignore[arg-type]
    assert json.loads(capsys.readouterr().out) == {
        "system": "peer",
        "rows": [],
        "skipped": "no no-such-tool-here on this machine",
    }


def test_a_script_that_fails_is_reported_as_skipped(tmp_path: Path) -> None:
    assert peers.one("no_such_peer", tmp_path, 1, 1)["skipped"] == "its script ended with 1"


def test_a_script_that_takes_too_long_ends_its_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked to end, and the peer counts as skipped."""
    servers, fifo = tmp_path / "servers", tmp_path / "ready"
    servers.mkdir()
    os.mkfifo(fifo)
    script = f"""
import pathlib, time
from bench.peers import common

def rows(directory, load):
    with common.servers(directory) as processes:
        one = processes.start("sleeper", ["sleep", "1000"])
        pathlib.Path({str(fifo)!r}).write_text(str(one.pid))
        one.wait()
    yield

common.main("slow", rows)
"""
    (tmp_path / "slow_peer.py").write_text(script)
    command = [sys.executable, str(tmp_path / "slow_peer.py"), "--directory", str(servers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        server = int(fifo.read_text())
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert not list(servers.iterdir())
    assert (
        peers.one("etcd", tmp_path, 1, 1, within_s=0)["skipped"]
        == "its script did not end within 0 s"
    )


def test_servers_and_their_children_are_gone_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="of the test"), common.servers(tmp_path) as processes:
        one = processes.start(
            "sleeper", ["sh", "-c", "trap '' TERM; sleep 1000 & echo; trap - TERM; wait"], stdout=-1
        )
        assert one.stdout is not None
        one.stdout.readline()
        assert processes.cpu_s() >= 0
        assert processes.living == 2
        raise RuntimeError("of the test")
    assert one.returncode is not None
    common.wait_for(lambda: not processes.living, "the end of what was killed", 10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", sorted(path.name for path in common.CONFIGURATIONS.iterdir()))
def test_peer_configurations_use_loopback_and_no_fixed_paths(file: str) -> None:
    text = (common.CONFIGURATIONS / file).read_text()
    assert "127.0.0.1" in text
    assert "$port" in text
    assert "/tmp" not in text
    assert "/home" not in text


def test_ports_are_free_and_apart() -> None:
    ports = common.free_ports(4, 4)
    assert len(set(ports)) == 4
    assert all(high - low >= 4 for low, high in itertools.pairwise(ports))


def test_a_client_that_fails_gives_its_reason() -> None:
    """What it complained of last, without the stack below it; one that does not end is ended, and
    that is the reason."""
    with pytest.raises(RuntimeError, match="the client ended with 1: ValueError: no broker"):
        common.output([sys.executable, "-c", "raise ValueError('no broker')"], 60)
    java = (
        "import sys; sys.stderr.write('Exception in thread main: no slave\\n\\tat Main.main\\n');"
        " sys.exit(3)"
    )
    with pytest.raises(
        RuntimeError, match="the client ended with 3: Exception in thread main: no slave"
    ):
        common.output([sys.executable, "-c", java], 60)
    with pytest.raises(RuntimeError, match="the client did not end within 0 s"):
        common.output([sys.executable, "-c", "import threading; threading.Event().wait()"], 0)


def test_rows_stand_beside_those_that_could_not_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mode of RocketMQ that fails takes no other with it."""

    def client(
        source: str, class_path: str, arguments: Sequence[object], within_s: float
    ) -> dict[str, float]:
        if source == "RocketPublish.java" and arguments[2] == 1:
            raise RuntimeError("no answer")
        return {**RESULT, "refused": 0}

    monkeypatch.setattr(common, "tool", lambda name: name)
    monkeypatch.setattr(common, "jars", lambda *_: "")
    monkeypatch.setattr(common, "java_client", client)
    monkeypatch.setattr(rocketmq, "start", lambda *_: (1, 2))
    rows, reason = [], ""
    try:
        for found in rocketmq.rows(tmp_path, common.Load(100, 1, 1)):
            rows.append((found.durability_class, found.kind))
    except common.Skip as skipped:
        reason = str(skipped)
    classes = [durability_class for _, _, _, durability_class, _ in rocketmq.MODES]
    assert rows == [(kept, kind) for kept in classes for kind in (common.BATCHES, common.OFFICIAL)]
    assert reason.split("; ") == [
        f"{mode}, {flush}, single messages, 256 in flight: no answer"
        for mode, flush, *_ in rocketmq.MODES
    ]


def test_a_mode_that_does_not_start_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(
        processes: common.Processes, command: Sequence[str], mode: str, *_: object
    ) -> tuple[int, int]:
        if mode == "dledger":
            raise RuntimeError("no leader")
        return 1, 2

    monkeypatch.setattr(common, "tool", lambda name: name)
    monkeypatch.setattr(common, "jars", lambda *_: "")
    monkeypatch.setattr(common, "java_client", lambda *_: {**RESULT, "refused": 0})
    monkeypatch.setattr(rocketmq, "start", start)
    found = rocketmq.rows(tmp_path, common.Load(100, 1, 1))
    assert [next(found).durability_class for _ in range(6)] == [common.WEAKER] * 6
    with pytest.raises(common.Skip, match=r"^dledger, ASYNC_FLUSH: no leader$"):
        next(found)


@pytest.mark.parametrize("names", [["groups", "timers"], []])
def test_a_short_trial_needs_a_short_plan(
    names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", *names])
    with pytest.raises(SystemExit):
        suite.main()
    assert "no short plan for " in capsys.readouterr().err


def test_a_short_trial_keeps_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def one(peer: str, directory: Path, seconds: float, warm_up_s: float) -> dict[str, Any]:
        asked.append((seconds, warm_up_s))
        return {"system": peer, "rows": [], "skipped": "of the test"}

    def save(*_: object) -> None:
        raise AssertionError("a trial was kept")

    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--directory", str(tmp_path), "peers"])
    monkeypatch.setattr(peers, "one", one)
    monkeypatch.setattr(report, "file_system", lambda _: "ext4")
    monkeypatch.setattr(report, "save", save)
    suite.main()
    assert asked == [(3.0, 2.0)] * len(peers.PEERS)
