"""Two topics compared, of one cluster or of two: the messages that one has more often than the
other, as a data frame.

Messages are equal if body, tag, keys and user properties are equal. Ids, offsets and times differ
between a message and its copy, so they are shown and not compared.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledgermq.audit.batch.counts import place


def differences(left: DataFrame, right: DataFrame, key: Column | None = None) -> DataFrame:
    """Rows (`key`, `digest`, `left`, `right`, `first_left`, `first_right`), one for each content
    that the two sides do not have equally often.

    `left` and `right` are the numbers of messages, `first_left` and `first_right` the places of the
    first of them (null: there is none), and `digest` identifies the content. `key` is shown to find
    the message again: a message that was changed gives two rows with the same key."""
    sides = _side(left, key, is_left=True).unionByName(_side(right, key, is_left=False))
    at_left = F.col("is_left")
    sums = [
        F.count_if(at_left).alias("left"),
        F.count_if(~at_left).alias("right"),
        F.min(F.when(at_left, F.col("place"))).alias("first_left"),
        F.min(F.when(~at_left, F.col("place"))).alias("first_right"),
    ]
    return sides.groupBy("key", "digest").agg(*sums).where("left <> right")


def _side(frame: DataFrame, key: Column | None, is_left: bool) -> DataFrame:
    shown = F.lit(None) if key is None else key
    return frame.select(
        shown.cast("string").alias("key"),
        _digest().alias("digest"),
        place().alias("place"),
        F.lit(is_left).alias("is_left"),
    )


def _digest() -> Column:
    """SHA-256 of what a producer sent. JSON keeps the parts apart, and the order of properties
    means nothing."""
    # A message without a tag may have been stored with an empty one.
    tag = F.coalesce("tag", F.lit(""))
    parts = F.struct(
        F.base64("body"),
        tag,
        F.coalesce("keys", F.array()),
        F.sort_array(F.map_entries("properties")),
    )
    return F.sha2(F.to_json(parts).cast("binary"), 256)
