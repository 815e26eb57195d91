"""Producers and `send --file` on real processes while the leader is killed: every message stored
once, in order, with a true receipt."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ledgermq.client import AsyncProducer
from ledgermq.client.native.producers.outcomes import Statistics
from tests.cluster import create_topic, leader, running
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.slow

MESSAGES, ROWS = 100_000, 5_000
QUEUES = 4


def stored(cli: CommandLine, topic: str) -> dict[int, list[str]]:
    """The bodies of every queue in order, as `peek` sees them."""
    found: dict[int, list[str]] = {}
    for queue in range(QUEUES):
        messages = cli.ok(
            "peek", "--topic", topic, "--queue", str(queue), "--max", str(MESSAGES), "--json"
        ).lines
        assert [message["offset"] for message in messages] == list(range(len(messages)))
        found[queue] = [message["body"] for message in messages]
    return found


def test_leader_kill_under_a_producer_stores_each_message_once(
    tmp_path: Path,
) -> None:
    """100,000 messages, one by one, with order keys; the leader dies under them. Each queue holds
    its messages once, in order."""
    with running(tmp_path) as cluster:
        create_topic(cluster, "T", queues=QUEUES)
        cli = CommandLine.of(cluster)
        first = leader(cluster)

        async def push() -> Statistics:
            async with AsyncProducer(
                cli.endpoints, "T", batch_bytes=32 << 10, timeout_s=120
            ) as producer:
                futures = []
                for number in range(MESSAGES):
                    if number == MESSAGES // 3:
                        await futures[MESSAGES // 4]
                        await asyncio.to_thread(cluster.kill, first)
                    futures.append(
                        await producer.send(b"%06d" % number, order_key=f"k{number % 16}")
                    )
                done = await asyncio.gather(*futures)
                assert all(message.receipt is not None for message in done)
                return producer.statistics

        statistics = asyncio.run(push())
        assert statistics.acknowledged == MESSAGES and statistics.streams > 1
        queues = stored(cli, "T")
        assert sorted(body for bodies in queues.values() for body in bodies) == [
            f"{number:06d}" for number in range(MESSAGES)
        ]
        for bodies in queues.values():
            assert bodies == sorted(bodies)


def test_a_file_is_sent_and_its_receipts_are_true(tmp_path: Path) -> None:
    """`send --file data.jsonl --receipts FILE`, then `receipts verify`."""
    path, receipts = tmp_path / "data.jsonl", tmp_path / "receipts.parquet"
    path.write_text(
        "".join(
            json.dumps({"body": f"{number:06d}", "properties": {"n": str(number)}}) + "\n"
            for number in range(ROWS)
        )
    )
    with running(tmp_path / "cluster") as cluster:
        create_topic(cluster, "T", queues=QUEUES)
        cli = CommandLine.of(cluster)
        sent = cli.ok(
            "send", "--topic", "T", "--file", str(path), "--receipts", str(receipts), "--json"
        ).json
        assert (sent["sent"], sent["acknowledged"], sent["failed"], sent["durability"]) == (
            ROWS,
            ROWS,
            0,
            "durable",
        )
        bodies = [body for queue in stored(cli, "T").values() for body in queue]
        assert sorted(bodies) == [f"{number:06d}" for number in range(ROWS)]
        verdict = cli.ok("receipts", "verify", str(receipts), "--json").json
        assert verdict["true"] > 0 and (verdict["false"], verdict["unverifiable"]) == (0, 0)
        create_topic(cluster, "F", kind="fifo", queues=1)
        fifo = tmp_path / "groups.csv"
        fifo.write_text("body,message_group\na,g\nb,g\n")
        assert (
            cli.ok("send", "--topic", "F", "--file", str(fifo), "--json").json["acknowledged"] == 2
        )
        assert [message["body"] for message in cli.ok("peek", "--topic", "F", "--json").lines] == [
            "a",
            "b",
        ]
