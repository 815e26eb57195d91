"""bench/peers: every row says what durability it was measured with, a peer that cannot be had gives its reason, servers are gone after."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import peers
from bench.peers import common, rocketmq

RESULT = {"messages_per_s": 1234.5, "p50_ms": 1.5, "p99_ms": 250.0, "total": 10.0}


def row(durability_class: str) -> dict[str, object]:
    return common.Row("system", "v1", durability_class, "in words", "a client", "alone", RESULT, 100).document()


def test_every_row_of_the_table_says_its_durability_class() -> None:
    found = {"rows": [row(common.MEMORY), row(common.DURABLE)], "skipped": {"other": "no such tool"}}
    lines = peers.table(found).splitlines()
    titles, rows = lines[0].split("|"), lines[2:4]
    assert titles[2].strip() == "durability"
    assert [line.split("|")[2].split(":")[0].strip(" *") for line in rows] == [common.DURABLE, common.MEMORY]
    assert lines[-1] == "other was skipped: no such tool."


def test_a_missing_tool_skips_the_peer_and_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*_: object) -> object:
        yield common.tool("no-such-tool-here")

    monkeypatch.setattr(sys, "argv", ["peer"])
    common.main("peer", rows)  # type: ignore[arg-type]
    assert json.loads(capsys.readouterr().out) == {"system": "peer", "rows": [], "skipped": "no no-such-tool-here on this machine"}


def test_a_script_that_fails_is_reported_as_skipped(tmp_path: Path) -> None:
    assert peers.one("no_such_peer", tmp_path, 1)["skipped"] == "its script ended with 1"


def test_servers_and_their_children_are_gone_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="of the test"), common.servers(tmp_path) as processes:
        one = processes.start("sleeper", ["sh", "-c", "trap '' TERM; sleep 1000 & echo; trap - TERM; wait"], stdout=-1)
        assert one.stdout is not None
        one.stdout.readline()
        assert processes.cpu_s() >= 0
        assert processes.living == 2
        raise RuntimeError("of the test")
    assert one.returncode is not None
    common.wait_for(lambda: not processes.living, "the end of what was killed", 10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", sorted(path.name for path in common.CONFIGURATIONS.iterdir()))
def test_configurations_speak_of_loopback_and_of_nothing_fixed(file: str) -> None:
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
    """What it complained of last, without the stack below it; one that does not end is ended, and that is the reason."""
    with pytest.raises(RuntimeError, match="the client ended with 1: ValueError: no broker"):
        common.output([sys.executable, "-c", "raise ValueError('no broker')"], 60)
    java = "import sys; sys.stderr.write('Exception in thread main: no slave\\n\\tat Main.main\\n'); sys.exit(3)"
    with pytest.raises(RuntimeError, match="the client ended with 3: Exception in thread main: no slave"):
        common.output([sys.executable, "-c", java], 60)
    with pytest.raises(RuntimeError, match="the client did not end within 0 s"):
        common.output([sys.executable, "-c", "import threading; threading.Event().wait()"], 0)


def test_rows_stand_beside_those_that_could_not_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mode of RocketMQ that fails takes no other with it."""

    def client(source: str, class_path: str, arguments: Sequence[object], within_s: float) -> dict[str, float]:
        if arguments[2] == 1:
            raise RuntimeError("no answer")
        return {**RESULT, "refused": 0}

    monkeypatch.setattr(common, "tool", lambda name: name)
    monkeypatch.setattr(common, "jars", lambda *_: "")
    monkeypatch.setattr(common, "java_client", client)
    monkeypatch.setattr(rocketmq, "start", lambda *_: 1)
    rows, reason = [], ""
    try:
        for found in rocketmq.rows(tmp_path, common.Load(100, 1, 1)):
            rows.append(found.durability_class)
    except common.Skip as skipped:
        reason = str(skipped)
    assert rows == [durability_class for _, _, _, durability_class, _ in rocketmq.MODES]
    assert reason.split("; ") == [f"{mode}, {flush}, batches of 1: no answer" for mode, flush, *_ in rocketmq.MODES]
