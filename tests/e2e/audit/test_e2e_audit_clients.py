"""Real nodes, real clients, a leader that dies: what clients kept agrees with the log, and a lost
tail is found by it alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ledgermq.cli import run
from ledgermq.client import Consumer, Producer
from tests.cluster import leader, running
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow
MESSAGES = 6000


def test_clients_agree_with_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PASS after a failover, with every message counted on every side; if the logs are truncated in
    the middle, the receipts show the loss."""
    receipts, acks = tmp_path / "receipts.parquet", tmp_path / "deliveries.parquet"
    with running(tmp_path, log_file_bytes=1 << 20) as cluster:
        cli = CommandLine(cluster.endpoints)
        cli.ok("topic", "create", "t", "--queues", "3")
        with Producer(cluster.endpoints, "t", receipt_log=receipts, batch_bytes=20_000) as producer:
            for one in [
                producer.send_batch(bodies(begin)) for begin in range(0, MESSAGES // 2, 500)
            ]:
                one.result(60)
            killed = leader(cluster)
            cluster.kill(killed)
            for begin in range(MESSAGES // 2, MESSAGES, 500):
                producer.send_batch(bodies(begin)).result(60)
        cluster.start(killed)
        cluster.wait_ready()
        with Consumer(
            cluster.endpoints, "t", group="g", auto_commit=True, until_end=True, delivery_log=acks
        ) as consumer:
            assert sum(len(batch) for batch in consumer.batches()) == MESSAGES
        nodes = {node: cluster.data(node) for node in cluster.nodes}
    options = ["--engine", "local", "--json", "--receipts", str(receipts), "--acks", str(acks)]
    status = run(["audit", *(str(place) for place in nodes.values()), *options])
    told = json.loads(capsys.readouterr().out)
    assert (status, told["verdict"]) == (0, "PASS"), (told["reasons"], told["findings"][:5])
    messages = told["clients"]["messages"]
    assert [messages[what] for what in ("stored", "acknowledged", "delivered", "consumed")] == [
        MESSAGES
    ] * 4
    assert sum(messages.values()) == 4 * MESSAGES
    copies = [shutil.copytree(place, tmp_path / "cut" / node) for node, place in nodes.items()]
    for copied in copies:
        # As if every node had lost the end of its log with the power, and nothing were left that
        # remembers it.
        cut(copied)
    run(["audit", *map(str, copies), *options])
    told = json.loads(capsys.readouterr().out)
    messages = told["clients"]["messages"]
    assert told["verdict"] == "FAIL" and "client.lost" in {
        finding["rule"] for finding in told["findings"]
    }
    assert messages["lost"] > 0 and messages["lost"] + messages["acknowledged"] == MESSAGES


def bodies(begin: int) -> list[bytes]:
    return [b"%d" % number + bytes(100) for number in range(begin, begin + 500)]


def cut(node: Path) -> None:
    """Remove the last log file that holds entries, and everything that knows of it."""
    root = node / "g1"
    (log,) = root.glob("dledger-*")
    files = sorted((log / "data").iterdir())
    filled = [path for path in files if path.read_bytes()[:4] == b"\0\0\0\x01"]
    for path in files[files.index(filled[-1]) :]:
        path.unlink()
    for path in (log / "syncedmark", log / "checkpoint", *(root / "state").glob("snapshot*")):
        path.unlink(missing_ok=True)
