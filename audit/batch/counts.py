"""Messages per key and hour, duplicates by business key, and gaps in sequences, as data frames.

Each function takes messages, one row each, with the columns of the data source `ledgermq`
(docs/spark.md): a topic, a range of one, or the view `messages` of one replica. An expression names
what a job is about: a business key, or a number. Every job reads its frame once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

HOUR_S = 3600
BUCKET_BITS = 20
"""Numbers of a sequence are sorted in stretches of 2^20, so that one long sequence is the work of
many tasks."""


PLACE = ("store_time", "broker_group", "queue", "offset", "message_id")


def place() -> Column:
    """The place of a message as one value; the smallest one is the message stored first."""
    return F.struct(*PLACE)


def messages_per_hour(
    frame: DataFrame, key: Column | None = None, time: str = "store_time"
) -> DataFrame:
    """Rows (`key`, `hour`, `messages`). Without `key`, a message counts for each of its message
    keys, or for null if it has none. `time`: the column that decides the hour. Hours begin at full
    hours of UTC, whatever time zone the session has."""
    seconds = F.unix_seconds(time)
    hour = F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(HOUR_S)))
    counted = frame.select(key_of(key).alias("key"), hour.alias("hour")).groupBy("key", "hour")
    return counted.agg(F.count(F.lit(1)).alias("messages"))


def key_of(key: Column | None) -> Column:
    """The business key as text; without one, a row for each message key."""
    return F.explode_outer("keys") if key is None else key.cast("string")


def duplicates(frame: DataFrame, key: Column | None = None) -> DataFrame:
    """Rows (`key`, `messages`, `bodies`, `first`, `last`) of the keys that several messages have;
    messages without a key are left out.

    `bodies` counts the different bodies: 1 means that the same message was sent again. `first` and
    `last` are the places of two of the messages (`place`), so a row is small however often a key
    occurs."""
    rows = frame.select(
        key_of(key).alias("key"), F.sha2("body", 256).alias("digest"), place().alias("place")
    ).where("key IS NOT NULL")
    # One message may list a key twice.
    rows = rows.dropDuplicates(["key", "place"]) if key is None else rows
    counts = rows.groupBy("key", "digest").agg(
        F.count(F.lit(1)).alias("n"), F.min("place").alias("first"), F.max("place").alias("last")
    )
    sums = [
        F.sum("n").alias("messages"),
        F.count(F.lit(1)).alias("bodies"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    ]
    return counts.groupBy("key").agg(*sums).where("messages > 1")


def gaps(frame: DataFrame, number: Column, series: Column | None = None) -> DataFrame:
    """Rows (`series`, `first`, `last`, `missing`): the missing integers between the lowest and the
    highest number of each series.

    `number` gives the sequence number of a message; messages for which it is no integer are left
    out. `series` tells several sequences apart, such as those of each account. Numbers that are
    missing at the end of a sequence cannot be seen."""
    none = F.lit(None) if series is None else series
    rows = frame.select(
        none.cast("string").alias("series"), number.try_cast("bigint").alias("number")
    ).where("number IS NOT NULL")
    rows = rows.withColumn("stretch", F.shiftright("number", BUCKET_BITS))
    within = Window.partitionBy("series", "stretch").orderBy("number")
    rows = rows.select(
        "series",
        "number",
        F.lag("number").over(within).alias("before"),
        F.lead("number").over(within).alias("behind"),
    )
    # The first and the last number of each stretch, and the numbers behind gaps: few rows, which
    # one task may sort.
    few = rows.where("before IS NULL OR behind IS NULL OR number - before > 1")
    across = Window.partitionBy("series").orderBy("number")
    few = few.withColumn("previous", F.coalesce("before", F.lag("number").over(across)))
    missing = few.where("number - previous > 1")
    return missing.selectExpr(
        "series", "previous + 1 AS first", "number - 1 AS last", "number - previous - 1 AS missing"
    )
