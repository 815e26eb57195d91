"""The auditor: proves from the files alone, with its own decoder, that every replica is intact and
that all replicas agree.

`rules` names every check. `reading` decodes bytes into columns, `state` derives the state again,
`checks` checks files and replicas, `clients` compares the log with its clients. `run` splits the
checking into partitions and runs them, with or without Spark; only `spark` knows Spark. `repairs`
plans repairs, `batch` has jobs over topics, `cli` presents the result. Nothing here writes to a
data directory.
"""
