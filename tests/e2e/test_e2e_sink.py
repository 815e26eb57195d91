"""`ledgermq sink` against a real cluster: it and the leaders are killed, and every message is once
in the files or the table.

DuckDB counts, as a user would, and compares with what the cluster acknowledged.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ledgermq.client import Producer
from ledgermq.node.process.local import LocalCluster
from tests.cluster import create_topic, leader, running, wait_for
from tests.e2e.command_line import CommandLine, counted

pytestmark = pytest.mark.slow

ONCE = """
    SELECT count(*), count(DISTINCT message_id), count(DISTINCT (broker_group, group_queue, "offset")),
           sum(decode(body)::BIGINT), min(decode(body)::BIGINT), max(decode(body)::BIGINT)
    FROM {messages}
"""
"""Rows, messages by id and by place, and the numbers in their bodies."""
ENDS = (
    'SELECT broker_group, group_queue, min("offset"), max("offset") + 1, count(*) FROM {messages}'
    " GROUP BY ALL ORDER BY ALL"
)


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_every_message_is_in_one_file_across_kills_of_the_sink_and_of_leaders(
    tmp_path: Path,
) -> None:
    """The producer stores each message once, so that a message that is there twice is the fault of
    the sink. A topic that is deleted and created anew continues in the same files, because its
    offsets go on."""
    lake = tmp_path / "lake"
    files = f"""(
        SELECT *, split_part(filename, '.', -4) AS broker_group, split_part(filename, '.', -3)::INT AS group_queue
        FROM read_parquet('{lake}/date=*/hour=*/t.*.parquet', filename = true)
    )"""
    command = (
        "sink",
        "parquet",
        "--topic",
        "t",
        "--to",
        lake,
        "--partition",
        "hour",
        "--roll-every",
        "100ms",
        "--timeout",
        "60s",
    )
    with running(tmp_path) as cluster:
        create_topic(cluster, "t")
        cli = CommandLine.of(cluster)
        with sending(cluster) as sent:
            kill_sinks(cluster, cli, command, lambda: len(files_of(lake)), 6)
        finish(cli, command, sent[0])
        assert_once(files, {}, sent[0])
        cli.ok("topic", "delete", "t", "--yes")
        create_topic(cluster, "t")
        cli.send_lines("t", map(str, range(sent[0], sent[0] + 100)))
        summary = cli.ok(*command, "--until-empty", "2s", "--json").json
        assert (summary["messages"], summary["skipped"]) == (100, 0)
        assert_once(files, {}, sent[0] + 100)


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_every_message_is_in_the_table_once_across_kills_of_the_sink_and_of_leaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then two sinks run at the same time, of which one ends; another program commits in
    between, and removes old snapshots."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import CommitFailedException

    where = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    for key, value in where.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.upper()}", value)
    catalog = load_catalog("lake", **where)
    catalog.create_namespace("sales")

    def commits() -> int:
        return len(list(tmp_path.glob("warehouse/**/*.metadata.json")))

    def maintain() -> None:
        table = catalog.load_table("sales.t")
        with (
            suppress(CommitFailedException),
            table.transaction() as change,
            change.update_snapshot().merge_append(),
        ):
            pass
        table.refresh()
        with suppress(CommitFailedException):
            used = {ref.snapshot_id for ref in table.metadata.refs.values()}
            old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id not in used]
            table.maintenance.expire_snapshots().by_ids(old).commit()

    command = (
        "sink",
        "iceberg",
        "--topic",
        "t",
        "--table",
        "lake.sales.t",
        "--partition",
        "hour",
        "--roll-every",
        "200ms",
    )
    command = (*command, "--timeout", "60s")
    with running(tmp_path) as cluster:
        create_topic(cluster, "t")
        cli = CommandLine.of(cluster)
        with sending(cluster) as sent:
            kill_sinks(cluster, cli, command, commits, 2)
            maintain()
            assert_one_ends([cli.start(*command) for _ in range(2)])
            kill_sinks(cluster, cli, command, commits, 2)
        maintain()
        finish(cli, command, sent[0])
        assert_once(
            "messages", {"messages": catalog.load_table("sales.t").scan().to_arrow()}, sent[0]
        )
    catalog.close()


def kill_sinks(
    cluster: LocalCluster,
    cli: CommandLine,
    command: Sequence[str | Path],
    parts: Callable[[], int],
    kills: int,
) -> None:
    """Start the sink and kill it some files or commits later, again and again; every second one
    meets another leader."""
    chance = random.Random(7)
    for number in range(kills):
        sink = cli.start(*command)
        wanted = parts() + chance.randint(1, 8)
        wait_for(lambda wanted=wanted: parts() >= wanted, 120, "more files or commits")  # type: ignore[misc]
        if number % 2:
            restart_leader(cluster)
            wanted = parts() + 1
            wait_for(lambda wanted=wanted: parts() >= wanted, 120, "some after a leader change")  # type: ignore[misc]
        sink.send_signal(signal.SIGKILL)
        _, err = sink.communicate(timeout=30)
        assert sink.returncode == -signal.SIGKILL, err


def assert_one_ends(sinks: list[subprocess.Popen[bytes]]) -> None:
    """Of two sinks of one table. The other one is killed."""
    wait_for(lambda: any(sink.poll() is not None for sink in sinks), 120, "the end of one sink")
    for sink in sinks:
        sink.kill()
    said = [sink.communicate(timeout=30)[1].decode() for sink in sinks]
    ended = [sink.returncode for sink in sinks]
    assert 64 in ended and set(ended) <= {64, -signal.SIGKILL}, said
    assert any("another sink of the topic writes it" in text for text in said), said


def finish(cli: CommandLine, command: Sequence[str | Path], sent: int) -> None:
    """Let a sink that is not killed write the rest."""
    assert counted(cli, "t", sent) == sent
    assert cli.ok(*command, "--until-empty", "2s", "--json").json["skipped"] == 0
    assert cli.ok(*command, "--until-empty", "1s", "--json").json["messages"] == 0


def assert_once(messages: str, tables: dict[str, Any], sent: int) -> None:
    """By id, by place and by body: the numbers below `sent`, each once, in four queues without a
    gap."""
    import duckdb

    with duckdb.connect() as base:
        for name, table in tables.items():
            base.register(name, table)
        assert base.sql(ONCE.format(messages=messages)).fetchall() == [
            (sent, sent, sent, sent * (sent - 1) // 2, 0, sent - 1)
        ]
        queues = base.sql(ENDS.format(messages=messages)).fetchall()
    assert [queue[:3] for queue in queues] == [("g1", number, 0) for number in range(4)]
    assert all(end == count for *_, end, count in queues)


@contextmanager
def sending(cluster: LocalCluster) -> Iterator[list[int]]:
    """Send numbers during this block; afterwards the list holds how many, all of which were
    acknowledged."""
    stop, sent = threading.Event(), list[int]()
    load = threading.Thread(target=send_numbers, args=(cluster.endpoints, stop, sent))
    load.start()
    try:
        yield sent
    finally:
        stop.set()
        load.join()


def send_numbers(endpoints: str, stop: threading.Event, sent: list[int]) -> None:
    """Send numbers until asked to stop; all are acknowledged."""
    number = 0
    with Producer(endpoints, "t", timeout_s=60.0) as producer:
        while not stop.wait(0.002):
            producer.send(str(number).encode())
            number += 1
        producer.flush()
        assert producer.statistics.failed == 0
    sent.append(number)


def restart_leader(cluster: LocalCluster) -> None:
    node = leader(cluster)
    cluster.kill(node)
    wait_for(lambda: leader(cluster) != node, 60, "another leader")
    cluster.start(node)
    cluster.wait_ready(nodes=[node])


def files_of(lake: Path) -> list[Path]:
    return sorted(lake.glob("date=*/hour=*/t.g1.*.parquet"))


def test_ctrl_c_completes_the_files(tmp_path: Path) -> None:
    """The exit status is 0, the summary counts every message, and another sink of the same
    directory was refused before."""
    lake = tmp_path / "lake"
    with running(tmp_path, nodes=1) as cluster:
        create_topic(cluster, "t")
        cli = CommandLine.of(cluster)
        cli.send_lines("t", [f"m{k}" for k in range(300)])
        command = ("sink", "parquet", "--topic", "t", "--to", lake, "--roll-every", "1h")
        sink = cli.start(*command)
        wait_for(lambda: len(list(lake.glob("date=*/.t.*.part"))) == 4, 60, "parts of four queues")
        refused = cli.run(*command)
        assert refused.status == 64 and "another process" in refused.error
        sink.send_signal(signal.SIGINT)
        out, err = sink.communicate(timeout=30)
        assert sink.returncode == 0, err
        written = sum(pq.read_metadata(path).num_rows for path in lake.glob("date=*/*.parquet"))
        assert (
            out.decode()
            == f"written: {written} messages in {len(list(lake.glob('date=*/*.parquet')))} files\n"
        )
        rest = cli.ok(*command, "--until-empty", "1s", "--json").json
        assert written + rest["messages"] == 300
        for wrong, said in (
            (("--topic", "none", "--to", lake), "none"),
            (("--topic", "t", "--to", lake, "--roll-every", "0s"), "positive"),
            (("--topic", "t", "--to", next(lake.glob("date=*/*.parquet"))), ""),
        ):
            outcome = cli.run("sink", "parquet", *wrong, "--until-empty", "1s")
            assert outcome.status in (4, 64) and said in outcome.error
