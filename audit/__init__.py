"""The auditor: proves from the files alone, with a decoder of its own, that every replica is intact and that all replicas agree.

`decode` reads bytes, `scan` checks one log file, `derived` and `replica` check what surrounds it, `compare` holds the replicas against each
other, `jobs` runs it all with or without Spark, `report` and `page` tell the outcome. Nothing here writes to a data directory.
"""
