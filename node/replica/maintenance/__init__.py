"""Maintenance of all groups of a node that involves other nodes: comparing digests of sealed files,
and retention.

Each subject has one loop on the event loop, with its slow parts on threads. Queries to a group go
through the engine, queries to peers through the forwarder. Further loops over all groups belong
here; their rules belong in a pure package. `frontend/admin` and `process` import this package.
"""
