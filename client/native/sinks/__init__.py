"""Where consumed messages go: a file of `ledgermq consume`, and sinks, which keep each message of a
topic once, in Parquet or Iceberg."""
