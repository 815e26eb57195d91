"""What every room of a node may use: configuration values, the log, metrics, errors, deadlines,
certificates.

Nothing here knows about broker groups, peers or clients. A module belongs here only if at least two
other rooms need it. A new setting is a field of its section and a line of the example; a new metric
is declared in `metrics.py` with its unit in the name. Every room may import this one, except the
pure ones: `broker`, and `consensus`, `shipping` and `retention` of `replica`.
"""
