"""Batch jobs over topics on Spark: counts, duplicates, gaps, comparisons and replays.

The jobs are functions of data frames with the columns of `spark.read.format("ledgermq")`, and the
commands `ledgermq jobs`. They judge what producers sent; the other rooms of `audit/` judge the log.
"""
