"""Structured Streaming from topic to topic while leaders and the query itself die at every step of
a batch: each message is there once.

The first partition of a batch stops at a step: before its first row is read, amid its rows, or
behind its last row, when the sink has all of them and does not know it. There the leader is killed,
or the worker is, by SIGKILL and at every try, until the query fails.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.audit.spark.cluster.cluster_options import Target, bounds
from ledgermq.client.native.once.numbered import Chunk
from ledgermq.node.process.local import LocalCluster
from tests.audit.spark_session import running_spark
from tests.cluster import create_topic, leader, running, wait_for

BATCH, BATCHES, QUEUES, ROWS = 600, 3, 3, 50
EVENTS = (
    ("0-before", "query"),
    ("0-amid", "leader"),
    ("1-amid", "query"),
    ("1-behind", "leader"),
    ("2-before", "leader"),
    ("2-behind", "query"),
)
"""Each step with the death of each of the two, in the order in which the batches meet them."""


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with running_spark() as spark:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS))
        yield spark


def stopping(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function through which the rows of a partition go. Sent to Spark's workers."""
    events = dict(EVENTS)

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import signal
        import time

        from pyspark import TaskContext

        context = TaskContext.get()

        def pause(step: str) -> None:
            name = f"{context.getLocalProperty('streaming.sql.batchId')}-{step}"
            if (
                context.partitionId() != 0
                or name not in events
                or (Path(folder) / f"go-{name}").exists()
            ):
                return
            (Path(folder) / f"at-{name}").touch()
            if events[name] == "query":
                os.kill(os.getpid(), signal.SIGKILL)
            while not (Path(folder) / f"go-{name}").exists():
                time.sleep(0.02)

        pause("before")
        for number, batch in enumerate(batches):
            if number == 2:
                pause("amid")
            yield batch
        pause("behind")

    return rows


def numbers(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def differences(found: Iterable[bytes], count: int) -> dict[bytes, int]:
    """By body, how many messages of a topic are too many, or, below 0, are missing: every number
    below `count` belongs there once."""
    surplus = Counter(found)
    surplus.subtract(numbers(count))
    return {body: times for body, times in surplus.items() if times}


def write(target: Target, count: int) -> None:
    with target.connect() as connection:
        (group,) = connection.locate(target.topic).broker_groups
        with connection.writer(group.name, target.topic, "", "numbers") as producer:
            queues = [group.queues[number % len(group.queues)] for number in range(count)]
            producer.write([Chunk(numbers(count), queues, [1] * count)])


def bodies(target: Target) -> Iterator[bytes]:
    with target.connect() as connection:
        begins, ends = bounds(connection, target, {})
        for place, end in ends.items():
            for batch in connection.read_range(target.topic, "", place, begins[place], end):
                yield from batch.bodies()


def kill_leaders(cluster: LocalCluster, folder: Path, errors: list[BaseException]) -> None:
    """Kill the leader at each of its steps, let the tasks go on, and start the node again."""
    try:
        for step in [step for step, what in EVENTS if what == "leader"]:
            wait_for(lambda step=step: (folder / f"at-{step}").exists(), 600, f"step {step}")  # type: ignore[misc]
            former = leader(cluster)
            cluster.kill(former)
            (folder / f"go-{step}").touch()
            leader(cluster, timeout_s=120)
            cluster.start(former)
    except BaseException as error:
        errors.append(error)


BROKEN: dict[str, tuple[Callable[[list[bytes]], list[bytes]], dict[bytes, int]]] = {
    "nothing is wrong": (lambda rows: rows, {}),
    "another order": (lambda rows: rows[::-1], {}),
    "a row is repeated": (lambda rows: [*rows, rows[7]], {b"7": 1}),
    "the last row is dropped": (lambda rows: rows[:-1], {b"49": -1}),
    "a row is repeated, and another one dropped": (
        lambda rows: [*rows[1:], rows[7]],
        {b"0": -1, b"7": 1},
    ),
    "all rows are repeated": (lambda rows: rows * 2, dict.fromkeys(numbers(ROWS), 1)),
    "a row of another content": (lambda rows: [*rows[:-1], b"?"], {b"49": -1, b"?": 1}),
    "an empty topic": (lambda rows: [], dict.fromkeys(numbers(ROWS), -1)),
}


@pytest.mark.parametrize(("sink", "found"), BROKEN.values(), ids=BROKEN)
def test_a_row_too_many_or_too_few_is_counted(
    sink: Callable[[list[bytes]], list[bytes]], found: dict[bytes, int]
) -> None:
    """What the test below asks of a topic, asked of what a broken sink leaves in one."""
    assert differences(sink(numbers(ROWS)), ROWS) == found


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.timeout(1200)
def test_leaders_and_the_query_die_at_every_step(session: Any, tmp_path: Path) -> None:
    """A query that is started again after each of its deaths stores every message, and none
    twice."""
    from pyspark.errors import StreamingQueryException

    with running(tmp_path) as cluster:
        for name in ("from", "to"):
            create_topic(cluster, name, queues=QUEUES)
        source, sink = (Target(cluster.endpoints, name) for name in ("from", "to"))
        write(source, BATCH * BATCHES)
        checkpoint, errors = tmp_path / "checkpoint", list[BaseException]()
        killer = threading.Thread(
            target=kill_leaders, args=(cluster, tmp_path, errors), daemon=True
        )
        killer.start()

        def copy() -> None:
            options = {**source.options, "maxMessagesPerTrigger": str(BATCH)}
            stream = session.readStream.format("ledgermq").options(**options).load().select("body")
            copied = stream.mapInArrow(stopping(str(tmp_path)), stream.schema)
            writer = (
                copied.writeStream.format("ledgermq")
                .options(**sink.options)
                .option("checkpointLocation", str(checkpoint))
            )
            writer.trigger(availableNow=True).start().awaitTermination()

        def committed() -> int:
            folder = checkpoint / "commits"
            return sum(path.name.isdigit() for path in folder.iterdir()) if folder.exists() else 0

        deaths, done = 0, False
        while not done:
            try:
                copy()
                done = True
            except StreamingQueryException:
                deaths += 1
                assert deaths < 2 * len(EVENTS), "the query does not get on"
                for step in [
                    step
                    for step, what in EVENTS
                    if what == "query" and (tmp_path / f"at-{step}").exists()
                ]:
                    assert (tmp_path / f"go-{step}").exists() or committed() == int(step[0]), step
                    (tmp_path / f"go-{step}").touch()
        killer.join()
        assert errors == [] and committed() == BATCHES
        assert {f"go-{step}" for step, _ in EVENTS} == {path.name for path in tmp_path.glob("go-*")}
        assert differences(bodies(sink), BATCH * BATCHES) == {}
        copy()
        assert differences(bodies(sink), BATCH * BATCHES) == {}
