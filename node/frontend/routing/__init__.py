"""Routes calls from any node to the leader of a broker group, and from any worker of a node to
another worker.

`forwarder.py` sends a call to the leader, at most once if it must not be repeated; `local_reads.py`
decides what a follower may serve; `worker_proxy.py` and `worker_registry.py` connect the workers of
one node. Calls are passed as bytes; the executor interprets them. The services of the frontend and
`process` import this package.
"""
