"""A continuous audit: `python examples/spark/watch.py DIR`, with a running cluster (`ledgermq up`).

Follows the log of every replica, recomputes every CRC, and compares the replicas at every hundredth
entry: equal chain CRCs there mean equal histories up to there. DIR keeps the progress, so that a
restarted program continues. `--once` stops at the end of the logs. Needs `ledgermq[spark]`.
LEDGERMQ_ENDPOINTS names the cluster (by default 127.0.0.1:8081), LEDGERMQ_REPLICAS the replicas
(n1,n2,n3).
"""

from __future__ import annotations

import os
import sys
from functools import reduce
from typing import Any

from ledgermq.audit.spark.java import spark_session

ENDPOINTS = os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081")
NODES = os.environ.get("LEDGERMQ_REPLICAS", "n1,n2,n3").split(",")
EVERY = 100


def main() -> None:
    directory, once = sys.argv[1], "--once" in sys.argv
    spark = spark_session("local[2]")
    columns = "replica,group,index,chain_crc,intact"
    source = spark.readStream.format("ledgermq").options(
        endpoints=ENDPOINTS, view="entries", columns=columns, maxEntriesPerTrigger=100_000
    )
    entries = reduce(
        lambda one, other: one.union(other),
        [source.option("replicas", node).load() for node in NODES],
    )

    def look(batch: Any, number: int) -> None:
        batch = batch.persist()
        for row in batch.where("NOT intact").collect():
            print(
                f"damaged: entry {row['index']} of {row['group']} on {row['replica']}", flush=True
            )
        # A batch that is retried after a crash overwrites its former output, so nothing is stored
        # twice.
        marks = batch.where(f"`index` % {EVERY} = 0")
        marks.write.mode("overwrite").parquet(f"{directory}/marks/batch={number}")
        spark.read.parquet(f"{directory}/marks").createOrReplaceTempView("marks")
        apart = (
            "SELECT `group`, min(`index`) AS first FROM (SELECT `group`, `index` FROM marks GROUP"
            " BY `group`, `index` HAVING "
        )
        for row in spark.sql(f"{apart} count(DISTINCT chain_crc) > 1) GROUP BY `group`").collect():
            print(
                f"replicas differ: {row['group']} at entry {row['first']} or up to {EVERY}"
                " before it",
                flush=True,
            )
        print(f"batch {number}: {batch.count()} entries", flush=True)
        batch.unpersist()

    writer = entries.writeStream.foreachBatch(look).option(
        "checkpointLocation", f"{directory}/checkpoint"
    )
    writer = (
        writer.trigger(availableNow=True) if once else writer.trigger(processingTime="10 seconds")
    )
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
