"""Spark against a running cluster of three nodes: tables, streams and writes, with tasks that die
and leaders that are killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.node.process.local import LocalCluster
from tests.audit.spark_session import running_spark
from tests.cluster import running
from tests.e2e.command_line import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.verify, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with running_spark() as spark:
        yield spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


def topic(cluster: LocalCluster, name: str, queues: int = 3) -> dict[str, str]:
    """A new topic, as options."""
    CommandLine(cluster.endpoints).ok("topic", "create", name, "--queues", str(queues))
    return {"endpoints": cluster.endpoints, "topic": name}


def load(session: Any, options: dict[str, str], **more: str) -> Any:
    return session.read.format("ledgermq").options(**options, **more).load()


def save(frame: Any, options: dict[str, str], **more: str) -> None:
    frame.write.format("ledgermq").options(**options, **more).mode("append").save()


def numbered(session: Any, count: int, partitions: int = 4) -> Any:
    columns = [
        "concat('body ', id) AS body",
        "concat('T', id % 3) AS tag",
        "array(concat('k', id)) AS keys",
        "map('n', cast(id AS string)) AS properties",
    ]
    return session.range(0, count, 1, partitions).selectExpr(*columns)


def bodies(frame: Any) -> list[str]:
    return sorted(bytes(row["body"]).decode() for row in frame.select("body").collect())


def wanted(count: int) -> list[str]:
    return sorted(f"body {i}" for i in range(count))


def test_written_rows_read_back_with_all_columns(session: Any, cluster: LocalCluster) -> None:
    """All columns come back; ranges by offset and time, and chosen columns; SQL sees a table."""
    options = topic(cluster, "table")
    save(numbered(session, 2000), options, compression="zstd")
    frame = load(session, options).cache()
    assert bodies(frame) == wanted(2000)
    row = frame.where("tag = 'T1' AND properties['n'] = '4'").collect()
    assert [
        (bytes(one["body"]), one["keys"], one["topic"], one["broker_group"]) for one in row
    ] == [(b"body 4", ["k4"], "table", "g1")]
    counted = frame.selectExpr(
        "count(DISTINCT queue, offset)", "count(DISTINCT `index`)", "count(DISTINCT message_id)"
    ).first()
    assert tuple(counted) == (2000,) * 3
    ends = {queue: count for queue, count in frame.groupBy("queue").count().collect()}
    assert len(ends) == 3
    begin, end = {"g1": {"0": 10, "1": ends[1], "2": 0}}, {"g1": {"0": 20, "1": ends[1], "2": 5}}
    part = load(
        session,
        options,
        startingOffsets=json.dumps(begin),
        endingOffsets=json.dumps(end),
        maxMessagesPerPartition="4",
    )
    assert sorted((one["queue"], one["offset"]) for one in part.collect()) == [
        (0, i) for i in range(10, 20)
    ] + [(2, i) for i in range(5)]
    later = int(frame.selectExpr("max(unix_millis(store_time))").first()[0]) + 1
    assert load(session, options, startingTime=str(later)).count() == 0
    assert load(session, options, endingTime=str(later), columns="offset,queue").columns == [
        "offset",
        "queue",
    ]
    load(session, options).createOrReplaceTempView("flights")
    assert session.sql("SELECT count(*) FROM flights WHERE tag = 'T0'").first()[0] == len(
        range(0, 2000, 3)
    )


def test_retried_task_stores_each_message_once(
    session: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """The first try of every task dies amid its messages, of which some are stored; a second write
    of the same name adds nothing."""
    options = topic(cluster, "once")
    marks = str(tmp_path)

    def fails_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            if context.attemptNumber() == 0 and number == 2:
                (Path(marks) / str(context.partitionId())).touch()
                raise RuntimeError("this try of the task was told to die")
            yield batch

    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    frame = numbered(session, 4000, 2)
    save(frame.mapInArrow(fails_once, frame.schema), options, writeId="nightly")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    assert bodies(load(session, options)) == wanted(4000)
    save(numbered(session, 4000, 2), options, writeId="nightly")
    assert load(session, options).count() == 4000
    save(numbered(session, 10, 1), options)
    assert load(session, options).count() == 4010


def test_a_stream_from_topic_to_topic(session: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    """A stream copies a topic; stopped, and started again after its last commit was lost, it
    neither loses nor repeats a message."""
    source, sink = topic(cluster, "from"), topic(cluster, "to", 2)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = (
            session.readStream.format("ledgermq")
            .options(**source, maxMessagesPerTrigger="700")
            .load()
        )
        writer = (
            stream.selectExpr("body", "tag", "keys", "properties")
            .writeStream.format("ledgermq")
            .options(**sink)
        )
        query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        assert query.exception() is None

    save(numbered(session, 2000), source)
    run()
    assert bodies(load(session, sink)) == wanted(2000)
    assert len([path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]) == 3
    # As if the process had died behind the last write and before Spark noted it.
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    save(session.range(2000, 2500, 1, 2).selectExpr("concat('body ', id) AS body"), source)
    run()
    assert bodies(load(session, sink)) == wanted(2500)


def test_a_leader_that_is_killed(session: Any, tmp_path: Path) -> None:
    """While tasks write and read, the leader of the broker group dies: every message is there
    once."""
    with running(tmp_path) as cluster:
        options = topic(cluster, "moved")
        cli = CommandLine(cluster.endpoints)
        status = cli.ok("status", "--json").json
        leader = next(group["leader"] for group in status["groups"] if group["group"] == "g1")
        marker, killed = tmp_path / "kill-now", tmp_path / "killed"

        def waits(batches: Iterator[Any]) -> Iterator[Any]:
            import time

            for number, batch in enumerate(batches):
                if number == 2:
                    marker.touch()
                    while not killed.exists():
                        time.sleep(0.02)
                yield batch

        import threading
        import time

        def killer() -> None:
            while not marker.exists():
                time.sleep(0.02)
            cluster.kill(leader)
            killed.touch()

        thread = threading.Thread(target=killer)
        thread.start()
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        frame = numbered(session, 4000, 2)
        save(frame.mapInArrow(waits, frame.schema), options)
        thread.join()
        assert bodies(load(session, options)) == wanted(4000)


def test_wrong_options(session: Any, cluster: LocalCluster) -> None:
    """Each is refused by its name."""
    options = topic(cluster, "wrong")
    for call, match in (
        (lambda: load(session, options, columns="colour").count(), "colour"),
        (lambda: load(session, options, startingOffsets="soon").count(), "startingOffsets"),
        (
            lambda: load(session, options, startingOffsets='{"g1": {"9": 0}}').count(),
            "does not have",
        ),
        (lambda: save(session.range(1), options), "'id'"),
        (
            lambda: (
                numbered(session, 1)
                .write.format("ledgermq")
                .options(**options)
                .mode("overwrite")
                .save()
            ),
            "append",
        ),
        (lambda: load(session, {**options, "topic": "none"}).count(), "none"),
        (lambda: save(session.sql("SELECT '' AS body"), options), "empty"),
    ):
        with pytest.raises(Exception, match=match):
            call()
