"""A topic as a Spark table, a stream and a sink: `python examples/spark/flights.py`, with a running
cluster (`ledgermq up`).

Needs `ledgermq[spark]`. LEDGERMQ_ENDPOINTS names the cluster, by default 127.0.0.1:8081.
"""

from __future__ import annotations

import os
import tempfile

from ledgermq.audit.spark.java import spark_session
from ledgermq.client import Admin, Connection

ENDPOINTS = os.environ.get("LEDGERMQ_ENDPOINTS", "127.0.0.1:8081")
COUNT = 10_000


def main() -> None:
    with Connection(ENDPOINTS) as connection:
        for name in ("spark-flights", "spark-late"):
            Admin(connection).create_topic(name, queues=4)
    spark = spark_session("local[2]")
    flights = {"endpoints": ENDPOINTS, "topic": "spark-flights"}

    # The write has a name: if the program runs twice, the messages are stored once.
    rows = spark.range(0, COUNT, 1, 4).selectExpr(
        "concat('flight ', id) AS body",
        "element_at(array('UA', 'AA', 'B6', 'DL'), cast(id % 4 AS int) + 1) AS tag",
        "map('delay', cast(id % 97 AS string)) AS properties",
    )
    rows.write.format("ledgermq").options(**flights, writeId="flights-1").mode("append").save()

    spark.read.format("ledgermq").options(**flights).load().createOrReplaceTempView("flights")
    spark.sql("""
        SELECT tag, count(*) AS messages, avg(cast(properties['delay'] AS int)) AS delay, count(DISTINCT queue) AS queues
        FROM flights GROUP BY tag ORDER BY tag
        """).show()

    # Copy the late flights to another topic, each exactly once: everything that exists now, then
    # stop.
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = (
            spark.readStream.format("ledgermq")
            .options(**flights, maxMessagesPerTrigger="4000")
            .load()
        )
        late = stream.where("cast(properties['delay'] AS int) > 90").select(
            "body", "tag", "properties"
        )
        writer = late.writeStream.format("ledgermq").options(
            endpoints=ENDPOINTS, topic="spark-late"
        )
        writer.option("checkpointLocation", checkpoint).trigger(
            availableNow=True
        ).start().awaitTermination()
    print(
        "late:",
        spark.read.format("ledgermq")
        .options(endpoints=ENDPOINTS, topic="spark-late", columns="offset")
        .load()
        .count(),
    )
    spark.stop()


if __name__ == "__main__":
    main()
