"""Native consumers against real clusters: leaders and members are killed, and every message is
where it belongs."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from ledgermq.client.native.consumers.consumer import AsyncConsumer
from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_topic, leader, running, wait_for
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow


def test_a_consumer_sees_every_offset_once_across_a_leader_kill(tmp_path: Path) -> None:
    """By offset: no message twice, none left out, in the order of each queue."""

    async def work(cluster: LocalCluster, cli: CommandLine) -> None:
        offsets: dict[int, list[int]] = {queue: [] for queue in range(4)}
        bodies: set[bytes] = set()
        async with AsyncConsumer(cluster.endpoints, "t") as consumer:
            sending = asyncio.create_task(
                asyncio.to_thread(cli.send_lines, "t", [f"m{k}" for k in range(4000)])
            )
            killed = False
            # A send whose answer was lost with the leader may be stored twice, so the end is when
            # each body has come.
            while len(bodies) < 4000:
                batch = await consumer.next_batch(60)
                assert batch is not None, f"only {len(bodies)} came"
                offsets[batch.queue] += batch.offsets.tolist()
                bodies.update(batch.bodies())
                if not killed and len(bodies) > 500:
                    killed = True
                    cluster.kill(await asyncio.to_thread(leader, cluster))
            summary = await sending
            while (batch := await consumer.next_batch(2)) is not None:
                offsets[batch.queue] += batch.offsets.tolist()
                bodies.update(batch.bodies())
            assert killed and consumer.statistics().skipped == 0
        assert summary["acknowledged"] == 4000 and bodies == {f"m{k}".encode() for k in range(4000)}
        # What is stored twice has two offsets.
        assert all(found == list(range(len(found))) for found in offsets.values())

    with running(tmp_path) as cluster:
        create_topic(cluster, "t")
        asyncio.run(work(cluster, CommandLine.of(cluster)))


def test_members_take_over_from_one_that_is_killed(tmp_path: Path) -> None:
    """Three processes share the queues and fill a file each; one is killed. Together they have
    everything, and nothing is left."""
    with running(tmp_path) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t", queues=6)
        cli.send_lines("t", [f"a{k}" for k in range(600)])
        files = [tmp_path / f"{k}.jsonl" for k in range(3)]
        members = [
            cli.start("consume", "--topic", "t", "--group", "g", "--to", str(file))
            for file in files
        ]
        try:
            wait_for(lambda: len(bodies(files)) == 600, 60, "the first messages")
            members[0].send_signal(signal.SIGKILL)
            cli.send_lines("t", [f"b{k}" for k in range(600)])
            wait_for(lambda: len(bodies(files)) == 1200, 60, "what came after the kill")
        finally:
            for member in members:
                member.send_signal(signal.SIGINT)
            endings = [member.communicate(timeout=30) for member in members]
        assert [member.returncode for member in members[1:]] == [0, 0], endings
        left = tmp_path / "left.jsonl"
        cli.ok("consume", "--topic", "t", "--group", "g", "--until-empty", "1s", "--to", str(left))
        assert left.read_text() == ""


def bodies(files: list[Path]) -> set[str]:
    """In all files, but for a line that is being written."""
    lines = [line for file in files if file.exists() for line in file.read_text().split("\n")[:-1]]
    return {json.loads(line)["body"] for line in lines}


def test_files_of_every_kind_hold_the_same_messages(tmp_path: Path) -> None:
    """One group for each; a group that has leases keeps to them."""
    with running(tmp_path, nodes=1) as cluster:
        cli = CommandLine.of(cluster)
        create_topic(cluster, "t")
        cli.send_lines(
            "t", [f"m{k}" for k in range(300)], "--tag", "x", "--key", "k1", "--property", "p=1"
        )
        for kind in ("jsonl", "parquet", "txt"):
            cli.ok(
                "consume",
                "--topic",
                "t",
                "--group",
                kind,
                "--until-empty",
                "1s",
                "--to",
                str(tmp_path / f"y.{kind}"),
            )
        rows = [json.loads(line) for line in (tmp_path / "y.jsonl").read_text().splitlines()]
        table = pyarrow.parquet.read_table(tmp_path / "y.parquet").to_pylist()
        shared = ("message_id", "queue", "offset", "tag", "keys", "store_ms", "born_ms")
        # Delivery is at least once: a consumer that lost its place in the group for a moment reads
        # a part again.
        written, tabled = (
            {(row["queue"], row["offset"]): row for row in kind} for kind in (rows, table)
        )
        assert len(written) == 300 and written.keys() == tabled.keys()
        for place, one in written.items():
            other = tabled[place]
            assert all(one[name] == other[name] for name in shared)
            assert one["body"].encode() == other["body"] and list(
                one["properties"].items()
            ) == other["properties"] == [("p", "1")]
        assert set((tmp_path / "y.txt").read_text().splitlines()) == {row["body"] for row in rows}
        refused = cli.run(
            "consume",
            "--topic",
            "t",
            "--group",
            "txt",
            "--until-empty",
            "1s",
            "--to",
            str(tmp_path / "z.parquet"),
        )
        assert refused.status == 64 and "by leases" in refused.error
        # The group that leased everything gets nothing again, whatever the file is called.
        cli.ok(
            "consume",
            "--topic",
            "t",
            "--group",
            "txt",
            "--until-empty",
            "1s",
            "--to",
            str(tmp_path / "z.jsonl"),
        )
        assert (tmp_path / "z.jsonl").read_text() == ""


def test_a_file_that_is_sent_and_consumed_is_the_same(tmp_path: Path) -> None:
    """Through each kind of file in turn: bodies, tags, keys and properties of every message."""
    expected: list[dict[str, Any]] = []
    for k in range(500):
        body = f'body {k}, "q"\n'.encode() if k % 2 else bytes([k % 256, 255])
        properties = [("p", str(k))] if k % 5 else []
        expected.append(
            {
                "body": body,
                "tag": "t" if k % 3 else None,
                "keys": [f"k{k}"] * (k % 2),
                "properties": properties,
            }
        )
    text = pyarrow.string()
    kinds = {"tag": text, "keys": pyarrow.list_(text), "properties": pyarrow.map_(text, text)}
    table = pyarrow.Table.from_pylist(expected, pyarrow.schema({"body": pyarrow.binary(), **kinds}))
    pyarrow.parquet.write_table(table, tmp_path / "0.parquet")
    with running(tmp_path, nodes=1) as cluster:
        cli = CommandLine.of(cluster)
        path = tmp_path / "0.parquet"
        for turn, kind in enumerate(("parquet", "jsonl", "csv", "parquet"), 1):
            create_topic(cluster, f"t{turn}", queues=1)
            cli.ok("send", "--topic", f"t{turn}", "--file", str(path))
            path = tmp_path / f"{turn}.{kind}"
            cli.ok(
                "consume",
                "--topic",
                f"t{turn}",
                "--group",
                "g",
                "--until-empty",
                "1s",
                "--to",
                str(path),
            )
    found = (
        pyarrow.parquet.read_table(path).select(["body", "tag", "keys", "properties"]).to_pylist()
    )
    assert set(map(repr, found)) == set(map(repr, expected))
