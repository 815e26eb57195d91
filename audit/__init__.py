"""The auditor: proves from the files alone, with a decoder of its own, that every replica is intact and that all replicas agree.

`reading` turns bytes into columns, `checks` holds every rule, `works` cuts the checking into partitions, `jobs` runs these with or without
Spark, `spark` is all that knows Spark, `report` and `page` tell the outcome, `commands` is the command line. Nothing here writes to a data
directory.
"""
