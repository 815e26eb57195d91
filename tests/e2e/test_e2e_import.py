"""A RocketMQ store root becomes a running cluster: an official client continues at its position,
and all messages keep theirs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ledgermq.audit.run.jobs import audit
from ledgermq.node.process.local import LocalCluster
from tests.cluster import end_all, full_files, full_files_sealed, wait_for
from tests.contract.official import message, official
from tests.e2e.command_line import LEDGERMQ, CommandLine, described
from tests.importing.store_root import BORN_MS, StoreRoot

pytestmark = pytest.mark.slow
FIRST, COUNT, READ = 5000, 300, 5020


def store_root(path: Path, kind: str) -> StoreRoot:
    """One topic with two queues, the first of which lost its first 5,000 messages to retention; and
    one delayed message."""
    root = StoreRoot(path, kind, file_bytes=16384)
    root.begin_queue("orders", 0, FIRST)
    for number in range(COUNT):
        names = {"UNIQ_KEY": f"{number:032X}", "TAGS": "a", "KEYS": f"k{number}", "colour": "blue"}
        root.send(
            "orders",
            b"body %d" % number,
            number % 2,
            properties=names,
            born_ms=BORN_MS + number,
            store_ms=BORN_MS + 2 * number,
        )
    late = {
        "UNIQ_KEY": "F" * 32,
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
        "DELAY": "2",
        "TAGS": "a",
    }
    root.send("SCHEDULE_TOPIC_XXXX", b"late", 1, properties=late, store_ms=BORN_MS + 2 * COUNT)
    root.topics(orders={"readQueueNums": 2, "writeQueueNums": 2})
    root.groups(workers={})
    root.offsets({"orders@workers": {0: READ, 1: 150}})
    root.write()
    return root


@pytest.mark.parametrize("kind", ["commitlog", "dledger"])
def test_a_cluster_goes_on_from_a_store_root(tmp_path: Path, kind: str) -> None:
    """Import, start, consume from the carried-over offset, find by key, produce more, stop,
    audit."""
    root = store_root(tmp_path / "store", kind)
    directory = tmp_path / "cluster"
    command = [
        *LEDGERMQ,
        "import",
        "--from",
        root.path,
        "--data",
        directory,
        "--log-file-size",
        "1MiB",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "import: PASS"), (
        done.stdout + done.stderr
    )
    cluster = LocalCluster.prepare(directory)
    cluster.start_all()
    try:
        cluster.wait_ready()
        cli = CommandLine.of(cluster)
        queues = described(cli, "orders", COUNT)["queue_list"]
        assert [queue["min_offset"] for queue in queues] == [FIRST, 0]
        (found,) = cli.ok("query", "--topic", "orders", "--key", "k7", "--json").lines
        place, times = (
            (found["queue"], found["offset"], found["body"]),
            (found["born_ms"], found["store_ms"]),
        )
        assert (place, times) == ((1, 3, "body 7"), (BORN_MS + 7, BORN_MS + 14))
        wanted = {
            f"body {number}" for number in range(0, COUNT, 2) if FIRST + number // 2 >= READ
        } | {"late"}
        got: set[str] = set()
        with official(cluster, tmp_path / "home") as client:
            client.do("simple", name="c", group="workers", subscription={"orders": "*"}, await_s=5)
            while got != wanted:
                for one in client.do("receive", name="c", batch=32, invisible_s=30)["messages"]:
                    body = bytes.fromhex(one["body"]).decode()
                    assert body not in got and body in wanted, body
                    assert one["attempt"] == 1
                    got.add(body)
                    client.do("ack", name="c", id=one["id"])
            client.do("producer", name="p", topics=["orders"])
            sent = [
                client.do("send", name="p", message=message("orders", f"new {number}"))
                for number in range(6)
            ]
            assert len({one["id"] for one in sent}) == 6
            news = {f"new {number}" for number in range(6)}
            while news:
                for one in client.do("receive", name="c", batch=32, invisible_s=30)["messages"]:
                    news.discard(bytes.fromhex(one["body"]).decode())
                    client.do("ack", name="c", id=one["id"])
        queues = described(cli, "orders", FIRST + COUNT + 7)["queue_list"]
        # The delayed message and the six new ones stand behind the imported ones.
        assert sum(queue["max_offset"] for queue in queues) == FIRST + COUNT + 7
        # The imported entries have a tree like any others: once the first file is full, its entries
        # can be proven.
        cli.send_lines("orders", ["x" * 2000] * 600)
        wait_for(
            lambda: full_files(cluster, "n1") and full_files_sealed(cluster),
            60,
            "the seal of the first log file",
        )
        assert cli.ok(
            "prove", "--broker-group", "g1", "--index", "1", "--to", tmp_path / "proof"
        ).out
        assert set(cluster.stop().values()) <= {0}
    finally:
        end_all(cluster)
    assert audit([str(directory / node) for node in cluster.nodes]).verdict == "PASS"
