"""The log against its clients: receipts of producers and deliveries of consumers, joined with the entries that the replicas agree on.

`files` and `claims` read what clients kept, `stored` what the log holds, `scope` says what of the log counts. `judging` compares the two
within one bucket, with `receipts`, `deliveries` and `results`; `joining` brings equal buckets together in this process, `spark.clients` on
a Spark cluster; `outcome` adds up what was found.
Nothing here writes to a data directory, and nothing decides what a replica's own damage means: that is `checks`.
"""
