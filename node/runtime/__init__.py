"""What every room of a node may use: configuration values, the log, metrics, errors, deadlines, certificates.

Nothing here knows a broker group, a peer or a client. A module belongs here only if at least two other rooms need it.
"""
