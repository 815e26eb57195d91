"""A write by Spark that is repeated with other rows in its partitions ends with an error, and
leaves out nothing in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import Producer
from ledgermq.node.process.local import LocalCluster
from tests.audit.spark_session import running_spark
from tests.cluster import create_topic, running

pytestmark = pytest.mark.slow
ROWS = 4_000


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with running_spark() as spark:
        yield spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("rows")) as cluster:
        yield cluster


def test_files_that_are_split_otherwise(
    session: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    """As by another number of cores: the first partition begins like the former one and has more
    rows, the second one has others."""
    create_topic(cluster, "files")
    (tmp_path / "rows.txt").write_text("".join(f"{n:0100d}\n" for n in range(ROWS)))

    def write(partitions: int) -> None:
        session.conf.set("spark.sql.files.maxPartitionBytes", str(101 * ROWS // partitions))
        session.conf.set("spark.sql.files.openCostInBytes", "1")
        frame = session.read.text(str(tmp_path)).selectExpr("value body")
        assert frame.rdd.getNumPartitions() == partitions
        sink = {"endpoints": cluster.endpoints, "topic": "files", "writeId": "nightly"}
        frame.write.format("ledgermq").options(**sink).mode("append").save()

    write(4)
    write(4)
    assert stored(session, cluster, "files") == (ROWS, ROWS)
    with pytest.raises(
        Exception, match="partition 1 of write 'nightly' has other rows than at an earlier try"
    ):
        write(2)


def test_a_topic_of_which_another_queue_has_messages(session: Any, cluster: LocalCluster) -> None:
    """A queue without messages has no partition, so the numbers of the others shift when it gets
    some."""
    create_topic(cluster, "source", queues=3)
    create_topic(cluster, "copy", queues=3)

    def send(queue: int) -> None:
        with Producer(cluster.endpoints, "source") as producer:
            producer.send_batch(
                [b"%d" % n for n in range(queue * 1000, queue * 1000 + 100)], queue=queue
            ).result()

    def copy() -> None:
        where = {"endpoints": cluster.endpoints}
        frame = (
            session.read.format("ledgermq").options(**where, topic="source", columns="body").load()
        )
        frame.write.format("ledgermq").options(**where, topic="copy", writeId="nightly").mode(
            "append"
        ).save()

    send(1)
    send(2)
    copy()
    send(0)
    with pytest.raises(Exception, match="has other rows than at an earlier try"):
        copy()


def stored(session: Any, cluster: LocalCluster, topic: str) -> tuple[int, int]:
    """Messages, and distinct bodies."""
    frame = (
        session.read.format("ledgermq")
        .options(endpoints=cluster.endpoints, topic=topic, columns="body")
        .load()
    )
    return frame.count(), frame.select("body").distinct().count()
