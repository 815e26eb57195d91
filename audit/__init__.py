"""The auditor: proves from the files alone, with its own decoder, that every replica is intact and that all replicas agree.

`reading` decodes bytes into columns, `checks` holds every rule, `works` splits the checking into partitions, `jobs` runs these with or
without Spark, only `spark` knows Spark, `report` and `page` present the result, `commands` is the command line. Nothing here writes to a
data directory.
"""
