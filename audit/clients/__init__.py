"""Comparing the log with its clients: receipts of producers and deliveries of consumers, joined
with the entries that the replicas agree on.

`client_files` and `claims` read the clients' files, `logged_messages` the log, `scope` says which
part of the log counts. `judging` compares the two within one bucket, with `receipts`, `deliveries`
and `bucket_results`; `joining` brings equal buckets together in this process, `spark.clients` on a
Spark cluster; `outcome` adds up the results. Nothing here writes to a data directory, and nothing
decides what a replica's own damage means: `checks` does.
"""
